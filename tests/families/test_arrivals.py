"""Arrival processes: their rates, their variability, their limits, and their errors."""

from __future__ import annotations

import importlib
import math
import pickle

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from hetsim.errors import ScenarioError
from hetsim.workload.arrivals import BUILTIN, ArrivalProcess, Arrivals

READ = TypeAdapter(Arrivals)

ENDLESS = [
    {"process": "deterministic", "interval": "30 ms"},
    {"process": "poisson", "rate": "40/s"},
    {"process": "renewal", "rate": "40/s", "scv": 0.25},
    {"process": "renewal", "rate": "40/s", "scv": 4},
    {"process": "mmpp", "rates": ["10/s", 0, "100/s"], "holding": ["1 s", "2 s", "1 s"]},
    {"process": "mmpp", "rates": ["10/s", "100/s"], "switching": [[0, "1/s"], ["2/s", 0]]},
    {"process": "piecewise_poisson", "rate": [["0 s", "40/s"], ["10 s", 0]], "period": "12 s"},
    {"process": "piecewise_poisson", "between": "linear", "rate": [["0 s", 0], ["5 s", "60/s"]], "period": "12 s"},
    {"process": "diurnal", "mean": "20/s", "amplitude": 0.6, "period": "60 s"},
    {"process": "burst", "every": "10 s", "size": 50, "over": "25 s"},
]


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def read(process: str, **parameters) -> ArrivalProcess:
    return READ.validate_python({"process": process, **parameters})


def message(**case) -> str:
    with pytest.raises(ValidationError) as caught:
        READ.validate_python(case)
    return str(caught.value)


@pytest.mark.parametrize("case", ENDLESS, ids=str)
def test_limits_cut_one_and_the_same_sequence(case):
    """Arrivals by count and by time begin alike; the first limit wins; one at exactly `until` is left out."""
    process = READ.validate_python(case)
    long = process.times(rng(), count=20_000)
    assert len(long) == 20_000
    assert (np.diff(long) >= 0).all()
    assert np.array_equal(process.times(rng(), count=57), long[:57])
    until = float(long[9_000])
    assert np.array_equal(process.times(rng(), until=until), long[long < until])
    assert len(process.times(rng(), until=until, count=5)) == 5
    assert len(process.times(rng(), until=0.0)) == 0


@pytest.mark.parametrize("case", ENDLESS, ids=str)
def test_endless_arrivals_need_a_limit(case):
    with pytest.raises(ValueError, match="never end; give until or count"):
        READ.validate_python(case).times(rng())


@pytest.mark.parametrize("case", ENDLESS, ids=str)
def test_a_pickled_process_gives_the_same_arrivals(case):
    process = READ.validate_python(case)
    copy = pickle.loads(pickle.dumps(process))
    assert copy == process
    assert np.array_equal(copy.times(rng(), count=10), process.times(rng(), count=10))


def test_deterministic_does_not_drift():
    times = read("deterministic", interval="100 ms", first="1 s").times(rng(), count=100_001)
    assert (times[0], times[-1]) == (1.0, 1.0 + 100_000 * 0.1)


def test_poisson_gaps_are_exponential():
    times = read("poisson", rate="40/s").times(rng(), count=20_000)
    assert stats.kstest(np.diff(times, prepend=0), stats.expon(scale=1 / 40).cdf).pvalue > 1e-3


def test_renewal_below_one_has_gamma_gaps():
    """Shape 1 / scv, scale scv / rate."""
    times = read("renewal", rate="10/s", scv=0.25).times(rng(), count=20_000)
    assert stats.kstest(np.diff(times, prepend=0), stats.gamma(4, scale=0.025).cdf).pvalue > 1e-3


def test_renewal_above_one_has_balanced_hyperexponential_gaps():
    """1 − F(x) = p exp(−2pλx) + (1 − p) exp(−2(1 − p)λx), p = (1 + √((c² − 1)/(c² + 1))) / 2."""
    times = read("renewal", rate="10/s", scv=4).times(rng(), count=20_000)
    p = (1 + math.sqrt(3 / 5)) / 2

    def below(x):
        return 1 - p * np.exp(-20 * p * x) - (1 - p) * np.exp(-20 * (1 - p) * x)

    assert stats.kstest(np.diff(times, prepend=0), below).pvalue > 1e-3


def test_hyperexponential_renewal_below_one_is_an_error():
    text = message(process="renewal", rate="1/s", scv=0.5, family="hyperexponential")
    assert "scv must be above 1 for hyperexponential; got" in text


def test_mmpp_mean_rate_is_that_of_the_stationary_chain():
    """Out of state 1 at 1/s and back at 2/s: π = (2/3, 1/3), so 10 · 2/3 + 100 · 1/3 = 40."""
    process = read("mmpp", rates=["10/s", "100/s"], switching=[[0, "1/s"], ["2/s", 0]])
    assert process.rate_mean == pytest.approx(40)
    counts = [len(process.times(rng(seed), until=100.0)) for seed in range(40)]
    assert abs(np.mean(counts) - 4_000) < 5 * np.std(counts) / math.sqrt(len(counts))


