"""Options of a study, each declared once for commands and functions.

A `StudyOptions` object carries the options from a command or function to the code that runs the study.  The keyword
classes list, for type checkers, the options that a function accepts as `**options`; `with_options` adds these to its
signature and docstring, and `hetsim.cli.options` makes the options of a command.
"""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import wraps
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

from hetsim.errors import UsageError, suggestion
from hetsim.model.files import watch_opens

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from hetsim.experiment.progress import Progress
    from hetsim.policy.external import ExternalProgram
    from hetsim.scenario.scenario import Overrides

Function = TypeVar("Function", bound=Callable[..., Any])


def _option(default: Any, **about: Any) -> Any:
    """Declare an option.

    about: `flag` and `metavar` of the command's option (without `flag` only functions have it); `help`: its
    description; `python`: another description for functions; `low`, `high`: bounds of its values.
    """
    return field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Options of a study; UsageError if values are out of bounds or conflict."""

    overrides: Overrides = _option(
        (), flag="--set", metavar="KEY.PATH=VALUE",
        help="Change a value of the scenario (repeatable); the value is written as in the file.",
        python='values of the scenario to change, `{"cluster.nodes.0.count": 4}` or `["cluster.nodes.0.count=4"]`; '
        "applied after policy.",
    )  # fmt: skip
    seed: int | None = _option(None, flag="--seed", low=0, help="Replaces the scenario's seed.")
    replications: int | Mapping[str, Any] | None = _option(
        None, flag="--replications", metavar="N", low=1, high=100_000, help="Number of runs; adds intervals.",
        python="independent runs, in place of the scenario's: a number, or {precision, metric, max, confidence}, with "
        "which as many runs as the precision needs are made, at least ten.",
    )  # fmt: skip
    workers: int | None = _option(
        1, flag="--workers", metavar="N", low=1, high=1000,
        help="Number of processes; results do not depend on it.  [default: one per core, at most one per run]",
        python="number of processes, None for one per core; results do not depend on it.",
    )  # fmt: skip
    dask: str | None = _option(
        None, flag="--dask", metavar="ADDRESS", help="Run on a Dask cluster instead: tcp://HOST:8786."
    )
    executor: Executor | None = _option(
        None, python="a `concurrent.futures.Executor` that runs `workers` jobs at a time, in place of processes."
    )
    cache: str | Path | None = _option(
        None, flag="--cache", metavar="DIR", help="Store and reuse finished runs in DIR.",
        python="a folder for finished runs (in `replicate` and `compare` all but the first, which is kept completely); "
        "stored runs are not run again, unless `fresh`.",
    )  # fmt: skip
    shard: str | None = _option(
        None, flag="--shard", metavar="I/N", help="Run only the I-th of N parts of the runs, into a folder that all "
        "parts share; the same command without --shard makes the tables.",
        python='"2/8": run only that part of the runs, into the cache, and raise ShardOver with a report.',
    )  # fmt: skip
    fresh: bool = _option(
        False, flag="--fresh", help="Repeat every run, also those in --cache.",
        python="repeat every run, also those in the cache.",
    )  # fmt: skip
    trust: bool = _option(
        False, flag="--trust", help="Also reuse finished runs whose inputs are not all known (code that opens files or "
        "reads the environment).",
    )  # fmt: skip
    audit: bool = _option(
        False, flag="--audit", help="Watch the files that runs open: files that the scenario does not name are "
        "reported, and such runs have unknown inputs.",
    )  # fmt: skip
    external: str | Sequence[str] | None = _option(
        None, flag="--external", metavar="COMMAND",
        help="Command of the external scheduler, for policies named external.",
        python="the command of the external scheduler, a text or its parts, for policies named external.",
    )  # fmt: skip
    exchange: str | Path | None = _option(
        None, flag="--exchange", metavar="DIR", help="Store messages to and from --external in DIR, a file per run; "
        "without --external, replay them.",
        python="a folder for the messages to and from `external`, one file per run; without `external`, replay them.",
    )  # fmt: skip
    check: bool = _option(False, flag="--check", help="Verify the simulator's invariants after every round (slower).")
    progress: Progress | bool | None = _option(
        None, python="called with the share done, 0 to 1, five times a second from another thread; True shows a bar, "
        "on a terminal or in a notebook.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if "low" in one.metadata and value is not None and not isinstance(value, Mapping):
                low, high = one.metadata["low"], one.metadata.get("high", math.inf)
                if isinstance(value, bool) or not isinstance(value, Integral) or not low <= value <= high:
                    bounds = f"from {low} to {high:,}" if high < math.inf else f"of at least {low}"
                    raise UsageError(f"{one.name} must be a whole number {bounds}; got {value!r}")
        if self.dask is not None and (self.executor is not None or self.workers not in (None, 1)):
            raise UsageError("with dask, workers and executor must be left out: the Dask cluster has its own workers")
        if self.cache is not None and self.exchange is not None:
            raise UsageError("exchange and cache exclude each other: cached runs are not repeated and send nothing")
        if self.audit:
            watch_opens("audit")  # until the study ends

    @property
    def program(self) -> ExternalProgram | None:
        """The external scheduler that the options name, or None."""
        from hetsim.policy.external import ExternalProgram  # help is to be quick

        return ExternalProgram.given(self.external, self.exchange)


class RunKeywords(TypedDict, total=False):
    """Options of one run in this process."""

    overrides: Overrides
    seed: int | None
    external: str | Sequence[str] | None
    exchange: str | Path | None
    audit: bool
    check: bool
    progress: Progress | bool | None


class LocalKeywords(TypedDict, total=False):
    """Options of functions that run on this machine only."""

    overrides: Overrides
    workers: int | None
    progress: Progress | bool | None


class TrainingKeywords(LocalKeywords, total=False):
    """Options of training; `external` is the command of an external scheduler."""

    external: str | Sequence[str] | None


class SearchKeywords(LocalKeywords, total=False):
    """Options of studies that choose their own number of replications."""

    seed: int | None
    dask: str | None
    executor: Executor | None
    cache: str | Path | None
    shard: str | None
    fresh: bool
    trust: bool
    external: str | Sequence[str] | None
    exchange: str | Path | None
    audit: bool
    check: bool


class StudyKeywords(SearchKeywords, total=False):
    """All options of studies."""

    replications: int | Mapping[str, Any] | None


def declared_options(names: Iterable[str]) -> dict[str, Field[Any]]:
    """Return the fields of these options, in the order of their declaration."""
    wanted = set(names)
    return {one.name: one for one in fields(StudyOptions) if one.name in wanted}


def with_options(keywords: type) -> Callable[[Function], Function]:
    """Create a decorator that documents the `**options` of a function.

    It adds the options of `keywords` to the function's signature, and puts their descriptions into its docstring in
    place of the line `options: ...` (except options that the docstring describes itself).  A call with another keyword
    raises TypeError.
    """
    options = declared_options(keywords.__annotations__)

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[:-1]
        parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
                       for name, one in options.items()]  # fmt: skip
        names = [one.name for one in parameters]

        @wraps(function)
        def checked(*arguments: Any, **given: Any) -> Any:
            for name in given:
                if name not in names:
                    raise TypeError(f'{function.__name__}() has no parameter "{name}"{suggestion(name, names)}')
            return function(*arguments, **given)

        text = inspect.getdoc(function) or ""
        said = {name: one.metadata.get("python") or one.metadata["help"] for name, one in options.items()
                if not re.search(rf"(^|  |, ){name}(, \w+)*: ", text, re.MULTILINE)}  # fmt: skip
        lines = [textwrap.fill(f"{name}: {what[0].lower()}{what[1:]}", 116, subsequent_indent="    ")
                 for name, what in said.items()]  # fmt: skip
        checked.__doc__ = re.sub(r"^( *)options: .*", lambda m: textwrap.indent("\n".join(lines), m[1]), text,
                                 flags=re.MULTILINE)  # fmt: skip
        checked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return cast("Function", checked)

    return decorate
