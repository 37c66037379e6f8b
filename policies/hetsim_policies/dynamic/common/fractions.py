"""Linear programs over time fractions: shares of time of each job in each mode.

A job's fractions sum to at most 1, and on every device type the widths (GPUs or cores) times the fractions sum to at
most the devices that are up.  Progress of a job, in jobs per second, is the sum over its modes of fraction / time of
the whole job in the mode.
Reference: Narayanan, Santhanam, Kazhamiaka, Phanishayee, Zaharia, Heterogeneity-Aware Cluster Scheduling Policies for
Deep Learning Workloads (Gavel, OSDI 2020), where all policies are programs of this form.
Weakness: devices of a type are one pool here; the code that realizes the fractions must fit gangs on one node, and
provide host cores and memory for GPU modes.  Jobs with equal modes and equal scaled progress share the columns of the
program and get equal fractions, since an average of optimal solutions is optimal.  An offer is a mode in which a job
may run; a pair of jobs on the same devices is two offers, each with the label of the other job as partner, and `Ties`
links the two.
"""

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, diags_array, hstack, vstack

from hetsim_policies.common import grouped

SLACK = 1e-7  # Relative slack of a level that was reached, so that rounding does not make it infeasible

MAX_STEPS = 30  # programs in a row for a ratio; each is strictly better than the one before, and five or so are enough


@dataclass(frozen=True)
class ModeOffers:
    """All modes offered to jobs, as columns.

    Entry v is an offer: job `job[v]` may run in a mode that occupies `width[v]` devices of type `kind[v]` and would
    take `time[v]` seconds for the whole job.  `capacity` counts devices by type, `weight` is by job.

    If jobs may share devices in pairs, `own[v]` is the label of the job in this mode (the number of its kind of job)
    and `partner[v]` the label of its partner (-1: the job runs alone).  With a partner, `time` is the job's time next
    to this partner, and `width` is half the number of devices of the pair.
    """

    job: np.ndarray
    kind: np.ndarray
    width: np.ndarray
    time: np.ndarray
    capacity: np.ndarray
    weight: np.ndarray
    own: np.ndarray | None = None
    partner: np.ndarray | None = None

    @property
    def jobs(self) -> int:
        return len(self.weight)

    @cached_property
    def rate(self) -> np.ndarray:
        """Fraction of its job that each offered mode completes per second."""
        return np.asarray(1.0 / self.time)

    def progress(self, fraction: np.ndarray) -> np.ndarray:
        """Return each job's progress per second; `fraction`: share of time of each offer."""
        return np.bincount(self.job, self.rate * fraction, self.jobs)

    @cached_property
    def fair_progress(self) -> np.ndarray:
        """Fraction of each job that is completed per second with an equal share."""
        return self.progress(equal_share(self))

    def fastest(self) -> np.ndarray:
        """Rate (jobs/s) of each job alone in its fastest mode for which there are devices."""
        best = np.zeros(self.jobs)
        there = self.capacity[self.kind] >= self.width
        if self.partner is not None:
            there &= self.partner < 0
        np.maximum.at(best, self.job[there], self.rate[there])
        return best


def equal_share(offers: ModeOffers) -> np.ndarray:
    """Return fractions of time: each job gets its weight's share of every device type.

    These fractions are feasible, so a max-min solution relative to them gives each job at least the same progress.
    Several modes on one type divide the share of this type.  No job runs in a pair.
    """
    if offers.partner is not None:
        alone = offers.partner < 0
        job, kind, width, time = (column[alone] for column in (offers.job, offers.kind, offers.width, offers.time))
        shares = np.zeros(len(alone))
        here = ModeOffers(job, kind, width, time=time, capacity=offers.capacity, weight=offers.weight)
        shares[alone] = equal_share(here)
        return shares
    part = offers.weight[offers.job] / offers.weight.sum() if offers.jobs else np.zeros(0)
    same = np.zeros((offers.jobs, len(offers.capacity)))
    np.add.at(same, (offers.job, offers.kind), 1.0)
    fraction = part * offers.capacity[offers.kind] / offers.width / same[offers.job, offers.kind]
    return np.asarray(fraction / np.maximum(1.0, np.bincount(offers.job, fraction, offers.jobs))[offers.job])


