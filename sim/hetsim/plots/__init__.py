"""Pictures of results.

    hetsim.plots.gantt(result).save("gantt.png")

Each function returns a picture as data (`hetsim.results.panels`): notebooks show it, `save` writes it, `figure` and
`draw` are for users of matplotlib.  `shelves` draws a plan of `dual_approximation` with the task classes of its proof.
"""

from typing import TYPE_CHECKING, Any

from hetsim.plots.cdf import cdf
from hetsim.plots.comparison import comparison, distributions, groups
from hetsim.plots.gantt import default, gantt, shelves, timeline
from hetsim.plots.over_time import batches, fragmentation, links, over_time, power
from hetsim.plots.serving import serving
from hetsim.plots.sweeps import against, sweep_map
from hetsim.plots.tradeoff import pareto, regret
from hetsim.registry import load_object

if TYPE_CHECKING:
    from hetsim.planning.picture import pipeline

# pictures of other packages, loaded when they are first used
_OF_ROOMS = {"decision": "hetsim.search.picture:decision", "pipeline": "hetsim.planning.picture:pipeline"}

__all__ = [
    "against", "batches", "cdf", "comparison", "default", "distributions", "fragmentation", "gantt", "groups",
    "links", "over_time", "pareto", "pipeline", "power", "regret", "serving", "shelves",
    "sweep_map", "timeline",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _OF_ROOMS:
        raise AttributeError(f"module 'hetsim.plots' has no attribute {name!r}")
    return load_object(_OF_ROOMS[name])
