"""Workload prediction: small parts that learn from what came and say what comes.

A predictor of a series (a rate, a load) is told what was measured and asked what will be:

    observe(time, value)     the series had this value at this time; times ascend, about equally far apart
    forecast(horizon)        the value expected `horizon` seconds after the last observation
    own                      true if it forecasts by its own method by now, not by its stated fall-back

Every one answers from the first moment on with a finite number: 0 before anything was observed, and by its stated
fall-back until it has seen as much as its method needs.  `DurationHistory` predicts how long a job will take from
those that its user has run.  `prediction_error` says how far forecasts were from what came, `Score` does so in passing,
`backtest` for a series that is known as a whole.
A scenario names a predictor, `predictor: ewma`, or gives a mapping with its parameters,
`predictor: {name: holt_winters, season: 24 h}`.  They are a kind of policy, derived from `hetsim.policy.Predictor`:
`hetsim.register("mine", Mine, kind="predictor")` adds one.
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
