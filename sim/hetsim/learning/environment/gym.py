"""Gymnasium environments of episodes; the only file that imports Gymnasium."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from pathlib import Path
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
from gymnasium import spaces

from hetsim.errors import UsageError
from hetsim.learning.environment.acting import SHORTEST_FIRST, Acting, Choice
from hetsim.learning.environment.admission import Admissions
from hetsim.learning.environment.episode import RETURN, WINDOW, Episodes, look_together, scheduler_of
from hetsim.learning.environment.observations import ObservationLike
from hetsim.learning.environment.rewards import Goodput, RewardLike
from hetsim.learning.observation.window import ADMISSION, LIMIT, SCHEDULING, Layout
from hetsim.model.randomness import APART, TRAINING, VALIDATION
from hetsim.policy.contract import Scheduler
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import Scenario

OPTIONS = ("replication", "validation")  # options of `reset` besides a seed


class SchedulingEnv(gymnasium.Env[Any, np.int64]):
    """Place one of the first `window` waiting tasks, or wait (hetsim/Scheduling-v0).

    scenario: a file, the name of a shipped scenario, a mapping, or a Scenario.  Its scheduler is replaced by the agent;
        its admission policy applies.
    window: number of waiting tasks shown, by arrival.
    reward: a name (`hetsim.learning.environment.rewards`) such as response or goodput, or weights by name.
    scale: unit of times in seconds; by default the mean estimated time of the scenario's tasks.
    ahead: as soon as a task starts, charge its estimated time on the chosen device minus its minimum estimated time.
    normalize: multiply rewards by a factor, so that returns (sums of rewards, discounted by 0.99 per step) are about 1
        (`return`, for usual agents), or rewards are about 1 per `scale` seconds (`time`); None: do not multiply.
    observation: vector, dict, graph, a registered name, a class or a function
        (`hetsim.learning.environment.observations`).
    actions: optional actions: width, mode, node, preempt, power (`hetsim.learning.environment.acting`).
    order: order of the tasks shown: `shortest` first by estimated minimum time, so that a position means the same at
        every load; or by `arrival`.

    `info` has `now` (simulated time) and `dt` (seconds since the last decision), `earned` (the plain reward of the
    step, neither ahead nor normalized: its sum over a run is a metric of the results) and `action_mask`.  Each reset
    begins a run on another load.  These are the loads that `hetsim train` trains on, never one of `run`, `compare` or
    the final comparison of `train`, whatever the seeds.  `reset(seed=s)` begins the first load of seed s, each plain
    `reset()` the next one; without any seed, loads are drawn from entropy, so that parallel environments differ.
    `options={"replication": r}` begins replication r of `hetsim.run(scenario, seed=s)` instead (default: the scenario's
    own seed); `options={"validation": r}` begins the validation load r of seed s (default 0), by which `hetsim train`
    chooses the network to keep.  `action_masks()` (bool) and `info["action_mask"]` (int8, for `action_space.sample`)
    have the possible actions; an impossible action waits or, if waiting is impossible, takes the first possible action.
    An episode is terminated when every task has ended, and truncated if the scenario's horizon comes first.  Then
    `result` has the tables.  `observation_names` names the entries of an observation.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self, scenario: str | Path | Mapping[str, Any] | Scenario, window: int = WINDOW,
        reward: RewardLike = "slowdown", scale: float | None = None, ahead: bool = True, normalize: str | None = RETURN,
        observation: ObservationLike = "vector", actions: Iterable[str] = (), order: str = SHORTEST_FIRST,
        render_mode: str | None = None,
    ):  # fmt: skip
        self._begin(
            Episodes(
                scenario, window, reward, scale=scale, ahead=ahead, normalize=normalize, observation=observation,
                actions=actions, order=order
            ),
            render_mode,
        )

    @classmethod
    def from_episodes(cls, episodes: Episodes) -> Self:
        """Return the environment of existing episodes."""
        env = cls.__new__(cls)
        env._begin(episodes)
        return env

    def _begin(self, episodes: Episodes, render_mode: str | None = None) -> None:
        self.episodes, self.render_mode = episodes, render_mode
        self.observation_space = space_of(episodes)
        self.action_space = spaces.Discrete(episodes.actions)
        self._load_seed: int | None = None  # that of the training loads; None until it is given or drawn
        self._episode = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a run; return the first observation, and the info with its mask."""
        self._restart(seed, options)
        self.episodes._look()
        return self.episodes.observation, self._info()

    def _restart(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin a run without observing it."""
        super().reset(seed=seed)
        if seed is not None and not options:
            self._load_seed, self._episode = seed, -1
        for key in options or {}:
            if key not in OPTIONS:
                raise UsageError(f'reset has no option "{key}"; there are {" and ".join(OPTIONS)}')
        if options and len(options) > 1:
            raise UsageError(f"reset takes one of the options {' and '.join(OPTIONS)}, not both")
        if options and "validation" in options:
            self.episodes.restart(seed or 0, _replication(options["validation"]), VALIDATION)
        elif options and "replication" in options:
            own = self.episodes.scenario.model.seed
            self.episodes.restart(own if seed is None else seed, _replication(options["replication"]))
        else:
            if self._load_seed is None:
                self._load_seed = int(self.np_random.integers(np.iinfo(np.int64).max))
            self._episode += 1
            self.episodes.restart(self._load_seed, self._episode, TRAINING)

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Carry out an action, and return the values that Gymnasium defines."""
        episodes = self.episodes
        reward = episodes.step(whole_number(action))
        return episodes.observation, reward, episodes.terminated, episodes.truncated, self._info()

    def clone(self) -> Self:
        """Return an independent copy in mid-episode, with the same results to the bit.

        Raises: UsageError if an observation, a reward or a policy cannot be copied.
        """
        new = copy(self)
        new.episodes, new._np_random = self.episodes.clone(), deepcopy(self._np_random)
        return new

    def __deepcopy__(self, known: dict[int, Any]) -> Self:
        return self.clone()

    def action_masks(self) -> np.ndarray:
        """Return the mask of actions that are possible now."""
        return self.episodes.mask

    @property
    def layout(self) -> Layout:
        """Layout of observation and actions: their sizes, and the features of each action."""
        return self.episodes.layout

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the actions: `task 0 on a100`, ..., `wait`."""
        return self.episodes.action_names

    def scheduler(self, choice: Choice, name: str = "trained") -> type[Scheduler]:
        """Create a scheduler class that chooses by `choice(observation, mask)`.

        `choice` returns the number of an action from an observation of this environment.  `run` and `compare` accept
        the class as a policy; or register it under a name: `hetsim.register("mine", env.unwrapped.scheduler(choice))`.
        """
        return scheduler_of(self.episodes, choice, name)

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Names of an observation's entries: `task 0: waited`, `task 0 on a100: fits`, ..."""
        return self.episodes.layout.names

    def _info(self) -> dict[str, Any]:
        episodes = self.episodes
        return {
            "action_mask": episodes.mask.astype(np.int8), "now": episodes.now, "dt": episodes.dt,
            "earned": episodes.earned,
        }  # fmt: skip

    @property
    def result(self) -> Result:
        """The tables of the run, after the episode has ended."""
        return self.episodes.result


