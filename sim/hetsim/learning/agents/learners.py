"""Agents: deep Q-learning and a policy gradient in NumPy, and PPO in PyTorch.

`Ppo` is proximal policy optimization, by MaskablePPO of stable-baselines3.
Reference: Schulman, Wolski, Dhariwal, Radford, Klimov, Proximal Policy Optimization Algorithms (2017), with invalid
actions masked as in Huang and Ontañón, A Closer Look at Invalid Action Masking in Policy Gradient Algorithms (FLAIRS
2022).  The policy network is that of the other agents and scores each action from its row of features; the value
network reads the whole observation.
Weakness: the discount is per step unless `horizon` is given; no guarantee except that updates are small.
Cost: 1 to 2 s per thousand steps, mostly in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetsim.errors import UsageError
from hetsim.learning.agents.network import Adam, ScoreNetwork, shares
from hetsim.learning.agents.practice import Count, Layers, NotNegative, Positive, Practice, Several, Share


@dataclass
class Dqn:
    """Deep Q-learning: learn the value of each action, and take the best action.

    Reference: Mnih et al., Human-level Control through Deep Reinforcement Learning (Nature 2015): replay memory and a
    target network; van Hasselt, Guez, Silver, Deep Reinforcement Learning with Double Q-learning (AAAI 2016): one
    network chooses the next action, the other values it.  Decisions are at irregular times, so the discount is by
    elapsed time, as in a semi-Markov process (Bradtke and Duff, NIPS 1994).
    Weakness: no guarantee with a network, and the noise of the system's total cost hides the effect of one action; some
    ten thousand steps are needed.  Cost: an update of `batch` transitions every `every` steps, about 1 ms each.

    memory: number of transitions stored; batch: number drawn for an update, one every `every` steps.
    horizon: time after which a reward is discounted to 1/e, in multiples of the environment's `scale` (the typical time
        of a task).  Exploration falls to `min_explore` over the first `explore` of all steps.  `target`: number of
        updates between two copies to the target network.
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
        layout, episodes = practice.layout, practice.episodes
        network = ScoreNetwork.fresh(layout.inputs, self.hidden, random)
        adam, target = Adam(network.arrays, self.rate), network.copy()
        memory = Memory(min(self.memory, steps), layout.observation, layout.actions)
        episode = updates = 0
        practice.reset(episode)
        for step in range(steps):
            possible = np.flatnonzero(episodes.mask)
            if random.random() < max(self.min_explore, 1.0 - step / max(self.explore * steps, 1)):
                action = int(random.choice(possible))
            else:
                action = int(possible[network.scores(layout.row(episodes.observation, possible)).argmax()])
            place = memory.begin(episodes.observation, episodes.mask, action)
            before = episodes.now
            reward = episodes.step(action)
            discount = 0.0 if episodes.over else math.exp((before - episodes.now) / (self.horizon * practice.scale))
            memory.end(place, reward, discount)
            if episodes.over:
                episode += 1
                practice.reset(episode)
            if step % self.every == 0 and step >= 10 * self.batch:
                rate = self.rate * (1.0 - 0.9 * step / steps)
                adam.step(self._gradients(practice, network, target, memory=memory, random=random), rate)
                updates += 1
                if updates % self.target == 0:
                    target = network.copy()
            practice.passed(step + 1, network)
        return network

    def _gradients(
        self, practice: Practice, network: ScoreNetwork, target: ScoreNetwork, memory: Memory,
        random: np.random.Generator,
    ) -> list[np.ndarray]:  # fmt: skip
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
        return network.backward(np.clip(network.forward(own) - wanted, -1.0, 1.0) / len(drawn))