def test_mmpp_counts_are_overdispersed_as_the_theory_says():
    """Two states: Var N / E N → 1 + 2 σ₁σ₂ (λ₁ − λ₂)² / ((σ₁ + σ₂)² (λ₁σ₂ + λ₂σ₁)) for long intervals."""
    process = read("mmpp", rates=["10/s", "100/s"], switching=[[0, "1/s"], ["2/s", 0]])
    times = process.times(rng(), until=40_000.0)
    counts = np.histogram(times, bins=np.arange(0, 40_001, 20))[0]
    limit = 1 + 2 * 1 * 2 * 90**2 / (3**2 * (10 * 2 + 100 * 1))
    # Over 20 s the limit is approached to within 1 / (3 · 20), and 2,000 intervals give it to about 3 %.
    assert counts.var() / counts.mean() == pytest.approx(limit, rel=0.15)


def test_mmpp_holding_times_make_a_circle():
    process = read("mmpp", rates=["6/s", "60/s"], holding=["5 s", "1 s"])
    assert process.rate_mean == pytest.approx((6 * 5 + 60 * 1) / 6)


def test_mmpp_state_that_is_never_reached_is_named():
    text = message(process="mmpp", rates=["1/s", "2/s"], switching=[[0, 0], ["1/s", 0]])
    assert "state 2 can never be reached from state 1" in text


def test_piecewise_counts_are_poisson_piece_by_piece():
    """Means 4,000, 2,400 and 0; five standard deviations."""
    process = read("piecewise_poisson", rate=[["0 s", "400/s"], ["10 s", "800/s"], ["13 s", 0]])
    times = process.times(rng())
    counts = np.histogram(times, bins=[0, 10, 13, 1e9])[0]
    for count, mean in zip(counts, [4_000, 2_400, 0], strict=True):
        assert abs(count - mean) <= 5 * math.sqrt(mean)


def test_piecewise_repeats_with_its_period():
    process = read("piecewise_poisson", rate=[["0 s", "10/s"], ["1 s", "90/s"]], period="2 s")
    assert process.rate_mean == pytest.approx(50)
    times = process.times(rng(), until=400.0)
    second_half = (times % 2 >= 1).mean()
    assert abs(second_half - 0.9) < 5 * math.sqrt(0.9 * 0.1 / len(times))


@pytest.mark.parametrize("period", [None, "12 s"])
def test_linear_rates_are_a_poisson_process_in_the_time_of_their_integral(period):
    """Through the integral of the rate, found here by fine steps, arrivals become those of rate 1."""
    rate = [["0 s", "10/s"], ["4 s", "90/s"], ["5 s", "90/s"], ["9 s", 0], ["10 s", "40/s"]]
    process = read("piecewise_poisson", between="linear", rate=rate, **({} if period is None else {"period": period}))
    times = process.times(rng(), until=240.0)
    grid = np.linspace(0, 240, 480_001)
    corners = [(0, 10), (4, 90), (5, 90), (9, 0), (10, 40), *([] if period is None else [(12, 10)])]
    heights = np.interp(grid if period is None else grid % 12, *zip(*corners, strict=True))
    area = np.concatenate([[0.0], np.cumsum((heights[1:] + heights[:-1]) / 2 * np.diff(grid))])
    gaps = np.diff(np.interp(times, grid, area), prepend=0.0)
    assert stats.kstest(gaps, "expon").pvalue > 0.01
    assert len(times) == pytest.approx(area[-1], abs=4 * math.sqrt(area[-1]))
    assert process.events(240.0) == pytest.approx(area[-1], rel=1e-4)
    assert [process.rate_at(time) for time in grid[:30_000:997]] == pytest.approx(heights[:30_000:997].tolist())


def test_a_line_between_equal_rates_is_a_constant_rate():
    flat = read("piecewise_poisson", between="linear", rate=[["0 s", "40/s"], ["3 s", "40/s"], ["7 s", "40/s"]])
    assert np.allclose(flat.times(rng(), count=5000), read("poisson", rate="40/s").times(rng(), count=5000), rtol=1e-12)


def test_clients_change_when_the_line_reaches_a_whole_number():
    changes = [["0 s", 3], ["10 s", 6], ["20 s", 6], ["23 s", 3]]
    ramp = read("closed", clients=changes, between="linear", think="1 s").changes
    for time, clients in [(time, clients) for time, clients in ramp if time > 0]:
        assert np.interp(time, [0, 10, 20, 23], [3, 6, 6, 3]) == pytest.approx(clients, abs=1e-9)
    assert [clients for _, clients in ramp] == [3, 4, 5, 6, 6, 5, 4, 3]
    assert read("closed", clients=changes, think="1 s").changes == [(0.0, 3), (10.0, 6), (20.0, 6), (23.0, 3)]


