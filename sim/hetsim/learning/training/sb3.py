"""Parts for stable-baselines3 and sb3-contrib, for `hetsim train --agent ppo`.

    model = MaskablePPO(ScoringPolicy, env, policy_kwargs={"layout": env.unwrapped.layout},
                        rollout_buffer_class=TimedRolloutBuffer,
                        rollout_buffer_kwargs={"clock": env.unwrapped, "horizon": 6.0})

Without `rollout_buffer_class` the discount is per step (`gamma`).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from torch import nn

from hetsim.errors import UsageError
from hetsim.learning.observation.window import Layout
from hetsim.learning.training.networks import ActionScores


class _ActorAndCritic(nn.Module):
    def __init__(self, layout: Layout, hidden: Sequence[int], width: int, seed: int):
        super().__init__()
        self.latent_dim_pi, self.latent_dim_vf = layout.actions, width
        self.actor = ActionScores(layout, hidden, seed)
        self.critic = nn.Sequential(nn.Linear(layout.observation, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.actor(features)
        return scores

    def forward_critic(self, features: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.critic(features)
        return value


class ScoringPolicy(MaskableActorCriticPolicy):
    """Actor-critic policy for MaskablePPO; the actor is an `ActionScores` network.

    layout: sizes of the environment's observation (it must be `vector`) and of its actions.  hidden: widths
    of the actor's hidden layers; seed: seed of its initial weights.  width: width of both hidden layers of the critic.
    """

    def __init__(
        self, *arguments: Any, layout: Layout, hidden: Sequence[int] = (32, 32), width: int = 64, seed: int = 0,
        **more: Any,
    ):  # fmt: skip
        self._scores = layout, hidden, width, seed
        super().__init__(*arguments, ortho_init=False, **more)

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = _ActorAndCritic(*self._scores)

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net = nn.Identity()
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _predict(
        self, observation: torch.Tensor, deterministic: bool = False, action_masks: np.ndarray | None = None
    ) -> torch.Tensor:
        if not deterministic:
            return super()._predict(observation, deterministic, action_masks)
        scores = self.scores.plain(observation)
        if action_masks is not None:
            masks = torch.as_tensor(np.asarray(action_masks, bool), device=scores.device).reshape(scores.shape)
            scores = scores.masked_fill(~masks, -torch.inf)
        return scores.argmax(dim=1)

    @property
    def scores(self) -> ActionScores:
        network: ActionScores = self.mlp_extractor.actor
        return network


class TimedRolloutBuffer(MaskableRolloutBuffer):
    """A rollout buffer that discounts by elapsed simulated time.

    clock: the (single) environment, whose `episodes` have `dt` and `scale`.  horizon: time after which a reward is
    discounted to 1/e, as a multiple of `scale` (seconds of a typical task).
    """

    def __init__(self, *arguments: Any, clock: Any, horizon: float = 6.0, **more: Any):
        if not (isinstance(horizon, int | float) and 0 < horizon < math.inf):
            raise UsageError(f"horizon must be a number of typical times above 0; got {horizon!r}")
        self.episodes, self.horizon = clock.episodes, float(horizon)
        super().__init__(*arguments, **more)
        if self.n_envs != 1:
            raise UsageError("TimedRolloutBuffer must have one environment (n_envs=1)")

    def reset(self) -> None:
        self.discounts = np.ones((self.buffer_size, self.n_envs), np.float32)
        super().reset()

    def add(self, *arguments: Any, **more: Any) -> None:
        # Where the episode has ended the next one has begun by now, and what comes after does not count anyway.
        self.discounts[self.pos] = math.exp(-self.episodes.dt / (self.horizon * self.episodes.scale))
        super().add(*arguments, **more)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: np.ndarray) -> None:
        after, gain = last_values.clone().cpu().numpy().flatten(), np.zeros(self.n_envs, np.float32)
        goes_on = 1.0 - dones.astype(np.float32)
        for step in reversed(range(self.buffer_size)):
            discount = self.discounts[step] * goes_on
            error = self.rewards[step] + discount * after - self.values[step]
            self.advantages[step] = gain = error + discount * self.gae_lambda * gain
            after, goes_on = self.values[step], 1.0 - self.episode_starts[step]
        self.returns = self.advantages + self.values
