"""Placements: where a task starts among what fits now, or None to let it wait.

All but `fastest_device`, `slow_reserve` and `earliest_finish` use the fastest mode that fits now and differ in the
choice of node and GPU; all but `first_fit` compare the GPU types on which the task is equally fast.  Placements with
their own files are in `hetsim_policies.placement_rules`.  A gang that may span nodes (`span: any`) and fits on no
single node is placed on the first free devices.
"""

import math
from collections.abc import Callable

from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import View, queueing
from hetsim_policies.placement_rules.common.choice import best_node, by_room, equally_fast, first_across, on_gpu
from hetsim_policies.placement_rules.common.published import PublishedBestFit, PublishedRandom, ScoredRule


@queueing("work-conserving")
def first_fit(task: Task, view: View) -> Placement | None:
    """The first node and first devices where the task's fastest possible mode fits.

    Reference: Johnson et al., Worst-Case Performance Bounds for Simple One-Dimensional Packing Algorithms (1974):
    at most 1.7 times the minimum number of bins.  The last nodes remain entirely free for gangs.
    Weakness: it ignores how much remains free on the node.  Cost: an index lookup, the lowest of all placements.
    """
    return view.fit(task)


class BestFit(ScoredRule):
    """The node with the fewest free GPUs (then cores); fractions on the fullest GPU.

    scores: "published" is the rule of the simulator of Weng et al.: the node with the least free resources after the
        task, half by cores and half by GPUs, as an integer score; random names of nodes break ties.

    Reference: Johnson et al. (1974), the same bound as first fit.  It keeps large gaps for gangs.  Weakness: it crowds
    tasks that compete for links, memory and, on shared GPUs, for the compute engine.  Cost: an index lookup; with
    several modes or data a few NumPy operations over the nodes that fit (for a fraction of a GPU, over their GPUs).
    """

    queueing = "work-conserving"
    published = PublishedBestFit

    def exact(self, task: Task, view: View) -> Placement | None:
        return _by_room(task, view, tightest=True)


@queueing("work-conserving")
def worst_fit(task: Task, view: View) -> Placement | None:
    """The node with the most free GPUs (then cores); fractions on the emptiest GPU.

    It spreads the load, which minimizes interference and contention.  Weakness: it fragments, so wide gangs find no
    room although enough GPUs are free in total.  Reference: Johnson et al. (1974), at most twice the minimum number of
    bins.  Cost: an index lookup; with several modes or data a few NumPy operations over the nodes that fit.
    """
    return _by_room(task, view, tightest=False)


@queueing("work-conserving")
def fastest_device(task: Task, view: View) -> Placement | None:
    """The fastest mode on the device with the earliest end; None if it does not fit.

    Reference: minimum execution time (MET) in Braun et al., A Comparison of Eleven Static Heuristics (2001).
    It is good while the fast devices are not the bottleneck.  Weakness: queues grow there while slower devices are
    idle; no bound on the makespan.  Cost: linear in the devices that fit, unless all are equal.
    """
    return min(_choices(task, task.fastest_modes()[0], view), key=_finish(task, view), default=None)


class SlowReserve:
    """The fastest mode; a slower one only while at least `threshold` tasks wait.

    threshold: number of waiting tasks, including the one to place, at which slower devices are used; 1: always.

    Reference: Lin and Kumar, Optimal Control of a Queueing System with Two Heterogeneous Servers (1984): with Poisson
    arrivals and exponential times on two servers some threshold has the lowest mean response of all rules
    (`hetsim.theory.best_threshold`).  Weakness: one threshold is used for all slower modes, and it must suit the load.
    Cost: one or two index lookups.
    """

    queueing = "slow reserve"
    counts_waiting = True

    def __init__(self, threshold: int = 2):
        if threshold < 1:
            raise ValueError(f"threshold must be at least 1 (it counts the task to be placed); got {threshold}")
        self.threshold = threshold

    def __call__(self, task: Task, view: View) -> Placement | None:
        fast = next((fit for mode in next(equally_fast(task)) if (fit := view.first(mode, task)) is not None), None)
        return fast if fast is not None or view.num_waiting() < self.threshold else view.fit(task)


class EarliestFinish:
    """The mode and devices with the earliest estimated finish, transfers included.

    patient: also consider busy devices, and wait (None) if that gives a strictly earlier finish.

    Reference: minimum completion time (MCT) in Braun et al. (2001); the second half of HEFT (Topcuoglu et al., 2002).
    Weakness: greedy.  If tasks may pass a head that waits, several tasks may wait for the same busy device; if the
    estimate of a running task is too low, tasks wait for its device too long.  Cost: linear in the devices that fit,
    unless all are equal; if patient, also a sort of the running tasks for each mode that does not fit.
    """

    queueing = "work-conserving"

    def __init__(self, patient: bool = True):
        self.patient = patient

    def __call__(self, task: Task, view: View) -> Placement | None:
        finish = _finish(task, view)
        options = [(mode, min(_choices(task, mode, view), key=finish, default=None)) for mode in task.fastest_modes()]
        here = min((placement for _, placement in options if placement is not None), key=finish, default=None)
        if here is None or not self.patient:
            return here
        soonest = view.now + view.duration(task, here)
        for mode, placement in options:
            if placement is None and self._later(task, mode, view) < soonest:
                return None
        return here

    @staticmethod
    def _later(task: Task, mode: Mode, view: View) -> float:
        shadow = view.earliest_fit(task, mode)
        return math.inf if shadow.placement is None else shadow.time + view.duration(task, shadow.placement)


def _choices(task: Task, mode: Mode, view: View) -> list[Placement]:
    options = view.options(task, mode, distinct=True)
    if not options and mode.span_any and (across := view.first(mode)) is not None and view.holds(task, across):
        return [across]
    return options


def _finish(task: Task, view: View) -> Callable[[Placement], tuple[float, float]]:
    """Return a sort key of placements: (estimated seconds to the finish, device load)."""
    return lambda placement: (view.duration(task, placement), view.load(placement.devices[0]))


class RandomFit(ScoredRule):
    """Any node on which the task's fastest possible mode fits, with equal probability.

    scores: "published" is the rule of the simulator of Weng et al.: if a task is equally fast on several GPU types, one
        node is drawn from the nodes of all these types; nodes have random names.

    It is the baseline of placements.  Reference: a baseline of Weng et al., Beware of Fragmentation (USENIX ATC 2023).
    It draws from the policy's own random stream.  Weakness: it uses no information.  Cost: an index lookup; with
    several modes or data a few NumPy operations over the nodes that fit.
    """

    published = PublishedRandom

    def exact(self, task: Task, view: View) -> Placement | None:
        return best_node(task, view, lambda mode, nodes: (view.random.random(len(nodes)),), _any_gpu)


def _any_gpu(task: Task, mode: Mode, node: int, view: View) -> Placement | None:
    if not mode.gpus or mode.whole_devices:
        return view.first(mode, task, node=node)
    return on_gpu(
        task, mode, node, view=view, order=view.random.permutation(len(view.cluster.nodes[node].accelerators))
    )


def _by_room(task: Task, view: View, tightest: bool) -> Placement | None:
    mode = task.modes[0]
    if len(task.modes) == 1 and not view.items and (mode.whole_devices or mode.on_cpu):
        return view.first(mode, by="tightest" if tightest else "roomiest") or first_across(task, [mode], view)
    for modes in equally_fast(task):
        if (placement := by_room(task, modes, view, tightest) or first_across(task, modes, view)) is not None:
            return placement
    return None
