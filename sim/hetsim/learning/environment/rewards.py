"""Rewards of a step, by name; their sum over a run is a value in its tables.

response    minus the seconds that tasks spend in the system: the sum is minus the total response
slowdown    the same, each task's seconds divided by its T* (true time alone in the fastest mode)
goodput     one for each task that completes by its deadline, or has none
energy      minus the joules that all devices drew, idle and asleep, for useful and for lost work; the sum is minus the
            energy_j of all devices, warm-up included
value       as goodput, each task counted with its weight
makespan    minus the seconds from the first arrival to the last completion

A mapping of names to weights gives the weighted sum: {slowdown: 1, energy: 0.001}, or {value: 1, response: 0.01}, the
tasks' weights minus a holding cost.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, ClassVar

import numpy as np

from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.errors import HetsimError, ScenarioError, UnknownName, UsageError
from hetsim.model.mode import Mode
from hetsim.model.record import ASLEEP, DOWN, UP, WAKING, DeviceStates, Record
from hetsim.model.task import Task
from hetsim.results.declared import DEFAULT_METRIC, ENERGY, MAKESPAN
from hetsim.results.one_run.modes import ModeTable, exclusive_time
from hetsim.results.one_run.usage import resting_watts, usage


class Reward:
    """Base of rewards: notified of the tasks of a run, returns reward by step.

    A custom reward is a class derived from this.  Its sum over a run must not depend on when `take` is called, so that
    other policies can be scored with it, too; `hetsim.register(name, item, kind="reward")` registers its name.
    """

    name: ClassVar[str] = ""  # name of a reward of hetsim
    metric: ClassVar[str] = "slowdown_mean"  # corresponding metric of the tables, which `hetsim.train` compares
    # label in pictures, and the sign with which they show it
    per_task: ClassVar[tuple[str, float]] = ("reward per task", 1.0)

    earned: float = 0.0  # reward since the last `take`

    def __init__(self, simulation: Simulation):
        self.simulation = simulation
        staged = simulation.input.tasks.staged
        self._ends: list[bool] | None = None if staged is None else staged.last.tolist()

    def counts(self, task: Task) -> bool:
        """Return True if results count the task: of a request, only its last stage counts."""
        return self._ends is None or self._ends[task.index]

    def arrived(self, task: Task) -> None:
        """Record a task that has entered the system."""

    def admitted(self, task: Task) -> None:
        """Record a task that the agent accepted, for rewards given at admission."""

    def started(self, task: Task, end: float, least: float) -> None:
        """Record a start and its expected end, for rewards given before the task ends.

        least: minimum time of the task, which no decision could avoid; 0 if the task could have been rejected.
        """

    def completed(self, task: Task) -> None:
        """Record a task that has completed."""

    def departed(self, task: Task) -> None:
        """Record a task that ended without completing."""

    def close(self, record: Record) -> None:
        """Record the end of the run; after it, `take` is called once more or not at all."""

    def take(self, now: float) -> float:
        """Return the reward since the last call."""
        earned, self.earned = self.earned, 0.0
        return earned


RewardLike = str | Mapping[str, float] | type[Reward] | Callable[[Any, "Seen"], float]


@dataclass
class Seen:
    """Events since the last step: arrivals, completions, other ends, elapsed seconds."""

    arrived: list[Task] = field(default_factory=list)
    finished: list[Task] = field(default_factory=list)
    gone: list[Task] = field(default_factory=list)
    dt: float = 0.0


class Called(Reward):
    """Reward by a function `(view, seen) -> float`; `seen`: events in this step."""

    def __init__(self, simulation: Simulation, function: Callable[[Any, Seen], Any]):
        super().__init__(simulation)
        self.function, self.seen, self.asked = function, Seen(), 0.0

    def arrived(self, task: Task) -> None:
        self.seen.arrived.append(task)

    def completed(self, task: Task) -> None:
        self.seen.finished.append(task)

    def departed(self, task: Task) -> None:
        self.seen.gone.append(task)

    def take(self, now: float) -> Any:  # what a function returns is checked later
        seen, self.seen = self.seen, Seen()
        seen.dt, self.asked = now - self.asked, now
        try:
            return self.function(self.simulation.view, seen)
        except HetsimError:
            raise
        except Exception as error:
            raise raised("reward", getattr(self.function, "__name__", "of a function"), now, error) from error


class Weighted(Reward):
    """A weighted sum of other rewards; each of them is notified of all events."""

    def __init__(self, simulation: Simulation, parts: "RewardParts"):
        super().__init__(simulation)
        self.parts: list[Any] = [(parts.made.get(name) or REWARDS[name])(simulation) for name in parts]
        self.weights = list(parts.values())

    def arrived(self, task: Task) -> None:
        for part in self.parts:
            part.arrived(task)

    def admitted(self, task: Task) -> None:
        for part in self.parts:
            part.admitted(task)

    def started(self, task: Task, end: float, least: float) -> None:
        for part in self.parts:
            part.started(task, end, least)

    def completed(self, task: Task) -> None:
        for part in self.parts:
            part.completed(task)

    def departed(self, task: Task) -> None:
        for part in self.parts:
            part.departed(task)

    def close(self, record: Record) -> None:
        for part in self.parts:
            part.close(record)

    def take(self, now: float) -> float:
        return sum(weight * part.take(now) for weight, part in zip(self.weights, self.parts, strict=True))


class _InSystem(Reward):
    """Reward: minus the integral over time of the weights of the tasks in the system."""

    def __init__(self, simulation: Simulation):
        super().__init__(simulation)
        self.weight = self.since = 0.0
        self.present: dict[int, float] = {}
        self.ahead: dict[int, float] = {}  # tasks paid for until their expected end, and when that is
        self.credit: dict[int, float] = {}  # 1 for each task that was credited with its time at best

    def worth(self, task: Task) -> float:
        raise NotImplementedError

    def arrived(self, task: Task) -> None:
        row = task.index
        if row not in self.present:
            self._settle(self.simulation.view.now)
            self.present[row] = weight = self.worth(task) if self.counts(task) else 0.0
            self.weight += weight
            # From its arrival on, if that was earlier (it waited for its predecessors); if it was paid for, from then,
            # and the time at best that is left was credited when it started and will be again.
            paid = self.ahead.pop(row, None)
            self.earned -= weight * (self.since - (min(task.arrival, self.since) if paid is None else paid))
            self.earned -= weight * self.credit.pop(row, 0.0) * task.shortest_remaining

    def started(self, task: Task, end: float, least: float) -> None:
        self.earned -= self.present.get(task.index, 0.0) * (end - self.simulation.view.now - least)
        self.departed(task)
        self.ahead[task.index] = end
        if least > 0.0:
            self.credit[task.index] = 1.0

    def completed(self, task: Task) -> None:
        self.departed(task)

    def departed(self, task: Task) -> None:
        self.ahead.pop(task.index, None)
        self.credit.pop(task.index, None)
        if (weight := self.present.pop(task.index, None)) is not None:
            self._settle(self.simulation.view.now)
            self.weight -= weight
            if not self.present:
                self.weight = 0.0  # and no rounding error that adds up

    def _settle(self, now: float) -> None:
        self.earned -= self.weight * (now - self.since)
        self.since = now

    def take(self, now: float) -> float:
        self._settle(now)
        return super().take(now)


class Response(_InSystem):
    """Minus the seconds that tasks spend in the system."""

    name: ClassVar[str] = "response"
    metric: ClassVar[str] = DEFAULT_METRIC
    per_task: ClassVar[tuple[str, float]] = ("mean response (s)", -1.0)

    def worth(self, task: Task) -> float:
        return 1.0


class Slowdown(_InSystem):
    """Minus the seconds in the system, divided by each task's fastest time T*."""

    name: ClassVar[str] = "slowdown"
    per_task: ClassVar[tuple[str, float]] = ("mean slowdown", -1.0)

    def __init__(self, simulation: Simulation):
        super().__init__(simulation)
        table = ModeTable(simulation.input.tasks, simulation.input.cluster)
        alone, staged = exclusive_time(table), simulation.input.tasks.staged
        if staged is not None:
            alone = np.where(staged.stage >= 0, staged.alone, alone)
        self.alone = alone.tolist()

    def worth(self, task: Task) -> float:
        alone = self.alone[task.index]
        return 1.0 / alone if 0.0 < alone < math.inf else 0.0


