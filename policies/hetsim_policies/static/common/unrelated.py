"""Linear program of R||Cmax by device types: split tasks, minimize the makespan T.

    minimize T  subject to  Σ_t x_jt = 1 for every task j,  Σ_j p_jt x_jt ≤ c_t T for every type t,  x ≥ 0,

where task j takes p_jt seconds on type t, x_jt is its fraction there, and each of the K types has c_t equal lanes
(cores or GPUs).  It is equivalent to the program with a share for every lane, since shares of equal lanes can be
averaged.  But for n tasks it has n K variables and n + K rows instead of n Σc and n + Σc, and its vertices split at
most K tasks.  Prices w_t ≥ 0 (of a second on a lane of type t) with Σ c_t w_t = 1 are enough to certify a lower bound:
Σ_j min_t w_t p_jt ≤ T.  The solver returns prices; the sum is computed here.
`AssignmentProgram` solves the same program with sites, paths and constraints, but scales times by the makespan of a
known schedule.  This program needs no schedule, so planners can use its bound before they have one.
Cost: one sparse linear program (HiGHS), a few milliseconds for 1,000 tasks on 3 types.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim_policies.static.common.bounds import TOLERANCE

WHOLE_PROGRAM = 40_000  # maximum number of (task, type) pairs of a program solved at once
COLUMNS = 4  # number of pairs of each task that are added to a larger program at a time
SAMPLE = 4_000  # number of tasks from which prices for a bound are computed; any prices give a valid bound


@dataclass(frozen=True)
class Split:
    """Optimal vertex of the linear program that splits tasks over device types.

    share[j, t]: fraction of task j on type t. prices[t]: dual price of a second on a core or GPU of type t.
    """

    share: np.ndarray
    prices: np.ndarray


def allowed_times(times: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return times, infinite for types without devices."""
    return np.where(np.asarray(counts) > 0, times, np.inf)


def split(times: np.ndarray, counts: Sequence[int], divisible: bool = False) -> Split:
    """Divide tasks fractionally among types so that the makespan is minimal.

    This is a linear program (see the module); each task must be able to run on a type with devices.  Pairs of task and
    type with infinite time are excluded, and pairs that take longer than the sum of all tasks' minimum times: no
    optimal schedule has them, and the solver cannot handle times that differ too much.  divisible: the rows of `times`
    are work that several cores or GPUs can share; then no pair is excluded as too long.
    """
    from scipy.optimize import linprog  # takes as long to import as a small plan takes
    from scipy.sparse import csr_array

    allowed = allowed_times(times, counts)
    lanes = np.asarray(counts, dtype=float)
    size, kinds = allowed.shape
    shortest = allowed.min(axis=1, initial=np.inf)
    longest = np.inf if divisible else shortest.sum() * (1 + TOLERANCE)
    task, kind = np.nonzero(np.isfinite(allowed) & (allowed <= longest))
    share = np.zeros(allowed.shape)
    prices = np.where(lanes > 0, 1.0, 0.0) / max(1.0, lanes.sum())
    scale = max(float(shortest.sum()) / max(1.0, lanes.sum()), float(shortest.max(initial=0.0)))
    if not scale:  # nothing takes any time where it is shortest
        share[np.arange(size), allowed.argmin(axis=1) if size else []] = 1.0
        return Split(share, prices)

    def solved(task: np.ndarray, kind: np.ndarray) -> Any:
        number, last = np.arange(len(task)), len(task)
        once = csr_array((np.ones(last), (task, number)), shape=(size, last + 1))
        area = np.concatenate([allowed[task, kind] / scale, -lanes])
        rows, columns = np.concatenate([kind, np.arange(kinds)]), np.concatenate([number, np.full(kinds, last)])
        load = csr_array((area, (rows, columns)), shape=(kinds, last + 1))
        goal = np.zeros(last + 1)
        goal[-1] = 1.0
        # The simplex method, as only a vertex splits few tasks.
        return linprog(goal, A_ub=load, b_ub=np.zeros(kinds), A_eq=once, b_eq=np.ones(size), method="highs-ds")

    used = np.zeros(allowed.shape, dtype=bool)
    used[task, kind] = True
    if len(task) > WHOLE_PROGRAM:
        solution, used = _by_columns(solved, allowed / scale, counts, used)
    else:
        solution = solved(task, kind)
    if solution.x is None:  # times so far apart that the solver gave up: whole tasks and equal prices are right as well
        share[np.arange(size), allowed.argmin(axis=1)] = 1.0
        return Split(share, prices)
    share[np.nonzero(used)] = solution.x[:-1]
    dual = np.maximum(0.0, -solution.ineqlin.marginals)
    worth = float(dual @ lanes)
    return Split(share, dual / worth if worth > 0 else prices)


def _by_columns(
    solved: Callable[..., Any], times: np.ndarray, counts: Sequence[int], usable: np.ndarray
) -> tuple[Any, np.ndarray]:
    """Solve `split` by column generation; return solution and used (task, type) pairs."""
    allowed = np.where(usable, times, np.inf)
    chosen = np.zeros(times.shape, dtype=bool)
    rows = np.arange(len(times))[:, None]
    few = min(COLUMNS, times.shape[1])
    every = -(-usable.sum() // WHOLE_PROGRAM) + 1
    prices = split(allowed[::every], counts).prices  # of a part of the tasks, to begin with
    while True:
        with np.errstate(invalid="ignore"):
            cost = np.where(usable, allowed * prices, np.inf)
        wanted = np.argpartition(cost, few - 1, axis=1)[:, :few]
        chosen[rows, wanted] |= usable[rows, wanted]
        solution = solved(*np.nonzero(chosen))
        if solution.x is None:
            return solution, chosen
        prices = np.maximum(0.0, -solution.ineqlin.marginals)
        with np.errstate(invalid="ignore"):
            cost = np.where(usable, allowed * prices, np.inf)
        missed = np.where(chosen, np.inf, cost).min(axis=1) < np.asarray(solution.eqlin.marginals) - 1e-9
        if not missed.any():
            return solution, chosen


def priced(times: np.ndarray, counts: Sequence[int], prices: np.ndarray) -> np.ndarray:
    """Return each task's min time × dual price: sum ≤ makespan if Σ counts·prices = 1."""
    with np.errstate(invalid="ignore"):
        cost = np.where(np.isfinite(allowed_times(times, counts)), times * prices, np.inf)
    return cost.min(axis=1, initial=np.inf)


def good_prices(times: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return the types' dual prices by `split`, from a sample if there are many tasks."""
    every = max(1, -(-len(times) // SAMPLE))
    return split(times[::every], counts).prices
