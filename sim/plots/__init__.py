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
from sim.plots.fragmentation import fragmentation
from sim.plots.gantt import gantt
from sim.plots.shelves import shelves
from sim.plots.timeline import timeline

__all__ = ["cdf", "comparison", "default", "fragmentation", "gantt", "shelves", "timeline"]