class Goodput(Reward):
    """Reward of 1 per task that ends in time; ahead: paid as soon as it is expected."""

    name: ClassVar[str] = "goodput"
    metric: ClassVar[str] = "goodput_fraction"
    per_task: ClassVar[tuple[str, float]] = ("share of tasks in time", 1.0)

    def __init__(self, simulation: Simulation):
        super().__init__(simulation)
        self.promised: dict[int, float] = {}

    def worth(self, task: Task) -> float:
        return 1.0

    def admitted(self, task: Task) -> None:
        if task.deadline == math.inf:
            self._expect(task, True)

    def started(self, task: Task, end: float, least: float) -> None:
        self._expect(task, end <= task.deadline)

    def _expect(self, task: Task, met: bool) -> None:
        worth = self.worth(task) if met and self.counts(task) else 0.0
        self.earned += worth - self.promised.get(task.index, 0.0)
        self.promised[task.index] = worth

    def completed(self, task: Task) -> None:
        self._expect(task, self.simulation.view.now <= task.deadline)
        del self.promised[task.index]

    def departed(self, task: Task) -> None:
        self.earned -= self.promised.pop(task.index, 0.0)


class ValueReward(Goodput):
    """The weight of each task that completes in time."""

    name: ClassVar[str] = "value"
    metric: ClassVar[str] = "value_fraction"
    per_task: ClassVar[tuple[str, float]] = ("value per task", 1.0)

    def worth(self, task: Task) -> float:
        return task.weight


