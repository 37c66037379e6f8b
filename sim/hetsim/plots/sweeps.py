"""Pictures of a sweep: a metric along one key, or over two of them."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.plots.style import line_looks, possible, short
from hetsim.results.colors import INK, VERMILION
from hetsim.results.declared import DEFAULT_METRIC, has_direction, higher_is_better
from hetsim.results.formatting import figures, fitting, metric_name, units_of
from hetsim.results.many_runs.point_differences import rows_where
from hetsim.results.many_runs.sweep import Sweep
from hetsim.results.panels import Axis, Band, Line, Panel, Picture, Points, Shades, Texts, row_boxes


def against(
    sweep: Sweep, x: str, metric: str = DEFAULT_METRIC, *, by: str = "policy", where: Mapping[str, Any] | None = None
) -> Picture:
    """Plot a metric over one key of a sweep, one line per policy, with 95 % CIs.

    Parameters: sweep: its result; x, metric: the axes; by: column that defines the lines (default: policy); where:
        fixed values of other columns.
    Returns: the picture.
    """
    frame = _rows(sweep, metric, where, columns=(x, by))
    factor, unit = fitting(frame[metric].tolist(), units_of(metric))
    numbers, written = pd.api.types.is_numeric_dtype(frame[x]), list(dict.fromkeys(frame[x]))
    looks, marks = line_looks(list(map(str, frame[by].drop_duplicates()))), list[Any]()
    for label, mine in frame.groupby(by, sort=False, observed=True):
        mine = mine.sort_values(x) if numbers else mine
        value = mine[metric].to_numpy(dtype=float) / factor
        at = mine[x].to_numpy(dtype=float) if numbers else np.array([written.index(v) for v in mine[x]])
        look = looks[str(label)]
        marks.append(Line(at, np.where(np.isfinite(value), value, np.nan), marker="o", width=1.6,
                          rows=row_names(sweep, mine), **look))  # fmt: skip
        if f"{metric}_ci_low" in mine:
            ends = (mine[f"{metric}_ci_{end}"].to_numpy(dtype=float) / factor for end in ("low", "high"))
            low, high = (np.clip(end, *possible(metric, value, factor)) for end in ends)
            marks.append(Band(at, low, high, color=look["color"], alpha=0.18))
    log = is_wide(frame[metric].to_numpy(dtype=float) / factor)
    x_axis = _key_axis(sweep, x) if numbers else Axis(ticks=list(enumerate(short(str(value), 24) for value in written)))
    x_axis.label = key_name(x, sweep.keys)
    y_axis = Axis(metric_name(metric) + (f" ({unit})" if unit else ""), None if log else 0, log=log)
    legend = "inside" if frame[by].nunique() > 1 else ""
    return Picture([[Panel(marks, x_axis, y_axis, sweep.name, grid="both", legend=legend)]])


def sweep_map(
    sweep: Sweep, x: str, y: str, metric: str = DEFAULT_METRIC, *, where: Mapping[str, Any] | None = None
) -> Picture:
    """Draw a metric over two keys as shades with values; the best is framed.

    Parameters: sweep: its result; x, y, metric: keys and metric to draw; where: fixed values of other columns; needed
        to select one of several policies ({"policy": "sjf"}).
    Returns: the picture.
    """
    frame, grid = _rows(sweep, metric, where, columns=(x, y)), sweep.pivot(x, y, metric, where)
    names = frame.assign(names=row_names(sweep, frame)).pivot(index=y, columns=x, values="names").reindex_like(grid)
    factor, unit = fitting(grid.to_numpy().ravel().tolist(), units_of(metric))
    values = grid.to_numpy(dtype=float) / factor
    finite, sides = np.isfinite(values), [np.arange(size + 1) - 0.5 for size in values.shape]
    shades = np.where(finite, np.log(values) if is_wide(values) else values, np.nan)
    low, high = (float(np.nanmin(shades)), float(np.nanmax(shades))) if finite.any() else (0.0, 1.0)
    cells = [(column, row, "–" if np.isnan(values[row, column]) else figures(float(values[row, column])),
              INK if not finite[row, column] else "#111111" if shades[row, column] > (low + high) / 2 else "#FFFFFF")
             for row, column in np.ndindex(values.shape)]  # fmt: skip
    at, up, texts, inks = zip(*cells, strict=True)
    marks: list[Any] = [Shades(sides[1], sides[0], shades, (low, high)),
                        Texts(at, up, texts, color=inks, size=8.5, align="center"),
                        Points(at, up, marker="", rows=names.fillna("").to_numpy().ravel().tolist())]  # fmt: skip
    if has_direction(metric) and finite.any():  # a frame around the best
        find = np.nanargmax if higher_is_better(metric) else np.nanargmin
        row, column = np.unravel_index(find(np.where(finite, values, np.nan)), values.shape)
        marks.append(row_boxes([column - 0.5], [column + 0.5], [row], 0.5, color=VERMILION, edge=2, hollow=True))
    across, upward = (
        Axis(key_name(key, sweep.keys), -0.5, len(index) - 0.5, list(enumerate(_labels(sweep, key, index))))
        for key, index in ((x, grid.columns), (y, grid.index))
    )
    fixed = "".join(f" · {value}" for value in (where or {}).values())
    panel = Panel(marks, across, upward, metric_name(metric) + (f" ({unit})" if unit else "") + fixed, grid="")
    return Picture([[panel]], 2.6 + 0.85 * grid.shape[1], 1.6 + 0.42 * grid.shape[0])


def is_wide(values: Any, ratio: float = 50.0) -> bool:
    """Return True if values differ so much that their axis should be logarithmic."""
    finite = np.asarray(values, float)[np.isfinite(values)]
    return bool(len(finite) and finite.min() > 0 and finite.max() > ratio * finite.min())


def _rows(sweep: Sweep, metric: str, where: Any, columns: tuple[str, str]) -> pd.DataFrame:
    sweep._known(metric)
    for column in columns:
        sweep._column(column)
    frame = sweep.table[sweep.table["status"] == "done"]
    if frame.empty:
        raise UsageError("the sweep has no row to draw: all have failed")
    frame = rows_where(sweep, frame, where)
    if frame.duplicated(list(columns)).any():
        free = [name for name in [*sweep.keys, "policy"] if name not in columns and frame[name].nunique() > 1]
        more = f': choose {", ".join(free)} with where={{"{free[0]}": ...}}' if free else ""
        raise UsageError(f"several rows have the same value of {' and '.join(columns)}{more}")
    return frame


def row_names(sweep: Sweep, frame: Any) -> list[str]:
    """Return a name for each row of `frame`: its point and, if several, its policy."""
    policies = " · " + frame["policy"].astype(str) if sweep.table["policy"].nunique() > 1 else ""
    return (frame["point"].astype(str) + policies).tolist()


def _labels(sweep: Sweep, key: str, values: Any) -> list[str]:
    texts = {}
    if key in sweep.keys:
        first = sweep.table.drop_duplicates("point")
        texts = dict(zip(first[key].tolist(), sweep.points[key].loc[first["point"]].astype(str), strict=True))
    return [short(texts.get(value, str(value)), 24) for value in values]


def key_name(key: str, others: Iterable[str] = ()) -> str:
    """Return the last parts of a path, which are enough on an axis.

    `workload.jobs.arrivals.rate` -> `jobs arrivals rate`, `cluster.nodes.0.gpus.count` -> `gpus count`.
    List indices are included only if one of the `others` would have the same name.
    """
    def without_places(key: str) -> str:
        names = [part for part in parts(key) if not part.isdigit()]
        # Of what nodes have the thing says enough.
        return " ".join(names[1 if names[:1] == ["nodes"] and len(names) > 2 else 0 :][-3:]) or key

    def parts(key: str) -> list[str]:
        return [part for part in key.split(".") if part not in ("workload", "cluster", "policy")]

    name = without_places(key)
    is_alone = all(other == key or without_places(other) != name for other in others)
    return name if is_alone else " ".join(parts(key)[-4:])


def _key_axis(sweep: Sweep, key: str) -> Axis:
    values = sorted(set(sweep.table[key].dropna().tolist()))
    few = key in sweep.keys and len(values) <= 10
    ticks = list(zip(values, _labels(sweep, key, values), strict=True)) if few else None
    return Axis(ticks=ticks, log=is_wide(values), count=8)
