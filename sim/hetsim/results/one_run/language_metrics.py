"""Metrics of language models beyond those of their tasks: gaps between tokens, KV memory, steps, prefixes, preemptions.

Undefined (NaN) in runs without language models, or without what they measure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sim.model.record import ABORTED, PREEMPTIONS
from sim.results.one_run.steps import weighted_quantile

if TYPE_CHECKING:
    from sim.results.one_run.measured import Measured, Metric

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def aborted(run: Measured) -> float:
    """Tasks of the window that their clients aborted, running or not (`timeout` of a language model)."""
    return run.count(ABORTED)


def kv_used_mean(run: Measured) -> float:
    """Share of a replica's KV blocks that requests hold while it computes, mean over that time in the window."""
    rows = _rows(run)
    if rows is None:
        return math.nan
    start, end, first, last, blocks = (rows[name].to_numpy() for name in ("start", "end", "kv_used_start", "kv_used",
                                                                          "kv_blocks"))  # fmt: skip
    seconds = np.clip(np.minimum(end, run.high) - np.maximum(start, run.low), 0.0, None)
    limited = ~np.isnan(blocks)
    whole = (blocks * seconds)[limited].sum()
    return float((((first + last) / 2) * seconds)[limited].sum() / whole) if whole > 0 else math.nan


def kv_used_max(run: Measured) -> float:
    """Largest share of a replica's KV blocks that requests held at a time in the window; never above 1."""
    rows = _rows(run)
    if rows is None:
        return math.nan
    inside = (rows["end"] > run.low) & (rows["start"] < run.high)
    shares = (rows["kv_used"] / rows["kv_blocks"])[inside].dropna()
    return float(shares.max()) if len(shares) else math.nan


def tokens_per_step(run: Measured) -> float:
    """Tokens that a step decodes or reads, mean over the steps that end in the window."""
    rows = _rows(run)
    if rows is None:
        return math.nan
    inside = ((rows["end"] > run.low) & (rows["end"] <= run.high)).to_numpy()
    steps = rows["steps"].to_numpy()[inside].sum()
    return float(rows["tokens"].to_numpy()[inside].sum() / steps) if steps else math.nan


def prefix_tokens_requested(run: Measured) -> float:
    """Prompt tokens that requests looked for in the prefix cache when they joined first."""
    return _prefixes(run)[0]


def prefix_tokens_served(run: Measured) -> float:
    """Of these, tokens that were there and need not be read."""
    return _prefixes(run)[1]


def prefix_hit_rate(run: Measured) -> float:
    """Tokens that the prefix cache served / tokens that were looked for."""
    requested, served = _prefixes(run)
    return served / requested if requested else math.nan


def _prefixes(run: Measured) -> tuple[float, float]:
    if "cached_tokens" not in run.result.tasks:
        return math.nan, math.nan
    cached, prompt = (run.column(name).astype(float) for name in ("cached_tokens", "prompt_tokens"))
    looked = ~np.isnan(cached)
    return float(prompt[looked].sum()), float(cached[looked].sum())


def _rows(run: Measured) -> pd.DataFrame | None:
    rows = run.result.steps
    return rows if len(rows) else None


def _of_gaps(name: str, share: float | None) -> Metric:
    def metric(run: Measured) -> float:
        gaps, weights = run.result.token_gaps
        if not len(gaps):
            return math.nan
        if share is not None:
            return weighted_quantile(gaps, weights, share)
        return float(gaps.max()) if name == "max" else float((gaps * weights).sum() / weights.sum())

    what = {"mean": "Mean", "max": "Greatest"}.get(name, f"{name[1:]}th percentile of the")
    metric.__doc__ = f"{what} time between two tokens of an answer, over all tokens that came in the window."
    return metric


def _by_kind(kind: str, meaning: str) -> Metric:
    def metric(run: Measured) -> float:
        column = f"preemptions_{kind}"
        return float(run.column(column).sum()) if column in run.result.tasks else math.nan

    metric.__doc__ = f"Times that requests to language models {meaning}."
    return metric


MEANINGS = ("gave way and were read again", "gave way and were copied to the host", "lost their replica to a failure")

OF_LANGUAGE: dict[str, Metric] = {
    "aborted": aborted,
    **{f"itl_{name}": _of_gaps(name, share)
       for name, share in (("mean", None), *QUANTILES.items(), ("max", None))},
    **{one.__name__: one for one in (kv_used_mean, kv_used_max, tokens_per_step, prefix_tokens_requested,
                                     prefix_tokens_served, prefix_hit_rate)},
    **{f"preemptions_{kind}": _by_kind(kind, meaning) for kind, meaning in zip(PREEMPTIONS, MEANINGS, strict=True)},
}  # fmt: skip
"""By name, with what their docstrings say."""

OF_THE_RUN = (*(f"itl_{name}" for name in ("mean", *QUANTILES, "max")), "kv_used_mean", "kv_used_max",
              "tokens_per_step")  # fmt: skip
"""Those that have no meaning for a group of tasks."""
