"""Theory and simulation in one picture."""

from typing import Any

import hetsim as hs
from hetsim.errors import UsageError
from hetsim.queueing.matching import match
from hetsim.results.formatting import fitting, units_of


def theory_and_simulation(scenario: Any, key: str, values: list[Any], metric: str, **options: Any) -> Any:
    """Draw a metric against a key: simulated with 95 % intervals, and as predicted.

    A value whose scenario matches no model, or is not stable, has no prediction.  options: those of `sweep`, but no
    `policies`.
    """
    if "policies" in options:
        raise UsageError("theory is of one policy: set it with overrides, as in {'policy': 'fcfs'}")
    scenario = hs.load(scenario, options.pop("overrides", ()))
    swept = hs.sweep(scenario, {key: values}, metrics=[metric], **options)
    ax = hs.plots.against(swept, key, metric)
    ax.lines[0].set(linestyle="none", label="simulated")
    factor, _ = fitting(swept.table[metric].tolist(), units_of(metric))
    matches = [match(hs.load(scenario, {key: value})) for value in values]
    predicted = [next((row.value for row in one.rows if row.metric == metric), float("nan")) for one in matches]
    label = "theory: " + (" / ".join(dict.fromkeys(one.model for one in matches if one.rows)) or "none")
    ax.plot(swept.table[key], [value / factor for value in predicted], "--", color="#D55E00", label=label)
    ax.legend(frameon=False, fontsize=9)
    return ax
