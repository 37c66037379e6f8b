"""The material of an agent: episodes in a row, and a listener for its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import Field

from hetsim.learning.agents.network import Adam, ScoreNetwork, arrays_of, network_of
from hetsim.learning.observation.window import Layout

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


class Practice(Protocol):
    """Episodes of one scenario, with rewards of about one per typical time."""

    layout: Layout
    scale: float
    """Seconds of a typical task: the unit of an agent's discount."""
    observation: np.ndarray
    mask: np.ndarray
    over: bool
    now: float

    seed: int
    """Seed of the loads."""

    def environment(self) -> Any:
        """The same episodes as a Gymnasium environment, from `reset(seed=practice.seed)`."""
        ...

    @property
    def sb3(self) -> Any:
        """The policy and the rollout buffer for stable-baselines3."""
        ...

    def reset(self, episode: int) -> None:
        """Begin the episode of this number: the same load whenever it is named."""
        ...

    def step(self, action: int) -> float:
        """Take an action; its reward."""
        ...

    def passed(self, steps: int, network: ScoreNetwork) -> None:
        """So many steps have been taken so far, and this is what was learned from them."""
        ...

    resumed: AgentState | None
    """The state of an agent that was saved, with the episode under way as it was then; None: begin."""

    def return_to(self) -> None:
        """Go to where the episode was when the state was saved."""
        ...

    def save(self, steps: int, state: Callable[[], AgentState]) -> None:
        """Note the steps taken and, from time to time, save this state of training."""
        ...


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
