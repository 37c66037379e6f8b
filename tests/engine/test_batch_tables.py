"""Measured batch latencies in place of a line: tables in scenarios, and `hetsim calibrate --from`.

A table that is a line gives the line's results; a stepped one agrees with a recursion and a Markov chain written here;
times that are drawn have the quantiles that were measured.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tiers import some, spread

import hetsim as hs
from hetsim.calibrate.shapes import shaped
from hetsim.cli import main
from hetsim.errors import ScenarioError
from hetsim.model.batch_times import StageTable, TimeSpread
from hetsim.model.units import TIME, parse

STEPS = {1: 6.0, 2: 7.0, 4: 9.5, 8: 13.0}
"""Milliseconds by batch size."""


def scenario(compute: Any, rate: str = "300/s", policy: Any = "serial_greedy", **service: Any) -> dict[str, Any]:
    """Requests of one service on one GPU."""
    return {
        "name": "served",
        "seed": 3,
        "cluster": {"nodes": {"cpus": 4, "gpus": {"type": "t4", "count": 1, "streams": service.pop("streams", 1)}}},
        "workload": {
            "name": "images",
            "arrivals": {"process": "poisson", "rate": rate},
            "count": service.pop("count", 3000),
            "slo": "200 ms",
            "service": {"compute": compute, **service},
        },
        "policy": {"batching": policy},
    }


def table_of(times: dict[int, float], **keys: Any) -> dict[str, Any]:
    return {"table": {size: f"{value} ms" for size, value in times.items()}, **keys}


def refused(compute: Any, **service: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        hs.load(scenario(compute, **service))
    return str(caught.value)


# Tables as times --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.dictionaries(st.integers(1, 200), st.floats(1e-3, 10), min_size=1, max_size=8), st.integers(1, 400))
def test_between_sizes_times_lie_between_theirs(times: dict[int, float], count: int) -> None:
    sizes = tuple(sorted(times))
    seconds = tuple(times[size] for size in sizes)
    linear, stepped = StageTable(sizes, seconds), StageTable(sizes, seconds, between="step")
    assert all(linear.seconds_for(size) == stepped.seconds_for(size) == times[size] for size in sizes)
    if sizes[0] <= count <= sizes[-1]:
        above = min(size for size in sizes if size >= count)
        below = max(size for size in sizes if size <= count)
        assert stepped.seconds_for(count) == times[above]
        low, high = sorted((times[below], times[above]))
        assert low * (1 - 1e-12) <= linear.seconds_for(count) <= high * (1 + 1e-12)
    elif count < sizes[0]:
        assert linear.seconds_for(count) == stepped.seconds_for(count) == seconds[0]
    else:
        assert linear.seconds_for(count) >= min(seconds[-1], linear.seconds_for(sizes[-1]))
    limit = min(count, sizes[-1])
    brute = [linear.seconds_for(n) / n for n in range(1, limit + 1)]
    assert linear.min_per_item(limit) == pytest.approx(min(brute), rel=1e-12)
    least = min(linear.seconds_for(n) for n in range(1, limit + 1))
    assert linear.min_seconds(limit) == pytest.approx(least, rel=1e-12)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "policy", spread(["serial_greedy", "async_linear", "batopt", "triton_dynamic", "nexus", "clipper_aimd"], 3)
)
def test_a_table_that_is_a_line_gives_the_lines_results(policy: str) -> None:
    line = {"fixed": "5 ms", "per_item": "0.8 ms"}
    table = table_of({1: 5.8, 3: 7.4, 8: 11.4, 16: 17.8})
    stages = {"upload": {"fixed": "0.1 ms", "per_item": "0.05 ms"}, "download": "0.2 ms", "streams": 2}
    measured = {"upload": table_of({1: 0.15, 16: 0.9}), "download": {1: "0.2 ms", 16: "0.2 ms"}, "streams": 2}
    found = [
        hs.run(scenario(compute, policy=policy, max_batch=16, count=some(800, 200), **others), check=True).tasks
        for compute, others in ((line, dict(stages)), (table, measured))
    ]
    for column in ("start", "finish", "upload", "compute", "download"):
        np.testing.assert_allclose(found[1][column], found[0][column], rtol=1e-12, atol=1e-12)


def test_the_table_of_a_type_is_that_of_its_variant() -> None:
    """Two types of GPU, each with its own table, one after the other."""
    variants = [{"device": "fast", "compute": {1: "2 ms", 8: "4 ms"}}, {"device": "slow", "compute": {1: "9 ms"}}]
    document = scenario(None, rate="50/s", count=200)
    document["cluster"] = {"nodes": {"cpus": 4, "gpus": [{"type": "fast", "count": 1}, {"type": "slow", "count": 1}]}}
    document["workload"]["service"] = {"variants": variants}
    tasks = hs.run(document, check=True).tasks
    line = StageTable((1, 8), (0.002, 0.004))
    for kind, group in tasks.groupby("device_type"):
        for size, batch in group.groupby("batch"):
            expected = line.seconds_for(len(batch)) if kind == "fast" else 0.009
            assert batch["compute"].to_numpy() == pytest.approx(expected, rel=1e-9), size


# Against a recursion and a chain of our own -------------------------------------------------------------------------


def greedy(arrivals: np.ndarray, seconds: list[float]) -> np.ndarray:
    """Finish times where an idle server takes all who wait, up to a limit; `seconds` by batch size from 1."""
    finish, done, free = np.empty(len(arrivals)), 0, 0.0
    while done < len(arrivals):
        begin = max(free, arrivals[done])
        size = min(int(np.searchsorted(arrivals, begin, side="right")) - done, len(seconds))
        free = begin + seconds[size - 1]
        finish[done : done + size] = free
        done += size
    return finish


def test_a_stepped_table_against_a_recursion() -> None:
    result = hs.run(scenario(table_of(STEPS, between="step"), rate="550/s"), check=True)
    steps = [6.0, 7.0, 9.5, 9.5, 13.0, 13.0, 13.0, 13.0]
    expected = greedy(result.tasks["arrival"].to_numpy(), [1e-3 * one for one in steps])
    np.testing.assert_allclose(result.tasks["finish"].to_numpy(), expected, rtol=1e-11)


def mean_response(rate: float, seconds: list[float], states: int = 400) -> float:
    """Of greedy batches in the long run: the chain of those left behind when a batch ends, and renewal rewards."""
    most = len(seconds)
    chances = [np.array([math.exp(-rate * t + k * math.log(rate * t) - math.lgamma(k + 1)) for k in range(states)])
               for t in seconds]  # fmt: skip
    move = np.zeros((states, states))
    for waiting in range(states):
        size = min(max(waiting, 1), most)
        left = max(waiting, 1) - size
        move[waiting, left:] = chances[size - 1][: states - left]
        move[waiting, -1] += 1 - move[waiting].sum()
    system = np.vstack([move.T - np.eye(states), np.ones(states)])
    share = np.linalg.lstsq(system, np.append(np.zeros(states), 1.0), rcond=None)[0]
    time = inside = 0.0
    for waiting in range(states):
        size, took = min(max(waiting, 1), most), seconds[min(max(waiting, 1), most) - 1]
        idle = 1 / rate if waiting == 0 else 0.0
        time += share[waiting] * (idle + took)
        inside += share[waiting] * (max(waiting, 1) * took + rate * took * took / 2)
        assert size >= 1
    return inside / time / rate


@pytest.mark.slow
def test_a_stepped_table_against_a_markov_chain() -> None:
    """Little's law on the chain; 14 runs of 2,500 requests, a 99.9 % interval for their mean."""
    steps = [6.0, 7.0, 9.5, 9.5, 13.0, 13.0, 13.0, 13.0]
    exact = mean_response(350.0, [1e-3 * one for one in steps])
    document = scenario(table_of(STEPS, between="step"), rate="350/s", count=2500)
    means = []
    for seed in range(14):
        response = hs.run({**document, "seed": seed}).tasks["response"].to_numpy()
        means.append(response[200:].mean())
    half = 4.22 * np.std(means, ddof=1) / math.sqrt(len(means))  # t(13) at 99.9 %
    assert abs(np.mean(means) - exact) < half
    assert half < 0.05 * exact


