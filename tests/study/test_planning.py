"""Planning validates each distinct part of a sweep's points once; what comes out is that of validating every point."""

from __future__ import annotations

import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiers import by_night, some, spread

from hetsim.errors import HetsimError, Problem, ScenarioError
from hetsim.experiment import points
from hetsim.experiment import sweep as sweeps
from hetsim.experiment.points import PointRow
from hetsim.experiment.sweep import SweepPlan, plan_sweep
from hetsim.scenario.file.shipped import shipped
from hetsim.scenario.scenario import Scenario, load
from hetsim.scenario.schema.whole import ScenarioModel

SEEDS = [3, 0, 2**130, "7", 4.0, "8.5", -1, True, None, "x", [1]]
ODD: list[Any] = [-1, 0, "nonsense", None, [], {}, True, 1e300, "-0.5 s", {"no_such_key": 1}, ["10 s"], float("-0.0")]
WHOLE: dict[str, list[Any]] = {
    "policy": ["fcfs", "sjf", {"scheduler": "sjf", "placement": "best_fit"}, "no_such_policy", {"scheduler": 3}, "edf"],
    "horizon": ["1 h", "2 s", 0, "100 days"], "warmup": ["auto", 0, "1 s", "10 h", "x"], "faults": [[], {"kind": "x"}],
    "data": [[], [{"name": "d", "size": "1 MB"}]], "cluster": [{"nodes": []}, 5],
}  # fmt: skip


def check_each(
    base: Scenario, given: Sequence[PointRow], facts: Callable[[Scenario], Any],
    each: Callable[[PointRow, int, Any], None],
) -> None:
    """Validate every point as a whole."""
    wrong: dict[tuple[str, str], list[PointRow]] = {}
    for row in given:
        try:
            scenario = base.with_overrides(row.overrides)
        except ScenarioError as error:
            for problem in error.problems:
                wrong.setdefault((problem.key, problem.message), []).append(row)
            continue
        if not wrong:
            each(row, scenario.model.seed, facts(scenario))
    if wrong:
        raise ScenarioError(
            [Problem(message, key, file=points._whose(which, len(given))) for (key, message), which in wrong.items()]
        )


def planned(monkeypatch: pytest.MonkeyPatch, check: Any, *given: Any, **options: Any) -> Any:
    """All of a plan that decides runs and files, or what is said of an error."""
    with monkeypatch.context() as patched:
        patched.setattr(sweeps, "check_all", check)
        try:
            plan: SweepPlan = plan_sweep(*given, **options)
        except HetsimError as error:
            return type(error), str(error)
    checked = plan.checked
    pilots = [(key, pilot.case.overrides, pilot.case.seed, pilot.case.digest) for key, pilot in checked.pilots.items()]
    columns = checked.policy, checked.seeds, repr(checked.warmups), bytes(checked.scenarios), bytes(checked.runs)
    return plan.about, columns, pilots, plan.identity.unknown


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Paths and values of plain data, those of lists by index."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        if "." not in str(key):
            yield from leaves(one, (*path, str(key)))
    if path and not inner:
        yield ".".join(path), value


