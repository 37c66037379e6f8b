"""A decision and its search by hand: what is said, written and known beforehand, and which candidate is the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import hetsim as hs
from hetsim.errors import UsageError
from hetsim.experiment.work import RunOutcome
from hetsim.results.many_runs.selection import MAX_REPLICATIONS
from hetsim.search import decide
from hetsim.search.decide import Candidate, Decision, _numbers, _Search
from hetsim.search.targets import MET, MISSED, OPEN, UNDEFINED, Judge, Target, TargetFinding, TargetsTrial

NOTHING: Any = None
WAIT, LATE = Target.parse("wait_mean < 2 s"), Target.parse("wait_mean > 1 s")


def candidate(number: int, verdict: str, objective: float, mean: float = 1.5, **more: Any) -> Candidate:
    trial = TargetsTrial(12, (TargetFinding(mean, 0.1, verdict),), more.pop("reason", ""))
    return Candidate(number, {"k": number}, more.pop("policy", "fcfs"), objective, trial)


def decision(candidates: Sequence[Candidate], best: int | None = None, **more: Any) -> Decision:
    given: dict[str, Any] = {
        "scenario": "s", "keys": ["k"], "targets": [WAIT], "objective": "price", "confidence": 0.95, "delta": 0.01,
        "best": None if best is None else candidates[best], "candidates": list(candidates), "count": len(candidates),
        "policies": ["fcfs"] * len(candidates),
    } | more  # fmt: skip
    return Decision(**given)


def test_what_is_said_of_a_decision():
    two = [candidate(1, MISSED, 1.0), candidate(2, MET, 2.5)]
    mean = "wait mean 1.50 ± 0.10 s, n = 12"
    assert decision(two, 1).sentences == [
        f"k=2, fcfs meets wait_mean < 2 s with the lowest price (2.5/h): {mean} (95 % confidence in all verdicts; "
        "all 2 tried)."
    ]
    assert decision(two, 1, objective="total", count=3, targets=[WAIT], confidence=0.9).sentences == [
        f"k=2, fcfs meets wait_mean < 2 s with the lowest total (2.5): {mean} (90 % confidence in all verdicts; "
        "2 of 3 combinations tried)."
    ]
    measured = decision(two, 1, objective="response_mean", delta=0.2)
    assert measured.sentences[0].startswith("k=2, fcfs meets wait_mean < 2 s with the lowest response mean (2.5 s): ")
    assert measured.sentences[1:] == ["It is the best of those that meet the targets, or within 20 % of the best."]
    tied = decision(two, 1, objective="response_mean", tied=[two[0], candidate(3, MET, 2.5, policy="")])
    assert tied.sentences[1:] == [f"No significant difference to it after {MAX_REPLICATIONS:,} replications: "
                                  f"k=1, fcfs; k=3."]
    assert decision(two[:1]).sentences == ["No combination is shown to meet wait_mean < 2 s (all 1 tried)."]
    none = decision(two[:1], targets=[WAIT, LATE], count=9)
    assert none.sentences == [
        "No combination is shown to meet wait_mean < 2 s and wait_mean > 1 s (1 of 9 combinations tried)."
    ]
    assert repr(none) == f"<Decision s>\n{none.sentences[0]}"
    page = decision(two[:1])._repr_html_()
    assert page.startswith("<ul><li>No combination is shown to meet wait_mean &lt; 2 s (") and "<td>missed</td>" in page
    assert (none.met, decision(two, 1).met) == (False, True)
    known = [decision(two, objective=objective).needs_no_runs for objective in ("price", "total", "response_mean")]
    assert known == [True, True, False]


@pytest.mark.parametrize(("open_ones", "said"), [
    ([1.0], "k=0, fcfs"), ([1.0, 2.0, 3.0], "k=0, fcfs; k=1, fcfs; k=2, fcfs"),
    ([1.0, 2.0, 3.0, 4.0], "k=0, fcfs; k=1, fcfs; k=2, fcfs; …"), ([1.0, 9.0, 8.0], "k=0, fcfs"),
    ([math.nan], "k=0, fcfs"), ([8.0], ""),
])  # fmt: skip
def test_open_candidates_that_are_cheaper_than_the_best_are_named(open_ones: list[float], said: str):
    given = [candidate(number, OPEN, cost) for number, cost in enumerate(open_ones)]
    given += [candidate(7, MISSED, 0.5), candidate(8, MET, 8.0)]
    texts = decision(given, len(given) - 1).sentences[1:]
    told = f"Undecided whether a target is met: {said}. Use more replications."
    assert texts == ([told] if said else [])


def test_the_front_leaves_out_what_is_not_known():
    given = [
        candidate(0, OPEN, 1.0, math.nan), candidate(1, MET, math.nan, 0.1), candidate(2, MET, 1.0, 1.8),
        candidate(3, MET, 1.0, 1.7), candidate(4, MET, 2.0, 1.7), candidate(5, MET, 3.0, 1.6),
    ]  # fmt: skip
    assert [one.number for one in decision(given, 2).front] == [3, 5]
    assert [one.number for one in decision(given, 2, targets=[LATE]).front] == [2]


def test_more_of_an_objective_may_be_better():
    """The front, the open candidates and the words follow the direction of the metric that is optimized."""
    given = [
        candidate(0, MET, 5.0, 1.2), candidate(1, MET, math.nan, 1.0), candidate(2, MET, 9.0, 1.8),
        candidate(3, OPEN, 9.5, 1.9), candidate(4, MET, 7.0, 1.8), candidate(5, OPEN, 8.0, 1.7),
    ]  # fmt: skip
    up = decision(given, 2, objective="throughput")
    assert [one.number for one in up.front] == [3, 2, 5, 0]
    assert "with the highest throughput (9" in up.sentences[0]
    assert "Undecided whether a target is met: k=3, fcfs. " in up.sentences[-1]
    down = decision(given, 2, objective="response_mean")
    assert [one.number for one in down.front] == [0]
    assert "Undecided whether a target is met: k=5, fcfs. " in down.sentences[-1]


def test_the_table_and_the_rows_of_a_decision():
    trial = TargetsTrial(12, (TargetFinding(1.5, 0.1, MET), TargetFinding(1.5, 0.2, OPEN)), "odd")
    one = Candidate(3, {"k": 4}, "sjf", 2.5, trial)
    nothing = TargetsTrial(0, (TargetFinding(math.nan, math.nan, MISSED),) * 2)
    missing = Candidate(4, {"k": 5}, "fcfs", math.nan, nothing)
    both = decision([one, missing], 0, targets=[WAIT, LATE], policies=["sjf", "fcfs"])
    assert both.table.to_dict("records")[0] == {
        "k": 4, "policy": "sjf", "price": 2.5, "replications": 12, "verdict": OPEN, "reason": "odd",
        "wait_mean_0": 1.5, "wait_mean_0_half_width": 0.1, "wait_mean_0_verdict": MET,
        "wait_mean_1": 1.5, "wait_mean_1_half_width": 0.2, "wait_mean_1_verdict": OPEN,
    }  # fmt: skip
    single = decision([candidate(1, MET, 1.0)], 0)
    assert list(single.table)[-3:] == ["wait_mean", "wait_mean_half_width", "wait_mean_verdict"]
    assert both.shown() == [
        ["k", "policy", "wait mean", "wait mean", "replications", "price", ""],
        ["4", "sjf", "1.50 ± 0.10 s", "1.50 ± 0.20 s", "12", "2.5", "open (odd) ◂"],
        ["5", "fcfs", *both.shown()[2][2:4], "0", "", "missed"],
    ]
    assert single.shown() == [
        ["k", "wait mean", "replications", "price", ""], ["1", "1.50 ± 0.10 s", "12", "1", "met ◂"],
    ]  # fmt: skip
    made = both.to_json()
    means = [{"mean": 1.5, "half_width": 0.1, "verdict": MET}, {"mean": 1.5, "half_width": 0.2, "verdict": OPEN}]
    assert made["candidates"][0] == made["best"] == {
        "values": {"k": 4}, "policy": "sjf", "objective": 2.5, "replications": 12, "verdict": OPEN, "reason": "odd",
        "targets": means,
    }  # fmt: skip
    assert made["candidates"][1]["objective"] is None and made["candidates"][1]["targets"][0]["mean"] is None
    rest = {key: made[key] for key in ("scenario", "keys", "targets", "minimize", "confidence", "met", "combinations")}
    assert rest == {
        "scenario": "s", "keys": ["k"], "targets": ["wait_mean < 2 s", "wait_mean > 1 s"], "minimize": "price",
        "confidence": 0.95, "met": True, "combinations": 2,
    }  # fmt: skip
    assert (made["tied"], made["sentences"]) == ([], both.sentences)
    assert decision([one]).to_json()["best"] is None


# What is known beforehand --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "numbers"), [
    ("1..4", [1, 2, 3, 4]), ([3, 1, 3], [3, 1]), (5, [5]), (range(2, 4), [2, 3]), ("1.5..4.2", [2, 3, 4]), ([0], [0]),
    ("1..7 integer 3", [1, 4, 7]),
])  # fmt: skip
def test_the_numbers_of_a_key(given: Any, numbers: list[int]):
    assert _numbers("k", given) == numbers


@pytest.mark.parametrize("given", [[True], [1.5], [-1], ["a"], "abc", []])
def test_what_is_not_a_list_of_whole_numbers(given: Any):
    with pytest.raises(UsageError, match=r"^k must be whole numbers, such as 1\.\.8 or 2,4,8"):
        _numbers("k", given)


SCENARIO: dict[str, Any] = {
    "name": "two", "horizon": "10 s",
    "cluster": {"nodes": [{"name": "a", "cpus": 2, "count": 1}, {"name": "b", "cpus": 4, "count": 1}]},
    "workload": {"arrivals": {"process": "poisson", "rate": "1/s"}, "cpu_time": "100 ms"},
}  # fmt: skip
A, B = "cluster.nodes.a.count", "cluster.nodes.b.count"


def found(over: dict[str, Any], target: str = "wait_mean < 1 s", **more: Any) -> Decision:
    decided = hs.size(more.pop("scenario", SCENARIO), target, over, replications=2, **more)
    assert isinstance(decided, Decision)
    return decided


def test_without_prices_the_sum_of_the_numbers_is_minimized():
    made = found({A: [2, 1], B: [1, 2]}, target="wait_mean <= 1 s")
    assert (made.objective, made.count, len(made.candidates)) == ("total", 4, 1)
    assert made.best is not None
    assert (made.best.number, made.best.objective, dict(made.best.values)) == (2, 2.0, {A: 1, B: 1})
    with pytest.raises(UsageError, match="minimizing the price needs prices of the cluster"):
        found({A: [1]}, minimize="price")


def test_prices_are_those_of_the_cluster_for_an_hour():
    nodes = [{**SCENARIO["cluster"]["nodes"][0], "price": "3/h"}, {**SCENARIO["cluster"]["nodes"][1], "price": "2/h"}]
    priced = {**SCENARIO, "cluster": {"nodes": nodes}}
    told: list[Any] = []
    made = found({A: [1, 2], B: [1, 2]}, "wait_mean < 0 s", scenario=priced, tell=told.append)
    assert [(dict(one.values), one.objective) for one in made.candidates] == [
        ({A: 1, B: 1}, pytest.approx(5.0)), ({A: 1, B: 2}, pytest.approx(7.0)),
        ({A: 2, B: 1}, pytest.approx(8.0)), ({A: 2, B: 2}, pytest.approx(10.0)),
    ]  # fmt: skip
    assert made.objective == "price" and made.best is None and told == made.candidates
    # The number that is not tried costs what it costs; a combination that is no cluster costs nothing.
    assert decide._price(hs.load(priced)) == pytest.approx(5.0)
    assert decide._price(hs.load(SCENARIO)) == 0.0
    with pytest.raises(UsageError, match="a target's metric is not defined with any combination tried"):
        found({A: [1, 2]}, target="slo_attainment > 90%")


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_delta_is_a_share(delta: float):
    with pytest.raises(UsageError, match="delta must be a share of the mean above 0 and below 1"):
        found({A: [1]}, delta=delta)


@pytest.mark.parametrize(("minimize", "parts"), [(None, 1), ("response_mean", 2)])
def test_all_tests_share_the_error_that_is_allowed(minimize: str | None, parts: int, monkeypatch: pytest.MonkeyPatch):
    """5 % over two targets and three combinations; where a metric is minimized the selection has half of it."""
    errors, selections = [], []

    class Noted(Judge):
        def __init__(self, study: Any, targets: Any, replications: int, error: float):
            errors.append(error)
            super().__init__(study, targets, replications, error)

    def best(self: Any, objective: str, probability: float, delta: float) -> None:
        selections.append((objective, probability, delta))
        self._try(0)

    monkeypatch.setattr(decide, "Judge", Noted)
    monkeypatch.setattr(_Search, "best", best)
    hs.size(SCENARIO, ["wait_mean < 1 s", "response_mean < 2 s"], {A: [1, 2, 3]}, replications=2, minimize=minimize,
            delta=0.125)  # fmt: skip
    assert errors == [pytest.approx(0.05 / parts / 6)]
    assert selections == ([] if minimize is None else [("response_mean", pytest.approx(1 - 0.05 / parts), 0.125)])


# The search ----------------------------------------------------------------------------------------------------------


class Values(Judge):
    """Candidates whose verdicts and values are given; the values are of replications that are made."""

    def __init__(self, verdicts: Sequence[str], values: Sequence[Sequence[float] | None]):
        self.verdicts, self.values, self.looks, self.study = verdicts, values, [1, 4, 16], NOTHING
        self.asked: list[str] = []

    def try_(self, case: Any, where: str) -> tuple[TargetsTrial, Any]:
        self.asked.append(where)
        values = self.values[case]
        trial = TargetsTrial(3, (TargetFinding(1.0, 0.1, self.verdicts[case]),))
        if values is None:
            return trial, None
        return trial, SimpleNamespace(taken=[RunOutcome({"response_mean": value, "jain": value}) for value in values])


def search(verdicts: Sequence[str], values: Sequence[Sequence[float] | None]) -> _Search:
    about: list[Any] = [({"k": number}, "p") for number in range(len(verdicts))]
    return _Search(Values(verdicts, values), range(len(verdicts)), about, [], None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("objective", "best"), [("response_mean", 2), ("jain", 1)])
def test_without_chance_the_best_mean_is_taken(objective: str, best: int):
    """Every candidate is tried and has its mean; those that miss, or are not finite, are none that may be taken."""
    looked = search(
        [MISSED, MET, MET, MET, OPEN, UNDEFINED],
        [[0.1, 0.1], [3.0, 3.0], [1.0, 1.0], [0.5, math.inf], [9.0, 9.0], None],
    )
    assert looked.best(objective, 0.95, 0.01) == best
    assert looked.judge.asked == [f"k = {number}, p" for number in range(6)]  # type: ignore[attr-defined]
    means = [looked.tried[number].objective for number in range(6)]
    assert means[:5] == [0.1, 3.0, 1.0, math.inf, 9.0] and math.isnan(means[5])
    assert looked.tied == []


def test_one_that_meets_the_targets_needs_no_selection():
    assert search([MISSED, MET], [[1.0, 2.0], [3.0, 5.0]]).best("response_mean", 0.95, 0.01) == 1
    assert search([MISSED, OPEN], [[1.0, 2.0], [3.0, 5.0]]).best("response_mean", 0.95, 0.01) is None
    assert search([MET, MISSED], [[1.0, math.nan], [3.0, 5.0]]).best("response_mean", 0.95, 0.01) is None


def test_among_several_the_best_is_selected(monkeypatch: pytest.MonkeyPatch):
    """One with chance is enough: the race is between those that meet the targets, by number."""
    asked: list[Any] = []

    def selected(study: Any, race: Any, series: Any, *, first: int, most: int) -> None:
        asked.append((race.metric, race.probability, race.share, list(race.left), list(series), first, most))
        race.left[:] = ["3", "1"]

    monkeypatch.setattr(decide, "select", selected)
    looked = search([MISSED, MET, MET, MET], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 5.0]])
    assert looked.best("response_mean", 0.9, 0.02) == 3
    assert looked.tied == [1]
    assert asked == [("response_mean", 0.9, 0.02, ["1", "2", "3"], ["1", "2", "3"], 4, MAX_REPLICATIONS)]
    looked = search([MET, MET], [[1.0, 2.0], [2.0, 2.0]])
    looked.judge.looks = [2, 8]
    looked.best("response_mean", 0.9, 0.02)
    assert asked[1][5] == 3  # at least three in a first stage


def test_values_without_a_weight_count_once():
    looked = search([MET], [[1.0, 2.0]])
    looked._try(0)
    assert looked._values(0, "response_mean") == [(1.0, 1.0), (2.0, 1.0)]
    assert math.isnan(looked._values(0, "wait_mean")[0][0]) and looked._values(1, "jain") == []
