"""Measured layers of a network, its cuts into stages, and the memory of a stage."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Layer:
    """One network layer: its cost per micro-batch, and the bytes that it passes on."""

    name: str
    forward: float
    backward: float
    activations: float  # bytes passed on
    weights: float
    # seconds by device type, if measured separately (in training forward and backward together)
    on: Mapping[str, float] | None = None

    @property
    def seconds(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class Cuts:
    """Cuts of a network: the layers before each cut, and the bytes that cross it.

    Cut j is a set of layers that is closed under predecessors; `before[k, j]` is True if cut k is inside cut j.
    The last cut is the whole network.
    """

    layers: tuple[Layer, ...]
    sets: tuple[frozenset[int], ...]
    crossing: np.ndarray
    before: np.ndarray

    def sums(self, values: Sequence[float]) -> np.ndarray:
        """Return sums of values by stage [i, j]: the layers after cut i - 1 up to cut j."""
        up_to = np.array([math.fsum(values[one] for one in members) for members in self.sets])
        between = up_to[None, :] - np.concatenate([[0.0], up_to])[:, None]
        between[1:][~self.before] = math.inf
        return between

    def between(self, first: int, last: int) -> list[Layer]:
        """Return the layers of the stage after cut `first` - 1 up to cut `last`."""
        earlier = self.sets[first - 1] if first else frozenset()
        return [self.layers[one] for one in sorted(self.sets[last] - earlier)]


def chain(layers: Sequence[Layer]) -> Cuts:
    n = len(layers)
    sets = tuple(frozenset(range(last + 1)) for last in range(n))
    return Cuts(tuple(layers), sets, np.array([one.activations for one in layers]), np.triu(np.ones((n, n), bool), 1))


class StageMemory:
    """Bytes that a stage needs on each device, for all stages [i, j].

    Stage [i, j] has the layers after cut i - 1 up to cut j; the value is infinite if there is no such stage.  Inference
    stores the weights of the stage's layers and the activations of the largest layer.  Training has 1 + ceil(devices of
    later stages / replicas) micro-batches in flight, as in PipeDream.  For each of these micro-batches it stores all
    activations and the weights with which the micro-batch began; in addition it stores one set of gradients.
    Additional optimizer state is not part of a profile.
    Reference: Harlap et al., PipeDream: Fast and Efficient Pipeline Parallel DNN Training (2018), section 3.3.
    """

    def __init__(self, cuts: Cuts, inference: bool):
        self.cuts, self.inference = cuts, inference

    @cached_property
    def weights(self) -> np.ndarray:
        return self.cuts.sums([one.weights for one in self.cuts.layers])

    @cached_property
    def activations(self) -> np.ndarray:
        """Bytes of activations per stage: of all layers in training, else of the largest."""
        return self._largest() if self.inference else self.cuts.sums([one.activations for one in self.cuts.layers])

    def _largest(self) -> np.ndarray:
        layers = self.cuts.layers
        inside = np.array([[one in members for members in self.cuts.sets] for one in range(len(layers))])
        largest = np.zeros_like(self.weights)
        for one in sorted(range(len(layers)), key=lambda k: layers[k].activations):  # the largest overwrites the rest
            largest[np.ix_(np.concatenate([[True], ~inside[one]]), inside[one])] = layers[one].activations
        return largest

    def needed(self, replicas: int, behind: int) -> np.ndarray:
        """Return the bytes per replica of a stage followed by stages on `behind` devices."""
        if self.inference:
            return self.weights + self.activations
        flying = 1 + math.ceil(behind / replicas)
        return (flying + 1) * self.weights + flying * self.activations

    def min_bytes(self, devices: int, all_used: bool, replication: bool) -> float:
        """Return the minimum bytes per device of any pipeline; `all_used`: on all devices."""
        return min(self._min_bytes(number, replication) for number in range(devices if all_used else 1, devices + 1))

    def _min_bytes(self, devices: int, replication: bool) -> float:
        best: list[np.ndarray] = []
        before = self.cuts.before
        for m in range(1, devices + 1):
            lowest = self.needed(m, devices - m)[0].copy() if replication or m == 1 else np.full(len(before), math.inf)
            for tail in range(1, m if replication else min(m, 2)):
                stage = np.where(before, self.needed(tail, devices - m)[1:], math.inf)
                lowest = np.minimum(lowest, np.maximum(best[m - tail - 1][:, None], stage).min(axis=0))
            best.append(lowest)
        return float(best[-1][-1])
