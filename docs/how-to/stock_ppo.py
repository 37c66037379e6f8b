"""Stock MaskablePPO on `learned-affinity`, with the public parts that `hetsim train --agent ppo` uses."""

import sys

import gymnasium
import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

import sim
from sim.env.networks import greedy
from sim.env.sb3 import ScoringPolicy

torch.set_num_threads(1)
steps, seed = int(sys.argv[1]), 0
env = gymnasium.make("hetsim/Scheduling-v0", scenario="learned-affinity").unwrapped
judge = gymnasium.make("hetsim/Scheduling-v0", scenario="learned-affinity", normalize=False).unwrapped
model = MaskablePPO(
    ScoringPolicy, env, policy_kwargs={"layout": env.layout, "seed": seed}, learning_rate=lambda left: 1e-3 * max(left, 0.1),
    n_steps=512, batch_size=128, n_epochs=8, gamma=0.97, ent_coef=0.003, device="cpu", seed=seed,
)  # fmt: skip
scores, best = model.policy.scores, -np.inf


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
print(sim.compare("learned-affinity", [{"name": "learned", "path": "stock.npz"}, "fcfs"], metrics=["slowdown_mean"]).table)
