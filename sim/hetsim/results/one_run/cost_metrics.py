"""The cost of a run, in the money of the cluster's prices.

A device costs its price for as long as it is up, held by a task or not, and its price asleep (the same unless the
scenario says otherwise) while it sleeps; while it is down it costs nothing.  The price of a node is carried by its
accelerators in equal parts, without any by its cores.  So `cost` is the bill for the whole cluster, from the beginning
of the window to the end of the run: a cluster that is done earlier is given back earlier.
A task costs the share that it held × the price × the time from the decision to start it until it left, lost work
included: `cost_held` is what the tasks would pay if they were charged by use, and `cost` less that is what stood idle.
"""

import math

from hetsim.results.declared import COST, metric
from hetsim.results.one_run.measured import Measured
from hetsim.results.one_run.task_metrics import completions
from hetsim.results.one_run.usage import device_cost


@metric(unit="money", better="less", of="run", sets=("costs", "usual:130", "cluster:280", "page_cards:130"))
def cost(run: Measured) -> float:
    """Price × time of devices up or asleep, from the window's begin to the run's end."""
    cluster = run.result.record.input.cluster
    return float(device_cost(cluster, run.use).sum()) if cluster.priced else math.nan


@metric(unit="money", better="less", of="run", sets=("costs", "cluster:290"))
def cost_per_task(run: Measured) -> float:
    """Cost / completions inside the window, whenever the tasks arrived."""
    number = completions(run)
    return cost(run) / number if number else math.nan


@metric(unit="money", better="less", sets=("costs", "cluster:300", "groups:200", "group_rows:200"), title="cost of use")
def cost_held(run: Measured) -> float:
    """Price × share held × time of the window's tasks, lost work included."""
    return float(run.column(COST).sum()) if COST in run.result.tasks else math.nan