# Times that scatter -------------------------------------------------------------------------------------------------


def test_times_are_drawn_from_the_measured_percentiles() -> None:
    """Single requests, far apart: their times have the distribution of the table (Kolmogorov, 99.9 %)."""
    compute = {1: {"min": "5 ms", "p50": "6 ms", "p90": "9 ms", "max": "20 ms"}}
    times = np.sort(hs.run(scenario(compute, rate="1/s", count=some(2000))).tasks["compute"].to_numpy())
    exact = np.interp(times, [0.005, 0.006, 0.009, 0.020], [0, 0.5, 0.9, 1])
    rank = np.arange(1, len(times) + 1) / len(times)
    assert max(np.abs(rank - exact).max(), np.abs(rank - 1 / len(times) - exact).max()) < 1.95 / math.sqrt(len(times))


def test_samples_are_drawn_alike() -> None:
    compute = {1: ["5 ms", "6 ms", "6 ms", "10 ms"]}
    count = some(4000)
    times = hs.run(scenario(compute, rate="1/s", count=count)).tasks["compute"].to_numpy()
    drawn, counts = np.unique(np.round(times, 9), return_counts=True)
    assert drawn.tolist() == [0.005, 0.006, 0.010]
    expected = count * np.array([0.25, 0.5, 0.25])
    assert ((counts - expected) ** 2 / expected).sum() < 13.8  # chi square of two degrees of freedom, 99.9 %


