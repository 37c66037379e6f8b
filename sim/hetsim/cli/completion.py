"""Shell completion: commands, scenarios, policies and metrics.

A function is asked by click with what stands before the cursor (`incomplete`); it never fails, since a shell has no
place for a message.  Cost: that of loading the registry; nothing is loaded unless a shell asks.
"""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def scenarios(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete commands and shipped scenarios; a path completes to files."""
    from hetsim.scenario.file.shipped import shipped

    within = getattr(context.command, "commands", {}).items()
    items = [CompletionItem(name, help=one.short_help) for name, one in within if name.startswith(incomplete)]
    items += [CompletionItem(one.name, help=one.description) for one in shipped() if one.name.startswith(incomplete)]
    return items if items and "/" not in incomplete else [CompletionItem(incomplete, type="file")]


def policies(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Policies by name; after `+`, what can be combined with those before it."""
    from hetsim import registry

    before, plus, begun = incomplete.rpartition("+")
    kinds = [kind for kind in registry.POLICY_PARTS if kind != "scheduler"] if plus else registry.POLICY_PARTS
    names = sorted({name for kind in kinds for name in registry.policies(kind) if name.startswith(begun)})
    return [CompletionItem(before + plus + name) for name in names]


def metrics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Metrics by name, with their units."""
    from hetsim.results.formatting import unit_of
    from hetsim.results.one_run.metrics import metrics as known

    return [CompletionItem(name, help=unit_of(name)) for name in known() if name.startswith(incomplete)]


COMPLETERS: dict[str, Completer] = {
    "scenario": scenarios, "scenarios": scenarios,
    "policy": policies, "policies": policies, "baseline": policies, "baselines": policies,
    "metric": metrics, "metrics": metrics, "best": metrics, "targets": metrics,
}  # fmt: skip
"""By name of a parameter, of every command."""


def completed(command: click.Command) -> click.Command:
    """Make a command and its own commands complete what `COMPLETERS` knows."""
    for parameter in command.params:
        if parameter._custom_shell_complete is None and parameter.name in COMPLETERS:
            parameter._custom_shell_complete = COMPLETERS[parameter.name]
    for below in getattr(command, "commands", {}).values():
        completed(below)
    return command
