"""Data-parallel training from measured tables: step times and progress per step.

Definitions of Qiao et al., Pollux (OSDI 2021); data from the folders that `hetsim.workload.readers.pollux` reads.
Step times between measured batch sizes are interpolated linearly; for placements that were not measured, step times
are interpolated linearly between numbers of nodes, of GPUs and of samples.  One step with s times the samples of the
smallest batch advances the training as much as (var + sqr) / (var / s + sqr) steps with the smallest batch (var:
variance, sqr: squared norm of the gradient), so that doubling the batch gains less and less.  A batch too large for
the GPUs is processed in several passes, and only the last pass synchronizes.  A job is complete when it reaches the
progress that all measured trainings have reached.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hetsim.model.curves import Layout

NODES_MEASURED = 16
CHOICES = 50  # number of batch sizes, in equal ratios, that an adaptive job chooses from
SMALL = 1e-2  # weight of the penalty on large coefficients of a fit, relative to the errors of the times
EPSILON = 1e-8  # rounding error that is ignored before a number is rounded up


@dataclass(frozen=True)
class StepModel:
    """Fitted model of the seconds of a step, (P^g + S^g)^(1/g) (Pollux, section 4.1).

    P, the time of a pass, is linear in the local batch size.  S, the time of the synchronization, is linear in the
    number of GPUs beyond two, with separate coefficients within one node and over several nodes.  g is fitted, too.
    """

    # of a pass: fixed, per sample; of sync over nodes: fixed, per GPU; of sync within a node: the same; g
    figures: tuple[float, ...]

    @classmethod
    def fitted(cls, rows: np.ndarray) -> "StepModel":
        """Fit the model to rows (nodes, GPUs, local batch, step seconds, sync seconds)."""
        from scipy.optimize import least_squares

        nodes, gpus, local, step, sync = rows.T
        passes, steps, none = np.log(np.maximum(step - sync, 1e-9)), np.log(step), np.zeros(len(local))
        each = 1 / math.sqrt(len(rows))

        def errors(logs: np.ndarray) -> np.ndarray:
            model = cls(tuple(np.exp(logs).tolist()))
            figures = model.figures
            apart = (np.log(model._passes(local)) - passes) * each
            all_errors = (np.log(model.seconds(nodes, gpus, local, none)) - steps) * each
            small = [figures[6] - 1, figures[3] / figures[2], figures[5] / figures[4]]
            return np.concatenate([apart, all_errors, [SMALL * one for one in small]])

        start = np.log([1e-1, 1e-2, 1e-1, 1e-2, 1e-1, 1e-2, 1.5])
        bounds = [np.log(1e-8)] * 6 + [0.0], [5.0] * 6 + [math.log(10.0)]
        return cls(tuple(np.exp(least_squares(errors, start, bounds=bounds).x).tolist()))

    def _passes(self, local: np.ndarray) -> np.ndarray:
        return self.figures[0] + self.figures[1] * local

    def seconds(self, nodes: Any, gpus: Any, local: np.ndarray, more: np.ndarray) -> np.ndarray:
        """Return a step's seconds; `local`: batch per GPU; `more`: extra passes, no sync."""
        over_fixed, over_each, within_fixed, within_each, power = self.figures[2:]
        beyond = np.maximum(np.asarray(gpus) - 2.0, 0.0)
        within = np.where(np.asarray(gpus) > 1, within_fixed + within_each * beyond, 1e-8)
        sync = np.where(np.asarray(nodes) > 1, over_fixed + over_each * beyond, within)
        passes = self._passes(local)
        return (passes**power + sync**power) ** (1 / power) + more * passes