def test_policies_expect_the_mean_and_draws_are_the_same_under_every_policy() -> None:
    spread = TimeSpread((1.0, 2.0, 4.0), (0.0, 0.5, 1.0))
    assert spread.mean == pytest.approx(0.5 * 1.5 + 0.5 * 3.0)
    assert StageTable((1, 3), (1.0, 2.0), spread=(TimeSpread((1.0,)), TimeSpread((2.0,)))).factor(2, 0.3) == 1.0
    document = scenario({1: ["5 ms", "9 ms"]}, rate="1/s", count=50)
    assert hs.run(document).tasks["compute"].tolist() == hs.run(document).tasks["compute"].tolist()
    greedy_, timed = (hs.run({**document, "policy": {"batching": p}}).tasks for p in ("serial_greedy", "nexus"))
    assert greedy_["compute"].tolist() == timed["compute"].tolist()


# Files and what is wrong --------------------------------------------------------------------------------------------

LATENCIES = """\
model,size,p50_ms,p99_ms,seconds
small,1,6.1,7,0.0061
small,2,7.0,8,0.007
small,4,9.2,10,0.0092
large,1,60,70,0.06
"""


@pytest.fixture
def latencies(tmp_path: Path) -> Path:
    path = tmp_path / "latencies.csv"
    path.write_text(LATENCIES)
    return path


def test_a_table_in_a_file(latencies: Path) -> None:
    keys = {"table": str(latencies), "batch": "size", "where": {"model": "small"}}
    inline = hs.run(scenario({1: "6.1 ms", 2: "7 ms", 4: "9.2 ms"}, count=300)).tasks
    for time in ({"time": "p50_ms"}, {"time": "seconds"}):
        found = hs.run(scenario({**keys, **time}, count=300)).tasks
        np.testing.assert_allclose(found["finish"], inline["finish"], rtol=1e-12)
    drawn = hs.run(scenario({**keys, "time": "p50_ms", "quantiles": {"p50": "p50_ms", "p99": "p99_ms"}}, count=300))
    assert drawn.tasks["compute"].between(0.0061 - 1e-9, 0.010 + 1e-9).all()
    assert drawn.tasks["compute"].nunique() > 50


