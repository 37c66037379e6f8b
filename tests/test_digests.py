"""Digests of all columns of every shipped scenario, shortened, and of small systems that stress the engine.

What is held is not what is right, which other tests say, but what comes out: a change that should make something
faster or clearer leaves every digest as it is, and a new column or metric is no difference.  One that is meant to
change results says which ones:

    python tests/test_digests.py [--only TEXT]      writes tests/digests.csv anew and prints what changed
    python tests/test_digests.py --exact            prints digests to the last bit, for `diff` between two checkouts

Same bytes for the same seed are promised within one environment only: another version of NumPy, or another processor,
may add the same numbers in another order.  The digests in the file are therefore of rounded numbers: see `rounded`.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cases import Case, chaotic, service, services
from test_shipped_scenarios import SHIPPED, short
from tiers import spread

from hetsim.engine.simulation import Simulation
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import load
from hetsim.scenario.schema.policy import PolicySpec, long_form
from hetsim.testing.generate import random_system
from hetsim.testing.systems import served_systems, small_systems

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.features import TASKS, tasks_run  # noqa: E402  (found by pytest, not by a script in this folder)

FILE = Path(__file__).with_name("digests.csv")
TABLES = ("tasks", "launches", "devices", "timeline", "steps", "links", "summary")
COMMAND = "python tests/test_digests.py"
BITS = 28
NOISE = 1e-9
DIGITS = 6

# What is run --------------------------------------------------------------------------------------------------------

POLICIES = (
    "fcfs", "fcfs_skip", "sjf", "srtf", "las", "edf", "easy_backfill", "conservative_backfill",
    "heteroprio", "dmda", "drf", "round_robin", "processor_sharing",
)  # fmt: skip
PROGRAMS = {"constraint_injection": "heft"}
"""Policies of shipped scenarios that solve programs for seconds, and what runs in their place."""


def scenarios() -> Iterator[Case]:
    """All that ship, shortened."""

    def build(name: str) -> Any:
        policy = load(name).raw["policy"]
        found = next((other for one, other in PROGRAMS.items() if policy == long_form(one)), None)
        return load(name, short(name, 40) | ({"policy": found} if found else {})).build(None, 0)

    for name in SHIPPED:
        yield name, partial(build, name)


def systems() -> Iterator[Case]:
    """Each small system of the conformance suite under two policies, each policy on several."""
    for number, system in enumerate(small_systems()):
        for turn in range(2):
            policy = POLICIES[(2 * number + 7 * turn) % len(POLICIES)]
            yield f"{system.name} under {policy}", partial(_system, number, policy)
    for number, served in enumerate(served_systems()):
        yield f"{served.name} under edf", lambda n=number: served_systems()[n].run_input(_policy("edf"))


def random_systems() -> Iterator[Case]:
    for seed in range(24):
        policy = POLICIES[5 * seed % len(POLICIES)]
        yield f"random system {seed} under {policy}", partial(_random, seed, policy)


def batches() -> Iterator[Case]:
    """A service in all its variants, and under batching policies that need neither parameters nor time to plan."""
    for name, build in services():
        if name.endswith("seed 1"):
            yield name.removesuffix(", seed 1"), build
    for name in ("clipper_aimd", "clipper_quantile", "clockwork", "nexus", "size_or_timeout", "triton_dynamic"):
        described = service(rate="300/s", horizon="1 s", noise="5%", policy={"batching": name})
        yield f"service, {name}", lambda d=described: load(d).build(1)


def features() -> Iterator[Case]:
    """Tasks whose transfers, streams, switches and sharing make a run leave the easy path."""
    for name, (parts, _, _) in TASKS.items():
        yield f"64 GPUs, {name}", partial(tasks_run, 300, **parts)


def _policy(name: str) -> Any:
    return PolicySpec("scheduler", name).make()


def _system(number: int, policy: str) -> Any:
    return small_systems()[number].run_input(_policy(policy))


def _random(seed: int, policy: str) -> Any:
    return random_system(seed, nodes=1 + seed % 4).run_input(_policy(policy))


def decisions() -> Iterator[Case]:
    """Stops, moves, frequencies, prefetches and faults at random; of three seeds a decision is refused."""
    for name, build in chaotic(17):
        if name not in ("chaos 3", "chaos 7", "chaos 11"):
            yield name, build


KINDS: tuple[Callable[[], Iterator[Case]], ...] = (
    systems, random_systems, decisions, batches, features,
)  # fmt: skip
SMALL = dict(case for kind in KINDS for case in kind())
CASES = dict(scenarios()) | SMALL

# What is kept of it -------------------------------------------------------------------------------------------------


def rounded(values: np.ndarray) -> np.ndarray:
    """Numbers to 28 significant binary digits (eight decimal ones), and those below 1e-9 as zero.

    One more digit, and last bits that differ everywhere would change digests by chance.  What lies below 1e-9 is left
    over from differences of times.  Cells are not centered on their numbers, by a third of a cell: what people write
    down, in decimals or binary fractions, then lies on no boundary.
    """
    mantissa, exponent = np.frexp(np.where(np.abs(values) < NOISE, 0.0, values))
    whole = np.rint(np.ldexp(mantissa, BITS) + 1 / 3)
    return np.where(np.isfinite(values), np.ldexp(whole, exponent - BITS), values) + 0.0


def canonical_floats(table: pd.DataFrame, exact: bool) -> np.ndarray:
    """A row for each column, all made in one go: summaries have a hundred of one value each."""
    values = table.to_numpy().astype("<f8").T
    values = np.where(np.isnan(values), np.nan, values)
    return np.ascontiguousarray(values if exact else rounded(values))


def canonical(column: pd.Series) -> bytes:
    """The values alone: neither the type of a column nor the order of categories counts."""
    kind = column.dtype
    if isinstance(kind, np.dtype) and kind.kind in "iub":
        return column.to_numpy().astype("<i8").tobytes()
    return "\x1f".join("" if missing else str(value)
                       for value, missing in zip(column, column.isna(), strict=True)).encode()  # fmt: skip


def column_digests(name: str, table: pd.DataFrame, exact: bool = False) -> Iterator[tuple[str, str]]:
    """Of each column its name and the beginning of the SHA-256 of its values; of the table its rows."""
    yield name, f"{len(table)}"
    floats = [column for column, kind in table.dtypes.items() if isinstance(kind, np.dtype) and kind.kind == "f"]
    numbers = dict(zip(floats, canonical_floats(table[floats], exact), strict=True)) if floats else {}
    for column in table.columns:
        values = numbers[column].tobytes() if column in numbers else canonical(table[column])
        yield f"{name}.{column}", hashlib.sha256(values).hexdigest()[:DIGITS]


def digests(build: Callable[[], Any], check: bool = False, exact: bool = False) -> dict[str, str]:
    """Table -> rows, and table.column -> digest, of a run; of the summary the columns are its metrics."""
    return digests_of(Result(Simulation(build(), check=check).run()), exact)


def digests_of(result: Result, exact: bool = False) -> dict[str, str]:
    tables = {name: getattr(result, name) for name in TABLES}
    tables["summary"] = tables["summary"].T
    return dict(
        pair for name, table in tables.items() if len(table) for pair in column_digests(name, table, exact)
    )  # fmt: skip


def kept() -> dict[str, dict[str, str]]:
    """Case -> table or column -> rows or digest, as the file says."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return {row.pop("case"): {name: text for name, text in row.items() if text} for row in csv.DictReader(file)}