@dataclass(eq=False)
class Application:
    """Measurements of one training application."""

    name: str
    steps: dict[Layout, np.ndarray]  # by layout: rows of local batch size, step seconds, sync seconds
    spread: np.ndarray  # rows of nodes, GPUs, local batch size, step and sync seconds, of all layouts
    # by batch size: rows of progress, iterations, gradient's squared norm and variance, by epoch
    epochs: dict[int, np.ndarray]
    local_limit: int | None = None  # maximum local batch size, if not the largest measured

    @property
    def batch_sizes(self) -> list[int]:
        return sorted(self.epochs)

    @cached_property
    def local_range(self) -> tuple[int, int]:
        """The smallest and the largest local batch size."""
        sizes = np.concatenate([rows[:, 0] for rows in self.steps.values()])
        return int(sizes.min()), min(int(sizes.max()), self.local_limit or math.inf)  # type: ignore[return-value]

    @cached_property
    def progress(self) -> np.ndarray:
        """Progress at the start of each epoch, and at the end of the last one."""
        count = min(map(len, self.epochs.values()))
        return np.array([0.0, *np.min([rows[:count, 0] for rows in self.epochs.values()], axis=0)])

    @cached_property
    def gpus_per_node(self) -> int:
        return max(max(layout) for layout in self.steps)

    def packed(self, gpus: int) -> Layout:
        """Return the layout of this number of GPUs on the fewest nodes."""
        full, rest = divmod(gpus, self.gpus_per_node)
        return (self.gpus_per_node,) * full + ((rest,) if rest else ())

    def step_times(self, layout: Layout, local: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds of a step and of its synchronization; NaN if not measured."""
        turned = min(layout[i:] + layout[:i] for i in range(len(layout)))
        if (rows := self.steps.get(turned)) is not None:
            outside = (local < rows[0, 0]) | (local > rows[-1, 0])
            step, sync = (np.interp(local, rows[:, 0], rows[:, column]) for column in (1, 2))
            return np.where(outside, np.nan, step), np.where(outside, np.nan, sync)
        nodes = min(len(layout), NODES_MEASURED)
        points = np.column_stack([np.full(len(local), nodes), np.full(len(local), sum(layout)), local])
        seconds = self._between(points)
        return seconds[:, 0], seconds[:, 1]

    @cached_property
    def model(self) -> StepModel:
        """Fitted model of the step times, with which a job chooses its batch size."""
        return StepModel.fitted(self.spread)

    @cached_property
    def _between(self) -> Any:
        from scipy.interpolate import LinearNDInterpolator

        return LinearNDInterpolator(self.spread[:, :3], self.spread[:, 3:])

    def gain(self, batch: np.ndarray, epoch: int) -> np.ndarray:
        """Return the training progress of a step by batch size (smallest batch: 1)."""
        sizes = self.batch_sizes
        sqr, var = (np.interp(batch, sizes, [self.epochs[size][epoch, column] for size in sizes]) for column in (2, 3))
        return (var + sqr) / (var * sizes[0] / batch + sqr)

    def split(self, gpus: int, batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return samples per GPU and pass, and the number of passes before the last pass."""
        smallest, largest = self.batch_sizes[0], self.local_range[1]
        local = np.ceil(batch / gpus - EPSILON)
        more = np.ceil(local / largest - EPSILON) - 1
        if gpus == 1:  # statistics of the gradient need two passes, or two GPUs
            more = np.where(batch > smallest, np.maximum(more, 1), more)
        local = np.ceil(local / (more + 1) - EPSILON)
        return np.minimum(local, np.floor(self.batch_sizes[-1] / (gpus * (more + 1)))), more

    def speeds(self, layout: Layout, batch: int | None) -> np.ndarray:
        """Return the training progress per second by epoch; `batch` None: best batch size."""
        gpus, epochs = sum(layout), len(self.progress) - 1
        if batch is not None:
            wanted = np.array([float(batch)])
        else:
            smallest = max(self.batch_sizes[0], self.local_range[0] * gpus)
            if smallest > self.batch_sizes[-1]:
                return np.zeros(epochs)
            wanted = np.geomspace(smallest, self.batch_sizes[-1], CHOICES)
        local, more = self.split(gpus, wanted)
        step, sync = self.step_times(layout, local)
        seconds = step + more * (step - sync)
        measured = np.isfinite(seconds) & (local >= self.local_range[0])
        if not measured.any():
            return np.zeros(epochs)
        total, seconds = (local * gpus * (more + 1))[measured], seconds[measured]
        if batch is not None:
            return np.array([float((self.gain(total, epoch) / seconds)[0]) for epoch in range(epochs)])
        predicted = self.model.seconds(len(layout), gpus, local[measured], more[measured])
        gains = [self.gain(total, epoch) for epoch in range(epochs)]
        chosen = [int(np.argmax(gain / predicted)) for gain in gains]
        return np.array([gain[place] / seconds[place] for gain, place in zip(gains, chosen, strict=True)])


@dataclass(eq=False)
class TrainingCurve:
    """Progress of a training job over time, on a given number of GPUs."""

    application: Application
    gpus: int
    batch: int | None  # samples per step; None: the batch size that seems best at each time

    @cached_property
    def packed(self) -> Layout:
        return self.application.packed(self.gpus)

    @cached_property
    def seconds(self) -> float:
        """Seconds of the job on as few nodes as possible (`packed`); inf if it cannot run."""
        return float(self._rates_and_times(self.packed, 1.0)[1][-1])

    @cached_property
    def _ends(self) -> np.ndarray:
        """Fraction of the work that is done at the start of each epoch, followed by 1."""
        return self.application.progress / self.application.progress[-1]

    @cached_property
    def _known(self) -> dict[Layout, tuple[np.ndarray, np.ndarray]]:
        return {}

    def _rates_and_times(self, layout: Layout, unit: float) -> tuple[np.ndarray, np.ndarray]:
        """Return, by epoch, the share of work done in `unit` s, and the epochs' bounds."""
        progress = self.application.progress
        with np.errstate(divide="ignore"):
            rates = self.application.speeds(layout, self.batch) / progress[-1] * unit
            spent = np.diff(self._ends) / rates
        return rates, np.concatenate([[0.0], np.cumsum(spent)])

    def _on(self, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
        if (steps := self._known.get(layout)) is None:
            steps = self._known[layout] = self._rates_and_times(layout, self.seconds)
        return steps

    def seconds_left(self, layout: Layout, done: float) -> float:
        clock = self._on(layout)[1]
        if not math.isfinite(clock[-1]):
            return math.inf
        return max(0.0, float(clock[-1] - np.interp(done, self._ends, clock)))

    def reached(self, layout: Layout, done: float, time: float) -> float:
        clock = self._on(layout)[1]
        if not math.isfinite(clock[-1]):
            return done
        return float(np.interp(np.interp(done, self._ends, clock) + time, clock, self._ends))

    def rate(self, layout: Layout, done: float) -> float:
        return float(self._on(layout)[0][self._epoch(done)])

    def section(self, done: float) -> tuple[float, float]:
        epoch = self._epoch(done)
        return float(self._ends[epoch]), float(self._ends[epoch + 1])

    def _epoch(self, done: float) -> int:
        return min(int(np.searchsorted(self._ends, done * (1 + EPSILON), side="right")) - 1, len(self._ends) - 2)
