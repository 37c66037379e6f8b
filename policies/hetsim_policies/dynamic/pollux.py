"""Pollux: a genetic search for the GPUs and nodes of jobs, by mean speedup.

Decides sizes and nodes, and when they change.  The speedup of a job is its progress a second there against that on
an equal share of the GPUs on the fewest nodes; what the cluster reaches is the power mean of all speedups.  A job
that would have to start again counts less, by the time that its restarts take of its life.  A job gets at most twice
the GPUs that it has had before, so that its speed there is not a guess from afar; and a node has at most one job that
lies on several nodes, so that no two compete for its network.
At each interval matrices of jobs × nodes are crossed over by jobs, changed at random and repaired, beginning with
those of the interval before; the best one is dealt out.
Reference: Qiao, Choe, Subramanya, Neiswanger, Ho, Zhang, Ganger, Xing, Pollux: Co-adaptive Cluster Scheduling for
Goodput-Optimized Deep Learning (OSDI 2021).  There speeds are predicted by a model that is fitted to each job's own
steps; here they are the estimates of its modes, which for jobs with measured curves know layout and progress.  How
batch sizes adapt is the job's matter (`batch: adaptive` of the trace format pollux).  The search keeps the better half
of parents and children, where the authors' also keeps solutions that use the cluster better (NSGA-II).
Weakness: blind to the time left, so that short jobs are treated as long ones; and a search of few generations does not
find the best.
Cost: O(generations × population × jobs × nodes) an interval.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.task import Task
from hetsim.model.units import Seconds
from hetsim.policy import View
from hetsim_policies.dynamic.common.at_intervals import AtIntervals, IntervalJob, Share

RESET, EMPTIED, CLEARED = 0.1, 0.1, 0.1
"""Chances of a change: a job has what it has now; a job is thinned out; and then each of its nodes is cleared."""
FLOOR = 1e-3
"""What every speedup counts besides, so that a job that waits does not outweigh all others."""

Matrices = np.ndarray
"""GPUs by candidate, job and node."""


class Pollux(AtIntervals):
    """Fairest mean of speedups, found by a genetic search.

    interval: seconds from one decision to the next.
    fairness: exponent of the power mean, below 0; towards minus infinity only the worst-off counts.
    population, generations: how many candidates are kept, and how often they are bred, at each decision.
    restart: seconds that a job is thought to lose when its GPUs change.
    """

    def __init__(
        self,
        interval: Annotated[Seconds, Field(gt=0)] = 60.0,
        fairness: Annotated[float, Field(lt=0, ge=-20)] = -1.0,
        population: Annotated[int, Field(ge=2, le=1000)] = 40,
        generations: Annotated[int, Field(ge=1, le=1000)] = 20,
        restart: Annotated[Seconds, Field(ge=0)] = 30.0,
    ):
        super().__init__(interval)
        self.fairness = fairness
        self.population = population
        self.generations = generations
        self.restart = restart
        self._widest: dict[int, int] = {}
        """By row: most GPUs that the job has had for an interval."""
        self._starts: dict[int, int] = {}
        """By row: how often the job has been given GPUs."""
        self._last_rows: list[int] = []
        self._last_nodes: list[int] = []
        self._last_matrices: Matrices = np.zeros((0, 0, 0), dtype=np.int64)

    def finished(self, task: Task) -> None:
        super().finished(task)
        self._widest.pop(task.index, None)
        self._starts.pop(task.index, None)

    def deal(self, jobs: list[IntervalJob], room: Share, view: View) -> dict[int, Share]:
        if not jobs or not room:
            return {}
        jobs = sorted(jobs, key=lambda job: (job.attained, job.task.arrival, job.task.index))
        for job in jobs:
            row = job.task.index
            self._widest[row] = max(self._widest.get(row, 0), sum(job.share.values()))
        nodes = list(room)
        search = GeneticSearch(self, jobs, nodes, room=np.array([room[node] for node in nodes]), view=view)
        matrices = search.run(self._adapted(jobs, nodes))
        self._last_rows, self._last_nodes = [job.task.index for job in jobs], nodes
        self._last_matrices = matrices
        dealt: dict[int, Share] = {}
        for job, counts in zip(jobs, matrices[0].tolist(), strict=True):
            share = {node: count for node, count in zip(nodes, counts, strict=True) if count}
            if share and share != job.share:
                self._starts[job.task.index] = self._starts.get(job.task.index, 0) + 1
            if share:
                dealt[job.task.index] = share
        return dealt

    def restarts(self, job: IntervalJob) -> int:
        """How often it has been given other GPUs than it had."""
        return max(0, self._starts.get(job.task.index, 0) - 1)

    def widest(self, job: IntervalJob) -> int:
        """The most GPUs that it may get now."""
        limit = max(1, 2 * self._widest[job.task.index])
        return max((gpus for gpus in job.sizes if gpus <= limit), default=next(iter(job.sizes)))

    def _adapted(self, jobs: list[IntervalJob], nodes: list[int]) -> Matrices:
        """The candidates of the interval before, for the jobs and nodes of now."""
        last = self._last_matrices
        adapted = np.zeros((len(last), len(jobs), len(nodes)), dtype=np.int64)
        if len(last):
            row_at = {row: place for place, row in enumerate(self._last_rows)}
            node_at = {node: place for place, node in enumerate(self._last_nodes)}
            here = [place for place, job in enumerate(jobs) if job.task.index in row_at]
            there = [row_at[jobs[place].task.index] for place in here]
            columns = [place for place, node in enumerate(nodes) if node in node_at]
            before = [node_at[nodes[place]] for place in columns]
            adapted[np.ix_(range(len(last)), here, columns)] = last[np.ix_(range(len(last)), there, before)]
        return adapted


class GeneticSearch:
    """One genetic search."""

    def __init__(self, policy: Pollux, jobs: list[IntervalJob], nodes: list[int], room: np.ndarray, view: View):
        self.policy, self.jobs, self.room, self.random = policy, jobs, room, view.random
        self.now = np.array([[job.share.get(node, 0) for node in nodes] for job in jobs], dtype=np.int64)
        self.limits = np.array([policy.widest(job) for job in jobs])
        total = int(room.sum())
        self.fair = max(1, -(-total // len(jobs)))
        age = np.array([view.now - job.task.arrival for job in jobs])
        restarts = np.array([policy.restarts(job) for job in jobs])
        self.kept = np.maximum(age - restarts * policy.restart, 0.0) / np.maximum(age + policy.restart, 1e-9)
        """What a job's speedup is worth if it starts again."""
        width = int(self.limits.max()) + 1
        self.sizes = np.array([self._sizes_below(job, width) for job in jobs])
        """By job and number of GPUs: the largest size of the job that is not above that."""
        self.table = np.full((len(jobs), len(nodes) + 1, width), np.nan)
        """Speedup by job, nodes and GPUs, as far as it was asked for."""
        self.table[:, 0, :] = self.table[:, :, 0] = 0.0
        self.scale = len(nodes) / total
        self.base = [self._fair_speed(job) for job in jobs]

    def run(self, seeds: Matrices) -> Matrices:
        """The candidates that are left, the best first."""
        size = self.policy.population
        candidates = self._repaired(np.concatenate([self.now[np.newaxis], seeds[: size - 1]]))
        values = self._values(candidates)
        for _ in range(self.policy.generations):
            children = self._repaired(self._changed(self._crossed(candidates, values, size)))
            candidates = np.concatenate([candidates, children])
            values = np.concatenate([values, self._values(children)])
            _, first = np.unique(candidates.reshape(len(candidates), -1), axis=0, return_index=True)
            best = first[np.lexsort((first, -values[first]))][:size]
            candidates, values = candidates[best], values[best]
        return candidates

    # What a candidate is worth ----------------------------------------------------------------------------------

    def _fair_speed(self, job: IntervalJob) -> float:
        """Speed on an equal share of the GPUs over the fewest nodes, at a size it has."""
        width = max((gpus for gpus in job.sizes if gpus <= self.fair), default=next(iter(job.sizes)))
        return max(job.speed(self._layout(width, -(-width // int(self.room.max())))), 1e-300)

    @staticmethod
    def _layout(gpus: int, nodes: int) -> tuple[int, ...]:
        """`gpus` GPUs on a number of nodes, in equal parts as far as possible."""
        base, more = divmod(gpus, nodes)
        return (base + 1,) * more + (base,) * (nodes - more)

    def _values(self, matrices: Matrices) -> np.ndarray:
        """The power mean of the speedups."""
        nodes, gpus = np.count_nonzero(matrices, axis=2), matrices.sum(axis=2)
        numbers = np.broadcast_to(np.arange(len(self.jobs)), gpus.shape)
        speedups = self.table[numbers, nodes, gpus]
        missing = np.isnan(speedups)
        if missing.any():
            asked = np.unique(np.column_stack([numbers[missing], nodes[missing], gpus[missing]]), axis=0)
            for number, count, width in asked.tolist():
                speed = self.jobs[number].speed(self._layout(width, count))
                self.table[number, count, width] = speed / self.base[number]
            speedups = self.table[numbers, nodes, gpus]
        again = np.any(matrices != self.now, axis=2)
        scaled = np.where(again, speedups * self.kept, speedups) * self.scale + FLOOR
        power = self.policy.fairness
        with np.errstate(divide="ignore"):  # the power of nothing is infinite, and its mean none
            return np.asarray(np.mean(scaled**power, axis=1) ** (1 / power))

    # Breeding ---------------------------------------------------------------------------------------------------

    def _crossed(self, found: Matrices, values: np.ndarray, count: int) -> Matrices:
        """Children of pairs: the first jobs as in one parent, the others as in the other.

        Of two candidates the better becomes a parent.
        """
        drawn = self.random.integers(len(found), size=(2, 2, count))
        parents = np.where(values[drawn[0]] >= values[drawn[1]], drawn[0], drawn[1])
        point = self.random.integers(len(self.jobs), size=(count, 1, 1))
        first = np.arange(len(self.jobs))[np.newaxis, :, np.newaxis] < point
        return np.where(first, found[parents[0]], found[parents[1]])

    def _changed(self, matrices: Matrices) -> Matrices:
        random = self.random
        jobs = matrices.shape[:2]
        matrices = np.where((random.random(jobs) < RESET)[:, :, np.newaxis], self.now, matrices)
        thinned = np.where(random.random(jobs) < EMPTIED, CLEARED, 0.0)
        matrices = np.where(random.random(matrices.shape) < thinned[:, :, np.newaxis], 0, matrices)
        free = (self.room - matrices.sum(axis=1) > 0)[:, np.newaxis, :] & np.ones(matrices.shape, dtype=bool)
        own = free & (matrices > 0)
        anywhere, more = (
            mask / np.maximum(mask.sum(axis=1, keepdims=True), 1) for mask in (free, own)
        )  # on each node one job on average gets more, and one of those that are there
        grown = random.random(matrices.shape) < anywhere + more - anywhere * more
        upper = np.maximum(np.broadcast_to(self.room, matrices.shape), matrices)
        return np.where(grown, random.integers(matrices, upper + 1), matrices)

    def _repaired(self, matrices: Matrices) -> Matrices:
        """Candidates made feasible.

        At most one job of several nodes on a node, at most the widest size of each job, no more than there is; of the
        rest, as much as makes a size of the job.
        """
        matrices = matrices.copy()
        spread = (np.count_nonzero(matrices, axis=2) > 1)[:, :, np.newaxis] & (matrices > 0)
        matrices[spread & (np.cumsum(spread, axis=1) > 1)] = 0
        order = np.argsort(self.random.random(matrices.shape), axis=2)
        mixed = np.take_along_axis(matrices, order, axis=2)
        mixed = np.minimum(np.cumsum(mixed, axis=2), self.limits[:, np.newaxis])
        np.put_along_axis(matrices, order, np.diff(mixed, axis=2, prepend=0), axis=2)
        matrices = np.diff(np.minimum(np.cumsum(matrices, axis=1), self.room), axis=1, prepend=0)
        sizes = self.sizes[np.arange(len(self.jobs)), matrices.sum(axis=2)]
        return np.diff(np.minimum(np.cumsum(matrices, axis=2), sizes[:, :, np.newaxis]), axis=2, prepend=0)

    @staticmethod
    def _sizes_below(job: IntervalJob, width: int) -> list[int]:
        """By number of GPUs below `width`, the largest size of the job that is not above."""
        sizes = [0] * width
        for gpus in range(1, width):
            sizes[gpus] = gpus if gpus in job.sizes else sizes[gpus - 1]
        return sizes
