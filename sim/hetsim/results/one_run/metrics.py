"""Metrics of one run by name, and sets of metrics (`hetsim.results.declared`).

`summary_names` lists the metrics of every summary; the others are computed on request.  Names of sets (`usual`,
`cluster`, `all`) may be given in place of metrics.  A comparison shows those metrics of a set that apply to its runs,
and always those requested by their own name.
"""

from collections.abc import Callable, Iterable
from functools import partial

from hetsim import registry
from hetsim.errors import several
from hetsim.results.declared import DEFAULT_BOUND, declarations, in_set, unknown_metric
from hetsim.results.one_run.measured import Measured, Metric


def metrics(bound: float = DEFAULT_BOUND) -> dict[str, Metric]:
    """Return all metrics by name; `bound` (s) is used by the bounded slowdown."""
    return {name: one.function for name, one in declarations(bound).items()}


def summary_names(bound: float = DEFAULT_BOUND) -> list[str]:
    return in_set("summary", bound)


def metric(name: str, bound: float = DEFAULT_BOUND) -> Metric:
    """Return the metric of this name; UnknownName, with a suggestion, if not found."""
    declared = declarations(bound)
    if name not in declared:
        registry.check_loaded("metric", name)
        raise unknown_metric(name, declared)
    return declared[name].function


def evaluate(run: Measured, names: Iterable[str], bound: float = DEFAULT_BOUND) -> dict[str, float]:
    """Compute metrics by name, in the requested order."""
    return {name: metric(name, bound)(run) for name in names}


SETS: dict[str, Callable[[], Iterable[str]]] = {
    "usual": partial(in_set, "usual"),  # what a comparison shows unless told otherwise: read at a glance
    "cluster": partial(in_set, "cluster"),  # what people ask of a cluster's scheduler
    "all": declarations,
}


def check(name: str) -> None:
    """Raise UnknownName, with a suggestion, unless this is a metric or a metric set."""
    names = [*SETS, *declarations()]
    if name not in names:
        raise unknown_metric(name, names)


def listed(metrics: str | Iterable[str]) -> list[str]:
    """Return names of metrics and sets as a list; a text is a single name."""
    return [metrics] if isinstance(metrics, str) else list(several(metrics, "metrics", "a list of names"))


def expanded(names: Iterable[str]) -> list[str]:
    """Replace sets by their metrics; each metric once."""
    unique: dict[str, None] = {}
    for name in names:
        unique |= dict.fromkeys(SETS[name]() if name in SETS else [name])
    return list(unique)


def by_name(names: Iterable[str]) -> set[str]:
    """Return the names of single metrics; drop names of metric sets such as `usual`."""
    return {name for name in names if name not in SETS}
