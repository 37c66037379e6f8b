"""The outcome of a sweep: one tidy table, a row a point and policy.

Columns of `table`, in this order:

    point           number of the point, from 0; all policies of a point have the same
    one a key       what was swept, under its name in the scenario (`cluster.nodes.0.count`): numbers as numbers, values
                    with a unit in base units (seconds, bytes, per second), anything else as text
    policy          the policy's label
    seed            of the runs; replication r of every row with one seed meets the same arrivals, sizes and faults
    replications    how many the row has
    warmup_cut      where one is to be found (`warmup: auto`): the seconds at the beginning that are left out
    status          done or failed
    error           why it failed; the metrics of a failed row are missing
    warnings        what the runs warned of
    one a metric    with several replications their mean, and METRIC_ci_low and METRIC_ci_high (95 %) behind all means

`by_replication` has a row a replication and, instead of means and intervals, its values.  A metric that is not defined
in some replication of a row (a makespan with tasks unfinished) is missing in the row.  Energy is taken to one common
end for all policies of a point and replication; where a precision was asked for and policies have different numbers of
replications, it is that of the replications which all have, as in a comparison, and missing in the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import DamagedFile, UnknownName, UsageError
from hetsim.results.declared import has_direction, higher_is_better, in_set
from hetsim.results.formatting import formatter, metric_name, several, units_of
from hetsim.results.many_runs.point_differences import FACTS, rows_where
from hetsim.results.many_runs.replications import ENERGY
from hetsim.results.one_run.estimands import ratio_contributions, weight_of
from hetsim.results.sealed import check_names, unsealed, verify
from hetsim.results.statistics import excess_kurtosis, freedom, student_quantiles
from hetsim.results.stored_files import read_frame

MARK = "sweep.json"
TABLE = "table.parquet"
EACH = "replications.parquet"
SCENARIO = "scenario.yaml"
TABLES = "tables.json"
"""Digests of the other files of a sweep that is finished."""

SHOWN_ROWS = 40
CONFIDENCE = 0.95
_END, _WATTS = "_end", "_watts_at_end"


@dataclass
class SweepRow:
    """What one row is made of: its facts, and the values of its replications in order (None of one that failed).

    `warmup`: what is told as `warmup_cut`, if anything is; NaN of a row for which none was found.
    """

    point: int
    policy: str
    seed: int
    runs: list[Mapping[str, float] | None] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    warmup: float | None = None


class Sweep:
    """A sweep.  Attributes:

    table            a row a point and policy: its keys, and metrics with the ends of their 95 % intervals
    by_replication   the metrics of every replication, a row each; columns that begin with _ are the numbers of
                     customers over which they are means
    keys             names of what was swept besides the policy
    metrics          those asked for, which are shown first
    points           the values of every point as they were written, a row a point
    name, seed       of the scenario
    remarks          what a reader of the figures should know
    replications     of every row: a number, or {precision, metric, max, confidence}
    """

    def __init__(
        self,
        table: pd.DataFrame,
        by_replication: pd.DataFrame,
        points: pd.DataFrame,
        *,
        name: str = "",
        seed: int = 0,
        metrics: Iterable[str] = (),
        remarks: Iterable[str] = (),
        replications: int | Mapping[str, Any] = 1,
    ):
        self.table, self.by_replication, self.points = table, by_replication, points
        self.name, self.seed = name, seed
        self.metrics, self.remarks = list(metrics), list(remarks)
        self.replications = replications if isinstance(replications, int) else dict(replications)
        self.directory: Path | None = None

    @property
    def keys(self) -> list[str]:
        return [str(name) for name in self.points.columns]

    @property
    def failed(self) -> pd.DataFrame:
        """The rows that failed."""
        return self.table[self.table["status"] == "failed"]

    def __len__(self) -> int:
        return len(self.table)

    # Questions ----------------------------------------------------------------------------------------------

    def best(self, metric: str, by: str | Sequence[str] | None = None) -> Any:
        """Find the row with the best mean of a metric.

        The best of many estimates looks better than it is: run it again with another seed before you rely on its figure
        (`hetsim.tune` does).

        Parameters: metric: its name; by: columns: the best row of each of their values.
        Returns: the row, or with `by` a table.
        Raises: UsageError: neither more nor less of the metric is better, or no row has it.
        """
        self._known(metric)
        if not has_direction(metric):
            raise UsageError(f"neither more nor less {metric_name(metric)} is better: sort the table yourself")
        sound = self.table[self.table[metric].notna()]
        if sound.empty:
            raise UsageError(f"{metric} is not defined in any row")
        up = higher_is_better(metric)
        if by is None:
            values = sound[metric].to_numpy()
            return sound.iloc[int(values.argmax() if up else values.argmin())]
        columns = [by] if isinstance(by, str) else list(by)
        for column in columns:
            self._column(column)
        grouped = sound.groupby(columns, sort=False, dropna=False, observed=True)[metric]
        return sound.loc[grouped.idxmax() if up else grouped.idxmin()]

    def pivot(self, x: str, y: str, metric: str, where: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Set a metric out as a grid.

        Parameters: x, y: keys of columns and of rows; metric: its name; where: fixes other columns: {"policy": "sjf"};
            values of keys may be texts as in a scenario (24/h) or numbers in base units.
        Returns: the grid.
        Raises: UsageError: more than one row falls on a cell, or x is y.
        """
        self._known(metric)
        frame = rows_where(self, self.table, where)
        for column in (x, y):
            self._column(column)
        if x == y:
            raise UsageError(f"{x} cannot be both rows and columns")
        if frame.duplicated([x, y]).any():
            others = [name for name in [*self.keys, "policy"] if name not in (x, y) and frame[name].nunique() > 1]
            more = f': fix {", ".join(others)} with where={{"{others[0]}": ...}}' if others else ""
            raise UsageError(f"several rows fall on one cell of {x} and {y}{more}")
        return frame.pivot(index=y, columns=x, values=metric)

    def differences(self, metric: str, base: str | None = None, confidence: float = 0.95) -> pd.DataFrame:
        """Compare the policies at every point, paired by replication.

        Parameters: metric: its name; base: the policy that others are compared with; confidence: of the intervals.
        Returns: a row a point and pair (`point_differences.differences`).
        """
        from hetsim.results.many_runs.point_differences import differences  # which knows sweeps

        return differences(self, metric, base, confidence)

    def _known(self, metric: str) -> None:
        if metric not in self.table.columns or metric in (*FACTS, *self.keys):
            known = [name for name in self.table.columns if name not in (*FACTS, *self.keys)]
            kept = ", ".join(n for n in known if not n.startswith("_") and not n.endswith(("_ci_low", "_ci_high")))
            raise UnknownName("metric", metric, known, f" among those of the sweep ({kept}); ask for it with metrics=")

    def _column(self, name: str) -> None:
        known = [*self.keys, *(fact for fact in FACTS if fact in self.table)]
        if name not in known:
            raise UnknownName("column", name, known, f" (there are {', '.join(known)})")

    # How it is shown ----------------------------------------------------------------------------------------

    @property
    def shown_metrics(self) -> list[str]:
        """Those asked for, else the usual ones that are defined here; with a precision also the one it is of."""
        usual = [name for name in in_set("sweep") if name in self.table and self.table[name].notna().any()]
        shown = self.metrics or usual
        reached = [] if isinstance(self.replications, int) else [self.replications["metric"]]
        return [name for name in reached if name not in shown and name in self.table] + shown

    def shown(self, rows: int | None = SHOWN_ROWS) -> tuple[list[str], list[list[str]]]:
        """Titles and rows of cells for people: values as they were written, metrics with units."""
        frame = self.table if rows is None else self.table.iloc[:rows]
        varies = self.table["policy"].nunique() > 1 or not self.keys
        counted = not isinstance(self.replications, int)
        facts = [*(["policy"] if varies else []), *(["replications"] if counted else [])]
        titles = ["point", *self.keys, *facts, *map(metric_name, self.shown_metrics)]
        cells = [frame["point"].astype(str).tolist()]
        for key in self.keys:  # null, a value like others, is a missing one in a column of pandas
            values = self.points[key].loc[frame["point"]]
            cells.append(["null" if gone else str(value) for value, gone in zip(values, values.isna(), strict=True)])
        cells += [frame[fact].astype(str).tolist() for fact in facts]
        for name in self.shown_metrics:
            cells.append(self._texts(frame, name))
        failed = (frame["status"] == "failed").tolist()
        table = [list(row) for row in zip(*cells, strict=True)]
        if any(failed):
            titles.append("")
            for row, is_failed in zip(table, failed, strict=True):
                row.append("failed" if is_failed else "")
        return titles, table

    @staticmethod
    def _texts(frame: pd.DataFrame, name: str) -> list[str]:
        values = frame[name].tolist()
        if f"{name}_ci_low" in frame:
            halves = ((frame[f"{name}_ci_high"] - frame[f"{name}_ci_low"]) / 2).tolist()
            return several(values, units_of(name), halves)
        if units_of(name) == ((1.0, ""),):
            return [formatter(name)(value) for value in values]
        return several(values, units_of(name))

    @property
    def title(self) -> str:
        """`overload: 12 points × 3 policies, 5 replications, seed 1`."""
        points, policies = self.table["point"].nunique(), self.table["policy"].nunique()
        parts = [f"{points:,} point{'s' if points != 1 else ''}"]
        if policies > 1 and len(self.table) == points * policies:
            parts[0] += f" × {policies} policies"
        sound = self.table[self.table["status"] == "done"] if len(self.failed) < len(self) else self.table
        fewest, most = int(sound["replications"].min()), int(sound["replications"].max())
        if most > 1:
            parts.append(f"{fewest} to {most} replications each" if fewest < most else f"{most} replications each")
        if self.table["seed"].nunique() == 1:
            parts.append(f"seed {self.table['seed'].iloc[0]}")
        if len(self.failed):
            parts.append(f"{len(self.failed):,} failed")
        return f"{self.name or 'sweep'}: " + ", ".join(parts)

    def __repr__(self) -> str:
        titles, rows = self.shown(12)
        more = f"\n... {len(self) - 12:,} more rows" if len(self) > 12 else ""
        frame = pd.DataFrame(rows, columns=pd.Index(titles))
        return f"<Sweep {self.title}>\n{frame.to_string(index=False)}{more}"

    def _repr_html_(self) -> str:
        from html import escape

        titles, rows = self.shown()
        head = "".join(f"<th>{escape(title)}</th>" for title in titles)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        more = f"<div>… {len(self) - SHOWN_ROWS:,} more rows</div>" if len(self) > SHOWN_ROWS else ""
        notes = "".join(f"<div>{escape(text)}</div>" for text in self.remarks)
        table = f"<table><caption>{escape(self.title)}</caption><tr>{head}</tr>{body}</table>"
        return f'<div style="overflow-x: auto">{table}</div>{more}{notes}'

    def to_json(self, by_replication: bool = False) -> dict[str, Any]:
        """Write the rows for programs.

        Parameters: by_replication: with the values of each.
        Returns: {"scenario", "seed", "keys", "metrics", "rows": [{point, keys, policy, status, error, metrics}]}; a
            metric is a value, or {mean, ci_low, ci_high} with several replications.
        """
        frame = self.by_replication if by_replication else self.table
        means = [
            str(name) for name in frame.columns
            if name not in (*FACTS, *self.keys)
            and not str(name).endswith(("_ci_low", "_ci_high"))
            and not str(name).startswith("_")  # numbers of customers, for the estimates
        ]  # fmt: skip
        written = self.points.to_dict("records")
        found = []
        for row in frame.to_dict("records"):
            facts = {name: row[name] for name in FACTS if name in row}
            values = {"values": dict(written[row["point"]])}
            found.append({**facts, **values, "metrics": {name: _json_metric(row, name) for name in means}})
        return {"scenario": self.name, "seed": self.seed, "keys": self.keys, "metrics": self.metrics, "rows": found}

    # On disk ------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, directory: str | Path) -> Sweep:
        """Load a finished sweep.

        Parameters: directory: where it lies.
        Returns: the sweep.
        Raises: UsageError: it is not finished, is damaged, or is no sweep.
        """
        folder = Path(directory)
        again = "the same command with --resume goes on with it"
        try:
            about = unsealed(folder / MARK)
            if not (folder / TABLE).is_file():
                raise UsageError(f"the sweep in {folder} is not finished; {again}")
            if (folder / TABLES).is_file():
                files = unsealed(folder / TABLES)["files"]
                check_names(folder / TABLES, files)
                for name, digest in files.items():
                    verify(folder / name, digest)
            table, each = (read_frame(folder / name) for name in (TABLE, EACH))
            points = pd.DataFrame(about["points"], columns=pd.Index(about["keys"]), dtype=object)
            found = cls(
                table, each, points, name=about["name"], seed=about["seed"], metrics=about["metrics"],
                remarks=about["remarks"], replications=about["replications"],
            )  # fmt: skip
        except DamagedFile as damage:
            raise UsageError(f"{damage}; the same command with --resume makes it again") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise UsageError(f"{folder} is not the directory of a sweep: {problem}") from None
        found.directory = folder
        return found


