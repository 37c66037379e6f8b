"""Run a scenario once, or several times with independent randomness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import ScenarioError
from sim.experiment.jobs import Case, run_cases
from sim.experiment.policies import PolicyLike, named_policy
from sim.experiment.progress import Progress

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
    by: str | Iterable[str] = (),
    keep: bool = False,
    workers: int = 1,
    progress: Progress | bool | None = None,
) -> Result | Replications:
    """The outcome of a scenario: a Result, or Replications where more than one run is asked for.

    scenario: a file, the name of a shipped scenario, a mapping, or a Scenario.
    policy: in place of the scenario's whole policy: a name (`"sjf"`, `"sjf + best_fit"`), a mapping as under
        `policy:`, or a scheduler class or order key of your own.
    seed, replications: in place of the scenario's.  Replications are a number, or {precision, metric, max, confidence}:
        then as many as the precision needs, at least ten.
    check: verify the simulator's invariants after every round (slower).
    overrides: further values, `{"cluster.nodes.0.count": 4}` or `["cluster.nodes.0.count=4"]`; applied after policy.
    metrics: to keep of every replication besides those of the summary (or sets of them: cluster, all).
    by: class, gpus or user: to keep of every replication what `Replications.by` tells of these groups.
    keep: keep the whole runs of replications, not only their metrics (one worker only).
    workers: local processes for replications; the result does not depend on their number.
    progress: called with the share done, 0 to 1, five times a second from another thread; True shows a bar, on a
        terminal or in a notebook.

    ScenarioError lists everything wrong with the scenario.  A RunError has the tables up to then as `result`.
    """
    loaded = prepare(scenario, policy, overrides)
    case = Case("", loaded, seed)
    kept = to_keep(loaded, metrics, by, seed, replications)
    return run_cases([case], replications, check, kept, keep, workers, progress)[""]


def to_keep(
    scenario: Scenario, metrics: Iterable[str], by: str | Iterable[str], seed: int | None,
    replications: int | Mapping[str, Any] | None,
) -> list[str]:  # fmt: skip
    """What replications are asked to keep besides the metrics of the summary: further metrics, and groups.

    Which users have a row of their own is decided by the workload of the first replication, for all of them.
    """
    from sim.results.groups import checked, groupings
    from sim.results.metric_sets import expanded

    names, wanted = expanded(name for name in metrics if name != "usual"), checked(by)  # the usual ones are kept
    number = scenario.model.replications if replications is None else replications
    if not wanted or number == 1:  # of one run everything is kept
        return names
    built = scenario.build(scenario.model.seed if seed is None else seed, 0)
    return names + [grouping.text for grouping in groupings(built, wanted, names)]


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
    named = {"--set policy": "--policy"} if "policy" not in overrides else {}
    try:
        # One pass for all: a scenario whose own policy is wrong is still fine under another.
        loaded = load(scenario, {"policy": value, **overrides})
    except ScenarioError as error:
        raise ScenarioError([replace(p, file=named.get(p.file or "", p.file)) for p in error.problems]) from None
    set_by = loaded.document.set_by
    set_by.update({path: named.get(source, source) for path, source in set_by.items()})  # for what is found later
    return loaded
