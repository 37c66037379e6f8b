"""What every registered scheduler decides on random systems, as digests.

They say nothing of what is right, which other tests say: they tell whether a change that should make a policy clearer
or faster changes a decision somewhere.  Where decisions are meant to change:

    python tests/policies/test_decisions.py [NAME ...]      writes tests/policies/decisions.csv anew, for these or all
"""

from __future__ import annotations

import csv
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
from test_conformance import SCHEDULERS, VARIANTS, make
from test_digests import rounded
from tiers import spread

from hetsim.engine.simulation import Simulation
from hetsim.errors import HetsimError
from hetsim.testing import random_system
from hetsim.testing.systems import System

FILE = Path(__file__).with_name("decisions.csv")
SYSTEMS, CROWD = 16, 0.2
FEATURES = ("gangs", "fractions", "sharing", "stops", "estimates", "people", "ties")
"""Every second one of half of the systems; the others have each of all features with probability one half."""
CASES = {name: (name, {}) for name in SCHEDULERS} | {f"{name} {given}": (name, given) for name, given in VARIANTS}


def systems() -> Iterator[System]:
    """Systems with some forty tasks on one to four nodes, half of them with features that most policies take."""
    for seed in range(SYSTEMS):
        features = None if seed % 2 else FEATURES[seed // 2 % 4 :: 2]
        system = random_system(seed, nodes=1 + seed % 4, tasks=40, features=features)
        arrival = system.tasks.arrival * (CROWD if seed % 3 else 1.0)  # so that tasks queue in two of three systems
        yield replace(system, tasks=replace(system.tasks, arrival=arrival))


def decided(case: str) -> dict[str, str]:
    """System -> digest of when and where its tasks ran, and how often; the kind of error where it is refused."""
    name, parameters = CASES[case]
    digests = {}
    for number, system in enumerate(systems()):
        try:
            record = Simulation(system.run_input(make(name, **parameters))).run()
        except HetsimError as error:
            digests[str(number)] = type(error).__name__
            continue
        stops = [column.astype(float) for column in (record.preemptions, record.migrations) if column is not None]
        times = np.concatenate([record.start, record.finish, *stops])
        placed = rounded(times).tobytes() + record.place.astype("<i8").tobytes()
        digests[str(number)] = hashlib.sha256(placed).hexdigest()[:6]
    return digests


def kept() -> dict[str, dict[str, str]]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return {row.pop("case"): row for row in csv.DictReader(file)}


KEPT = kept() if FILE.exists() else {}


def test_every_scheduler_has_digests_and_nothing_else_has() -> None:
    assert list(KEPT) == list(CASES)


@pytest.mark.quick(5)
@pytest.mark.parametrize("case", spread(CASES, 12))
def test_decisions_are_those_on_record(case: str) -> None:
    changed = [number for number, digest in decided(case).items() if KEPT[case][number] != digest]
    assert not changed, f"{case}: other decisions on systems {', '.join(changed)}; see the head of this file"


def test_most_systems_are_taken_and_systems_differ() -> None:
    """Else the digests would hold little."""
    digests = [digest for row in KEPT.values() for digest in row.values()]
    assert sum(digest.endswith("Error") for digest in digests) < len(digests) / 20
    assert len(set(KEPT["fcfs"].values())) == SYSTEMS


if __name__ == "__main__":
    chosen = sys.argv[1:]
    rows = {case: KEPT[case] if chosen and case in KEPT and CASES[case][0] not in chosen else decided(case)
            for case in CASES}  # fmt: skip
    with FILE.open("w", newline="", encoding="utf-8") as target:
        writer = csv.DictWriter(target, ["case", *map(str, range(SYSTEMS))], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"case": case, **row} for case, row in rows.items())