def test_a_profile_names_its_table_from_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "l.csv").write_text("batch,time_ms\n1,5\n2,6\n")
    (tmp_path / "deep" / "p.yaml").write_text("service: {compute: {table: l.csv, time: time_ms}}\n")
    document = scenario(None, rate="10/s", count=20)
    document["workload"]["service"] = {"profile": str(tmp_path / "deep" / "p.yaml")}
    assert hs.run(document).tasks["compute"].min() == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        ({"2": "5 ms", "1": "6 ms"}, "compute.1: batch sizes must increase; 1 follows 2"),
        ({1: "5 ms", 2: "0 ms"}, 'batches of 2: the time of a batch must be above 0; got "0 ms"'),
        ({1: "5 ms", 2: "-1 ms"}, 'batches of 2: "-1 ms" is negative'),
        ({0: "5 ms"}, '"0" is not a batch size: a whole number from 1 to 1,000,000'),
        ({"1.5": "5 ms"}, '"1.5" is not a batch size'),
        ({1: 5}, 'batches of 1: "5" has no unit; write for instance 5 ms'),
        ({1: "5 ms", 2: ["6 ms"]}, "batches of 1 have one time, but others have samples or percentiles; use one form"),
        ({1: []}, "batches of 1: must have at least one sample"),
        ({1: {"p50": "6 ms", "p90": "5 ms"}}, "batches of 1: the time of p90 must not be below that of p50"),
        ({1: {"p500": "6 ms"}}, '"p500" is not a percentile such as p50, p99, min or max'),
        ({"table": {1: "5 ms"}, "fixed": "1 ms"}, "a table and fixed exclude each other: the table gives"),
        ({"table": {1: "5 ms"}, "time": "p50"}, "the key needs a table in a file; this table is in the scenario"),
        ({"fixed": "5 ms", "between": "step"}, "the key needs a table of measured times"),
        ({"table": {1: "5 ms"}, "between": "cubic"}, 'unknown between "cubic"; one of linear, step'),
        ({"table": "nothing.csv"}, 'compute.table: there is no file "nothing.csv"'),
        ({"table": 5}, 'must be sizes with their times, or a file; got "5"'),
    ],
)  # fmt: skip
def test_a_table_that_is_none(compute: Any, message: str) -> None:
    assert message in refused(compute, max_batch=1)