class Makespan(Reward):
    """Minus the seconds by which (expected) completions extend the makespan."""

    name: ClassVar[str] = MAKESPAN
    metric: ClassVar[str] = MAKESPAN

    def __init__(self, simulation: Simulation):
        super().__init__(simulation)
        arrival = simulation.input.tasks.arrival
        self.last = self.told = float(arrival.min()) if len(arrival) else 0.0

    def started(self, task: Task, end: float, least: float) -> None:
        self.last = max(self.last, end)

    def completed(self, task: Task) -> None:
        self.last = max(self.last, self.simulation.view.now)

    def take(self, now: float) -> float:
        earned, self.told = self.told - self.last, self.last
        return earned


class Energy(Reward):
    """Minus the joules used: idle (or sleep) energy, plus launches' energy above idle.

    The energy of work is charged while it computes; if a launch is stopped within an uninterruptible block, the energy
    of the rest of the block is charged at once.
    """

    name: ClassVar[str] = "energy"
    metric: ClassVar[str] = ENERGY
    per_task: ClassVar[tuple[str, float]] = ("energy per task (J)", -1.0)

    def __init__(self, simulation: Simulation):
        super().__init__(simulation)
        cluster = simulation.input.cluster
        idle, asleep = (watts.tolist() for watts in resting_watts(cluster))
        self._watts = {UP: idle, WAKING: idle, ASLEEP: asleep, DOWN: [0.0] * len(idle)}
        self._states = DeviceStates(cluster)
        self._last = list(self._states.of)
        self.power = math.fsum(idle)  # power of all devices together if they do nothing
        self._noted: Any = None  # the last change of a device that counts so far
        self._rows = 0  # launches that the engine has written down and that count so far
        self._since = self._resting = self._ended = self._told = 0.0
        self._total = math.nan

    def completed(self, task: Task) -> None:
        recorder, row = self.simulation.state.recorder, task.index
        if not recorder.staged(row):  # it only computed, and no launch is written down
            mode = task.modes[recorder.mode[row]]
            self._ended += (recorder.finish[row] - recorder.start[row]) * mode.width * _dynamic(mode)

    def close(self, record: Record) -> None:
        use = usage(record, ModeTable(record.input.tasks, record.input.cluster), 0.0, record.end)
        self._total = float((use.dynamic + use.wasted + use.idle + use.sleep).sum())

    def take(self, now: float) -> float:
        if math.isnan(self._total):
            self._rest(now)
            energy = self.simulation.state.recorder.energy_of_launches(self._rows)  # joules above idle, of new ones
            self._rows += len(energy)
            self._ended += math.fsum(energy)
            total = self._resting + self._ended + self._running(now)
        else:
            total = self._total
        spent, self._told = total - self._told, total
        return -spent

    def _rest(self, now: float) -> None:
        log: Any = self.simulation.state.recorder.device_log  # Any: entries stay the objects that they are
        recent = takewhile(lambda entry: entry is not self._noted, reversed(log))
        # The end of a waking changes nothing here, and may be taken back.
        new: Any = [entry for entry in recent if entry[2] != "awake"]
        for entry in new[::-1]:
            time, index, what, _ = entry
            self._resting += self.power * (time - self._since)
            self._since, self._noted = time, entry
            for device in self._states.change(index, what):
                self.power -= self._watts[self._last[device]][device]
                self._last[device] = self._states.of[device]
                self.power += self._watts[self._last[device]][device]
        self._resting += self.power * (now - self._since)
        self._since = now

    def _running(self, now: float) -> float:
        joules = 0.0
        for launch in self.simulation.state.running.values():
            if launch.table is None:
                mode = launch.placement.mode
                joules += (now - launch.decided) * mode.width * _dynamic(mode)
            else:
                joules += launch.table.energy + launch.table.watts * launch.table.unsettled(now)
        return joules


