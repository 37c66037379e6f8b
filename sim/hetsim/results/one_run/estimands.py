"""The parameter of an interval over replications, and its contributions.

A mean over customers, or a share of them, is the ratio of two expectations: of the sum over a replication's customers,
and of their number.  The mean of the replications' own means is another number where busy replications have more
customers, as under bursty arrivals: a replication with few customers would count as much as one with many.  So the
estimate is the sum over all replications / their customers, freed from its bias by the jackknife (Quenouille 1956;
Tukey 1958): of n replications the i-th contributes n × ratio - (n - 1) × ratio without it.  These contributions are
what means, intervals, paired differences, stopping rules and selections are made from, wherever replications are.

Everything else (percentiles, maxima, time averages, counts, energy, cost) is for the expectation of a replication's
value, and there a replication contributes its value.
"""

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from hetsim.model.record import COMPLETED, REJECTED
from hetsim.results.declared import declaration
from hetsim.results.one_run.measured import Measured
from hetsim.results.one_run.task_metrics import deadline_after_end


def _judged_admitted(run: Measured) -> float:
    return int((run.series("met_deadline").notna().to_numpy() & (run.status != REJECTED)).sum())


def _known(run: Measured, column: str) -> int:
    return len(run.known_values(column)) if column in run.result.tasks else 0


WEIGHTS: dict[str, Callable[[Measured], float]] = {
    "_completed": lambda run: run.count(COMPLETED),
    "_started": lambda run: len(run.known_values("wait")),
    "_first_tokens": lambda run: _known(run, "ttft"),
    "_further_tokens": lambda run: _known(run, "tpot"),
    "_arrived": lambda run: len(run.status),
    "_judged": lambda run: int(run.series("met_deadline").notna().sum()),
    "_judged_admitted": _judged_admitted,
    "_all_but_later": lambda run: len(run.status) - deadline_after_end(run),
}
"""Numbers of customers over which a run's means and shares are taken; kept with the metrics, and none themselves."""


def weight_of(metric: str) -> str | None:
    """The number that weights a metric's mean; None if of a whole replication."""
    declared = declaration(metric)
    return None if declared is None else declared.weight


def weights(run: Measured, names: Iterable[str]) -> dict[str, float]:
    """The weights that these metrics of a run need."""
    needed = {weight_of(name) for name in names}
    return {key: float(count(run)) for key, count in WEIGHTS.items() if key in needed}


def contributions(frame: pd.DataFrame, metric: str) -> pd.Series:
    """Contributions of replications to a metric's estimate, or why missing.

    `frame` has a row a replication, and columns for the metric and its weight; without the weight it is taken for a
    value of the whole replication.
    """
    values, key = frame[metric], weight_of(metric)
    if key is None or key not in frame:
        return values
    weighted = weighted_contributions(values.to_numpy(dtype=np.float64), frame[key].to_numpy(dtype=np.float64))
    return pd.Series(weighted, index=values.index, name=metric)


def weighted_contributions(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """`contributions` for a mean over customers, from values and counts."""
    defined = ~np.isnan(values) & (counts > 0)
    adjusted = values.copy()
    adjusted[defined] = ratio_contributions(values[defined], counts[defined])
    return adjusted


def ratio_contributions(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Jackknife contributions to Σ counts × values / Σ counts, last axis.

    The values themselves, to the last bit, where all counts are equal and where there is no such ratio.
    """
    number = values.shape[-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        sums = values * counts
        pooled = sums.sum(axis=-1, keepdims=True) / counts.sum(axis=-1, keepdims=True)
        others = (sums.sum(axis=-1, keepdims=True) - sums) / (counts.sum(axis=-1, keepdims=True) - counts)
        pseudo_values = number * pooled - (number - 1) * others
    plain = (counts == counts[..., :1]).all(axis=-1) | (values == values[..., :1]).all(axis=-1)
    plain |= ~np.isfinite(pseudo_values).all(axis=-1)
    return np.where(plain[..., None], values, pseudo_values)
