"""The outcome of one run: tables, metrics, warnings; display and storage."""

import math
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from hetsim.errors import RunError, UsageError, line_of
from hetsim.model.record import UNFINISHED, Record
from hetsim.results.declared import DEFAULT_BOUND, in_set, of_groups
from hetsim.results.formatting import formatter, json_values, lower_bound, units_of
from hetsim.results.one_run import metrics, store
from hetsim.results.one_run.calls import calls_table, not_back
from hetsim.results.one_run.fairness import gpu_seconds_of_tasks, rho_of_tasks
from hetsim.results.one_run.fragmentation_metrics import fragmentation_between, fragmentation_over_time
from hetsim.results.one_run.launches import launches_table
from hetsim.results.one_run.measured import Measured
from hetsim.results.one_run.modes import ModeTable
from hetsim.results.one_run.network import has_steps, links_table
from hetsim.results.one_run.plans import NOT_PROVEN, plain_note
from hetsim.results.one_run.rows import TableRows
from hetsim.results.one_run.steps import stage_figures, steps_table, token_gaps
from hetsim.results.one_run.tables import due_times, observed_until, stages_table, tasks_table
from hetsim.results.one_run.usage import Usage, devices_table, timeline_table, usage
from hetsim.results.panels import Picture, drawn
from hetsim.results.statistics import Interval
from hetsim.results.stored_files import reading_stored

UNFINISHED_WARNING = 0.01


