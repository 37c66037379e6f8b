"""Errors of policies: messages with policy, task, device and time."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from hetsim.engine.core.state import RunState
from hetsim.errors import HetsimError, PolicyError, RunError, line_of
from hetsim.model.device import Device
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import BLOCKED, ENDED, FUTURE, RUNNING, WAITING, Task
from hetsim.policy.decisions import Annotate, Drop, Fetch, Move, Partition, Reject, Set, Start, Stop

MISSING: Final = object()  # in place of an argument that a hook does not have
ASKED_IN_VAIN = 100_000  # queries of a policy without a decision between them; more are reported as a loop

# the state of a task, to end a sentence that begins with the task
STATES = {
    FUTURE: "has not been admitted yet", BLOCKED: "waits for its predecessors", WAITING: "is waiting",
    RUNNING: "is running already", ENDED: "has ended",
}  # fmt: skip


def call(run: RunState, hook: Callable[..., Any], argument: Any, other: Any = MISSING, third: Any = MISSING) -> Any:
    """Call a hook of a policy; an exception becomes a PolicyError that names the hook."""
    try:  # no `*arguments`: compiled code would pack them into a tuple
        if other is MISSING:
            return hook(argument)
        return hook(argument, other) if third is MISSING else hook(argument, other, third)
    except HetsimError:  # it says already what is wrong, and where
        raise
    except Exception as error:
        raise raised(run, error, getattr(hook, "__name__", "hook")) from error


def illegal(run: RunState, what: str) -> PolicyError:
    """Return a PolicyError; `what` follows the policy's name in the message."""
    return PolicyError(f'policy "{run.input.policy}" {what} (t = {run.clock._now:g} s){run.scheduler.said}')


def raised(run: RunState, error: Exception, where: str) -> PolicyError:
    """Return a PolicyError for an exception in a policy's hook `where`, with its line."""
    return PolicyError(
        f'policy "{run.input.policy}" raised {type(error).__name__} in {where} at t = {run.clock._now:g} s '
        f"({line_of(error)}): {error}"
    )


def position_in(run: RunState, task: Task, mode: Mode, verb: str) -> int:
    """Return a mode's position among a task's modes; PolicyError if it is not allowed."""
    position = task.shape.position.get(mode)
    if position is None or (task.allowed is not None and position not in task.allowed):
        may_not = "lacks" if position is None else "may not use"
        raise illegal(run, f"{verb} {task} {'to' if verb == 'moved' else 'in'} mode {mode}, which it {may_not}")
    return position


def deadlock(run: RunState) -> RunError:
    """Return the error for tasks that can never start, with the reason for each task.

    It is a PolicyError, unless all of these tasks wait for devices that replicas of services occupy.
    """
    if not run.waiting and not any(len(queue) for queue in run.queues):
        return PolicyError(
            f'policy "{run.input.policy}" starts nothing: at t = {run.clock._now:g} s no task runs, '
            f"{run.requests_left:,} requests are not served, and the policy waits for no event"
        )
    waiting = [*run.waiting.values(), *(task for queue in run.queues for task in queue.look())]
    modes = dict.fromkeys(mode for task in waiting for mode in task.shape.modes)
    fits_now = fitting_without(run, (), modes)
    kept_from = fitting_without(run, run.residents.values(), modes) - fits_now
    lines, by_policy = [], False
    for number, task in enumerate(waiting):
        possible = [mode for mode in task.shape.modes if mode in fits_now]
        fitting = [mode.name for mode in possible if _lack_of_memory(run, task, mode) is None]
        why = f"would fit now in mode {', '.join(fitting)}" if fitting else "fits nowhere now"
        if possible and not fitting:
            why = f"fits nowhere: {_lack_of_memory(run, task, possible[0])}"
        if not fitting and not kept_from.isdisjoint(task.shape.modes):
            why = "would fit if replicas did not occupy the devices"
        else:
            by_policy = True
        if number < 5:
            lines.append(f"task {task.id}: waiting since t = {task.ready:g} s, {why}")
    more = f"\n       … and {len(waiting) - 5} more" if len(waiting) > 5 else ""
    count = f"{len(waiting)} task{'s wait' if len(waiting) > 1 else ' waits'}"
    there = "\n       ".join(lines) + more
    now = f"t = {run.clock._now:g} s"
    kept = _held_by_replicas(run, kept_from) if kept_from else ""
    if not by_policy:
        return RunError(
            f"at {now} {count} for devices that replicas of services occupy: {kept}.\n       {there}\n"
            "       Give services fewer replicas (`replicas:`), put them or the tasks on another type of device, or "
            "keep devices for the tasks with a partition."
        )
    return PolicyError(
        f'policy "{run.input.policy}" starts nothing: at {now} no task runs, no task will arrive, and {count}'
        f"{f' ({kept})' if kept else ''}.\n       {there}{run.scheduler.said}"
    )


