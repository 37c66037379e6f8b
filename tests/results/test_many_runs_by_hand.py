"""Tables of many runs from values that are made up: Student and Holm recomputed, whole sentences, and loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hand_made import three
from scipy import stats
from tiers import some

from hetsim.errors import UnknownName, UsageError
from hetsim.results.many_runs import groups as g
from hetsim.results.many_runs import point_differences as pd_
from hetsim.results.many_runs.compare import compare
from hetsim.results.many_runs.findings import Finding, better, clearly_best, paired_findings, seen_from
from hetsim.results.many_runs.replications import Replications
from hetsim.results.many_runs.selection import Race, Selection
from hetsim.results.many_runs.sweep import Sweep
from hetsim.results.many_runs.sweep_tables import SweepRow, SweepTables
from hetsim.results.many_runs.tradeoff import front, more_is_better, regrets
from hetsim.results.many_runs.warmup import WarmupCut, WarmupSeries, mser
from hetsim.results.statistics import paired_differences, student_interval
from hetsim.search.tune import Setting, Tuning

NAN, INF = math.nan, math.inf


def half_of(values: Sequence[float], level: float) -> float:
    return float(stats.t.ppf(1 - level / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))


# Tests ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(some(64)))
def test_holms_procedure_step_by_step(seed: int):
    """The smallest p first, each at its own level; behind the first that fails the level stays."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    arrays = [rng.normal(rng.choice([0.0, 0.7, 3.0]), 1.0, int(rng.integers(2, 9))) for _ in range(count)]
    if seed % 4 == 0:
        arrays += [np.full(4, 2.0), np.zeros(3), np.array([1.0]), np.zeros(0)]
    found = paired_differences(arrays, 0.9)
    p = {}
    for number, values in enumerate(arrays):
        if len(values) > 1:
            same = (values == values[0]).all()
            p[number] = float(values[0] == 0) if same else float(stats.ttest_1samp(values, 0.0).pvalue)
    level, holds, greatest = 0.1, True, 0.0
    for rank, number in enumerate(sorted(p, key=lambda one: p[one])):
        if holds:
            level = 0.1 / (len(p) - rank)
            holds = p[number] <= level
        greatest = max(greatest, min(1.0, p[number] * (len(p) - rank)))
        values, one = arrays[number], found[number]
        assert (one.significant, one.n) == (holds, len(values)) and one.mean == pytest.approx(values.mean())
        assert one.half_width == pytest.approx(half_of(values, level)) and one.p == pytest.approx(greatest, abs=1e-12)
        if not (values == values[0]).all():
            assert one.significant == (abs(one.mean) > one.half_width)
    for number, one in enumerate(found):
        if number not in p:
            assert math.isnan(one.p) and math.isnan(one.half_width) and not one.significant


def test_students_interval_of_values():
    found = student_interval([1.0, NAN, 4.0, 2.5], 0.8, "jain")
    assert (found.mean, found.n, found.metric, found.confidence) == (2.5, 3, "jain", 0.8)
    assert (
        found.half_width == pytest.approx(half_of([1, 4, 2.5], 0.2)) and str(found) == "jain: 2.5 ± 1.63 (80%, n = 3)"
    )
    assert found.covers(found.low) and found.covers(found.high) and not found.covers(found.high + 1e-9)
    for values in ([1.0], [], [1.0, INF], [NAN]):
        assert math.isnan(student_interval(values).low) and "(no interval)" in str(student_interval(values))
    for wrong in (0.0, 1.0, -1.0):
        with pytest.raises(UsageError, match="must be between 0 and 1"):
            student_interval([1.0, 2.0], wrong)


def finding(**more: Any) -> Finding:
    given: dict[str, Any] = {"metric": "wait_mean", "policy": "sjf", "other": "fcfs", "difference": -63.0,
        "half_width": 47.0,
                             "p": 0.01, "significant": True, "n": 10, "left_out": 0, "confidence": 0.95}  # fmt: skip
    return Finding(**(given | more))


@pytest.mark.parametrize(("given", "text"), [
    ({}, "sjf: wait mean 63 ± 47 s below fcfs (paired, 95 %, Holm, n = 10)"),
    ({"difference": 63.0, "confidence": 0.9}, "sjf: wait mean 63 ± 47 s above fcfs (paired, 90 %, Holm, n = 10)"),
    ({"significant": False}, "sjf and fcfs: no significant difference in wait mean: sjf 63 ± 47 s below fcfs "
     "(paired, 95 %, "
     "Holm, n = 10)"),
    ({"half_width": 0.0}, "sjf: wait mean 63 s below fcfs in each of 10 runs"),
    ({"half_width": 0.0, "difference": 0.0, "significant": False},
        "sjf and fcfs: the same wait mean in each of 10 runs"),
    ({"n": 1, "half_width": NAN}, "sjf: wait mean 63 s below fcfs in one run of each; one run gives no confidence "
     "interval"),
    ({"n": 1, "half_width": NAN, "difference": 0.0}, "sjf: wait mean the same as fcfs in one run of each; one "
     "run gives no confidence interval"),
    ({"n": 1, "half_width": NAN, "identical": True}, "sjf: wait mean 63 s below fcfs in every run; the scenario is not "
     "random, so "
     "there is no interval"),
    ({"difference": NAN}, "sjf and fcfs: wait mean cannot be compared: undefined"),
    ({"left_out": 2}, "sjf and fcfs: wait mean cannot be compared: undefined or infinite in 2 of the pairs of runs"),
    ({"metric": "slo_attainment", "difference": 0.27, "half_width": 0.12},
        "sjf: deadlines met 27 ± 12 percentage points "
     "above fcfs (paired, 95 %, Holm, n = 10)"),
])  # fmt: skip
def test_what_a_finding_says(given: dict[str, Any], text: str):
    assert finding(**given).sentence == text


