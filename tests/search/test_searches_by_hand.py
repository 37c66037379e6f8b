"""Sizes, settings, precisions and points by hand: what is said, which are tried, how many replications they take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hetsim.errors import UsageError
from hetsim.experiment import precision
from hetsim.experiment.points import GridValues, PointRows, PointValues, _as_number, column_of, parse_over
from hetsim.experiment.precision import PrecisionPlan, needed
from hetsim.experiment.stopping import Amount, Warmup, shared
from hetsim.experiment.study import Replicates
from hetsim.experiment.work import RunOutcome
from hetsim.results.many_runs.replications import Replications
from hetsim.results.statistics import student_quantile
from hetsim.search import tune
from hetsim.search.size import SizeTrial, Sizing, _Search
from hetsim.search.targets import MET, MISSED, OPEN, UNDEFINED, Target

NOTHING: Any = None
WAIT = Target.parse("wait_mean < 2 s")


# Sizes ---------------------------------------------------------------------------------------------------------------


def trial(size: int, verdict: str, mean: float = 1.0, reason: str = "") -> SizeTrial:
    return SizeTrial(size, 12, mean, 0.1, verdict, reason)


def sizing(size: int | None, *trials: SizeTrial, target: Target = WAIT, **more: Any) -> list[str]:
    return Sizing("s", "k", target, 0.95, size, trials[0].size, 9, trials, **more).sentences


def test_what_is_said_of_a_size():
    met = "k = 3 meets wait_mean < 2 s: wait mean is 1.00 ± 0.10 s, n = 12 "
    met += "(all verdicts together hold with 95 % confidence)."
    one = trial(3, MET)
    assert sizing(3, trial(2, MISSED, 5.0), one) == [met, "2 does not: wait mean is 5.00 ± 0.10 s, n = 12."]
    assert sizing(3, trial(2, MISSED, math.nan, "no room"), one)[1] == "2 does not: it cannot run (no room)."
    assert sizing(3, one) == [met, "3 is the smallest size allowed."]
    assert sizing(3, trial(1, MISSED), one)[1] == "3 is the smallest size allowed."
    assert sizing(3, trial(2, UNDEFINED), one)[1] == "With 2 it is not defined in every replication."
    assert sizing(3, trial(2, OPEN, 2.0), one)[1] == (
        "It is undecided whether 2 meets the target: wait mean is 2.00 ± 0.10 s, n = 12; "
        "use more replications."
    )
    assert sizing(3, one, overload="full")[1] == "2 and fewer were not run (full); --from 2 runs them, too."
    assert sizing(2, trial(2, MET), overload="full")[1] == "1 were not run (full); --from 1 runs them, too."
    odd = sizing(3, trial(1, MISSED), one, trial(5, MISSED), trial(6, OPEN), trial(7, MISSED))
    assert odd[2:] == ["Warning: 5, 7 miss the target although they are larger; larger is not better here."]


def test_what_is_said_where_no_size_meets_the_target():
    none = "No k from 2 to 9 is shown to meet wait_mean < 2 s: with 4 the wait mean is 3.00 ± 0.10 s, n = 12."
    worse = "With 2 it is closer, wait mean is 2.50 ± 0.10 s, n = 12: larger is not better here."
    assert sizing(None, trial(2, MISSED, 2.5), trial(4, MISSED, 3.0)) == [none, worse]
    assert sizing(None, trial(2, MISSED, 3.5), trial(4, MISSED, 3.0)) == [none]
    assert sizing(None, trial(2, MISSED, 3.0), trial(4, MISSED, 3.0)) == [none]
    above = Target.parse("wait_mean > 9 s")
    assert len(sizing(None, trial(2, MISSED, 3.5), trial(4, MISSED, 3.0), target=above)) == 2
    assert len(sizing(None, trial(2, MISSED, 3.0), trial(4, MISSED, 3.0), target=above)) == 1


def test_a_size_as_data():
    made = Sizing("s", "k", WAIT, 0.95, 3, 2, 9, (trial(2, MISSED, math.nan, "no room"), trial(3, MET)), "full")
    assert (made.met, made.table["size"].tolist(), made.table["half_width"].tolist()) == (True, [2, 3], [0.1, 0.1])
    plain = made.to_json()
    assert plain["trials"] == [
        {"size": 2, "replications": 12, "mean": None, "half_width": 0.1, "verdict": MISSED, "reason": "no room"},
        {"size": 3, "replications": 12, "mean": 1.0, "half_width": 0.1, "verdict": MET},
    ]
    rest = {key: plain[key] for key in ("scenario", "key", "target", "met", "size", "from", "to", "overload")}
    assert rest == {"scenario": "s", "key": "k", "target": "wait_mean < 2 s", "met": True, "size": 3, "from": 2,
                    "to": 9, "overload": "full"}  # fmt: skip
    assert "overload" not in Sizing("s", "k", WAIT, 0.95, 3, 2, 9, made.trials).to_json()
    assert repr(made) == "\n".join(["<Sizing s>", *made.sentences])
    assert made._repr_html_().startswith("<ul><li>k = 3 meets wait_mean &lt; 2 s") and "<table" in made._repr_html_()


@pytest.mark.quick(8)
@pytest.mark.parametrize("step", ["least", "most", 1, 3])
@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 9), (3, 64), (5, 40), (100, 1000), (30, 33)])
def test_no_search_tries_more_sizes_than_its_error_is_shared_among(least: int, most: int, step: Any):
    """Whichever size is the first to meet the target, it is the answer."""
    step = {"least": least, "most": most}.get(step, step)
    for first in range(least, most + 2):
        study: Any = SimpleNamespace(meter=SimpleNamespace(expect=lambda runs: None, done=0, runs=0))
        search = _Search(study, "k", WAIT, 0.95, None, 10, least, most, step, None)
        assert search.judge.error == pytest.approx(0.05 / search.steps / 4)
        search._try = lambda number, first=first: trial(number, MET if number >= first else MISSED)  # type: ignore
        assert search.smallest() == (first if first <= most else None)
        assert len(search.trials) <= search.steps
    steps = {(1, 1): 3, (1, 9): 11, (3, 64): 13, (5, 40): 9, (100, 1000): 15, (30, 33): 5}
    assert search.steps == steps[least, most] or step != least


# Settings ------------------------------------------------------------------------------------------------------------


def test_stages_of_a_choice():
    """A third goes on to three times as many."""
    assert list(tune._stages(27, 3)) == [(27, 0, 3), (9, 3, 9), (3, 9, 27)]
    assert list(tune._stages(4, 2)) == [(4, 0, 2), (2, 2, 6)]
    assert list(tune._stages(2, 5)) == [(2, 0, 5)] and not list(tune._stages(1, 5))


def race(values: Sequence[float | None], metric: str = "wait_mean") -> tuple[tune._Race, list[list[int]]]:
    """Settings whose value in each replication is given; None: it fails."""
    asked: list[list[int]] = []

    def make(series: Any) -> None:
        asked.append([one.goal for one in series])
        for one in series:
            value = values[one.case.digest]
            outcome = RunOutcome(None, error=f"no {one.case.digest}") if value is None else RunOutcome({metric: value})
            one.taken += [outcome] * (one.goal - len(one.taken))

    study: Any = SimpleNamespace(make=make)
    cases: Any = [SimpleNamespace(digest=number) for number in range(len(values))]
    return tune._Race(study, cases, metric, 5.0), asked


def test_the_best_third_goes_on():
    run, asked = race([4.0, 3.0, 2.0, 1.0])
    assert run.run(2) == 3
    assert asked == [[2, 2, 2, 2], [6, 6]] and run.stages == [1, 1, 2, 2]
    assert [len(one.taken) for one in run.series] == [2, 2, 6, 6] and run.seen(1) == (3.0, 3.0)
    assert race([4.0, 3.0, 9.0], "slo_attainment")[0].run(2) == 2  # more is better
    equal, _ = race([2.0, 2.0, 2.0])
    assert equal.run(2) == 0  # of equals the first
    failed, _ = race([None, math.nan, 3.0])
    assert failed.run(2) == 2 and failed.errors == {0: "no 0"}
    assert {one.warmup for one in run.series} == {5.0} == {one.warmup for one in run.begun(3)}
    assert [one.goal for one in run.begun(3)] == [3, 3, 3, 3]


@pytest.mark.parametrize(("values", "said"), [
    ([None, None], "wait_mean is not defined under any setting: no 0"), ([math.nan, None], "under any setting$"),
])  # fmt: skip
def test_no_setting_has_the_metric(values: list[float | None], said: str):
    with pytest.raises(UsageError, match=said):
        race(values)[0].run(2)


def test_further_replications_begin_after_those_that_chose():
    run, asked = race([4.0, 3.0])
    seen: list[Any] = []
    inner = run.study.make
    run.study.make = lambda series: (seen.extend(series), inner(series))[1]  # type: ignore[method-assign]
    assert run.further(1, 9, 4, 2.5) == (3.0,) * 4
    assert [(one.begin, one.goal, one.warmup, one.case.digest) for one in seen] == [(9, 4, 2.5, 1)]
    assert asked == [[4]] and run.series[1].taken == []


# How many replications -----------------------------------------------------------------------------------------------


def plan(**more: Any) -> PrecisionPlan:
    given: dict[str, Any] = {
        "metric": "wait_mean", "precision": 0.05, "confidence": 0.95, "mean": 2.0, "half_width": 0.3, "pilot": 10,
        "replications": 80, "low": 40, "high": 160, "longer": {4: 20}, "length": "1 min", "spent": 0.5, "workers": 1,
        "runs": NOTHING,
    }  # fmt: skip
    return PrecisionPlan(**(given | more))


def test_what_is_said_of_a_precision():
    said = plan().sentences
    assert said[:3] == [
        "Pilot: 10 replications of 1 min give wait mean to ± 15 % (95 %).",
        "± 5 % needs about 80 such replications (40 to 160, estimated from 10 runs): about 40 s with one worker.",
        "Runs 4 times as long: about 20 replications, about 40 s with one worker.",
    ]
    assert said[-1] == "In the scenario: replications: {precision: 5%, metric: wait_mean, max: 320}"
    few = plan(replications=10, high=9, mean=-2.0).sentences
    assert few[:2] == [
        "Pilot: 10 replications of 1 min give wait mean to ± 15 % (95 %).",
        "± 5 % is reached by the pilot; 10 such runs suffice (about 5 s with one worker).",
    ]
    assert len(few) == 4 and few[-1].endswith("max: 20}")
    assert "about 20 s with 2 workers" in plan(workers=2).sentences[1]


@pytest.mark.parametrize("spread", [0.2, 0.5, 1.0, 3.0])
def test_the_least_number_for_a_precision(spread: float):
    """Student's interval of a metric that no congestion drives, tried number by number."""

    def half(number: int) -> float:
        return student_quantile(0.975, number - 1) * spread / math.sqrt(number)

    number = needed(spread, 2.0, 0.1, confidence=0.95)
    assert half(number) <= 0.2 and (number == 10 or half(number - 1) > 0.2)
    assert needed(spread, -2.0, 0.1, confidence=0.95) == number and needed(0.0, 2.0, 0.1, confidence=0.95) == 10


