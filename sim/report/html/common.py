"""What pages about runs, comparisons and sweeps share."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from shlex import quote
from typing import Any

from sim.errors import UsageError
from sim.experiment.policies import written
from sim.report.html import elements
from sim.report.html.elements import Section
from sim.results.compare import Comparison
from sim.results.replications import Replications
from sim.results.result import Result
from sim.results.sweep import Sweep
from sim.results.wording import metric_name

Parts = tuple[str, list[str], list[Section]]
"""Title, lines below it, sections."""


def sentence_case(text: str) -> str:
    """With a large first letter; `GPU` stays as it is."""
    return text[:1].upper() + text[1:]


def scenario_of(first: Result) -> str:
    """The scenario of a run, folded away."""
    return "" if first.scenario is None else elements.code(first.scenario, "the resolved scenario")


def commands(
    first: Result, folder: str, verb: str, outcome: Result | Replications | None = None, more: Iterable[str] = ()
) -> str:
    """How to make the runs again: the command, and the versions that give the same bytes."""
    from sim.results.store import versions

    if first.scenario is None:
        return ""
    words = [f"hetsim {verb} {scenario_file(folder)} --seed {first.seed}", *more]
    words.append(f"--replications {len(outcome) if isinstance(outcome, Replications) else 1}")
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    return elements.code(" ".join(words)) + f"<p>The same versions give the same bytes. Here: {used}.</p>"


def scenario_file(folder: str) -> str:
    """The scenario in a directory, as a shell takes it."""
    return quote(f"{folder}/scenario.yaml" if folder else "scenario.yaml")


def policy_option(label: str, value: Any = None) -> str:
    """`--policy sjf`, or the whole mapping behind a label that the command line does not know."""
    return f"--policy {quote(written(label, value) or label)}"


def regret_picture(found: Comparison | Sweep, metrics: list[str]) -> str:
    """How far each policy is from the best, in the first metric for which that can be said."""
    from sim import plots

    for name in metrics:
        try:
            drawn = plots.regret(found, name)
        except UsageError:  # a metric of which neither way is better, or 0 at its best
            continue
        told = "How far each policy is from the best of them."
        return elements.picture(drawn, f"regret in {metric_name(name)}", told)
    return ""


def front_picture(found: Comparison | Sweep, metrics: list[str]) -> str:
    """The front of the first two metrics that are no two sides of one thing."""
    from sim import plots

    for one, other in combinations(metrics, 2):
        if one.rpartition("_")[0] == other.rpartition("_")[0]:
            continue  # the mean and a percentile of the same thing trade nothing off
        try:
            drawn = plots.pareto(found, one, other)
        except UsageError:
            continue
        return elements.picture(drawn, f"{metric_name(one)} and {metric_name(other)}",
                            "The dashed line joins what nothing else beats in both.")  # fmt: skip
    return ""
