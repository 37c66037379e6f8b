"""Workload prediction: small predictors that learn from observations of a series.

A predictor of a series (a rate, a load) has two methods and a flag:

    observe(time, value)     the series had this value at this time; times ascend, about equally spaced
    forecast(horizon)        the value expected `horizon` seconds after the last observation
    own                      True once it forecasts by its own method, False while it uses its fallback

Every predictor returns a finite number at any time: 0 before any observation, and its documented fallback until it has
enough observations for its method.  `DurationHistory` predicts the duration of a job from earlier jobs of its user.
`prediction_error` measures forecast errors, `Score` does so incrementally, `backtest` for a complete series.
A scenario names a predictor, `predictor: ewma`, or gives a mapping with its parameters,
`predictor: {name: holt_winters, season: 24 h}`.  Predictors are a kind of policy, derived from
`hetsim.policy.Predictor`: `hetsim.register("mine", Mine, kind="predictor")` adds one.
"""

from hetsim_policies.prediction.durations import (
    DurationHistory,
    PredictionError,
    Score,
    backtest,
    error_notes,
    prediction_error,
)
from hetsim_policies.prediction.recent import ENOUGH, FadingSum, Recent
from hetsim_policies.prediction.series import Series

__all__ = [
    "ENOUGH", "DurationHistory", "FadingSum", "PredictionError",
    "Recent", "Score", "Series", "backtest", "prediction_error", "error_notes",
]  # fmt: skip
