"""The fresh policies of one run and its services, and problems with them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Protocol

from hetsim import registry
from hetsim.errors import HetsimError, PolicyError, Problem, ScenarioError
from hetsim.policy import Batching, IterationPolicy, Scheduler
from hetsim.scenario.building.language_model import joining_problem
from hetsim.scenario.building.streams import Context, TaskStream
from hetsim.scenario.file.document import Path_, key_of
from hetsim.scenario.readers import ReadScenario
from hetsim.scenario.schema.policy import PolicySpec
from hetsim.workload.traces import TaskTable

DEFAULT_BATCHING = PolicySpec("batching", "serial_greedy")
DEFAULT_ITERATION = PolicySpec("batching", "continuous")
DEFAULT_ROUTING = PolicySpec("routing", "least_outstanding")


def batching_policies(
    streams: list[TaskStream], scenario: ScenarioSource, context: Context, problems: list[Problem]
) -> list[Any]:
    """A batching policy for each service that has requests."""
    policies = scenario.policies
    served = [stream for stream in streams if stream.service is not None and len(stream)]
    if policies.batching is not None and all(entry.service is None for entry in scenario.model.workload):
        text = "batching is for services, and no entry of the workload has a service"
        problems.append(scenario.document.problem(("policy", "batching"), text))
    common = policies.batching if policies.batching is not None and not iterates(policies.batching) else None
    if policies.batching is not None and common is None and served and not any(stream.language for stream in streams):
        text = f"{policies.batching.name} is for language models (service: {{kind: llm}}), and there is none"
        problems.append(scenario.document.problem(("policy", "batching"), text))
    specs = [policies.of_service.get(int(stream.path[1]), common or DEFAULT_BATCHING) for stream in served]
    for stream, spec in zip(served, specs, strict=True):
        if iterates(spec):
            text = f"{spec.name} is for language models (service: {{kind: llm}}); this service forms batches"
            problems.append(scenario.document.problem((*stream.path, "service", "batching"), text))
    made = [
        make_policy(spec, scenario, problems, _place(stream, spec, policies.of_service))
        for stream, spec in zip(served, specs, strict=True)
    ]
    for stream, spec, policy in zip(served, specs, made, strict=True):
        if isinstance(policy, Batching):
            modes = context.modes.shapes[int(stream.shape[0])].modes
            context.warnings += [f"{stream.name}: {spec.name} {text}" for text in policy.remarks(modes)]
            _note_overload(stream, spec, policy, scenario=scenario, context=context)
    return made


def _note_overload(
    stream: TaskStream, spec: PolicySpec, policy: Any, scenario: ScenarioSource, context: Context
) -> None:  # fmt: skip
    """Warn of a load that a service cannot serve; note it if certain."""
    overload = None if stream.overload is None else stream.overload(policy, spec.name)
    if overload is None:
        return
    text, capacity = overload
    context.warnings.append(text)
    arrivals: Any = scenario.model.workload[int(stream.path[1])].arrivals
    steady = arrivals is not None and arrivals.steady_rate
    if steady and getattr(policy, "in_order", False) and stream.service is not None:
        lasts, fewest = float(stream.arrival[-1]), max(1.0, len(stream) - 3 * math.sqrt(len(stream)))  # of replications
        served = min(fewest, capacity * lasts)
        context.overloads.append((text, served, lasts * (1 - served / fewest)))


def iterates(spec: PolicySpec) -> bool:
    """Return True if a batching policy is for steps of language models."""
    return bool(getattr(registry.policy("batching", spec.name), "iterates", False))


def iteration_policies(
    streams: list[TaskStream], scenario: ScenarioSource, context: Context, problems: list[Problem]
) -> list[tuple[Any, Any]]:
    """A batching and a routing policy for each language model that has requests."""
    policies, document = scenario.policies, scenario.document
    served = [stream for stream in streams if stream.language is not None and len(stream)]
    if policies.routing is not None and not any(hasattr(entry.service, "kind") for entry in scenario.model.workload):
        text = "routing is among the replicas of language models, and no entry of the workload has one"
        problems.append(document.problem(("policy", "routing"), text))
    common = policies.batching if policies.batching is not None and iterates(policies.batching) else None
    if policies.batching is not None and common is None and served and not any(stream.service for stream in streams):
        text = f"{policies.batching.name} forms whole batches, which language models do not; continuous suits them"
        problems.append(document.problem(("policy", "batching"), text))
    made = []
    for stream in served:
        number = int(stream.path[1])
        spec = policies.of_service.get(number, common or DEFAULT_ITERATION)
        if not iterates(spec):
            text = f"{spec.name} forms whole batches, which a language model does not; continuous suits it"
            problems.append(document.problem((*stream.path, "service", "batching"), text))
        routing = policies.routing_of.get(number, policies.routing or DEFAULT_ROUTING)
        made.append(
            (
                make_policy(spec, scenario, problems, _place(stream, spec, policies.of_service)),
                make_policy(routing, scenario, problems, _place(stream, routing, policies.routing_of)),
            )
        )
        if isinstance(made[-1][0], IterationPolicy):
            _note_overload(stream, spec, made[-1][0], scenario=scenario, context=context)
            joining = joining_problem(stream, made[-1][0])
            if joining is not None:
                problems.append(document.problem((*stream.path, "service", joining[0]), f"{spec.name}: {joining[1]}"))
    return made


def _place(stream: TaskStream, spec: PolicySpec, own: dict[int, PolicySpec]) -> Path_:
    """Path of a policy of a service: at the service, or for all of them."""
    named = own.get(int(stream.path[1])) is spec
    return (*stream.path, "service", spec.kind) if named else ("policy", spec.kind)


def make_policy(spec: PolicySpec, scenario: ScenarioSource, problems: list[Problem], place: Path_ = ()) -> Any:
    """A fresh policy; a refusal of its constructor is a problem at `place`."""
    path: Path_ = place or ("policy", spec.kind)
    try:
        policy = spec.make()
    except ScenarioError as error:
        usual = key_of(("policy", spec.kind))
        moved = [replace(p, key=key_of(path) + p.key.removeprefix(usual)) for p in error.problems if not p.file]
        problems += moved + [problem for problem in error.problems if problem.file]
        return None
    except HetsimError:
        raise
    except ValueError as error:
        problems.append(scenario.document.problem(path, f"{spec.name}: {error}"))
        return None
    except Exception as error:
        raise PolicyError(f'policy "{spec.name}" cannot be made: {type(error).__name__}: {error}') from error
    if spec.kind == "scheduler" and not isinstance(policy, Scheduler):
        message = f"{spec.name} is no scheduler: a class of your own derives from hetsim.policy.Scheduler"
        problems.append(scenario.document.problem(path, message))
    return policy


class ScenarioSource(ReadScenario, Protocol):
    """The part of a `Scenario` that is read to build a run."""

    notes: list[str]

    def table(self, entry: int) -> TaskTable:
        """The trace of a workload entry; read once."""
        ...
