"""Logs of sites whose truth is known, with planted dirt: capacity and waits come out, and the dirt is counted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dirty_sites import WRITERS, Site, site

import hetsim as hs
from hetsim.cli import main

COUNTS = {
    "repeated": "(\\d+) rows that are not separate jobs: repetitions",
    "early": "(\\d+) of [\\d,]+ jobs began before their submission",
    "jump": "(\\d+) (?:of [\\d,]+ )?jobs have a duration that is not end - start",
    "restart": "(\\d+) of [\\d,]+ jobs restarted",
    "gang": "combined into (\\d+) gangs",
    "unfinished": "(\\d+) of [\\d,]+ jobs left out: no end",
    "never started": "(\\d+) of [\\d,]+ jobs left out: never started",
    "no end": "(\\d+) of [\\d,]+ jobs left out: no end",
}
"""By kind of dirt: the notes that count it."""


def outcome(seed: int, folder: Path) -> dict[str, Any]:
    """What the commands say of a dirty log, and whether that is the truth."""
    found: Site = site(seed, folder)
    trace = WRITERS[seed % len(WRITERS)](found, folder / "log.txt", seed)
    (folder / "log.yaml").write_text(json.dumps({"workload": [{"trace": trace}]}))
    command = ["trace", "validate", str(folder / "log.yaml"), "--policy", "as_recorded", "--json"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    tasks = hs.run({"cluster": found.cluster(), "workload": [{"trace": trace}], "policy": found.policy}).tasks
    mean = float((tasks["start"] - tasks["arrival"]).mean())
    kept = [job["start"] - job["at"] for job in found.jobs if job["id"] not in found.planted.get("unfinished", ())]
    truth = sum(kept) / len(kept)
    notes = "\n".join(told["notes"])
    counted = {
        kind: sum(int(count) for count in re.findall(COUNTS[kind], notes))
        for kind in found.planted if kind in COUNTS
    }  # fmt: skip
    capacity = told["waits"]["capacity"]
    done = CliRunner().invoke(main, ["trace", "identify", str(folder / "log.yaml"), "--json"])
    assert done.exit_code == 0, done.stderr
    identified = json.loads(done.stdout)
    alike = [one["policy"]["scheduler"] for one in identified["rules"] if one["alike"]]
    places = [one["name"] for one in identified["placements"] if one["alike"]]
    return {
        "policy": found.policy in [one["name"] for one in alike if one.get("discipline", "block") == "block"],
        "placement": "first_fit" in places,
        "capacity": capacity == found.gpus if found.full >= 0.05 else capacity <= found.gpus,
        "wait": abs(mean / truth - 1) <= 0.02,
        "counted": {kind: count for kind, count in counted.items() if count != len(found.planted[kind])},
        "error": mean / truth - 1,
    }


def is_right(found: dict[str, Any]) -> bool:
    """Is all of it the truth: capacity, waits, scheduler, placement, and the count of each kind of dirt?"""
    return not found["counted"] and all(found[name] for name in ("capacity", "wait", "policy", "placement"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_dirty_log(tmp_path: Path, seed: int) -> None:
    """Records of PBS, pods, accounts of Slurm: all of it comes out."""
    found = outcome(seed, tmp_path)
    assert is_right(found), found


@pytest.mark.nightly
def test_of_twenty_dirty_logs_nineteen_come_out(tmp_path: Path) -> None:
    results = []
    for seed in range(20):
        (tmp_path / str(seed)).mkdir()
        results.append(outcome(seed, tmp_path / str(seed)))
    right = [is_right(one) for one in results]
    assert sum(right) >= 19, [(seed, one) for seed, one in enumerate(results) if not right[seed]]
