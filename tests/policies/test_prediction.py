"""Predictors: each against its formula, the errors they are judged by, and what they say when they know nothing."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from tiers import examples

import hetsim as hs
from hetsim import registry
from hetsim.cli import hetsim
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError, UsageError
from hetsim.policy import Predictor
from hetsim.results.statistics import student_interval
from hetsim.testing import check_predictor
from hetsim.workload.arrivals import Arrivals
from hetsim_policies.prediction import (
    ENOUGH,
    DurationHistory,
    FadingSum,
    Recent,
    Score,
    Series,
    backtest,
    error_notes,
    prediction_error,
)
from hetsim_policies.prediction.durations import RunningQuantile
from hetsim_policies.prediction.predictors import Autoregressive, Ewma, HoltWinters, LastValue

DAY, WEEK = 86400.0, 604800.0
SMALL = {
    "ar": {"order": 2, "window": 20, "refit": 3},
    "ewma": {"memory": 50.0},
    "holt_winters": {"season": 100.0, "week": 300.0, "slot": 10.0, "week_slot": 20.0, "beta": 0.1},
    "last_value": {},
}
PREDICTORS = {name: registry.policy("predictor", name) for name in SMALL}


def test_every_predictor_is_here():
    assert [*SMALL, "oracle"] == list(registry.policies("predictor"))


def led(predictor, values, step=10.0, first=0.0):
    """A predictor that has observed these values, a step apart."""
    for position, value in enumerate(values):
        predictor.observe(first + step * position, value)
    return predictor


def test_last_value():
    predictor = led(LastValue(), [3.0, 7.0])
    assert predictor.forecast(0) == predictor.forecast(1e6) == 7


def test_ewma_is_the_weighted_mean():
    values = np.random.default_rng(1).normal(5, 2, 40)
    weights = np.exp(-10.0 * np.arange(40)[::-1] / 70.0)
    predictor = led(Ewma(memory=70.0), values)
    assert predictor.forecast(300.0) == pytest.approx((weights * values).sum() / weights.sum(), rel=1e-12)


def test_fading_sum():
    found = FadingSum(30.0)
    assert found.at(100.0) == 0
    for time, amount in [(5.0, 2.0), (11.0, 1.0), (40.0, 4.0)]:
        found.add(time, amount)
    assert found.at(50.0) == pytest.approx(sum(a * math.exp(-(50 - t) / 30) for t, a in [(5, 2), (11, 1), (40, 4)]))


def textbook_holt_winters(values, season, alpha, beta, gamma):
    """Winters' additive smoothing as a book has it: one value a slot, begun with the first season."""
    level, trend = float(np.mean(values[:season])), 0.0
    added = [value - level for value in values[:season]]
    for position in range(season, len(values)):
        k, before = position % season, level
        level = alpha * (values[position] - added[k]) + (1 - alpha) * (level + trend)
        trend = beta * (level - before) + (1 - beta) * trend
        added[k] = gamma * (values[position] - level) + (1 - gamma) * added[k]
    return [level + h * trend + added[(len(values) - 1 + h) % season] for h in range(1, 2 * season)]


def test_holt_winters_is_the_textbooks():
    rng = np.random.default_rng(2)
    values = (20 + 0.1 * np.arange(60) + 5 * np.sin(np.arange(60) * 2 * np.pi / 12) + rng.normal(0, 1, 60)).tolist()
    predictor = HoltWinters(season=120.0, slot=10.0, alpha=0.3, beta=0.2, gamma=0.4)
    led(predictor, values, first=5.0)
    expected = textbook_holt_winters(values, 12, 0.3, 0.2, 0.4)
    assert [predictor.forecast(10.0 * h) for h in range(1, 24)] == pytest.approx(expected, rel=1e-9)


def test_holt_winters_falls_back_until_it_has_seen_a_season():
    predictor, mean = HoltWinters(season=1000.0, slot=50.0), Ewma(3600.0)
    for position in range(100):
        assert predictor.own == (position > 100)
        assert predictor.forecast(70.0) == mean.forecast(70.0)
        predictor.observe(5.0 + 10 * position, position % 7)
        mean.observe(5.0 + 10 * position, position % 7)
    assert not predictor.own
    predictor.observe(1005.0, 3.0)
    assert predictor.own


