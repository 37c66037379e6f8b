"""Contract checks for authors of predictors."""

import math
from collections.abc import Callable

import numpy as np

from hetsim.policy import Predictor


def check_predictor(make: Callable[[], Predictor]) -> None:
    """Check a predictor: 0 without data, then finite and repeatable values.

    Parameters: make: returns a new predictor.
    Raises: AssertionError: a rule is broken.
    """
    one, two = make(), make()
    one.truth = two.truth = lambda time: 5.0
    assert one.forecast(60.0) == 0, "a predictor forecasts 0 before anything was observed"
    for step, value in enumerate([0.0, 1e6, *np.random.default_rng(1).poisson(20, 200).tolist()]):
        one.observe(60.0 * step, value)
        first, again = ([one.forecast(horizon) for horizon in (0.0, 60.0, 7200.0)] for _ in range(2))
        two.observe(60.0 * step, value)
        assert all(map(math.isfinite, first)), f"forecasts {first} after {step + 1} observations are not finite"
        assert first == again, "a forecast changes later forecasts"
        assert first == [two.forecast(horizon) for horizon in (0.0, 60.0, 7200.0)], "two equal predictors differ"
