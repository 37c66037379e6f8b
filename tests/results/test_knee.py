"""The knee of a sweep, on curves made by hand."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import hetsim as hs
from hetsim.cli import hetsim
from hetsim.page.of_sweep import of_sweep
from hetsim.results.many_runs.sweep import Sweep
from hetsim.results.many_runs.tradeoff import knees

NODES = "cluster.nodes.0.count"


def swept(values, curve, *, key=NODES, metric="response_mean", written=None):
    """A sweep whose rows are these means, or lists of replications."""
    rows = [np.atleast_1d(one).astype(float) for one in curve]
    facts = [{"point": point, key: value, "policy": "fcfs", "seed": 1, "status": "done", "error": "", "warnings": ""}
             for point, value in enumerate(values)]  # fmt: skip
    table = pd.DataFrame([
        {**fact, "replications": len(row), metric: row.mean()} for fact, row in zip(facts, rows, strict=True)
    ])  # fmt: skip
    each = pd.DataFrame([
        {**fact, "replication": number, metric: value}
        for fact, row in zip(facts, rows, strict=True)
        for number, value in enumerate(row)
    ])  # fmt: skip
    points = pd.DataFrame({key: pd.Series(written or values, dtype=object)})
    return Sweep(table, each, points, name="made", metrics=[metric])


@pytest.mark.quick(7)
@pytest.mark.parametrize(
    ("values", "curve", "knee"),
    [
        ([1, 2, 3, 4], [100, 50, 48, 47], 2),  # 50 %, 4 %, 2 %
        ([4, 3, 2, 1], [47, 48, 50, 100], 2),  # in any order
        ([1, 2, 3, 4], [100, 50, 40, 30], None),  # each step gains much
        ([1, 2, 3, 4], [100, 99, 98, 97], None),  # none does: there is no bend
        ([1, 2], [100, 50], None),  # nothing is known of what follows the last
        ([1, 2, 3, 4, 5], [100, 50, 49, 30, 29.9], 4),  # a flat piece in the middle is no knee
        ([1, 2, 3, 4, 5], [100, 50, 60, 59, 58], 2),  # a loss is a gain below 5 %
        ([1, 2, 3, 4], [100, 50, 55, 54], 2),
        ([10, 20, 30], [100, 60, 40], None),  # 4 % and 3.3 % a node: no step gained 5 %
        ([10, 20, 30], [100, 40, 30], 20),  # 6 % and 2.5 % a node
        ([1, 2, 3, 4], [100, 0, 0, 0], 2),
        ([1, 2, 3], [100, 50, float("nan")], None),
        ([1, 2, 3], [100, 50, float("inf")], None),
        ([2], [100], None),
    ],
)
def test_on_hand_made_curves(values, curve, knee):
    assert knees(swept(values, curve)) == (
        [] if knee is None else [f"fcfs: {knee} nodes: each further node gains less than 5 % in response mean"]
    )


def test_more_may_be_better():
    curve = [10, 20, 20.5, 20.6]
    assert knees(swept([1, 2, 3, 4], curve, metric="throughput"))[0].startswith("fcfs: 2 nodes")
    assert not knees(swept([1, 2, 3, 4], curve))  # as a response time it only gets worse
    assert not knees(swept([1, 2, 3, 4], curve, metric="gpu_utilization"))  # neither is better


def test_a_gain_that_may_be_chance_is_not_small():
    """4 ± 0.1 % of the mean is below 5 %, 4 ± 6 % may be more."""
    sure = [[100, 101], [50, 50.5], [48, 48.5], [47, 47.4]]
    assert knees(swept([1, 2, 3, 4], sure))[0].startswith("fcfs: 2 nodes")
    unsure = [[100, 101], [50, 50.5], [46, 50], [46, 48]]
    assert not knees(swept([1, 2, 3, 4], unsure))


def test_a_curve_that_gets_worse_has_no_knee():
    """The first step may be a gain by its interval, 10 ± 89 s, but its mean is a loss."""
    worse = [[90, 104, 88], [130, 84, 98], [160, 170, 180]]
    assert not knees(swept([1, 2, 3], worse))


def test_a_key_without_a_noun_is_named_and_values_with_a_unit_are_steps():
    line = knees(swept([1, 2, 3], [100, 50, 49], key="policy.batching.max_batch"))[0]
    assert line == "fcfs: policy.batching.max_batch = 2: each further one gains less than 5 % in response mean"
    line = knees(swept([60.0, 120.0, 180.0], [100, 50, 49], key="restart", written=["1 min", "2 min", "3 min"]))[0]
    assert line == "fcfs: restart = 2 min: each further step gains less than 5 % in response mean"


def test_texts_have_no_knee():
    assert not knees(swept(["a", "b", "c"], [100, 50, 49], key="policy.scheduler.placement"))


SMALL = """\
name: small
cluster: {nodes: [{count: 1, cpus: 1}]}
workload: {arrivals: {process: all_at_once, count: 12}, cpu_time: 1 s}
"""


@pytest.mark.slow
def test_at_the_terminal_and_on_the_page(tmp_path):
    """12 tasks of 1 s: 12 s on one node, 1 s on 12 or more, so the mean is (12/n + 1)/2 s where n divides 12."""
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    done = CliRunner().invoke(hetsim, ["sweep", str(file), "--over", f"{NODES}=1,2,12,13,14"], prog_name="hetsim")
    said = "fcfs: 12 nodes: each further node gains less than 5 % in response mean"
    assert done.exit_code == 0 and said in done.output
    words = of_sweep(hs.sweep(file, {NODES: [1, 2, 12, 13, 14]}), "somewhere")[2][0]
    assert said in str(words)