class Memory:
    """Ring buffer of the last transitions, at consecutive positions in order of time."""

    def __init__(self, size: int, observation: int, actions: int):
        self.size = size + 1
        self.observations = np.zeros((self.size, observation), np.float32)
        self.masks = np.zeros((self.size, actions), np.bool_)
        self.masks[:, -1] = True
        self.actions = np.zeros(self.size, np.int64)
        self.rewards = np.zeros(self.size, np.float32)
        self.left = np.zeros(self.size, np.float32)
        self.taken = 0

    def begin(self, observation: np.ndarray, mask: np.ndarray, action: int) -> int:
        """Add a decision, and return its position."""
        place = self.taken % self.size
        self.taken += 1
        self.observations[place], self.masks[place], self.actions[place] = observation, mask, action
        return place

    def end(self, place: int, reward: float, left: float) -> None:
        """Record the reward at `place`; left: discount of later rewards (0: episode over)."""
        self.rewards[place], self.left[place] = reward, left

    def draw(self, count: int, random: np.random.Generator) -> np.ndarray:
        """Draw positions of random transitions, except the last, which has no successor."""
        kept = min(self.taken, self.size) - 1
        return np.asarray((self.taken - 2 - random.integers(0, kept, count)) % self.size)

    def after(self, places: np.ndarray) -> np.ndarray:
        return np.asarray((places + 1) % self.size)


@dataclass
class Reinforce:
    """Policy gradient with a baseline from other runs of the policy on the same load.

    Reference: Williams, Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning
    (Machine Learning 8, 1992).  The baseline is that of Mao, Venkatakrishnan, Schwarzkopf, Alizadeh, Variance Reduction
    for Reinforcement Learning in Input-Driven Environments (ICLR 2019), as used for scheduling in Decima (SIGCOMM
    2019): several episodes have the same arrivals and sizes, and a return is compared with the remaining cost of the
    other episodes at the same simulated time, so the randomness of the load cancels.
    Weakness: each step is used once, so it needs many steps; only a local optimum is guaranteed, at small learning
    rates.  Cost: about 20 µs per step, in addition to the simulation.

    runs: episodes of the same load per update.  horizon: typical task times after which a reward is discounted to 1/e.
    shortest, growth: an episode is cut after `shortest` typical task times at first, rising to `shortest` × (1 +
        `growth`) at the end of training, because a long run under an untrained policy teaches nothing.
    entropy: weight of a bonus for undecided choices, which falls to 0.
    """

    hidden: Layers = (32, 32)
    rate: Positive = 2e-3
    runs: Several = 6
    horizon: Positive = 4.0
    shortest: Positive = 12.0
    growth: NotNegative = 5.0
    entropy: NotNegative = 0.02

    def train(self, practice: Practice, steps: int, random: np.random.Generator) -> ScoreNetwork:
        """Train for `steps` decisions, in episodes that become longer; return the network."""
        network = ScoreNetwork.fresh(practice.layout.inputs, self.hidden, random)
        adam, episodes = Adam(network.arrays, self.rate), practice.episodes
        self._spreads: list[float] = []
        taken = episode = 0
        while taken < steps:
            paths = []
            until = practice.scale * self.shortest * (1.0 + self.growth * taken / steps)
            for _ in range(self.runs):
                practice.reset(episode)
                path = Path()
                while not episodes.over and episodes.now < until and taken < steps:
                    self._act(practice, network, path, random)
                    taken += 1
                    practice.passed(taken, network)
                paths.append(path)
            episode += 1
            if taken < steps:
                remaining = 1.0 - taken / steps
                adam.step(self._gradients(practice, network, paths, remaining), self.rate * max(0.1, remaining))
        return network

    def _act(self, practice: Practice, network: ScoreNetwork, path: Path, random: np.random.Generator) -> None:
        episodes = practice.episodes
        possible = np.flatnonzero(episodes.mask)
        rows = practice.layout.row(episodes.observation, possible)
        chances = np.cumsum(shares(balanced(network.scores(rows), _FIRST, episodes.mask[-1:])[0], _FIRST))
        chosen = min(int(np.searchsorted(chances, random.random() * chances[-1], side="right")), len(possible) - 1)
        path.rows.append(rows)
        path.may_wait.append(bool(episodes.mask[-1]))
        path.chosen.append(chosen)
        path.times.append(episodes.now)
        path.rewards.append(episodes.step(int(possible[chosen])))
        path.end = episodes.now

    def _gradients(self, practice: Practice, network: ScoreNetwork, paths: list[Path], left: float) -> list[np.ndarray]:
        returns = [path.returns(self.horizon * practice.scale) for path in paths]
        gains = []
        for number, path in enumerate(paths):
            others = [
                np.interp(path.times, other.times, returns[at], right=0.0)
                for at, other in enumerate(paths) if at != number
            ]  # fmt: skip
            gains.append(returns[number] - np.mean(others, axis=0))
        gain = np.concatenate(gains)
        # By the mean spread so far, not this batch's own: runs of a policy that is nearly decided hardly differ, and
        # what is left is noise.
        self._spreads.append(float(gain.std()))
        gain = gain / (np.mean(self._spreads) + 1e-8)
        rows = [row for path in paths for row in path.rows]
        counts = np.array([len(row) for row in rows])
        starts = np.cumsum(counts) - counts
        may_wait = np.array([may for path in paths for may in path.may_wait])
        scores, back = balanced(network.forward(np.concatenate(rows)), starts, may_wait)
        chances = shares(scores, starts)
        owner = np.repeat(np.arange(len(rows)), counts)
        slopes = chances * gain[owner]
        slopes[starts + np.array([chosen for path in paths for chosen in path.chosen])] -= gain
        information = np.log(chances + 1e-12)
        mean = np.add.reduceat(chances * information, starts)
        slopes += self.entropy * left * chances * (information - mean[owner])
        return network.backward(back(slopes) / len(rows))