def test_findings_from_both_sides():
    turned = finding().reversed()
    assert (turned.policy, turned.other, turned.difference, turned.half_width) == ("fcfs", "sjf", 63.0, 47.0)
    assert turned.reversed() == finding() and finding().row == ("wait_mean", "sjf", "fcfs", -63.0, 47.0, 0.01, True, 10)
    assert [better("wait_mean", one) for one in (-1.0, 0.0, 1.0)] == [True, False, False]
    assert [better("jain", one) for one in (-1.0, 0.0, 1.0)] == [False, False, True]


def test_pairs_that_cannot_be_compared_are_not_corrected_for():
    """An infinite value, or one that only one policy has, leaves a pair out; where both have none it is no pair."""
    clear = np.array([[1.0, 3.0], [2.0, 4.5], [1.5, 3.4], [NAN, NAN]])
    noise = np.array([[0.1 + 0.2, 0.3], [1e9, 1e9 + 1e-4], [5.0, 5.0]])
    found = paired_findings("wait_mean", [("a", "b", clear), ("a", "c", np.array([[1, INF], [1, 2.0]])), ("b", "c",
        noise),
                                          ("c", "d", np.array([[1.0, NAN], [2.0, 3.0]]))], 0.95)  # fmt: skip
    assert [(one.policy, one.other, one.n, one.left_out) for one in found] == [
        ("a", "b", 3, 0), ("a", "c", 0, 1), ("b", "c", 3, 0), ("c", "d", 0, 1),
    ]  # fmt: skip
    assert found[2].difference == 0 == found[2].half_width and found[2].p == 1 and found[2].shown == "equal"
    assert found[0].half_width == pytest.approx(half_of(clear[:3, 0] - clear[:3, 1], 0.05 / 2)) and found[0].significant
    assert [one.shown for one in found] == ["different", "undefined", "equal", "undefined"]


# Comparisons ----------------------------------------------------------------------------------------------------------


def runs(values: Sequence[float], name: str = "jain", **more: Sequence[float]) -> Replications:
    made = Replications()
    columns = {name: values, **more}
    for number in range(len(values)):
        made.add_values({"replication": number, **{key: float(column[number]) for key, column in columns.items()}})
    return made


A, B, C = [0.50, 0.52, 0.51, 0.53], [0.60, 0.63, 0.61, 0.62], [0.59, 0.64, 0.60, 0.63]


def test_a_comparison_of_three():
    """Of a metric of which more is better: b and c are above a, and neither is shown to be above the other."""
    found = compare({"a": runs(A), "b": runs(B), "c": runs(C)}, ["jain"])
    assert found.table["jain", "mean"].to_list() == pytest.approx([0.515, 0.615, 0.615])
    assert found.table["jain", "half_width"].to_list() == pytest.approx([half_of(one, 0.05) for one in (A, B, C)])
    assert (
        found.table["jain", "n"].to_list() == [4, 4, 4]
        and found.winners == {"jain": None}
        and found.metrics == ["jain"]
    )
    assert found.pairs[["policy", "other", "significant"]].to_numpy().tolist() == [
        ["a", "b", True], ["a", "c", True], ["b", "c", False],
    ]  # fmt: skip
    assert [(one.policy, one.other) for one in found.findings] == [("b", "a"), ("b", "c")]
    assert found.base == "a" and not found.single and found.plans_title == "Plans (of the first replication)"
    two = compare({"a": runs(A), "b": runs(B)}, ["jain"])
    assert two.winners == {"jain": "b"} and [text.endswith(" ◂") for text in two.cells("jain")] == [False, True]
    assert two.shown_table().to_numpy().tolist() == [[two.cells("jain")[0]], [two.cells("jain")[1]]]
    based = compare(
        {"a": runs(A), "b": runs(B), "c": runs(C)}, ["jain"], baseline="c", confidence=0.9, refused={"d": "it is"}
    )
    assert based.pairs[["policy", "other"]].to_numpy().tolist() == [["a", "c"], ["b", "c"]] and based.base == "c"
    assert based.sentences == [one.sentence for one in based.findings] and "(paired, 90 %" in based.sentences[0]
    assert repr(based).count("d refuses: it is") == 1 == based._repr_html_().count("<div>d refuses: it is</div>")


def test_comparisons_over_the_common_replications():
    short = runs(B[:3])
    found = compare({"a": runs(A), "b": short}, ["jain"])
    assert found.table["jain", "n"].to_list() == [3, 3]
    assert found.table["jain", "mean"].to_list() == pytest.approx([0.51, 1.84 / 3])
    single = compare({"a": runs(A[:1]), "b": runs(B[:1])}, ["jain"])
    assert single.single and single.winners == {"jain": None} and single.findings[0].shown == "one run"
    same = compare({"a": runs([0.5] * 3), "b": runs([0.6] * 3)}, ["jain"])
    assert same.identical and same.findings[0].identical and same.findings[0].n == 1
    nothing = compare({"a": runs([NAN] * 3), "b": runs([0.6, 0.7, 0.8])}, ["jain"])
    assert nothing.winners == {"jain": None} and [one.policy for one in nothing.findings] == ["b"]
    infinite = compare({"a": runs([INF, 1, 2]), "b": runs([0.6, 0.7, 0.8])}, ["jain"])
    assert infinite.winners == {"jain": None}
    for wrong, said in (({"runs": {"a": runs(A)}}, "at least two policies"), ({"confidence": 1.0}, "between 0 and 1"),
                        ({"confidence": 0.0}, "between 0 and 1")):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            compare(**{"runs": {"a": runs(A), "b": runs(B)}, "metrics": ["jain"], **wrong})
    with pytest.raises(UnknownName, match="unknown policy"):
        compare({"a": runs(A), "b": runs(B)}, ["jain"], baseline="x")


