"""The true arrival rates of a scenario, for a policy that is a yardstick (`Scheduler.knows_rates`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from hetsim.errors import Problem
from hetsim.scenario.building.source import ScenarioSource
from hetsim.scenario.building.streams import TaskStream


def true_rates(
    scenario: ScenarioSource, streams: list[TaskStream], name: str, problems: list[Problem]
) -> Mapping[str, Callable[[float], float]]:
    """Arrivals per second of each class and service at any time; an entry without a certain rate is a problem."""
    parts: dict[str, list[tuple[float, Any, float]]] = {}
    for stream in streams:
        number = int(stream.path[1])
        entry = scenario.model.workload[number]
        arrivals: Any = entry.arrivals
        key = "trace" if entry.trace is not None else "pipeline" if entry.pipeline is not None else "arrivals"
        if key != "arrivals" or arrivals.rate_at(0.0) is None:
            what = f"{arrivals.process} arrivals have" if key == "arrivals" else f"a {key} has"
            text = f"{what} no certain rate, and the predictor of {name} must know it; poisson, piecewise_poisson, "
            text += "diurnal, renewal and deterministic arrivals have one"
            problems.append(scenario.document.problem(("workload", number, key), text))
            continue
        over = entry.count is not None and len(stream) == entry.count
        end = float(stream.arrival[-1]) if over else math.inf if entry.until is None else entry.until
        codes = np.zeros(len(stream), int) if stream.class_code is None else stream.class_code
        names = [stream.name] if stream.service is not None else stream.classes
        shares = [1.0] if stream.service is not None else np.bincount(codes, minlength=len(names)) / max(1, len(stream))
        for label, share in zip(names, shares, strict=True):
            parts.setdefault(label, []).append((float(share), arrivals, end))
    return {label: partial(_rate, those) for label, those in parts.items()}


def _rate(parts: list[tuple[float, Any, float]], time: float) -> float:
    return sum(share * process.rate_at(time) for share, process, end in parts if time <= end)
