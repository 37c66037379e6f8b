"""Trade-offs between metrics: the Pareto front, regrets, the knee of a sweep."""

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
import pandas as pd

from hetsim.errors import UnknownName, UsageError
from hetsim.results.declared import DEFAULT_METRIC, has_direction, higher_is_better
from hetsim.results.formatting import metric_name
from hetsim.results.many_runs.compare import Comparison
from hetsim.results.many_runs.sweep import Sweep
from hetsim.results.one_run.result import Result
from hetsim.results.statistics import student_interval

Better = Mapping[str, Literal["more", "less"]]  # Metric -> better direction, for metrics that have none of their own.


def front(found: Comparison | Sweep, x: str, y: str, better: Better | None = None) -> pd.DataFrame:
    """Compare policies (rows of a sweep) by two metrics, and mark the Pareto front.

    A policy is on the Pareto front (column `front`) if no other policy is better in one metric and at least as good in
    the other.  Only means are compared: a policy whose confidence interval reaches the front may be on the front, too.
    For a sweep, x or y may also be a swept key with numbers, such as the number of nodes; less is better by default.
    `better`: "more" or "less", by metric or key.  Columns: label, policy, the two metrics, METRIC_half (half-width of
    the 95 % interval, or NaN), `front`.  Rows without a value are omitted.
    """
    if x == y:
        raise UsageError(f"a Pareto front needs two different metrics; got {x} twice")
    keys = getattr(found, "keys", [])
    up = {name: more_is_better(name, better, keys) for name in (x, y)}
    table = _means(found, (x, y))
    table = table[np.isfinite(table[x]) & np.isfinite(table[y])].reset_index(drop=True)
    if table.empty:
        raise UsageError(f"{x} and {y} are not both defined in any row")
    cost = np.stack([table[name].to_numpy() * (-1.0 if up[name] else 1.0) for name in (x, y)])
    order = np.lexsort((cost[1], cost[0]))
    lowest, on_it = math.inf, np.zeros(len(table), dtype=bool)
    last = (math.inf, math.inf)
    for at in order.tolist():  # ascending in the first: a policy that improves on the second is on the front
        here = (float(cost[0, at]), float(cost[1, at]))
        if here[1] < lowest or here == last:
            on_it[at], lowest, last = True, here[1], here
    return table.assign(front=on_it)


def regrets(found: Comparison | Sweep, metric: str = DEFAULT_METRIC) -> pd.DataFrame:
    """Return |value - best| / |best|: the distance of each policy from the best one.

    A row per point of a sweep (or replication of a comparison), a column per policy.
    """
    more = more_is_better(metric)
    wide = _by_row(found, metric)
    if wide.shape[1] < 2:
        raise UsageError("regret needs at least two policies; got one")
    best = wide.max(axis=1) if more else wide.min(axis=1)
    gap = wide.sub(best, axis=0).abs()
    if ((best == 0) & (gap.max(axis=1) > 0)).any():
        raise UsageError(f"the best {metric} is 0 in some {wide.index.name}: a share of it is undefined")
    return gap.div(best.abs().where(best != 0, 1.0), axis=0)


def more_is_better(metric: str, better: Better | None = None, keys: Iterable[str] = ()) -> bool:
    """Return True if more of a metric or key is better.

    better: stated directions ("more" or "less") by name; of a key without one, less is better.  UsageError for a metric
    that has no direction.
    """
    stated = (better or {}).get(metric)
    if stated not in (None, "more", "less"):
        raise UsageError(f'better={{"{metric}": ...}} must be "more" or "less"; got {stated!r}')
    if stated is not None or metric in keys:
        return stated == "more"
    if not has_direction(metric):
        raise UsageError(f'{metric}: neither more nor less is always better; state it: better={{"{metric}": "less"}}')
    return higher_is_better(metric)