def test_a_weekly_season_is_learnt_from_the_second_week_on():
    """Without noise: weekends at half load. Two weeks on, the two seasons know them and one season does not."""
    times = np.arange(0, 5 * WEEK, 1800.0) + 900
    values = 10 + 4 * np.sin(2 * np.pi * times / DAY)
    values[times % WEEK >= 5 * DAY] -= 5
    two = HoltWinters(week=WEEK, slot=1800.0, alpha=0.01, gamma=0.05, delta=0.3)
    one = HoltWinters(slot=1800.0, alpha=0.01, gamma=0.05)
    skip = len(times) * 3 // 5
    errors = [backtest(predictor, times, values, steps=4, skip=skip).mape for predictor in (two, one)]
    assert errors[0] < errors[1] / 2


def test_ar_finds_an_exact_recurrence():
    """x[t] = 3 + 1.2 x[t-1] - 0.5 x[t-2], no noise: forecasts are what comes, at any distance."""
    values = [10.0, 4.0]
    while len(values) < 60:
        values.append(3 + 1.2 * values[-1] - 0.5 * values[-2])
    predictor = led(Autoregressive(order=2, window=40, refit=1), values[:20])
    for ahead in (1, 2, 5, 30):
        assert predictor.forecast(10.0 * ahead) == pytest.approx(values[19 + ahead], rel=1e-5)


def test_ar_that_explodes_stays_near_what_was_seen():
    predictor = led(Autoregressive(order=1, window=30, refit=1), [1.5**k for k in range(20)])
    high = 1.5**19
    assert predictor.forecast(1e5) <= 2 * high
    assert predictor.forecast(20.0) > high


def test_ar_falls_back_on_the_mean():
    predictor = led(Autoregressive(order=3, window=50), [1.0, 2.0, 6.0])
    assert not predictor.own
    assert predictor.forecast(10.0) == 3


@pytest.mark.parametrize("name", PREDICTORS)
def test_nothing_observed_forecasts_nothing(name):
    predictor = PREDICTORS[name]()
    assert predictor.forecast(60.0) == 0
    assert not predictor.own
    predictor.observe(0.0, 4.0)
    assert predictor.forecast(60.0) == 4


@examples(40, derandomize=True, database=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80), st.floats(0, 1e5), st.sampled_from(list(PREDICTORS)))
def test_forecasts_are_finite_whatever_comes(values, horizon, name):
    predictor = PREDICTORS[name](**SMALL[name])
    for position, value in enumerate(values):
        predictor.observe(7.0 * position, value)
        assert math.isfinite(predictor.forecast(horizon))


def test_a_season_beats_the_last_value_on_a_noisy_day():
    """Paired over 10 series; one hour ahead, the last half of six days."""
    times = np.arange(0, 6 * DAY, 600.0) + 300
    load = 10 + 6 * np.sin(2 * np.pi * times / DAY)
    more = []
    for seed in range(10):
        values = np.random.default_rng(seed).poisson(load).astype(float)
        season, last = (
            backtest(PREDICTORS[name](), times, values, steps=6, skip=432).pinball
            for name in ("holt_winters", "last_value")
        )
        more.append(last / season - 1)
    assert student_interval(np.array(more), 0.99).low > 0.1


# Errors ---------------------------------------------------------------------------------------------------------


def test_prediction_error_is_its_formulas():
    rng = np.random.default_rng(3)
    actual, forecast = rng.poisson(2, 200).astype(float), rng.normal(2, 1, 200)
    missed = actual - forecast
    found = prediction_error(actual, forecast, quantile=0.9)
    there = actual != 0
    assert found.count == 200
    assert found.zeros == (~there).sum() > 0
    assert found.mape == pytest.approx(np.abs(missed[there] / actual[there]).mean())
    assert found.pinball == pytest.approx(np.maximum(0.9 * missed, -0.1 * missed).mean())
    assert found.bias == pytest.approx(-missed.mean())
    assert prediction_error(actual, forecast).pinball == pytest.approx(np.abs(missed).mean() / 2)


