"""Reads the output of nccl-tests as bus bandwidth by size.

The table has one row per size: size, count, type, redop, root, then time (us), algbw, busbw (GB/s) and errors, out of
place and in place; lines that begin with # state the ranks, the hosts and the collective; other lines are output of
programs.  Bandwidth is computed from sizes and times, since the columns have only two decimals: 0.00 at small sizes.

The curve of a cluster must increase with the size.  Measured curves have dips, due to noise and where NCCL changes its
algorithm: a dip is replaced by the geometric means that make the curve increase and change it least (isotonic
regression).  A fall to less than half is not a dip, and is an error.
Reference: github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md.
"""

import itertools
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from hetsim.cli import console
from hetsim.cli.options import FOLDER, JSON, PATH, QUIET
from hetsim.errors import file_error
from hetsim.report import terminal

DEEPEST = 0.5  # a bandwidth below this share of that at a smaller size is an error
AGREE, ROUNDED = 0.02, 0.011  # maximum difference of algbw and size / time: this share, plus rounding to two decimals

BOTH_WAYS = ("all_reduce",)
ONE_WAY = ("all_gather", "reduce_scatter")
EACH_TO_ALL = ("alltoall", "gather", "scatter", "hypercube")
DIRECT = ("broadcast", "reduce", "sendrecv")
# Collectives that load the links between nodes evenly: their bandwidth is that of a whole node
RINGS = (*BOTH_WAYS, *ONE_WAY, "broadcast", "reduce")

_TAG = re.compile(r"^\[[\d,]+\]<std(?:out|err)>:\s?")
_RANK = re.compile(r"Rank\s+(\d+)\b.*?\bon\s+(\S+)\s+device\s+\d+\s*(?:\[\w+\])?\s*(.*)")
_TEST = re.compile(r"\b(" + "|".join((*BOTH_WAYS, *ONE_WAY, *EACH_TO_ALL, *DIRECT)) + r")_perf\b")
_VALUE = re.compile(r"\S+")


@dataclass(frozen=True)
class MeasuredCollective:
    """A test of a collective: seconds by size, and the ranks stated in the file."""

    collective: str
    ranks: int
    hosts: int
    device: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    measured: tuple[float, ...]  # bus bandwidth by size, bytes per second
    curve: tuple[float, ...]  # measured bandwidth, made increasing

    @property
    def remark(self) -> str | None:
        """Remark on rates that were changed to make the curve increase; None if none was."""
        changed = [
            (abs(level / rate - 1), size)
            for size, rate, level in zip(self.sizes, self.measured, self.curve, strict=True)
            if level != rate
        ]
        if not changed:
            return None
        by, size = max(changed)
        text = f"the bandwidth must not fall with size; {len(changed)} of {len(self.sizes)} sizes were adjusted"
        return f"{text}, by {by:.2g} of their value at most (at {size:,} B)"


@dataclass(frozen=True)
class _Row:
    line: int
    column: int
    size: int
    seconds: float
    algorithm: float  # algbw and (next field) busbw, bytes per second
    bus: float