def test_replications_by_their_values():
    found = runs(A, bubble=[1.0, 1.0, 1.0, 1.0], _end=[1, 2, 3, 4])
    row = found.summary.loc["jain"]
    assert (row["mean"], row["sd"], row["n"]) == (pytest.approx(0.515), pytest.approx(np.std(A, ddof=1)), 4)
    assert row["ci_high"] - row["mean"] == pytest.approx(half_of(A, 0.05)) == found.interval("jain").half_width
    assert list(found.summary.index) == ["jain", "bubble"] and list(found.values.columns) == ["jain", "bubble"]
    assert found.relative_half_width("jain", 0.9) == pytest.approx(half_of(A, 0.1) / 0.515)
    assert runs(A, bubble=[0.0] * 4).relative_half_width("bubble") == 0 == found.relative_half_width(
        "bubble"
    ) and found.ends.tolist() == [1, 2, 3, 4]
    assert runs([-1.0, 1.0]).relative_half_width("jain") == INF == runs([1.0]).relative_half_width("jain")
    assert found.among([1, 3, 9]).column("jain").to_dict() == {1: 0.52, 3: 0.53} and found.among(range(9)) is found
    assert len(found.first) == 1 and found.first.column("jain").to_dict() == {0: 0.5}
    assert [runs(one).identical for one in ([1.0, 1.0], [1.0, 2.0], [NAN, NAN], [NAN, 1.0], [1.0])] == [1, 0, 1, 0, 0]
    with pytest.raises(UsageError, match="replication 2 is given twice"):
        found.add_values({"replication": 2, "jain": 1.0})
    with pytest.raises(UsageError, match="needs two replications in which it is defined"):
        runs([1.0, NAN]).interval("jain")
    with pytest.raises(UsageError, match="the scenario is not random, so there are no intervals"):
        runs([1.0, 1.0]).interval("jain")
    with pytest.raises(UsageError, match="no task arrived in the window of any replication"):
        runs([1.0, 1.0], task_count=[0, 0]).interval("jain")
    with pytest.raises(UnknownName, match="among those kept of the replications"):
        found.column("rho_max")
    assert found.keeps("jain") and not found.keeps("_end") and not found.keeps("rho_max")
    weighted = runs([1.0, 4.0], "wait_mean", _started=[10, 30])
    assert weighted.summary.loc["wait_mean", "mean"] == pytest.approx(weighted.contributions("wait_mean").mean())
    assert repr(found).startswith("<Replications runs · seed 0 · 4 replications, 95 % intervals>")
    assert "no intervals: all equal" in repr(runs([1.0, 1.0]))
    shown = runs([3.0, 3.5, 4.0], "task_count", response_p99=[NAN] * 3)
    assert [line.split() for line in repr(shown).splitlines()[1:]] == [["task_count", "3.5", "±", "1.2"]]


# Groups ---------------------------------------------------------------------------------------------------------------


def grouped(**groups: dict[str, Sequence[float]]) -> Replications:
    """Replications with values of groups of classes, as workers send them back."""
    made = Replications()
    count = len(next(iter(next(iter(groups.values())).values())))
    for number in range(count):
        row = {f'_by:["class", "{group}", "{name}"]': float(values[number]) for group, of in groups.items()
               for name, values in of.items()}  # fmt: skip
        made.add_values({"replication": number, "jain": float(number), **row})
    return made


def test_tables_of_groups():
    one = grouped(x={"jain": A, "task_count": [3, 3, 4, 4]}, y={"jain": B})
    other = grouped(x={"jain": C})
    table = g.table_of_groups({"p": one, "q": other}, "class", 0.9)
    assert table.index.tolist() == [("x", "p"), ("x", "q"), ("y", "p")] and table.index.names == ["class", "policy"]
    assert table.loc[("x", "p"), ("jain", "half_width")] == pytest.approx(half_of(A, 0.1))
    assert table.loc[("x", "q")].tolist()[:3] == pytest.approx([0.615, half_of(C, 0.1), 4])
    assert table.loc[("x", "q")].isna().tolist() == [False, False, False, True, True, False]
    assert g.metrics_in(table) == ["jain", "task_count"] == g.telling(table)
    json = g.groups_json({"class": table})
    assert json["class"]["p"]["y"]["jain"] == {
        "mean": pytest.approx(0.615),
        "half_width": pytest.approx(half_of(B, 0.1)),
        "n": 4,
    }
    assert g.groups_json({"class": table}, many=False)["class"]["p"]["x"]["task_count"] == 3.5
    assert list(g.flat(table).columns) == ["jain", "jain_half_width", "task_count", "task_count_half_width"]
    assert g.in_order("user", ["b", "all others", "a"]) == ["b", "a", "all others"] and g.in_order(
        "class", ["b", "a"]
    ) == ["b", "a"]
    assert g.in_order("gpus", ["8", "none", "part of one", "2", "9–15", "1 to 8"]) == [
        "none", "part of one", "2", "8", "1 to 8", "9–15",
    ]  # fmt: skip
    found = g.differences_of_groups({"p": one, "q": other}, "class", confidence=0.9)
    assert found[["class", "metric", "policy", "other", "n"]].to_numpy().tolist() == [
        ["x", "jain", "q", "p", 4], ["y", "jain", "q", "p", 0], ["x", "task_count", "q", "p", 0],
    ]  # fmt: skip
    assert found["half_width"][0] == pytest.approx(half_of(np.array(C) - A, 0.1)) and found["difference"][
        0
    ] == pytest.approx(0.1)
    assert g.differences_of_groups({"p": one, "q": other}, "class", "q")["difference"][0] == pytest.approx(-0.1)
    with pytest.raises(UnknownName, match="policy"):
        g.differences_of_groups({"p": one, "q": other}, "class", "z")
    assert g.differences_json(found)[1]["difference"] is None and g.differences_json(found)[0]["significant"] is True
    with pytest.raises(UsageError, match='the replications have no groups by'):
        g.table_of_groups({"p": one}, "user")


