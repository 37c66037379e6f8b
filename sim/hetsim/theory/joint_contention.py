"""What jobs that share several links do to each other, from the joint distribution of which of them send.

States are the sets of jobs that send at once; in each the jobs have their max-min fair rates.  A Markov chain over
these sets: exact for exponential times, close for others, as on one link the form of times does not count at all.
"""

from __future__ import annotations

import numpy as np

CLOSE = 1e-8
"""Relative change of the work done at which the iteration ends."""
SWEEPS = 500


def stretches(own: np.ndarray, spent: np.ndarray, share: np.ndarray) -> np.ndarray:
    """How many times as long as alone each job sends; O(2^N) for N jobs.

    own, spent: seconds of computing (above 0) and of sending alone; share: part of a link (column) that a job uses."""
    count = len(own)
    states = np.arange(1 << count)
    sends = (states >> np.arange(count)[:, None]) & 1 == 1
    speed = _speeds(sends, share)
    leave = np.where(sends, speed / spent[:, None], 1.0 / own[:, None])
    odd = sends.sum(axis=0) % 2 == 1
    halves = []  # a change turns an even number of senders into an odd one, and back
    for half in (np.flatnonzero(~odd), np.flatnonzero(odd)):
        sources = half ^ (1 << np.arange(count))[:, None]
        halves.append((half, sources, np.take_along_axis(leave, sources, axis=1), leave[:, half].sum(axis=0)))
    part = (spent / (own + spent))[:, None]
    seen = np.where(sends, part, 1.0 - part).prod(axis=0)
    work, before = sends * speed, np.zeros(count)
    for _ in range(SWEEPS):
        for half, sources, rates, out in halves:
            seen[half] = (seen[sources] * rates).sum(axis=0) / out
        for job in range(count):  # each begins to send as often as it ends
            both, rates = seen.reshape(-1, 2, 1 << job), leave[job].reshape(-1, 2, 1 << job)
            begun, ended = (both * rates).sum(axis=(0, 2))
            both[:, 1] *= begun / ended
        seen /= seen.sum()
        done = work @ seen
        if (np.abs(done - before) <= CLOSE * done).all():
            break
        before = done
    return np.asarray(np.maximum(1.0, (sends @ seen) / done))


def _speeds(sends: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Max-min fair speeds of the jobs (rows) in all states: levels of the links rise to the solution."""
    uses = [(jobs, share[jobs, at, None]) for at in range(share.shape[1]) for jobs in [np.flatnonzero(share[:, at])]]
    levels = [1.0 / np.maximum(1, sends[jobs].sum(axis=0)) for jobs, _ in uses]
    higher = True
    while higher:
        speed = np.ones(sends.shape)
        for (jobs, parts), level in zip(uses, levels, strict=True):
            speed[jobs] = np.minimum(speed[jobs], level / parts)
        higher = False
        for at, (jobs, parts) in enumerate(uses):
            used = parts * speed[jobs]
            free = sends[jobs] & (used >= levels[at] * (1.0 - 1e-9))
            free_share = 1.0 - np.where(sends[jobs] & ~free, used, 0.0).sum(axis=0)
            above = np.where(free.any(axis=0), free_share / np.maximum(1, free.sum(axis=0)), 0.0)
            higher = higher or bool((above > levels[at] * (1.0 + 1e-9)).any())
            levels[at] = np.maximum(levels[at], above)
    return speed