def max_min(offers: ModeOffers, base: np.ndarray, levels: int = 1) -> np.ndarray:
    """Return fractions of time with the highest minimum of progress / base over jobs.

    A sequence of linear programs follows (water filling).  A job with a positive shadow price cannot gain more: it
    keeps its ratio, and the next program raises the minimum of the other jobs.  After `levels` programs, the last one
    maximizes the sum of progress / base of the remaining jobs.  A job with base 0 (none of its devices is up) is
    ignored.  If every job has one mode, sorts replace the programs and keep the ratio of all jobs that cannot gain
    (with tied prices a program may find some of these only at the next level).  Cost: `levels` + 1 programs of at most
    jobs × modes columns; equal jobs count once.
    """
    if offers.partner is None and (np.diff(offers.job) > 0).all():
        return _fill_up(offers, base, levels)
    try:
        return _max_min(offers, base, levels)
    except ArithmeticError:  # a level near the solver's tolerance, as of jobs of days: in units in which it is not
        return _max_min(offers, base * _Groups.of_offers(offers, base).gain.max(), levels)


def _max_min(offers: ModeOffers, base: np.ndarray, levels: int) -> np.ndarray:
    groups = _Groups.of_offers(offers, base)
    if not groups.size:
        return np.zeros(len(offers.job))
    floor = np.zeros(groups.size)
    fixed = np.zeros(groups.size, dtype=bool)
    for _ in range(levels):
        level, fraction, price = groups.raise_min(floor, fixed)
        floor = np.where(fixed, floor, level)
        newly = ~fixed & (price > SLACK * price.max(initial=0.0))
        fixed |= newly
        if fixed.all() or not newly.any():
            break
    if not fixed.all():
        fraction = groups.raise_sum(floor)
    return groups.by_offer(fraction, len(offers.job))


def _fill_up(offers: ModeOffers, base: np.ndarray, levels: int) -> np.ndarray:
    """Return the result of `max_min` without linear programs; each job has one mode."""
    served = base[offers.job] > 0
    gain = np.divide(offers.rate, base[offers.job], out=np.ones(len(served)), where=served)
    kind, width = offers.kind, np.where(served, offers.width, 0.0)
    fraction, free = np.zeros(len(gain)), offers.capacity.astype(float)
    rises = served.copy()
    for _ in range(levels):
        if not rises.any():
            return fraction
        asked = np.bincount(kind[rises], (width / gain)[rises], len(free))
        full = np.divide(free, asked, out=np.full(len(free), np.inf), where=asked > 0)
        level = min(full.min(), gain[rises].min())
        fraction[rises] = np.minimum(level / gain[rises], 1.0)
        near = level * (1 + 1e-9)  # jobs that are alike but for rounding are fixed together
        fixed = rises & ((gain <= near) | (full[kind] <= near))
        free = np.maximum(free - np.bincount(kind[fixed], (width * fraction)[fixed], len(free)), 0.0)
        rises &= ~fixed
    # The rest goes to the greatest progress / base for a device; equals have equal parts of what they lack.
    free -= np.bincount(kind[rises], (width * fraction)[rises], len(free))
    worth = np.round(np.log(np.where(rises, gain / np.maximum(width, 1e-3), 1.0)), 9)
    for number in np.unique(kind[rises]):
        mine = np.flatnonzero(rises & (kind == number))
        _, rank = np.unique(-worth[mine], return_inverse=True)
        lack = np.bincount(rank, width[mine] * (1.0 - fraction[mine]))
        part = np.clip((free[number] - (np.cumsum(lack) - lack)) / np.maximum(lack, 1e-12), 0.0, 1.0)
        fraction[mine] += (1.0 - fraction[mine]) * part[rank]
    return fraction