@pytest.mark.parametrize(("given", "said"), [
    ({"precision": 0.0}, "precision must be a share above 0 and below 1, such as 5%; got 0"),
    ({"precision": 1.0}, "got 1$"), ({"precision": 0.1, "confidence": 1.0}, "confidence must be a share"),
    ({"precision": 0.1, "confidence": 0.0}, "confidence must be a share"),
    ({"precision": 0.1, "pilot": 4}, "pilot must be at least 5 replications, to estimate the spread; got 4"),
])  # fmt: skip
def test_a_precision_that_is_none(given: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        precision.plan_precision("mm16", metric="wait_mean", **given)


def replications(*values: float) -> Replications:
    runs = Replications()
    for number, value in enumerate(values):
        runs.add_values({"replication": number, "jain": value})
    return runs


def test_the_remark_on_a_precision():
    """Ten values with mean 2 and standard deviation 1: the half-width is 2.262 / √10 = 0.715, or 36 %."""
    spread = np.array([1.0, -1.0] * 5)
    runs = replications(*(2 + spread / spread.std(ddof=1)))
    level = "95 % interval of jain is ± 36 % after 10 replications"
    assert Amount(40, 0.4, "jain").remark(runs) == (f"precision: {level} (± 40 % asked for)", False)
    text, is_warning = Amount(10, 0.1, "jain").remark(runs)
    assert is_warning and text == (
        f"precision not reached: {level}, the maximum (± 10 % asked for); use about {math.ceil(10 * 3.5768**2)} "
        "replications, or longer runs"
    )
    assert Amount(10, 0.1, "jain").remark(replications(*[2.0] * 10)) == (
        "precision undefined: jain is the same in all 10 replications", True,
    )  # fmt: skip
    text, is_warning = Amount(10, 0.1, "jain").remark(replications(*[1.0] * 9, math.inf))
    assert is_warning and "± 10 % asked for): the 95 % interval of jain is not defined" in text
    enough = [Amount(40, share, "jain").enough(runs) for share in (0.4, 0.1)]
    assert enough == [True, False] and not Amount(40, 0.4, "jain").enough(replications(2.0, 2.0, 2.0))
    assert Amount(40, 0.1, "jain").enough(replications(*[2.0] * 10)) and not Amount(40).enough(runs)
    assert (Amount(40).first, Amount(40, 0.1).first, Amount(7, 0.1).first) == (40, 10, 7)


def test_the_next_replication_is_asked_for_until_the_precision_is_there():
    """Of ± 36 % after ten runs, ± 20 % takes some 32, of which at most twice as many as there are are made ahead."""
    spread = np.array([1.0, -1.0] * 5)
    values = 2 + spread / spread.std(ddof=1)
    asked: list[tuple[int, int]] = []
    study: Any = SimpleNamespace(more=lambda series, goal, likely: asked.append((goal, likely)))

    def look(share: float, count: int = 10, most: int = 400, **more: Any) -> list[tuple[int, int]]:
        asked.clear()
        rule = Amount(most, share, "jain").rule(study)
        series = Replicates(NOTHING, more.pop("goal", count), runs=replications(*values[:count]))
        series.taken = [RunOutcome({"jain": 1.0})] * count
        if more.get("failed"):
            series.taken[3] = RunOutcome(None)
        assert rule is not None
        rule(series)
        return list(asked)

    assert look(0.4) == [] and look(0.1) == [(11, 20)] and look(0.3) == [(11, math.ceil(10 * (0.35768 / 0.3) ** 2))]
    assert look(0.1, most=15) == [(11, 15)] and look(0.1, most=10) == [] and look(0.1, goal=11) == []
    assert look(0.1, failed=True) == [] and Amount(40).rule(study) is None


def test_the_longest_warmup_of_a_point_is_shared():
    def pilot(time: float | None, error: RunOutcome | None = None) -> Any:
        return SimpleNamespace(cut=None if time is None else SimpleNamespace(time=time), error=error)

    gone, again = RunOutcome(None, error="never"), RunOutcome(None, error="busy", lasting=False)
    found = shared([pilot(3.0), pilot(9.0), pilot(None, gone)])
    assert found.cut is not None and (found.cut.time, found.lasting) == (9.0, None)
    assert (found.error_of(pilot(3.0)), found.error_of(pilot(None, gone))) == ("", "never")
    waiting = shared([pilot(3.0), pilot(None, again)])
    assert waiting.error_of(pilot(3.0)) == "the warm-up of the point cannot be found: busy"
    assert shared([pilot(None, gone)]) == Warmup(None)


# Points --------------------------------------------------------------------------------------------------------------


def test_rows_of_a_grid():
    grid = GridValues({"a": [1, 2], "b": ["x", "y", "z"]})
    rows = PointRows(grid, {"p": {"scheduler": 1}, "q": 2})
    assert (len(grid), len(rows)) == (6, 12)
    assert [(row.point, row.policy, row.values) for row in rows[2:5]] == [
        (1, "p", {"a": 1, "b": "y"}), (1, "q", {"a": 1, "b": "y"}), (2, "p", {"a": 1, "b": "z"}),
    ]  # fmt: skip
    assert rows[11].overrides == {"policy": 2, "a": 2, "b": "z"} and rows[-1].point == 5 == rows[10].point
    assert rows[-12].point == 0 and [row.point for row in rows[::5]] == [0, 2, 5]
    assert list(rows[0].values) == ["a", "b"] and rows[3].label == "point 1 (a=1, b=y, q)"
    for wrong in (12, -13):
        with pytest.raises(IndexError):
            rows[wrong]
    assert PointRows(grid, {None: None})[4].overrides == {"a": 2, "b": "y"}
    assert PointRows(grid, {None: None})[4].label == "point 4 (a=2, b=y)"
    for key in ("a", "b"):
        assert grid.column(key, list) == PointValues([grid.at(point) for point in range(6)]).column(key, list)


@pytest.mark.parametrize(("values", "column"), [
    ([True, False], [True, False]), ([1, 2], [1, 2]), ([1, True], ["1", "true"]), ([1 << 63, 1], [str(1 << 63), "1"]),
    ([(1 << 63) - 1, -(1 << 63)], [(1 << 63) - 1, -(1 << 63)]), ([-(1 << 63) - 1], [str(-(1 << 63) - 1)]),
    ([1, 2.5], [1.0, 2.5]), (["1 ms", "2 s"], [0.001, 2.0]), (["1 ms", 0], [0.001, 0.0]),
    (["1 ms", "1 GB"], ["1 ms", "1 GB"]), (["1 ms", 3], ["1 ms", "3"]),
    ([None, 1], ["null", "1"]), (["a", 1], ["a", "1"]), ([[1, 2], "a"], ["[1, 2]", "a"]),
])  # fmt: skip
def test_the_column_of_a_key(values: list[Any], column: list[Any]):
    made = column_of(values)
    assert made == column and [type(one) for one in made] == [type(one) for one in column]


def test_values_that_are_the_same_however_they_are_written():
    assert _as_number("1000 ms") == _as_number("1 s") and _as_number("1 s") != _as_number("2 s")
    assert _as_number(2.0) == 2 and isinstance(_as_number(2.0), int) and _as_number(2.5) == 2.5
    assert _as_number("fcfs") == "fcfs" and _as_number([1]) == [1]


@pytest.mark.parametrize(("text", "key", "values"), [
    ("a.b=1,2", "a.b", [1, 2]), (" a = [1, 2]", "a", [1, 2]), ("a=[0, 1], [2, 3]", "a", [[0, 1], [2, 3]]),
    ("a=x", "a", ["x"]), ("a=1..8 log", "a", "1..8 log"),
])  # fmt: skip
def test_values_of_the_command(text: str, key: str, values: Any):
    assert parse_over(text) == (key, values)


@pytest.mark.parametrize(("text", "said"), [
    ("a", "--over must be key.path=values, such as cluster.nodes.0.count=8,16,32; "
          "got"), ("a..b=1", "--over must be key.path=values, such as cluster.nodes.0.count=8,16,32; "
                             "got"), ("=1", "--over must be key.path=values, such as "
                                            "cluster.nodes.0.count=8,16,32; got"),
    ("a=", "--over must have at least one value to try"), ("a=[1", "the values"),
])  # fmt: skip
def test_values_of_the_command_that_are_none(text: str, said: str):
    with pytest.raises(UsageError, match=said):
        parse_over(text)


@pytest.mark.parametrize("step", [1, 5, 64])
@pytest.mark.parametrize(("least", "most", "first"), [(1, 64, 6), (1, 64, 23), (3, 40, 17), (5, 9, 99)])
def test_a_search_expects_the_sizes_that_it_may_still_try(least: int, most: int, first: int, step: int):
    """Until one meets the target the next and the halvings below it, then the halvings that are left: 4 runs a size."""
    meter = SimpleNamespace(done=0, runs=0)
    meter.expect = lambda runs: setattr(meter, "runs", meter.runs + runs)
    study: Any = SimpleNamespace(meter=meter)
    search = _Search(study, "k", WAIT, 0.95, seed=None, first=4, least=least, most=most, step=step, tell=None)
    assert meter.runs == search.judge.first
    expected, tried = [], []

    def attempt(number: int) -> Any:
        expected.append((meter.runs - meter.done) // search.judge.first)
        tried.append(number)
        meter.done += search.judge.first
        return trial(number, MET if number >= first else MISSED)

    search._try = attempt  # type: ignore[method-assign]
    search.smallest()
    bad, good, wanted = least - 1, least, [1]
    while good < first and good < most:
        bad, good, step = good, min(good + step, most), 2 * step
        wanted.append(1 + math.ceil(math.log2(good - bad)))
    while good - bad > 1 and good >= first:
        wanted.append(math.ceil(math.log2(good - bad)))
        middle = (bad + good) // 2
        bad, good = (bad, middle) if middle >= first else (middle, good)
    assert expected == wanted and len(set(tried)) == len(tried)
