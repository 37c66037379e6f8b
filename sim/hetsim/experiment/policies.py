"""Policies given to a study: `sjf`, `sjf + predicted_wait`, a mapping or a class."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hetsim import registry
from hetsim.errors import ScenarioError, UnknownName, UsageError, several
from hetsim.scenario.schema.policy import long_form

# A text, a mapping as under `policy:` in a scenario, or a scheduler class or order key.
PolicyLike = str | Mapping[str, Any] | Callable[..., Any]

_BESIDE = registry.POLICY_PARTS[1:]


def named_policy(policy: PolicyLike) -> tuple[str, Any]:
    """Return a policy's label, and its value for `policy:` in a scenario.

    In a text, the first name is the scheduler; the names after `+` are placement, admission, batching or routing
    policies.  A text that begins with `{` is a YAML mapping.  A class or function is registered under its own name;
    UsageError if another policy has that name.
    """
    if isinstance(policy, str):
        return _from_text(policy)
    if isinstance(policy, Mapping):
        return _label(policy), dict(policy)
    if callable(policy):
        name = getattr(policy, "__name__", type(policy).__name__)
        registered = registry.policies("scheduler").get(name)
        if registered is not None and registered is not policy and not _redefined(registered, policy):
            raise UsageError(
                f'the name "{name}" is taken by another policy; register yours under another name: '
                f'hetsim.register("my_{name}", {name})'
            )
        registry.register(name, policy)
        return name, name
    raise UsageError(f"a policy must be a name, a mapping, a class or an order key; got {policy!r}")


def named_policies(policies: Iterable[PolicyLike] | Mapping[str, PolicyLike]) -> dict[str, Any]:
    """Map labels to values for `policy:`; "all" is every scheduler."""
    if isinstance(policies, str):
        policies = [policies]
    if isinstance(policies, Mapping):
        return {str(label): named_policy(policy)[1] for label, policy in policies.items()}
    values: dict[str, Any] = {}
    listed = several(policies, "policies", "a list of policies, or a mapping of labels to them")
    for policy in (name for one in listed for name in (registry.policies("scheduler") if one == "all" else [one])):
        label, value = named_policy(policy)
        if label in values:
            raise UsageError(f'policy "{label}" is given twice')
        values[label] = value
    return values


def written(label: str, value: Any = None) -> str | None:
    """Return the `--policy` argument for a label (and value); None if there is none."""
    try:
        meant = named_policy(label)[1]
    except (UsageError, UnknownName):
        meant = None
    if meant is not None and (value is None or long_form(meant) == long_form(value)):
        return label
    if value is None and (value := _from_label(label)) is None:
        return None
    import yaml

    return str(yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)).strip()


def _from_label(label: str) -> dict[str, Any] | None:
    import yaml

    value: dict[str, Any] = {}
    for part in label.split(" + "):
        name, _, inside = part.removesuffix(")").partition(" (")
        kind = next((kind for kind in ("scheduler", *_BESIDE) if name in registry.policies(kind)), None)
        try:
            more = yaml.safe_load(f"{{{inside}}}")
        except yaml.YAMLError:
            return None
        if kind is None or kind in value:
            return None
        value[kind] = {"name": name, **more}
    return value if _label(value) == label else None


def _redefined(known: Any, policy: Any) -> bool:
    places = [(one.__module__, one.__qualname__) for one in (known, policy) if not isinstance(one, str)]
    return len(places) == 2 and places[0] == places[1]


def _from_text(text: str) -> tuple[str, Any]:
    if text.lstrip().startswith("{"):
        from hetsim.scenario.file.document import parse_value

        try:
            mapping = parse_value(text)
        except ScenarioError as error:
            raise UsageError(f'the policy "{text}" {error.problems[0].message}') from None
        return _label(mapping), mapping
    names = [part.strip() for part in text.split("+")]
    if names[0] in registry.policies("batching"):  # of services the batching is what matters
        value: dict[str, Any] = {}
        others = names
    else:
        scheduler, *others = names
        if scheduler not in registry.policies("scheduler"):
            raise UnknownName("scheduler", scheduler, registry.policies("scheduler"), " (hetsim list policies)")
        value = {"scheduler": {"name": scheduler}}
    for name in others:
        kinds = [kind for kind in _BESIDE if name in registry.policies(kind)]
        if not kinds:
            everything = [other for kind in _BESIDE for other in registry.policies(kind)]
            raise UnknownName("placement, admission or batching policy", name, everything, " (hetsim list policies)")
        if kinds[0] in value or (kinds[0] == "placement" and "placement" in value.get("scheduler", {})):
            raise UsageError(f'the policy "{text}" names two {kinds[0]} policies; name one')
        if kinds[0] == "placement":
            value.setdefault("scheduler", {})["placement"] = name
        else:
            value[kinds[0]] = {"name": name}
    return " + ".join(names), value


def _label(value: Any) -> str:
    parts = long_form(dict(value) if isinstance(value, Mapping) else value)
    if not isinstance(parts, dict):
        return str(value)
    texts = []
    for part in ("scheduler", *_BESIDE):
        given = parts.get(part)
        if isinstance(given, Mapping):
            texts.append(_short(given))
    return " + ".join(texts)


def _short(given: Any) -> str:
    if not isinstance(given, Mapping) or "name" not in given:
        return str(given)
    inside = ", ".join(f"{key}: {_short(inner)}" for key, inner in given.items() if key != "name")
    return f"{given['name']}" + (f" ({inside})" if inside else "")
