"""Groups of tasks: by class, requested GPUs (or cores), user, or another column.

Groups depend on the workload, not on the policy: `gpus` is what a task requests, and the users with rows of their own
are those with the highest demand.  Rows therefore mean the same for all policies and replications.

Replications store metrics, not tasks: metrics of groups must be requested before the runs, by a `Grouping` that is
written as a text in the list of metrics.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UsageError, suggestion
from hetsim.model.mode import Shape
from hetsim.model.record import RunInput
from hetsim.results.declared import DEFAULT_BOUND, declarations, in_set, of_groups
from hetsim.results.one_run import metrics
from hetsim.results.one_run.estimands import weights
from hetsim.results.one_run.fairness import core_demand, gpu_demand
from hetsim.results.one_run.measured import Measured, Run
from hetsim.results.one_run.modes import ModeTable, units
from hetsim.results.one_run.rows import TableRows

USUAL = ("class", "gpus", "user")  # Groupings of a comparison by default.

TITLES = {"class": "class", "gpus": "GPUs asked for", "user": "user"}

MAX_USERS = 10  # Maximum number of users with a row of their own; all others share one row.
OTHERS = "all others"

NO_GPU, PART = "none", "part of one"
LESS_THAN_A_CORE = "below 1 core"

_MARK = "by:"
_KEPT = "_by:"


def group_metrics(bound: float = DEFAULT_BOUND) -> list[str]:
    return in_set("groups", bound)


@dataclass(frozen=True)
class Grouping:
    """A column to group tasks by.

    named: users that have a row of their own; all others share one.  metrics: empty for the usual ones.
    """

    by: str
    named: tuple[str, ...] | None = None
    metrics: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return _MARK + json.dumps([self.by, self.named, self.metrics], ensure_ascii=False)

    @staticmethod
    def parse(text: str) -> "Grouping | None":
        """Parse the text of a grouping; None if the text is the name of a metric."""
        if not text.startswith(_MARK):
            return None
        by, named, names = json.loads(text.removeprefix(_MARK))
        return Grouping(by, None if named is None else tuple(named), tuple(names))


def title(by: str, groups: Iterable[object] = ()) -> str:
    names = [str(group) for group in groups]
    if by == "gpus" and names and all(name.endswith((" core", " cores")) for name in names):
        return "cores asked for"
    return TITLES.get(by, by)


def checked(by: str | Iterable[str]) -> list[str]:
    """Return each grouping once; UsageError, with a similar name, for an unknown one."""
    names = list(dict.fromkeys([by] if isinstance(by, str) else by))
    for name in names:
        if name not in USUAL:
            near = suggestion(name, USUAL) or f"; it is one of {', '.join(USUAL)}"
            raise UsageError(f'tasks cannot be grouped by "{name}"{near}')
    return names


def groupings(run: RunInput, by: Iterable[str], further: Iterable[str] = ()) -> list[Grouping]:
    """Return a `Grouping` for each column with several groups in the workload.

    further: names of metrics to add to the usual ones; metrics that are not defined for groups are ignored.
    """
    extra = [name for name in further if name in declarations() and of_groups(name)]
    names = (*group_metrics(), *(name for name in extra if name not in group_metrics()))
    tasks = run.tasks
    groups = {"user": tasks.users, "class": tasks.classes, "gpus": set(size_labels(tasks.shapes))}
    return [Grouping(name, tuple(named_users(run)) if name == "user" else None, names)
            for name in by if len(groups[name]) > 1]  # fmt: skip


def named_users(run: RunInput) -> list[str]:
    tasks = run.tasks
    wanted = gpu_demand(ModeTable(tasks, run.cluster))
    if not wanted.any():
        wanted = core_demand(ModeTable(tasks, run.cluster))
    codes = np.zeros(len(tasks), np.int64) if tasks.user_code is None else tasks.user_code
    demand = np.bincount(codes, weights=wanted, minlength=len(tasks.users))
    order = np.argsort(-demand, kind="stable")
    # One more than the most is better named than called all others.
    limit = MAX_USERS + 1 if len(order) == MAX_USERS + 1 else MAX_USERS
    return [tasks.users[code] for code in order[:limit].tolist()]


def size_labels(shapes: Sequence[Shape]) -> list[str]:
    """Label each shape (set of modes) by its GPUs, or by cores if no task uses a GPU."""
    labels = [gpus_label(shape) for shape in shapes]
    return labels if any(label != NO_GPU for label in labels) else [cores_label(shape) for shape in shapes]


def cores_label(shape: Shape) -> str:
    low, high = (choose(units(mode) for mode in shape.modes) for choose in (min, max))
    if low != high:
        return f"{low:g} to {high:g} cores"
    if high < 2:
        return "1 core" if high >= 1 else LESS_THAN_A_CORE
    power = 2 ** math.floor(math.log2(high))
    return f"{power}–{2 * power - 1} cores"


def gpus_label(shape: Shape) -> str:
    """Label of the GPUs that a task requests.

    Counts up to 8 and powers of two have labels of their own; the counts between two powers share a label, such as
    `9–15`.  An elastic task, which can run on several counts, is labeled with its smallest and largest count: `2 to 8`.
    """
    sizes = sorted({mode.gpu_share for mode in shape.modes if mode.gpus})
    if not sizes:
        return NO_GPU
    low, high = sizes[0], sizes[-1]
    if high < 1:
        return PART
    if low != high:
        return f"{low:g} to {high:g}"
    count = round(high)
    power = 2 ** math.floor(math.log2(count))
    return f"{count}" if count <= 8 or count == power else f"{power + 1}–{2 * power - 1}"


def by_number(label: str) -> tuple[float, float]:
    """Sort key of a size label: its (largest) number; labels of elastic tasks last."""
    if label in (NO_GPU, PART, LESS_THAN_A_CORE):
        return (-1.0 if label == NO_GPU else 0.0), 0.0
    label = label.removesuffix(" cores").removesuffix(" core")
    if " to " in label:
        low, high = label.split(" to ")
        return float(high) + 0.25, float(low)
    return float(label.split("–")[-1]), 0.0


def _codes(result: Run, grouping: Grouping) -> tuple[np.ndarray, list[Any]]:
    if grouping.by == "gpus":
        record = result.record
        labels = size_labels(record.input.tasks.shapes)
        sizes = sorted(dict.fromkeys(labels), key=by_number)
        return np.array([sizes.index(name) for name in labels])[TableRows(record)(record.input.tasks.shape)], sizes
    frame = result.tasks
    if grouping.by not in frame.columns:
        columns = ", ".join(["gpus", *frame.columns])
        raise UsageError(f'tasks have no column "{grouping.by}" to group by; there are {columns}')
    if grouping.named is not None:
        place = {name: number for number, name in enumerate(grouping.named)}
        names = frame[grouping.by].astype("category").cat
        others = len(place)
        lookup = np.array([place.get(str(name), others) for name in names.categories] + [-1])
        return lookup[names.codes.to_numpy()], [*grouping.named, OTHERS]
    codes, values = pd.factorize(frame[grouping.by], sort=True)
    return np.asarray(codes), list(values)


def by_group(result: Run, grouping: Grouping, weighted: bool = False) -> pd.DataFrame:
    """Return one run's metrics by group; weighted: also counts that weight the means."""
    chosen = grouping.metrics or group_metrics(result.bound)
    for name in chosen:
        metrics.metric(name, result.bound)
        if not of_groups(name):
            raise UsageError(f"{name} is a metric of the whole run; groups of tasks have no such metric")
    codes, values = _codes(result, grouping)
    codes = result.measured.chosen(codes)
    rows = np.arange(len(codes)) if result.measured.rows is None else result.measured.rows
    order = np.argsort(codes, kind="stable")
    limits = np.searchsorted(codes[order], np.arange(len(values) + 1))
    by_value = {}
    for number, value in enumerate(values):
        if len(mine := rows[order[limits[number] : limits[number + 1]]]):
            run = Measured(result, mine)
            by_value[value] = metrics.evaluate(run, chosen, result.bound) | (weights(run, chosen) if weighted else {})
    columns = list(next(iter(by_value.values()), dict.fromkeys(chosen)))
    return pd.DataFrame.from_dict(by_value, orient="index", columns=columns).rename_axis(grouping.by)


# Of replications ------------------------------------------------------------------------------------------------


def kept_values(result: Run, grouping: Grouping) -> dict[str, float]:
    """Return the metrics of all groups as one mapping from column names to values."""
    return {
        _KEPT + json.dumps([grouping.by, str(group), str(name)], ensure_ascii=False): float(value)
        for group, row in by_group(result, grouping, weighted=True).iterrows() for name, value in row.items()
    }  # fmt: skip


def kept_by(columns: Iterable[str], by: str) -> dict[tuple[str, str], str]:
    """Map (group, metric) to its column name from `kept_values`, for grouping `by`."""
    columns_by_key = {}
    for column in columns:
        if column.startswith(_KEPT):
            what, group, metric = json.loads(column.removeprefix(_KEPT))
            if what == by:
                columns_by_key[group, metric] = column
    return columns_by_key
