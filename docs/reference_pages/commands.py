"""The page of commands, as their `--help` has them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
from reference_pages.markdown import code, generated, prose, row, table

from hetsim import registry
from hetsim.cli.program import VERBS


def commands_page() -> Iterator[str]:
    """Every verb with its options, as `--help` has them."""
    yield "# Commands"
    yield from generated("the help texts of the commands")
    yield "Data go to stdout, progress and notes to stderr. Exit codes: 0 done, 1 the run failed, 2 wrong usage,"
    yield "3 invalid scenario, 4 nothing meets the target (`hetsim size`, `hetsim plan partition`), 130 interrupted."
    yield "`--out` is a folder in every command. Verdicts have color on a terminal; `NO_COLOR` is respected."
    for verb, reference in VERBS.items():
        yield from _command(f"hetsim {verb}", registry.load_object(reference), 2)


def _command(name: str, command: click.Command, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    yield f"\n{'#' * level} {name}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"`{name} {usage}`\n"
    help_text = inspect.cleandoc((command.help or "").replace("\b\n", ""))
    yield from (prose(text) + "\n" for text in help_text.split("\n\n"))
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        yield from table("option", "meaning")
        for one in options:
            value = "" if one.is_flag or one.count else f" {one.make_metavar(context)}"
            names = ", ".join([*one.opts, *one.secondary_opts])
            yield row(code(names + value), prose(one.help or ""))
    for inner, found in sorted(getattr(command, "commands", {}).items()):
        yield from _command(f"{name} {inner}", found, level + 1)
