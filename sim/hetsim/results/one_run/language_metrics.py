"""Metrics of language models: token gaps, KV memory, steps, prefixes, preemptions.

They are undefined (NaN) in runs without language models, or without the measured events.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetsim.model.record import ABORTED, COMPLETED, PREEMPTIONS
from hetsim.results.declared import metric
from hetsim.results.one_run.measured import QUANTILES, Measured, Metric
from hetsim.results.one_run.rows import TableRows
from hetsim.results.one_run.steps import weighted_quantile
from hetsim.results.one_run.task_metrics import STATISTICS, declare_statistics

declare_statistics(
    "ttft", "time from arrival to the first token", "s", every="tokens", weight="_first_tokens", module=__name__,
    sets={"mean": ("page_cards:30",), "p95": ("page_cards:40",)},
)  # fmt: skip
declare_statistics(
    "tpot", "time per further token", "s", every="tokens", weight="_further_tokens", module=__name__,
    sets={"mean": ("page_cards:50",)},
)  # fmt: skip


@metric(unit="1/s", better="more", of="run", sets=("tokens",))
def output_rate(run: Measured) -> float:
    """Output tokens of the requests that complete in the window, per second of it."""
    frame = run.result.tasks
    if "output_tokens" not in frame or run.duration <= 0:
        return math.nan
    finish = frame["finish"].to_numpy()
    inside = (frame["status"].cat.codes.to_numpy() == COMPLETED) & (finish >= run.low) & (finish <= run.high)
    return float(np.nansum(frame["output_tokens"].to_numpy()[inside].astype(float)) / run.duration)


@metric(unit="tasks", better="less", sets=("tokens",), hide_if_zero=True, title="aborted")
def aborted_count(run: Measured) -> float:
    """Tasks in the window that a client aborted (`clients:` with a timeout)."""
    return run.count(ABORTED)


@metric(unit="share", better="less", sets=("tokens", "groups", "group_rows"), hide_if_zero=True, title="cold starts")
def cold_start_fraction(run: Measured) -> float:
    """Share of requests to replicas that caused a replica to load its model."""
    record: Any = run.result.record
    cold = np.zeros(len(record.status)) if record.cold_start is None else record.cold_start
    shapes = [one.shape.index for one in (*record.input.services, *record.input.language) if one.kinds]
    served, cold = (run.chosen(TableRows(record)(one)) for one in (np.isin(record.input.tasks.shape, shapes), cold))
    return float(cold[served].mean()) if served.any() else math.nan


def _of_gaps(label: str) -> Metric:
    def value(run: Measured) -> float:
        gaps, weights = run.result.token_gaps
        if not len(gaps):
            return math.nan
        if label in QUANTILES:
            return weighted_quantile(gaps, weights, QUANTILES[label])
        return float(gaps.max()) if label == "max" else float((gaps * weights).sum() / weights.sum())

    return value


for _label in STATISTICS:
    _what = {"mean": "Mean", "max": "Maximum"}.get(_label, f"{_label[1:]}th percentile of the")
    _gaps = _of_gaps(_label)
    _gaps.__doc__ = f"{_what} time between two tokens of an answer, over all tokens generated in the window."
    metric(unit="s", better="less", of="run", sets=("tokens",), congested=True, name=f"itl_{_label}")(_gaps)


@metric(unit="share", better="neither", of="run", sets=("tokens",), title="KV blocks used")
def kv_used_mean(run: Measured) -> float:
    """Mean share of a replica's KV blocks in use, while the replica computes."""
    rows = run.result.steps
    if not len(rows):
        return math.nan
    start, end, first, last, blocks = (rows[name].to_numpy() for name in ("start", "end", "kv_used_start", "kv_used",
                                                                          "kv_blocks"))  # fmt: skip
    seconds = np.clip(np.minimum(end, run.high) - np.maximum(start, run.low), 0.0, None)
    limited = ~np.isnan(blocks)
    total = (blocks * seconds)[limited].sum()
    return float((((first + last) / 2) * seconds)[limited].sum() / total) if total > 0 else math.nan


