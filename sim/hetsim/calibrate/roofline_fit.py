"""Fit the shares of peaks that measured steps reach, for a known model and GPUs.

Three numbers for both stages: the shares of memory bandwidth and of arithmetic, and the time in which the host issues a
step.  (A fourth, the latency of sums over the GPUs, cannot be told from these.)  They are fitted by least squares of
relative errors, and judged by leaving out each size: each number of prompt tokens for reading, each number of sequences
for decoding.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetsim.calibrate.step_profile import FALLS, MeasuredSetting
from hetsim.model.step_times import attended
from hetsim.workload.costs.architectures import Architecture
from hetsim.workload.costs.roofline import Peak
from hetsim.workload.costs.step_costs import Efficiency, roofline_steps
from hetsim.workload.rows.text_rows import problem_of

Figures = tuple[Architecture, Peak, int]
MIN_SETTINGS = 4


@dataclass(frozen=True)
class Reached:
    """The fitted values, and both stages' mean relative errors: left out, and all."""

    efficiency: Efficiency
    prefill_error: float
    decode_error: float
    prefill_off: float
    decode_off: float


def predicted(figures: Figures, reached: Efficiency, one: MeasuredSetting) -> tuple[float, float]:
    """Return seconds of a setting's prompt step, and of its mean decoding step."""
    steps = roofline_steps(*figures, reached)
    read = steps.seconds_for(one.prompt * one.batch, 0, 0, one.batch * attended(one.prompt, 0))
    return read, steps.seconds_for(0, one.batch, round(one.context))


def fit(figures: Figures, settings: Sequence[MeasuredSetting], what: str) -> Reached:
    """Fit the efficiency to a profile; ScenarioError if the search does not end."""
    if len(settings) < MIN_SETTINGS:
        text = f"has {len(settings)} settings of prompt and batch; at least {MIN_SETTINGS} are needed for a roofline"
        raise problem_of(what, text)
    settings = _whole(settings)
    fit_to_all = _fitted(figures, settings, settings, what)
    prefill = [
        _errors(figures, _fitted(figures, [s for s in settings if s.prompt * s.batch != tokens], settings, what),
                [s for s in settings if s.prompt * s.batch == tokens])[0]
        for tokens in sorted({s.prompt * s.batch for s in settings})
    ]  # fmt: skip
    decode = [
        _errors(figures, _fitted(figures, [s for s in settings if s.batch != batch], settings, what),
                [s for s in settings if s.batch == batch])[1]
        for batch in sorted({s.batch for s in settings})
    ]  # fmt: skip
    off = _errors(figures, fit_to_all, settings)
    return Reached(fit_to_all, statistics.mean(prefill), statistics.mean(decode), *off)


def _whole(settings: Sequence[MeasuredSetting]) -> list[MeasuredSetting]:
    """Without those with a step that took less than half of a smaller one's time."""
    kept: list[MeasuredSetting] = []
    longest = 0.0
    for one in sorted(settings, key=lambda one: one.prompt * one.batch):
        if one.prefill >= FALLS * longest:
            kept.append(one)
            longest = max(longest, one.prefill)
    return kept


def _errors(figures: Figures, reached: Efficiency, settings: Sequence[MeasuredSetting]) -> tuple[float, float]:
    pairs = [predicted(figures, reached, one) for one in settings]
    read = statistics.mean(abs(p / one.prefill - 1) for (p, _), one in zip(pairs, settings, strict=True))
    decode = statistics.mean(abs(d / one.decode - 1) for (_, d), one in zip(pairs, settings, strict=True))
    return read, decode


def _fitted(
    figures: Figures, settings: Sequence[MeasuredSetting], all_: Sequence[MeasuredSetting], what: str
) -> Efficiency:
    from scipy.optimize import least_squares

    shortest = min(one.decode for one in all_)

    def efficiency(point: np.ndarray) -> Efficiency:
        memory, compute = (min(1.0, math.exp(value)) for value in point[:2])
        return replace(Efficiency(), memory=memory, compute=compute, host=shortest * math.exp(point[2]))

    def residuals(point: np.ndarray) -> list[float]:
        reached = efficiency(point)
        errors = []
        for one in settings:
            read, decode = predicted(figures, reached, one)
            errors += [math.log(read / one.prefill), math.log(decode / one.decode)]
        return errors

    first = [math.log(0.6), math.log(0.5), math.log(0.9)]
    low, high = [math.log(0.02), math.log(0.02), math.log(0.01)], [0.0, 0.0, math.log(1.5)]
    solution = least_squares(residuals, first, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=300,
                          ftol=1e-10, xtol=1e-10, gtol=1e-10)  # fmt: skip
    if not solution.success:
        raise problem_of(what, f"the fit of the roofline does not converge on these measurements: {solution.message}")
    return efficiency(solution.x)
