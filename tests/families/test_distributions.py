"""Size distributions: exact moments, draws that follow them, and errors that say what is wrong."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from scipy import stats
from tiers import some

from hetsim.errors import ScenarioError
from hetsim.model.units import BytesPerSecond
from hetsim.workload.distributions import (
    BytesDistribution,
    NumberDistribution,
    TimeDistribution,
    distribution_of,
)
from hetsim.workload.families.columns import read_column

TIME = TypeAdapter(TimeDistribution)

ALL = {
    "constant": {"value": "5 s"},
    "uniform": {"low": "1 s", "high": "3 s"},
    "exponential": {"mean": "5 min"},
    "gamma": {"mean": "5 s", "cv": 0.5},
    "lognormal": {"mean": "30 s", "cv": 1.2},
    "weibull": {"mean": "5 s", "shape": 0.8},
    "pareto": {"low": "1 s", "high": "100 s", "shape": 1.5},
    "hyperexponential": {"mean": "5 s", "cv": 1.5},
    "empirical": {"values": ["1 s", "3 s", "10 s"], "weights": [1, 2, 1]},
    "scipy": {"name": "invgauss", "parameters": {"mu": 0.3}, "scale": "10 s"},
}
ALTERNATIVES = [
    {"distribution": "lognormal", "median": "5 s", "sigma": 0.5},
    {"distribution": "weibull", "scale": "5 s", "shape": 2},
    {"distribution": "pareto", "low": "1 s", "high": "50 s", "shape": 1},
    {"distribution": "pareto", "low": "1 s", "high": "50 s", "shape": 2},
    {
        "distribution": "hyperexponential",
        "branches": [{"weight": 1, "mean": "1 s"}, {"weight": 3, "mean": "9 s"}],
    },
    {"distribution": "scipy", "name": "norm", "scale": "2 s", "loc": "1 s", "low": 0},
    {"distribution": "scipy", "name": "poisson", "parameters": {"mu": 3}, "scale": "1 s"},
    {"distribution": "scipy", "name": "poisson", "parameters": {"mu": 3}, "scale": "1 s", "low": "1 s"},
]
CASES = [{"distribution": name, **parameters} for name, parameters in ALL.items()] + ALTERNATIVES


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def message(value, adapter=TIME) -> str:
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python(value)
    return str(caught.value)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws_have_the_stated_mean(case):
    """The mean of n draws has variance scv · mean² / n: five standard deviations."""
    law, n = TIME.validate_python(case), some(100_000, 25_000)
    error = law.sample(rng(), n).mean() - law.mean
    assert abs(error) <= 5 * law.mean * math.sqrt(law.scv / n) + 1e-12


@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws_have_the_stated_scv(case):
    """The variance of the sample variance is (m₄ − σ⁴) / n, with the fourth moment of the draws."""
    law, n = TIME.validate_python(case), some(200_000, 50_000)
    squares = (law.sample(rng(2), n) - law.mean) ** 2
    assert abs(squares.mean() - law.scv * law.mean**2) <= 6 * squares.std() / math.sqrt(n) + 1e-12


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_longer_sample_begins_like_a_shorter_one(case):
    law = TIME.validate_python(case)
    assert np.array_equal(law.sample(rng(), 200)[:100], law.sample(rng(), 100))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_pickled_distribution_equals_itself(case):
    law = TIME.validate_python(case)
    _ = law.mean
    copy = pickle.loads(pickle.dumps(law))
    assert copy == law
    assert np.array_equal(copy.sample(rng(), 10), law.sample(rng(), 10))


def test_weibull_follows_its_distribution_function():
    """P(X > x) = exp(−(x / scale)^shape)."""
    law = TIME.validate_python({"distribution": "weibull", "scale": "5 s", "shape": 0.8})
    assert stats.kstest(law.sample(rng(), 20_000), lambda x: -np.expm1(-((x / 5) ** 0.8))).pvalue > 1e-3


def test_bounded_pareto_follows_its_distribution_function():
    """F(x) = (1 − (low/x)^a) / (1 − (low/high)^a)."""
    law = TIME.validate_python({"distribution": "pareto", "low": "1 s", "high": "100 s", "shape": 1.5})

    def below(x):
        return (1 - x**-1.5) / (1 - 100**-1.5)

    assert stats.kstest(law.sample(rng(), 20_000), below).pvalue > 1e-3


def test_hyperexponential_means_are_balanced():
    """p₁ m₁ = p₂ m₂ and Σ 2 p m² / mean² − 1 = cv²."""
    law = TIME.validate_python({"distribution": "hyperexponential", "mean": "5 s", "cv": 2})
    shares, means = law._mixture
    assert shares[0] * means[0] == pytest.approx(shares[1] * means[1])
    assert 2 * (shares @ means**2) / 25 - 1 == pytest.approx(4)


def test_lognormal_by_median():
    """mean = median · exp(σ²/2), scv = exp(σ²) − 1."""
    law = TIME.validate_python({"distribution": "lognormal", "median": "2 s", "sigma": 1})
    assert (law.mean, law.scv) == (pytest.approx(2 * math.exp(0.5)), pytest.approx(math.e - 1))


def test_truncated_normal_has_the_moments_of_truncnorm():
    law = TIME.validate_python(
        {"distribution": "scipy", "name": "norm", "scale": "2 s", "loc": "1 s", "low": 0}
    )
    exact = stats.truncnorm(-0.5, math.inf, loc=1, scale=2)
    assert law.mean == pytest.approx(exact.mean(), rel=1e-8)
    assert law.scv == pytest.approx(exact.var() / exact.mean() ** 2, rel=1e-7)
    assert law.sample(rng(), 10_000).min() >= 0


def test_a_bare_quantity_is_constant():
    law = TIME.validate_python("5 min")
    assert law.sample(rng(), 2).tolist() == [300.0, 300.0]
    assert (law.mean, law.scv) == (300.0, 0.0)


def test_every_dimension_reads_its_own_unit():
    assert TypeAdapter(BytesDistribution).validate_python("2 GB").mean == 2e9
    assert TypeAdapter(NumberDistribution).validate_python(20).mean == 20
    speeds = TypeAdapter(distribution_of(BytesPerSecond))
    assert speeds.validate_python({"distribution": "exponential", "mean": "3 GB/s"}).mean == 3e9


def test_a_bare_number_needs_a_unit():
    assert '"5" has no unit; write for instance 5 s' in message(5)


def test_unknown_distribution_gets_a_suggestion():
    assert 'unknown distribution "exponental"; did you mean "exponential"?' in message(
        {"distribution": "exponental"}
    )


def test_unknown_scipy_name_gets_a_suggestion():
    assert 'no distribution "nrom"; did you mean "norm"?' in message(
        {"distribution": "scipy", "name": "nrom", "scale": "1 s"}
    )


def test_negative_scipy_distribution_is_refused_by_name():
    text = message({"distribution": "scipy", "name": "norm", "scale": "1 s", "loc": "9 s"})
    assert "scipy.stats.norm can draw negative values" in text
    assert "low: 0" in text


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ({"distribution": "gamma", "mean": "5 s", "cv": 0}, "cv must be above 0"),
        ({"distribution": "hyperexponential", "mean": "5 s", "cv": 1}, "cv must be above 1 for a "
                                                                       "hyperexponential distribution; got"),
        ({"distribution": "uniform", "low": "3 s", "high": "2 s"}, "high must be above low"),
        ({"distribution": "pareto", "low": 0, "high": "2 s", "shape": 1}, "low must be above 0"),
        ({"distribution": "exponential", "mean": "-5 s"}, "is negative"),
        ({"distribution": "lognormal", "mean": "5 s", "sigma": 1}, "either mean and cv, or median and sigma"),
        ({"distribution": "weibull", "shape": 1}, "either scale or mean"),
        ({"distribution": "empirical", "values": ["1 s"], "weights": [0]}, "at least one weight"),
        ({"distribution": "empirical", "values": ["1 s"], "weights": [1, 2]}, "needs 1 entries, 1 per value; got 2"),
        ({"distribution": "empirical", "values": ["1 s"], "weights": [-1]}, "is negative"),
        ({"distribution": "scipy", "name": "gamma", "scale": "1 s"}, "Value error, scipy.stats.gamma needs the "
                                                                     "parameters a"),
        ({"distribution": "exponential", "mean": "5 s", "cv": 2}, "Extra inputs"),
        ({}, "must name a distribution: one of"),
    ],
    ids=str,
)
def test_bad_parameters_get_a_sentence(case, sentence):
    assert sentence in message(case)


def test_empirical_file_has_a_unit(tmp_path):
    (tmp_path / "sizes.csv").write_text("id,ms\n1,500\n2,1500\n")
    case = {"distribution": "empirical", "path": "sizes.csv", "column": "ms", "unit": "ms"}
    law = TIME.validate_python(case, context={"base": tmp_path})
    assert law.mean == pytest.approx(1.0)
    assert set(law.sample(rng(), 50).tolist()) == {0.5, 1.5}


def test_bad_cell_is_named_with_file_line_and_column(tmp_path):
    file = tmp_path / "sizes.csv"
    file.write_text("id,seconds\n1,5\n2,abc\n\n4,-1\n")
    with pytest.raises(ScenarioError) as caught:
        read_column(file, "seconds")
    lines = [problem.line for problem in caught.value.problems]
    assert lines == [3, 4, 5]
    assert f'{file}:3: column "seconds": "abc" is not a number' in str(caught.value)


def test_missing_column_gets_a_suggestion(tmp_path):
    (tmp_path / "sizes.csv").write_text("id,seconds\n1,5\n")
    with pytest.raises(ScenarioError, match='no column "second"; did you mean "seconds"?'):
        read_column(tmp_path / "sizes.csv", "second")
