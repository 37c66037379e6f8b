"""What every scheduler decides in crowds (`crowds.py`), as digests: as test_decisions.py, and for the same purpose.

Where decisions are meant to change:

    python tests/policies/test_crowds.py [NAME ...]      writes tests/policies/crowds.csv anew, for these or all

Each case meets its crowds a few at a time, so that each test is quick: mutation testing leaves slow ones out.
"""

from __future__ import annotations

import csv
import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
from crowds import CASES, crowds
from test_conformance import make
from test_digests import rounded

from hetsim.engine.simulation import Simulation
from hetsim.errors import HetsimError
from hetsim.policy import PlanProblem

FILE = Path(__file__).with_name("crowds.csv")
CROWDS = list(crowds())
PROGRAMS = ("finish_time_fairness", "max_min_fairness", "max_throughput", "min_makespan")
"""They solve many linear programs, so each meets a third of the crowds; with `pairs` those that have some."""
PARTS = 7
"""Tests of a case: the first meets its first crowd and each seventh from there on."""


def numbers(case: str) -> list[int]:
    """Numbers of the crowds that a case meets."""
    every, (name, parameters) = list(range(len(CROWDS))), CASES[case]
    if name not in PROGRAMS:
        return every
    return [6, 12] if parameters.get("pairs") else every[list(CASES).index(case) % 3 :: 3]


def decided(case: str, part: slice = slice(None)) -> list[str]:
    """Digests of when, how, where and how often tasks ran, a crowd each; the kind of error where it is refused."""
    name, parameters = CASES[case]
    digests = []
    for number in numbers(case)[part]:
        scheduler, system = make(name, **parameters), CROWDS[number].system
        try:
            scheduler.check(PlanProblem(system.tasks, system.cluster))
            record = Simulation(CROWDS[number].run_input(scheduler)).run()
        except HetsimError as error:
            digests.append(type(error).__name__)
            continue
        stops = [column.astype(float) for column in (record.preemptions, record.migrations) if column is not None]
        times = rounded(np.concatenate([record.start, record.finish, *stops])).tobytes()
        where = [column.astype("<i8").tobytes() for column in (record.status, record.mode, record.place)]
        told = repr((sorted(record.reasons.items()), scheduler.notes)).encode()
        digests.append(hashlib.sha256(b"".join([times, *where, told])).hexdigest()[:4])
    return digests


def kept() -> dict[str, str]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return dict(csv.reader(file))


KEPT = kept() if FILE.exists() else {}


def test_every_case_has_digests_and_nothing_else_has() -> None:
    assert list(KEPT) == list(CASES)


@pytest.mark.quick(96)
@pytest.mark.parametrize(
    ("case", "part"), [(case, part) for case in CASES for part in range(min(PARTS, len(numbers(case))))]
)
def test_decisions_in_crowds_are_those_on_record(case: str, part: int) -> None:
    chosen = slice(part, None, PARTS)
    pairs = zip(numbers(case)[chosen], KEPT[case].split()[chosen], decided(case, chosen), strict=True)
    changed = [number for number, before, now in pairs if before != now]
    assert not changed, f"{case}: other decisions in crowds {changed}; see the head of this file"


if __name__ == "__main__":
    chosen = sys.argv[1:]
    rows = {case: KEPT[case] if chosen and case in KEPT and CASES[case][0] not in chosen else " ".join(decided(case))
            for case in CASES}  # fmt: skip
    with FILE.open("w", newline="", encoding="utf-8") as target:
        csv.writer(target, lineterminator="\n").writerows(rows.items())