def _lack_of_memory(run: RunState, task: Task, mode: Mode) -> str | None:
    items = [run.tasks.items[item] for item in dict.fromkeys((*task.reads, *task.writes))]
    memory, size = mode.type.memory, sum(item.size for item in items)
    if not items or not mode.gpus or memory is None or size + mode.gpu_memory <= memory:
        return None
    largest = max(items, key=lambda item: item.size)
    data = f"the item {largest.name} of the task has {largest.size:,} bytes"
    if largest.size + mode.gpu_memory <= memory:
        data = f"the {len(items)} items of the task have {size:,} bytes in total"
    own = f", the task itself needs {mode.gpu_memory:,}" if mode.gpu_memory else ""
    return f"{data}{own}, and a GPU of type {mode.type.name} has {memory:,} (`memory`)"


def fitting_without(run: RunState, residents: Collection[Any], modes: Iterable[Mode]) -> set[Mode]:
    """Return the modes that would fit if these replicas released their devices."""
    capacity, releases = run.capacity, run.capacity.releases
    for launch in residents:
        capacity.give(launch.placement, launch, launch.cores)  # released only for the check below, then occupied again
    fitting = {mode for mode in modes if capacity.first(mode) is not None}
    for launch in residents:
        launch.cores = capacity.take(launch.placement, launch)
    capacity.releases = releases
    return fitting


def _held_by_replicas(run: RunState, modes: set[Mode]) -> str:
    parts = []
    for kind in dict.fromkeys(device.type for device in run.input.cluster.devices):
        holders: Counter[str] = Counter()
        for launch in run.residents.values() if any(mode.type is kind for mode in modes) else ():
            holders[launch.holder.service.name] += sum(device.type is kind for device in launch.placement.devices)
        total = sum(device.type is kind for device in run.input.cluster.devices)
        parts += [f"replicas of {name} occupy {number} of {total} {kind.name}" for name, number in (+holders).items()]
    return " and ".join(parts)


class Questions:
    """Counts a policy's queries since its last decision, to detect an endless loop."""

    def __init__(self, run: RunState):
        self._run = run
        self._decisions = self._asked = 0

    def count(self) -> None:
        """Count a query; raise PolicyError after too many without a decision."""
        run = self._run
        if run.decisions != self._decisions:
            self._decisions, self._asked = run.decisions, 0  # any decision is progress, whatever it does
        self._asked += 1
        if self._asked > ASKED_IN_VAIN:
            questions = f"{self._asked:,} times which tasks wait or run"
            raise illegal(run, f"asked {questions} without deciding anything: it loops")


def malformed(run: RunState, decision: Any) -> str | None:
    """Return what is wrong with the form of a decision, or None.

    This is called only if applying a decision raised an error, to distinguish a policy's error from a defect of the
    engine.
    """
    if isinstance(decision, Start | Move):
        if not isinstance(decision.placement, Placement):
            return f"yields {decision!r}: its placement is {decision.placement!r}"
        if not isinstance(decision.placement.mode, Mode):
            return f"yields {decision!r}: its mode is {decision.placement.mode!r}"
        for device in decision.placement.devices:
            if not is_own_device(run, device):
                return f"yields {decision!r}: {device!r} is not a device of this cluster"
        if decision.placement.mode.type not in run.capacity.types:
            return f"yields {decision!r}: this cluster has no {decision.placement.mode.type.name}"
    if isinstance(decision, Start):
        tasks = (decision.tasks,) if isinstance(decision.tasks, Task) else decision.tasks
        if not isinstance(tasks, list | tuple) or not all(isinstance(task, Task) for task in tasks):
            return f"yields {decision!r}: {decision.tasks!r} is not a task or a list of tasks"
    if isinstance(decision, Stop) and isinstance(decision.task, Device):
        return None if is_own_device(run, decision.task) else f"yields {decision!r}, not a device of this cluster"
    if isinstance(decision, Stop | Move | Reject | Annotate) and not isinstance(decision.task, Task):
        what = "neither a task nor a device" if isinstance(decision, Stop) else "not a task"
        return f"yields {decision!r}: {decision.task!r} is {what}"
    if isinstance(decision, Set | Fetch | Drop | Partition) and not is_own_device(run, decision.device):
        return f"yields {decision!r}: {decision.device!r} is not a device of this cluster"
    return None


def is_own_device(run: RunState, device: Any) -> bool:
    devices = run.input.cluster.devices
    # By identity: a device of another cluster may compare equal.
    return isinstance(device, Device) and 0 <= device.index < len(devices) and devices[device.index] is device
