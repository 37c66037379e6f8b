"""Proximal policy optimisation, by stable-baselines3's MaskablePPO (extra `learning`); what comes out runs in NumPy.

Reference: Schulman, Wolski, Dhariwal, Radford, Klimov, Proximal Policy Optimization Algorithms (2017), with invalid
actions masked as in Huang and Ontañón, A Closer Look at Invalid Action Masking in Policy Gradient Algorithms (FLAIRS
2022).  The policy network is the one of the other agents, which scores each action from its row; the value network
reads the whole observation.
Weakness: the discount is by step, not by time; no guarantee but of small steps.
Cost: a thousand steps take one to two seconds, most of it in PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from policies.learning.network import Network
from policies.learning.practice import Practice
from policies.learning.settings import Count, Layers, NotNegative, Positive, Several, Share
from sim.errors import UsageError
from sim.policy.window import PAIR, TASK

MISSING = "the agent ppo needs stable-baselines3 and sb3-contrib: pip install 'hetsim[learning]'"


@dataclass
class Ppo:
    """MaskablePPO; parameters as there.  `discount` is that of a step."""

    hidden: Layers = (32, 32)
    rate: Positive = 1e-3
    discount: Share = 0.97
    lambda_: Share = 0.95
    rollout: Several = 512
    batch: Several = 128
    epochs: Count = 8
    entropy: NotNegative = 0.003

    def check(self) -> None:
        """UsageError where what it needs is not installed."""
        try:
            import sb3_contrib  # noqa: F401
        except ImportError:
            raise UsageError(MISSING) from None

    def train(self, practice: Practice, steps: int, random: np.random.Generator) -> Network:
        """Learn from so many steps, rounded up to whole rollouts."""
        self.check()
        import torch
        from sb3_contrib import MaskablePPO
        from stable_baselines3.common.callbacks import BaseCallback

        layout = practice.layout
        begin = Network.fresh(layout.inputs, self.hidden, random)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # small matrices, and sums in the same order wherever it runs
        try:
            model = MaskablePPO(
                _policy_class(), _environment(practice), learning_rate=lambda left: self.rate * max(left, 0.1),
                n_steps=self.rollout, batch_size=self.batch, n_epochs=self.epochs, gamma=self.discount,
                gae_lambda=self.lambda_, ent_coef=self.entropy, device="cpu", seed=int(random.integers(2**31)),
                policy_kwargs={"layout": layout, "begin": begin},
            )  # fmt: skip

            class Report(BaseCallback):
                def _on_step(self) -> bool:
                    practice.passed(self.num_timesteps, exported(model.policy))
                    return True

            model.learn(steps, callback=Report())
            return exported(model.policy)
        finally:
            torch.set_num_threads(threads)


def exported(policy: Any) -> Network:
    """The network that scores actions, as arrays."""
    arrays = []
    for layer in policy.mlp_extractor.linear_layers():
        arrays += [layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy()]
    return Network(arrays)


def _environment(practice: Practice) -> Any:
    """The practice as Gymnasium has environments."""
    import gymnasium
    from gymnasium import spaces

    from sim.policy.window import LIMIT

    class Environment(gymnasium.Env[np.ndarray, np.int64]):
        def __init__(self) -> None:
            self.observation_space = spaces.Box(-LIMIT, LIMIT, (practice.layout.observation,), np.float32)
            self.action_space = spaces.Discrete(practice.layout.actions)
            self.episode = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            super().reset(seed=seed)
            practice.reset(self.episode)
            self.episode += 1
            return practice.observation, {}

        def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            reward = practice.step(int(action))
            return practice.observation, reward, practice.over, False, {}

        def action_masks(self) -> np.ndarray:
            return practice.mask

    return Environment()


def _policy_class() -> Any:
    """An actor-critic whose actor scores the actions one by one."""
    import torch
    from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
    from torch import nn

    class Scores(nn.Module):
        """The actor: a score for every row; the critic: features of the whole observation."""

        def __init__(self, layout: Any, begin: Network, width: int = 64):
            super().__init__()
            self.latent_dim_pi, self.latent_dim_vf = layout.actions, width
            self.register_buffer("rows", torch.as_tensor(layout.rows))
            self.register_buffer("fits", self.rows[:-1, len(TASK) + PAIR.index("fits")])
            self.layers = nn.ModuleList()
            for weights, biases in zip(begin.arrays[::2], begin.arrays[1::2], strict=True):
                layer = nn.Linear(*weights.shape)
                with torch.no_grad():
                    layer.weight.copy_(torch.as_tensor(weights.T.copy()))
                    layer.bias.copy_(torch.as_tensor(biases))
                self.layers.append(layer)
            self.critic = nn.Sequential(
                nn.Linear(layout.observation, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
            )

        def linear_layers(self) -> list[Any]:
            return list(self.layers)

        def forward(self, features: Any) -> Any:
            return self.forward_actor(features), self.forward_critic(features)

        def forward_actor(self, features: Any) -> Any:
            padding = features.new_tensor([[0.0, 1.0]]).expand(len(features), 2)
            found = torch.cat([features, padding], dim=1)[:, self.rows]
            for layer in self.layers[:-1]:
                found = torch.tanh(layer(found))
            found = self.layers[-1](found)[..., 0]
            # As `balanced` of reinforce: waiting weighs against all placements as against the best of them.
            placed = found[:, :-1].masked_fill(features[:, self.fits] < 0.5, -1e8)
            more = placed.logsumexp(dim=1) - placed.max(dim=1).values
            return torch.cat([found[:, :-1], found[:, -1:] + more[:, None]], dim=1)

        def forward_critic(self, features: Any) -> Any:
            return self.critic(features)

    class Policy(MaskableActorCriticPolicy):
        def __init__(self, *arguments: Any, layout: Any, begin: Network, **more: Any):
            self._layout, self._begin = layout, begin
            super().__init__(*arguments, ortho_init=False, **more)

        def _build_mlp_extractor(self) -> None:
            self.mlp_extractor = Scores(self._layout, self._begin)

        def _build(self, lr_schedule: Any) -> None:
            super()._build(lr_schedule)
            self.action_net = nn.Identity()
            self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    return Policy
