"""What a step of an environment is worth: rewards by name, whose sum over a run is a figure of its tables.

response    minus the seconds that tasks spend in the system: the sum is minus the total response
slowdown    the same, each task's seconds divided by its T* (true time alone in the fastest mode)
goodput     one for each task that completes by its deadline, or has none
energy      minus the joules that all devices drew, as the engine counts them: idle and asleep, for work and for work
            that was lost; the sum is minus the energy_j of the devices, a warm-up included
value       as goodput, each task counted with its weight

A mapping of names to weights gives the weighted sum: {slowdown: 1, energy: 0.001}, or {value: 1, response: 0.01}, what
tasks are worth less what holding them costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim.errors import UnknownName, UsageError
from sim.model.device_states import ASLEEP, DOWN, UP, WAKING, DeviceStates
from sim.model.record import Record
from sim.model.tasks import Mode, Task

if TYPE_CHECKING:
    from sim.engine.simulation import Simulation

RewardLike = str | Mapping[str, float]


class Reward:
    """Base: told what happens to the tasks of a run, and asked what came to be since it was asked last."""

    def __init__(self, simulation: Simulation):
        self.simulation = simulation

    def arrived(self, task: Task) -> None:
        """A task is in the system."""

    def admitted(self, task: Task) -> None:
        """A task was accepted by whom the reward is for; told only where rewards are wanted ahead."""

    def started(self, task: Task, end: float, least: float) -> None:
        """A task starts, should end then, and would have taken `least` at best, whatever was decided (0 where it need
        not have come in); told only where rewards are wanted ahead."""

    def completed(self, task: Task) -> None:
        """A task has ended well."""

    def left(self, task: Task) -> None:
        """A task has ended otherwise."""

    def close(self, record: Record) -> None:
        """The run is over: `take` is called once more at most."""

    def take(self, now: float) -> float:
        """The reward since the last call."""
        raise NotImplementedError


class _InSystem(Reward):
    """Minus the integral of a weight over the tasks in the system."""

    def __init__(self, simulation: Simulation):
        super().__init__(simulation)
        self.weight = self.earned = self.since = 0.0
        self.present: dict[int, float] = {}
        self.ahead: dict[int, float] = {}
        """Tasks paid for until their expected end, and when that is."""

    def of(self, task: Task) -> float:
        """The weight of a task."""
        raise NotImplementedError

    def arrived(self, task: Task) -> None:
        row = task.index
        if row not in self.present:
            self._settle(self.simulation.view.now)
            self.present[row] = weight = self.of(task)
            self.weight += weight
            # From its arrival on, if that was earlier (it waited for its predecessors); if it was paid for, from then.
            self.earned -= weight * (self.since - self.ahead.pop(row, min(task.arrival, self.since)))

    def started(self, task: Task, end: float, least: float) -> None:
        self.earned -= self.present.get(task.index, 0.0) * (end - self.simulation.view.now - least)
        self.left(task)
        self.ahead[task.index] = end

    def completed(self, task: Task) -> None:
        self.left(task)

    def left(self, task: Task) -> None:
        self.ahead.pop(task.index, None)
        weight = self.present.pop(task.index, None)
        if weight is not None:
            self._settle(self.simulation.view.now)
            self.weight -= weight
            if not self.present:
                self.weight = 0.0  # and no rounding error that adds up

    def _settle(self, now: float) -> None:
        self.earned -= self.weight * (now - self.since)
        self.since = now

    def take(self, now: float) -> float:
        self._settle(now)
        earned, self.earned = self.earned, 0.0
        return earned


class Response(_InSystem):
    """Minus the seconds in the system."""

    def of(self, task: Task) -> float:
        return 1.0


class Slowdown(_InSystem):
    """Minus the seconds in the system, in units of each task's own T*."""

    def __init__(self, simulation: Simulation):
        from sim.results.modes import ModeTable, exclusive_time

        super().__init__(simulation)
        table = ModeTable(simulation.tasks, simulation.input.cluster)
        self.alone = exclusive_time(table).tolist()

    def of(self, task: Task) -> float:
        alone = self.alone[task.index]
        return 1.0 / alone if 0.0 < alone < math.inf else 0.0


class Goodput(Reward):
    """One for each task that completes in time; ahead, as soon as that is to be expected."""

    def __init__(self, simulation: Simulation):
        super().__init__(simulation)
        self.earned = 0.0
        self.promised: dict[int, float] = {}

    def of(self, task: Task) -> float:
        """What the task is worth."""
        return 1.0

    def admitted(self, task: Task) -> None:
        if task.deadline == math.inf:
            self._expect(task, True)

    def started(self, task: Task, end: float, least: float) -> None:
        self._expect(task, end <= task.deadline)

    def _expect(self, task: Task, met: bool) -> None:
        worth = self.of(task) if met else 0.0
        self.earned += worth - self.promised.get(task.index, 0.0)
        self.promised[task.index] = worth

    def completed(self, task: Task) -> None:
        self._expect(task, self.simulation.view.now <= task.deadline)
        del self.promised[task.index]

    def left(self, task: Task) -> None:
        self.earned -= self.promised.pop(task.index, 0.0)

    def take(self, now: float) -> float:
        earned, self.earned = self.earned, 0.0
        return earned


class Value(Goodput):
    """The weight of each task that completes in time."""

    def of(self, task: Task) -> float:
        return task.weight


