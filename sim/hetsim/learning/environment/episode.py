"""Episodes: one run, step by step, that stops at each decision.

Nothing here needs Gymnasium: the NumPy agents train on `Episodes` directly, and the Gymnasium environments wrap this
class.  Like `Simulation.run`, an episode calls only `advance` and `apply` of the engine, so that a policy has the same
results in an episode as in a run.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError, UsageError
from hetsim.learning.environment.acting import ARRIVAL, ORDERS, Acting, Actions, Choice, WatchedWindow, check_actions
from hetsim.learning.environment.observations import Observation, ObservationLike, make_observation
from hetsim.learning.environment.rewards import RewardLike, check_reward, checked, make_reward
from hetsim.learning.observation.window import MAX_WINDOW, SCHEDULING, SHORTEST, Layout, Window, observe_together
from hetsim.model.randomness import JUDGED, TRAINING
from hetsim.model.record import Record, RunInput
from hetsim.model.task import Task
from hetsim.policy.contract import PlanProblem
from hetsim.policy.decisions import Start
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import Scenario, load

WINDOW = 16
NO_WATTS = (
    "reward energy: no device of this cluster has watts, so its energy is unknown; give watts, such as "
    "power: {idle: 50 W, busy: 300 W} under gpus (or under cpu, of a core), or name another reward"
)


PILOT = 2  # number of runs from which the typical reward is estimated
NORMALIZE = RETURN, TIME = ("return", "time")  # units in which rewards can be normalized
STEPS = 100.0  # horizon of normalized returns in steps: a discount of 0.99, as most agents have


class Episodes:
    """Runs of a scenario as episodes of a Markov decision process.

    `reset(seed, replication)` begins the run that `hetsim.run(scenario, seed=seed)` makes, but with the decisions of
    the scenario's policy left open; `step(action)` makes one decision.  `mask` marks the possible actions.  With
    `loads=TRAINING` the load is drawn from random numbers that no `hetsim.run` uses.  An action that the mask forbids
    counts as waiting; if waiting is forbidden too, the first allowed action is taken.
    ahead: for agents that learn.  The estimated excess of a task's time over its minimum is charged when the task
        starts; the minimum is not charged.  A deadline that the estimate meets is rewarded when the task starts, too;
        the task's end corrects this.  So the cost of an action is charged immediately, and a discount does not make
        late starts look cheaper; the ranking of policies is that of the plain reward.
    normalize: multiply rewards by `factor`, computed from the first training runs of seed 0 under a policy that starts
        the oldest task that fits.  With `return`, the sums of future rewards (discounted by 0.99 per step) have a root
        mean square of 1, so that a critic with small initial weights has a small error (otherwise its error dominates,
        since usual agents clip the gradients of actor and critic together).  With `time`, rewards are about 1 per
        typical time (`scale`), for agents that discount by time.  None: do not multiply.
    observation: vector, dict, graph, or a custom one (`hetsim.learning.environment.observations`).
    actions: optional actions: width, mode, node, preempt, power (`hetsim.learning.environment.acting`).
    order: order of the tasks shown: by `arrival`, or `shortest` first by estimated minimum time.
    `earned` is the plain reward of the last step, neither ahead nor normalized; its sum over a run is a metric.
    """

    watched: Window  # the window of the current run
    decides: ClassVar[str] = SCHEDULING
    asks_scheduler: ClassVar[bool] = False  # True if the scenario's own scheduler decides anything

    def __init__(
        self, scenario: str | Path | Mapping[str, Any] | Scenario, window: int = WINDOW,
        reward: RewardLike = "slowdown", scale: float | None = None, ahead: bool = False, normalize: str | None = None,
        observation: ObservationLike = "vector", actions: Iterable[str] = (), order: str = ARRIVAL,
    ):  # fmt: skip
        if isinstance(window, bool) or not isinstance(window, int | np.integer) or not 1 <= window <= MAX_WINDOW:
            raise UsageError(f"window (waiting tasks that are shown) must be from 1 to {MAX_WINDOW:,}; got {window!r}")
        number = isinstance(scale, int | float | np.number) and not isinstance(scale, bool)
        if scale is not None and not (number and SHORTEST <= scale < math.inf):
            raise UsageError(f"scale (seconds of a typical task) must be a number above 0; got {scale!r}")
        self.parts, self._reward = check_reward(reward), reward
        self.scenario = load(scenario)
        if not self.asks_scheduler:
            self.scenario = load(self.scenario, {"policy.scheduler": {"name": "fcfs"}})  # not asked, and soon made
        if order not in ORDERS:
            raise UsageError(f"order must be {' or '.join(ORDERS)}; got {order!r}")
        self.order = order
        self.switches, self._make = check_actions(actions), make_observation(observation)
        if self.decides != SCHEDULING and (self.switches or self._make is not None):
            raise UsageError("admission has fixed actions and observations: leave out actions and observation")
        if not isinstance(ahead, bool | np.bool_):
            raise UsageError(f"ahead must be true or false; got {ahead!r}")
        if normalize is not None and normalize not in NORMALIZE:
            raise UsageError(f"normalize must be {' or '.join(NORMALIZE)}, or None; got {normalize!r}")
        self.window, self.ahead, self.normalize = int(window), bool(ahead), normalize
        first = self.build(self.scenario.model.seed, 0)
        if self.parts.get("energy") and not first.cluster.has_watts:
            raise ScenarioError(self.scenario.document.problem(("cluster", "nodes"), NO_WATTS))
        self.layout = Layout.for_cluster(first.cluster, self.window, self.decides)
        self.scale = typical_time(first) if scale is None else float(scale)
        self.first: Observation | None = None  # the observation of the first load; its shapes are kept
        self.actions = self.layout.actions
        if self.decides == SCHEDULING:
            acting = self.acting()
            acting.check(PlanProblem(first.tasks, first.cluster))
            self.first, self.actions = acting.observer, acting.actions.count
            self.action_names = acting.actions.names
        else:
            self.action_names = ("reject", "accept")
        self.earned = self.dt = 0.0
        self._factor: float | None = None
        self.simulation: Simulation | None = None
        self.record: Record | None = None

    def acting(self, kind: type[Acting] = Acting) -> Any:
        """Create the scheduler that executes the agent's actions in this environment."""
        return kind(self.window, self.scale, self.switches, observation=self.observer, order=self.order)

    @property
    def observer(self) -> Callable[[PlanProblem, int, float], Observation] | None:
        """Function that makes observations of fixed sizes; None for the default, `vector`."""
        make, first = self._make, self.first
        if make is None or first is None:
            return make

        return partial(_of_sizes, make, first)

    @property
    def factor(self) -> float:
        """Factor that normalizes the rewards; 1 if they are not normalized."""
        if self._factor is None:
            self._factor = self._usual() if self.normalize else 1.0
        return self._factor

    def _usual(self) -> float:
        pilot = type(self)(self.scenario, self.window, self._reward, scale=self.scale, ahead=self.ahead)
        rewards: list[list[float]] = []
        time = 0.0
        for episode in range(PILOT):
            pilot.reset(0, episode, TRAINING)
            rewards.append([])
            while not pilot.over:
                rewards[-1].append(pilot.step(pilot.plain()))
            time += pilot.now
        if self.normalize == TIME:
            earned = 0.0
            for reward in chain.from_iterable(rewards):
                earned += abs(reward)
            return time / (earned * self.scale) if earned > 0 else 1.0
        usual = root_mean_square(rewards)
        return 1.0 / usual if usual > 0 else 1.0

    def build(self, seed: int, replication: int, loads: str = JUDGED) -> RunInput:
        """Build the input of a run; ScenarioError if the workload has service requests."""
        run = self.scenario.build(seed, replication, loads)
        if run.services or run.language:
            text = "an environment needs tasks without a `service`: requests of services wait in other queues"
            raise ScenarioError(self.scenario.document.problem(("workload",), text))
        return run

    def reset(self, seed: int, replication: int = 0, loads: str = JUDGED) -> np.ndarray:
        """Begin a run, advance to its first decision, and return the observation."""
        self.restart(seed, replication, loads)
        self._look()
        return self.observation

    def restart(self, seed: int, replication: int = 0, loads: str = JUDGED) -> None:
        """Begin a run like `reset`, but leave the first observation to the caller."""
        run = self.build(seed, replication, loads)
        self.seed, self.replication, self.loads, self.record = seed, replication, loads, None
        announced = self._take_over(run)
        with self.scenario.addresses():
            self.simulation = Simulation(run)
        rewards = announced.rewards = [make_reward(self.simulation, self.parts) for _ in range(1 + self.ahead)]
        self.reward, self.plain_reward = rewards[0], rewards[-1]
        self.terminated = self.truncated = self._in_round = False
        self.earned = self.dt = 0.0
        self._go()

    def clone(self) -> Self:
        """Return an independent copy in mid-episode; raise UsageError if impossible."""
        new = copy(self)
        if self.simulation is not None and not self.over:
            new.simulation = self.simulation.fork()
            rewards = new._adopt(new.simulation.input.scheduler).rewards
            new.reward, new.plain_reward = rewards[0], rewards[-1]
        return new

    def _adopt(self, scheduler: Any) -> Any:
        self.watched = scheduler
        return scheduler

    def _take_over(self, run: RunInput) -> Any:
        watched = self.acting(WatchedWindow)
        watched.check(PlanProblem(run.tasks, run.cluster))
        run.scheduler = self.watched = watched
        return watched

    @property
    def now(self) -> float:
        """Simulated time; after the run, its end."""
        if self.record is not None:
            return self.record.end
        return 0.0 if self.simulation is None else self.simulation.view.now

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated

    def step(self, action: int) -> float:
        """Carry out an action, advance to the next decision, and return the reward."""
        reward = self.move(action)
        self._look()
        return reward

    def move(self, action: int) -> float:
        """Carry out an action as `step`, without observing; the caller observes next."""
        if (simulation := self.simulation) is None or self.terminated or self.truncated:
            raise UsageError("no episode is in progress: call reset() first")
        if not 0 <= action < self.actions:
            raise UsageError(f"an action must be from 0 to {self.actions - 1}; got {action}")
        factor = self.factor if self.normalize else 1.0
        before = simulation.view.now
        self._take(simulation, action)
        self._go()
        now = simulation.view.now if self.record is None else self.record.end
        self.dt = now - before
        reward = checked(self.reward.take(now), self.parts, now)
        self.earned = reward if self.plain_reward is self.reward else self.plain_reward.take(now)
        return reward * factor

    def _take(self, simulation: Simulation, action: int) -> None:
        if (decision := self.watched.decision(self.legal(action))) is None:
            self._in_round = False
            return
        if not isinstance(decision, Start):
            simulation.apply(decision)
            return
        task = decision.tasks
        assert isinstance(task, Task)
        shortest = task.shortest_remaining
        simulation.apply(decision)
        if self.ahead:
            self.reward.started(task, self.watched.expected_end(task), shortest)

    def legal(self, action: int) -> int:
        """Return this action, or if forbidden the last action, or else the first allowed."""
        if self.mask[action]:
            return int(action)
        return len(self.mask) - 1 if self.mask[-1] else int(self.mask.argmax())

    def plain(self) -> int:
        """Return a simple policy's action: start the oldest task that fits."""
        return int(self.mask.argmax())

    def _go(self) -> None:
        simulation = self.simulation
        assert simulation is not None
        while True:
            if not self._in_round and not simulation.advance():
                self._end(simulation)
                return
            self._in_round = self.watched.anything()
            if self._in_round:
                return

    def _end(self, simulation: Simulation) -> None:
        self.record = simulation.finish()
        self.reward.close(self.record)
        open_ends = simulation.state.ended < len(simulation.input.tasks) and self.record.end >= simulation.input.horizon
        self.truncated, self.terminated = open_ends, not open_ends

    def _look(self) -> None:
        self.observation, self.mask = self.watched.observe()

    @property
    def result(self) -> Result:
        if self.record is None:
            raise UsageError("the episode is not over, so it has no result yet")
        return Result(
            self.record, name=self.scenario.name, seed=self.seed, replication=self.replication, policy="environment",
            scenario=self.scenario.deferred_yaml(absolute_paths=True),
        )  # fmt: skip