class Result:
    """One run.  Tables and metrics are computed from the record on first use.

    `name`, `seed`, `replication` and `policy` (with all parameters) identify the run; `scenario` is the resolved
    scenario as YAML text, if the run has one; `error` is the message of a failed run, whose tables end at the failure.
    """

    def __init__(
        self,
        record: Record | None,
        *,
        name: str = "",
        seed: int = 0,
        replication: int = 0,
        policy: str = "",
        scenario: str | Callable[[], str] | None = None,
        error: str | None = None,
        inputs: dict[str, str] | None = None,
        bound: float = DEFAULT_BOUND,
    ):
        if record is not None:
            self.record = record
            name, policy = name or record.input.name, policy or record.input.policy
        self.name, self.seed, self.replication, self.policy = name, seed, replication, policy
        self._scenario, self.error, self.bound = scenario, error, bound
        self.undeclared = ""  # a warning of files that were opened and not named
        self.saved: store.Saved | None = None  # the directory of a loaded run
        # digests of the files and user policies that the scenario names
        self.inputs: dict[str, str] = {} if inputs is None else inputs
        self.explained: Any = None  # the sweep of `hetsim.results.one_run.explain`, kept between questions
        self._values: dict[str, float] = {}

    @property
    def scenario(self) -> str | None:
        """The resolved scenario as YAML text; None if the run has no scenario."""
        if callable(self._scenario):
            self._scenario = self._scenario()
        return self._scenario

    @scenario.setter
    def scenario(self, text: str | None) -> None:
        self._scenario = text

    # A loaded run has tables but no record until one is needed.
    @cached_property
    def record(self) -> Record:
        """The engine's record; for a loaded run it is read on first use."""
        assert self.saved is not None
        return store.load_record(self.saved)

    @property
    def directory(self) -> Path | None:
        """The directory of a loaded run, or None."""
        return None if self.saved is None else self.saved.directory

    @cached_property
    def modes(self) -> ModeTable:
        return ModeTable(self.record.input.tasks, self.record.input.cluster)

    @cached_property
    def end(self) -> float:
        """Simulated time at which the run ended."""
        return self.record.end

    @cached_property
    def warmup(self) -> float:
        return self.record.input.warmup

    @cached_property
    def horizon(self) -> float:
        """Simulated time at which the run was set to end; inf if it runs to completion."""
        return self.record.input.horizon

    @cached_property
    def notes(self) -> dict[str, Any]:
        """Notes of the policy on its run; planners note `planned_makespan`, for example."""
        return plain_note(self.record.notes)

    @property
    def planning(self) -> float:
        """Wall-clock seconds of planning, never saved; NaN without a plan or if loaded."""
        return math.nan if self.saved is not None else self.record.planning

    @property
    def window(self) -> tuple[float, float]:
        """[warmup, end): the time interval that device metrics cover."""
        return min(self.warmup, self.end), self.end

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """The table of tasks that arrived; a pipeline's request is one row."""
        return self._table("tasks", lambda: tasks_table(self.record, self.modes, self.bound))

    @cached_property
    def stages(self) -> pd.DataFrame:
        """The table of the stages of each request that arrived (or of each of its items)."""
        return self._table("stages", lambda: stages_table(self.record, self.modes))

    @cached_property
    def by_stage(self) -> pd.DataFrame:
        """Metrics of each pipeline stage (`hetsim.results.one_run.steps`)."""
        return stage_figures(self)

    @cached_property
    def launches(self) -> pd.DataFrame:
        """The table of launches."""
        return self._table("launches", lambda: launches_table(self.record, self.modes))

    @cached_property
    def devices(self) -> pd.DataFrame:
        """The table of devices over the window; the cores of a node are one device."""
        return self._table("devices", lambda: devices_table(self.record, self.usage))

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """Waiting and running tasks and busy devices over time, as steps."""
        return self._table("timeline", lambda: timeline_table(self.record, self.modes))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The table of step events of language-model replicas."""
        return self._table("steps", lambda: steps_table(self.record))

    @cached_property
    def links(self) -> pd.DataFrame:
        """The table of network links used by jobs on several nodes, within the window."""
        return self._table("links", lambda: links_table(self.record, *self.window))

    @cached_property
    def token_gaps(self) -> tuple[np.ndarray, np.ndarray]:
        """Gaps between tokens of answers in the window, and how often each occurred."""
        return token_gaps(self.record, *self.window)

    @cached_property
    def calls(self) -> pd.DataFrame:
        """The table of calls by clients that time out or retry."""
        return self._table("calls", lambda: calls_table(self.record, self.tasks))

    def timeline_by(self, by: str) -> pd.DataFrame:
        """Split the timeline by device type or node.

        Parameters: by: "type" or "node".
        Returns: the timeline, with columns for each device type or node.
        Raises: UsageError: another `by`.
        """
        if by not in ("type", "node"):
            raise UsageError(f'by must be "type" or "node"; got "{by}"')
        return timeline_table(self.record, self.modes, by)

    @cached_property
    def fragmentation_over_time(self) -> pd.DataFrame:
        """GPUs allocated, free, and free but unusable, as steps."""
        return fragmentation_over_time(self)

    def fragmentation_between(self, edges: np.ndarray) -> np.ndarray:
        """Mean fragmentation between consecutive times; NaN if no GPU is free."""
        return fragmentation_between(self, edges)

    @cached_property
    def rho(self) -> np.ndarray:
        """Finish-time fairness ρ of every row of `tasks`; NaN if not completed."""
        return rho_of_tasks(self)

    @cached_property
    def deadline_later(self) -> np.ndarray:
        """Mask of rows of `tasks` with a deadline after the end of the run."""
        record = self.record
        return TableRows(record)(due_times(record) > observed_until(record))

    @cached_property
    def gpu_seconds(self) -> np.ndarray:
        """GPU-seconds computed for every row of `tasks`."""
        return gpu_seconds_of_tasks(self)

    @cached_property
    def usage(self) -> Usage:
        return usage(self.record, self.modes, *self.window)

    @cached_property
    def measured(self) -> Measured:
        return Measured(self)

    def _table(self, name: str, made: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        if self.saved is None:
            return made()
        file = f"{name}.parquet"
        is_there = file in self.saved.files or name not in store.FURTHER
        return store.read_table(self.saved, file) if is_there else pd.DataFrame()

    # Metrics ----------------------------------------------------------------------------------------------

    def metric(self, name: str) -> float:
        """Get the value of one metric.

        Parameters: name: name of the metric.
        Returns: its value, in base units.
        Raises: UnknownName: no metric has that name; the error suggests one; RunError: your own metric raised an error.
        """
        function = metrics.metric(name, self.bound)
        if name not in self._values:
            try:
                value = function(self.measured)
            except Exception as error:
                if function.__module__.startswith("hetsim."):
                    raise
                text = f'metric "{name}" raised {type(error).__name__} ({line_of(error)}): {error}'
                raise RunError(text) from error
            self._values[name] = float(value) if isinstance(value, np.floating) else value
        return self._values[name]

    @property
    def names(self) -> list[str]:
        """Names of the metrics in the summary."""
        some = [in_set(name) for name in ("tokens", "fairness", "costs", "network", "calls")]
        if self.saved is not None:
            having = [any(name in self._values for name in names) for names in some]
        else:
            run = self.record.input
            several = len(run.tasks.users) > 1 and not run.language
            having = [bool(run.language), several, run.cluster.priced, has_steps(self.modes)]
            having.append(self.record.attempt_of is not None)
        further = [name for names, here in zip(some, having, strict=True) if here for name in names]
        return list(dict.fromkeys([*metrics.summary_names(self.bound), *further]))

    def values(self, names: Iterable[str] | None = None) -> dict[str, float]:
        """Get the values of several metrics.

        Parameters: names: names of metrics; without it those of the summary.
        Returns: values by name.
        """
        return {name: self.metric(name) for name in (self.names if names is None else names)}

    @property
    def summary(self) -> pd.DataFrame:
        """Metrics of the summary: index `metric`, column `value`."""
        values = self.values()
        return pd.DataFrame({"value": list(values.values())}, index=pd.Index(list(values), name="metric"), dtype=float)

    def by(self, group: str, names: Iterable[str] | None = None) -> pd.DataFrame:
        """Get metrics of groups of tasks.

        Parameters: group: a column of `tasks` (class, device_type, ...), or `gpus` (number requested); names: metrics.
        Returns: one row per group, one column per metric.
        """
        from hetsim.results.one_run.groups import Grouping, by_group

        of_tasks = [name for name in self.names if of_groups(name)]
        return by_group(self, Grouping(group, metrics=tuple(of_tasks if names is None else names)))

    def interval(self, metric: str, confidence: float = 0.95) -> NoReturn:
        """Refuse an interval: one run has no spread of its metrics (see `batch_means`).

        Parameters: metric: its name; confidence: confidence level.
        Raises: UsageError: always.
        """
        metrics.metric(metric, self.bound)
        raise UsageError(
            f"one run gives no confidence interval for {metric}: its tasks are not independent. "
            "Use replications (hetsim.replicate, or --replications 10)."
        )

    def batch_means(self, metric: str, batches: int = 20, confidence: float = 0.95) -> Interval:
        """Compute an interval from this one run, if it is long enough, by batch means.

        Parameters: metric: its name; batches: number of batches; confidence: confidence level.
        Returns: the interval.
        Raises: UsageError: the run is too short, or its batches are correlated.
        """
        from hetsim.results.one_run.estimands import batch_means

        return batch_means(self, metric, batches, confidence)

    @cached_property
    def warnings(self) -> list[str]:
        """Warnings that a reader of the metrics should know."""
        texts = []
        if self.error:
            texts.append(f"the run failed, so the tables end at the failure: {self.error}")
        texts += [*self.record.input.warnings, *([self.undeclared] if self.undeclared else [])]
        total, unfinished = len(self.measured.status), self.measured.count(UNFINISHED)
        if total and unfinished > UNFINISHED_WARNING * total:
            texts.append(
                f"{unfinished} of {total} tasks ({unfinished / total:.1%}) were unfinished when the run ended: "
                "means leave them out, so means are too low"
            )
        texts += not_back(self.record)
        later = self.measured.deadline_later
        if later.any() and not self.measured.series("met_deadline").notna().any():
            texts.append(
                f"every deadline ({later.sum():,} tasks) lies after the end of the run: the number met is undefined; "
                "make the horizon longer than the deadlines"
            )
        if not total:
            texts.append("no task arrived in the window")
        if self.notes.get("optimal") is False:
            gap = self.notes.get("gap")
            how_far = f": gap {100 * gap:.3g} %" if isinstance(gap, float) else ""
            texts.append(f"the plan of {self.policy or 'the policy'} {NOT_PROVEN}{how_far}")
        return texts

    # Showing and saving -----------------------------------------------------------------------------------

    def text(self, name: str) -> str:
        """Format the value of one metric.

        Parameters: name: name of the metric.
        Returns: the value with its unit; with `≥` if a percentile depends on unfinished tasks.
        """
        value = self.metric(name)
        column = re.sub(r"_(mean|max|p\d+)$", "", name)
        if math.isinf(value) and column in self.tasks:
            values = self.measured.known_values(column)
            return lower_bound(float(values.max()) if len(values) else value, units_of(name))
        return formatter(name)(value)

    def plot(self) -> Picture:
        """Return the default picture of this run (`hetsim.plots` has others)."""
        return drawn("default", self)

    def explain(self, task: Any = None, *, by: str = "class") -> pd.DataFrame:
        """Explain why a task waited, or why all tasks waited.

        Parameters: task: id of a task; without it all tasks; by: grouping of all tasks: "class", "gpus" or "user".
        Returns: the time intervals of the task's wait, or for all tasks the seconds of each cause.
        """
        from hetsim.results.one_run import explain

        return explain.explain_all(self, by) if task is None else explain.explain(self, task)

    def to_json(self) -> dict[str, Any]:
        """Return {"scenario", "seed", "summary": {metric: value}}; null if undefined."""
        return {"scenario": self.name, "seed": self.seed, "summary": json_values(self.values())}

    def save(self, directory: str | Path) -> Path:
        """Write the directory of the run; an existing one is replaced.

        Parameters: directory: the directory to write.
        Returns: the directory.
        """
        return store.save(self, Path(directory))

    @classmethod
    def load(cls, directory: str | Path) -> "Result":
        """Load a run from its directory; tables are read when used.

        Parameters: directory: the directory of the run.
        Returns: the run.
        Raises: UsageError: the directory has no run, or is damaged.
        """
        with reading_stored(directory):
            saved = store.open_run(Path(directory))
            result = cls(None, inputs=saved.inputs, **saved.named)
            result.saved = saved
            result.__dict__.update(saved.stated)  # instead of what would be derived from the record
            result._values.update(saved.values)
        return result

    def _title(self) -> str:
        return " · ".join(part for part in (self.name or "run", self.policy, f"seed {self.seed}") if part)

    def _shown(self) -> dict[str, str]:
        return {name: self.text(name) for name in in_set("display") if not math.isnan(self.metric(name))}

    def __repr__(self) -> str:
        lines = [f"{name:<18}{text}" for name, text in self._shown().items()]
        return "\n".join([f"<Result {self._title()}>", *lines, *(f"! {warning}" for warning in self.warnings)])

    def _repr_html_(self) -> str:
        return html_table(self._title(), self._shown(), self.warnings)


def html_table(title: str, rows: dict[str, str], warnings: Iterable[str]) -> str:
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
    notes = "".join(f"<div>⚠ {escape(text)}</div>" for text in warnings)
    return f"<table><caption>{escape(title)}</caption>{cells}</table>{notes}"
