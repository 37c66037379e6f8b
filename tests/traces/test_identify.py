"""Which scheduler made a log: the engine's own policies make logs, of which they are told again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tiers import spread

import hetsim as hs
from hetsim.cli import main
from hetsim.workload.logs.decisions import LoggedJob, Rule, examine

GPUS = 8
PARTITIONS = {"user-u0": {"nodes": "*", "max_gpus": 8}, "others": {"nodes": "*", "default": True}}
AT_ONCE = {"calc_period": 0, "bf_interval": 0}
FAIR = {"name": "slurm_multifactor", "age": 0, "fair_share": 1, "size": 0, "half_life": "1 d", **AT_ONCE}
CLASSES = {"name": "slurm_multifactor", "age": 1, "max_age": "1000 d", "fair_share": 0, "size": 0, "partition": 1000,
           **AT_ONCE, "partitions": {"a": 1, "b": 0.5}}  # fmt: skip


def recorded(folder: Path, policy: Any, seed: int = 3, count: int = 700, nodes: int = 4, **more: Any) -> Path:
    """The log of a site under a policy: a task table with the starts and nodes that a run gives."""
    random = np.random.default_rng(seed)
    gpus = random.choice([1, 2, 4, 8], count, p=[0.5, 0.25, 0.15, 0.1])
    took = np.clip(random.lognormal(8, 1.2, count), 60, 60000).astype(int)
    told = (took * random.uniform(1, 3, count) / 60).astype(int) * 60 + 60
    user = random.choice(6, count, p=np.array([6, 4, 3, 2, 1, 1]) / 17)
    at = np.sort(random.uniform(0, (gpus * took).sum() / (0.8 * GPUS * nodes), count)).astype(int)
    rows = [
        f"{n},{at[n]},{took[n]},{told[n]},{gpus[n]},u{user[n]},{random.choice(['a', 'b', 'c'])}" for n in range(count)
    ]  # fmt: skip
    head = "id,arrival,gpu_time,gpu_time_estimate,gpus,user,class"
    (folder / "jobs.csv").write_text("\n".join([head, *rows]) + "\n")
    groups = [{"name": "n", "count": nodes, "cpus": 64, "gpus": {"type": "g", "count": GPUS}}]
    entry = {"trace": {"format": "tasks", "path": str(folder / "jobs.csv")}, **more.pop("entry", {})}
    run = hs.run({"cluster": {"nodes": groups}, "workload": [entry], "policy": policy, **more})
    tasks = run.tasks
    rows = [f"{row},{tasks['start'][n]},{tasks['node'][n]}" for n, row in enumerate(rows)]
    (folder / "log.csv").write_text("\n".join([head + ",recorded_start,recorded_node", *rows]) + "\n")
    return folder / "log.csv"


def call(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["trace", "identify", *map(str, arguments)])


def told(path: Path, *arguments: object) -> dict[str, Any]:
    done = call(path, "--json", *arguments)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("policy", "rule", "least"), spread([
    ("fcfs", ("arrival", "block"), 1.0),
    ("fcfs_skip", ("arrival", "skip"), 1.0),
    ("easy_backfill", ("arrival", "easy"), 0.99),
    ("conservative_backfill", ("arrival", "conservative"), 0.99),
    ("sjf", ("shortest first", "block"), 1.0),
    ({"name": "sjf", "discipline": "skip"}, ("shortest first", "skip"), 1.0),
    ("largest_first", ("widest first", "block"), 1.0),
    ("drf", ("share", "skip"), 1.0),
    (FAIR, ("usage", "conservative"), 0.98),
    (CLASSES, ("class", "conservative"), 0.98),
], 1), ids=str)  # fmt: skip
def test_a_policy_is_told_from_its_own_log(tmp_path: Path, policy: Any, rule: tuple[str, str], least: float) -> None:
    """Every start is the one that the policy would decide from the recorded state, and no other policy would."""
    found = told(recorded(tmp_path, {"scheduler": policy}, count=1500 if rule[0] == "class" else 700))
    best = found["rules"][0]
    assert (best["order"], best["discipline"]) == rule
    assert best["explained"] >= least and found["cycle"] == 1
    assert not any(one["alike"] for one in found["rules"][1:])
    assert [one["name"] for one in found["placements"] if one["alike"]] in (["first_fit"], [])


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["best_fit", "worst_fit"])
def test_a_placement_is_told_from_the_nodes(tmp_path: Path, placement: str) -> None:
    found = told(recorded(tmp_path, {"scheduler": "fcfs", "placement": placement}, nodes=6, count=1200))
    assert [one["name"] for one in found["placements"] if one["alike"]] == [placement]
    assert found["placements"][0]["explained"] > 2 * found["placement_by_chance"]
    assert found["rules"][0]["policy"] == {"scheduler": {"name": "fcfs"}, "placement": placement}


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "kept"), [("fcfs_skip", "passed"), ("easy_backfill", "reserved")])
def test_a_limit_of_a_user_is_part_of_what_is_told(tmp_path: Path, policy: str, kept: str) -> None:
    """The scenario that is written makes the log again: its mean wait is that on record."""
    entry = {"partition": {"column": "user", "names": {"u0": "user-u0"}, "others": "others"}}
    path = recorded(tmp_path, policy, site={"partitions": PARTITIONS}, entry=entry)
    found = told(path, "--scenario", tmp_path / "site.yaml")
    assert found["limits"] == {"kind": "user", "most": {"u0": 8.0}}
    best = found["rules"][0]
    assert (best["policy"], best["limits"]) == ({"scheduler": {"name": policy}}, kept)
    tasks = hs.run(str(tmp_path / "site.yaml")).tasks
    waits = tasks["recorded_start"] - tasks["arrival"], tasks["start"] - tasks["arrival"]
    assert waits[1].mean() == pytest.approx(waits[0].mean(), rel=0.02)


def test_schedulers_that_decide_alike_are_named_together(tmp_path: Path) -> None:
    """Jobs of one size: what backfills has nothing to pass."""
    random, free, rows = np.random.default_rng(1), [0.0] * 4, []
    for n in range(300):
        at, took = 10 * n, int(random.exponential(38)) + 1
        start = max(at, min(free))
        free[free.index(min(free))] = start + took
        rows.append(f"{n},{at},{took},1,{start}")
    (tmp_path / "log.csv").write_text("\n".join(["id,arrival,gpu_time,gpus,recorded_start", *rows]) + "\n")
    found = told(tmp_path / "log.csv")
    alike = {(one["order"], one["discipline"]) for one in found["rules"] if one["alike"]}
    assert {("arrival", one) for one in ("block", "skip", "easy", "conservative")} <= alike
    assert ("latest first", "block") not in alike


def test_the_cycle_of_a_site_is_inferred(tmp_path: Path) -> None:
    """First come, first served on eight GPUs, every 60 s: starts are late by less than that."""
    random = np.random.default_rng(2)
    at = np.sort(random.uniform(0, 90_000, 900)).astype(int).tolist()
    jobs = [(now, int(random.exponential(200)) + 1, int(random.choice([1, 2, 4]))) for now in at]
    queue, running, rows = list(enumerate(jobs)), [], []
    for now in range(0, 200_000, 60):
        running = [(end, gpus) for end, gpus in running if end > now]
        while queue and queue[0][1][0] <= now and sum(gpus for _, gpus in running) + queue[0][1][2] <= GPUS:
            n, (came, took, gpus) = queue.pop(0)
            running.append((now + took, gpus))
            rows.append(f"{n},{came},{took},{gpus},{now}")
    (tmp_path / "log.csv").write_text("\n".join(["id,arrival,gpu_time,gpus,recorded_start", *rows]) + "\n")
    found = told(tmp_path / "log.csv")
    assert 45 < found["cycle"] <= 60
    best = found["rules"][0]
    assert (best["order"], best["discipline"]) == ("arrival", "block") and best["explained"] > 0.9


def job(row: int, arrival: float, start: float, took: float, gpus: float, told: float | None = None) -> LoggedJob:
    estimate = took if told is None else told
    return LoggedJob(row, arrival, start, start + took, estimate, 0, -1, 0, [0], (1, gpus, 1))


def test_predictions_by_hand() -> None:
    """Four GPUs.  The second job needs all from 10 on; the third fits, and ends after that (4 + 8 > 10), the fourth
    before.  On record the second starts at 10 and both others at 4: EASY has the third start with the second."""
    jobs = [job(0, 0, 0, 10, 2), job(1, 2, 10, 5, 4), job(2, 4, 4, 4, 1, told=8), job(3, 4, 4, 5, 1)]
    found = examine(jobs, [4.0], {}, [Rule("arrival", one) for one in ("block", "skip", "easy", "conservative")], 1.0)
    predicted = {one.rule.discipline: one.predicted.tolist() for one in found}
    assert predicted == {
        "block": [0, 10, 10, 10], "skip": [0, 10, 4, 4], "easy": [0, 10, 10, 4], "conservative": [0, 10, 10, 4],
    }  # fmt: skip


def test_one_row_that_is_held_back_does_not_decide_what_follows() -> None:
    """The second job could start at once and starts at 50: it is wrong, and nothing behind it is."""
    jobs = [job(0, 0, 0, 5, 4), job(1, 1, 50, 5, 4), *(job(n, n, n + 10, 2, 1) for n in range(0))]
    jobs += [job(n, 3 * n, 3 * n, 2, 1) for n in range(2, 10)]
    (found,) = examine(jobs, [4.0], {}, [Rule("arrival", "block")], 1.0)
    assert found.predicted.tolist() == [0, 5, *(3 * n for n in range(2, 10))]


def test_what_is_printed_and_written(tmp_path: Path) -> None:
    path = recorded(tmp_path, "easy_backfill", count=300)
    page = tmp_path / "page.html"
    done = call(path, "--page", page)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("easy_backfill explains ")
    assert "placement: first_fit" in done.stdout and "fitted on one half of the 300 jobs" in done.stdout
    assert "<h1>Which scheduler made log.csv</h1>" in page.read_text()
    assert call(path, "--page", page).exit_code == 2  # it is there


def test_a_log_that_tells_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,gpu_time,gpus\n1,5,1\n")
    done = call(tmp_path / "a.csv")
    assert done.exit_code == 3 and "no recorded starts" in done.stderr
    (tmp_path / "b.csv").write_text("id,gpu_time,gpus,recorded_start\n1,5,1,0\n")
    done = call(tmp_path / "b.csv")
    assert done.exit_code == 3 and "no scheduler can be inferred: almost no job waited" in done.stderr


@pytest.mark.slow
def test_a_twin_goes_by_the_scheduler_that_made_its_history(tmp_path: Path) -> None:
    """Forecasts are those under the true policy, and not those under the usual one."""
    path = recorded(tmp_path, "sjf")
    arguments = ["twin", "--history", f"tasks:{path}", "--judge", "2", "--samples", "4", "--hours", "6", "--json"]
    said = {}
    for policy in ("sjf", "identified", "easy_backfill"):
        done = CliRunner().invoke(main, [*arguments, "--policy", policy])
        assert done.exit_code == 0, done.stderr
        said[policy] = done.stdout
    assert said["identified"] == said["sjf"] != said["easy_backfill"]


@pytest.mark.quick(0)
def test_stretches_of_a_large_log_tell_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules begin a stretch with the jobs that wait on record: the true one is right there, too."""
    path = recorded(tmp_path, "sjf")
    monkeypatch.setattr("hetsim.workload.logs.decisions.MAX_JUDGED", 300)
    monkeypatch.setattr("hetsim.workload.logs.decisions.MIN_JUDGED", 300)
    found = told(path)
    best = found["rules"][0]
    assert (best["order"], best["discipline"], best["explained"]) == ("shortest first", "block", 1.0)
    assert found["judged"] < 160
