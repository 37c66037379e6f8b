"""The material of an agent: episodes in a row, and a listener for its progress."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from hetsim.errors import Problem, ScenarioError
from hetsim.experiment.progress import Progress
from hetsim.learning.agents import files as agent_files
from hetsim.learning.agents.network import Adam, ScoreNetwork, arrays_of, network_of
from hetsim.learning.environment.admission import Admissions, Played
from hetsim.learning.environment.episode import TIME, Episodes
from hetsim.learning.environment.rewards import RewardLike
from hetsim.learning.observation.window import ADMISSION, SCHEDULING
from hetsim.model.randomness import TRAINING, VALIDATION

if TYPE_CHECKING:
    import pandas as pd

    from hetsim.scenario.scenario import Scenario

JUDGED_ON = 4
"""Validation runs by which a network is judged."""
JUDGED = 20
"""How often one is, over all steps."""
EPISODES: dict[str, type[Episodes]] = {SCHEDULING: Episodes, ADMISSION: Admissions}
CHECKPOINT = "hetsim training checkpoint"
MAX_CHECKPOINT = 4_000_000_000
"""Bytes of a checkpoint, which holds the memory of an agent."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Several = Annotated[int, Field(ge=2, le=10_000_000)]
Layers = Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(max_length=8)]
"""Sizes of the hidden layers; none: the score is linear."""


