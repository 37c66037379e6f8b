"""The Gymnasium face of episodes; the only file that imports Gymnasium."""

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

OPTIONS = ("replication", "validation")
"""What `reset` takes besides a seed."""


class SchedulingEnv(gymnasium.Env[Any, np.int64]):
    """Place one of the first `window` waiting tasks, or wait (hetsim/Scheduling-v0).

    scenario: a file, the name of a shipped scenario, a mapping, or a Scenario; its scheduler is not asked, its
        admission policy is.
    window: waiting tasks shown, by arrival.
    reward: response, slowdown, goodput, energy or value (`hetsim.learning.environment.rewards`), or a mapping of such
    names to weights.
    scale: seconds by which times are measured; by default the mean estimated time of the scenario's tasks.
    ahead: what a task takes beyond its time at best is charged as soon as it starts, by its estimate.
    normalize: rewards are multiplied by a factor that makes what follows a step about one, discounted by 0.99 a step
        (`return`, for agents as they come), or rewards about one per `scale` seconds (`time`), or not at all (None).
    observation: vector, dict, graph, a registered name, a class or a function
    (`hetsim.learning.environment.observations`).
    actions: what else may be chosen: width, mode, node, preempt, power (`hetsim.learning.environment.acting`).

    order: how the tasks shown stand: the `shortest` first, by estimated time at best, so that a place means the same
        whatever the load; or by `arrival`.

    `info` has `now` and `dt` (seconds, of the clock and since the last decision), `earned` (the plain reward of the
    step, neither ahead nor normalized: its sum is a figure of the tables) and `action_mask`.
    Each reset begins a run on another load.  These are the loads that `hetsim train` trains on, never one that `run`,
    `compare` or the end of `train` judges by, whatever the seeds.  `reset(seed=s)` begins the first of seed s, each
    plain `reset()` the next; without any seed it is drawn from entropy, so that environments side by side differ.
    `options={"replication": r}` begins a run to judge by instead: replication r of `hetsim.run(scenario, seed=s)`, of
    the scenario's own seed if reset is given none; `options={"validation": r}` the validation load r of seed s (0 if
    none is given), by which `hetsim train` chooses the network that it keeps.
    `action_masks()` (bool), and `info["action_mask"]` (int8, as `action_space.sample` wants it), say which actions are
    possible; another one waits, or where that is not possible takes the first that is.  An episode is terminated when
    every task has ended, and truncated when the scenario's horizon comes before that.  After it `result` has the
    tables.  `observation_names` names the entries of an observation.
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
        """The environment of existing episodes."""
        env = cls.__new__(cls)
        env._begin(episodes)
        return env

    def _begin(self, episodes: Episodes, render_mode: str | None = None) -> None:
        self.episodes, self.render_mode = episodes, render_mode
        self.observation_space = space_of(episodes)
        self.action_space = spaces.Discrete(episodes.actions)
        self._load_seed: int | None = None  # that of the training loads; None until it is given or drawn
        self._episode = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a run; return the first observation, and the info with its mask."""
        super().reset(seed=seed)
        if seed is not None and not options:
            self._load_seed, self._episode = seed, -1
        for key in options or {}:
            if key not in OPTIONS:
                raise UsageError(f'reset has no option "{key}"; there are {" and ".join(OPTIONS)}')
        if options and len(options) > 1:
            raise UsageError(f"reset takes one of the options {' and '.join(OPTIONS)}, not both")
        if options and "validation" in options:
            observation = self.episodes.reset(seed or 0, _replication(options["validation"]), VALIDATION)
        elif options and "replication" in options:
            own = self.episodes.scenario.model.seed
            observation = self.episodes.reset(own if seed is None else seed, _replication(options["replication"]))
        else:
            if self._load_seed is None:
                self._load_seed = int(self.np_random.integers(np.iinfo(np.int64).max))
            self._episode += 1
            observation = self.episodes.reset(self._load_seed, self._episode, TRAINING)
        return observation, self._info()

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Carry out an action; return as Gymnasium defines."""
        episodes = self.episodes
        reward = episodes.step(whole_number(action))
        return episodes.observation, reward, episodes.terminated, episodes.truncated, self._info()

    def clone(self) -> Self:
        """A copy in mid-episode that goes on independently, to the same bytes.

        Raises: UsageError if an observation, a reward or a policy cannot be copied.
        """
        new = copy(self)
        new.episodes, new._np_random = self.episodes.clone(), deepcopy(self._np_random)
        return new

    def __deepcopy__(self, known: dict[int, Any]) -> Self:
        return self.clone()

    def action_masks(self) -> np.ndarray:
        """Mask of the actions that are possible now."""
        return self.episodes.mask

    @property
    def layout(self) -> Layout:
        """Sizes of the vector and the plain actions, and columns of actions."""
        return self.episodes.layout

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the actions: `task 0 on a100`, ..., `wait`."""
        return self.episodes.action_names

    def scheduler(self, choice: Choice, name: str = "trained") -> type[Scheduler]:
        """Make a scheduler class that chooses by `choice(observation, mask)`.

        It gives the number of an action from what this environment shows.  `run` and `compare` take it as a policy; or
        register it under a name: `hetsim.register("mine", env.unwrapped.scheduler(choice))`.
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
        """The tables of the run, once the episode is over."""
        return self.episodes.result


def space_of(episodes: Episodes) -> spaces.Space[Any]:
    """The observation space: the vector's, or that of another kind of observation."""
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
    """Convert an action to an integer; UsageError for anything else."""
    if isinstance(action, np.ndarray) and action.ndim == 0:
        action = action.item()
    if isinstance(action, bool) or not isinstance(action, int | np.integer):
        raise UsageError(f"an action must be a whole number; got {action!r}")
    return int(action)


