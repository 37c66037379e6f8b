"""Pictures of results.

    ax = sim.plots.gantt(result)
    ax.figure.savefig("gantt.png")

`shelves` draws a plan of `dual_approximation` as its proof sees it.  Each function draws on the axes given, or on a
figure of its own, and returns the axes.  matplotlib is used through its objects only: no window opens, no global state
changes, and any number of pictures can be made.
"""

from sim.plots.cdf import cdf
from sim.plots.comparison import comparison
from sim.plots.default import default
from sim.plots.distributions import distributions
from sim.plots.fragmentation import fragmentation
from sim.plots.gantt import gantt
from sim.plots.groups import groups
from sim.plots.heat_map import heat_map
from sim.plots.links import links
from sim.plots.over_time import over_time
from sim.plots.pipeline import pipeline
from sim.plots.power import power
from sim.plots.serving import serving
from sim.plots.shelves import shelves
from sim.plots.sweeps import against, sweep_map
from sim.plots.timeline import timeline
from sim.plots.tradeoff import pareto, regret

__all__ = [
    "against", "cdf", "comparison", "default", "distributions", "fragmentation", "gantt", "groups", "heat_map",
    "links", "over_time", "pareto", "pipeline", "power", "regret", "serving", "shelves", "sweep_map", "timeline",
]  # fmt: skip