@dataclass
class AgentState:
    """The state of an agent: arrays by name, and numbers and texts as JSON has them."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]


class Practice:
    """The episodes that an agent learns from, and the validation of its networks.

    For an agent: `layout`, `scale` (seconds of a typical task, the unit of its discount), `seed` (of the loads), the
    present `observation`, `mask`, `now` and `over`, and `reset`, `step`, `passed` and `save`; `environment` gives the
    same episodes to other libraries.  Where training goes on from a checkpoint, `resumed` is the saved state, with the
    episode under way as it was then; None: begin.
    """

    sb3: Callable[[], tuple[Any, Any]]
    """Gives the policy and the rollout buffer for stable-baselines3, which need PyTorch."""

    def __init__(
        self, scenario: Scenario, window: int, reward: RewardLike, seed: int, steps: int, decides: str = SCHEDULING
    ):
        self.episodes = EPISODES[decides](scenario, window, reward, ahead=True, normalize=TIME)
        self.judge = EPISODES[decides](scenario, window, reward, self.episodes.scale)
        self.layout, self.scale, self.parts = self.episodes.layout, self.episodes.scale, self.episodes.parts
        self.seed, self.steps, self.decides = seed, steps, decides
        self.progress: Progress | None = None
        self.every = max(1, steps // JUDGED)
        self.curve: list[tuple[int, float]] = []
        self.kept: Any = None
        self.kept_after = 0
        self.resumed: AgentState | None = None
        self._checkpoint: tuple[Path, dict[str, Any]] | None = None
        self._saved_at = 0

    def checkpoint_at(self, path: Path, training: dict[str, Any]) -> None:
        """Resume from and save to a file; ScenarioError if it is of another training."""
        self._checkpoint = path, json.loads(json.dumps(training))
        if not path.exists():
            return
        state, mine = read_checkpoint(path, self._checkpoint[1])
        self.curve = [(int(steps), float(value)) for steps, value in mine["curve"]]
        self.kept_after, self._saved_at = int(mine["kept_after"]), int(mine["steps"])
        if any(name.startswith("kept") for name in state.arrays):
            self.kept = network_of(state.arrays, "kept")
        self._under_way = int(mine["episode"]), [int(action) for action in mine["actions"]]
        self.resumed = state
        self.return_to()

    def return_to(self) -> None:
        """Bring the episode back to the saved state: same load, same actions."""
        episode, actions = self._under_way
        self.reset(episode)
        for action in actions:
            self.episodes.step(action)

    def save(self, steps: int, state: Callable[[], AgentState]) -> None:
        """Write the state of training to the file at intervals of steps."""
        if self._checkpoint is None or steps - self._saved_at < self.every:
            return
        path, training = self._checkpoint
        now, self._saved_at = state(), steps
        mine = {
            "curve": self.curve, "kept_after": self.kept_after, "steps": steps,
            "episode": self.episodes.replication, "actions": self.episodes.taken,
        }  # fmt: skip
        kept = {} if self.kept is None else {f"kept{number}": array for number, array in enumerate(self.kept.arrays)}
        about = {"format": CHECKPOINT, "version": 1, "training": training, "practice": mine, "agent": now.facts}
        agent_files.write_parts(path, about, {**now.arrays, **kept})

    def environment(self) -> Any:
        """These episodes as a Gymnasium environment, from `reset(seed=self.seed)`."""
        from hetsim.learning.environment.gym import ENVIRONMENTS

        return ENVIRONMENTS[self.decides].from_episodes(self.episodes)

    @property
    def observation(self) -> np.ndarray:
        return self.episodes.observation

    @property
    def mask(self) -> np.ndarray:
        return self.episodes.mask

    @property
    def over(self) -> bool:
        return self.episodes.over

    @property
    def now(self) -> float:
        return self.episodes.now

    def reset(self, episode: int) -> None:
        """Begin the training episode of this number."""
        self.episodes.reset(self.seed, episode, TRAINING)

    def step(self, action: int) -> float:
        """Take an action; returns its normalized reward."""
        return self.episodes.step(action)

    def passed(self, steps: int, network: ScoreNetwork) -> None:
        """Count the steps; at intervals validate the network, and keep the best one."""
        if self.progress is not None and steps % 100 == 0:
            self.progress(min(1.0, steps / self.steps))
        if steps % self.every == 0:
            self._judge(steps, network)

    def _judge(self, steps: int, network: Any) -> None:
        value = self._value(network)
        if self.kept is None or value > max(before for _, before in self.curve):
            self.kept, self.kept_after = network.copy(), steps
        self.curve.append((steps, value))

    def best(self, network: Any) -> Any:
        """The network that was best on the validation runs."""
        if self.kept is None:
            self._judge(self.steps, network)
        return self.kept

    def _value(self, network: Any) -> float:
        """Reward per task of the validation runs, the best action taken each time."""
        judge, earned, tasks = self.judge, 0.0, 0
        for replication in range(JUDGED_ON):
            judge.reset(self.seed, replication, VALIDATION)
            while not judge.over:
                possible = np.flatnonzero(judge.mask)
                scores = network.scores(self.layout.row(judge.observation, possible))
                earned += judge.step(int(possible[scores.argmax()]))
            tasks += _tasks(judge)
        return earned / max(tasks, 1)

    def played(self, scenario: Scenario) -> float:
        """Reward per task of the validation runs of the policy that the scenario names."""
        episodes = self._player(scenario)
        earned, tasks = 0.0, 0
        for replication in range(JUDGED_ON):
            earned += episodes.total(self.seed, replication, VALIDATION)
            tasks += _tasks(episodes)
        return earned / max(tasks, 1)

    def earned(self, scenario: Scenario, seed: int, replications: int) -> list[float]:
        """Reward per task in a number of runs of the policy that the scenario names."""
        episodes = self._player(scenario)
        return [episodes.total(seed, number) / max(_tasks(episodes), 1) for number in range(replications)]

    def _player(self, scenario: Scenario) -> Played:
        return Played(scenario, self.episodes.window, self.parts, self.scale)

    def table(self) -> pd.DataFrame:
        """The learning curve."""
        import pandas as pd

        return pd.DataFrame(self.curve, columns=["steps", "reward_per_task"])


def read_checkpoint(path: Path, training: Mapping[str, Any]) -> tuple[AgentState, dict[str, Any]]:
    """State of the agent and its practice; ScenarioError if damaged or of another."""

    def wrong(text: str) -> ScenarioError:
        return ScenarioError(Problem(text, file=str(path)))

    arrays = agent_files.read_parts(path, wrong, "checkpoint of a training", MAX_CHECKPOINT)
    try:
        about = json.loads(bytes(arrays.pop("about").astype(np.uint8)).decode())
        recognized, theirs = about["format"] == CHECKPOINT and about["version"] == 1, dict(about["training"])
        facts, mine = dict(about["agent"]), dict(about["practice"])
        complete = set(mine) == {"curve", "kept_after", "steps", "episode", "actions"}
    except (KeyError, ValueError, TypeError, RecursionError):
        recognized = complete = False
    if not recognized or not complete:
        raise wrong("is an .npz archive, but no checkpoint of a training (hetsim train --checkpoint)")
    for key, value in training.items():
        if theirs.get(key) != value:
            if key == "content":
                raise wrong(
                    f"is the checkpoint of another training: the scenario {training['scenario']} has changed since; "
                    "give another path, or delete this file to start again"
                )
            raise wrong(
                f"is the checkpoint of another training: {key} is {theirs.get(key)!r} there and {value!r} here; give "
                "another path, or delete this file to start again"
            )
    return AgentState(arrays, facts), mine


def _tasks(episodes: Episodes) -> int:
    """Number of tasks that arrived in the episode that has ended."""
    assert episodes.record is not None
    return int((episodes.record.status >= 0).sum())


class Trainer:
    """The network of an agent, its optimizer, random numbers and counts."""

    def __init__(
        self, practice: Practice, hidden: Sequence[int], rate: float, random: np.random.Generator, *counts: str
    ):
        resumed, self.random, self.counts = practice.resumed, random, dict.fromkeys(counts, 0)
        if resumed is None:
            self.network = ScoreNetwork.fresh(practice.layout.inputs, hidden, random)
            self.adam = Adam(self.network.arrays, rate)
            return
        self.network = network_of(resumed.arrays)
        self.adam = Adam(self.network.arrays, rate)
        self.adam.restore(resumed.arrays)
        self.counts = {name: resumed.facts[name] for name in counts}
        random.bit_generator.state = resumed.facts["random"]

    def state(self, further: dict[str, np.ndarray]) -> AgentState:
        """The state from which training can continue, with further arrays of the agent."""
        facts = {**self.counts, "random": self.random.bit_generator.state}
        return AgentState({**arrays_of(self.network), **self.adam.state(), **further}, facts)