def _means(found: Comparison | Sweep, names: tuple[str, str]) -> pd.DataFrame:
    if not isinstance(found, Sweep):
        _known(names, found.metrics)
        columns = {name: found.table[name, "mean"].to_numpy(dtype=float) for name in names}
        halves = {f"{name}_half": found.table[name, "half_width"].to_numpy(dtype=float) for name in names}
        labels = found.table.index.astype(str)
        return pd.DataFrame({"label": labels, "policy": labels, **columns, **halves})
    frame = found.table
    _known(names, [str(name) for name in frame.columns])
    label = frame["policy"].astype(str)
    for key in found.keys:
        label = label + " · " + found.points[key].astype(str).loc[frame["point"]].to_numpy()
    columns = {name: frame[name].to_numpy(dtype=float) for name in names}
    for name in names:
        if name in found.keys and not pd.api.types.is_numeric_dtype(frame[name]):
            raise UsageError(f"{name} has no numbers that could be compared")
    nothing = np.full(len(frame), np.nan)
    halves = {
        f"{name}_half": ((frame[f"{name}_ci_high"] - frame[f"{name}_ci_low"]) / 2).to_numpy(dtype=float)
        if f"{name}_ci_low" in frame else nothing
        for name in names
    }  # fmt: skip
    return pd.DataFrame({"label": label.to_numpy(), "policy": frame["policy"].to_numpy(), **columns, **halves})


def _by_row(found: Comparison | Sweep, metric: str) -> pd.DataFrame:
    if isinstance(found, Sweep):
        _known((metric,), [str(name) for name in found.table.columns])
        if len(twice := found.table[found.table.duplicated(["point", "policy"])]):
            raise UsageError(f"point {twice['point'].iloc[0]} is given twice under {twice['policy'].iloc[0]}")
        wide = found.table.pivot(index="point", columns="policy", values=metric)
        return wide[list(dict.fromkeys(found.table["policy"]))]
    columns = {}
    for label, outcome in found.runs.items():
        if isinstance(outcome, Result):
            columns[label] = pd.Series([outcome.metric(metric)])
        else:
            _known((metric,), [str(name) for name in outcome.values.columns])
            columns[label] = outcome.values[metric]
    return pd.DataFrame(columns).rename_axis("replication")


def _known(names: tuple[str, ...], there: list[str]) -> None:
    for name in names:
        if name not in there:
            raise UnknownName("metric", name, there, " of the sweep; add it with metrics=")


NOUNS = {"cluster.nodes.count": ("nodes", "node"), "cluster.nodes.gpus.count": ("GPUs a node", "GPU")}


def knees(sweep: Sweep) -> list[str]:
    """Sentences that name the knee of each policy's curve over a single numeric key.

    The knee is the smallest value of the key from which every further step improves the metric by less than 5 %; there
    is none unless some step up to it improved the metric by at least 5 % (mean over replications).  With replications,
    the upper end of a step's paired 95 % interval must be below 5 %.
    """
    metric = next((name for name in sweep.shown_metrics if has_direction(name)), None)
    if metric is None or len(sweep.keys) != 1 or sweep.table[sweep.keys[0]].dtype.kind not in "if":
        return []
    key, lines = sweep.keys[0], []
    integers = all(isinstance(value, int) for value in sweep.points[key])
    path = ".".join(part for part in key.split(".") if not part.isdigit())
    many, single = NOUNS.get(path, ("", "one" if integers else "step"))
    for policy, mine in sweep.by_replication.groupby("policy", sort=False, observed=True):
        values = mine.pivot_table(metric, key, "replication", dropna=False).dropna(axis=1).sort_index()
        if values.empty or not np.isfinite(values).all(axis=None):
            continue
        widths = np.diff(values.index) if integers else np.ones(len(values) - 1)
        steps = np.diff(values.to_numpy(dtype=float), axis=0) / widths[:, None] * (2 * higher_is_better(metric) - 1)
        highest = np.array([student_interval(step).high if len(step) > 1 else step.sum() for step in steps])
        some = (0.05 * values.mean(axis=1).abs().to_numpy()[:-1]).clip(min=1e-300)
        knee = 1 + int(max(np.flatnonzero(highest >= some), default=-1))
        if knee < len(steps) and (steps.mean(axis=1) >= some)[:knee].any():
            value = sweep.points[key].loc[sweep.table.loc[sweep.table[key] == values.index[knee], "point"].iloc[0]]
            place = f"{value} {many}" if many else f"{key} = {value}"
            lines.append(f"{policy}: {place}: each further {single} gains less than 5 % in {metric_name(metric)}")
    return lines
