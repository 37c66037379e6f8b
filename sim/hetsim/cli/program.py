"""The command group: its verbs, and how whatever goes wrong ends: in a sentence and an exit code.

0 done, 1 the run failed, 2 wrong usage, 3 invalid scenario, 4 nothing meets the target (size), 130 interrupted,
143 terminated.
"""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from sim.cli.completion import completed
from sim.errors import HetsimError, InvariantError, RunError, ScenarioError, UnknownName

VERBS = {
    "run": "sim.cli.run:run",
    "compare": "sim.cli.compare:compare",
    "plan": "sim.cli.plan:plan",
    "partition": "sim.cli.partition:partition",
    "plan-training": "sim.cli.plan_training:plan_training",
    "sweep": "sim.cli.sweep:sweep",
    "tune": "sim.cli.tune:tune",
    "merge": "sim.cli.merge:merge",
    "cluster": "sim.cli.cluster:cluster",
    "explain": "sim.cli.explain:explain",
    "diff": "sim.cli.diff:diff",
    "size": "sim.cli.size:size",
    "theory": "sim.cli.theory:theory",
    "gallery": "sim.cli.gallery:gallery",
    "report": "sim.cli.report:report",
    "validate": "sim.cli.validate:validate",
    "calibrate": "sim.cli.calibrate:calibrate",
    "train": "sim.cli.train:train",
    "list": "sim.cli.listing:list_",
    "schema": "sim.cli.schema:schema",
    "trace": "sim.cli.trace:trace",
    "twin": "sim.cli.twin:twin",
}
"""Name of each verb and where its command is; loaded when asked for."""

VERBOSE = "hetsim.verbose"
"""Key of the context's `meta` under which commands leave their `-v`."""

INTERRUPTED, TERMINATED = 130, 143

MAX_PROBLEMS = 500
"""Problems listed one by one; the rest is counted."""


class Verbs(click.Group):
    """A group that suggests the verb that was meant."""

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(context, name) is None:
            near = difflib.get_close_matches(name, self.list_commands(context), n=1, cutoff=0.5)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise click.UsageError(f'no command "{name}"{hint}', context)
        return super().resolve_command(context, args)


class Program(Verbs):
    """All of hetsim."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        module, _, attribute = VERBS[name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return completed(command)

    def invoke(self, context: click.Context) -> Any:
        if os.environ.get("NO_COLOR"):
            context.color = False
        with termination_heard():
            code = guarded(context, lambda: super(Program, self).invoke(context))
        if code:
            context.exit(code)
        return None


class Terminated(KeyboardInterrupt):
    """A signal asked this process to end (kill, timeout, scancel): as an interrupt, with another word and code."""


@contextmanager
def termination_heard() -> Iterator[None]:
    """SIGTERM raises `Terminated` meanwhile, so that what is under way is tidied up and what can be resumed says so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminated(*_: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def guarded(context: click.Context, action: Callable[[], Any]) -> int:
    """Do it; what goes wrong is told on stderr and becomes an exit code."""
    try:
        action()
        if sys.stdout is not None:  # closed by the process that started this one
            sys.stdout.flush()  # here, where a reader that is gone can still be met quietly
        return 0
    except (click.exceptions.Exit, click.ClickException):
        raise
    except Terminated:
        click.echo("terminated", err=True)
        return TERMINATED
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader had enough (`hetsim list policies | head`).  What Python flushes at exit goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except HetsimError as error:
        tell(error)
        if context.meta.get(VERBOSE) and isinstance(error, RunError):
            traceback.print_exc()
        return error.exit_code
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}")
        return 1
    except MemoryError:
        fail("out of memory")
        return 1
    except Exception as error:
        fail(defect(error))
        if context.meta.get(VERBOSE):
            traceback.print_exc()
        else:
            click.echo("       Run again with -v for the traceback.", err=True)
        return 1


def tell(error: HetsimError) -> None:
    """An error of ours: problems of an input one a line, anything else as one sentence."""
    if isinstance(error, ScenarioError):
        number = len(error.problems)
        for problem in error.problems[:MAX_PROBLEMS]:
            click.echo(visible(str(problem)), err=True)
        if number > MAX_PROBLEMS:
            click.echo(f"... and {number - MAX_PROBLEMS:,} more.", err=True)
        click.echo(f"{number:,} problem{'s' if number != 1 else ''}, nothing was run.", err=True)
    elif isinstance(error, UnknownName):
        fail(str(error))
        click.echo("1 problem, nothing was run.", err=True)
    else:
        fail(str(error))
        if isinstance(error, InvariantError):
            click.echo("       This is a defect of hetsim; please report it with the scenario and the seed.", err=True)


def fail(message: str) -> None:
    text = "\n".join(visible(line) for line in message.split("\n"))
    click.echo(f"{click.style('error:', fg='red', bold=True)} {text}", err=True)


def visible(text: str) -> str:
    """The text with what a terminal would obey, or show in another order, written as Python writes it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def defect(error: Exception) -> str:
    """One line for an unexpected exception."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}sim{os.sep}" in frame.filename] or list(frames)
    where = f" at {os.path.basename(ours[-1].filename)}:{ours[-1].lineno}" if ours else ""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}{where}: {said or 'no message'}. This is a defect of hetsim; please report it."


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 the run failed, 2 wrong usage, 3 invalid scenario, "
    "4 nothing meets the target (size, partition), 130 interrupted, 143 terminated.",
)
@click.version_option(package_name=None, version=importlib.import_module("sim").__version__, prog_name="hetsim")
def hetsim() -> None:
    """Which scheduling policy should this CPU+GPU cluster use under this load, and what will it do?

    Start with `hetsim list scenarios` and `hetsim run NAME`.
    """
