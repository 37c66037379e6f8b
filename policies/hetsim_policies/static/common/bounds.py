"""Lower bounds on the makespan of n independent tasks on m CPUs and k GPUs.

`area_bound` ≤ `linear_bound` ≤ the bound of `dual_approximation` ≤ the optimum, and `area_bound` ≤ `released_bound`
≤ the optimum with release times.  `p` are the CPU times and `q` the GPU times, as arrays; inf if a task cannot run.
Reference: the area bound with tasks split over CPUs and GPUs is that of Agullo, Beaumont, Eyraud-Dubois and Kumar, Are
Static Schedules so Bad? (2016); the pruning of impossible pairs is that of Lenstra, Shmoys and Tardos (1990).
Cost: one sort by p/q; then O(n) for the area bound, and O(n) for each of about 30 guesses of the linear bound.
"""

import heapq
from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-9  # Relative slack of comparisons with a guess, so that rounding never makes a guess impossible


def area_bound(p: np.ndarray, q: np.ndarray, m: int, k: int) -> float:
    """The minimum T with Σ p_j x_j ≤ mT and Σ q_j (1 - x_j) ≤ kT for some 0 ≤ x_j ≤ 1.

    Here x_j is the fraction of task j on the m CPUs, and 1 - x_j its fraction on the k GPUs.  Proof: a schedule of
    length T satisfies both inequalities, as a device is busy for at most T.  The minimum T is found by assigning tasks
    to the GPUs by decreasing p/q: this order saves a given CPU area with the minimum GPU area.
    """
    order = by_gain(p, q)
    p, q = p[order], q[order]
    only_gpu, only_cpu = np.isinf(p) | (m == 0), np.isinf(q) | (k == 0)
    both = ~only_gpu & ~only_cpu
    # Sums from either end, not differences: times may differ by many orders of magnitude.
    gpu_area = float(q[only_gpu].sum()) + np.concatenate([[0.0], np.cumsum(q[both])])
    cpu_area = float(p[only_cpu].sum()) + np.concatenate([[0.0], np.cumsum(p[both][::-1])])[::-1]
    if not m or not k:
        return float(gpu_area[-1] / k if k else cpu_area[0] / m if m else 0.0)
    # With the first i tasks on the GPUs and part of the next, the loads per device cross in the last interval in
    # which the GPUs begin less loaded than the CPUs.
    on_gpus, on_cpus = gpu_area / k, cpu_area / m
    i = int(np.searchsorted(on_gpus - on_cpus, 0.0, side="right")) - 1
    if i < 0 or i == len(on_gpus) - 1:
        return float(max(on_gpus[max(i, 0)], on_cpus[max(i, 0)]))
    rise, fall = q[both][i] / k, p[both][i] / m
    part = (on_cpus[i] - on_gpus[i]) / (rise + fall) if rise + fall > 0 else 0.0
    return float(on_gpus[i] + part * rise)


def linear_bound(p: np.ndarray, q: np.ndarray, m: int, k: int, precision: float = 1e-7) -> float:
    """Minimum makespan T for which `relaxation` has a solution, rounded down.

    p, q: times on one of m CPUs and on one of k GPUs.
    Proof: in a schedule of length T no task runs on a side (CPU or GPU) where it takes longer than T.  So the areas of
    the schedule satisfy the program of T, which excludes these pairs of task and side.  If the program of T has no
    solution, there is no schedule of length T, nor of a smaller length, which allows fewer pairs and less area.
    """
    low = longest_task(p, q, m, k)
    if np.isinf(low):
        return low
    low = max(low, area_bound(p, q, m, k))
    if low == 0 or relaxation(p, q, m, k=k, guess=low) is not None:
        return low
    high = 2 * low
    order = by_gain(p, q)
    while relaxation(p, q, m, k=k, guess=high, order=order) is None:
        low, high = high, 2 * high
    while high > low * (1 + precision):
        guess = float(np.sqrt(low * high))
        if relaxation(p, q, m, k=k, guess=guess, order=order) is None:
            low = guess
        else:
            high = guess
    return low


def longest_task(p: np.ndarray, q: np.ndarray, m: int, k: int) -> float:
    """Return a makespan bound: the largest min(CPU time p, GPU time q) of a task."""
    fastest = np.minimum(p if m else np.inf, q if k else np.inf)
    return float(np.max(fastest, initial=0.0)) if len(p) else 0.0


