"""Markov chains solved directly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetsim.errors import UsageError

Floats = np.ndarray


def birth_death(births: Sequence[float] | Floats, deaths: Sequence[float] | Floats) -> Floats:
    """Stationary probabilities of 0, 1, ..., n: `births[k]` is the rate from k to k + 1, `deaths[k]` the rate back.

    p_k = p_0 Π births / deaths (Feller, An Introduction to Probability Theory I, 1950).  Exact: products are taken
    outward from the most likely state, so that nothing overflows and no digits are lost for 100,000 states.
    """
    up, down = np.asarray(births, dtype=np.float64), np.asarray(deaths, dtype=np.float64)
    if up.shape != down.shape or up.ndim != 1:
        raise UsageError(f"as many births as deaths are needed, not {up.size} and {down.size}")
    if not (np.isfinite(up).all() and np.isfinite(down).all() and (up >= 0).all() and (down > 0).all()):
        raise UsageError("births must be rates of at least 0 and deaths above 0")
    reach = int(np.argmin(up > 0)) if (up == 0).any() else len(up)  # nothing beyond a birth rate of 0
    with np.errstate(over="ignore", under="ignore"):
        ratio = up[:reach] / down[:reach]
    if not (np.isfinite(ratio).all() and (ratio > 0).all()):
        raise UsageError("births and deaths are too far apart for a computer's numbers")
    likely = int(np.argmax(np.concatenate([[0.0], np.cumsum(np.log(ratio))])))
    with np.errstate(under="ignore"):
        above = np.cumprod(ratio[likely:])
        below = np.cumprod(1 / ratio[:likely][::-1])[::-1]
    weights = np.concatenate([below, [1.0], above, np.zeros(len(up) - reach)])
    return weights / weights.sum()


def stationary(matrix: Sequence[Sequence[float]] | Floats) -> Floats:
    """Stationary probabilities of an irreducible chain, from its transition probabilities or its rates.

    Grassmann, Taksar and Heyman, Regenerative Analysis and Steady State Distributions for Markov Chains (1985): an
    elimination without subtractions, accurate to the last digits.  The diagonal is not looked at.
    """
    work = np.array(matrix, dtype=np.float64)
    if work.ndim != 2 or work.shape[0] != work.shape[1] or not len(work):
        raise UsageError("a chain is given by a square matrix")
    np.fill_diagonal(work, 0.0)
    if not np.isfinite(work).all() or (work < 0).any():
        raise UsageError("rates and probabilities of a chain are finite and not negative")
    size = len(work)
    for last in range(size - 1, 0, -1):
        out = work[last, :last].sum()
        if out == 0:
            raise UsageError(f"state {last} of the chain never leads back: it has no unique stationary distribution")
        work[:last, last] /= out
        work[:last, :last] += np.outer(work[:last, last], work[last, :last])
    chance = np.empty(size)
    chance[0] = 1.0
    for state in range(1, size):
        chance[state] = chance[:state] @ work[:state, state]
    return chance / chance.sum()