class AdmissionEnv(SchedulingEnv):
    """Accept (1) or reject (0) each task that becomes ready (hetsim/Admission-v0).

    The parameters are those of `hetsim/Scheduling-v0`; the reward is `goodput` unless another is named.  The scenario's
    own admission policy is not asked.  The observation is that of scheduling with the task in question shown first
    and the others that wait behind it.
    """

    def __init__(
        self, scenario: str | Path | Mapping[str, Any] | Scenario, window: int = WINDOW,
        reward: RewardLike = Goodput.name, scale: float | None = None, ahead: bool = True,
        normalize: str | None = RETURN, render_mode: str | None = None,
    ):  # fmt: skip
        self._begin(Admissions(scenario, window, reward, scale=scale, ahead=ahead, normalize=normalize), render_mode)


class SchedulingVectorEnv(gymnasium.vector.VectorEnv[Any, np.ndarray, np.ndarray]):
    """Many environments in one process (`gymnasium.make_vec`), each with a row.

    num_envs: how many; the other parameters are those of the single environment.
    `reset(seed=s)` seeds them with s, s + 1, ...; an episode that has ended begins again at the next step, whose action
    is ignored.  Each row is what the single environment gives; the work on arrays is done for all at once.  In `info`
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
        """Begin a run in each; the first observations, and the info with the masks."""
        seeds = [None] * self.num_envs if seed is None else seed
        seeds = [seeds + number for number in range(self.num_envs)] if isinstance(seeds, int) else seeds
        if len(seeds) != self.num_envs:
            raise UsageError(f"{len(seeds)} seeds are given for {self.num_envs} environments")
        for env, own in zip(self.envs, seeds, strict=True):
            env.reset(seed=own, options=options)
        return self._seen()

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Carry out an action in each; what Gymnasium defines, as arrays."""
        if len(actions) != self.num_envs:
            raise UsageError(f"{len(actions)} actions are given for {self.num_envs} environments")
        rewards, moved = np.zeros(self.num_envs), []
        for number, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            if env.episodes.over:
                env.reset()
            else:
                rewards[number] = env.episodes.move(whole_number(action))
                moved.append(env.episodes)
        look_together(moved)
        observation, info = self._seen()
        ends = np.array([(env.episodes.terminated, env.episodes.truncated) for env in self.envs])
        return observation, rewards, ends[:, 0], ends[:, 1], info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        """Observations of all, and the info."""
        episodes, space, size = [env.episodes for env in self.envs], self.single_observation_space, self.num_envs
        observations = gymnasium.vector.utils.concatenate(
            space, [one.observation for one in episodes], gymnasium.vector.utils.create_empty_array(space, size)
        )
        info = {name: np.array([getattr(one, name) for one in episodes]) for name in ("now", "dt", "earned")}
        info["action_mask"] = np.array([one.mask for one in episodes], np.int8)
        return observations, info | {f"_{name}": np.ones(size, np.bool_) for name in info}


class AdmissionVectorEnv(SchedulingVectorEnv):
    """Many environments of admission in one process, each with a row."""

    kind = AdmissionEnv


ENVIRONMENTS: dict[str, type[SchedulingEnv]] = {SCHEDULING: SchedulingEnv, ADMISSION: AdmissionEnv}
"""By what they decide."""