def _of_sizes(make: Callable[..., Observation], first: Observation, *given: Any) -> Observation:
    observation = make(*given)
    observation.keep(first)
    return observation


def look_together(several: Sequence[Episodes]) -> tuple[np.ndarray, np.ndarray] | None:
    """Observe several episodes after a step of each; return observations and masks.

    Return None if the actions decide on the admission of tasks, or if actions or observations are not the default.
    Then read `observation` and `mask` of each episode.
    """
    if several[0].decides != SCHEDULING or several[0].switches or several[0].first is not None:
        for one in several:
            one._look()
        return None
    observations, masks = observe_together([one.watched for one in several])
    for one, observation, mask in zip(several, observations, masks, strict=True):
        one.observation, one.mask = observation, mask
    return observations, masks


def root_mean_square(runs: list[list[float]]) -> float:
    """Root mean square of the discounted returns after each step; 0 without steps."""
    squares: list[float] = []
    for rewards in runs:
        follows = 0.0
        for reward in reversed(rewards):
            follows = reward + (1.0 - 1.0 / STEPS) * follows
            squares.append(follows * follows)
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0


def scheduler_of(episodes: Episodes, choice: Choice, name: str = "trained") -> type[Acting]:
    """Create a scheduler class that takes the actions `choice(observation, mask)`."""
    if episodes.decides != SCHEDULING:
        raise UsageError("as_scheduler needs an environment whose actions schedule; this environment decides admission")
    if not callable(choice):
        raise UsageError(f"a trained model must be a function of observation and mask; got {choice!r}")
    layout, count = episodes.layout, episodes.actions

    class Trained(Acting):
        def __init__(self) -> None:
            super().__init__(
                episodes.window, episodes.scale, episodes.switches, observation=episodes.observer, choice=choice,
                order=episodes.order
            )

        def check(self, problem: PlanProblem) -> None:
            here = Layout.for_cluster(problem.cluster, self.window)
            actions = Actions(problem, here.types, self.window, self.switches)
            if (here.types, actions.count) != (layout.types, count):
                raise ScenarioError(
                    f"the model was trained for the device types {', '.join(layout.types)} and {count} actions; here "
                    f"there are {', '.join(here.types)} and {actions.count}"
                )
            super().check(problem)

    Trained.__name__ = Trained.__qualname__ = name
    # A class of this name at the top of the module of `choice` can be sent to worker processes.
    Trained.__module__ = getattr(choice, "__module__", None) or __name__
    return Trained


def typical_time(run: RunInput) -> float:
    """Mean estimated seconds of a run's tasks in their fastest modes."""
    tasks = run.tasks
    times = tasks.computing(tasks.estimate).min(axis=1)
    times = times[np.isfinite(times) & (times > 0)]
    return float(times.mean()) if len(times) else 1.0
