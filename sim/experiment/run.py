"""Run a scenario once, or several times with independent randomness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import ScenarioError
from sim.experiment.jobs import Case, Progress, run_cases
from sim.experiment.policies import PolicyLike, named_policy

if TYPE_CHECKING:
    from sim.results.replications import Replications
    from sim.results.result import Result
    from sim.scenario.scenario import Overrides, Scenario


def run(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    *,
    policy: PolicyLike | None = None,
    seed: int | None = None,
    replications: int | Mapping[str, Any] | None = None,
    check: bool = False,
    overrides: Overrides = (),
    metrics: Iterable[str] = (),
    keep: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> Result | Replications:
    """The outcome of a scenario: a Result, or Replications where more than one run is asked for.

    scenario: a file, the name of a shipped scenario, a mapping, or a Scenario.
    policy: in place of the scenario's whole policy: a name (`"sjf"`, `"sjf + best_fit"`), a mapping as under
        `policy:`, or a scheduler class or order key of your own.
    seed, replications: in place of the scenario's.  Replications are a number, or {precision, metric, max, confidence}:
        then as many as the precision needs, at least ten.
    check: verify the simulator's invariants after every round (slower).
    overrides: further values, `{"cluster.nodes.0.count": 4}` or `["cluster.nodes.0.count=4"]`; applied after policy.
    metrics: to keep of every replication besides those of the summary.
    keep: keep the whole runs of replications, not only their metrics (one worker only).
    workers: local processes for replications; the result does not depend on their number.
    progress: called with the share done, 0 to 1, five times a second from another thread.

    ScenarioError lists everything wrong with the scenario.  A RunError has the tables up to then as `result`.
    """
    loaded = prepare(scenario, policy, overrides)
    case = Case("", loaded, seed)
    return run_cases([case], replications, check, metrics, keep, workers, progress)[""]


def prepare(
    scenario: str | Path | Mapping[str, Any] | Scenario, policy: PolicyLike | None = None, overrides: Overrides = ()
) -> Scenario:
    """The loaded scenario with another policy and other values."""
    from sim.scenario.scenario import load

    if policy is None:
        return load(scenario, overrides)
    value = named_policy(policy)[1]
    if not isinstance(overrides, Mapping):
        from sim.scenario.overrides import parse_assignment

        overrides = dict(parse_assignment(text) for text in overrides)
    try:
        # One pass for all: a scenario whose own policy is wrong is still fine under another.
        return load(scenario, {"policy": value, **overrides})
    except ScenarioError as error:
        named = "--policy" if "policy" not in overrides else "--set policy"
        raise ScenarioError(
            [replace(p, file=named) if p.file == "--set policy" else p for p in error.problems]
        ) from None
