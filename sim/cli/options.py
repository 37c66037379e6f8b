"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sim.cli.program import VERBOSE

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _remember(context: click.Context, _: click.Parameter, value: bool) -> bool:
    context.meta[VERBOSE] = value
    return value


def together(*decorators: Decorator) -> Decorator:
    """Several decorators as one, the first outermost."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


SCENARIO = click.argument("scenario", metavar="FILE|NAME")

SET = click.option(
    "--set", "overrides", multiple=True, metavar="KEY.PATH=VALUE",
    help="Change a value of the scenario (repeatable); the value is written as in the file.",
)  # fmt: skip

BY = click.option(
    "--by", multiple=True, metavar="class|gpus|user",
    help="Also tell what became of each class, number of GPUs asked for, or user (repeatable).",
)  # fmt: skip

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")

QUIET = click.option("-q", "--quiet", is_flag=True, help="Nothing on stderr but errors.")

VERBOSITY = click.option(
    "-v", "--verbose", is_flag=True, callback=_remember, help="Say more on stderr; show tracebacks."
)


class Whole(click.IntRange):
    """A whole number within bounds."""

    name = "whole number"


class Share(click.ParamType):
    """A share above 0 and below 1, written 5% or 0.05."""

    name = "share"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        from sim.model.units import parse_fraction

        try:
            found = parse_fraction(value if isinstance(value, float) or value.strip().endswith("%") else float(value))
        except ValueError:
            found = 0.0
        if not 0 < found < 1:
            self.fail(f"{value!r} is not a share above 0 and below 1, such as 5% or 0.05", parameter, context)
        return found


WORKING = together(
    click.option("--dask", metavar="ADDRESS", help="Run on a Dask cluster instead: tcp://HOST:8786."),
    click.option("--cache", type=click.Path(path_type=Path), metavar="DIR",
                 help="Keep finished runs there and look them up (a sweep without: in DIR/runs of --out)."),
    click.option("--shard", metavar="I/N", help="Only make the I-th of N parts of the runs, into a folder that all "
                 "parts share; the same command without it makes the tables."),
)  # fmt: skip
"""Where runs are made and kept."""

FRESH = click.option("--fresh", is_flag=True, help="Make every run again, also what --cache has.")

RUNNING = together(
    SET,
    click.option("--seed", type=Whole(min=0), help="Instead of the scenario's seed."),
    click.option("--replications", type=Whole(min=1, max=100_000), metavar="N",
                 help="Independent runs; adds intervals."),
    click.option("--workers", type=Whole(min=1, max=1000), default=1, show_default=True, metavar="N",
                 help="Processes for replications; the results do not depend on it."),
    WORKING,
    FRESH,
    click.option("--check", is_flag=True, help="Verify the simulator's invariants after every round (slower)."),
    JSON,
    QUIET,
    VERBOSITY,
)  # fmt: skip
"""Of the verbs that run something."""
