"""Metrics, declared by `@metric(...)` on a function; lists of metrics use these.

    @metric(unit="s", better="less", sets=("usual:20",))
    def makespan(run: Measured) -> float:
        \"\"\"Last finish of a completed task - first arrival.\"\"\"

A user's metric is declared in the same way, in a script (`hetsim.metric`) or in a module of a package that the
entry-point group `hetsim.metrics` names.  Heavy imports are deferred until a metric is used.
"""

import importlib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar, get_args

from hetsim import registry
from hetsim.errors import UnknownName, UsageError, suggestion

Unit = Literal["s", "share", "ratio", "J", "money", "GPU s", "1/s", "tasks", "count", "tokens", "B"]
Better = Literal["more", "less", "neither"]
Of = Literal["tasks", "run"]
Set = Literal[
    "summary", "usual", "sweep", "cluster", "display", "page_cards", "page_tasks", "groups", "group_rows", "deadlines",
    "tokens", "fairness", "costs", "network", "calls",
]  # fmt: skip
Function = TypeVar("Function", bound=Callable[..., float])

# Modules of `hetsim.results.one_run` with built-in metrics, in the order of summaries and of `all`.
MODULES = (
    "task_metrics", "usage_metrics", "bounds", "plans", "calls",
    "fragmentation_metrics", "fairness", "network", "language_metrics",
)  # fmt: skip
# Names that several modules use; `ENERGY` and `COST` are also columns of tables.
RESPONSE_MEAN = DEFAULT_METRIC = "response_mean"
MAKESPAN, THROUGHPUT, WAIT_MEAN = "makespan", "throughput", "wait_mean"
TASK_COUNT, COMPLETED_COUNT, ENERGY, COST = "task_count", "completed_count", "energy_j", "cost"
DEFAULT_BOUND = 10.0  # Seconds: minimum length of a task in the bounded slowdown.
_BOUND = "{bound:g}"
_PACKAGE = "hetsim.results.one_run."


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declared metric; "{bound:g}" in a name stands for the bound of slowdowns (s)."""

    name: str
    function: Callable[[Any], float] = field(repr=False)
    unit: Unit
    better: Better
    estimand: Of
    weight: str | None
    sets: dict[str, float]
    title: str
    hide_if_zero: bool
    congested: bool
    needs_end: bool
    is_percent: bool
    module: str


_ours: dict[str, Declaration] = {}


def metric(
    *, unit: Unit, better: Better, of: Of = "tasks", weight: str | None = None, sets: tuple[str, ...] = (),
    title: str = "", hide_if_zero: bool = False, congested: bool = False, needs_end: bool = False,
    is_percent: bool = True, name: str = "", module: str = "",
) -> Callable[[Function], Function]:  # fmt: skip
    """Declare a metric by a function whose docstring is the definition.

    Parameters:
        unit: unit of the value; a share is shown in percent unless `is_percent` is False
        better: "more", "less", or "neither" (compared, but without a winner)
        of: "tasks" if the metric is defined for any group of tasks, "run" for the whole run only
        weight: if the value is a mean over tasks or tokens, the name of their number
            (`hetsim.results.one_run.estimands.WEIGHTS`)
        sets: sets that contain the metric ("usual": shown by every comparison and sweep).  Metrics of a set are shown
            in the order of declaration, but those with a number, such as "usual:20", come first, by number.  A metric
            defined by a user that is in any set is also shown in all summaries
        title: the name shown to users; by default the name in words
        hide_if_zero: do not show the metric as part of a set if its value is 0 for all policies
        congested: True if the values depend on congestion, as waits do, and are therefore skewed
            (`statistics.excess_kurtosis`)
        needs_end: show the metric as part of a set only if no run has a horizon and all runs have a value
        is_percent: show a share in percent
        name, module: replace the name and module of the function
    Returns: a decorator, which returns the function unchanged.
    Raises: UsageError: unknown unit or direction, or a name in use.
    """

    def declare(function: Function) -> Function:
        called = name or function.__name__
        places = {one: float(place or "inf") for one, _, place in (text.partition(":") for text in sets)}
        checks: list[tuple[str, str, Any]] = [("unit", unit, Unit), ("better", better, Better), ("of", of, Of)]
        for what, value, allowed in [*checks, *(("a set", one, Set) for one in places)]:
            if value not in get_args(allowed):
                raise UsageError(f'metric {called}: {what} must be {" or ".join(get_args(allowed))}; got "{value}"')
        words = title or called.removesuffix("_j").replace("_", " ")
        home = module or function.__module__
        is_ours = home.removeprefix(_PACKAGE) in MODULES
        if places and not is_ours:  # ours stand where they say something, those of others in all tables
            shown = ("summary", "sweep") if "usual" in places else ("summary",)
            places = dict.fromkeys(shown, math.inf) | places
        declared = Declaration(
            called, function, unit, better=better, estimand=of, weight=weight, sets=places, title=words,
            hide_if_zero=hide_if_zero, congested=congested, needs_end=needs_end,
            is_percent=is_percent, module=home
        )  # fmt: skip
        if is_ours:
            _ours[called] = declared
        elif called in _all_of_ours():
            raise UsageError(f'the name "{called}" is taken by another metric; give yours another name')
        else:
            registry.register(called, declared, "metric")
        return function

    return declare


@cache
def _all_of_ours() -> dict[str, Declaration]:
    for module in MODULES:
        importlib.import_module(_PACKAGE + module)
    order = {_PACKAGE + module: place for place, module in enumerate(MODULES)}
    return {one.name: one for one in sorted(_ours.values(), key=lambda one: order[one.module])}


@cache
def _load_packages() -> None:
    for reference in registry.of_packages("hetsim.metrics").values():
        importlib.import_module(reference.partition(":")[0])


def declarations(bound: float = DEFAULT_BOUND) -> dict[str, Declaration]:
    """Return all metrics by name, built-in ones first, for a bound of slowdowns (s)."""
    _load_packages()
    return _ours_by(bound) | registry.registered("metric")


@cache
def _ours_by(bound: float) -> dict[str, Declaration]:
    return {name.replace(_BOUND, f"{bound:g}"): one for name, one in _all_of_ours().items()}


def current_name(column: str) -> str:
    """Return the current name of a column that older files store under another name."""
    name, *end = column.partition("_ci_")
    count = {"tasks": TASK_COUNT, "launches": "launch_count"}.get(name, f"{name}_count")
    return (count if count in _all_of_ours() else name) + "".join(end)


def unknown_metric(name: str, names: Iterable[str]) -> UnknownName:
    """Build the UnknownName error for a metric, with similar names if any."""
    parts = tuple(filter(None, current_name(name).split("_")))
    shares = {one: sum(part.startswith(parts) for part in one.split("_")) for one in names}
    near = sorted(filter(shares.get, shares), key=lambda one: -shares[one])[:3]
    if near and (shares[near[0]] >= len(parts) or not suggestion(name, shares)):
        return UnknownName("metric", name, shares, f" (near: {', '.join(near)}; hetsim list metrics)")
    return UnknownName("metric", name, shares, " (hetsim list metrics)")


def declaration(name: str) -> Declaration | None:
    """Return a metric's declaration, or None if there is no such metric.

    The bounded slowdown is found with any number of seconds in its name (`bounded_slowdown_30s_mean`).
    """
    return declarations().get(name) or _all_of_ours().get(re.sub(r"_\d[\d.e+-]*s_", f"_{_BOUND}s_", name))


def in_set(name: str, bound: float = DEFAULT_BOUND) -> list[str]:
    """Metrics of the set `name`, in display order; bound (s): as for `declarations`."""
    those = {metric: one.sets[name] for metric, one in declarations(bound).items() if name in one.sets}
    return sorted(those, key=lambda metric: those[metric])


def added_to_summaries() -> tuple[str, ...]:
    """Names of metrics that a user's scripts and packages add to every summary."""
    _load_packages()
    return tuple(name for name, one in registry.registered("metric").items() if "summary" in one.sets)


def higher_is_better(metric: str) -> bool:
    declared = declaration(metric)
    return declared is not None and declared.better == "more"


def has_direction(metric: str) -> bool:
    """Return False if neither more nor less of the metric is better."""
    declared = declaration(metric)
    return declared is None or declared.better != "neither"


def of_groups(metric: str) -> bool:
    declared = declaration(metric)
    return declared is None or declared.estimand == "tasks"


def hide_if_zero(metric: str) -> bool:
    declared = declaration(metric)
    return declared is not None and declared.hide_if_zero