_FIRST = np.zeros(1, np.int64)


def balanced(
    scores: np.ndarray, starts: np.ndarray, may_wait: np.ndarray
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Raise the score of waiting to compensate for the number of possible placements.

    In a softmax of the raised scores, waiting has the same odds against all placements together as it has by the given
    scores against the best placement alone.  Otherwise the probability of placing, spread over many placements, could
    make waiting the likeliest single action, and a policy that takes the likeliest action would wait forever.

    starts: first row of each decision.  may_wait: True if the last row of a decision is waiting.  Return the raised
    scores, and a function from gradients by raised scores to gradients by given scores.
    """
    ends = np.append(starts[1:], len(scores))
    choices = np.flatnonzero(may_wait & (ends - starts > 1))
    wait = ends[choices] - 1
    owner = np.repeat(np.arange(len(starts)), ends - starts)
    placed = scores.astype(np.float64)
    placed[wait] = -np.inf
    parts = np.exp(placed - np.maximum.reduceat(placed, starts)[owner])
    totals = np.add.reduceat(parts, starts)
    raised = scores.astype(np.float64)
    raised[wait] += np.log(totals[choices])

    def back(slopes: np.ndarray) -> np.ndarray:
        given = slopes.copy()
        moved = np.zeros(len(starts))
        moved[choices] = slopes[wait]
        given += moved[owner] * parts / totals[owner]
        given[[first + int(placed[first:end].argmax()) for first, end in zip(starts, ends, strict=True)]] -= moved
        return given

    return raised, back


@dataclass
class Path:
    """One episode: the feature rows, the choice, the time and the reward of each step."""

    rows: list[np.ndarray] = field(default_factory=list)
    may_wait: list[bool] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    end: float = 0.0

    def returns(self, horizon: float) -> np.ndarray:
        values = np.zeros(len(self.times))
        after = np.append(self.times[1:], self.end)
        factors = np.exp((np.array(self.times) - after) / horizon)
        later = 0.0
        for step in reversed(range(len(values))):
            values[step] = later = self.rewards[step] + factors[step] * later
        return values


MISSING = "the agent ppo needs stable-baselines3 and sb3-contrib: pip install 'hetsim[learning]'"


@dataclass
class Ppo:
    """Proximal policy optimization (MaskablePPO); `discount` is per step.

    horizon: if above 0, the discount is by time instead: to 1/e after this number of typical task times (`scale`).
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
        """Raise UsageError if a required package is not installed."""
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
