"""Stock MaskablePPO on `learned-affinity`, with the public parts that `hetsim train --agent ppo` uses."""

import sys
from pathlib import Path

import gymnasium
import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

import hetsim as hs
from hetsim.learning.training.networks import ActionScores, greedy
from hetsim.learning.training.sb3 import ScoringPolicy

torch.set_num_threads(1)
steps, seed = int(sys.argv[1]), 0
scenario = {"scenario": "learned-affinity", "order": "arrival"}
env = gymnasium.make("hetsim.learning:hetsim/Scheduling-v0", **scenario, normalize="time").unwrapped
judge = gymnasium.make("hetsim.learning:hetsim/Scheduling-v0", **scenario, normalize=None).unwrapped
random = np.random.default_rng([seed, 0])  # as `hetsim train --seed 0`: the same run
first = ActionScores(env.layout, seed=random).arrays()
model = MaskablePPO(
    ScoringPolicy, env, policy_kwargs={"layout": env.layout}, seed=int(random.integers(2**31)),
    device="cpu", learning_rate=lambda left: 1e-3 * max(left, 0.1), n_steps=512, batch_size=128,
    n_epochs=8, gamma=0.97, ent_coef=0.003,
)  # fmt: skip
model.env.seed(seed)  # of the loads
scores, best = model.policy.scores, -np.inf
scores.load_arrays(first)


class KeepTheBest(BaseCallback):
    """Twenty times on the way: the plain reward on four validation loads."""

    def _on_step(self) -> bool:
        global best
        if self.num_timesteps % max(1, steps // 20) == 0:
            earned = 0.0
            for load in range(4):
                (observation, _), over = judge.reset(seed=seed, options={"validation": load}), False
                while not over:
                    observation, _, over, cut, info = judge.step(greedy(scores, observation, judge.action_masks()))
                    earned, over = earned + info["earned"], over or cut
            if earned > best:
                best = earned
                scores.save("stock.npz", env)
        return True


model.learn(steps, callback=KeepTheBest())
mine = {"name": "learned", "path": str(Path("stock.npz").resolve())}
found = hs.compare("learned-affinity", {"mine": {"scheduler": mine}, "fcfs": "fcfs"}, metrics=["slowdown_mean"])
print(found.table)