def max_sum(offers: ModeOffers, value: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Return time fractions that maximize the sum of `value` × fraction.

    Each job's progress is at least `least`; if that is infeasible, the sum of relative shortfalls is minimized first.
    """
    matrix, limits = _limits(offers.job, offers.jobs, offers.kind, width=offers.width, capacity=offers.capacity)
    bound = ties(offers.own, offers.partner, offers.job, np.ones(offers.jobs))
    if len(needy := np.flatnonzero(least > 0)):
        number = np.full(offers.jobs, -1)
        number[needy] = np.arange(len(needy))
        chosen = number[offers.job] >= 0
        part = offers.rate[chosen] / least[offers.job[chosen]]
        rows = csr_array((part, (number[offers.job[chosen]], np.flatnonzero(chosen))), (len(needy), len(offers.job)))
        missing = csr_array(np.eye(len(needy)))
        both = vstack([hstack([matrix, csr_array((len(limits), len(needy)))]), hstack([-rows, -missing])])
        cost = np.concatenate([np.zeros(len(offers.job)), np.ones(len(needy))])
        first, _ = _solve(cost, both, np.concatenate([limits, -np.ones(len(needy))]), bound)
        promised = np.minimum(rows @ first[: len(offers.job)], 1.0) * (1 - SLACK)
        matrix, limits = vstack([matrix, -rows]), np.concatenate([limits, -promised])
    return np.clip(_solve(-value, matrix, limits, bound)[0], 0.0, 1.0)


def best_ratio(offers: ModeOffers, value: np.ndarray, cost: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Return the fractions of modes that maximize total value / total cost.

    Ties go to the larger value.  least: each job's minimum progress.  Reference: Dinkelbach, On Nonlinear Fractional
    Programming (1967): maximize value - q × cost, where q is the ratio of the last solution, until q no longer grows.
    """
    price = 0.0
    fraction = max_sum(offers, value, least)
    for _ in range(MAX_STEPS):
        spent = float(cost @ fraction)
        ratio = float(value @ fraction) / spent if spent > 0 else 0.0
        if ratio <= price * (1 + SLACK):
            break
        price = ratio
        # A little more weight on the value: of solutions with equal ratio the greatest.
        fraction = max_sum(offers, (1 + 1e-6) * value - price * cost, least)
    return fraction


def min_worst_ratio(
    offers: ModeOffers, elapsed: np.ndarray, left: np.ndarray, alone: np.ndarray, levels: int = 1
) -> np.ndarray:
    """Return time fractions that minimize the worst finish-time ratio of all jobs.

    The ratio of a job is (elapsed + left / progress) / alone: `elapsed` is the time since arrival, `left` the remaining
    fraction, and `alone` the time on an equal share.  A ratio of at most r requires that each job progresses at least
    at the rate left / (r × alone - elapsed).  To maximize the minimum of progress / this rate gives a lower ratio,
    unless r is the minimum.  Reference: Crouzeix, Ferland, Schaible, An Algorithm for Generalized Fractional Programs
    (1985), for this iteration, which begins with the ratio of the equal share.
    """
    fraction = equal_share(offers)
    usable = offers.progress(fraction) > 0
    best = np.inf
    base = np.zeros(offers.jobs)
    for _ in range(MAX_STEPS):
        progress = offers.progress(fraction)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = float(np.max(((elapsed + left / progress) / alone)[usable], initial=0.0))
        if ratio >= best * (1 - 1e-3) or not ratio > 0:
            break
        best = ratio
        base = np.where(usable, left / np.maximum(best * alone - elapsed, SLACK * left), 0.0)
        fraction = max_min(offers, base)
    return max_min(offers, base, levels) if levels > 1 else fraction


@dataclass(frozen=True)
class _Groups:
    """Groups of jobs that the linear program treats alike.

    Jobs of a group have equal modes and, in each mode, an equal ratio of progress to `base` (see `max_min`).  The
    arrays have one column per group and mode.
    """

    size: int
    count: np.ndarray  # jobs by group
    group: np.ndarray  # by column
    kind: np.ndarray
    width: np.ndarray
    gain: np.ndarray  # progress / base by column
    capacity: np.ndarray
    column: np.ndarray  # by offer; -1 for jobs that are left out
    ties: "Ties | None"

    @staticmethod
    def of_offers(offers: ModeOffers, base: np.ndarray) -> "_Groups":
        served = np.flatnonzero(base[offers.job] > 0)
        gain = np.zeros(len(offers.job))
        gain[served] = offers.rate[served] / base[offers.job[served]]
        keys: dict[tuple, int] = {}
        entries = grouped(zip(offers.job[served].tolist(), served.tolist(), strict=True))
        kinds, widths = offers.kind.tolist(), offers.width.tolist()
        mates = [(-1, -1)] * len(offers.job)
        if offers.own is not None and offers.partner is not None:
            mates = list(zip(offers.own.tolist(), offers.partner.tolist(), strict=True))
        rounded = [float(f"{value:.10g}") for value in gain.tolist()]
        column = np.full(len(offers.job), -1)
        first: list[int] = []
        begin: list[int] = []
        count: list[int] = []
        group: list[int] = []
        for mine in entries.values():
            key = tuple((kinds[offer], widths[offer], rounded[offer], mates[offer]) for offer in mine)
            if (number := keys.setdefault(key, len(keys))) == len(count):
                count.append(0)
                begin.append(len(first))
                first += mine
                group += [number] * len(mine)
            count[number] += 1
            column[mine] = np.arange(begin[number], begin[number] + len(mine))
        chosen = np.array(first, dtype=int)
        sizes, groups = np.array(count, dtype=float), np.array(group, dtype=int)
        own, partner = (None if some is None else some[chosen] for some in (offers.own, offers.partner))
        return _Groups(
            len(count), sizes, groups, kind=offers.kind[chosen], width=offers.width[chosen], gain=gain[chosen],
            capacity=offers.capacity, column=column,
            ties=ties(own, partner, groups, sizes),
        )  # fmt: skip

    @cached_property
    def limits(self) -> tuple[csr_array, np.ndarray]:
        width = self.width * self.count[self.group]
        return _limits(self.group, self.size, self.kind, width=width, capacity=self.capacity)

    @cached_property
    def gains(self) -> csr_array:
        return csr_array((self.gain, (self.group, np.arange(len(self.group)))), (self.size, len(self.group)))

    def raise_min(self, floor: np.ndarray, fixed: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Maximize the lowest progress / base of the groups that are not `fixed`.

        A group is a set of equal jobs; base: reference progress of a job (`max_min`).  Groups in `fixed` keep a ratio
        of at least `floor`.  Return the maximized ratio, the fractions of time, and each group's shadow price.
        """
        matrix, limits = self.limits
        rises = csr_array(np.where(fixed, 0.0, 1.0)[:, None])
        rows = vstack([hstack([matrix, csr_array((len(limits), 1))]), hstack([-self.gains, rises])])
        asked = np.where(fixed, -floor * (1 - SLACK), 0.0)
        cost = np.zeros(len(self.group) + 1)
        cost[-1] = -1.0
        solution, prices = _solve(cost, rows, np.concatenate([limits, asked]), self.ties, free_last=True)
        return float(solution[-1]), solution[:-1], np.where(fixed, 0.0, prices[len(limits) :])

    def raise_sum(self, floor: np.ndarray) -> np.ndarray:
        """Return time fractions with the maximum sum of the jobs' relative progress.

        Relative progress: progress divided by a reference (`base` of `max_min`).  No job gets less than its `floor`.
        """
        matrix, limits = self.limits
        rows, asked = vstack([matrix, -self.gains]), np.concatenate([limits, -floor * (1 - SLACK)])
        return _solve(-self.gain * self.count[self.group], rows, asked, self.ties)[0]

    def by_offer(self, fraction: np.ndarray, size: int) -> np.ndarray:
        shares = np.zeros(size)
        inside = self.column >= 0
        shares[inside] = np.clip(fraction, 0.0, 1.0)[self.column[inside]]
        return shares


def _limits(
    job: np.ndarray, jobs: int, kind: np.ndarray, width: np.ndarray, capacity: np.ndarray
) -> tuple[csr_array, np.ndarray]:
    columns = np.arange(len(job))
    time = csr_array((np.ones(len(job)), (job, columns)), (jobs, len(job)))
    room = csr_array((width, (kind, columns)), (len(capacity), len(job)))
    return vstack([time, room], format="csr"), np.concatenate([np.ones(jobs), capacity])


def _solve(
    cost: np.ndarray, matrix: csr_array, limits: np.ndarray, bound: "Ties | None", free_last: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the solution of a linear program, and the shadow price of each limit.

    The first columns are fractions of time, to which `bound` adds constraints for pairs of jobs.  free_last: True if
    the last column may be negative.
    """
    bounds: list[tuple[float | None, float | None]] = [(0.0, None)] * len(cost)
    if free_last:
        bounds[-1] = (None, None)
    count, rows = len(cost), len(limits)
    equal = zeros = None
    if bound is not None:
        cost, matrix, limits, equal, zeros = bound.add_to(cost, matrix, limits)
        bounds += [(0.0, None)] * (len(cost) - count)
    matrix = csr_array(matrix)
    solve = partial(linprog, A_eq=equal, b_eq=zeros, bounds=bounds, method="highs")
    solution = solve(cost, A_ub=matrix, b_ub=limits)
    scale = np.ones(len(limits))
    if solution.x is None:
        # Times of nanoseconds next to hours: HiGHS gives up where entries differ so much and rows are not scaled.
        greatest, dearest = abs(matrix).max(axis=1).toarray().ravel(), float(np.abs(cost).max()) or 1.0
        scale = np.where(greatest > 0, greatest, 1.0)
        solution = solve(cost / dearest, A_ub=csr_array(diags_array(1.0 / scale) @ matrix), b_ub=limits / scale)
        scale /= dearest
    if solution.x is None:
        raise ArithmeticError(f"the linear program of the time fractions was not solved: {solution.message}")
    return solution.x[:count], (-solution.ineqlin.marginals / scale)[:rows]


# Constraints on the fractions of paired jobs: while job A shares devices with job B, B shares them with A.
#
# The speed of a job in a pair depends only on its partner's label (class, width, memory).  So a job has one fraction
# per label of partners, not one per partner as in Gavel's program: jobs × labels columns instead of jobs × jobs / 2.
# The time that jobs of label a share with label b must equal the time that b shares with a; within a label, the time of
# a job is at most that of all others.  Such times can always be split into pairs of jobs (a transport problem; within a
# label a symmetric one), so the optimum is the same.  One constraint is not in Gavel's program: if an odd number of
# jobs pair within a label, one is always alone, so their times sum to at most their number - 1.  Weakness, as in
# Gavel's program: the same holds for any odd number of jobs of different labels, but is not enforced.


@dataclass(frozen=True)
class Ties:
    """Constraints on pairs' time fractions x: `equal` · x = 0, `upper` · x ≤ `limits`."""

    equal: csr_array
    upper: csr_array
    limits: np.ndarray
    fractions: int
    sums: int

    def add_to(
        self, cost: np.ndarray, matrix: csr_array, limits: np.ndarray
    ) -> tuple[np.ndarray, csr_array, np.ndarray, csr_array, np.ndarray]:
        """Return a linear program with the constraints on pairs of jobs added.

        Returns cost, matrix and limits of the inequalities, and matrix and limits of the equalities.
        """
        between = len(cost) - self.fractions
        cost = np.concatenate([cost, np.zeros(self.sums)])
        matrix = hstack([csr_array(matrix), csr_array((len(limits), self.sums))])
        limits = np.concatenate([limits, self.limits])
        return (
            cost, csr_array(vstack([matrix, self._widened(self.upper, between)])), limits,
            csr_array(self._widened(self.equal, between)), np.zeros(self.equal.shape[0]),
        )  # fmt: skip

    def _widened(self, rows: csr_array, between: int) -> csr_array:
        return hstack([rows[:, : self.fractions], csr_array((rows.shape[0], between)), rows[:, self.fractions :]])


def ties(own: np.ndarray | None, partner: np.ndarray | None, group: np.ndarray, count: np.ndarray) -> Ties | None:
    """Return constraints that link the time fractions of paired jobs; None: no pairs.

    own, partner, group: for each variable (fraction of time of a job in a mode), label of the job, label of its partner
    (-1: the job runs alone), and group of equal jobs. count: number of jobs by group.
    """
    if own is None or partner is None or not (partner >= 0).any():
        return None
    paired = np.flatnonzero(partner >= 0)
    low, high = np.minimum(own, partner)[paired], np.maximum(own, partner)[paired]
    _, row = np.unique(low * (high.max() + 1) + high, return_inverse=True)
    same = low == high
    sign = np.where(own[paired] <= partner[paired], 1.0, -1.0)
    rows, columns, values = [row], [paired], [sign * count[group[paired]]]
    # Of one label: a column for the sum, and no job that is alone in its group has more than half of it.
    ring, number = np.unique(row[same], return_inverse=True)
    rows.append(ring)
    columns.append(len(own) + np.arange(len(ring)))
    values.append(-np.ones(len(ring)))
    width = len(own) + len(ring)
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    equal = csr_array(entries, (int(row.max()) + 1, width))
    inside = paired[same]
    single = count[group[inside]] < 2
    mine, ours = inside[single], len(own) + number[single]
    lines = np.arange(len(mine))
    halves = (np.repeat([2.0, -1.0], len(mine)), (np.tile(lines, 2), np.concatenate([mine, ours])))
    odd, odd_limits = _odd(number, group[inside], count, len(ring))
    over = csr_array((np.ones(len(odd[0])), (odd[0], len(own) + odd[1])), (len(odd_limits), width))
    upper = vstack([csr_array(halves, (len(mine), width)), over])
    return Ties(equal, upper, np.concatenate([np.zeros(len(mine)), odd_limits]), fractions=len(own), sums=len(ring))


def _odd(number: np.ndarray, group: np.ndarray, count: np.ndarray, rings: int) -> tuple[np.ndarray, np.ndarray]:
    """Return constraints on pairs within a label that has an odd number of jobs.

    Jobs of one class in equal modes have the same label.  The result is index pairs (row, sum), and the limit of each
    row.  Each of the `rings` labels has a sum: the total fraction of time that its jobs spend paired with each other.
    With an odd number n of jobs, one job is always unpaired, so the sum is at most n - 1.  If several labels have the
    same jobs (such as one label per device type), one row bounds the total of their sums.
    """
    members: list[dict[int, None]] = [{} for _ in range(rings)]
    for ring, one in zip(number.tolist(), group.tolist(), strict=True):
        members[ring][one] = None
    rows: dict[tuple[int, ...], int] = {}
    entries: list[tuple[int, int]] = []
    for ring, some in enumerate(members):
        if count[list(some)].sum() % 2:
            entries.append((rows.setdefault(tuple(sorted(some)), len(rows)), ring))
    bounds = np.array([count[list(some)].sum() - 1 for some in rows])
    return np.array(entries, dtype=int).reshape(-1, 2).T, bounds