def test_the_quantile_has_the_least_pinball_loss():
    values = np.random.default_rng(4).exponential(1, 500)
    guesses = np.linspace(0.1, 5, 99)
    loss = [prediction_error(values, np.full(500, guess), quantile=0.9).pinball for guess in guesses]
    assert guesses[int(np.argmin(loss))] == pytest.approx(np.quantile(values, 0.9), abs=0.06)


def test_errors_of_nothing_are_not_defined_and_not_noted():
    found = prediction_error([], [])
    assert found.count == 0
    assert math.isnan(found.mape)
    assert error_notes("forecast", found) == {"forecast_count": 0, "forecast_quantile": 0.5}
    assert error_notes("forecast", prediction_error([0.0], [1.0]))["forecast_pinball"] == 0.5


def test_backtest_asks_before_it_tells():
    """Of a ramp the last value is always one step behind."""
    found = backtest(LastValue(), [0.0, 1.0, 3.0, 4.0, 6.0], [1.0, 2.0, 3.0, 4.0, 5.0], steps=2)
    assert found.count == 3
    assert found.bias == -2


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: prediction_error([1.0], []), "forecasts and values must have the same length"),
        (lambda: prediction_error([1.0], [math.nan]), "must be finite"),
        (lambda: Score(1.0), "between 0 and 1"),
        (lambda: backtest(LastValue(), [0.0], [1.0, 2.0]), "must have the same length; got 1 and 2"),
        (lambda: backtest(LastValue(), [0.0], [1.0], steps=0), "steps must be at least 1"),
        (lambda: LastValue().observe(0.0, math.nan), "finite numbers"),
        (lambda: led(LastValue(), [1.0, 2.0], step=0.0), "in the order of time"),
        (lambda: LastValue().forecast(-1.0), "horizon"),
    ],
)
def test_wrong_calls(call, text):
    with pytest.raises(UsageError, match=text):
        call()


# Choices --------------------------------------------------------------------------------------------------------


def choosing(predictor, **policy):
    entry = {"arrivals": {"process": "poisson", "rate": "30/h"}, "gpu_time": "5 min"}
    return {"horizon": "5 h", "cluster": {"nodes": {"gpus": {"type": "g", "count": 2, "power": {"wake": "2 min"}}}},
            "workload": [{"name": "jobs", **entry}],
            "policy": {"name": "predictive", "predictor": predictor, **policy}}  # fmt: skip


def made(choice):
    """A fresh predictor as a scenario names it."""
    return hs.load(choosing(choice)).build().scheduler.predictor()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("holt_winter", r'predictor: unknown predictor "holt_winter"; did you mean "holt_winters"'),
        ("xyz", r"\(hetsim list policies --kind predictor\)"),
        ({"memory": "1 h"}, "predictor: must be the name of a predictor"),
        ({"name": "ewma", "alpha": 0.1}, 'alpha: predictor "ewma" has no parameter "alpha"; its parameters are memory'),
        ({"name": "last_value", "memory": 1}, "it has no parameters"),
        ({"name": "ewma", "memory": 5}, "predictor.memory: .* has no unit"),
        ({"name": "ewma", "memory": "0 s"}, "memory: must be above 0"),
        ({"name": "holt_winters", "alpha": -0.1}, "alpha: .* 0"),
        ({"name": "holt_winters", "gamma": 1.5}, "gamma: .* 1"),
        ({"name": "holt_winters", "season": "20 min"}, r"predictor: holt_winters: season \(1200 s\) must be at least"),
        ({"name": "holt_winters", "week": "12 h"}, "must be longer than the first"),
        ({"name": "holt_winters", "slot": "1 us"}, "got 86400 s with slots of 1e-06 s"),
        ({"name": "holt_winters", "week": "7 d", "week_slot": "1 ms"}, "got 604800 s with slots of 0.001 s"),
        ({"name": "ar", "order": 0}, "order: .* 1"),
        ({"name": "ar", "order": 100}, "observations for order 100"),
    ],
)
def test_wrong_choices_are_told(value, text):
    with pytest.raises(ScenarioError, match=text):
        hs.load(choosing(value))


