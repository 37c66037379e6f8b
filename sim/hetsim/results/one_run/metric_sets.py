"""Names of sets of metrics, in place of metrics: `usual`, `cluster`, `all`.

Of a set a comparison shows what tells something of the runs at hand; a metric asked for by its own name is always
shown.
"""

from collections.abc import Callable, Iterable
from functools import partial

from hetsim.errors import several
from hetsim.results.declared import declarations, in_set, unknown_metric

SETS: dict[str, Callable[[], Iterable[str]]] = {
    "usual": partial(in_set, "usual"),  # what a comparison shows unless told otherwise: read at a glance
    "cluster": partial(in_set, "cluster"),  # what people ask of a cluster's scheduler
    "all": declarations,
}


def check(name: str) -> None:
    """Raise UnknownName with a suggestion unless it is a metric or a set."""
    names = [*SETS, *declarations()]
    if name not in names:
        raise unknown_metric(name, names)


def listed(metrics: str | Iterable[str]) -> list[str]:
    """Names of metrics and sets as a list; a single one may be given as a text."""
    return [metrics] if isinstance(metrics, str) else list(several(metrics, "metrics", "a list of names"))


def expanded(names: Iterable[str]) -> list[str]:
    """Expand metrics and sets to metrics, each once."""
    unique: dict[str, None] = {}
    for name in names:
        unique |= dict.fromkeys(SETS[name]() if name in SETS else [name])
    return list(unique)


def by_name(names: Iterable[str]) -> set[str]:
    """The metrics that were requested by name, not by a set."""
    return {name for name in names if name not in SETS}