def tried_values(chance: random.Random, value: Any) -> list[Any]:
    """Values to try in place of one, most of which may well be valid."""
    near: list[Any] = [value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        near += [value * 2, value + 1, float(value)]
    elif isinstance(value, str) and value[:1].isdigit():
        near += [f"{chance.randint(1, 9)}{value}", f"{value} ", value.partition(" ")[0]]
    return [*near, *chance.sample(ODD, chance.choice([0, 0, 0, 1, 2]))]


def axes_of(chance: random.Random, base: Scenario) -> dict[str, list[Any]]:
    """Some axes of a scenario, in any order; few have invalid values."""
    there = [(key, value) for key, value in leaves(base.raw) if key.partition(".")[0] not in
             ("name", "description", "sweep", "replications", "seed")]  # fmt: skip
    drawn = chance.sample(there, min(len(there), chance.randint(0, 3)))
    over = {key: tried_values(chance, value) for key, value in drawn}
    for key in chance.sample(sorted(WHOLE), chance.choice([0, 1, 1, 2])):
        count = chance.choice([1, 1, 2, 3, len(WHOLE[key])])
        over[key] = WHOLE[key][:count] if chance.random() < 0.5 else chance.sample(WHOLE[key], min(2, len(WHOLE[key])))
    if chance.random() < 0.7 or not over:
        over["seed"] = chance.sample(SEEDS[:5] if chance.random() < 0.7 else SEEDS, 3)
    for key, values in over.items():
        over[key] = [one for at, one in enumerate(values) if points._same({"": one}) not in
                     {points._same({"": earlier}) for earlier in values[:at]}]  # fmt: skip
    return dict(chance.sample(sorted(over.items(), key=lambda one: one[0]), len(over)))


FILES = [one.path for one in shipped() if one.theme not in ("published", "templates")]


@pytest.mark.parametrize("path", by_night(spread(FILES, 1), 10), ids=lambda path: path.stem)
def test_a_plan_is_that_of_points_that_are_validated_one_by_one(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of random axes: digests, seeds, warm-ups, pilots, labels and remarks; or the words of the error."""
    base, chance = load(path), random.Random(path.stem)
    for _ in range(some(4, 1)):
        over = axes_of(chance, base)
        form, size = chance.choice(["points", "random", "grid"]), math.prod(map(len, over.values()))
        if form == "grid" and size <= 40:
            options: dict[str, Any] = {"over": over}
        elif form == "points" and "policy" not in over:  # in any order, and some again
            options = {"points": [{key: chance.choice(over[key]) for key in over} for _ in range(12)]}
        else:
            options = {"over": over, "sample": "random", "n": 12}
        expected = planned(monkeypatch, check_each, base, **options)
        assert planned(monkeypatch, points.check_all, base, **options) == expected, options


@pytest.mark.parametrize("over", [
    {"seed": [1, 2], "workload.0.arrivals.rate": ["1/s", "2/s"], "cluster.nodes.0.cpus": [4, 8]},
    {"horizon": ["1 h", "2 s"], "seed": [1, "x", -1], "warmup": [0, "1 s", "5 s", "auto"], "workload.0.count": [4, -4]},
    {"cluster.nodes.0.cpus": [4, 0], "workload.0.arrivals.rate": ["1/s", "-1/s"], "policy": ["sjf", "edf"]},
    {"workload.0.arrivals.rate": ["1/s", "2/s"], "workload.0.count": [1, 2, 1.0], "seed": [1, "1", 1.0]},
    {"workload.0.gpu_time.mean": ["1 s"], "workload.0.gpu_time": ["2 s", "x"], "cluster.nodes.0.cpus": [8, 9]},
])  # fmt: skip
@pytest.mark.parametrize("kept", [(100_000, 2_000), (1, 1)])
def test_what_is_kept_while_planning_changes_nothing(over: Any, kept: Any, monkeypatch: pytest.MonkeyPatch):
    """Also of checks between keys, of values that are equal as numbers, and where the caches are full."""
    base = load({
        "cluster": {"nodes": [{"cpus": 8, "gpus": {"type": "g", "count": 8}}]},
        "workload": [{"name": "a", "arrivals": {"process": "poisson", "rate": "0.64/s"}, "count": 5,
                      "gpu_time": {"distribution": "exponential", "mean": "10 s"}}],
    })  # fmt: skip
    monkeypatch.setattr(points, "MAX_CASES", kept[0])
    monkeypatch.setattr(points, "MAX_PARTS", kept[1])
    axes = [[{key: value} for value in values] for key, values in over.items()]
    listed = [{key: value for one in combined for key, value in one.items()} for combined in itertools.product(*axes)]
    options: list[dict[str, Any]] = [{"over": over, "sample": "random", "n": 30}]
    options += [{"points": listed}] if "policy" not in over else []
    for one in options:
        expected = planned(monkeypatch, check_each, base, **one)
        assert planned(monkeypatch, points.check_all, base, **one) == expected


def test_points_that_differ_by_their_seeds_are_validated_once(monkeypatch: pytest.MonkeyPatch):
    """And parts where their values come again: points with a new value are validated as a whole, others joined.

    By hand: 8 of the 20 points have a new value; the others need the parts of 3 clusters and 4 workloads.
    """
    base, tried, changed = load("mm16"), list[Any](), Scenario.with_overrides
    monkeypatch.setattr(Scenario, "with_overrides", lambda self, given: tried.append(given) or changed(self, given))
    counts = {"cluster.nodes.gpus.count": [16, 17, 18, 19], "workload.0.count": [5, 6, 7, 8, 9]}
    assert len(plan_sweep(base, {"seed": range(50), **counts}).checked) == 1000
    assert len(tried) == 8 + 3 + 4


def test_points_of_a_sample_are_validated_once_each(monkeypatch: pytest.MonkeyPatch):
    """No value comes again, so that no part is worth its validation."""
    base, tried, changed = load("mm16"), list[Any](), Scenario.with_overrides
    monkeypatch.setattr(Scenario, "with_overrides", lambda self, given: tried.append(given) or changed(self, given))
    over = {"workload.0.arrivals.rate": "1/s..2/s", "horizon": "1000 s..2000 s"}
    assert len(plan_sweep(base, over, sample="sobol", n=16).checked) == 16
    assert len(tried) == 16


def test_top_keys_are_checked_one_by_one():
    """What sets one top key against another is the window alone; another such check must be named in planning."""
    decorators = ScenarioModel.__pydantic_decorators__
    assert list(decorators.model_validators) == ["_check_each"] and not decorators.root_validators
    assert [kind for kind in ScenarioModel.__mro__ if "_check_keys" in vars(kind)] == [ScenarioModel]
    named = set(ScenarioModel._check_keys.__code__.co_names)
    assert named & set(ScenarioModel.model_fields) == {"horizon", "warmup"}
    assert set(decorators.field_validators) == {"_lists"}
    assert set(inspect.signature(ScenarioModel._lists).parameters) == {"value"}  # and no values of others
