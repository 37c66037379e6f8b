"""What the engine says when a policy goes wrong: sentences with policy, task, device and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.errors import PolicyError
from sim.model.cluster import Device
from sim.model.plan import Placement
from sim.model.tasks import BLOCKED, ENDED, FUTURE, RUNNING, WAITING, Mode, Task
from sim.policy.contract import Annotate, Drop, Fetch, Move, Reject, Set, Start, Stop, Wait

if TYPE_CHECKING:
    from oracle.engine.simulation import Simulation
    from oracle.engine.state import State

STATES = {
    FUTURE: "has not been admitted yet", BLOCKED: "waits for its predecessors", WAITING: "is waiting",
    RUNNING: "is running already", ENDED: "has ended",
}  # fmt: skip


def state_of(task: Task) -> str:
    """The end of a sentence that begins with the task."""
    return STATES[task.state]


def raised(run: State, error: Exception, where: str) -> PolicyError:
    """A policy's own exception, with the innermost line."""
    line = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        line = f"{code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return PolicyError(
        f'policy "{run.input.policy}" raised {type(error).__name__} in {where} at t = {run.clock._now:g} s '
        f"({line}): {error}"
    )


def deadlock(run: Simulation) -> PolicyError:
    """Nothing runs and nothing is to come, but tasks wait: which, and would they fit?"""
    if not run.waiting:
        return PolicyError(
            f'policy "{run.input.policy}" starts nothing: at t = {run.clock._now:g} s nothing runs, '
            f"{run.requests_left:,} requests have not been served, and it waits for none of them"
        )
    waiting = list(run.waiting.values())
    lines = []
    for task in waiting[:5]:
        fitting = [mode.name for mode in task.shape.modes if run.capacity.first(mode) is not None]
        why = f"would fit now in mode {', '.join(fitting)}" if fitting else "fits nowhere now"
        lines.append(f"task {task.id}: waiting since t = {task.ready:g} s, {why}")
    more = f"\n       … and {len(waiting) - 5} more" if len(waiting) > 5 else ""
    number = f"{len(waiting)} task{'s wait' if len(waiting) > 1 else ' waits'}"
    return PolicyError(
        f'policy "{run.input.policy}" starts nothing: at t = {run.clock._now:g} s nothing runs, nothing is to come, '
        f"and {number}.\n       " + "\n       ".join(lines) + more
    )


def malformed(run: Simulation, decision: Any) -> str | None:
    """What is wrong with the make of a decision (not with its legality), or None.

    Asked only after carrying it out raised: so that a slip of a policy is told apart from a defect of the engine.
    """
    if isinstance(decision, Start | Move):
        if not isinstance(decision.placement, Placement):
            return f"yields {decision!r}: its placement is {decision.placement!r}"
        if not isinstance(decision.placement.mode, Mode):
            return f"yields {decision!r}: its mode is {decision.placement.mode!r}"
        for device in decision.placement.devices:
            if not known(run, device):
                return f"yields {decision!r}: {device!r} is not a device of this cluster"
        if decision.placement.mode.type not in run.capacity.types:
            return f"yields {decision!r}: this cluster has no {decision.placement.mode.type.name}"
    if isinstance(decision, Start):
        tasks = (decision.tasks,) if isinstance(decision.tasks, Task) else decision.tasks
        if not isinstance(tasks, list | tuple) or not all(isinstance(task, Task) for task in tasks):
            return f"yields {decision!r}: {decision.tasks!r} is neither a task nor a list of tasks"
    if isinstance(decision, Stop | Move | Reject | Annotate) and not isinstance(decision.task, Task):
        return f"yields {decision!r}: {decision.task!r} is not a task"
    if isinstance(decision, Wait) and not isinstance(decision.until, int | float):
        return f"yields {decision!r}: {decision.until!r} is not a time"
    if isinstance(decision, Set | Fetch | Drop) and not known(run, decision.device):
        return f"yields {decision!r}: {decision.device!r} is not a device of this cluster"
    return None


def known(run: Simulation, device: Any) -> bool:
    """Is this one of the cluster's own devices?"""
    devices = run.input.cluster.devices
    return isinstance(device, Device) and 0 <= device.index < len(devices) and devices[device.index] is device
