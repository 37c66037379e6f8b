"""Language models over time: KV memory, requests, steps, and token gaps."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hetsim.errors import UsageError
from hetsim.plots import style
from hetsim.results.formatting import SECONDS, fitting
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.steps import weighted_quantile

STRETCHES = 400
"""Lines are means over this many equal stretches of time."""


def serving(result: Result) -> Figure:
    """Draw the replicas of language models: KV blocks, requests, tokens, gaps.

    Lines are means over 400th parts of the run, over all replicas; requests are sums.  The upper KV line is the fullest
    moment of any replica in each part.  Where memory sets no limit that panel is left out.

    Parameters: result: a run.
    Returns: the figure.
    Raises: UsageError: there are no language models.
    """
    rows = result.steps
    if not len(rows):
        raise UsageError("there are no language models here, so no steps to draw")
    end = result.end if result.end > 0 else 1.0
    edges = np.linspace(0.0, end, STRETCHES + 1)
    limited = rows["kv_blocks"].notna().any()
    picture = style.figure(9.5, 8.4 if limited else 6.4)
    panels = list(picture.subplots(4 if limited else 3, 1))
    if limited:
        _memory(panels[0], rows[rows["kv_blocks"].notna()], edges)
    _requests(panels[-3], rows, edges)
    _tokens(panels[-2], rows, edges)
    for ax in panels[:-1]:
        style.time_axis(ax, 0.0, end, told=style.means_told(edges))
        ax.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.1)
    style.one_time_axis(panels[:-2])
    _gaps(panels[-1], result)
    style.title(panels[0], style.describe(result), pad=24)
    return picture


def _means(rows: pd.DataFrame, low: np.ndarray, high: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Mean over time of a quantity of all replicas together; 0 between rows.

    Each replica has it from one value to another in each row.
    """
    total = np.zeros(len(edges) - 1)
    keys = pd.factorize(pd.MultiIndex.from_arrays([rows["service"].astype(str), rows["replica"]]))[0]
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    for key in range(keys.max() + 1):
        mine = np.flatnonzero(keys == key)
        mine = mine[np.argsort(end[mine], kind="stable")]
        area = np.cumsum((low + high)[mine] / 2 * (end - start)[mine])
        time = np.column_stack([start[mine], end[mine]]).ravel()
        until = np.column_stack([np.r_[0.0, area[:-1]], area]).ravel()
        total += np.diff(np.interp(edges, time, until, left=0.0)) / np.diff(edges)
    return total


def _memory(ax: Axes, rows: pd.DataFrame, edges: np.ndarray) -> None:
    names = ("kv_used_start", "kv_used", "kv_cached", "kv_blocks")
    first, last, cached, blocks = (rows[name].to_numpy(dtype=float) for name in names)
    middle = (edges[:-1] + edges[1:]) / 2
    replicas = rows.drop_duplicates(["service", "replica"])["kv_blocks"].sum()
    mean = 100 * _means(rows, first, last, edges) / replicas
    fullest = np.zeros(len(middle))
    for time, used in ((rows["start"], first), (rows["end"], last)):
        place = np.clip(np.searchsorted(edges, time.to_numpy(), side="left") - 1, 0, len(middle) - 1)
        np.maximum.at(fullest, place, 100 * used / blocks)
    ax.fill_between(middle, mean, color=style.BLUE, alpha=0.25, linewidth=0)
    ax.plot(middle, mean, color=style.BLUE, linewidth=1.4, label="used, mean")
    ax.plot(middle, np.maximum(fullest, mean), color=style.VERMILION, linewidth=0.9, label="used, maximum")
    if cached.any():
        kept = 100 * _means(rows, first + cached, last + cached, edges) / replicas
        ax.plot(middle, kept, color=style.GREEN, linewidth=1.2, label="used or kept for prefixes")
    ax.axhline(100, color=style.MUTED, linewidth=1, linestyle="--")
    ax.set_ylim(0, 108)
    style.tidy(ax, y="KV blocks (%)")


def _requests(ax: Axes, rows: pd.DataFrame, edges: np.ndarray) -> None:
    middle = (edges[:-1] + edges[1:]) / 2
    for name, color in (("running", style.BLUE), ("waiting", style.VERMILION)):
        values = rows[name].to_numpy(dtype=float)
        ax.plot(middle, _means(rows, values, values, edges), color=color, linewidth=1.4, label=name)
    ax.set_ylim(0, None)
    style.tidy(ax, y="requests")


def _tokens(ax: Axes, rows: pd.DataFrame, edges: np.ndarray) -> None:
    """Tokens that are decoded and read a step, one above the other."""
    seconds = np.maximum((rows["end"] - rows["start"]).to_numpy(), 1e-12)

    def amount(values: pd.Series) -> np.ndarray:
        density = values.to_numpy(dtype=float) / seconds
        return _means(rows, density, density, edges)

    steps = amount(rows["steps"])
    decoded, read = amount(rows["steps"] * rows["sequences"]), amount(rows["prompt_tokens"])
    with np.errstate(divide="ignore", invalid="ignore"):
        below, above = decoded / steps, (decoded + read) / steps
    middle = (edges[:-1] + edges[1:]) / 2
    ax.fill_between(middle, below, color=style.BLUE, alpha=0.35, linewidth=0, label="decoded")
    ax.fill_between(middle, below, above, color=style.GREEN, alpha=0.45, linewidth=0, label="read of prompts")
    ax.set_ylim(0, None)
    style.tidy(ax, y="tokens a step")


def _gaps(ax: Axes, result: Result) -> None:
    gaps, weights = result.token_gaps
    if not len(gaps):
        ax.set_axis_off()
        return
    order = np.argsort(gaps, kind="stable")
    share = np.cumsum(weights[order]) / weights.sum()
    percentiles = {f"p{100 * q:g}": weighted_quantile(gaps, weights, q) for q in (0.5, 0.95, 0.99)}
    factor, unit = fitting(list(percentiles.values()), SECONDS)
    places = np.unique(np.searchsorted(share, np.linspace(0, 1, 2000)).clip(max=len(share) - 1))
    ax.plot(gaps[order][places] / factor, 100 * share[places], color=style.BLUE, linewidth=1.4, drawstyle="steps-post")
    if gaps.max() > 20 * percentiles["p50"]:
        ax.set_xscale("log")
    ax.set_ylim(0, 103)
    to_panel = ax.transData + ax.transAxes.inverted()
    for place, (name, value) in enumerate(percentiles.items()):  # at different heights, as they may be close together
        ax.axvline(value / factor, color=style.MUTED, linewidth=0.9, linestyle=":")
        side = "right" if to_panel.transform((value / factor, 0.0))[0] > 0.8 else "left"
        text = f" {name} {value / factor:.3g} {unit} "
        ax.text(value / factor, 6 + 18 * place, text, fontsize=8, color=style.INK, ha=side, va="bottom")
    style.tidy(ax, x=f"time between two tokens of an answer ({unit})", y="tokens (%)")