@metric(unit="share", better="neither", of="run", sets=("tokens",), title="KV blocks used, maximum")
def kv_used_max(run: Measured) -> float:
    """Maximum share of a replica's KV blocks in use during the window, at most 1."""
    rows = run.result.steps
    if not len(rows):
        return math.nan
    inside = (rows["end"] > run.low) & (rows["start"] < run.high)
    shares = (rows["kv_used"] / rows["kv_blocks"])[inside].dropna()
    return float(shares.max()) if len(shares) else math.nan


@metric(unit="tokens", better="neither", of="run", sets=("tokens",))
def tokens_per_step(run: Measured) -> float:
    """Mean number of tokens (decoded or prefilled) per step that ends in the window."""
    rows = run.result.steps
    if not len(rows):
        return math.nan
    inside = ((rows["end"] > run.low) & (rows["end"] <= run.high)).to_numpy()
    steps = rows["steps"].to_numpy()[inside].sum()
    return float(rows["tokens"].to_numpy()[inside].sum() / steps) if steps else math.nan


@metric(unit="tokens", better="neither", sets=("tokens",))
def prefix_tokens_requested(run: Measured) -> float:
    """Prompt tokens looked up in the prefix cache when requests first join a batch."""
    return _prefixes(run)[0]


@metric(unit="tokens", better="more", sets=("tokens",))
def prefix_tokens_served(run: Measured) -> float:
    """Prompt tokens found in the prefix cache when requests first join a batch."""
    return _prefixes(run)[1]


@metric(unit="share", better="more", sets=("tokens",))
def prefix_hit_rate(run: Measured) -> float:
    """Prompt tokens found in the prefix cache / prompt tokens looked up."""
    requested, served = _prefixes(run)
    return served / requested if requested else math.nan


def _prefixes(run: Measured) -> tuple[float, float]:
    if "cached_tokens" not in run.result.tasks:
        return math.nan, math.nan
    cached, prompt = (run.column(name).astype(float) for name in ("cached_tokens", "prompt_tokens"))
    looked = ~np.isnan(cached)
    return float(prompt[looked].sum()), float(cached[looked].sum())


def _by_kind(column: str) -> Metric:
    return lambda run: float(run.column(column).sum()) if column in run.result.tasks else math.nan


_MEANINGS = (
    "were preempted and recomputed", "were preempted and copied to the host", "lost their replica to a failure",
)  # fmt: skip
for _kind, _meaning in zip(PREEMPTIONS, _MEANINGS, strict=True):
    _count = _by_kind(f"preemptions_{_kind}")
    _count.__doc__ = f"Number of times that requests to language models {_meaning}."
    metric(unit="count", better="neither", sets=("tokens",), hide_if_zero=True, name=f"preemptions_{_kind}")(_count)


def _share_of(name: str, among: Sequence[str]) -> Metric:
    def value(run: Measured) -> float:
        stats = run.result.record.stats
        return stats.get(name, 0.0) / total if (total := sum(stats.get(one, 0.0) for one in among)) else math.nan

    return value


_LOADS = ("loads_gpu", "loads_host", "loads_disk", "loads_store")
_SHARES = {
    "starts_warm": "starts of replicas on warm nodes", "loads_gpu": "loads of models from GPUs of their node",
    "loads_host": "loads of models from host memory", "loads_disk": "loads of models from a disk",
    "loads_store": "loads of models from a store",
}  # fmt: skip
for _name, _what in _SHARES.items():
    _share = _share_of(_name, _LOADS if _name in _LOADS else ("starts_warm", "starts_cold"))
    _share.__doc__ = f"Share of {_what} in the whole run, of services with `start`."
    metric(unit="share", better="neither", of="run", sets=("tokens",), hide_if_zero=True, name=_name)(_share)