@pytest.mark.parametrize(("codes", "known"), [([0, 0, 0], True), ([0, 1, 0], False)])
def test_groups_of_which_some_runs_were_not_kept(codes: list[int], known: bool):
    """With one class there is nothing to split; with two, the runs that are kept whole do not stand for the others."""
    run = three()
    run.record.input.tasks.class_code, run.record.input.tasks.classes = np.array(codes), ["x", "y"][: max(codes) + 1]
    made = Replications()
    for number in range(2):
        made.add_values({"replication": number, "jain": 0.5})
    made.results = [run]
    if known:
        assert g.group_values(made, "class") == {} == g.tables_of_groups({"p": made}, ["class"])
    else:
        with pytest.raises(UsageError, match=r'the replications have no groups by'):
            g.group_values(made, "class")
    other = three()
    other.replication = 1
    whole = g.group_values(Replications([three(), other], keep=True), "class")
    assert {len(values) for values in whole.values()} == {2}


def test_groupings_with_one_group_have_no_table():
    """Of the classes x and y tasks have both or the first one only."""
    for codes, names in (([0, 1, 0], ["class"]), ([0, 0, 0], [])):
        runs = {}
        for name in ("p", "q"):
            runs[name] = three()
            runs[name].record.input.tasks.class_code = np.array(codes)
            runs[name].record.input.tasks.classes = ["x", "y"]
        tables = g.tables_of_groups(runs)
        assert list(tables) == names
        if names:
            assert tables["class"].index.tolist() == [("x", "p"), ("x", "q"), ("y", "p"), ("y", "q")]
            assert tables["class"]["wait_mean", "mean"].tolist() == [2.5, 2.5, 3, 3]


def test_metrics_that_tell_nothing_of_groups():
    table = g.table_of_groups({"p": grouped(x={"jain": [0, 0], "wait_mean": [NAN, NAN], "task_count": [0, 0],
                                               "completed_count": [1, 2], "rho_max": [0, 1]})}, "class")  # fmt: skip
    assert g.telling(table) == ["task_count", "rho_max"]
    assert "wait_mean_half_width" not in g.flat(table).columns


def test_differences_of_groups_in_words():
    cells = g.difference_cells("wait_mean", [-63.0, 5.0, 0.0], [47.0, NAN, 1.0], [True, False, False])
    assert cells == ["-63 ± 47 s *", "+5 s", "0.0 ± 1.0 s"]
    assert g.difference_cells("wait_mean", [600.0, -3.0, 900.0], [60.0, 6.0, 60.0], [False, True, True]) == [
        "+10.0 ± 1.0 min", "-0.05 ± 0.10 min *", "+15.0 ± 1.0 min *",
    ]  # fmt: skip
    assert g.difference_cells("slo_attainment", [0.25], [0.1], [True]) == ["+25 ± 10 points *"]

    def note(*numbers: int, **more: bool) -> str:
        return g.difference_note(pd.DataFrame({"n": numbers}), 0.95, **more)

    assert note(5, 10, 7) == (
        "± are 95 % intervals of paired differences (Holm over all groups and policies of a metric, 5 to 10 "
        "replications); * where one excludes zero."
    )
    assert "of a metric, 8 replications)" in note(8, 8, 1, 0)
    assert (
        note(0, 0)
        == "Nothing can be compared: these metrics are infinite, or not defined under both policies, in some run."
    )
    assert note(1, 0) == "One run of each policy gives no confidence intervals; use --replications 10."
    assert note(1, single=False) == "Metrics that are defined in only one run have no confidence intervals."
    assert note(5, identical=True).startswith("The scenario is not random: all replications are equal, so differences")