def test_diurnal_peak_and_trough():
    """Around the peak the rate is mean (1 + a · sinc), around the trough mean (1 − a · sinc)."""
    process = read("diurnal", mean="50/s", amplitude="80%", period="100 s")
    times = process.times(rng(), until=10_000.0) % 100
    width = 10.0
    mean_sine = math.sin(math.pi * width / 100) / (math.pi * width / 100)
    for center, sign in ((25, 1), (75, -1)):
        expected = 100 * width * 50 * (1 + sign * 0.8 * mean_sine)
        assert abs((np.abs(times - center) < width / 2).sum() - expected) < 5 * math.sqrt(expected)


def test_diurnal_phase_shifts_the_peak():
    process = read("diurnal", mean="1/s", amplitude=0.5, period="24 h", phase="8 h")
    assert process.rate_at(14 * 3600) == pytest.approx(1.5)


def test_burst_comes_at_once_or_spread():
    together = read("burst", every="10 s", size=3).times(rng(), until=30.0)
    assert together.tolist() == [0.0] * 3 + [10.0] * 3 + [20.0] * 3
    spread = read("burst", at=["5 s", "1 s"], size=100, over="2 s").times(rng())
    assert ((spread[:100] >= 1) & (spread[:100] < 3)).all()
    assert ((spread[100:] >= 5) & (spread[100:] < 7)).all()


@pytest.mark.slow
def test_burst_keeps_the_mean_of_a_drawn_size():
    """Sizes uniform in [0, 1] are 0 or 1, with mean 1/2."""
    process = read("burst", every="1 s", size={"distribution": "uniform", "low": 0, "high": 1})
    count = len(process.times(rng(), until=10_000.0))
    assert process.rate_mean == 0.5
    assert abs(count - 5_000) < 5 * math.sqrt(10_000 / 4)


def test_all_at_once():
    assert read("all_at_once", count=3, at="2 s").times(rng()).tolist() == [2.0, 2.0, 2.0]


def test_closed_gives_one_think_time_a_client():
    process = read("closed", clients=4, think={"distribution": "exponential", "mean": "2 s"})
    assert process.closed
    first = process.times(rng())
    assert np.array_equal(first, np.sort(process.think.sample(rng(), 4)))


def test_file_is_sorted_and_converted(tmp_path):
    (tmp_path / "log.csv").write_text("when,who\n3,a\n1,b\n20,c\n")
    process = READ.validate_python(
        {"process": "file", "path": "log.csv", "column": "when", "unit": "ms"}, context={"base": tmp_path}
    )
    assert process.times(rng()).tolist() == [0.001, 0.003, 0.02]
    assert process.times(rng(), until=0.02).tolist() == [0.001, 0.003]


def test_file_may_be_parquet(tmp_path):
    import pandas as pd

    pd.DataFrame({"arrival": [1.0, 2.5]}).to_parquet(tmp_path / "log.parquet")
    process = read("file", path=str(tmp_path / "log.parquet"))
    assert process.times(rng(), count=1).tolist() == [1.0]


def test_bad_cell_of_a_file_is_named(tmp_path):
    (tmp_path / "log.csv").write_text("arrival\n1\nsoon\n")
    with pytest.raises(ScenarioError, match=r'log.csv:3: column "arrival": "soon" is not a number'):
        read("file", path=str(tmp_path / "log.csv")).times(rng())


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ({"process": "poisson", "rate": 0}, "rate must be above 0"),
        ({"process": "poisson", "rate": 400}, '"400" has no unit'),
        ({"process": "deterministic"}, "deterministic arrivals need exactly one of interval and rate"),
        ({"process": "mmpp", "rates": ["1/s", "2/s"]}, "mmpp needs exactly one of switching and holding"),
        ({"process": "piecewise_poisson", "rate": [["1 s", "2/s"]]}, "must start at 0 s"),
        ({"process": "piecewise_poisson", "rate": [[0, "2/s"], [0, "3/s"]]}, "must increase"),
        ({"process": "diurnal", "mean": "1/s", "amplitude": "150%"}, "between 0 and 1"),
        ({"process": "burst", "size": 3}, "burst arrivals need exactly one of every and at"),
        ({"process": "closed", "clients": 0, "think": "1 s"}, "greater than or equal to 1"),
        ({"process": "closed", "clients": [["0 s", 0]], "think": "1 s"}, "greater than or equal to 1"),
        ({"process": "closed", "clients": [["1 s", 2]], "think": "1 s"}, "must start at 0 s"),
    ],
    ids=str,
)
def test_bad_parameters_get_a_sentence(case, sentence):
    assert sentence in message(**case)


def test_unknown_process_gets_a_suggestion():
    assert 'unknown arrival process "poison"; did you mean "poisson"?' in message(
        process="poison", rate="1/s"
    )


def test_every_registered_name_is_that_of_its_process():
    for name, reference in BUILTIN.items():
        module, attribute = reference.split(":")
        kind = getattr(importlib.import_module(module), attribute)
        assert issubclass(kind, ArrivalProcess)
        assert kind.model_fields["process"].annotation.__args__ == (name,)
