"""Comparisons of runs that are made up: which metrics are compared, who wins, plans, and how all of it is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hand_made import three
from tiers import some

from hetsim.errors import UnknownName, UsageError
from hetsim.report.overview import comparison_lines
from hetsim.results.many_runs.compare import compare, telling_metrics
from hetsim.results.many_runs.findings import paired_findings
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.result import Result

NAN, INF = math.nan, math.inf


def runs(results: Sequence[Any] = (), **columns: Sequence[float]) -> Replications:
    made = Replications()
    for number in range(len(next(iter(columns.values())))):
        made.add_values({"replication": number, **{key: float(column[number]) for key, column in columns.items()}})
    made.results = list(results)
    return made


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(some(40)))
@pytest.mark.parametrize("metric", ["jain", "rho_max"])
def test_winners_and_findings_by_loops(seed: int, metric: str):
    """A policy wins that is significantly better than each other one; without a baseline the best mean is compared."""
    rng = np.random.default_rng(seed)
    names = list("abcd")[: int(rng.integers(2, 5))]
    count = int(rng.integers(2, 7))
    values = {name: rng.normal(5 + float(rng.choice([0.0, 1.0, 3.0])), 0.5, count) for name in names}
    baseline = names[-1] if seed % 3 == 0 else None
    found = compare({name: runs(**{metric: list(one)}) for name, one in values.items()}, [metric], baseline=baseline)
    pairs = [(one, baseline) for one in names if one != baseline] if baseline else list(combinations(names, 2))
    tested = paired_findings(
        metric, [(one, other, np.column_stack([values[one], values[other]])) for one, other in pairs], 0.95
    )
    assert found.pairs[["policy", "other"]].to_numpy().tolist() == [list(pair) for pair in pairs]
    assert found.pairs["p"].tolist() == pytest.approx([one.p for one in tested])
    sign = 1 if metric == "jain" else -1
    beats = {(one.policy, one.other) for one in tested if one.significant and sign * one.difference > 0}
    beats |= {(one.other, one.policy) for one in tested if one.significant and sign * one.difference < 0}
    winner = next((one for one in names if all((one, other) in beats for other in names if other != one)), None)
    assert found.winners == {metric: winner} and found.base == (baseline or names[0])
    if baseline is None:
        best = max(names, key=lambda name: sign * values[name].mean())
        told = [(best, other) for pair in pairs if best in pair for other in pair if other != best]
        assert [(one.policy, one.other) for one in found.findings] == told
    else:
        assert found.findings == tested
    assert [text.endswith(" ◂") for text in found.cells(metric)] == [name == winner for name in names]
    assert found.single is False and found.identical is False


def test_metrics_of_sets_are_compared_where_they_tell_something():
    """Deadlines, rejections and makespans only where there are any; those that are named by themselves always."""

    def names(asked: Sequence[str], *sets: Replications) -> list[str]:
        return list(telling_metrics(dict(zip("pqr", sets, strict=False)), asked))

    plain = {"jain": [1.0, 2.0], "response_mean": [3.0, 4.0], "rejected_count": [0, 0], "energy_j": [NAN, NAN]}
    stopped = SimpleNamespace(horizon=9.0, record=three().record)
    one, other = runs([stopped], **plain), runs([stopped], **plain | {"rejected_count": [0, 1]})
    usual = names(["usual"], one, one)
    assert "response_mean" in usual and "rejected_count" not in usual and "energy_j" not in usual
    assert "rejected_count" in names(["usual"], one, other) and "rejected_count" in names(["usual"], other, one)
    assert names(["energy_j", "rejected_count"], one, other) == ["energy_j", "rejected_count"]
    assert names(["jain", "response_mean"], one, one) == ["jain", "response_mean"]
    ended = SimpleNamespace(horizon=INF, record=three().record)
    users = runs([ended], makespan=[1.0, 2.0], response_mean=[1.0, 2.0], jain=[1.0, 1.0])
    assert "makespan" in names(["usual"], users, users)
    lacking = runs([ended], makespan=[1.0, NAN], response_mean=[1.0, 2.0], jain=[1.0, 1.0])
    assert "makespan" not in names(["usual"], users, lacking)
    cut = runs([stopped], makespan=[1.0, 2.0], response_mean=[1.0, 2.0])
    assert "makespan" not in names(["usual"], users, cut)
    with pytest.raises(UnknownName, match="metric"):
        names(["no_such"], one, one)


def test_cores_are_told_where_there_are_no_gpus():
    idle = {"gpu_utilization": [NAN, NAN], "cpu_utilization": [0.5, 0.6], "response_mean": [1.0, 2.0]}
    stopped = [SimpleNamespace(horizon=9.0, record=three().record)]
    found = list(telling_metrics({"p": runs(stopped, **idle), "q": runs(stopped, **idle)}, ["usual"]))
    assert "cpu_utilization" in found and "gpu_utilization" not in found
    busy = idle | {"gpu_utilization": [NAN, 0.5]}
    found = list(telling_metrics({"p": runs(stopped, **idle), "q": runs(stopped, **busy)}, ["usual"]))
    assert "gpu_utilization" in found and "cpu_utilization" not in found


def test_energy_is_compared_up_to_one_common_end():
    """Policy q ends 10 s later in the first replication: p draws its 5 W until then."""
    p = runs(energy_j=[100.0, 200.0, 300.0], _end=[10.0, 20.0, 30.0], _watts_at_end=[5.0, 5.0, 5.0])
    q = runs(energy_j=[110.0, 230.0, 310.0], _end=[20.0, 20.0, 25.0], _watts_at_end=[2.0, 2.0, 2.0])
    found = compare({"p": p, "q": q}, ["energy_j"])
    assert found.table["energy_j", "mean"].tolist() == pytest.approx([650 / 3, (110 + 230 + 310 + 10) / 3])
    assert found.pairs["difference"].tolist() == pytest.approx([(650 - 660) / 3])


def planned(makespan: float, planned_makespan: float | None, **notes: Any) -> Result:
    result = three()
    result.record.notes = {} if planned_makespan is None else {"planned_makespan": planned_makespan, **notes}
    return result


def test_plans_are_shown_in_one_unit():
    first, second, third = planned(9, 9.0, lower_bound=4.5), planned(9, 600.0, lower_bound=9.0), planned(9, None)
    for one, name in ((first, "p"), (second, "q"), (third, "r")):
        one.record.input.policy = name
    found = compare({"p": first, "q": second, "r": third}, ["wait_mean"])
    assert found.plans.index.tolist() == ["p", "q", "r"] and found.plans_title == "Plans"
    shown = found.shown_plans()
    assert list(shown.columns) == ["planned makespan", "simulated makespan", "lower bound", "ratio", "planning time"]
    assert (
        shown["planned makespan"].tolist() == ["9 s", "600 s", "–"]
        and shown["simulated makespan"].tolist() == ["9 s"] * 3
    )
    assert shown["ratio"].tolist()[:2] == ["1.000", "1.000"] and shown["planning time"].tolist() == ["–"] * 3
    found.plans["ratio"] = [9.9994, 10.0, 123.456]
    found.plans["planning_s"] = [0.5, NAN, 90.0]
    assert found.shown_plans()["ratio"].tolist() == ["9.999", "10", "123.5"]
    assert found.shown_plans()["planning time"].tolist() == ["500 ms", "–", "90 s"]
    assert found.plan_notes == ["p, q know all arrivals from the start"]
    assert repr(found).splitlines()[-len(found.sentences) - 2] == found.plan_notes[0]
    assert "<div>Plans</div>" in found._repr_html_() and "<div>p, q know all arrivals" in found._repr_html_()
    alone = compare({"p": first, "r": third}, ["wait_mean"])
    assert alone.plan_notes == ["p knows all arrivals from the start"]
    first_tasks = planned(9, 9.0, foresight=False)  # it plans again as tasks arrive
    part = compare({"p": first, "s": first_tasks}, ["wait_mean"])
    assert part.planners == ["p"] and part.plan_notes == ["p knows all arrivals from the start"]
    printed = comparison_lines(part)
    assert any(line.startswith("p *  ") for line in printed) and any(line.startswith("s    ") for line in printed)
    assert printed[3] == "* knows all arrival times from the start"
    assert not any("*" in line for line in comparison_lines(compare({"q": third, "r": third}, ["wait_mean"])))
    none = compare({"q": third, "r": third}, ["wait_mean"])
    assert none.plans.empty and none.plan_notes == [] and "Plans" not in repr(none) + none._repr_html_()
    noted = planned(9, 9.0, optimal=False, gap=0.5)
    noted.record.input.tasks.arrival[:] = 0.0
    assert compare({"p": noted, "r": third}, ["wait_mean"]).plan_notes == ["p: not proven optimal, gap 50 %"]


def test_plans_of_several_replications_are_those_of_the_first():
    late, early = planned(9, 9.0), planned(9, 12.0)
    late.replication, early.replication = 3, 1
    sets = {name: runs([late, early], jain=[1.0, 2.0 + number]) for number, name in enumerate("pq")}
    found = compare(sets, ["jain"])
    assert found.plans["planned_makespan"].tolist() == [12.0, 12.0]
    assert found.plans_title == "Plans (of the first replication)"


def test_groups_of_one_run():
    """Of single runs any column of the workload makes groups; their differences are to the base."""
    one, other = three(), three()
    for result, policy in ((one, "p"), (other, "q")):
        result.record.input.policy = policy
        result.record.input.tasks.class_code = np.array([0, 1, 1])
        result.record.input.tasks.classes = ["x", "y"]
    other.record.start[2], other.record.finish[2] = 8.0, 10.0
    found = compare({"p": one, "q": other}, ["wait_mean"])
    table = found.by("class", ["wait_mean"])
    assert table["wait_mean", "mean"].to_dict() == {("x", "p"): 0, ("x", "q"): 0, ("y", "p"): 4, ("y", "q"): 4.5}
    rows = found.differences_by("class", ["wait_mean", "response_mean"])
    assert rows[["metric", "class", "policy", "other"]].to_numpy().tolist() == [
        ["response_mean", "x", "q", "p"], ["response_mean", "y", "q", "p"],
        ["wait_mean", "x", "q", "p"], ["wait_mean", "y", "q", "p"],
    ] or set(rows["metric"]) == {"wait_mean", "response_mean"}  # fmt: skip
    waits = rows[rows["metric"] == "wait_mean"].set_index("class")["difference"]
    assert waits.to_dict() == {"x": 0.0, "y": 0.5} and found.single
    assert len(found.differences_by("class")) > len(rows)
    with pytest.raises(UnknownName, match="metric of groups"):
        found.differences_by("class", ["gpu_utilization"])
    with pytest.raises(UnknownName, match="unknown metric"):
        found.differences_by("class", ["no_such"])
    with pytest.raises(UsageError, match="tasks cannot be grouped by"):
        found.by("colour")


def test_a_comparison_in_words():
    found = compare(
        {"p": runs(jain=[0.5, 0.52, 0.51]), "q": runs(jain=[0.6, 0.63, 0.61])}, ["jain"], refused={"r": "a < b"}
    )
    lines = repr(found).splitlines()
    assert lines[-1] == found.sentences[0] and lines[-2] == "" and lines[-3] == "r refuses: a < b"
    html = found._repr_html_()
    assert html.endswith("<div>r refuses: a &lt; b</div>") and f"<div>{found.sentences[0]}</div>" in html
    assert isinstance(found.shown_table(), pd.DataFrame) and found.metrics == ["jain"]
    selected = SimpleNamespace(sentences=["Best: q."])
    assert compare(found.runs, ["jain"], selection=selected).sentences == ["Best: q.", *found.sentences]  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="unknown policy"):
        compare(found.runs, ["jain"], baseline="z")
    assert compare(found.runs, ["jain"], baseline="p", refused={"z": ""}).baseline == "p"
    with pytest.raises(UsageError, match="at least two policies"):
        compare({"p": found.runs["p"]}, ["jain"])
    undirected = compare(
        {"p": runs(makespan_bound=[1.0, 1.1, 1.2]), "q": runs(makespan_bound=[5.0, 5.1, 5.0])}, ["makespan_bound"]
    )
    assert undirected.winners == {"makespan_bound": None} and undirected.pairs["significant"].tolist() == [True]
