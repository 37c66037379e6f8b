"""Deep Q-learning: learn the value of each action, and take the best one.

Reference: Mnih et al., Human-level Control through Deep Reinforcement Learning (Nature 2015): replay memory and a
target network; van Hasselt, Guez, Silver, Deep Reinforcement Learning with Double Q-learning (AAAI 2016): one network
chooses the next action, the other values it.  Between decisions time passes, so the discount is by time, as in a
semi-Markov process (Bradtke and Duff, NIPS 1994).
Weakness: no guarantee with a network, and the noise of the whole system's cost hides what one action changed; a few
ten thousand steps are needed.
Cost: an update of `batch` transitions every `every` steps, about 1 ms each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hetsim.learning.agents.network import ScoreNetwork, arrays_of, network_of
from hetsim.learning.agents.practice import AgentState, Count, Layers, Positive, Practice, Share, Trainer


@dataclass
class Dqn:
    """Double deep Q-learning with replay.

    memory: number of transitions kept; batch: number drawn for an update, one every `every` steps.
    horizon: typical times after which a reward counts 1/e.  Exploration falls to `min_explore` over the first
    `explore` of all steps.  `target`: updates between two copies to the target network.
    """

    hidden: Layers = (32, 32)
    rate: Positive = 1e-3
    memory: Count = 20_000
    batch: Count = 128
    every: Count = 2
    horizon: Positive = 6.0
    explore: Share = 0.4
    min_explore: Share = 0.02
    target: Count = 250

    def train(self, practice: Practice, steps: int, random: np.random.Generator) -> ScoreNetwork:
        """Learn from a number of steps."""
        layout = practice.layout
        trainer = Trainer(practice, self.hidden, self.rate, random, "episode", "updates", "step", "taken")
        network, counts = trainer.network, trainer.counts
        target = network.copy()
        memory = Memory(min(self.memory, steps), layout.observation, layout.actions)
        if practice.resumed is None:
            practice.reset(0)
        else:
            target = network_of(practice.resumed.arrays, "target")
            memory.restore(practice.resumed.arrays, counts["taken"])

        def now() -> AgentState:
            counts["taken"] = memory.taken
            return trainer.state({**arrays_of(target, "target"), **memory.state()})

        for step in range(counts["step"], steps):
            possible = np.flatnonzero(practice.mask)
            if random.random() < max(self.min_explore, 1.0 - step / max(self.explore * steps, 1)):
                action = int(random.choice(possible))
            else:
                action = int(possible[network.scores(layout.row(practice.observation, possible)).argmax()])
            place = memory.begin(practice.observation, practice.mask, action)
            before = practice.now
            reward = practice.step(action)
            discount = 0.0 if practice.over else math.exp((before - practice.now) / (self.horizon * practice.scale))
            memory.end(place, reward, discount)
            if practice.over:
                counts["episode"] += 1
                practice.reset(counts["episode"])
            if step % self.every == 0 and step >= 10 * self.batch:
                rate = self.rate * (1.0 - 0.9 * step / steps)
                trainer.adam.step(self._gradients(practice, network, target, memory=memory, random=random), rate)
                counts["updates"] += 1
                if counts["updates"] % self.target == 0:
                    target = network.copy()
            practice.passed(step + 1, network)
            counts["step"] = step + 1
            practice.save(step + 1, now)
        return network

    def _gradients(
        self,
        practice: Practice,
        network: ScoreNetwork,
        target: ScoreNetwork,
        memory: Memory,
        random: np.random.Generator,
    ) -> list[np.ndarray]:
        """Gradients of the Huber loss between values and their one-step estimates."""
        layout = practice.layout
        drawn = memory.draw(self.batch, random)
        after = memory.after(drawn)
        which, actions = np.nonzero(memory.masks[after])
        starts = np.searchsorted(which, np.arange(len(drawn)))
        rows = layout.select(memory.observations[after], which, actions)
        scores = network.scores(rows)
        best = np.array([first + scores[first:last].argmax() for first, last in zip(
            starts, np.append(starts[1:], len(scores)), strict=True)])  # fmt: skip
        wanted = memory.rewards[drawn] + memory.left[drawn] * target.scores(rows[best])
        own = layout.select(memory.observations[drawn], np.arange(len(drawn)), memory.actions[drawn])
        errors = network.forward(own) - wanted
        return network.backward(np.clip(errors, -1.0, 1.0) / len(drawn))


class Memory:
    """The last transitions, in a ring: what comes after one stands in the next place."""

    def __init__(self, size: int, observation: int, actions: int):
        self.size = size + 1
        self.observations = np.zeros((self.size, observation), np.float32)
        self.masks = np.zeros((self.size, actions), np.bool_)
        self.masks[:, -1] = True
        self.actions = np.zeros(self.size, np.int64)
        self.rewards = np.zeros(self.size, np.float32)
        self.left = np.zeros(self.size, np.float32)
        self.taken = 0

    def state(self) -> dict[str, np.ndarray]:
        """All transitions that are kept."""
        used = min(self.taken, self.size)
        return {
            "observations": self.observations[:used], "masks": self.masks[:used], "chosen": self.actions[:used],
            "rewards": self.rewards[:used], "left": self.left[:used],
        }  # fmt: skip

    def restore(self, state: Mapping[str, np.ndarray], taken: int) -> None:
        """Take over what `state` gave."""
        used, self.taken = len(state["left"]), taken
        self.observations[:used], self.masks[:used] = state["observations"], state["masks"]
        self.actions[:used], self.rewards[:used], self.left[:used] = state["chosen"], state["rewards"], state["left"]

    def begin(self, observation: np.ndarray, mask: np.ndarray, action: int) -> int:
        """A decision; its place."""
        place = self.taken % self.size
        self.taken += 1
        self.observations[place], self.masks[place], self.actions[place] = observation, mask, action
        return place

    def end(self, place: int, reward: float, left: float) -> None:
        """Note the reward of the last step, and the discount of the steps after it."""
        self.rewards[place], self.left[place] = reward, left

    def draw(self, count: int, random: np.random.Generator) -> np.ndarray:
        """Places of some transitions: any but the last, as its successor is not known yet."""
        kept = min(self.taken, self.size) - 1
        drawn: np.ndarray = (self.taken - 2 - random.integers(0, kept, count)) % self.size
        return drawn

    def after(self, places: np.ndarray) -> np.ndarray:
        """Places of their successors."""
        next_places: np.ndarray = (places + 1) % self.size
        return next_places