class Double(LastValue):
    """Twice the last value."""

    flat = False

    def __init__(self, factor: float = 2.0):
        super().__init__()
        self.factor = factor

    def _expect(self, horizon):
        return self.factor * self.last


class NoPredictor:
    """Something else."""


def test_a_predictor_of_ones_own_is_named_like_any_policy(monkeypatch, tmp_path):
    """In a script and by an entry point; each series has its own; it is no part of `policy:` itself."""
    check_predictor(Double)
    hs.register("double", Double, kind="predictor")
    points = {"predictor.triple": f"{__name__}:Double", "predictor.wrong": f"{__name__}:NoPredictor"}
    monkeypatch.setattr(registry, "of_packages", lambda group: points if group == "hetsim.policies" else {})
    for name in ("double", "triple"):
        assert name in registry.policies("predictor")
        policy = hs.load(choosing({"name": name, "factor": 3})).build().scheduler
        one, two = policy.predictor(), policy.predictor()
        one.observe(0.0, 5.0)
        assert (one.forecast(60.0), two.forecast(60.0)) == (15.0, 0.0)
    assert hs.run(choosing("double")).notes["forecast_count"] > 0
    with pytest.raises(ScenarioError, match='needs a Predictor; got "wrong"'):
        hs.load(choosing("wrong"))
    with pytest.raises(ScenarioError, match='unknown key "predictor"'):
        hs.load({**choosing("ewma"), "policy": {"scheduler": "fcfs", "predictor": "double"}})
    rows = json.loads(CliRunner().invoke(hetsim, ["list", "policies", "--kind", "predictor", "--json"]).stdout)
    assert {"double", "oracle", "triple"} <= {row["name"] for row in rows}


@pytest.mark.parametrize("name", ["oracle", *SMALL])
def test_every_predictor_keeps_the_rules(name):
    check_predictor(partial(registry.policy("predictor", name), **SMALL.get(name, {})))


def test_rules_that_are_broken_are_named():
    class Random(LastValue):
        def __init__(self):
            super().__init__()
            self.asked = 0

        def _expect(self, horizon):
            self.asked += 1
            return float(self.asked)

    with pytest.raises(AssertionError, match="a forecast changes later forecasts"):
        check_predictor(Random)


# The oracle -----------------------------------------------------------------------------------------------------

RATES = [
    {"process": "poisson", "rate": "50/h"},
    {"process": "renewal", "rate": "50/h", "scv": 3},
    {"process": "deterministic", "interval": "1 min"},
    {"process": "diurnal", "mean": "50/h", "amplitude": 0.8, "period": "7 h", "phase": "1 h"},
    {"process": "piecewise_poisson", "rate": [["0 h", "90/h"], ["2 h", 0], ["3 h", "20/h"]], "period": "5 h"},
    {"process": "piecewise_poisson", "rate": [["0 h", "9/h"], ["7 h", "80/h"]]},
]


@pytest.mark.quick(1)
@pytest.mark.parametrize("arrivals", RATES, ids=lambda arrivals: arrivals["process"])
def test_the_rate_at_a_time_is_that_of_the_arrivals(arrivals):
    """Counted in quarters of an hour over 400 draws: within five standard errors everywhere."""
    process = TypeAdapter(Arrivals).validate_python(arrivals)
    times = np.concatenate([process.times(np.random.default_rng(seed), 10 * 3600.0) for seed in range(400)])
    counts = np.histogram(times, 40, (0, 36_000.0))[0] / 400
    middles = (np.arange(36_000) + 0.5).reshape(40, 900)
    expected = np.array([[process.rate_at(t) for t in row] for row in middles]).sum(axis=1)
    spread = np.sqrt(np.maximum(expected, 1e-9) / 400) * math.sqrt(arrivals.get("scv", 1))
    steady = slice(4, None) if "scv" in arrivals else slice(None)  # a renewal process begins with an arrival
    assert (np.abs(counts - expected)[steady] <= 5 * spread[steady] + 0.05).all()


