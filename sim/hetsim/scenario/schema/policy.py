"""The `policy:` part: short and long form, checked against policies' signatures."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from hetsim import registry
from hetsim.errors import Problem, UnknownName, suggestion
from hetsim.model.record import DecisionTime
from hetsim.scenario.fields import Mirror, keys_of
from hetsim.scenario.file.document import Document, Path_
from hetsim.scenario.file.problems import translate

DEFAULT_SCHEDULER = "fcfs"
PARTS = registry.POLICY_PARTS
KEYS = (*PARTS, "decisions")
BOUNDS = frozenset({"min", "max", "every", "roles"})  # keys of `scale:` that are not the policy's (`ScaleSpec`)


@keys_of(DecisionTime)
class DecisionsSpec(Mirror):
    """The simulated time that the decisions of a scheduler take."""


def long_form(policy: Any) -> Any:
    """Expand `fcfs` to {scheduler: {name: fcfs}}; values of other types are unchanged."""
    if policy is None:
        policy = {}
    if isinstance(policy, str):
        policy = {"batching" if _batches(policy) else "scheduler": policy}
    if not isinstance(policy, dict):
        return policy
    if "name" in policy and not set(policy) & {"scheduler"}:
        outer = {key: policy[key] for key in (*PARTS[2:], "decisions") if key in policy}
        policy = {"scheduler": {key: v for key, v in policy.items() if key not in outer}, **outer}
    parts = {key: _named(value) if key in PARTS else value for key, value in policy.items()}
    scheduler = parts.setdefault("scheduler", {"name": DEFAULT_SCHEDULER})
    if isinstance(scheduler, dict):
        scheduler.setdefault("name", DEFAULT_SCHEDULER)
        if "placement" in parts and "placement" not in scheduler:
            placement = parts.pop("placement")
            bare = isinstance(placement, dict) and set(placement) == {"name"}
            scheduler["placement"] = placement["name"] if bare else placement
    return parts


def _batches(name: str) -> bool:
    return name in registry.policies("batching") and name not in registry.policies("scheduler")


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else dict(value) if isinstance(value, dict) else value


@dataclass(frozen=True)
class PolicySpec:
    """A policy with validated parameters, from which each run creates a new object."""

    kind: str
    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    # the parameters as in the scenario, with units
    written: dict[str, Any] = field(default_factory=dict, compare=False)

    def make(self) -> Any:
        """Create a policy object; for a placement function, return the function itself."""
        item = registry.policy(self.kind, self.name)
        # A policy makes its predictors itself: one for each series.
        values = {key: v if not isinstance(v, PolicySpec) else v.make if v.kind == "predictor" else v.make()
                  for key, v in self.parameters.items()}  # fmt: skip
        if inspect.isclass(item):
            common = {key: values.pop(key) for key in getattr(item, "COMMON", ()) if key in values}
            policy = item(**values)
            for key, value in common.items():
                setattr(policy, key, value)
            return policy
        return _list_scheduler()(item, **values) if self.kind == "scheduler" else item

    @property
    def label(self) -> str:
        shown = []
        for key, value in self.parameters.items():
            text = value.label if isinstance(value, PolicySpec) else self.written.get(key, value)
            shown.append(f"{key}: {str(text).lower() if isinstance(text, bool) else text}")
        return self.name + (f" ({', '.join(shown)})" if shown else "")


@dataclass(frozen=True)
class Policies:
    scheduler: PolicySpec
    admission: PolicySpec | None = None
    batching: PolicySpec | None = None
    # batching policies of single workload entries, by number of the entry
    of_service: dict[int, PolicySpec] = field(default_factory=dict)
    routing: PolicySpec | None = None
    # routing policies of single workload entries, by number of the entry
    routing_of: dict[int, PolicySpec] = field(default_factory=dict)
    # scaling policies of single workload entries, by number of the entry
    scale_of: dict[int, PolicySpec] = field(default_factory=dict)
    decisions: DecisionTime | None = None  # time that the scheduler's decisions take
    eviction: PolicySpec | None = None

    @property
    def label(self) -> str:
        parts = [self.scheduler, self.admission, self.batching, self.routing, self.eviction]
        return " + ".join(part.label for part in parts if part is not None)


def check_policies(document: Document, base: Path) -> tuple[Policies | None, list[Problem]]:
    """Return all policies (None if one is invalid), and the problems."""
    of_service, problems = _of_services(document, base, "batching")
    routing_of, more = _of_services(document, base, "routing")
    scale_of, others = _of_services(document, base, "scale")
    problems += more + others
    here: Path_ = ("policy",)
    policy = long_form(document.data.get("policy"))
    if not isinstance(policy, dict):
        return None, [document.problem(here, "must be the name of a scheduler, or a mapping")]
    specs: dict[str, PolicySpec | None] = {}
    decisions: DecisionTime | None = None
    for part, value in policy.items():
        if part == "placement":
            problems.append(document.problem((*here, part), "placement must be given once: in the scheduler or here"))
        elif part == "decisions":
            try:
                decisions = DecisionsSpec.model_validate(value).made()
            except ValidationError as error:
                problems += translate(error, document, DecisionsSpec, (*here, part))
        elif part not in PARTS:
            near = _owner(part, policy) or suggestion(part, KEYS) or f"; the keys here are {', '.join(KEYS)}"
            problems.append(document.problem((*here, part), f'unknown key "{part}"{near}'))
        else:
            specs[part], its_problems = _check(document, (*here, part), part, value=value, base=base)
            problems += its_problems
    scheduler = specs.get("scheduler")
    if problems or scheduler is None:
        return None, problems
    parts = {part: specs.get(part) for part in PARTS[2:]}
    return Policies(
        scheduler, of_service=of_service, routing_of=routing_of, scale_of=scale_of, decisions=decisions, **parts
    ), []


def _of_services(document: Document, base: Path, kind: str) -> tuple[dict[int, PolicySpec], list[Problem]]:
    specs: dict[int, PolicySpec] = {}
    problems: list[Problem] = []
    for number, path, value in document.in_entries("service", kind):
        spec, wrong = _check(document, path, kind, value=value, base=base)
        problems += wrong
        if spec is not None:
            specs[number] = spec
    return specs, problems


def _owner(key: str, policy: Mapping[str, Any]) -> str:
    """Return a hint that names the policy with a parameter of this name, or ""."""
    for kind in PARTS:
        value = policy.get(kind)
        name = value.get("name") if isinstance(value, dict) else value
        is_policy = isinstance(name, str) and name in registry.policies(kind)
        if is_policy and key in policy_parameters(kind, registry.policy(kind, str(name))):
            return f"; it is a parameter of the {kind}: {kind}: {{name: {name}, {key}: ...}}"
    return ""


def _check(
    document: Document, path: Path_, kind: str, value: Any, base: Path
) -> tuple[PolicySpec | None, list[Problem]]:
    named = path if isinstance(value, str) else (*path, "name")
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        article = "an" if kind[0] in "aeiou" else "a"
        return None, [document.problem(path, f"must be the name of {article} {kind}, or a mapping with its name")]
    name = value["name"]
    try:
        item = registry.policy(kind, name)
    except UnknownName as error:
        return None, [document.problem(named, str(error))]
    given = {key: v for key, v in value.items() if key != "name" and not (kind == "scale" and key in BOUNDS)}
    signature = policy_parameters(kind, item)
    if given.get("placement", "") is None and "placement" in signature:
        del given["placement"]
    problems: list[Problem] = []
    nested: dict[str, PolicySpec] = {}
    inner = _inner_kinds(given, signature)
    for key, wanted in inner.items():
        where = (*path, key)
        if wanted is None:
            spec, wrong = _check(document, where, "placement", value=given.pop(key), base=base)
        else:
            spec, wrong = _check_inner(
                document, where, f'{kind} "{name}"', wanted=wanted, value=given.pop(key), base=base
            )
        problems += wrong
        if spec:
            nested[key] = spec
    model = parameter_model(f"{kind} {name}", {key: one for key, one in signature.items() if key not in inner})
    try:
        checked = model.model_validate(given, context={"base": str(base)})
    except ValidationError as error:
        return None, problems + _parameter_problems(
            error, document, path, model=model, kind=kind, name=name, signature=signature
        )
    values = {key: getattr(checked, key) for key in signature if key in checked.model_fields_set}
    return (None if problems else PolicySpec(kind, name, {**values, **nested}, given)), problems


def _inner_kinds(given: dict[str, Any], signature: Mapping[str, inspect.Parameter]) -> dict[str, type | None]:
    """Return the class of each given parameter that is a policy; None: placement rule."""
    inner: dict[str, type | None] = {"placement": None} if "placement" in given and "placement" in signature else {}
    for key, parameter in signature.items():
        if (wanted := inner_type(parameter)) is not None and given.get(key) is not None:
            inner[key] = wanted
    return inner


def inner_type(parameter: inspect.Parameter) -> type | None:
    """Return the class of policy that a parameter accepts, or None.

    A policy that uses another policy declares it by an annotation: `by: Scheduler`, `planner: PlannedScheduler`, or
    `predictor: Callable[[], Predictor]` if it makes predictors itself; with `| None` if the parameter is optional.
    """
    try:
        return _inner_of(parameter.annotation)
    except TypeError:  # an annotation that has no hash
        return _inner_of.__wrapped__(parameter.annotation)


@lru_cache(500)
def _inner_of(annotation: Any) -> type | None:
    from hetsim.policy import Predictor, Scheduler

    for candidate in (annotation, *get_args(annotation)):
        made = get_args(candidate)[-1:] if get_origin(candidate) is Callable else ()
        for one in (candidate, *made):
            if inspect.isclass(one) and issubclass(one, Predictor if made else Scheduler):
                return one
    return None


def _check_inner(
    document: Document, path: Path_, outer: str, wanted: type, value: Any, base: Path
) -> tuple[PolicySpec | None, list[Problem]]:
    from hetsim.policy import PlannedScheduler, Predictor, Scheduler

    spec, problems = _check(document, path, "predictor" if wanted is Predictor else "scheduler", value=value, base=base)
    if spec is None or wanted is Scheduler:
        return spec, problems
    item = registry.policy(spec.kind, spec.name)
    if inspect.isclass(item) and issubclass(item, wanted):
        try:
            if wanted is Predictor:
                spec.make()  # what its parameters must be to each other
        except ValueError as error:
            return None, [document.problem(path, f"{spec.name}: {error}")]
        return spec, problems
    what = "a static policy, one that makes a plan" if wanted is PlannedScheduler else f"a {wanted.__name__}"
    named = path if isinstance(value, str) else (*path, "name")
    return None, [*problems, document.problem(named, f'{outer} needs {what}; got "{spec.name}"')]


def _parameter_problems(
    error: ValidationError, document: Document, path: Path_, model: type[BaseModel], kind: str, name: str,
    signature: Any,
) -> list[Problem]:  # fmt: skip
    problems = translate(error, document, model, path)
    unknown = {".".join(map(str, (*path, *d["loc"]))) for d in error.errors() if d["type"] == "extra_forbidden"}
    said = []
    for problem in problems:
        if problem.key in unknown:
            key = problem.key.rpartition(".")[2]
            listed = f"; its parameters are {', '.join(signature)}" if signature else "; it has no parameters"
            message = f'{kind} "{name}" has no parameter "{key}"{suggestion(key, signature) or listed}'
            problem = Problem(message, problem.key, problem.file, line=problem.line, column=problem.column)
        said.append(problem)
    return said


def policy_parameters(kind: str, item: Any) -> dict[str, inspect.Parameter]:
    """Return a policy's parameters; for an order function, the list scheduler's."""
    if kind == "scheduler" and not inspect.isclass(item):
        parameters = registry.parameters(_list_scheduler())
        parameters.pop("order", None)
        return parameters
    return registry.parameters(item)


def parameter_model(title: str, signature: dict[str, inspect.Parameter]) -> type[BaseModel]:
    """Return a pydantic model (cached) of the parameters in a signature."""
    try:
        return _kept_model(title, tuple(signature.items()))
    except TypeError:  # a default or an annotation that has no hash
        return _model(title, tuple(signature.items()))


def _model(title: str, signature: tuple[tuple[str, inspect.Parameter], ...]) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for key, parameter in signature:
        annotation = (
            Any if parameter.annotation is inspect.Parameter.empty or key == "placement" else parameter.annotation
        )
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[key] = (annotation, default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False, protected_namespaces=())
    return create_model(title, __config__=config, **fields)


_kept_model = lru_cache(256)(_model)


def _list_scheduler() -> Callable[..., Any]:
    from hetsim.policy.lists import ListScheduler

    return ListScheduler
