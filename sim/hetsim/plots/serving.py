"""Language models over time: KV memory, requests, steps, and token gaps."""

from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.plots.style import describe, stacked
from hetsim.results.colors import BLUE, GREEN, MUTED, VERMILION
from hetsim.results.formatting import SECONDS, fitting
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.steps import weighted_quantile
from hetsim.results.panels import Axis, Band, Line, Panel, Picture, Texts, averaged, time_axis

STRETCHES = 400  # number of equal intervals of time over which lines are means


def serving(result: Result) -> Picture:
    """Draw the replicas of language models: KV blocks, requests, tokens, gaps.

    Lines over time are means in intervals of 1/400 of the run, and over replicas; numbers of requests are summed over
    replicas.  The upper KV line is the maximum of any replica.  Without a memory limit there is no KV panel.

    Parameters: result: a run.
    Returns: the picture.
    Raises: UsageError: there are no language models.
    """
    rows = result.steps
    if not len(rows):
        raise UsageError("the run has no language model, so there are no steps to draw")
    edges = np.linspace(0.0, result.end or 1.0, STRETCHES + 1)
    limited = rows[rows["kv_blocks"].notna()]
    panels = [*([_memory(limited, edges)] if len(limited) else []), *_load(rows, edges)]
    for panel in panels:
        panel.x, panel.legend = time_axis(0.0, edges[-1], means=edges), "above"
    panels[0].title, below = describe(result), [[panel] for panel in _gaps(result)]
    return Picture([*stacked(panels, 9.5, 0).rows, *below], 9.5, 2.1 * (len(panels) + 1))


def _means(rows: pd.DataFrame, values: Any, edges: np.ndarray) -> np.ndarray:
    time = np.concatenate([rows["start"], rows["end"]])
    order = np.argsort(time, kind="stable")
    return averaged(time[order], np.concatenate([values, -values])[order].cumsum(), edges, edges[-1])


def _memory(rows: pd.DataFrame, edges: np.ndarray) -> Panel:
    names = ("kv_used_start", "kv_used", "kv_cached", "kv_blocks")
    first, last, cached, blocks = (rows[name].to_numpy(dtype=float) for name in names)
    middle, used = (edges[:-1] + edges[1:]) / 2, (first + last) / 2
    replicas = rows.drop_duplicates(["service", "replica"])["kv_blocks"].sum()
    mean, fullest = 100 * _means(rows, used, edges) / replicas, np.zeros(len(middle))
    for time, taken in ((rows["start"], first), (rows["end"], last)):
        place = np.clip(np.searchsorted(edges, time.to_numpy(), side="left") - 1, 0, len(middle) - 1)
        np.maximum.at(fullest, place, 100 * taken / blocks)
    marks: list[Any] = [
        Band(middle, 0.0, mean, alpha=0.25), Line(middle, mean, "used, mean"),
        Line(middle, np.maximum(fullest, mean), "used, maximum", VERMILION, width=0.9),
        Line([edges[0], edges[-1]], [100, 100], color=MUTED, dash=1, width=1),
    ]  # fmt: skip
    if cached.any():
        kept = 100 * _means(rows, used + cached, edges) / replicas
        marks.append(Line(middle, kept, "used or kept for prefixes", GREEN, width=1.2))
    return Panel(marks, y=Axis("KV blocks (%)", 0, 108))


def _load(rows: pd.DataFrame, edges: np.ndarray) -> list[Panel]:
    middle, length = (edges[:-1] + edges[1:]) / 2, (rows["end"] - rows["start"]).to_numpy()
    columns = {name: rows[name].to_numpy(dtype=float) for name in ("running", "waiting", "steps", "prompt_tokens")}
    requests = [Line(middle, _means(rows, columns[name], edges), name, color)
                for name, color in (("running", BLUE), ("waiting", VERMILION))]  # fmt: skip
    decoded = columns["steps"] * rows["sequences"].to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        per_second = (np.where(length > 0, one / length, 0.0)
                      for one in (columns["steps"], decoded, decoded + columns["prompt_tokens"]))  # fmt: skip
        steps, below, above = (_means(rows, one, edges) for one in per_second)
        below, above = below / steps, above / steps
    tokens = [Band(middle, 0.0, below, label="decoded", color=BLUE, alpha=0.35),
              Band(middle, below, above, label="read of prompts", color=GREEN, alpha=0.45)]  # fmt: skip
    return [Panel(list(requests), y=Axis("requests", 0)), Panel(list(tokens), y=Axis("tokens a step", 0))]


def _gaps(result: Result) -> list[Panel]:
    gaps, weights = result.token_gaps
    if not len(gaps):
        return []
    order = np.argsort(gaps, kind="stable")
    share = np.cumsum(weights[order]) / weights.sum()
    percentiles = {f"p{100 * q:g}": weighted_quantile(gaps, weights, q) for q in (0.5, 0.95, 0.99)}
    factor, unit = fitting(list(percentiles.values()), SECONDS)
    places = np.unique(np.searchsorted(share, np.linspace(0, 1, 2000)).clip(max=len(share) - 1))
    values, log = gaps[order][places] / factor, bool(gaps.max() > 20 * percentiles["p50"])
    marks: list[Any] = [Line(values, 100 * share[places], steps=True)]
    low, high = values.min(), values.max()
    far = low * (high / low) ** 0.8 if log else 0.2 * low + 0.8 * high
    for place, (name, value) in enumerate(percentiles.items()):  # at different heights, as they may be close together
        at = value / factor
        text, align = f" {name} {at:.3g} {unit} ", "right" if at > far else "left"
        marks += [Line([at, at], [-np.inf, np.inf], color=MUTED, dash=2, width=0.9),
                  Texts([at], [6 + 18 * place], [text], align=align, rise="bottom")]  # fmt: skip
    return [Panel(marks, Axis(f"time between two tokens of an answer ({unit})", log=log), Axis("tokens (%)", 0, 103))]