def read_nccl(path: str | Path, in_place: bool = False) -> MeasuredCollective:
    """Return the measured curve; ScenarioError with the line and column of a problem."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise file_error(path, "the file is not UTF-8 text") from None
    except OSError as error:
        raise file_error(path, f"cannot be read: {error.strerror}") from None
    lines = [_TAG.sub("", line) for line in lines]
    ranks = {match[1]: (match[2], match[3].strip()) for line in lines if (match := _RANK.search(line))}
    named = {match[1] for line in lines if line.startswith("#") and (match := _TEST.search(line))}
    if not (rows := _rows(lines, str(path), in_place)):
        text = "the file has no table of nccl-tests: lines of size, count, type, redop, root, time, algbw, busbw"
        raise file_error(path, text)
    if len(named) > 1:
        raise file_error(path, f"several tests in one file: {' and '.join(sorted(named))}; give a file for each")
    collective = next(iter(named), "")
    factor = _factor(collective, len(ranks), rows)
    measured = tuple(factor * row.size / row.seconds for row in rows)
    _check(rows, measured, str(path))
    hosts, devices = {host for host, _ in ranks.values()}, {device for _, device in ranks.values()}
    return MeasuredCollective(
        collective, len(ranks), len(hosts), device=", ".join(sorted(filter(None, devices))),
        sizes=tuple(row.size for row in rows), seconds=tuple(row.seconds for row in rows), measured=measured,
        curve=leveled(measured),
    )  # fmt: skip


def _rows(lines: list[str], file: str, in_place: bool) -> list[_Row]:
    rows: list[_Row] = []
    values = 0  # of a row, from time on
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#"):
            if "busbw" in line:
                values = 4 * line.split().count("busbw")
            continue
        words = list(_VALUE.finditer(line))
        if not values or not words or not words[0][0].isdecimal():
            continue
        if len(words) < values + 2:
            text = f"a row must have a size, a count, a type and {values} values; got {len(words)} words"
            raise file_error(file, text, number, words[0].start() + 1)
        if in_place and values < 8:
            raise file_error(file, "no in-place columns; leave out --in-place", number, words[-1].start() + 1)
        first = len(words) - (4 if in_place else values)
        time, algorithm, bus = (_number(words[first + k], file, number, k == 0) for k in range(3))
        wrong = words[first + 3]
        if wrong[0].isdecimal() and int(wrong[0]):  # 4e-07 is an error of old versions, N/A no check
            text = f"{wrong[0]} wrong results: the test failed at this size, so its time cannot be used"
            raise file_error(file, text, number, wrong.start() + 1)
        size = int(words[0][0])
        if size == 0:
            continue
        row = _Row(number, words[first].start() + 1, size, seconds=time / 1e6, algorithm=algorithm * 1e9, bus=bus * 1e9)
        if rows and size <= rows[-1].size:
            text = f"sizes must increase; {size:,} B follows {rows[-1].size:,} B: give a file for each test"
            raise file_error(file, text, number, words[0].start() + 1)
        if abs(size / row.seconds - row.algorithm) > AGREE * row.algorithm + ROUNDED * 1e9:
            text = f"{size:,} B in {time:g} us are {size / row.seconds / 1e9:.4g} GB/s, but algbw says {algorithm:g}"
            raise file_error(file, f"{text}; time must be in us and algbw in GB/s", number, row.column)
        rows.append(row)
    return rows


def _number(word: re.Match[str], file: str, line: int, positive: bool) -> float:
    try:
        value = float(word[0])
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e15 or (positive and not value):
        text = f'must be a number {"above" if positive else "of at least"} 0; got "{word[0]}"'
        raise file_error(file, text, line, word.start() + 1)
    return value


def _factor(collective: str, ranks: int, rows: list[_Row]) -> float:
    if ranks > 1 and collective:
        part = (ranks - 1) / ranks
        return 2 * part if collective in BOTH_WAYS else 1.0 if collective in DIRECT else part
    best = max(rows, key=lambda row: row.algorithm)
    return best.bus / best.algorithm if best.algorithm and best.bus else 1.0


def _check(rows: list[_Row], measured: tuple[float, ...], file: str) -> None:
    highest, at = 0.0, 0
    for row, rate in zip(rows, measured, strict=True):
        if rate < DEEPEST * highest:
            text = f"the curve falls from {highest / 1e9:.4g} GB/s at {at:,} B to {rate / 1e9:.4g} GB/s at"
            text = f"{text} {row.size:,} B, which is more than noise: measure again, or delete the row"
            raise file_error(file, text, row.line, row.column)
        if rate > highest:
            highest, at = rate, row.size


def leveled(rates: tuple[float, ...]) -> tuple[float, ...]:
    """Return the nearest increasing rates, by least squares of logarithms.

    Decreasing neighbors are replaced by their geometric mean.

    >>> leveled((1.0, 8.0, 2.0))
    (1.0, 4.0, 4.0)
    """
    pools: list[tuple[float, int]] = []
    for rate in rates:
        pools.append((rate, 1))
        while len(pools) > 1 and pools[-1][0] < pools[-2][0]:
            (high, n), (low, m) = pools[-2:]
            pools[-2:] = [(math.exp((n * math.log(high) + m * math.log(low)) / (n + m)), n + m)]
    return tuple(itertools.chain.from_iterable([rate] * count for rate, count in pools))


# `hetsim calibrate nccl`: a measured curve of NVLink or of a network.


@click.command("nccl", short_help="Convert output of nccl-tests into a bandwidth curve for a cluster.")
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--in-place", is_flag=True, help="Use the columns measured in place, not those out of place.")
@click.option("--as", "link", type=click.Choice(["nvlink", "network"]),
              help="Measured link.  [default: nvlink if all ranks are on one host, else network]")  # fmt: skip
@click.option("--out", type=FOLDER, default=Path("."), metavar="DIR",
              help="Folder for the profile.  [default: the current one]")  # fmt: skip
@click.option("--name", metavar="NAME", help="Name in NAME.nvlink.yaml, NAME.network.yaml. [default: FILE]")
@click.option("--force", is_flag=True, help="Replace a profile that exists.")
@JSON
@QUIET
def nccl(
    file: Path, in_place: bool, link: Literal["nvlink", "network"] | None, out: Path, name: str | None, force: bool,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Write the bus bandwidth by size that nccl-tests measured, as a profile.

    FILE is the output of all_reduce_perf or of another test. Scenarios include the profile: nvlink: {profile:
    NAME.nvlink.yaml} between the GPUs of a node, network: {profile: NAME.network.yaml} between nodes. Dips are leveled,
    with a note; a fall of the bandwidth to less than half is an error.
    """
    from hetsim.calibrate.llm_command import profile_path, write_profile

    measured = read_nccl(file, in_place)
    if link is None and not measured.hosts:
        text = "no line of the file names a rank and its host; state what was measured: --as nvlink or --as network"
        raise file_error(file, text)
    kind = link or ("nvlink" if measured.hosts == 1 else "network")
    if kind == "network" and measured.collective and measured.collective not in RINGS:
        text = f"{measured.collective}_perf over nodes measures the network share of one rank, not the rate of a node; "
        raise file_error(file, f"{text}give the output of all_reduce_perf")
    if kind == "nvlink" and measured.hosts > 1:
        raise file_error(file, f"--as nvlink needs all ranks on one host; got {measured.hosts} hosts")
    target = profile_path(out, name or file.stem, kind, force)
    about = {
        "test": measured.collective, "ranks": measured.ranks, "hosts": measured.hosts, "device": measured.device,
    }  # fmt: skip
    rates = zip(measured.sizes, measured.curve, strict=True)
    curve = [[f"{size} B", f"{rate / 1e9:.6g} GB/s"] for size, rate in rates]
    profile = {"measured": {key: value for key, value in about.items() if value}, kind: {"curve": curve}}
    console.result(as_json, lambda: {
        "profile": profile, "measured": dict(zip(measured.sizes, measured.measured, strict=True)),
    }, lambda: _text(measured, kind))  # fmt: skip
    console.warnings([measured.remark] if measured.remark else [], quiet)
    write_profile(target, profile, quiet)


def _text(found: MeasuredCollective, kind: str) -> list[str]:
    rows = [["size", "time", "measured", "curve"]]
    for size, seconds, measured, rate in zip(found.sizes, found.seconds, found.measured, found.curve, strict=True):
        rates = [f"{one / 1e9:.4g} GB/s" for one in (measured, rate)]
        rows.append([terminal.data_size(size), terminal.seconds(seconds), *rates])
    among = f" among {found.ranks} ranks on {found.hosts} host{'s' * (found.hosts > 1)}" if found.ranks else ""
    return [f"{found.collective or 'a collective'}{among}: {kind}", "", *terminal.table(rows, right=range(4))]
