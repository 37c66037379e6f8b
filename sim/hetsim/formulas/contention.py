"""Delays of jobs that share a network link, in closed form without messages.

Each of N jobs alternates between `own` seconds of computing and sending, which takes `spent` seconds without
contention.  A job can use the fraction `share` of the link (below 1 if the link is wider than the job's network cards).
Jobs that send at the same time share the link equally, each up to its own `share`.  A rule states how the sending
phases of jobs overlap:

- random: phases are independent.  The model is a closed product-form network of a delay and one station that serves up
  to `width` = 1 / share jobs at full speed; it is exact for any distribution of both times (Baskett, Chandy, Muntz,
  Palacios, Open, Closed, and Mixed Networks of Queues with Different Classes of Customers, JACM 1975).  A step of job j
  takes T_j = G(all jobs) / G(all jobs except j) seconds.  G(S) is the normalizing constant of the network with the set
  S of jobs: G(S) = Σ_k Π_{i <= k} max(1, i / width) [x^k] Π_{i in S} (own_i + spent_i x), where [x^k] means the
  coefficient of x^k.
- aligned: all jobs send at the same time, as jobs that were started together do.
- interleaved: phases are shifted so that they overlap as little as possible (Rajasekaran, Ghobadi, Akella, CASSINI:
  Network-Aware Job Scheduling in Machine Learning Clusters, NSDI 2024).
- none: no contention, as if each job had the link to itself.

Jobs with different shares, and jobs that other links limit, have no product form.  The number of senders is then
computed with the mean width and corrected so that each job sends as long as it needs; senders get max-min fair rates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Contention = Literal["random", "aligned", "interleaved", "none"]

ALIKE = 1e-9  # link shares that differ by less are treated as equal
BLOCK = 1_000_000  # maximum number of array elements at a time in the search for fair rates
CLOSE = 1e-8  # relative change of the work done at which the iteration ends
SWEEPS = 500


@dataclass(frozen=True)
class LinkDelays:
    """Delays of the jobs on a link (rows), by the number of other senders (columns)."""

    seen: np.ndarray  # probability that so many other jobs send
    delays: np.ndarray  # extra seconds of sending
    fair: np.ndarray  # by number of other senders: mean link share of a sender that its cards do not limit
    stretch: np.ndarray  # for each job: sending time relative to its time alone, in the product form


def delays(
    own: np.ndarray, spent: np.ndarray, share: np.ndarray, rule: Contention = "random",
    before: LinkDelays | None = None, more: np.ndarray | None = None, caps: np.ndarray | None = None,
) -> LinkDelays:  # fmt: skip
    """Return by how much jobs that share a link delay each other; O(N³) for N jobs.

    own, spent: seconds of a job's step without sending, and those of sending alone.  share: the fraction of the link
    that a job uses while it sends alone.  before, more: for a second, more accurate call: the result of the first call,
    and the seconds by which contention lengthens the sending of each job.  caps: if other links limit jobs: fraction of
    the link that a job (row) can use next to n other senders (column).
    """
    count = len(own)
    if rule != "random" or count < 2:
        later = _apart(own, spent, share, rule)
        return LinkDelays(np.ones((count, 1)), later[:, None], np.ones(1), np.ones(count))
    width = max(1.0, spent.sum() / (spent @ share))
    sent = spent if more is None else spent + more
    weight = spent if before is None else sent / before.stretch
    others = np.arange(count)
    growth = np.maximum(1.0, (others + 1) / width)
    # Row j: the terms of G without job j.  All are positive; each step brings the largest of a row to 1.
    terms = np.zeros((count, count))
    terms[:, 0] = 1.0
    for job in range(count):
        unchanged, top = terms[job].copy(), min(job + 2, count)
        moved = terms[:, : top - 1] * (weight[job] * growth[: top - 1])
        terms[:, :top] *= own[job]
        terms[:, 1:top] += moved
        terms[job] = unchanged
        terms /= terms.max(axis=1, keepdims=True)
    seen = terms / terms.sum(axis=1, keepdims=True)
    stretch = seen @ growth
    if caps is None and np.ptp(share) <= ALIKE:
        slower = np.tile(np.maximum(1.0, share[0] * (others + 1)), (count, 1))
        return LinkDelays(seen, spent[:, None] * (slower - 1.0), 1.0 / (others + 1), stretch)
    fair = _fair(share, share[:, None] + np.zeros(count) if caps is None else caps, sent / (own + sent))
    slower = np.maximum.accumulate(np.maximum(1.0, share[:, None] / fair), axis=1)
    sending = seen * growth / slower  # as often as it sends among them, as fast
    sending /= sending.sum(axis=1, keepdims=True)
    return LinkDelays(sending, spent[:, None] * (slower - 1.0), np.minimum(fair, 1.0).mean(axis=0), stretch)


def _apart(own: np.ndarray, spent: np.ndarray, share: np.ndarray, rule: Contention) -> np.ndarray:
    """Return the seconds by which each job's step is longer since jobs share the link.

    own, spent: seconds of a job's step without sending, and of sending alone; share: fraction of the link that it then
    uses.  rule: jobs send at the same time (aligned) or while others compute (interleaved); else the result is 0.
    """
    if rule == "interleaved":
        return np.maximum(0.0, spent @ share - own - spent)
    if rule == "aligned":  # max-min fair: the jobs with the smallest shares use them, the rest divide what is left
        limited = np.sort(share)
        level = max((1.0 - np.cumsum(limited) + limited) / np.arange(len(share), 0, -1), default=1.0)
        return np.asarray(spent * np.maximum(0.0, share / level - 1.0) if share.sum() > 1.0 else 0.0 * spent)
    return np.zeros(len(own))


def _fair(share: np.ndarray, caps: np.ndarray, mix: np.ndarray) -> np.ndarray:
    """Return max-min fair shares of a link by job (row) and number n of other senders.

    Each of the n other senders is modeled as the mean of all other jobs, weighted by `mix` (one weight per job).
    share, caps: fraction of the link that a job uses alone, and that it can use at most next to n others (column).
    """
    count = len(share)
    others = np.arange(count)
    shares = np.empty((count, count))
    for some in np.array_split(others, min(count, 1 + count**3 // BLOCK)):
        part = np.where(others == some[:, None], 0.0, mix)
        part /= part.sum(axis=1, keepdims=True)
        mine = share[some, None]
        level = np.broadcast_to(1.0 / (others + 1), (len(some), count))
        while True:  # a job that cannot use a fair part leaves more to the others; rises to the solution
            limited = caps <= level[:, None, :]
            used = others * np.einsum("ao,aok->ak", part, np.where(limited, caps, 0.0)) + mine * (mine <= level)
            free = others * np.einsum("ao,aok->ak", part, np.where(limited, 0.0, 1.0)) + (mine > level)
            above = np.divide(1.0 - used, free, out=np.full(level.shape, math.inf), where=free > ALIKE)
            if not (above > level * (1.0 + ALIKE)).any():
                break
            level = np.maximum(above, level)
        shares[some] = level
    return shares


def longest_delay(found: Sequence[tuple[np.ndarray, np.ndarray]], together: float) -> float:
    """Return the expected maximum of a job's delays on several links.

    found: probabilities and ascending delays of each link; together: correlation of the links' numbers of senders.
    """
    if len(found) < 2:
        return float(found[0][0] @ found[0][1]) if found else 0.0
    events = sorted((delay, link, part) for link, (seen, later) in enumerate(found)
                    for part, delay in zip(seen.tolist(), later.tolist(), strict=True))  # fmt: skip
    below, mean, before = [0.0] * len(found), 0.0, 0.0
    for delay, link, part in events:  # the integral of the probability that the longest is longer
        mean += (delay - before) * (1.0 - together * min(below) - (1.0 - together) * math.prod(below))
        below[link] += part
        before = delay
    return mean


def step_times(
    own: Sequence[float], link: Sequence[float], rule: Contention = "random", width: float | Sequence[float] = 1.0
) -> np.ndarray:
    """Return the seconds of each job's step when the jobs share one link.

    own, link: seconds of a step without sending, and of sending alone; width: link bandwidth / the job's maximum rate.
    """
    alone, needs = np.asarray(own, dtype=float), np.asarray(link, dtype=float)
    some = needs > 0
    share = np.minimum(1.0, 1.0 / np.broadcast_to(np.asarray(width, dtype=float), needs.shape))[some]
    met, more = None, None
    for _ in range(2):
        met = delays(alone[some], needs[some], share, rule=rule, before=met, more=more)
        more = (met.seen * met.delays).sum(axis=1)
    seconds = alone + needs
    seconds[some] += more
    return seconds


# Delays of jobs that share several links, from the joint distribution of the senders.
#
# States are the sets of jobs that send at once; in each the jobs have their max-min fair rates.  A Markov chain over
# these sets: exact for exponential times, close for others, as on one link the form of times does not count at all.


def stretches(own: np.ndarray, spent: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return each job's sending time divided by that when alone; O(2^N) for N jobs.

    own, spent: seconds of computing (above 0), sending alone; share: fraction of a link (column) that a job (row) uses.
    """
    count = len(own)
    sends = (np.arange(1 << count) >> np.arange(count)[:, None]) & 1 == 1
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
    """Return each job's max-min fair speed (row) for each set of senders (column)."""
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
