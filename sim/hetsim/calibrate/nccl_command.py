"""`hetsim calibrate nccl`: a measured curve of NVLink or of a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from hetsim.cli import console
from hetsim.cli.options import FOLDER, JSON, PATH, QUIET

if TYPE_CHECKING:
    from hetsim.calibrate.nccl import MeasuredCollective


@click.command("nccl", short_help="Turn output of nccl-tests into a curve for a cluster.")
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--in-place", is_flag=True, help="Take the columns measured in place, not those out of place.")
@click.option("--as", "link", type=click.Choice(["nvlink", "network"]),
              help="What was measured.  [default: nvlink if all ranks are on one host, else network]")  # fmt: skip
@click.option("--out", type=FOLDER, default=Path("."), metavar="DIR",
              help="Folder for the profile.  [default: the current one]")  # fmt: skip
@click.option("--name", metavar="NAME", help="Of the profile: NAME.nvlink.yaml, NAME.network.yaml.  [default: FILE's]")
@click.option("--force", is_flag=True, help="Replace a profile that exists.")
@JSON
@QUIET
def nccl(
    file: Path, in_place: bool, link: Literal["nvlink", "network"] | None, out: Path, name: str | None, force: bool,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Write the bus bandwidth by size that nccl-tests measured, as a profile.

    FILE is what all_reduce_perf or another of the tests prints. Scenarios include the profile: nvlink: {profile:
    NAME.nvlink.yaml} between the GPUs of a node, network: {profile: NAME.network.yaml} between nodes. Dips are
    leveled, with a note; a fall to less than half is refused.
    """
    from hetsim.calibrate.llm_command import write_profile
    from hetsim.calibrate.nccl import read_nccl
    from hetsim.experiment.directory import folder_name

    measured = read_nccl(file, in_place)
    kind = link or _kind(measured, file)
    _suits(measured, kind, file)
    begin = out / folder_name(name or file.stem)
    target = begin.with_name(f"{begin.name}.{kind}.yaml")
    console.check_replaceable(target, force)
    profile = _profile(measured, kind)
    if as_json:
        console.as_json({"profile": profile, "measured": dict(zip(measured.sizes, measured.measured, strict=True))})
    else:
        console.lines(_text(measured, kind))
    console.warnings([measured.remark] if measured.remark else [], quiet)
    write_profile(target, profile, quiet)


def _kind(found: MeasuredCollective, file: Path) -> str:
    from hetsim.errors import Problem, ScenarioError

    if not found.hosts:
        text = "no line names a rank and its host; say what was measured with --as nvlink or --as network"
        raise ScenarioError(Problem(text, file=str(file)))
    return "nvlink" if found.hosts == 1 else "network"


def _suits(found: MeasuredCollective, kind: str, file: Path) -> None:
    """ScenarioError for a test that does not tell the rate of this link."""
    from hetsim.calibrate.nccl import RINGS
    from hetsim.errors import Problem, ScenarioError

    if kind == "network" and found.collective and found.collective not in RINGS:
        text = f"{found.collective}_perf over nodes tells what a rank has of the network, not a node's rate; "
        raise ScenarioError(Problem(f"{text}give the output of all_reduce_perf", file=str(file)))
    if kind == "nvlink" and found.hosts > 1:
        text = f"its ranks are on {found.hosts} hosts: this is no curve of the GPUs of one node"
        raise ScenarioError(Problem(text, file=str(file)))


def _profile(found: MeasuredCollective, kind: str) -> dict[str, Any]:
    about = {"test": found.collective, "ranks": found.ranks, "hosts": found.hosts, "device": found.device}
    curve = [
        [f"{size} B", f"{rate / 1e9:.6g} GB/s"] for size, rate in zip(found.sizes, found.curve, strict=True)
    ]  # fmt: skip
    return {"measured": {key: value for key, value in about.items() if value}, kind: {"curve": curve}}


def _text(found: MeasuredCollective, kind: str) -> list[str]:
    from hetsim.report import terminal

    rows = [["size", "time", "measured", "curve"]]
    for size, seconds, measured, rate in zip(found.sizes, found.seconds, found.measured, found.curve, strict=True):
        rates = [f"{one / 1e9:.4g} GB/s" for one in (measured, rate)]
        rows.append([terminal.data_size(size), terminal.seconds(seconds), *rates])
    among = f" among {found.ranks} ranks on {found.hosts} host{'s' * (found.hosts > 1)}" if found.ranks else ""
    return [f"{found.collective or 'a collective'}{among}: {kind}", "", *terminal.table(rows, right=range(4))]
