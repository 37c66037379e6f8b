"""The outcome of a sweep: one tidy table with a row for each point and policy.

Columns of `table`, in this order:

    point           number of the point, from 0; the same for all policies of a point
    one per key     swept values, under the key's name in the scenario (`cluster.nodes.0.count`): numbers as numbers,
                    values with a unit in base units (seconds, bytes, per second), others as text
    policy          the policy's label
    seed            seed of the runs; replication r has the same arrivals, sizes and faults in all rows with one seed
    replications    number of replications of the row
    warmup_cut      with `warmup: auto`: seconds excluded at the start
    status          done or failed
    error           reason of a failure; the metrics of a failed row are missing
    warnings        warnings of the runs
    one per metric  with several replications the mean; METRIC_ci_low and METRIC_ci_high (95 %) follow all means

`by_replication` has a row per replication with its values in place of means and intervals.  If a metric is undefined in
some replication of a row (a makespan with unfinished tasks), it is missing in the row.  Energy is measured up to one
common end for all policies of a point and replication.  If a precision was requested and policies have different
numbers of replications, energy is only computed for replications that all policies have, as in a comparison.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from hetsim.errors import DamagedFile, UnknownName, UsageError
from hetsim.results.declared import current_name, has_direction, higher_is_better, in_set
from hetsim.results.formatting import formatter, json_number, metric_name, several, units_of
from hetsim.results.many_runs.point_differences import FACTS, differences, rows_where
from hetsim.results.stored_files import check_names, read_frame, unsealed, verify

MARK = "sweep.json"
TABLE = "table.parquet"
EACH = "replications.parquet"
SCENARIO = "scenario.yaml"
TABLES = "tables.json"  # File with the digests of a finished sweep's other files.

SHOWN_ROWS = 40


class Sweep:
    """The results of a sweep.  Attributes:

    table            a row per point and policy: its keys, and metrics with the ends of their 95 % intervals
    by_replication   the metrics of every replication, one row each; columns that begin with _ are the numbers of
                     tasks, tokens or the like over which means are taken
    keys             names of the swept keys other than the policy
    metrics          the requested metrics; if there are any, only these and the metric of a `precision` are shown
    points           the values of the keys as the scenario file writes them, one row per point
    name, seed       name and seed of the scenario
    remarks          facts that a reader of the metrics should know
    replications     replications of every row: a number, or {precision, metric, max, confidence}
    """

    def __init__(
        self,
        table: pd.DataFrame | Callable[[], pd.DataFrame],
        by_replication: pd.DataFrame | Callable[[], pd.DataFrame],
        points: pd.DataFrame,
        *,
        name: str = "",
        seed: int = 0,
        metrics: Iterable[str] = (),
        remarks: Iterable[str] = (),
        replications: int | Mapping[str, Any] = 1,
    ):
        self._table, self._by_replication, self.points = table, by_replication, points
        self.name, self.seed = name, seed
        self.metrics, self.remarks = list(metrics), list(remarks)
        self.replications = replications if isinstance(replications, int) else dict(replications)
        self.directory: Path | None = None

    @cached_property
    def table(self) -> pd.DataFrame:
        """The table: a row per point and policy."""
        return self._table() if callable(self._table) else self._table

    @cached_property
    def by_replication(self) -> pd.DataFrame:
        """The table with a row per replication."""
        return self._by_replication() if callable(self._by_replication) else self._by_replication

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

        The best of many estimates is biased: before you rely on the row, run it again with another seed, as
        `hetsim.tune` does.

        Parameters: metric: its name; by: columns; return the best row of each combination of their values.
        Returns: the row, or with `by` a table.
        Raises: UsageError: the metric has no better direction, or no row has a value.
        """
        self._known(metric)
        if not has_direction(metric):
            raise UsageError(f"{metric_name(metric)}: neither more nor less is always better; sort the table yourself")
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
        """Arrange a metric as a grid of two keys.

        Parameters: x, y: keys of columns and of rows; metric: its name; where: values of other columns, such as
            {"policy": "sjf"}; values may be texts as in a scenario (24/h) or in base units.
        Returns: the grid.
        Raises: UsageError: several rows belong to one cell, or x is y.
        """
        self._known(metric)
        frame = rows_where(self, self.table, where)
        for column in (x, y):
            self._column(column)
        if x == y:
            raise UsageError(f"x and y must be different keys; got {x} twice")
        if frame.duplicated([x, y]).any():
            others = [name for name in [*self.keys, "policy"] if name not in (x, y) and frame[name].nunique() > 1]
            more = f': choose {", ".join(others)} with where={{"{others[0]}": ...}}' if others else ""
            raise UsageError(f"several rows have the same {x} and {y}{more}")
        return frame.pivot(index=y, columns=x, values=metric)

    def differences(self, metric: str, base: str | None = None, confidence: float = 0.95) -> pd.DataFrame:
        """Compare the policies at every point, paired by replication.

        Parameters: metric: its name; base: the policy with which others are compared; confidence: confidence level.
        Returns: a row for each point and pair (`point_differences.differences`).
        """
        return differences(self, metric, base, confidence)

    def _known(self, metric: str) -> None:
        if metric not in self.table.columns or metric in (*FACTS, *self.keys):
            names = [name for name in self.table.columns if name not in (*FACTS, *self.keys)]
            kept = ", ".join(n for n in names if not n.startswith("_") and not n.endswith(("_ci_low", "_ci_high")))
            raise UnknownName("metric", metric, names, f" of the sweep ({kept}); add it with metrics=")

    def _column(self, name: str) -> None:
        columns = [*self.keys, *(fact for fact in FACTS if fact in self.table)]
        if name not in columns:
            raise UnknownName("column", name, columns, f" (there are {', '.join(columns)})")

    # How it is shown ----------------------------------------------------------------------------------------

    @property
    def shown_metrics(self) -> list[str]:
        """Metrics to show: that of the requested precision, and the chosen or usual ones."""
        usual = [name for name in in_set("sweep") if name in self.table and self.table[name].notna().any()]
        shown = self.metrics or usual
        reached = [] if isinstance(self.replications, int) else [self.replications["metric"]]
        return [name for name in reached if name not in shown and name in self.table] + shown

    def shown(self, rows: int | None = SHOWN_ROWS) -> tuple[list[str], list[list[str]]]:
        """Return the titles and the first `rows` rows as text, metrics with their units."""
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
        cells += [self._texts(frame, name) for name in self.shown_metrics]
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
        """The sweep in a line: `load: 9 points × 3 policies, 5 replications each, seed 1`."""
        points, policies = self.table["point"].nunique(), self.table["policy"].nunique()
        parts = [f"{points:,} point{'s' if points != 1 else ''}"]
        if policies > 1 and len(self.table) == points * policies:
            parts[0] += f" × {policies} policies"
        sound = self.table[self.table["status"] == "done"] if len(self.failed) < len(self) else self.table
        low, high = int(sound["replications"].min()), int(sound["replications"].max())
        if high > 1:
            parts.append(f"{low} to {high} replications each" if low < high else f"{high} replications each")
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
        titles, rows = self.shown()
        head = "".join(f"<th>{escape(title)}</th>" for title in titles)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        more = f"<div>… {len(self) - SHOWN_ROWS:,} more rows</div>" if len(self) > SHOWN_ROWS else ""
        notes = "".join(f"<div>{escape(text)}</div>" for text in self.remarks)
        table = f"<table><caption>{escape(self.title)}</caption><tr>{head}</tr>{body}</table>"
        return f'<div style="overflow-x: auto">{table}</div>{more}{notes}'

    def to_json(self, by_replication: bool = False) -> dict[str, Any]:
        """Return the rows as plain values for programs.

        Parameters: by_replication: return a row per replication.
        Returns: {"scenario", "seed", "keys", "metrics", "rows": [{point, policy, status, ..., values, metrics}]};
            values: by key; a metric is a value, or {mean, ci_low, ci_high} with several replications.
        """
        frame = self.by_replication if by_replication else self.table
        means = [
            str(name) for name in frame.columns
            if name not in (*FACTS, *self.keys)
            and not str(name).endswith(("_ci_low", "_ci_high"))
            and not str(name).startswith("_")  # numbers of customers, for the estimates
        ]  # fmt: skip
        written = self.points.to_dict("records")
        points = []
        for row in frame.to_dict("records"):
            facts = {name: row[name] for name in FACTS if name in row}
            values = {"values": dict(written[row["point"]])}
            points.append({**facts, **values, "metrics": {name: _json_metric(row, name) for name in means}})
        return {"scenario": self.name, "seed": self.seed, "keys": self.keys, "metrics": self.metrics, "rows": points}

    # On disk ------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, directory: str | Path) -> "Sweep":
        """Load a finished sweep.

        Parameters: directory: the directory of the sweep.
        Returns: the sweep.
        Raises: UsageError: the directory has no sweep, or its sweep is not finished or is damaged.
        """
        folder = Path(directory)
        again = "the same command with --resume continues it"
        try:
            check_names(folder / MARK, [MARK, TABLES, TABLE, EACH])
            about = unsealed(folder / MARK)
            if not (folder / TABLE).is_file():
                raise UsageError(f"the sweep in {folder} is not finished; {again}")
            if (folder / TABLES).is_file():
                files = unsealed(folder / TABLES)["files"]
                check_names(folder / TABLES, files)
                for name, digest in files.items():
                    verify(folder / name, digest)
            table, each = (read_frame(folder / name).rename(columns=current_name) for name in (TABLE, EACH))
            points = pd.DataFrame(about["points"], columns=pd.Index(about["keys"]), dtype=object)
            loaded = cls(
                table, each, points, name=about["name"], seed=about["seed"], remarks=about["remarks"],
                metrics=map(current_name, about["metrics"]), replications=about["replications"],
            )  # fmt: skip
        except DamagedFile as damage:
            raise UsageError(f"{damage}; repeat the same command with --resume") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise UsageError(f"{folder} is not the directory of a sweep: {problem}") from None
        loaded.directory = folder
        return loaded


def _json_metric(row: Mapping[Any, Any], name: str) -> Any:
    if f"{name}_ci_low" not in row:
        return json_number(row[name])
    return {"mean": json_number(row[name]), **{end: json_number(row[f"{name}_{end}"]) for end in ("ci_low", "ci_high")}}