# Sweeps ---------------------------------------------------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(some(32)))
def test_the_tables_of_a_sweep_are_its_replications(seed: int, tmp_path: Path):
    """Means and intervals of each row, as of the replications alone; energy up to the end of the last policy."""
    rng = np.random.default_rng(seed)
    names = ["jain", "wait_mean", "energy_j", "energy_idle_j", "_started", "_end", "_watts_at_end"]
    several, rows = seed % 4 != 0, []
    for point in range(3):
        for policy in ("p", "q")[: 2 if point else 1]:
            count = int(rng.integers(2, 5)) if several else 1
            made: list[Any] = []
            for number in range(count):
                values = {name: float(rng.uniform(1, 9)) for name in names} | {"replication": float(number)}
                values["_started"] = float(rng.integers(1, 9))
                if rng.random() < 0.15:
                    values["jain"] = float(rng.choice([NAN, INF]))
                if rng.random() < 0.2:
                    del values["wait_mean"], values["_started"]
                made.append(values)
            row = SweepRow(point, policy, seed + point, made, warnings=["careful", "careful"] * (point == 1),
                           warmup=2.5 if point == 2 else None)  # fmt: skip
            if seed % 5 == 1 and point == 1 and policy == "q":
                made[-1] = None
                row.errors += ["broke", "broke", "died"]
            rows.append(row)
    keys = {"k": [10, 20, 20, 30, 30]}
    tables = SweepTables(keys, several=several, text_seeds=seed % 3 == 0)
    tables.add(rows)
    table, each = tables.frames()
    in_parts = SweepTables(keys, several=several, text_seeds=seed % 3 == 0, folder=tmp_path / "t.parquet")
    for part in (rows[:2], rows[2:]):
        in_parts.add(part)
    in_parts.write(tmp_path / "t.parquet", tmp_path / "e.parquet")
    in_parts.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["e.parquet", "t.parquet"]
    assert table["k"].tolist() == [10, 20, 20, 30, 30] and table["policy"].tolist() == list("ppqpq")
    assert table["seed"].tolist() == [str(row.seed) if seed % 3 == 0 else row.seed for row in rows]
    assert table["replications"].tolist() == [len(row.runs) for row in rows]
    assert table["warnings"].tolist() == ["", "careful", "careful", "", ""]
    assert table["warmup_cut"].isna().tolist() == [True, True, True, False, False]
    last = {}
    for row in rows:
        for number, run in enumerate(row.runs):
            if run is not None:
                last[row.point, number] = max(last.get((row.point, number), 0.0), run["_end"])
    at = 0
    for number, row in enumerate(rows):
        failed = bool(row.errors)
        assert table["status"][number] == ("failed" if failed else "done")
        assert table["error"][number] == ("broke; died" if failed else "")
        alone = Replications()
        common = min(len(one.runs) for one in rows if one.point == row.point and not (one.errors and one is not row))
        for replication, run in enumerate(row.runs):
            assert each["status"][at] == ("failed" if run is None else "done")
            assert (each["point"][at], each["replication"][at], each["k"][at]) == (
                row.point,
                replication,
                keys["k"][number],
            )
            if run is not None:
                further = (last[row.point, replication] - run["_end"]) * run["_watts_at_end"] * (row.point > 0)
                own = dict(run) | {one: run[one] + further if replication < common else NAN for one in names[2:4]}
                alone.add_values(own)
                for name in ("jain", "wait_mean", "energy_j", "energy_idle_j"):
                    assert each[name][at] == pytest.approx(own.get(name, NAN), nan_ok=True), (name, number, replication)
                assert each["_started"][at] == pytest.approx(run.get("_started", NAN), nan_ok=True)
            at += 1
        for name in ("jain", "wait_mean", "energy_j", "energy_idle_j"):
            column = alone.contributions(name) if alone.keeps(name) else pd.Series([NAN])
            mean = NAN if failed else float(column.to_numpy()[: common if "energy" in name else None].mean())
            assert table[name][number] == pytest.approx(mean, nan_ok=True), (name, number)
            if several:
                used = column.to_numpy()[: common if "energy" in name else None]
                interval = student_interval(used, 0.95, name)
                half = NAN if failed or not np.isfinite(used).all() else interval.half_width
                assert table[f"{name}_ci_high"][number] - table[name][number] == pytest.approx(half, nan_ok=True), (
                    name,
                    number,
                )
                assert table[name][number] - table[f"{name}_ci_low"][number] == pytest.approx(half, nan_ok=True)
    assert ("jain_ci_low" in table) == several and at == len(each)


def swept(**more: Any) -> Sweep:
    """Two points and two policies with three replications each."""
    keys = {"n": [1, 1, 2, 2]}
    values = {(0, "p"): [9, 8, 10.0], (0, "q"): [5, 4, 6.5], (1, "p"): [3, 2, 4.0], (1, "q"): [3, 2, 4.0]}
    rows = []
    for (point, policy), waits in values.items():
        made = [{"replication": n, "wait_mean": wait, "jain": wait / 10} for n, wait in enumerate(waits)]
        rows.append(SweepRow(point, policy, 7, list(made)))
    tables = SweepTables(keys, several=True, text_seeds=False)
    tables.add(rows)
    table, each = tables.frames()
    given: dict[str, Any] = {"name": "s", "seed": 7, "metrics": ["wait_mean"]}
    return Sweep(table, each, pd.DataFrame({"n": [1, 2]}, dtype=object), **(given | more))


def test_questions_to_a_sweep():
    found = swept()
    assert found.best("wait_mean")[["n", "policy"]].tolist() == [2, "p"] and found.keys == ["n"] and len(found) == 4
    assert found.best("wait_mean", "policy")["point"].tolist() == [1, 1]
    assert found.best("wait_mean", ["n"])["policy"].tolist() == ["q", "p"]
    assert found.pivot("policy", "n", "wait_mean").to_numpy().tolist() == [[9, pytest.approx(31 / 6)], [3, 3]]
    assert found.title == "s: 2 points × 2 policies, 3 replications each, seed 7" and found.failed.empty
    titles, rows = found.shown()
    assert titles == ["point", "n", "policy", "wait mean"] and rows[0] == [
        "0",
        "1",
        "p",
        "9.0 ± 3.2 s",
    ]  # 1.586 degrees of freedom
    half = student_interval([5, 4, 6.5], metric="wait_mean").half_width
    assert rows[1][2:] == ["q", f"5 ± {half:.0f} s"] and len(found.shown(2)[1]) == 2
    json = found.to_json()
    assert json["rows"][1]["values"] == {"n": 1} and json["rows"][2]["metrics"]["jain"] == {
        "mean": pytest.approx(0.3), "ci_low": pytest.approx(0.3 - half_of([0.3, 0.2, 0.4], 0.05)),
        "ci_high": pytest.approx(0.3 + half_of([0.3, 0.2, 0.4], 0.05)),
    }  # fmt: skip
    assert len(found.to_json(by_replication=True)["rows"]) == 12
    with pytest.raises(UsageError, match="several rows have the same n and point: choose policy with where"):
        found.pivot("n", "point", "wait_mean")
    with pytest.raises(UsageError, match="x and y must be different keys"):
        found.pivot("n", "n", "wait_mean", {"policy": "p"})
    with pytest.raises(UnknownName, match="column"):
        found.best("wait_mean", "x")
    with pytest.raises(UnknownName, match="metric"):
        found.best("rho_max")
    assert repr(found).startswith("<Sweep s: 2 points") and "more rows" not in repr(found)
    assert swept(remarks=["a < b"])._repr_html_().endswith("<div>a &lt; b</div>")


