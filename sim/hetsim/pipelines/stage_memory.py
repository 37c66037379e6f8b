"""Memory that the stage of a pipeline needs on each of its devices.

Inference holds the weights of its layers and the activations of the largest.  Training has one micro-batch more in
flight than fill the stages behind: 1 + ceil(devices behind / replicas), as in PipeDream, and stashes for each of them
the weights that it began with and all activations, next to one set of gradients.  The state of an optimizer that holds
more is not part of a profile.
Reference: Harlap et al., PipeDream: Fast and Efficient Pipeline Parallel DNN Training (2018), section 3.3.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from hetsim.pipelines.layer_cuts import Cuts


class StageMemory:
    """Bytes by stage, [i, j] as in `Cuts.sums`: infinite where there is no such stage."""

    def __init__(self, cuts: Cuts, inference: bool):
        self.cuts, self.inference = cuts, inference

    @cached_property
    def weights(self) -> np.ndarray:
        return self.cuts.sums([one.weights for one in self.cuts.layers])

    @cached_property
    def activations(self) -> np.ndarray:
        """Of inference those of the largest layer, else of all."""
        return self._largest() if self.inference else self.cuts.sums([one.activations for one in self.cuts.layers])

    def _largest(self) -> np.ndarray:
        """The most bytes that one layer of a stage passes on."""
        layers = self.cuts.layers
        inside = np.array([[one in members for members in self.cuts.sets] for one in range(len(layers))])
        largest = np.zeros_like(self.weights)
        for one in sorted(range(len(layers)), key=lambda k: layers[k].activations):  # the largest overwrites the rest
            starts = np.concatenate([[True], ~inside[one]])
            largest[np.ix_(starts, inside[one])] = layers[one].activations
        return largest

    def needed(self, replicas: int, behind: int) -> np.ndarray:
        """On each of a stage's replicas, with this number of devices behind it."""
        if self.inference:
            return self.weights + self.activations
        flying = 1 + math.ceil(behind / replicas)
        return (flying + 1) * self.weights + flying * self.activations

    def min_bytes(self, devices: int, all_used: bool, replication: bool) -> float:
        """The minimum memory of each device for a pipeline of single stages."""
        return min(self._min_bytes(number, replication) for number in range(devices if all_used else 1, devices + 1))

    def _min_bytes(self, devices: int, replication: bool) -> float:
        """The minimum if all are used: that of the fullest stage, stage by stage."""
        best: list[np.ndarray] = []
        before = self.cuts.before
        for m in range(1, devices + 1):
            lowest = self.needed(m, devices - m)[0].copy() if replication or m == 1 else np.full(len(before), math.inf)
            for tail in range(1, m if replication else min(m, 2)):
                stage = np.where(before, self.needed(tail, devices - m)[1:], math.inf)
                lowest = np.minimum(lowest, np.maximum(best[m - tail - 1][:, None], stage).min(axis=0))
            best.append(lowest)
        return float(best[-1][-1])