def _json_metric(row: Mapping[Any, Any], name: str) -> Any:
    from hetsim.results.formatting import json_number

    if f"{name}_ci_low" not in row:
        return json_number(row[name])
    return {"mean": json_number(row[name]), **{end: json_number(row[f"{name}_{end}"]) for end in ("ci_low", "ci_high")}}


# Making the tables -------------------------------------------------------------------------------------------------


def tables(keys: Sequence[str], rows: Sequence[SweepRow], kinds: Mapping[str, list[Any]]) -> tuple[
    pd.DataFrame, pd.DataFrame
]:  # fmt: skip
    """`table` and `by_replication` of a sweep; `kinds`: the columns of the keys, by key, an entry a point."""
    kept = _metric_names(rows)
    names = [name for name in kept if not name.startswith("_")]
    failed = np.array([bool(row.errors) or any(run is None for run in row.runs) for row in rows])
    counts = np.array([len(row.runs) for row in rows], dtype=np.int64)
    common = _common_counts(rows, counts, failed)
    cube = _cube(rows, [*names, _END, _WATTS])
    cube = _common_energy(cube, rows, names)
    energies = [names.index(name) for name in ENERGY if name in names]
    for at in energies:
        cube[np.arange(cube.shape[1]) >= common[:, None], at] = np.nan
    weights = _cube(rows, [weight_of(name) or "" for name in names])
    means, half = _estimates(cube[:, :, : len(names)], weights, names, counts)
    if (common < counts).any():
        for at in energies:
            means[:, at], half[:, at] = (
                found[:, at] for found in _estimates(cube[:, :, : len(names)], weights, names, common)
            )
    means[failed] = half[failed] = np.nan
    facts = _facts(keys, rows, kinds, failed)
    columns: dict[str, Any] = {**facts, **{name: means[:, at] for at, name in enumerate(names)}}
    if cube.shape[1] > 1:
        for at, name in enumerate(names):
            columns[f"{name}_ci_low"] = means[:, at] - half[:, at]
            columns[f"{name}_ci_high"] = means[:, at] + half[:, at]
    numbers = [name for name in kept if name.startswith("_")]
    both = np.concatenate([cube[:, :, : len(names)], _cube(rows, numbers)], axis=2)
    return pd.DataFrame(columns), _each(keys, rows, kinds, both, [*names, *numbers])


