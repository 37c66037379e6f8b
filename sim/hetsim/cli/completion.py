"""Shell completion: commands, scenarios, policies, metrics, and keys of --set.

click calls a function with the text before the cursor (`incomplete`); it never fails, since a shell cannot show a
message.  Keys come from the JSON Schema of the scenario format; names within keys come from the scenario.  Cost: that
of loading the registry, or the schema (0.3 s); nothing is loaded unless a shell requests completion.
"""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from hetsim import registry

Schema = dict[str, Any]
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def scenarios(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete commands and shipped scenarios; complete a path with files."""
    from hetsim.scenario.file.shipped import shipped

    within = getattr(context.command, "commands", {}).items()
    items = [CompletionItem(name, help=one.short_help) for name, one in within if name.startswith(incomplete)]
    items += [CompletionItem(one.name, help=one.description) for one in shipped() if one.name.startswith(incomplete)]
    return items if items and "/" not in incomplete else [CompletionItem(incomplete, type="file")]


def policies(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete policies by name; after `sjf+`, policies of other parts (admission)."""
    before, plus, begun = incomplete.rpartition("+")
    kinds = [kind for kind in registry.POLICY_PARTS if kind != "scheduler"] if plus else registry.POLICY_PARTS
    names = sorted({name for kind in kinds for name in registry.policies(kind) if name.startswith(begun)})
    return [CompletionItem(before + plus + name) for name in names]


def metrics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from hetsim.results.formatting import unit_of
    from hetsim.results.one_run.metrics import metrics as known

    return [CompletionItem(name, help=unit_of(name)) for name in known() if name.startswith(incomplete)]


def keys(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a path of keys by one level; propose nothing after `=`."""
    from hetsim.scenario.schema.whole import json_schema

    if "=" in incomplete:
        return []
    *above, begun = incomplete.split(".")
    schema = json_schema()
    options: list[Schema] = [schema]
    # While an option lacks its value, click leaves the arguments unparsed.
    document: Any = _document(str(context.params.get("scenario") or next(iter(context.args), "")))
    for key in above:
        # Below a key: the schema of a property, or of an entry of a list.
        below = (
            one.get("properties", {}).get(key) or one.get("items") or one.get("additionalProperties")
            for one in _plain(options, schema)
        )
        options = [one for one in below if isinstance(one, dict)]
        document = _entry(document, key)
    keys_here = dict.fromkeys(key for one in _plain(options, schema) for key in one.get("properties", ()))
    names = _names(document) if any("items" in one for one in _plain(options, schema)) else []
    prefix = "".join(f"{key}." for key in above)
    return [CompletionItem(prefix + key, help=_help(options, schema, key)) for key in [*names, *keys_here]
            if key.startswith(begun)]  # fmt: skip


# completers by the name of a parameter, for every command
COMPLETERS: dict[str, Completer] = {
    "scenario": scenarios, "scenarios": scenarios,
    "policy": policies, "policies": policies, "baseline": policies, "baselines": policies,
    "metric": metrics, "metrics": metrics, "best": metrics, "targets": metrics,
    "overrides": keys, "over": keys, "changes": keys,
}  # fmt: skip


def completed(command: click.Command) -> click.Command:
    """Add the completers of `COMPLETERS` to a command and its subcommands."""
    for parameter in command.params:
        if parameter._custom_shell_complete is None and parameter.name in COMPLETERS:
            parameter._custom_shell_complete = COMPLETERS[parameter.name]
    for below in getattr(command, "commands", {}).values():
        completed(below)
    return command


def _document(name: str) -> Any:
    import yaml

    from hetsim.scenario.file.shipped import find

    for place in (lambda: name, lambda: find(name)):
        try:
            with open(place(), encoding="utf-8") as file:
                return yaml.safe_load(file)
        except Exception:  # any defect of a half-written file: the keys are completed without its names
            continue
    return None


def _plain(options: list[Schema], schema: Schema) -> list[Schema]:
    todo = list(options)
    for one in todo:  # it grows
        referred = [schema["$defs"][one["$ref"].rpartition("/")[2]]] if "$ref" in one else []
        todo += referred or [*one.get("anyOf", ()), *one.get("oneOf", ())]
    return [one for one in todo if "properties" in one or "items" in one or "additionalProperties" in one]


def _entry(document: Any, key: str) -> Any:
    if isinstance(document, list):
        return next((entry for entry in document if isinstance(entry, dict) and entry.get("name") == key), None)
    return document.get(key) if isinstance(document, dict) else None


def _names(document: Any) -> list[str]:
    entries = document if isinstance(document, list) else [document]
    return [str(entry["name"]) for entry in entries if isinstance(entry, dict) and "name" in entry]


def _help(options: list[Schema], schema: Schema, key: str) -> str:
    texts = (str(one.get("properties", {}).get(key, {}).get("description", "")) for one in _plain(options, schema))
    return next(filter(None, texts), "").partition(". ")[0].replace("\n", " ").rstrip(".")
