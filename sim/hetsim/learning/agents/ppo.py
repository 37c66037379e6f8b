"""Proximal policy optimization, by MaskablePPO of stable-baselines3.

Reference: Schulman, Wolski, Dhariwal, Radford, Klimov, Proximal Policy Optimization Algorithms (2017), with invalid
actions masked as in Huang and Ontañón, A Closer Look at Invalid Action Masking in Policy Gradient Algorithms (FLAIRS
2022).  The policy network is the one of the other agents, which scores each action from its row; the value network
reads the whole observation.
Weakness: the discount is by step unless `horizon` is given; no guarantee but of small steps.
Cost: a thousand steps take one to two seconds, most of it in PyTorch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.errors import UsageError
from hetsim.learning.agents.network import ScoreNetwork
from hetsim.learning.agents.practice import Count, Layers, NotNegative, Positive, Practice, Several, Share

MISSING = "the agent ppo needs stable-baselines3 and sb3-contrib: pip install 'hetsim[learning]'"


@dataclass
class Ppo:
    """MaskablePPO with its own parameters; `discount` is per step.

    horizon: above 0 the discount is by time instead: typical times after which a reward counts 1/e.
    """

    hidden: Layers = (32, 32)
    rate: Positive = 1e-3
    discount: Share = 0.97
    lambda_: Share = 0.95
    rollout: Several = 512
    batch: Several = 128
    epochs: Count = 8
    entropy: NotNegative = 0.003
    horizon: NotNegative = 0.0

    def check(self) -> None:
        """Raise UsageError if a package that it needs is not installed."""
        try:
            import sb3_contrib  # noqa: F401
        except ImportError:
            raise UsageError(MISSING) from None

    def train(self, practice: Practice, steps: int, random: np.random.Generator) -> ScoreNetwork:
        """Train for a number of steps, rounded up to whole rollouts."""
        self.check()
        import torch
        from sb3_contrib import MaskablePPO
        from stable_baselines3.common.callbacks import BaseCallback

        layout, env = practice.layout, practice.environment()
        scoring, timed = practice.sb3()
        begin = ScoreNetwork.fresh(layout.inputs, self.hidden, random)
        by_time: dict[str, Any] = {}
        if self.horizon > 0:
            by_time = {"rollout_buffer_class": timed, "rollout_buffer_kwargs": {"clock": env, "horizon": self.horizon}}
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # small matrices, and sums in the same order wherever it runs
        try:
            model = MaskablePPO(
                scoring, env, learning_rate=lambda left: self.rate * max(left, 0.1),
                n_steps=self.rollout, batch_size=self.batch, n_epochs=self.epochs, gamma=self.discount,
                gae_lambda=self.lambda_, ent_coef=self.entropy, device="cpu", seed=int(random.integers(2**31)),
                policy_kwargs={"layout": layout, "hidden": self.hidden}, **by_time,
            )  # fmt: skip
            policy: Any = model.policy
            policy.scores.load_arrays(begin.arrays)
            assert model.env is not None
            model.env.seed(practice.seed)

            class Report(BaseCallback):
                def _on_step(self) -> bool:
                    practice.passed(self.num_timesteps, ScoreNetwork(policy.scores.arrays()))
                    return True

            model.learn(steps, callback=Report())
            return ScoreNetwork(policy.scores.arrays())
        finally:
            torch.set_num_threads(threads)