@pytest.mark.slow
def test_the_oracle_forecasts_the_true_load():
    """Two classes of a stream and a service, on a square wave: rate times mean work of each, at any time ahead."""
    wave = {"process": "piecewise_poisson", "rate": [["0 h", "40/h"], ["2 h", "120/h"], ["4 h", "40/h"]]}
    scenario = choosing("oracle")
    scenario["workload"] = [
        {"name": "jobs", "arrivals": wave, "classes": [{"class": "a", "gpu_time": "4 min", "weight": 1},
                                                       {"class": "b", "gpu_time": "1 min", "weight": 3}]},
        {"name": "asked", "arrivals": {"process": "poisson", "rate": "60/h"}, "until": "3 h",
         "service": {"compute": {"fixed": "30 s"}, "max_batch": 1}},
    ]  # fmt: skip
    run = hs.load(scenario).build()
    Simulation(run).run()
    (series,) = run.scheduler.loads.values()
    first = run.tasks.class_code[np.isin(run.tasks.class_code, [run.tasks.classes.index(c) for c in "ab"])]
    share = (first == run.tasks.classes.index("a")).mean()
    each = share * 240 + (1 - share) * 60
    for time, rate, asked in ((3600.0, 40, 60), (9000.0, 120, 60), (12_000.0, 120, 0), (17_000.0, 40, 0)):
        series.predictor.time = time - 600.0
        assert series.predictor.forecast(600.0) == pytest.approx((rate * each + asked * 30) / 3600, rel=1e-9)
    assert hs.load(choosing("ewma")).build().scheduler.rates is None


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"arrivals": {"process": "mmpp", "rates": ["1/h", "9/h"], "holding": ["1 h", "1 h"]}}, "arrivals"),
        ({"arrivals": {"process": "closed", "clients": 3, "think": "5 min"}}, "arrivals"),
        ({"arrivals": {"process": "burst", "size": 5, "every": "1 h"}}, "arrivals"),
        ({"trace": {"format": "tasks", "path": "tasks.csv"}}, "trace"),
    ],
)
def test_a_rate_that_is_not_certain_is_refused(entry, key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tasks.csv").write_text("arrival,gpu_time\n3,20\n")
    scenario = choosing("oracle")
    scenario["workload"].append({"name": "more", **({} if "trace" in entry else {"gpu_time": "5 min"}), **entry})
    with pytest.raises(ScenarioError, match=f"workload.1.{key}: .* no known rate"):
        hs.load(scenario).build()


def test_an_oracle_inside_another_policy_is_refused():
    inner = choosing("oracle")["policy"] | {"scale": False}
    with pytest.raises(ScenarioError, match="predictor of the true rates"):
        hs.load(choosing("ewma", scale=False, base=inner)).build()
    with pytest.raises(UsageError, match="knows only the rates of a run"):
        led(registry.policy("predictor", "oracle")(), [1.0]).forecast(5.0)


# Durations ------------------------------------------------------------------------------------------------------


def test_durations_blend_the_users_own_with_everybodys():
    history = DurationHistory(decay=0.5, trust=2.0, default=100.0)
    assert history.forecast("ada", "a") == 100
    for seconds in (10.0, 20.0):
        history.observe("ada", "a", seconds)
    history.observe("ben", "a", 60.0)
    everybody, own = 30.0, 0.5 * 10 + 0.5 * 20
    assert history.forecast("ada", "a") == pytest.approx((2 * own + 2 * everybody) / 4)
    assert history.forecast("ben", "b") == everybody


def test_running_quantiles_are_those_of_the_last_values():
    values = np.random.default_rng(5).integers(0, 20, 300).astype(float)
    running = RunningQuantile(40)
    for position, value in enumerate(values):
        running.add(value)
        recent = values[max(0, position - 39) : position + 1]
        for quantile in (0.01, 0.5, 0.9, 0.99):
            assert running.at(quantile) == np.quantile(recent, quantile, method="inverted_cdf")


def test_quantiles_of_durations():
    history = DurationHistory(trust=1e-9, quantile=0.5, window=5)
    for seconds in (1.0, 2.0, 50.0, 60.0, 70.0, 80.0, 90.0):
        history.observe("ada", "a", seconds)
    assert history.forecast("ada", "a") == pytest.approx(70)


# Series ---------------------------------------------------------------------------------------------------------


def test_a_series_holds_forecasts_against_what_came():
    score = Score()
    series = Series(LastValue(), interval=10.0, lead=20.0, score=score)
    said = []
    for step, work in enumerate([10.0, 20.0, 0.0, 40.0]):
        series.note(work)
        series.measure(10.0 * (step + 1))
        said.append(series.peak)
    assert said == [1.0, 2.0, 0.0, 4.0]
    # First 1 was expected of the next two, which brought (2 + 0) / 2; then 2, and it was (0 + 4) / 2.
    assert score.error == prediction_error([1.0, 2.0], [1.0, 2.0])


@pytest.mark.quick(2)
@pytest.mark.parametrize("choice", ["last_value", "ewma",
                                    pytest.param({"name": "ar", "window": 30}, marks=pytest.mark.slow),
                                    {"name": "holt_winters", "season": "1 h", "slot": "10 min"}])  # fmt: skip
def test_skipping_empty_intervals_is_measuring_them(choice):
    """Once nothing is expected any more; then as before, when something comes again."""
    series = [Series(made(choice), 60.0, 180.0, Score()) for _ in range(2)]
    end = 0.0
    for number in range(200):
        end += 60.0
        for one in series:
            one.note(30.0 * (1 + number % 7), 3.0)
            one.measure(end)
    assert not series[0].settled
    while not series[0].settled:
        end += 60.0
        assert end < 1e6
        most = series[0].ceiling()
        for one in series:
            one.measure(end)
        assert max(series[0].peak, series[0].demand) <= most * (1 + 1e-9)
        assert series[0].ceiling() <= most * (1 + 1e-9)
    series[0].skip(500, end + 500 * 60.0)
    for _ in range(500):
        end += 60.0
        series[1].measure(end)
    for number in range(80):
        end += 60.0
        for one in series:
            one.note(20.0 * (1 + number % 5), 3.0)
            one.measure(end)
        assert series[0].demand == pytest.approx(series[1].demand, rel=1e-6, abs=1e-8)
        assert series[0].peak == pytest.approx(series[1].peak, rel=1e-6, abs=1e-8)
    first, second = series[0].score.error, series[1].score.error
    assert (first.count, first.zeros) == (second.count, second.zeros)
    assert (first.mape, first.pinball) == pytest.approx((second.mape, second.pinball), rel=1e-6)


def test_the_peak_of_a_series_is_within_its_lead():
    series = Series(HoltWinters(season=100.0, slot=10.0, gamma=0.0), 10.0, 40.0, Score())
    load = [0.0, 0, 0, 0, 0, 8, 0, 0, 0, 0]
    peaks = []
    for step in range(30):
        series.note(10 * load[step % 10])
        series.measure(10.0 * (step + 1))
        peaks.append(series.peak > 4)
    # After interval k those up to k + 4 are looked at, and the sixth of ten has the load.
    assert peaks[10:20] == [k + 1 <= 5 <= k + 4 for k in range(10)]


class Known(Predictor):
    """Expects a load that it was given, whatever came: from the middle of an interval to those of later ones."""

    def __init__(self, load):
        super().__init__()
        self.load = load

    def _expect(self, horizon):
        return self.load(self.time + horizon)


STANDARD_ERROR = 1 / math.sqrt(2 * 10 / (1 - math.exp(-0.2)))
"""Of a mean that fades over 50 s with ten arrivals in each 10 s."""


def demands(predictor, came, arrivals=10.0, lead=50.0):
    """The demand after each interval of 10 s of a load; what is measured is over about 50 s."""
    series = Series(predictor, 10.0, lead, Score(), memory=50.0)
    found = []
    for step, load in enumerate(came):
        series.note(10.0 * load, arrivals)
        series.measure(10.0 * (step + 1))
        found.append(series.demand)
    return found


def test_demand_is_at_least_what_is_measured_whatever_is_forecast():
    rng = np.random.default_rng(1)
    came = [float(load) for load in rng.uniform(2, 20, 200)]
    measured = Ewma(50.0)
    for step, (load, demand) in enumerate(zip(came, demands(Known(lambda _: 1.0), came), strict=True)):
        measured.observe(10.0 * step + 5, load)
        assert demand == pytest.approx(measured.forecast(0.0))


def test_demand_rises_before_the_load_where_the_forecast_knows():
    """Every load of 4 becomes one of 10 at 1,000 s; the forecast looks 50 s ahead."""
    found = demands(Known(lambda time: 4.0 if time < 1000 else 10.0), [4.0] * 100 + [10.0] * 100)
    assert found[90:94] == pytest.approx([4.0] * 4)
    assert found[95:100] == pytest.approx([10.0] * 5)
    assert found[100:] == pytest.approx([10.0] * 100)  # also while what is measured lags


def test_what_is_forecast_and_does_not_come_is_made_ready_for_once():
    """The load stays at 4 where 10 was expected from 1,000 s on: no more than chance would explain after some leads."""
    found = demands(Known(lambda time: 4.0 if time < 1000 else 10.0), [4.0] * 200)
    assert max(found[:94]) == pytest.approx(4.0)
    assert max(found) == pytest.approx(10.0)
    chance = 1 + 0.5 * STANDARD_ERROR
    ready = sum(demand > 1.01 * chance * 4.0 for demand in found)
    assert ready <= 15
    assert found[-1] == pytest.approx(chance * 4.0)


def test_after_errors_a_rise_is_not_believed():
    """Forecasts of 4 while the load is anything from 1 to 7 in turns of a lead; then a rise of 2 is expected."""
    came, measured = ([1.0] * 5 + [7.0] * 5) * 10 + [4.0] * 5, Ewma(50.0)
    for step, load in enumerate(came):
        measured.observe(10.0 * step + 5, load)
    rising = Known(lambda time: 4.0 if time < 1070 else 6.0)
    assert demands(rising, came)[-1] == pytest.approx((1 + 0.5 * STANDARD_ERROR) * measured.forecast(0.0))
    rising = Known(lambda time: 4.0 if time < 1070 else 6.0)
    assert demands(rising, [4.0] * 105)[-1] == pytest.approx(6.0)


def test_a_flat_predictor_asks_for_what_it_measures():
    for name, flat in (("ewma", True), ("last_value", True), ("holt_winters", False), ("ar", False)):
        assert made(name).flat is flat
    series = Series(LastValue(), 10.0, 50.0, Score())
    for step in range(20):
        series.note(step)
        series.measure(10.0 * (step + 1))
        assert series.demand == series.peak == step / 10


def test_a_mean_is_over_as_long_as_it_takes_to_hold_enough_arrivals():
    """One arrival a minute: of memories of 1, 2, 4, 8, 16, ... min that of 8 is the first to hold eight."""
    def mean(every):
        recent, long = Recent(60.0), Ewma(480.0)
        for minute in range(200):
            value = float(minute % 20 == 0)
            recent.observe(60.0 * minute, value, 2 * value, every)
            long.observe(60.0 * minute, value)
        return recent.mean, long.forecast(0.0)

    (value, expected, error), long = mean(1.0)
    assert error == pytest.approx(1 / math.sqrt(2 / (1 - math.exp(-1 / 8))), rel=1e-6)
    assert value == pytest.approx(long)
    assert expected == pytest.approx(2 * long)
    (busy, *_), _ = mean(float(ENOUGH))
    assert busy < 1e-6  # the last arrivals of work were 19 min ago
    (rare, *_), _ = mean(1e-3)
    assert 0 < rare < 0.1  # the longest there is


# Weeks, and weights that are per time ---------------------------------------------------------------------------


def office_load(hour, noise=None):
    """100 on weekdays and 20 at weekends, and a daily wave of 15."""
    load = (100 if int(hour // 24) % 7 < 5 else 20) + 15 * math.sin(2 * math.pi * (hour % 24) / 24)
    return load if noise is None else float(noise.poisson(load))


def an_hour_ahead(choice, step, noise=None):
    """Errors over the fourth week."""
    times = np.arange(0, 4 * WEEK, step)
    values = [office_load(time / 3600, noise) for time in times.tolist()]
    return backtest(made(choice), times, values, steps=round(3600 / step), skip=len(times) * 3 // 4)


@pytest.mark.parametrize("step", [pytest.param(60.0, marks=pytest.mark.slow), 3600.0])
def test_a_week_is_learnt_with_the_parameters_that_are_the_default(step):
    week, day, last = (
        an_hour_ahead(choice, step)
        for choice in ({"name": "holt_winters", "week": "168 h"}, "holt_winters", "last_value")
    )
    assert week.mape < 0.005 and week.mape < day.mape / 5 and week.mape < last.mape / 5
    assert week.pinball < day.pinball / 5 and week.pinball < last.pinball / 5


@pytest.mark.slow
def test_a_week_is_worth_it_with_noise_too():
    """Poisson noise, every 10 minutes; paired over six series at 99 %."""
    better = {"day": [], "last": []}
    for seed in range(6):
        week, day, last = (
            an_hour_ahead(choice, 600.0, np.random.default_rng(seed)).pinball
            for choice in ({"name": "holt_winters", "week": "168 h"}, "holt_winters", "last_value")
        )
        better["day"].append(day / week - 1)
        better["last"].append(last / week - 1)
    for gains in better.values():
        assert student_interval(np.array(gains), 0.99).low > 0.1


def test_the_first_week_sets_level_day_and_week():
    """Exactly: the load is their sum, and a week that began on a Wednesday morning is as good as any."""
    first = 2 * DAY + 9 * 3600
    times = np.arange(first, first + WEEK + 1, 900.0)
    predictor = HoltWinters(week=WEEK)
    for time in times.tolist():
        predictor.observe(time, (100 if int(time // DAY) % 7 < 5 else 20) + 30 * (time % DAY >= DAY / 2))
    assert predictor.level == pytest.approx((5 * 100 + 2 * 20) / 7 + 15)
    ahead = np.arange(900.0, WEEK, 900.0)
    expected = [
        (100 if int((times[-1] + h) // DAY) % 7 < 5 else 20) + 30 * ((times[-1] + h) % DAY >= DAY / 2) for h in ahead
    ]
    assert [predictor.forecast(h) for h in ahead.tolist()] == pytest.approx(expected)


@pytest.mark.parametrize("step", [5.0, 25.0, 50.0, 100.0])
def test_weights_are_those_of_a_slot_however_often_is_measured(step):
    """After a season of 0 the load is 8: a slot later the level has gone by alpha, whatever the interval."""
    predictor = HoltWinters(season=1000.0, slot=100.0, alpha=0.4, gamma=0.0)
    for time in np.arange(0.0, 1000.0, step).tolist():
        predictor.observe(time, 0.0)
    for time in np.arange(1000.0, 1100.0, step).tolist():
        predictor.observe(time, 8.0)
    assert predictor.level == pytest.approx(0.4 * 8)
    day = HoltWinters(season=1000.0, slot=100.0, alpha=0.0, gamma=0.4)
    for time in np.arange(0.0, 1100.0, step).tolist():
        day.observe(time, 8.0 * (time >= 1000))
    assert day.day[0] == pytest.approx(0.4 * 8)


# What means nothing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PREDICTORS)
@pytest.mark.parametrize("time", [-1e-3, -1e6, -1e300])
def test_nothing_is_observed_before_the_start(name, time):
    with pytest.raises(UsageError, match="a predictor must observe at a time of at least 0; got"):
        PREDICTORS[name](**SMALL[name]).observe(time, 1.0)


def test_a_memory_lasts():
    with pytest.raises(ValueError, match="memory must be above 0"):
        Ewma(0.0)
