"""The page of commands, from their `--help` texts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
from reference_pages.markdown import code, generated, prose, row, table

from hetsim import registry
from hetsim.cli.program import VERBS


def commands_page() -> Iterator[str]:
    """List every command with the options of its `--help` text."""
    yield "# Commands"
    yield from generated("the help texts of the commands")
    yield "Commands write data to stdout, and progress and notes to stderr. The exit codes are 0 (success), 1 (the"
    yield "run failed), 2 (wrong usage), 3 (invalid scenario), 4 (no configuration meets the target of `hetsim size`"
    yield "or `hetsim plan partition`) and 130 (interrupted). `--out` is a folder in every command. Verdicts have"
    yield "color on a terminal, unless the environment variable `NO_COLOR` is set."
    for verb, reference in VERBS.items():
        yield from _command(f"hetsim {verb}", registry.load_object(reference), 2)


def _command(name: str, command: click.Command, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    yield f"\n{'#' * level} {name}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"`{name} {usage}`\n"
    for text in inspect.cleandoc(command.help or "").split("\n\n"):
        lines = text.removeprefix("\b\n")  # with the mark of Click: lines that stay as they are
        yield prose(text) + "\n" if lines == text else f"```text\n{lines}\n```\n"
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        yield from table("option", "meaning")
        for one in options:
            value = "" if one.is_flag or one.count else f" {one.make_metavar(context)}"
            names = ", ".join([*one.opts, *one.secondary_opts])
            yield row(code(names + value), prose(one.help or ""))
    for inner, found in sorted(getattr(command, "commands", {}).items()):
        yield from _command(f"{name} {inner}", found, level + 1)