def released_bound(p: np.ndarray, q: np.ndarray, m: int, k: int, release: np.ndarray, evaluations: int = 64) -> float:
    """A lower bound on the makespan of tasks with release times r_j, counted from 0.

    p, q: times on one of m CPUs and on one of k GPUs.  The area bound is that of `area_bound`.  The result is the
    larger of two maxima: over tasks j of r_j + min(p_j, q_j), and over release times r of r + the area bound of the
    tasks released at r or later.

    The area bound falls as r grows.  So for any r between two release times, r + area bound is at most the later
    release time plus the area bound at the earlier one.  Intervals in which this sum does not exceed the best value so
    far are skipped.  At most `evaluations` area bounds are computed; with fewer the result is lower, but valid.
    """
    if not len(p):
        return 0.0
    best = float(np.max(release + np.minimum(p if m else np.inf, q if k else np.inf)))
    order = np.argsort(release, kind="stable")
    p, q = p[order], q[order]
    times, first = np.unique(release[order], return_index=True)

    def area(index: int) -> float:
        nonlocal best
        bound = area_bound(p[first[index] :], q[first[index] :], m, k)
        best = max(best, float(times[index]) + bound)
        return bound

    total = area(0)
    open_ = [(-float(times[-1]) - total, 0, len(times), total)]  # most that is possible, ends, area at the first
    for _ in range(evaluations):
        upper, low, high, before = open_[0]
        if -upper <= best or high - low < 2:
            break
        middle = (low + high) // 2
        later = area(middle)
        heapq.heapreplace(open_, (-float(times[middle - 1]) - before, low, middle, before))
        heapq.heappush(open_, (-float(times[high - 1]) - later, middle, high, later))
    return best


@dataclass(frozen=True)
class Relaxation:
    """Solution of the linear program `relaxation` for a guess of the makespan.

    `cpu` and `gpu` mark the tasks that run on that side in every schedule whose makespan is at most the guess; the
    other tasks are `free`.  `cut` marks the tasks that the relaxed optimum puts entirely on the GPUs.
    """

    cpu: np.ndarray
    gpu: np.ndarray
    cut: np.ndarray

    @property
    def free(self) -> np.ndarray:
        return np.flatnonzero(~self.cpu & ~self.gpu)


def by_gain(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return tasks by decreasing p/q, the ratio of CPU time (p) to GPU time (q)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        gain = p / q
    gain[np.isnan(gain)] = 1.0  # 0/0: no cost on either side
    return np.argsort(-gain, kind="stable")


def relaxation(
    p: np.ndarray, q: np.ndarray, m: int, k: int, guess: float, order: np.ndarray | None = None
) -> Relaxation | None:
    """Minimize the CPU time Σ p_j x_j with GPU time ≤ kλ; None if it exceeds mλ.

    p, q: times of the tasks on a CPU and on a GPU; m, k: numbers of CPUs and GPUs; x_j: share of task j on CPUs; λ: the
    guessed makespan.  A task runs nowhere where it takes longer than λ; a task that may run on both sides is free.  The
    program is a continuous knapsack: free tasks are assigned to the GPUs by decreasing p/q (`order`) until the GPUs are
    full, the others to the CPUs.  If moving a free task to the other side would raise the optimum above mλ (by its
    reduced cost), the task is marked `cpu` or `gpu`: the side where it must stay.
    """
    order = by_gain(p, q) if order is None else order
    limit = guess * (1 + TOLERANCE)
    cpu, gpu = (q > limit) | (k == 0), (p > limit) | (m == 0)
    cut = gpu.copy()
    if np.any(cpu & gpu):
        return None
    if (room := k * limit - float(q[gpu].sum())) < 0:
        return None
    free = order[~(cpu | gpu)[order]]
    p_free, q_free = p[free], q[free]
    filled = np.cumsum(q_free)
    prefix = int(np.searchsorted(filled, room, side="right"))
    area = float(p[cpu].sum() + p_free[prefix:].sum())
    price = 0.0  # CPU time that one more second of GPU area would save
    if prefix < len(free):
        price = float(p_free[prefix] / q_free[prefix])
        area -= price * (room - (float(filled[prefix - 1]) if prefix else 0.0))
    if (spare := m * limit - area) < 0:
        return None
    cut[free[:prefix]] = True
    loss = p_free - price * q_free  # of moving from the GPUs to the CPUs; its negative for the way back
    gpu[free[:prefix][loss[:prefix] > spare]] = True
    cpu[free[prefix:][-loss[prefix:] > spare]] = True
    return Relaxation(cpu, gpu, cut)
