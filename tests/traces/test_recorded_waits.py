"""Why jobs of a log waited, warm starts, and the scenario that a log shows.

By hand on a few jobs; on logs that were simulated with a known limit, a known order and nodes down at a known time,
which must be found again; and by the property that a replay from any cut goes on as the whole did.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import hetsim as hs
from hetsim.cli import main
from hetsim.errors import ScenarioError
from hetsim.traces.from_log import inferred_nodes
from hetsim.workload.logs.inferred import order_of
from hetsim.workload.logs.recorded_log import HeldOverTime, HeldSteps, jobs_of, rank_correlation
from hetsim.workload.logs.waits import explain, warm_end
from hetsim.workload.mapped import reader as mapped
from hetsim.workload.traces import TaskTable

SITE = Path(__file__).parents[2] / "scenarios" / "hetsim_scenarios" / "clusters" / "site-log.csv"
COLUMNS = {"id": "id", "arrival": "at", "start": "start", "duration": "took", "gpus": "gpus", "user": "user"}


def log(rows: list[tuple[float, float, float, float]], **labels: list[str]) -> TaskTable:
    """Arrival, start, time and GPUs of each job."""
    arrival, start, took, gpus = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    columns = {name: np.array(values, dtype=object) for name, values in labels.items()}
    table = TaskTable("log", {"gpu_time": took}, arrival, numbers={"gpus": gpus}, extra={"recorded_start": start})
    table.user = columns.pop("user", None)
    table.extra |= columns
    return table


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(one) for one in arguments])


# Reasons ----------------------------------------------------------------------------------------------------------


def test_reasons_by_hand() -> None:
    """Four GPUs.  Seconds of waiting: b 8 without room; c 2 although it fits; d 4 and 4 without room, 1 though it fits;
    e 3 while d, which came earlier, waits for room, and 1 though it fits."""
    table = log([(0, 0, 10, 4), (2, 10, 5, 1), (10, 12, 1, 1), (11, 20, 1, 4), (12, 16, 4, 2)])
    found = explain(table, 4, cut=True)
    assert found is not None
    seconds = {reason: round(share * 23, 9) for reason, share in found.shares.items() if share}
    assert seconds == {"no room": 16, "order": 3, "held back": 4}
    assert found.mean_wait == 23 / 5
    assert found.limits is None
    assert found.order is None


def test_before_the_log() -> None:
    """The log holds 4 in the median of its time, and first does so at 10: until then a job that fits says nothing."""
    rows = [(0.0, 8.0, 92.0, 1.0), (10.0, 10.0, 90.0, 3.0), (100.0, 100.0, 1.0, 1.0)]
    jobs = jobs_of(log(rows))
    assert jobs is not None
    assert warm_end(jobs, HeldSteps(jobs)) == 10
    found = explain(log(rows), 8)
    assert found is not None
    assert found.shares["before the log"] == 1
    whole = explain(log(rows), 8, cut=True)
    assert whole is not None
    assert whole.shares["held back"] == 1


def test_shares_sum_to_one_and_capacity_never_falls_below_what_was_held() -> None:
    random = np.random.default_rng(2)
    arrival = np.sort(random.uniform(0, 1000, 200))
    wait = random.exponential(20, 200) * (random.random(200) < 0.5)
    rows = list(zip(arrival, arrival + wait, random.exponential(40, 200), random.integers(1, 5, 200), strict=True))
    table = log(rows, user=[f"u{n % 5}" for n in range(200)], queue=[f"q{n % 3}" for n in range(200)])
    found = explain(table)
    assert found is not None
    assert math.fsum(found.shares.values()) == pytest.approx(1)
    assert min(found.shares.values()) >= 0
    held = HeldOverTime(found.jobs.start, found.jobs.end, found.jobs.amount)
    times, levels = zip(*found.curve, strict=True)
    place = np.searchsorted(times, held.times, side="right") - 1
    assert (np.array(levels)[np.maximum(place, 0)] >= held.level - 1e-9).all()


def test_nothing_to_explain() -> None:
    assert explain(log([(0, 0, 1, 1), (1, 1, 1, 1)])) is None
    table = log([(0, 0, 1, 1)])
    del table.extra["recorded_start"]
    assert explain(table) is None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(1, 5)), min_size=1, max_size=12))
@pytest.mark.slow
def test_occupancy_is_what_is_held(jobs: list[tuple[int, int, int]]) -> None:
    start, took, amount = (np.array(column, dtype=float) for column in zip(*jobs, strict=True))
    held = HeldOverTime(start, start + took, amount)
    for time in np.arange(0, 51, 0.5):
        exact = amount[(start <= time) & (time < start + took)].sum()
        assert held.at(np.array([time]))[0] == exact


def test_an_order_that_is_kept_is_found() -> None:
    """Jobs of queue a pass those of b, and those of b those of c; that a passes c follows."""
    random = np.random.default_rng(1)
    rows, queues, now = [], [], 0.0
    for number in range(240):
        queue = "abc"[number % 3]
        now += 100.0
        wait = {"a": 70.0, "b": 400.0, "c": 1500.0}[queue] * random.uniform(0.8, 1.2)
        rows.append((now, now + wait, 50.0, 1.0))
        queues.append(queue)
    jobs = jobs_of(log(rows, queue=queues))
    assert jobs is not None
    found = order_of(jobs)
    assert found is not None
    assert found.kind == "queue"
    assert {(first, second) for first, second, *_ in found.pairs} == {("a", "b"), ("b", "c")}
    shuffled = random.permutation(queues).tolist()
    mixed = jobs_of(log(rows, queue=shuffled))
    assert mixed is not None
    assert order_of(mixed) is None


# What a simulated site did is found again ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site() -> TaskTable:
    keys = {"id": "job", "arrival": "submitted", "start": "started", "duration": "runtime_s", "gpus": "num_gpus",
            "cpus": "cores", "user": "owner", "class": "queue"}  # fmt: skip
    return mapped.csv(SITE, columns=keys, time="%d.%m.%Y %H:%M:%S", missing={"start": "drop", "duration": "drop"})


def test_the_limit_the_capacity_and_the_nodes_down_of_the_shipped_log(site: TaskTable) -> None:
    """Its maker: ben may hold 8 of 32 GPUs, 12 are down from hour 72 to hour 102 of the log."""
    found = explain(site)
    assert found is not None
    assert found.capacity == 32
    assert found.limits is not None
    assert found.limits.kind == "user"
    assert found.limits.max_held == {"ben": 8}
    times, levels = (np.array(column) for column in zip(*found.curve, strict=True))
    hours = np.arange(0, 119, 1.0)
    up = levels[np.searchsorted(times, 3600 * hours, side="right") - 1]
    assert (up[(hours > 76) & (hours < 94)] < 32).all()
    assert (up[hours < 60] == 32).all()
    assert found.shares["limit"] > 0.2
    assert found.shares["nodes down"] > 0.05


def test_the_cluster_that_a_log_shows(site: TaskTable) -> None:
    (nodes,) = inferred_nodes(site)
    assert nodes["count"] * nodes["gpus"]["count"] == 32
    cores = log([(0, 0, 100, 3), (5, 5, 100, 2)])
    cores.numbers = {"cpus": cores.numbers["gpus"]}
    cores.times = {"cpu_time": cores.times["gpu_time"]}
    assert inferred_nodes(cores) == [{"name": "pool", "cpus": 5}]
    named = log([(0, 0, 100, 3), (5, 5, 100, 2), (0, 0, 100, 1)], recorded_node=["n1", "n1", "n2"])
    assert inferred_nodes(named) == [
        {"name": "n1", "cpus": 1, "gpus": {"type": "gpu", "count": 5}},
        {"name": "n2", "cpus": 1, "gpus": {"type": "gpu", "count": 1}},
    ]
    typed = log([(0, 0, 100, 3), (0, 0, 100, 1)])
    typed.devices = np.array(["a100", "v100"], dtype=object)
    assert [(node["gpus"]["type"], node["count"] * node["gpus"]["count"]) for node in inferred_nodes(typed)] == [
        ("a100", 3), ("v100", 1),
    ]  # fmt: skip


def test_overlaps_of_rounded_times_are_no_capacity() -> None:
    """Jobs that follow each other, and by their rounded times overlap by a second."""
    rows = [(100.0 * n, 100.0 * n, 101.0, 1.0) for n in range(50)]
    jobs = jobs_of(log(rows))
    assert jobs is not None
    assert jobs.capacity().amount == 1 and not jobs.capacity().beyond


def test_capacity_is_what_is_held_for_a_hundredth_of_the_time() -> None:
    """Two jobs at a time on two GPUs; a third one overlaps them once for a minute and a half."""
    rows = [(100.0 * n, 100.0 * n, 200.0, 1.0) for n in range(300)] + [(5050.0, 5050.0, 90.0, 1.0)]
    jobs = jobs_of(log(rows))
    assert jobs is not None
    found = jobs.capacity()
    assert found.amount == 2 and found.full > 0.9
    ((node, first, seconds, most, over),) = found.beyond
    assert (node, first, seconds, most) == ("", 5050, 90, 3) and jobs.arrival[over].tolist() == [5050, 5100]
    assert jobs.capacity(4).amount == 4 and not jobs.capacity(4).beyond


def test_a_node_under_another_name_counts_once() -> None:
    """n2 is named n2-new from the middle on; n1.cluster is n1."""
    rows, names = [], []
    for n in range(200):
        rows += [(10.0 * n, 10.0 * n, 10.0, 2.0)] * 2
        names += ["n1" if n % 2 else "n1.cluster", "n2" if n < 100 else "n2-new"]
    assert [node["name"] for node in inferred_nodes(log(rows, recorded_node=names))] == ["n1", "n2"]
    jobs = jobs_of(log(rows, recorded_node=names))
    assert jobs is not None and jobs.capacity().amount == 4


def test_jobs_that_fit_on_no_single_node_are_fragmented() -> None:
    """Two nodes of two GPUs, one of each free: c needs two on one node from 10 on; d comes behind it."""
    rows = [(0, 0, 50, 1), (0, 0, 90, 1), (10, 50, 50, 2), (20, 60, 5, 1)]
    rows += [(200 + n, 200 + n, 0.5, 2) for n in (0, 1)]
    found = explain(log(rows, recorded_node=["n1", "n2", "n1", "n2", "n1", "n2"]), cut=True)
    assert found is not None and found.capacity == 4
    seconds = {reason: round(share * 80, 6) for reason, share in found.shares.items() if share}
    assert seconds == {"fragmented": 40, "order": 30, "held back": 10}


def test_rank_correlation_by_hand() -> None:
    assert rank_correlation(np.array([1.0, 2, 3]), np.array([5.0, 7, 100])) == pytest.approx(1)
    assert rank_correlation(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == pytest.approx(-1)
    assert math.isnan(rank_correlation(np.array([1.0, 2]), np.array([1.0, 1])))


# The command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def mapping(tmp_path: Path) -> Path:
    assert run("trace", "map", SITE, "--mapping", tmp_path / "jobs.yaml").exit_code == 0
    return tmp_path / "jobs.yaml"


@pytest.mark.slow
def test_validate_explains_and_writes_what_it_found(mapping: Path, tmp_path: Path) -> None:
    """What was inferred brings the simulated waits nearer to the recorded ones, in the mean and in their order."""
    out = tmp_path / "site.yaml"
    done = run("trace", "validate", mapping, "--scenario", out, "--json")
    assert done.exit_code == 0, done.stderr
    waits = json.loads(done.stdout)["waits"]
    first, *_, last = (one for one in waits["variants"] if one["kept"])
    assert [one["name"] for one in waits["variants"] if one["kept"]] == [
        "as it stands", "from there with the jobs that ran (warm start)", "with the nodes that were down",
        "with the limits by user",
    ]  # fmt: skip
    assert abs(last["simulated"] - last["recorded"]) < 0.5 * abs(first["simulated"] - first["recorded"])
    assert last["correlation"] > first["correlation"] + 0.1
    assert last["rank_correlation"] > first["rank_correlation"] + 0.1
    loaded = hs.load(out)
    assert loaded.raw["site"]["partitions"]["user-ben"]["max_gpus"] == 8
    assert len(hs.run(out, check=True).tasks) > 500
    assert run("trace", "validate", mapping, "--scenario", out).exit_code == 2


def test_a_log_alone_is_explained_without_a_simulation(mapping: Path) -> None:
    table = run("trace", "validate", mapping, "--policy", "as_recorded")
    assert table.exit_code == 0, table.stderr
    assert "why jobs waited" in table.stdout
    assert "limits by user, in GPUs: ben 8" in table.stdout
    assert "waits under" not in table.stdout


def test_keys_that_explain_no_recorded_wait_are_named(mapping: Path) -> None:
    """With their places; the rest of a mapping is as in a scenario."""
    text = mapping.read_text() + "    time_scale: 2\nseed: 3\nhorizon: 9 d\n"
    mapping.write_text(text)
    done = run("trace", "validate", mapping, "--policy", "as_recorded")
    assert done.exit_code == 0, done.stderr
    line = text[: text.index("time_scale")].count("\n") + 1
    place = f"{mapping}:{line}:5: workload.0.time_scale: not recognized: time_scale"
    assert f"{place}; recorded waits are explained without this key" in done.stderr
    assert done.stderr.count("not recognized") == 1


@pytest.mark.slow
def test_gangs_that_stay_on_one_node_are_found_and_told_on_a_page(tmp_path: Path) -> None:
    """A log of fcfs on nodes of eight GPUs: gangs that may use several nodes would hardly wait."""
    random = np.random.default_rng(8)
    count = 300
    arrival = np.sort(random.integers(0, 60_000, count)).astype(float)
    log = pd.DataFrame({"id": range(count), "at": arrival, "took": random.integers(300, 2600, count),
                        "gpus": random.choice([1, 2, 4, 8], count), "user": "u"})  # fmt: skip
    nodes = [{"name": "n", "count": 4, "cpus": 1, "gpus": {"type": "gpu", "count": 8}}]
    columns = {"id": "id", "arrival": "at", "duration": "took", "gpus": "gpus", "user": "user"}
    trace = {"format": "csv", "path": str(tmp_path / "log.csv"), "time": "s", "columns": columns}
    log.to_csv(tmp_path / "log.csv", index=False)
    done = hs.run({"name": "x", "cluster": {"nodes": nodes}, "workload": [{"trace": trace}], "policy": "fcfs"})
    log.assign(start=done.tasks["start"].to_numpy()).to_csv(tmp_path / "log.csv", index=False)
    trace["columns"] = {**columns, "start": "start"}
    trace["path"] = "log.csv"
    (tmp_path / "log.yaml").write_text(json.dumps({"workload": [{"trace": trace}]}))
    files = ["--scenario", tmp_path / "out.yaml", "--page", tmp_path / "page.html"]
    found = run("trace", "validate", tmp_path / "log.yaml", "--policy", "fcfs", "--json", *files)
    assert found.exit_code == 0, found.stderr
    first, *_, last = (one for one in json.loads(found.stdout)["waits"]["variants"] if one["kept"])
    assert last["name"] == "with each gang on one node"
    assert last["correlation"] > 0.95 > 0.9 > first["correlation"]
    assert abs(last["simulated"] / last["recorded"] - 1) < 0.1 < abs(first["simulated"] / first["recorded"] - 1)
    assert "span" not in hs.load(tmp_path / "out.yaml").raw["workload"][0]
    page = (tmp_path / "page.html").read_text()
    said = ("Recorded waits of log.yaml", "Why jobs waited", "With what was inferred the correlation rises from")
    for text in (*said, "with each gang on one node", "data-picture="):
        assert text in page
    assert run("trace", "validate", tmp_path / "log.yaml", "--page", tmp_path / "page.html").exit_code == 2


def test_a_page_of_a_log_without_recorded_starts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,arrival,gpu_time\n1,0,5\n2,3,5\n")
    done = run("trace", "validate", tmp_path / "t.csv", "--page", tmp_path / "page.html")
    assert done.exit_code == 2 and "--page needs recorded waits, but no job of" in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_validate_where_there_is_nothing_to_explain(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,arrival,gpu_time\n1,0,5\n2,3,5\n")
    done = run("trace", "validate", tmp_path / "t.csv")
    assert done.stdout.strip() == f"{tmp_path / 't.csv'}: valid; 2 tasks"
    done = run("trace", "validate", tmp_path / "t.csv", "--scenario", tmp_path / "nowhere" / "s.yaml")
    assert done.exit_code == 2
    assert "does not exist" in done.stderr


# Warm start ---------------------------------------------------------------------------------------------------------

ROWS = "a,0,0,100,2,u\nb,10,10,20,1,u\nc,20,60,50,4,u\nd,30,100,5,1,u\ne,55,110,7,1,u\nf,50,50,1,1,u\n"


def write(folder: Path, rows: str = ROWS) -> Path:
    path = folder / "w.csv"
    path.write_text("id,at,start,took,gpus,user\n" + rows)
    return path


@pytest.mark.parametrize("time", ["s", "epoch s"])
def test_a_warm_start_by_hand(tmp_path: Path, time: str) -> None:
    """At 50: a runs for another 50 s, b is over, c and d wait, e and f are to come."""
    table = mapped.csv(write(tmp_path), columns=COLUMNS, time=time, since=50.0, warm_start=True)
    assert table.id is not None
    assert table.id.tolist() == ["a", "c", "d", "e", "f"]
    assert table.arrival.tolist() == [0, 0.001, 0.001, 5, 0.001]
    assert table.times["gpu_time"].tolist() == [50, 50, 5, 7, 1]
    assert table.extra["recorded_start"].tolist() == pytest.approx([0, 10, 50, 60, 0.001])
    assert table.extra["at_cut"].tolist() == [1, 2, 2, 0, 0]


def test_what_users_asked_for_is_less_what_has_passed(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text("at,start,took,limit\n0,0,100,120\n0,0,100,40\n60,60,5,30\n")
    columns = {"arrival": "at", "start": "start", "duration": "took", "time_limit": "limit"}
    table = mapped.csv(path, columns=columns, time="s", since=50.0, warm_start=True)
    assert table.estimates["cpu_time"].tolist() == [70, 1, 30]
    np.testing.assert_array_equal(table.extra["time_limit"], [70, np.nan, 30])


@pytest.mark.parametrize("cut", [500.0, 2000.0, 3100.5])
@pytest.mark.parametrize("policy", ["fcfs", "easy_backfill"])
def test_a_replay_from_a_cut_goes_on_as_the_whole_did(tmp_path: Path, cut: float, policy: str) -> None:
    """Under the policy that made the log every later start is met."""
    random = np.random.default_rng(4)
    arrival = np.sort(random.uniform(0, 5000, 150)).round(3)
    table = pd.DataFrame({"id": np.arange(150), "arrival": arrival, "gpu_time": random.exponential(150, 150).round(3),
                          "gpus": random.integers(1, 5, 150)})  # fmt: skip
    table.to_csv(tmp_path / "tasks.csv", index=False)
    cluster = {"nodes": {"gpus": {"type": "g", "count": 6}}}
    trace = {"format": "tasks", "path": str(tmp_path / "tasks.csv")}
    whole = hs.run({"cluster": cluster, "workload": {"trace": trace}, "policy": policy}).tasks
    found = pd.DataFrame({"id": whole["id"], "at": whole["arrival"], "start": whole["start"],
                          "took": whole["compute"], "gpus": table.set_index("id").loc[whole["id"], "gpus"].to_numpy(),
                          "user": "u"})  # fmt: skip
    found.to_csv(tmp_path / "log.csv", index=False)
    log_ = {"format": "csv", "path": str(tmp_path / "log.csv"), "columns": COLUMNS, "time": "s"}
    log_ |= {"since": f"{cut} s", "warm_start": True}
    replay = hs.run({"cluster": cluster, "workload": {"trace": log_}, "policy": policy}, check=True)
    rest = replay.tasks.set_index("id")
    later = whole[whole["start"] > cut + 0.01].set_index("id")
    assert len(later) > 20
    assert set(later.index) <= set(rest.index)
    np.testing.assert_allclose(rest.loc[later.index, "start"] + cut, later["start"], atol=1e-6)
    assert (rest.loc[rest["at_cut"] == 1, "start"] == 0).all()


def test_a_warm_start_needs_its_instant(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="warm_start needs since: the time within the log at which the "
                                            "replay begins"):
        mapped.csv(write(tmp_path), columns=COLUMNS, time="s", warm_start=True)


# Limits on cores ----------------------------------------------------------------------------------------------------


def limited(most: float | None, others: str | None = "rest") -> dict[str, Any]:
    """Jobs of two users on 16 cores; ann may hold so many."""
    entry: dict[str, Any] = {
        "trace": {"format": "tasks", "path": "t.csv"},
        "partition": {"column": "user", "names": {"ann": "of-ann"}, **({"others": others} if others else {})},
    }
    rules = {} if most is None else {"max_cpus": most}
    return {
        "cluster": {"nodes": {"name": "n", "count": 2, "cpus": 8}},
        "site": {"partitions": {"of-ann": {"nodes": "*", **rules}, "rest": {"nodes": "*"}}},
        "workload": entry,
        "policy": "fcfs",
    }


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "easy_backfill", "conservative_backfill", "fcfs_skip"])
def test_a_partition_holds_no_more_cores_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Against occupancy: ann's jobs never hold more than 6 of 16 cores, and hold 5 or 6 while others of them wait."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(3)
    count = 60
    users = random.choice(["ann", "bob"], count)
    table = pd.DataFrame({"id": np.arange(count), "arrival": np.sort(random.uniform(0, 50, count)), "user": users,
                          "cpu_time": random.uniform(1, 9, count), "cpus": random.integers(1, 3, count)})  # fmt: skip
    table.to_csv("t.csv", index=False)
    tasks = hs.run({**limited(6), "policy": policy}, check=True).tasks.merge(table[["id", "cpus"]], on="id")
    ann = tasks[tasks["user"] == "ann"]
    held = HeldOverTime(ann["start"].to_numpy(), ann["finish"].to_numpy(), ann["cpus"].to_numpy())
    assert held.level.max() == 6
    free = hs.run({**limited(None), "policy": policy}).tasks
    free_ann = free[free["user"] == "ann"].merge(table[["id", "cpus"]], on="id")
    more = HeldOverTime(free_ann["start"].to_numpy(), free_ann["finish"].to_numpy(), free_ann["cpus"].to_numpy())
    assert more.level.max() > 6


def test_jobs_and_partitions_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("id,arrival,cpu_time,cpus,user\n1,0,5,4,ann\n2,0,5,4,bob\n")
    with pytest.raises(ScenarioError, match="4 cores exceed the 3 that jobs of partition of-ann may use"):
        hs.run(limited(3))
    with pytest.raises(ScenarioError, match=r'partition.others: unknown partition "rset"; did you mean "rest"'):
        hs.run(limited(6, "rset"))
    refused = hs.run(limited(6, None)).tasks.set_index("user")
    assert refused.loc["bob", "status"] == "rejected"
    assert refused.loc["ann", "status"] == "completed"
