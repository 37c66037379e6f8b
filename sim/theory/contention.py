"""What jobs that share a link do to each other, in closed form: no message is an event.

Each of N jobs computes for `own` seconds and then needs the link for `link` seconds, again and again; jobs that need it
at once share it equally.  Times of a step, by how their phases meet:

- random: at random.  A closed product-form network of one delay and one processor-sharing station, exact for any
  distribution of both times (Baskett, Chandy, Muntz, Palacios, Open, Closed, and Mixed Networks of Queues with
  Different Classes of Customers, JACM 1975): T_j = G(all) / G(all but j), G(S) = Σ_k k! [x^k] Π_{i in S} (own_i +
  link_i x), which is the integral of the product times e^-x.
- aligned: all need it at the same time, as jobs that were started together do until something tells them apart.
- interleaved: phases are shifted so that they meet as little as can be (Rajasekaran, Ghobadi, Akella, CASSINI:
  Network-Aware Job Scheduling in Machine Learning Clusters, NSDI 2024).
- none: as if each had the link to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

Contention = Literal["random", "aligned", "interleaved", "none"]

NODES = 64
EXACT = 2 * NODES - 8
"""Jobs up to which the integral is exact: a polynomial of degree N against e^-x."""
_X, _WEIGHT = np.polynomial.laguerre.laggauss(NODES)
_LOG_WEIGHT = np.log(_WEIGHT)
LEGENDRE = 400
FEW = 60
"""Number of jobs for which the product of their factors stays in the range of floating-point numbers."""


def terms(own: float, link: float) -> np.ndarray:
    """What a job adds to `random_of_terms`: its factor of the integrand, as a share of its step alone."""
    return (own + link * _X) / (own + link)


def random_of_terms(factors: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """How many times as long as alone each job's step takes, from the jobs' `terms` (rows) and 1 / these."""
    if len(factors) <= FEW:
        weighted = _WEIGHT * factors.prod(axis=0)
    else:
        logarithm = _LOG_WEIGHT + np.log(factors).sum(axis=0)
        weighted = np.exp(logarithm - logarithm.max())
    found: np.ndarray = weighted.sum() / (inverse @ weighted)
    return found


def step_times(own: Sequence[float], link: Sequence[float], rule: Contention = "random") -> np.ndarray:
    """Seconds of a step of each job; O(N)."""
    alone, needs = np.asarray(own, dtype=float), np.asarray(link, dtype=float)
    if rule == "none" or len(needs) < 2:
        return alone + needs
    if rule == "aligned":
        return alone + needs * np.count_nonzero(needs)
    if rule == "interleaved":
        return np.where(needs > 0, np.maximum(alone + needs, needs.sum()), alone + needs)
    whole = alone + needs
    if len(needs) > EXACT:
        return whole * random_of_many(alone, needs)
    factors = (alone[:, np.newaxis] + needs[:, np.newaxis] * _X) / whole[:, np.newaxis]
    return whole * random_of_terms(factors, 1.0 / factors)


def random_of_many(own: np.ndarray, link: np.ndarray) -> np.ndarray:
    """As `random_of_terms` for any number of jobs: the same integral by Gauss-Legendre nodes around its peak."""
    count = len(own)
    end = count + 12 * np.sqrt(count) + 40.0  # the integrand peaks at N or before, and is as wide as the root of N
    node, weight = np.polynomial.legendre.leggauss(LEGENDRE)
    x = (node + 1) * end / 2
    factors = (own[:, np.newaxis] + link[:, np.newaxis] * x) / (own + link)[:, np.newaxis]
    logarithm = np.log(weight) - x + np.log(factors).sum(axis=0)
    weighted = np.exp(logarithm - logarithm.max())
    found: np.ndarray = weighted.sum() / ((1.0 / factors) @ weighted)
    return found