def test_policies_at_the_points_of_a_sweep():
    found = swept()
    table = found.differences("wait_mean")
    assert table[["point", "policy", "other", "n"]].to_numpy().tolist() == [[0, "p", "q", 3], [1, "p", "q", 3]]
    assert table["difference"].tolist() == [pytest.approx(23 / 6), 0.0] and table["significant"].tolist() == [
        True,
        False,
    ]
    assert found.differences("wait_mean", "p")["difference"].tolist() == [pytest.approx(-23 / 6), 0.0]
    counts = pd_.leads(found, "wait_mean", pd_.findings_by_point(found, "wait_mean"))
    assert counts == pd_.Leads({"q": 1}, {("p", "q"): 1}, {"q": 1}, 2, True)
    assert pd_.leads(found, "wait_mean") == pd_.Leads({"q": 1}, {("p", "q"): 1}, {}, 2, False)
    assert (
        len(pd_.rows_where(found, found.table, {"n": "1"}))
        == 2
        == len(pd_.rows_where(found, found.table, {"policy": "p"}))
    )
    assert len(pd_.rows_where(found, found.table, {"n": 2.0, "policy": "q"})) == 1
    with pytest.raises(UsageError, match="no row has n = 3; there are 1, 2$"):
        pd_.rows_where(found, found.table, {"n": 3})
    with pytest.raises(UnknownName, match="unknown policy"):
        found.differences("wait_mean", "z")
    several = [finding(policy="a", other=one, difference=-1.0) for one in "bc"]
    assert clearly_best(several, list("abc")) == "a" and clearly_best(several, list("abcd")) is None
    assert clearly_best([], ["a"]) is None and seen_from(several, "b") == [several[0].reversed()]
    assert clearly_best([several[0], finding(policy="c", other="a", difference=1.0)], list("abc")) == "a"


