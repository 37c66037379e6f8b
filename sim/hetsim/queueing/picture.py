"""Draws theory and simulation in one picture, as a function of a scenario key."""

from typing import Any

import numpy as np

import hetsim as hs
from hetsim.errors import UsageError
from hetsim.queueing.matching import match
from hetsim.results.colors import VERMILION
from hetsim.results.formatting import fitting, units_of
from hetsim.results.panels import Line, Picture, Points


def theory_and_simulation(scenario: Any, key: str, values: list[Any], metric: str, **options: Any) -> Picture:
    """Draw a metric against a key: simulated with 95 % intervals, and as predicted.

    A value whose scenario matches no model, or is not stable, has no prediction.  options: as in `sweep`.
    """
    if "policies" in options:
        raise UsageError("a picture needs one policy: set it with overrides, as in {'policy': 'fcfs'}")
    scenario = hs.load(scenario, options.pop("overrides", ()))
    swept = hs.sweep(scenario, {key: values}, metrics=[metric], **options)
    picture = hs.plots.against(swept, key, metric)
    (panel,) = picture.panels
    simulated = panel.marks[0]
    panel.marks[0] = Points(simulated.x, simulated.y, "simulated", simulated.color)
    factor, _ = fitting(swept.table[metric].tolist(), units_of(metric))
    matches = [match(hs.load(scenario, {key: value})) for value in values]
    predicted = [next((row.value for row in one.rows if row.metric == metric), float("nan")) for one in matches]
    label = "theory: " + (" / ".join(dict.fromkeys(one.model for one in matches if one.rows)) or "none")
    panel.marks.append(Line(swept.table[key], np.array(predicted) / factor, label, VERMILION, dash=1))
    panel.legend = "inside"
    return picture