def _dynamic(mode: Mode) -> float:
    return mode.type.power.busy - mode.type.power.idle


REWARDS: dict[str, type[Reward]] = {
    one.name: one for one in (Response, Slowdown, Goodput, Energy, ValueReward, Makespan)
}


class RewardParts(dict[str, float]):
    """Weights of rewards by name; `made`: constructors of the rewards a user defined."""

    made: dict[str, Callable[[Simulation], Reward]]

    @property
    def is_sum(self) -> bool:
        """True if no part is a plain function; then the reward can score any policy's run."""
        return not any(isinstance(item, partial) for item in self.made.values())


def check_reward(reward: RewardLike) -> RewardParts:
    """Check names and weights; raise UnknownName or UsageError if they are wrong."""
    if isinstance(reward, RewardParts):
        return reward  # checked before: a class of the user's has no name to be looked up by
    rewards = {**REWARDS, **registry.registered("reward")}
    reward_parts = RewardParts()
    reward_parts.made = {}
    own: Any = reward
    if callable(own):
        reward_parts[own.__name__ if hasattr(own, "__name__") else type(own).__name__] = 1.0
        reward_parts.made = {name: _maker(own) for name in reward_parts}
        return reward_parts
    parts = {own: 1.0} if isinstance(own, str) else own
    if not isinstance(parts, Mapping) or not parts:
        raise UsageError(
            f"a reward must be a name ({', '.join(rewards)}), a mapping of names to weights, a class or a function; "
            f"got {reward!r}"
        )
    for name, weight in parts.items():
        if name not in rewards:
            raise UnknownName("reward", str(name), rewards, f"; the rewards are {', '.join(rewards)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise UsageError(f"the weight of reward {name} must be a number; got {weight!r}")
        reward_parts[name] = float(weight)
        if rewards[name] is not REWARDS.get(name):
            reward_parts.made[name] = _maker(rewards[name])
    return reward_parts


def _maker(item: Any) -> Callable[[Simulation], Reward]:
    if isinstance(item, type) and issubclass(item, Reward):
        return item
    if callable(item) and not isinstance(item, type):
        return partial(Called, function=item)
    raise UsageError(f"a reward must be a class derived from {__name__}.Reward, or a function; got {item!r}")


def metric_of(name: str, parts: RewardParts) -> str:
    """Return the name of the result metric that corresponds to a reward."""
    return getattr(parts.made.get(name, REWARDS.get(name)), "metric", Reward.metric)


def make_reward(simulation: Simulation, parts: RewardParts) -> Reward:
    """Create the reward of one run from the result of `check_reward`."""
    [*weights] = parts.values()
    if weights == [1.0]:
        name = next(iter(parts))
        return parts.made.get(name, REWARDS.get(name))(simulation)  # type: ignore[misc]
    return Weighted(simulation, parts)


def raised(what: str, name: str, now: float, error: Exception) -> ScenarioError:
    """Return the error for a reward or observation that raised, with its cause."""
    said = ScenarioError(f"{what} {name} raised {type(error).__name__} at t = {now:g} s: {error}")
    said.__cause__ = error  # compiled code forgets it in `raise ... from error`
    return said


def checked(value: Any, parts: RewardParts, now: float) -> float:
    """Return a reward as a float; raise ScenarioError unless it is finite."""
    number = value.__class__ is float or isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise ScenarioError(
            f"reward {' + '.join(parts)} must return a finite number; got {value!r:.60} at t = {now:g} s"
        )
    return float(value)
