"""Training episodes and validation runs of an agent, with a progress callback."""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field

from hetsim.experiment.progress import Progress
from hetsim.learning.agents.network import ScoreNetwork
from hetsim.learning.environment.admission import Admissions, Played
from hetsim.learning.environment.episode import TIME, Episodes
from hetsim.learning.environment.rewards import RewardLike
from hetsim.learning.observation.window import ADMISSION, SCHEDULING
from hetsim.model.randomness import TRAINING, VALIDATION
from hetsim.scenario.scenario import Scenario

JUDGED_ON = 4  # number of validation runs that score a network
JUDGED = 20  # number of validations over all steps
EPISODES: dict[str, type[Episodes]] = {SCHEDULING: Episodes, ADMISSION: Admissions}

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Several = Annotated[int, Field(ge=2, le=10_000_000)]
# sizes of the hidden layers; empty: a linear score
Layers = Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(max_length=8)]


class Practice:
    """Training episodes of an agent, and the validation of its networks.

    An agent of hetsim uses these members: `layout`; `seed` of the loads; `scale`, seconds of a typical task, in which
    the discount is measured; `episodes`, with the present observation and `step`; `reset`, which begins an episode;
    `passed`, which reports progress and validates.  Other libraries use `environment`.
    """

    # the policy and the rollout buffer for stable-baselines3; a function, since they need PyTorch
    sb3: Callable[[], tuple[Any, Any]]

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

    def environment(self) -> Any:
        """Return the episodes as a Gymnasium environment; call `reset(seed=self.seed)`."""
        from hetsim.learning.environment.gym import ENVIRONMENTS

        return ENVIRONMENTS[self.decides].from_episodes(self.episodes)

    def reset(self, episode: int) -> None:
        self.episodes.reset(self.seed, episode, TRAINING)

    def passed(self, steps: int, network: ScoreNetwork) -> None:
        """Count steps; at intervals validate the network, and store the best one."""
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
        """Return the network that scored best in the validation runs."""
        if self.kept is None:
            self._judge(self.steps, network)
        return self.kept

    def _value(self, network: Any) -> float:
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
        """Return the reward per task of a scenario's own policy in the validation runs."""
        episodes, earned, tasks = self._player(scenario), 0.0, 0
        for replication in range(JUDGED_ON):
            earned += episodes.total(self.seed, replication, VALIDATION)
            tasks += _tasks(episodes)
        return earned / max(tasks, 1)

    def earned(self, scenario: Scenario, seed: int, replications: int) -> list[float]:
        """Return the reward per task of a scenario's own policy, for each replication."""
        episodes = self._player(scenario)
        return [episodes.total(seed, number) / max(_tasks(episodes), 1) for number in range(replications)]

    def _player(self, scenario: Scenario) -> Played:
        return Played(scenario, self.episodes.window, self.parts, self.scale)

    def table(self) -> pd.DataFrame:
        return pd.DataFrame(self.curve, columns=["steps", "reward_per_task"])


def _tasks(episodes: Episodes) -> int:
    assert episodes.record is not None
    return int((episodes.record.status >= 0).sum())
