"""The metrics of one run by name (`hetsim.results.declared`).

`summary_names` names those of every summary; the others are computed when asked for by name.
"""

from collections.abc import Iterable

from hetsim import registry
from hetsim.results.declared import DEFAULT_BOUND, declarations, in_set, unknown_metric
from hetsim.results.one_run.measured import Measured, Metric


def metrics(bound: float = DEFAULT_BOUND) -> dict[str, Metric]:
    """All metrics by name; `bound` (s) is used by the bounded slowdown."""
    return {name: one.function for name, one in declarations(bound).items()}


def summary_names(bound: float = DEFAULT_BOUND) -> list[str]:
    """Names of the metrics in every summary, in order."""
    return in_set("summary", bound)


def metric(name: str, bound: float = DEFAULT_BOUND) -> Metric:
    """The metric of a name; UnknownName with a suggestion if there is none."""
    declared = declarations(bound)
    if name not in declared:
        registry.check_loaded("metric", name)
        raise unknown_metric(name, declared)
    return declared[name].function


def evaluate(run: Measured, names: Iterable[str], bound: float = DEFAULT_BOUND) -> dict[str, float]:
    """Values of metrics by name, in the requested order."""
    return {name: metric(name, bound)(run) for name in names}
