"""The network of `hetsim train` in PyTorch: it scores each action.

    scores = ActionScores(env.unwrapped.layout)            # a torch.nn.Module: from observations to a score per action
    scores.save("mine.npz", env.unwrapped)                 # a file for {scheduler: {name: learned, path: mine.npz}}

Needs PyTorch.  For stable-baselines3 see `hetsim.learning.training.sb3`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hetsim.errors import UsageError
from hetsim.learning.agents.files import LearnedPolicy, save
from hetsim.learning.agents.network import ScoreNetwork
from hetsim.learning.observation.window import PAIR, SCHEDULING, TASK, Layout

if TYPE_CHECKING:
    from hetsim.learning.environment.gym import SchedulingEnv


class ActionScores(nn.Module):
    """Network that returns a score per action; the caller masks forbidden actions.

    `plain` scores actions for choosing the best one (`greedy`).  `forward` is for drawing actions at random.  It raises
    the score of waiting, such that P(wait) / P(any placement) = exp(plain score of waiting - best plain score of a
    placement).  Without this, waiting could be the likeliest single action while most of the probability is spread over
    placements, and a policy that takes the likeliest action would wait forever.
    hidden: widths of the hidden layers.  seed: seed of the first weights, as for `numpy.random.default_rng`.
    """

    def __init__(self, layout: Layout, hidden: Sequence[int] = (32, 32), seed: Any = 0):
        super().__init__()
        self.layout = layout
        self.register_buffer("rows", torch.as_tensor(layout.rows))
        self.register_buffer("fits", self.rows[:-1, len(TASK) + PAIR.index("fits")])
        sizes = [layout.inputs, *hidden, 1]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(sizes, sizes[1:], strict=False))
        self.load_arrays(ScoreNetwork.fresh(layout.inputs, hidden, np.random.default_rng(seed)).arrays)

    def plain(self, observations: torch.Tensor) -> torch.Tensor:
        """Scores for choosing: the best possible action has the highest score."""
        padding = observations.new_tensor([[0.0, 1.0]]).expand(len(observations), 2)
        values = torch.cat([observations, padding], dim=1)[:, self.rows]
        for layer in self.layers[:-1]:
            values = torch.tanh(layer(values))
        scored: torch.Tensor = self.layers[-1](values)[..., 0]
        return scored

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the scores as logits, for drawing an action at random.

        These are the scores of the method `plain`.  In scheduling the score of waiting is raised, so that P(wait) /
        P(any placement) = exp(plain score of waiting - best plain score of a placement).
        """
        scores = self.plain(observations)
        if self.layout.decides != SCHEDULING:
            return scores
        placed = scores[:, :-1].masked_fill(observations[:, self.fits] < 0.5, -1e8)
        more = placed.logsumexp(dim=1) - placed.max(dim=1).values
        return torch.cat([scores[:, :-1], scores[:, -1:] + more[:, None]], dim=1)

    def arrays(self) -> list[np.ndarray]:
        """Weights and biases by layer, in the form of the NumPy network."""
        layers = []
        for layer in self.layers:
            layers += [layer.weight.detach().cpu().numpy().T.copy(), layer.bias.detach().cpu().numpy().copy()]
        return layers

    def load_arrays(self, arrays: Sequence[np.ndarray]) -> None:
        with torch.no_grad():
            for layer, weights, biases in zip(self.layers, arrays[::2], arrays[1::2], strict=True):
                layer.weight.copy_(torch.as_tensor(weights.T.copy()))
                layer.bias.copy_(torch.as_tensor(biases))

    def save(self, path: str | Path, env: SchedulingEnv) -> Path:
        """Write the file of a learned policy: arrays and JSON, without PyTorch.

        The saved policy sees tasks in order of arrival, whatever the environment's `order`; scores do not depend on it.
        """
        episodes = env.episodes
        if episodes.switches or episodes.first is not None:
            raise UsageError("only the default observation and actions can be saved; register a scheduler instead")
        policy = LearnedPolicy(
            ScoreNetwork(self.arrays()), episodes.window, episodes.layout.types, scale=episodes.scale, agent="torch",
            training={"scenario": episodes.scenario.name, "reward": dict(episodes.parts)}, decides=episodes.decides,
        )  # fmt: skip
        save(policy, path)
        return Path(path)


def greedy(scores: ActionScores, observation: np.ndarray, mask: np.ndarray) -> int:
    """Return the possible action with the highest score."""
    with torch.no_grad():
        scores_of_actions = scores.plain(torch.as_tensor(observation[None]))[0].numpy()
    return int(np.where(mask, scores_of_actions, -np.inf).argmax())