@pytest.mark.parametrize(
    ("compute", "place"),
    [
        ("\n        1: 5 ms\n        4: 6 ms\n        2: 7 ms", "13:9: workload.0.service.compute.2: batch sizes"),
        ("\n        table:\n          1: 5 ms\n          2: 7", "13:11: workload.0.service.compute.table.2: batches"),
        ("\n        1: 5 ms\n        two: 6 ms", '12:9: workload.0.service.compute.two: "two" is not a batch size'),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_table_stands_at_its_size(tmp_path: Path, compute: str, place: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\nhorizon: 1 s\ncluster:\n  nodes:\n    gpus: {type: t4}\nworkload:\n  - name: a\n"
        f"    arrivals: {{process: poisson, rate: 5/s}}\n    service:\n      compute:{compute}\n"
    )
    done = CliRunner().invoke(main, ["run", str(path)])
    assert done.exit_code == 3
    assert f"s.yaml:{place}" in done.stderr


@pytest.mark.parametrize(
    ("rows", "keys", "message"),
    [
        ("1,5\n1,6\n", {}, "l.csv:3: column batch: the batch size 1 is also in line 2"),
        ("2,5\n1,6\n", {}, "l.csv:3: column batch: batch sizes must increase; 1 follows 2"),
        ("1,5\nx,6\n", {}, 'l.csv:3: column batch: "x" is not a number'),
        ("1,5\n0.5,6\n", {}, 'l.csv:3: column batch: "0.5" is not a batch size: a whole number from 1 to'),
        ("1,5\n2,\n", {}, 'l.csv:3: column time_ms: "" is not a number'),
        ("1,5\n2,-6\n", {}, 'l.csv:3: column time_ms: "-6" is negative'),
        ("1,5\n2,0\n", {}, 'l.csv:3: column time_ms: "0" must be above 0, because it is the time of a batch'),
        ("", {}, "l.csv: has no rows"),
        ("1,5\n", {"batch": "size"}, 'l.csv:1: there is no column "size"; it has batch, time_ms'),
        ("1,5\n", {"unit": "s"}, 'the column name'),
        ("1,5\n", {"unit": "GB"}, '"GB" is not a unit of time'),
        ("1,5\n", {"time": "batch"}, 'the unit of the column'),
        ("1,5\n", {"where": {"batch": 7}}, "no row of its 1 rows has batch = 7"),
        ("1,5\n", {"samples": True, "quantiles": {"p50": "time_ms"}}, "leave one out"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table(tmp_path: Path, rows: str, keys: dict[str, Any], message: str) -> None:
    path = tmp_path / "l.csv"
    path.write_text("batch,time_ms\n" + rows)
    assert message in refused({"table": str(path), "time": "time_ms", **keys}).replace(f"{tmp_path}/", "")


def test_batches_larger_than_measured_are_formed_only_where_said() -> None:
    assert "max_batch: the largest measured size of compute is 8; extrapolate: true there allows" in refused(
        table_of(STEPS), max_batch=9
    )
    kept = hs.run(scenario(table_of(STEPS), rate="3000/s", count=400))
    assert kept.tasks.groupby("batch").size().max() == 8
    beyond = hs.run(scenario(table_of(STEPS, extrapolate=True), rate="3000/s", count=400, max_batch=64))
    assert beyond.tasks.groupby("batch").size().max() == 64
    assert beyond.tasks.groupby("batch")["compute"].first().max() == pytest.approx(1e-3 * (13 + 3.5 / 4 * 56))
    assert any("batches of more than 8, the largest measured size" in text for text in beyond.record.input.warnings)


def test_times_that_fall_are_a_warning() -> None:
    def told(times: dict[int, float]) -> list[str]:
        return [one for one in hs.run(scenario(table_of(times), count=5)).record.input.warnings if "fall" in one]

    assert told({1: 6, 2: 5.8}) == []
    assert told({1: 6, 2: 7, 4: 6.5}) == [
        "images: compute: a batch of 4 takes 6.5 ms, and one of 2 takes 7 ms: times fall by more than 5%"
    ]


def test_policies_that_need_a_line_say_how_far_off_it_is() -> None:
    def told(policy: str, times: dict[int, float]) -> list[str]:
        outcome = hs.run(scenario(table_of(times), count=5, policy=policy, streams=2))
        return [one for one in outcome.record.input.warnings if "line" in one]

    for policy in ("async_linear", "clipper_quantile"):
        (text,) = told(policy, {1: 6, 2: 7, 4: 14, 8: 16})
        assert f"{policy} uses linear stage times; the line nearest to compute on t4 is" in text
        assert "off by up to 26.5% (batches of 4)" in text
        assert told(policy, {1: 6, 2: 7, 4: 9, 8: 13}) == []
    assert told("serial_greedy", {1: 6, 2: 7, 4: 14, 8: 16}) == []


# calibrate --from ---------------------------------------------------------------------------------------------------

HEAD = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency\n"
)


def calibrate(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["calibrate", *map(str, arguments)])


def perf(path: Path, infer: float, load: int = 1) -> Path:
    busy = f"4,900,60,900,8000,50,{infer + 900},12,5,9000,9100,9200,9300\n"
    path.write_text(f"{HEAD}{busy}{load},500,60,900,20,50,{infer},12,5,6000,6100,6200,6300\n")
    return path


def test_perf_analyzer_is_replayed(tmp_path: Path) -> None:
    """Of each size the row with the least load; the profile serves batches for what was measured."""
    sizes = {1: 6000, 2: 7000, 4: 9500, 8: 18000, 16: 40000}
    files = [f"{size}={perf(tmp_path / f'b{size}.csv', infer)}" for size, infer in sizes.items()]
    words = [word for file in files for word in ("--from", file)]
    done = calibrate(*words, "--out", tmp_path, "--name", "net", "--as", "table")
    assert done.exit_code == 0, done.output
    document = scenario(None, rate="400/s", count=500)
    document["workload"]["service"] = {"profile": str(tmp_path / "net.service.yaml")}
    tasks = hs.run(document, check=True).tasks
    times = StageTable(tuple(sizes), tuple(1e-6 * one for one in sizes.values()))
    for _, batch in tasks.groupby("batch"):
        assert batch["compute"].to_numpy() == pytest.approx(times.seconds_for(len(batch)), rel=1e-9)
        assert batch["upload"].to_numpy() == pytest.approx(50e-6, rel=1e-6)
        assert batch["download"].to_numpy() == pytest.approx(12e-6, rel=1e-6)


def test_perf_analyzer_without_figures_of_the_server(tmp_path: Path) -> None:
    """As it writes of other servers than Triton: the mean latency of the client, or else its median, counts."""
    for size, latency in ((1, 5000), (2, 6000), (4, 8000)):
        head = "Request Rate,Inferences/Second,Client Send,Client Recv,p50 latency,Avg latency\n"
        (tmp_path / f"b{size}.csv").write_text(f"{head}10,500,60,5,1,{latency}\n20,700,60,5,1,{2 * latency}\n")
    words = [word for size in (1, 2, 4) for word in ("--from", f"{size}={tmp_path / f'b{size}.csv'}")]
    done = calibrate(*words, "--out", tmp_path, "--name", "net", "--json")
    assert done.exit_code == 0, done.output
    assert "the latency seen by the client, network included, was used as" in done.stderr
    assert "in flight" not in done.stderr
    compute = json.loads(done.stdout)["profile"]["service"]["compute"]
    assert compute == {"per_item": "1 ms", "fixed": "4 ms"}


def test_the_batch_size_is_a_column_where_files_were_put_together(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    row = "1,500,60,900,20,50,{},12,5,6000,6100,6200,6300\n"
    head = f"Batch,{HEAD}"
    path.write_text(head + "1," + row.format(6000) + head + "2," + row.format(7000) + "4," + row.format(9000))
    done = calibrate("--from", path, "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    assert '"max_batch": 4' in done.output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            HEAD + "1,500,60,900,20,50,6000,12,5,6000,6100,6200,6300\n",
            "p.csv: perf_analyzer does not write the batch size",
        ),
        (
            HEAD.replace("Server Compute Infer,", ""),
            'p.csv:1: the file has no column "Server Compute Infer", which',
        ),
        ("Batch," + HEAD + "x,1,500,60,900,20,50,6000,12,5,6,6,6,6\n", 'p.csv:2: column Batch: "x" is not a number'),
        ("Batch," + HEAD + "1,1,500,60,900,20,50,0,12,5,6,6,6,6\n", 'p.csv:2: column "Server Compute Infer" '
                                                                    'must be above 0 µs; run'),
        ("Batch," + HEAD, "p.csv: the table has no rows"),
    ],
)
def test_files_of_perf_analyzer_that_are_wrong(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(content)
    done = calibrate("--from", path, "--out", tmp_path)
    assert done.exit_code == 3
    assert message in done.stderr.replace(f"{tmp_path}/", "")
    assert not list(tmp_path.glob("*.yaml"))


def test_a_loaded_measurement_is_told(tmp_path: Path) -> None:
    done = calibrate("--from", f"8={perf(tmp_path / 'b.csv', 9000, load=2)}", "--out", tmp_path)
    assert "batches of 8 were measured with more than one request in flight" in done.stderr
    assert "three or more sizes are needed" in done.stderr


@pytest.mark.slow
def test_cross_validation_finds_the_shape() -> None:
    sizes = (1, 2, 4, 8, 16, 32, 64)
    line = shaped(sizes, tuple(0.005 + 0.001 * n for n in sizes))
    assert line.chosen == "line"
    assert line.line == pytest.approx((0.001, 0.005))
    flat_then_steep = tuple(0.010 if n <= 8 else 0.010 + 0.002 * (n - 8) for n in sizes)
    broken = shaped(sizes, flat_then_steep)
    assert broken.chosen == "broken line"
    assert list(broken.knots) == [1, 8, 64]
    assert broken.off < 1e-9
    curved = shaped(tuple(range(1, 33)), tuple(0.001 * (1 + n % 2 * 0.0 + math.sqrt(n) * 3) for n in range(1, 33)))
    assert curved.chosen == "table"
    assert curved.off == 0
    by_name = {one.shape: one.error for one in curved.judged}
    assert by_name["table"] < by_name["broken line"] < by_name["line"]


def test_the_error_of_a_line_is_that_of_leaving_each_size_out() -> None:
    """Three sizes: each is foretold by the line through the other two, worked out by hand."""
    found = {one.shape: one for one in shaped((1, 2, 4), (0.004, 0.006, 0.009)).judged}
    errors = [abs(0.0045 / 0.004 - 1), abs((0.004 + 0.005 / 3) / 0.006 - 1), abs(0.010 / 0.009 - 1)]
    assert found["line"].error == pytest.approx(np.mean(errors))
    assert found["line"].worst_size == 1


def test_calibrate_from_is_used_rightly(tmp_path: Path, latencies: Path) -> None:
    assert calibrate().exit_code == 2
    assert calibrate("--from", latencies, "--model", "x:y").exit_code == 2
    assert calibrate("--from", f"8={latencies}").exit_code == 2
    assert calibrate("--from", tmp_path / "none.csv").exit_code == 3
    keys = ("--batch", "size", "--time", "p50_ms", "--where", "model=small", "--out", tmp_path)
    assert calibrate("--from", latencies, *keys).exit_code == 0
    assert calibrate("--from", latencies, *keys).exit_code == 2, "it exists"
    done = calibrate("--from", latencies, "--batch", "size", "--time", "p50_ms", "--out", tmp_path, "--name", "n")
    assert done.exit_code == 3
    assert "the batch size 1 is also in line 2" in done.stderr


# Steps of language models ------------------------------------------------------------------------------------------

STEP = {"fixed": "10 ms", "per_context_token": "0.1 us"}
DECODE = {1: "10.5 ms", 4: "12 ms", 16: "18 ms"}
PREFILL = {1: "10.1 ms", 64: "16.4 ms", 512: "61.2 ms"}


def chat(step: dict[str, Any], count: int = 120, **keys: Any) -> dict[str, Any]:
    """Requests of a language model on one replica."""
    sizes = {"prompt": {"distribution": "lognormal", "mean": 300, "cv": 1}, "output": 60}
    return {
        "name": "chat",
        "seed": 2,
        "cluster": {"nodes": {"gpus": {"type": "a100", "count": 1, "memory": "80 GB"}, "pcie": {"upload": "20 GB/s"}}},
        "workload": {
            "name": "chat", "tokens": keys.pop("tokens", sizes), "count": count,
            "arrivals": keys.pop("arrivals", {"process": "poisson", "rate": "4/s"}),
            "service": {"kind": "llm", "kv": {"per_token": "1 MB"}, "step": {**STEP, **step}, **keys},
        },
    }  # fmt: skip


@pytest.mark.quick(1)
@pytest.mark.parametrize("chunk", [None, 64, 512])
def test_tables_of_steps_that_are_lines_give_the_lines_results(chunk: int | None) -> None:
    keys = {"max_num_seqs": 16} if chunk is None else {"max_num_seqs": 16, "max_num_batched_tokens": chunk}
    prefill = {"table": PREFILL, "extrapolate": True} if chunk is None else PREFILL
    line = hs.run(chat({"per_sequence": "0.5 ms", "per_prompt_token": "0.1 ms"}, **keys), check=True).tasks
    for step in (
        {"decode": DECODE, "prefill": prefill},
        {"decode": DECODE, "per_prompt_token": "0.1 ms"},
        {"per_sequence": "0.5 ms", "prefill": prefill},
    ):
        found = hs.run(chat(step, **keys), check=True).tasks
        for column in ("start", "finish", "response"):
            np.testing.assert_allclose(found[column], line[column], rtol=1e-12)


def test_steps_take_what_was_measured() -> None:
    """Requests that come together go in step: their prompts are read at once, and all decode until the last."""
    sizes, stepped = {"prompt": 40, "output": 30}, {"table": {1: "11 ms", 2: "12 ms", 4: "19 ms"}, "between": "step"}
    for count, prefill, decode in ((1, 0.014, 0.011), (2, 0.018, 0.012), (3, 0.022, 0.019)):
        tasks = hs.run(
            chat({"decode": stepped, "prefill": {40: "14 ms", 80: "18 ms", 120: "22 ms"}}, count=count, tokens=sizes,
                 arrivals={"process": "all_at_once", "count": count}, max_num_batched_tokens=120),
            check=True,
        ).tasks  # fmt: skip
        context = sum(count * (40 + made) for made in range(1, 30))
        assert tasks["response"].to_numpy() == pytest.approx(prefill + 29 * decode + 1e-7 * context, rel=1e-12)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"decode": {1: "15 ms"}, "per_sequence": "1 ms"}, "step.decode: decode and per_sequence exclude each "
                                                           "other: decode"),
        ({"decode": {1: "5 ms"}}, "step.fixed: fixed must not exceed any time of decode"),
        ({"decode": {2: "15 ms", 1: "16 ms"}}, "step.decode.1: batch sizes must increase; 1 follows 2"),
        ({"decode": {1: ["15 ms", "16 ms"]}}, "step.decode: step times cannot be random; give one time for "
                                              "each number"),
        ({"prefill": {1: "15 ms"}}, "max_num_batched_tokens: step.prefill was measured from 1 to 1 tokens"),
        ({"decode": {1: "15 ms", 8: "17 ms"}}, "max_num_seqs: step.decode was measured from 1 to 8 sequences; "
                                               "extrapolate: true allows"),
    ],
)
def test_tables_of_steps_that_are_none(step: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        hs.load(chat(step, max_num_seqs=16))
    assert message in str(caught.value)


def test_no_more_sequences_than_were_measured_unless_it_is_said() -> None:
    document = chat({"decode": {1: "11 ms", 2: "12 ms"}, "per_prompt_token": "0.1 ms"}, count=40)
    running = hs.run(document, check=True)
    events = sorted([(t, 1) for t in running.tasks["start"]] + [(t, -1) for t in running.tasks["finish"]])
    assert max(np.cumsum([change for _, change in events])) <= 2
    document["workload"]["service"]["step"]["decode"] = {"table": {1: "11 ms", 2: "12 ms"}, "extrapolate": True}
    told = hs.run(document, check=True).record.input.warnings
    assert any("steps of more than 2, the largest measured size" in text for text in told)


@pytest.mark.parametrize("header", ["batch,time_ms", "batch_size,p50_ms", "BatchSize,latency_ms", "bs,avg_ms",
                                    "Batch Size,Latency (ms)", "batch-size,mean latency [ms]"])  # fmt: skip
@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_usual_columns_and_decimal_commas_are_read_as_what_they_say(tmp_path: Path, header: str, separator: str):
    """The same line, 4.7 ms + 1.1 ms a request, whatever the columns are called and however numbers are written."""

    def written(value: float) -> str:
        return f'"{value:.1f}"'.replace(".", ",") if separator == "," else f"{value:.1f}".replace(".", ",")

    rows = [separator.join((str(n), written(4.7 + 1.1 * n))) for n in (1, 2, 4, 8)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([header.replace(",", separator), *rows, ""]))
    done = calibrate("--from", path, "--out", tmp_path, "--name", "n", "--as", "line")
    assert done.exit_code == 0, done.output
    assert f"{header.split(',')[1]} by {header.split(',')[0]}" in done.stdout
    compute = yaml.safe_load((tmp_path / "n.service.yaml").read_text())["service"]["compute"]
    assert [parse(compute[key], TIME, "5 s") for key in ("fixed", "per_item")] == pytest.approx([4.7e-3, 1.1e-3])


@pytest.mark.parametrize(("text", "said"), [
    ("batch;time_ms\n1;4,7\n2;5.9\n", "t.csv: column time_ms: some numbers have a decimal comma and others"),
    ('batch,time_ms\n1,"1,234"\n2,"2,345"\n', 't.csv:2: column time_ms: "1,234" is not a number'),
    ("x,y\n1,2\n", "t.csv:1: no column batch_size (or batch, batchsize"),
])  # fmt: skip
def test_what_cannot_be_guessed_is_not(tmp_path: Path, text: str, said: str):
    (tmp_path / "t.csv").write_text(text)
    done = calibrate("--from", tmp_path / "t.csv", "--out", tmp_path)
    assert done.exit_code == 3 and said in done.output


@pytest.mark.parametrize("sizes", [(1, 2, 4, 8, 16), (1, 2, 3, 4, 5, 6, 7), (4, 8, 12, 32, 64, 128)])
@pytest.mark.parametrize(("per_item", "fixed"), [(0.6, 1.9), (1.1, 4.7), (0.3, 0.1), (1 / 3, 1 / 7)])
def test_times_on_a_line_are_a_line(sizes: tuple[int, ...], per_item: float, fixed: float):
    """Every shape predicts them but for rounding; the simplest is chosen."""
    found = shaped(sizes, tuple(1e-3 * (per_item * size + fixed) for size in sizes))
    assert found.chosen == "line"
    assert found.line == pytest.approx((1e-3 * per_item, 1e-3 * fixed))


def test_bytes_in_a_column_are_a_sentence(tmp_path: Path):
    for columns in ({"batch": [1, 2], "time_ms": [b"\xff", b"\xfe"]}, {"batch": [b"1", b"2"], "time_ms": [1.0, 2.0]}):
        pd.DataFrame(columns).to_parquet(tmp_path / "t.parquet")
        done = calibrate("--from", tmp_path / "t.parquet", "--out", tmp_path)
        assert done.exit_code == 3 and "t.parquet: row 1: a cell is neither a text nor a number" in done.output