def _common_counts(rows: Sequence[SweepRow], counts: np.ndarray, failed: np.ndarray) -> np.ndarray:
    """Of each row, the replications that all policies of its point have; those that failed do not take part."""
    fewest: dict[int, int] = {}
    for row, count, out in zip(rows, counts.tolist(), failed, strict=True):
        if not out:
            fewest[row.point] = min(count, fewest.get(row.point, count))
    each = zip(rows, counts.tolist(), strict=True)
    return np.array([min(count, fewest.get(row.point, count)) for row, count in each], dtype=np.int64)


def _estimates(
    cube: np.ndarray, weights: np.ndarray, names: Sequence[str], counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Estimates from the first `counts` replications of each row, and the half-widths of their intervals.

    `weights`: over how many customers each value is a mean; missing where it is none
    (`hetsim.results.one_run.estimands`).
    """
    means = np.full((cube.shape[0], cube.shape[2]), np.nan)
    half = means.copy()
    for count in np.unique(counts[counts > 0]).tolist():
        mine = counts == count
        part = cube[mine, :count]
        given = ratio_contributions(np.moveaxis(part, 1, 2), np.moveaxis(weights[mine, :count], 1, 2))
        with np.errstate(invalid="ignore"):
            means[mine] = given.mean(axis=2)
        if count > 1:
            half[mine] = _half_widths(part, given, names)
    return means, half


def _metric_names(rows: Sequence[SweepRow]) -> list[str]:
    """Of all runs, in the order of the first that has each."""
    found: dict[str, None] = {}
    for row in rows:
        for run in row.runs:
            if run is not None:
                found.update(dict.fromkeys(run))
    return [name for name in found if name not in (_END, _WATTS, "replication")]


def _cube(rows: Sequence[SweepRow], names: list[str]) -> np.ndarray:
    cube = np.full((len(rows), max((len(row.runs) for row in rows), default=0), len(names)), np.nan)
    for number, row in enumerate(rows):
        for replication, run in enumerate(row.runs):
            if run is not None:
                cube[number, replication] = [run.get(name, np.nan) for name in names]
    return cube


def _common_energy(cube: np.ndarray, rows: Sequence[SweepRow], names: list[str]) -> np.ndarray:
    """A policy that finishes early still pays for its idle devices until the last one of the point is done."""
    if "energy_j" not in names:
        return cube
    _, point, several = np.unique([row.point for row in rows], return_inverse=True, return_counts=True)
    last = np.full((len(several), cube.shape[1]), np.nan)
    np.fmax.at(last, point, cube[:, :, -2])
    further = np.where(np.isnan(cube[:, :, -2]), 0.0, (last[point] - cube[:, :, -2]) * cube[:, :, -1])
    further[several[point] < 2] = 0.0
    for name in ENERGY:
        if name in names:
            cube[:, :, names.index(name)] += further
    return cube


def _half_widths(cube: np.ndarray, given: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Of Student's intervals over the second axis; none where all replications are the same, as nothing is random.

    `given`: what the values contribute, with the replications in the last axis.
    """
    count = cube.shape[1]
    with np.errstate(invalid="ignore"):
        spread, mean = given.std(axis=2, ddof=1), given.mean(axis=2)
    spread[(cube == cube[:, :1]).all(axis=1) & (spread != 0)] = 0.0  # rounding of the mean
    same = ((cube == cube[:, :1]) | np.isnan(cube)).all(axis=(1, 2))
    kurtosis = [excess_kurtosis(name, spread[:, i], mean[:, i]) for i, name in enumerate(names)]
    left = freedom(np.stack(kurtosis, axis=1), count)
    half = student_quantiles(0.5 + CONFIDENCE / 2, left) * spread / np.sqrt(count)
    half[same] = np.nan
    half[~np.isfinite(cube).all(axis=1)] = np.nan
    return half


def _facts(
    keys: Sequence[str], rows: Sequence[SweepRow], kinds: Mapping[str, list[Any]], failed: np.ndarray
) -> dict[str, Any]:
    point = [row.point for row in rows]
    return {
        "point": np.array(point, dtype=np.int64),
        **{key: pd.Series([kinds[key][number] for number in point]) for key in keys},
        "policy": [row.policy for row in rows],
        "seed": _seeds([row.seed for row in rows]),
        "replications": np.array([len(row.runs) for row in rows], dtype=np.int64),
        **_warmups(rows),
        "status": np.where(failed, "failed", "done"),
        "error": ["; ".join(dict.fromkeys(row.errors)) for row in rows],
        "warnings": ["; ".join(dict.fromkeys(row.warnings)) for row in rows],
    }


def _warmups(rows: Sequence[SweepRow]) -> dict[str, Any]:
    """A column where a warm-up was to be found, for all rows then."""
    if all(row.warmup is None for row in rows):
        return {}
    return {"warmup_cut": np.array([np.nan if row.warmup is None else row.warmup for row in rows])}


def _seeds(seeds: list[int]) -> list[str] | np.ndarray:
    """As numbers; seeds of more than 63 bits, which no column holds, as texts."""
    return np.array(seeds, dtype=np.int64) if max(seeds, default=0) < 1 << 63 else [str(seed) for seed in seeds]


def _each(
    keys: Sequence[str], rows: Sequence[SweepRow], kinds: Mapping[str, list[Any]], cube: np.ndarray, names: list[str]
) -> pd.DataFrame:
    """A row a replication."""
    made = [(number, replication) for number, row in enumerate(rows) for replication in range(len(row.runs))]
    point = [rows[number].point for number, _ in made]
    row_of = np.array([number for number, _ in made], dtype=np.int64)
    replication = np.array([replication for _, replication in made], dtype=np.int64)
    failed = np.array([rows[number].runs[which] is None for number, which in made])
    columns: dict[str, Any] = {
        "point": np.array(point, dtype=np.int64),
        **{key: pd.Series([kinds[key][number] for number in point]) for key in keys},
        "policy": [rows[number].policy for number in row_of],
        "seed": _seeds([rows[number].seed for number in row_of]),
        "replication": replication,
        "status": np.where(failed, "failed", "done"),
    }
    for at, name in enumerate(names):
        columns[name] = cube[row_of, replication, at]
    return pd.DataFrame(columns)