# The tests ----------------------------------------------------------------------------------------------------------

KEPT = kept() if FILE.exists() else {}


def same(name: str, found: dict[str, str]) -> None:
    """The digests of a case are those in the file, else a message names the columns."""
    changed = changes(KEPT[name], found)
    assert not changed, (
        f"{name}: {changed}.  If results of this case are meant to change, `{COMMAND}` writes the digests anew; "
        f"`{COMMAND} --exact` in two checkouts shows which cases differ, to the last bit."
    )


def changes(before: dict[str, str], after: dict[str, str]) -> str:
    """Which columns changed or are missing, and which tables are new or have other rows; new columns are none."""
    told = [f"{table} ({before.get(table, 'no')} rows -> {after.get(table, 'no')})"
            for table in TABLES if before.get(table) != after.get(table)]  # fmt: skip
    told += [f"{name} is missing" if name not in after else name
             for name, text in before.items() if name not in TABLES and after.get(name) != text]  # fmt: skip
    return ", ".join(told)


def test_only_changed_and_missing_columns_are_differences():
    table = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
    before = dict(column_digests("tasks", table))
    assert changes(before, dict(column_digests("tasks", table.assign(c=0)[["c", "b", "a"]]))) == ""
    assert changes(before, dict(column_digests("tasks", table.assign(b="x")))) == "tasks.b"
    assert changes(before, dict(column_digests("tasks", table[["a"]]))) == "tasks.b is missing"
    assert changes(before, dict(column_digests("tasks", table[:1]))) == "tasks (2 rows -> 1), tasks.a, tasks.b"


def test_every_case_has_digests_and_nothing_else_has():
    assert list(KEPT) == list(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_scenarios(name):
    """The quick tier compares them all, too: in test_shipped_scenarios.py, with the runs whose invariants it checks."""
    same(name, digests(CASES[name]))


@pytest.mark.quick(59)
@pytest.mark.parametrize("name", SMALL)
def test_small_systems(name):
    same(name, digests(SMALL[name]))


@pytest.mark.parametrize("name", spread(SMALL, len(SMALL) // 12))
def test_checking_every_invariant_changes_nothing(name):
    """To check, every timetable is written out; a run that does not look at them leaves most of them unwritten."""
    same(name, digests(SMALL[name], check=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--exact", action="store_true", help="print digests to the last bit, write nothing")
    options = parser.parse_args()
    rows = {}
    for name, build in CASES.items():
        if options.only in name:
            rows[name] = digests(build, exact=options.exact)
            told = "new" if name not in KEPT else changes(KEPT[name], rows[name])
            if options.exact:
                print(name, *(f"{column}={text}" for column, text in rows[name].items()), flush=True)
            elif told:
                print(f"{name}: {told}", flush=True)
        elif name in KEPT:
            rows[name] = KEPT[name]
    if not options.exact:
        print(*(f"{name}: no longer run" for name in KEPT if name not in rows), sep="\n", end="")
        with FILE.open("w", newline="", encoding="utf-8") as file:
            columns = sorted({name for row in rows.values() for name in row})
            writer = csv.DictWriter(file, ["case", *columns], lineterminator="\n")
            writer.writeheader()
            writer.writerows({"case": name, **row} for name, row in rows.items())


if __name__ == "__main__":
    main()