# Choices --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(some(32)))
def test_the_front_is_of_those_that_none_beats(seed: int):
    """None is at least as good in both metrics and better in one; of equals all are on it."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.integers(0, 4, (7, 2)).astype(float), columns=["wait_mean", "jain"])
    frame.loc[0, "jain"] = NAN
    table = frame.assign(point=range(7), policy="p", status="done", seed=1, replications=1)
    found = front(Sweep(table, table, pd.DataFrame({"n": range(7)})), "wait_mean", "jain")
    assert found["label"].tolist() == [f"p · {n}" for n in range(1, 7)]
    for row in found.itertuples():
        beaten = any(
            one.wait_mean <= row.wait_mean
            and one.jain >= row.jain
            and (one.wait_mean < row.wait_mean or one.jain > row.jain)
            for one in found.itertuples()
        )
        assert row.front == (not beaten)


def test_regrets_and_directions():
    found = compare({"a": runs(A), "b": runs(B)}, ["jain"])
    assert regrets(found, "jain").to_numpy()[0].tolist() == pytest.approx([0.1 / 0.6, 0.0])
    assert regrets(swept(), "wait_mean").to_numpy().tolist() == [[pytest.approx((9 - 31 / 6) / (31 / 6)), 0], [0, 0]]
    assert more_is_better("jain") and not more_is_better("wait_mean")
    assert more_is_better("n", {"n": "more"}, ["n"]) and not more_is_better("n", None, ["n"])
    for call, said in ((lambda: front(found, "jain", "jain"), "got jain twice"),
                       (lambda: more_is_better("makespan_bound"), "nor less is always better; state it: better="),
                       (lambda: more_is_better("jain", {"jain": "up"}),
                           "must be \"more\" or \"less\"; got 'up'")):  # type: ignore[dict-item]  # fmt: skip
        with pytest.raises(UsageError, match=said):
            call()
    with pytest.raises(UsageError, match="the best jain is 0 in some replication"):
        regrets(compare({"a": runs([0.0, 0, 0]), "b": runs([-0.1, -0.3, -0.2])}, ["jain"]), "jain")


def test_what_is_said_of_a_selection():
    given: dict[str, Any] = {"metric": "wait_mean", "probability": 0.95, "delta": 0.5, "best": "a", "remaining": ("a",),
                             "dropped": {"b": 1200, "c": 12}, "runs": {"a": 1300, "b": 1200, "c": 12}}  # fmt: skip
    assert Selection(**given).sentences == [
        "Best in wait mean: a, with a probability of at least 95 % the best or within 500 ms of it (Kim and Nelson's "
        "selection; 2,512 runs in all).", "Eliminated: b after 1,200, c after 12 replications.",
    ]  # fmt: skip
    assert Selection(**{**given, "best": None, "remaining": ("a", "b"), "dropped": {}}).sentences == [
        "No best policy in wait mean after 1,300 replications: a and b do not differ to 500 ms with a "
        "probability of 95 %; allow a larger delta, or longer runs."
    ]
    assert Selection(**{**given, "tied": ("a", "b"), "dropped": {}}).sentences[1:] == [
        "a and b had the same mean; the first of them is named."
    ]


@pytest.mark.parametrize("seed", range(some(48)))
def test_a_race_is_kim_and_nelsons(seed: int):
    """Each step recomputed: after the first stage a policy goes as soon as it is behind another beyond the margin."""
    rng = np.random.default_rng(seed)
    policies, first, metric = list("abc"), int(rng.integers(3, 6)), ["jain", "wait_mean"][seed % 2]
    values = {one: list(rng.normal(5 + 0.4 * number, 0.5, 60)) for number, one in enumerate(policies)}
    race = Race(policies, metric, 0.9, 0.05)
    for one in policies:
        for value in values[one][:first]:
            race.add(one, value)
    race.start()
    sign = 1 if metric == "jain" else -1
    means = {one: sign * np.mean(values[one][:first]) for one in policies}
    delta = 0.05 * abs(max(means.values()))
    eta = ((2 * 0.1 / 2) ** (-2 / (first - 1)) - 1) / 2
    spread = {
        (a, b): np.var(np.array(values[a][:first]) - values[b][:first], ddof=1) for a in policies for b in policies
    }
    limit = {pair: 2 * eta * (first - 1) * one / delta**2 for pair, one in spread.items()}
    left, dropped, r = list(policies), {}, first
    assert race.delta == pytest.approx(delta)
    while True:
        now = {one: sign * np.mean(values[one][:r]) for one in left}
        margin = {pair: max(0.0, (one - r) * delta / (2 * r)) for pair, one in limit.items()}
        ahead = {one: [now[one] < now[other] - margin[one, other] for other in left if other != one] for one in left}
        out = [one for one in left if any(ahead[one])]
        assert race.screen() == out
        left = [one for one in left if one not in out]
        dropped |= dict.fromkeys(out, r)
        assert race.left == left and race.dropped == dropped
        needed = 0
        for one in left:
            most = [limit[one, other] for other in left if other != one]
            needed += max(0, min(50, math.floor(max(most)) + 1) - r) if most else 0
        assert race.ahead(50) == needed
        if race.over or r == 59:
            break
        for one in left:
            race.add(one, values[one][r])
        r += 1
    found = race.outcome()
    assert found.best == (left[0] if race.over else None) and found.remaining == tuple(left) and found.tied == ()
    assert found.runs == {one: dropped.get(one, r) for one in policies}


def tuning(**more: Any) -> Tuning:
    settings = [Setting({"a": 1}, 2, (3.0, 3.2)), Setting({"a": 2}, 1, (5.0,), "it broke"), Setting({}, 2, (4.0, 4.4))]
    given: dict[str, Any] = {
        "metric": "wait_mean", "confidence": 0.9, "settings": settings, "best": 0, "ours": (3.0, 3.2, 3.4), "used": 2,
        "present": (4.0, 4.3, 4.4), "policy": {"scheduler": "s"}, "remarks": ("so it is",),
    }  # fmt: skip
    return Tuning(**(given | more))


def test_what_is_said_of_a_tuning():
    found = tuning()
    ours, before, gain = half_of([3, 3.2, 3.4], 0.1), half_of([4, 4.3, 4.4], 0.1), half_of([-1, -1.1, -1.0], 0.1)
    assert (found.interval.mean, found.keeps, found.flattered) == (pytest.approx(3.2), False, pytest.approx(3.1))
    assert found.difference.mean == pytest.approx(-31 / 30) and found.difference.half_width == pytest.approx(gain)
    assert (
        found.interval.half_width > ours > 0 and found.interval_before.half_width > before > 0
    )  # congestion skews waits
    assert found.sentences[0] == "Best of 3 settings: a=1." and found.sentences[-1] == "so it is"
    assert found.sentences[1].startswith("wait mean: 3.2") and found.sentences[1].endswith(
        ": better by 1.033 ± 0.097 s (paired)."
    )
    assert found.sentences[2] == (
        "From 3 replications not used for the choice (90 % intervals). The 2 used for the choice "
        "give 3.1 s, which is biased by the selection."
    )
    assert found.table["present"].tolist() == [False, True, False] and found.table["wait_mean"].tolist() == [
        3.1,
        4.2,
        5,
    ]
    assert found.table["a"].tolist() == [1, None, 2] and found.shown().iloc[1].tolist()[0] == "present"
    kept = tuning(best=2)
    assert (
        kept.keeps
        and kept.values == {}
        and kept.sentences[0].startswith("Best of 3 settings: the present one, wait mean 3.2")
    )
    assert "a difference of" in tuning(ours=(3.0, 3.2, 3.4), present=(2.9, 3.4, 3.3)).sentences[1]
    assert "worse by" in tuning(ours=(5.0, 5.2, 5.4)).sentences[1]
    broken = [*found.settings[:2], Setting({}, 1, (NAN,), "no room")]
    assert tuning(settings=broken).sentences[1].endswith("where the present setting fails (no room).")
    assert (
        tuning(present=(4.0, NAN, 4.0))
        .sentences[1]
        .endswith("which under the present setting is undefined in some replication.")
    )
    json = found.to_json()
    assert json["best"] == {"a": 1} and json["difference"]["significant"] and json["remarks"] == ["so it is"]
    assert json["settings"][0]["wait_mean"] == 3.1 and json["interval"]["n"] == 3
    assert math.isnan(tuning(ours=(3.0, 3.0)).interval.low) and Setting({}, 0, ()).label == "present setting"


# Warm-ups -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(some(64)))
def test_the_cut_is_the_minimum_over_all_starts(seed: int):
    values = np.random.default_rng(seed).integers(0, 5, seed + 1).astype(float)
    rest = [values[d:] for d in range(len(values) // 2 + 1)]
    spread = [((one - one.mean()) ** 2).sum() / len(one) ** 2 for one in rest]
    assert mser(values) == int(np.argmin(np.round(spread, 12)))


def test_warmups_in_words():
    cut = WarmupCut(90.0, 1200, 3000, 20)
    assert cut.sentence == (
        "warm-up: the first 90 s cut, about 1,200 of 3,000 tasks (MSER-5 on the mean response of 20 replications, by "
        "order of arrival)"
    )
    assert cut.near_half and not WarmupCut(90.0, 1199, 3000, 20).near_half and not WarmupCut(0.0, 0, 0, 20).near_half
    assert cut.warning.startswith("the warm-up found, 40 % of the tasks, is near the half that MSER-5 may cut")
    assert WarmupCut(0.0, 0, 9, 20).sentence == (
        "warm-up: none (MSER-5 on the mean of 20 replications finds no transient)"
    )
    assert WarmupCut(0.0, 0, 9, 20, seen=False).sentence == (
        "warm-up: none (in 20 replications too few tasks completed for MSER-5)"
    )


def test_a_transient_of_all_replications():
    """The first 25 of 120 tasks wait 9 s, the others 1 or 2; in one replication ten never complete, one is shorter."""
    series = WarmupSeries()
    late = np.where(np.arange(120) < 25, 9.0, 1.0 + np.arange(120) % 2)
    gone = late.copy()
    gone[30:40] = NAN
    for response, count, step in ((late, 120, 2.0), (gone, 118, 4.0), (late, 119, 3.0)):
        series.add(np.arange(count) * step, response[:count])
    assert series.cut == WarmupCut(25 * 3.0, 25, 118, 3) and series.fewest == 1 and series.runs == 3
    few = WarmupSeries()
    few.add(np.arange(100.0), np.full(100, NAN))
    assert few.cut == WarmupCut(0.0, 0, 100, 1, seen=False)
    few.add(np.arange(99.0), np.ones(99))
    with pytest.raises(UsageError, match="in every replication, but replication 1 has 99 tasks"):
        _ = few.cut
    one = WarmupSeries()
    one.add(np.arange(1.0), np.ones(1))
    with pytest.raises(UsageError, match="replication 0 has 1 task: make"):
        _ = one.cut
    with pytest.raises(UsageError, match="replication 0 has no task: make"):
        _ = WarmupSeries().cut


@pytest.mark.parametrize("seed", range(some(24)))
def test_a_warmup_task_by_task(seed: int):
    """Means of the tasks that completed anywhere, in batches of five, cut where their spread is least."""
    rng = np.random.default_rng(seed)
    series, runs = WarmupSeries(), []
    for _ in range(3):
        count = int(rng.integers(100, 112))
        response = np.where(np.arange(count) < 35, 30.0, 0.0) + rng.integers(1, 5, count)
        response[rng.random(count) < 0.6] = NAN
        runs.append((np.sort(rng.uniform(0, 90, count)), response))
        series.add(*runs[-1])
    shortest = min(len(response) for _, response in runs)
    rows = []
    for task in range(shortest):
        there = [response[task] for _, response in runs if response[task] == response[task]]
        if there:
            rows.append((task, sum(there) / len(there)))
    batches = [np.mean([mean for _, mean in rows[at : at + 5]]) for at in range(0, len(rows) - 4, 5)]
    first = rows[5 * mser(np.array(batches))][0]
    time = sum(arrival[first] for arrival, _ in runs) / 3
    assert series.cut == WarmupCut(pytest.approx(time), first, shortest, 3) and first > 0
    assert series.fewest == [len(response) for _, response in runs].index(shortest)


def test_rows_of_a_sweep_without_runs():
    rows = [SweepRow(0, "p", 1, [], errors=["refused"]), SweepRow(0, "q", 1, [{"jain": 0.5}, {"jain": 0.7}])]
    tables = SweepTables({"k": [1, 1]}, several=True, text_seeds=False)
    tables.add(rows)
    table, each = tables.frames()
    assert table["replications"].tolist() == [0, 2] and table["status"].tolist() == ["failed", "done"]
    assert table["jain"].tolist() == pytest.approx([NAN, 0.6], nan_ok=True) and each["jain"].tolist() == [0.5, 0.7]
    empty = SweepTables({"k": [1]}, several=True, text_seeds=False)
    empty.add([SweepRow(0, "p", 1, [])])
    assert len(empty.frames()[0]) == 1 and empty.frames()[1].empty


def test_names_that_a_sweep_or_a_comparison_lacks(tmp_path: Path):
    found = swept()
    for call in (lambda: front(found, "wait_mean", "rho_max"), lambda: regrets(found, "rho_max"),
                 lambda: front(compare({"a": runs(A), "b": runs(B)}, ["jain"]), "jain", "bubble"),
                 lambda: regrets(compare({"a": runs(A), "b": runs(B)}, ["jain"]), "rho_max")):  # fmt: skip
        with pytest.raises(UnknownName, match="of the sweep; add it with metrics="):
            call()
    twice = pd.concat([found.table, found.table.iloc[2:3]], ignore_index=True)
    with pytest.raises(UsageError, match="point 1 is given twice under p"):
        regrets(Sweep(twice, twice, found.points), "wait_mean")
    with pytest.raises(UnknownName, match=r'did you mean "wait_mean"\? of the sweep'):
        found.best("wait_maen")
    with pytest.raises(UnknownName, match="; add it with metrics="):
        found.best("policy")
    (tmp_path / "sweep.json").write_text("[]")
    with pytest.raises(UsageError, match="is not the directory of a sweep|is not finished|checksum|with --resume"):
        Sweep.load(tmp_path)
    with pytest.raises(UsageError, match="is not the directory of a sweep"):
        Sweep.load(tmp_path / "none")
    one = found.table[found.table["policy"] == "p"].reset_index(drop=True)
    assert Sweep(one, one, found.points, metrics=["wait_mean"]).shown()[0] == ["point", "n", "wait mean"]
    bare = Sweep(one.drop(columns="n"), one, pd.DataFrame(index=range(2)), metrics=["wait_mean"])
    assert bare.shown()[0] == ["point", "policy", "wait mean"]
    some_tasks = runs([1.0, 1.0], task_count=[0, 2])
    assert "all replications are equal: the scenario is not random, so there are no" in some_tasks.without_chance