def space_of(episodes: Episodes) -> spaces.Space[Any]:
    """Return the Gymnasium space of the chosen observation (default: the vector)."""
    if (first := episodes.first) is None:
        return spaces.Box(-LIMIT, LIMIT, (episodes.layout.observation,), np.float32)
    if first.shapes is None:  # a function: its first answer tells
        episodes.reset(0, 0, TRAINING)
        assert isinstance(episodes.watched, Acting) and episodes.watched.observer is not None
        first = episodes.first = episodes.watched.observer
    if isinstance(first.shapes, Mapping):
        return spaces.Dict({key: _box(shape) for key, shape in first.shapes.items()})
    return _box(first.shapes)


def _box(shape: tuple[int, ...]) -> spaces.Box:
    highest = float(np.finfo(np.float32).max)
    return spaces.Box(-highest, highest, shape, np.float32)


def _replication(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < APART:
        raise UsageError(f"replication must be a whole number from 0 to {APART - 1:,}; got {value!r}")
    return int(value)


def whole_number(action: Any) -> int:
    """Convert an action to an integer; raise UsageError if it is not a whole number."""
    if isinstance(action, np.ndarray) and action.ndim == 0:
        action = action.item()
    if isinstance(action, bool) or not isinstance(action, int | np.integer):
        raise UsageError(f"an action must be a whole number; got {action!r}")
    return int(action)


class AdmissionEnv(SchedulingEnv):
    """Accept (1) or reject (0) each task that becomes ready (hetsim/Admission-v0).

    It takes the parameters of `SchedulingEnv`; the default reward is `goodput`.  The agent replaces the scenario's own
    admission policy.  The observation has the same features, for the new task first and then for the waiting tasks.
    """

    def __init__(
        self, scenario: str | Path | Mapping[str, Any] | Scenario, window: int = WINDOW,
        reward: RewardLike = Goodput.name, scale: float | None = None, ahead: bool = True,
        normalize: str | None = RETURN, render_mode: str | None = None,
    ):  # fmt: skip
        self._begin(Admissions(scenario, window, reward, scale=scale, ahead=ahead, normalize=normalize), render_mode)


class SchedulingVectorEnv(gymnasium.vector.VectorEnv[Any, np.ndarray, np.ndarray]):
    """Many environments in one process (`gymnasium.make_vec`), one per row of arrays.

    num_envs: number of environments; the other parameters are those of the single environment.
    `reset(seed=s)` seeds them with s, s + 1, ...; an ended episode begins again at the next step, whose action is
    ignored.  Each row equals the single environment's; array operations run for all environments together.  In `info`
    each entry is an array, `action_mask` of shape (num_envs, actions).
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}
    kind: ClassVar[type[SchedulingEnv]] = SchedulingEnv

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **given: Any):
        if isinstance(num_envs, bool) or not isinstance(num_envs, int | np.integer) or num_envs < 1:
            raise UsageError(f"num_envs must be a whole number of at least 1; got {num_envs!r}")
        first = self.kind(**given)
        if first.episodes.normalize:
            _ = first.episodes.factor  # once, not by each copy
        others = [self.kind.from_episodes(copy(first.episodes)) for _ in range(num_envs - 1)]
        self.envs, self.num_envs, self.render_mode = [first, *others], int(num_envs), render_mode
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a run in each environment; return observations, and info with the masks."""
        seeds = [None] * self.num_envs if seed is None else seed
        seeds = [seeds + number for number in range(self.num_envs)] if isinstance(seeds, int) else seeds
        if len(seeds) != self.num_envs:
            raise UsageError(f"{len(seeds)} seeds are given for {self.num_envs} environments; give one for each")
        for env, own in zip(self.envs, seeds, strict=True):
            env._restart(own, options)
        return self._seen()

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Carry out an action in each environment; return Gymnasium's values as arrays."""
        if len(actions) != self.num_envs:
            raise UsageError(f"{len(actions)} actions are given for {self.num_envs} environments; give one for each")
        rewards, chosen = [0.0] * self.num_envs, actions.tolist() if isinstance(actions, np.ndarray) else actions
        for number, (env, action) in enumerate(zip(self.envs, chosen, strict=True)):
            if env.episodes.over:
                env._restart()
            else:
                rewards[number] = env.episodes.move(action if action.__class__ is int else whole_number(action))
        observation, info = self._seen()
        ends = np.array([(env.episodes.terminated, env.episodes.truncated) for env in self.envs])
        return observation, np.array(rewards), ends[:, 0], ends[:, 1], info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        """Return observations and infos of all environments after a step or reset."""
        episodes, space, size = [env.episodes for env in self.envs], self.single_observation_space, self.num_envs
        if (seen := look_together(episodes)) is None:
            empty = gymnasium.vector.utils.create_empty_array(space, size)
            all_seen = gymnasium.vector.utils.concatenate(space, [one.observation for one in episodes], empty)
            seen = all_seen, np.array([one.mask for one in episodes])
        info = {name: np.array([getattr(one, name) for one in episodes]) for name in ("now", "dt", "earned")}
        info["action_mask"] = seen[1].astype(np.int8)
        return seen[0], info | {f"_{name}": np.ones(size, np.bool_) for name in info}


class AdmissionVectorEnv(SchedulingVectorEnv):
    """Many admission environments in one process; each is a row of every array."""

    kind = AdmissionEnv


# environment class by what it decides
ENVIRONMENTS: dict[str, type[SchedulingEnv]] = {SCHEDULING: SchedulingEnv, ADMISSION: AdmissionEnv}