class Energy(Reward):
    """Minus the joules: of devices that do nothing by the log of their states, of launches by the engine's books.

    Work counts while it computes; a block that a stopped launch still has to end counts when it is stopped.
    """

    def __init__(self, simulation: Simulation):
        super().__init__(simulation)
        cluster = simulation.input.cluster
        cores = cluster.powered_units
        powers = [device.type.power for device in cluster.devices]
        idle = [power.idle * count for power, count in zip(powers, cores, strict=True)]
        asleep = [power.sleep * count for power, count in zip(powers, cores, strict=True)]
        self._watts = {UP: idle, WAKING: idle, ASLEEP: asleep, DOWN: [0.0] * len(powers)}
        self._states = DeviceStates(cluster)
        self._last = list(self._states.of)
        self.power = math.fsum(idle)
        """Of all devices together if they do nothing."""
        self._noted: Any = None
        """The last change of a device that counts so far."""
        self._rows = 0
        """Launches that the engine has written down and that count so far."""
        self._since = self._resting = self._ended = self._told = 0.0
        self._total = math.nan

    def completed(self, task: Task) -> None:
        recorder, row = self.simulation.recorder, task.index
        if not recorder.staged(row):  # it only computed, and no launch is written down
            mode = task.modes[recorder.mode[row]]
            self._ended += (recorder.finish[row] - recorder.start[row]) * mode.width * _dynamic(mode)

    def close(self, record: Record) -> None:
        from sim.results.modes import ModeTable
        from sim.results.usage import usage

        use = usage(record, ModeTable(record.input.tasks, record.input.cluster), 0.0, record.end)
        self._total = float((use.dynamic + use.wasted + use.idle + use.sleep).sum())

    def take(self, now: float) -> float:
        if math.isnan(self._total):
            self._rest(now)
            self._write()
            total = self._resting + self._ended + self._running(now)
        else:
            total = self._total
        spent, self._told = total - self._told, total
        return -spent

    def _rest(self, now: float) -> None:
        """Bring what devices drew for doing nothing to the present."""
        new = []
        for entry in reversed(self.simulation.recorder.device_log):
            if entry is self._noted:
                break
            if entry[2] != "awake":  # the end of a waking changes nothing here, and may be taken back
                new.append(entry)
        for entry in reversed(new):
            time, index, what, _ = entry
            self._resting += self.power * (time - self._since)
            self._since, self._noted = time, entry
            for device in self._states.change(index, what):
                self.power -= self._watts[self._last[device]][device]
                self._last[device] = self._states.of[device]
                self.power += self._watts[self._last[device]][device]
        self._resting += self.power * (now - self._since)
        self._since = now

    def _write(self) -> None:
        """Count the launches that were written down since the last call: joules above idle."""
        energy = self.simulation.recorder.energy_of_launches(self._rows)
        self._rows += len(energy)
        self._ended += math.fsum(energy)

    def _running(self, now: float) -> float:
        """Those of launches under way, so far."""
        found = 0.0
        for launch in self.simulation.running.values():
            if launch.table is None:
                mode = launch.placement.mode
                found += (now - launch.decided) * mode.width * _dynamic(mode)
            else:
                found += launch.table.energy_by(now)
        return found


def _dynamic(mode: Mode) -> float:
    """Watts above idle of a device, or core, that computes."""
    return mode.type.power.busy - mode.type.power.idle


class Weighted(Reward):
    """A weighted sum of others."""

    def __init__(self, simulation: Simulation, parts: Mapping[str, float]):
        super().__init__(simulation)
        self.parts = [(weight, REWARDS[name](simulation)) for name, weight in parts.items()]

    def arrived(self, task: Task) -> None:
        for _, part in self.parts:
            part.arrived(task)

    def admitted(self, task: Task) -> None:
        for _, part in self.parts:
            part.admitted(task)

    def started(self, task: Task, end: float, least: float) -> None:
        for _, part in self.parts:
            part.started(task, end, least)

    def completed(self, task: Task) -> None:
        for _, part in self.parts:
            part.completed(task)

    def left(self, task: Task) -> None:
        for _, part in self.parts:
            part.left(task)

    def close(self, record: Record) -> None:
        for _, part in self.parts:
            part.close(record)

    def take(self, now: float) -> float:
        return sum(weight * part.take(now) for weight, part in self.parts)


REWARDS: dict[str, type[Reward]] = {
    "response": Response, "slowdown": Slowdown, "goodput": Goodput, "energy": Energy, "value": Value,
}  # fmt: skip


def check_reward(reward: RewardLike) -> dict[str, float]:
    """Names and weights; UnknownName or UsageError otherwise."""
    parts = {reward: 1.0} if isinstance(reward, str) else reward
    if not isinstance(parts, Mapping) or not parts:
        raise UsageError(f"a reward is a name ({', '.join(REWARDS)}) or a mapping of names to weights, not {reward!r}")
    for name, weight in parts.items():
        if name not in REWARDS:
            raise UnknownName("reward", str(name), REWARDS, f"; the rewards are {', '.join(REWARDS)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise UsageError(f"the weight of reward {name} is a number, not {weight!r}")
    return {name: float(weight) for name, weight in parts.items()}


def make_reward(simulation: Simulation, parts: Mapping[str, Any]) -> Reward:
    """The reward of one run, from what `check_reward` gave."""
    [*weights] = parts.values()
    if weights == [1.0]:
        return REWARDS[next(iter(parts))](simulation)
    return Weighted(simulation, parts)
