"""The command group: its verbs, their errors and exit codes.

Exit codes: 0 done, 1 the run failed, 2 wrong usage, 3 invalid scenario, 4 nothing meets the target, deadline or memory
limit (`hetsim size`, `hetsim plan`), 130 interrupted, 143 terminated.
"""

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

import hetsim as package
from hetsim.cli import console
from hetsim.cli.completion import completed
from hetsim.errors import HetsimError, InvariantError, RunError, ScenarioError, UnknownName, visible, visible_lines

# Name of each verb and import path of its command, in the order of the help; loaded at first use
VERBS = {
    "new": "hetsim.cli.listing:new",
    "list": "hetsim.cli.listing:list_",
    "run": "hetsim.cli.run:run",
    "validate": "hetsim.cli.validate:validate",
    "explain": "hetsim.cli.explain:explain",
    "diff": "hetsim.cli.compare:diff",
    "theory": "hetsim.queueing.command:theory",
    "compare": "hetsim.cli.compare:compare",
    "sweep": "hetsim.cli.sweep:sweep",
    "merge": "hetsim.cli.sweep:merge",
    "tune": "hetsim.search.command:tune",
    "size": "hetsim.search.command:size",
    "plan": "hetsim.planning.command:plan",
    "twin": "hetsim.twin.command:twin",
    "trace": "hetsim.traces.command:trace",
    "calibrate": "hetsim.calibrate.command:calibrate",
    "train": "hetsim.cli.train:train",
    "schema": "hetsim.cli.validate:schema",
    "report": "hetsim.page.command:report",
    "gallery": "hetsim.gallery.command:gallery",
}

# headings of the help, by the first verb below each
HEADINGS = {"new": "Start", "explain": "Examine", "compare": "Decide", "trace": "Bring your own", "report": "Publish"}

# Mistaken names of commands, and the intended command, for suggestions
WITHIN = {
    "partition": "plan partition", "plan-training": "plan training", "cluster": "trace convert",
    "convert": "trace convert", "inspect": "trace inspect", "map": "trace map", "nccl": "calibrate nccl",
}  # fmt: skip

# mistaken names of output options, for suggestions
OLD_OPTIONS = ("--out", "--save", "--trace-out", "--html", "--plot", "--output", "-o")

VERBOSE = "hetsim.verbose"  # key of the context's `meta` for the option `-v`

INTERRUPTED, TERMINATED = 130, 143

MAX_PROBLEMS = 500  # problems that are listed; further ones are counted


class Verbs(click.Group):
    """A group of commands that suggests a similar name for an unknown command."""

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(context, name) is None:
            others = WITHIN if context.parent is None else {}
            near = difflib.get_close_matches(name, [*self.list_commands(context), *others], n=1, cutoff=0.5)
            hint = f'; did you mean "{context.command_path} {others.get(near[0], near[0])}"?' if near else ""
            raise click.UsageError(f'there is no command "{name}"{hint}', context)
        return super().resolve_command(context, args)


class Program(Verbs):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        module, _, attribute = VERBS[name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return completed(command)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}
        column = max(map(len, VERBS))
        for name in VERBS:
            heading = HEADINGS.get(name, next(reversed(rows), ""))
            command = self.get_command(context, name)
            assert command is not None
            text = command.get_short_help_str(formatter.width - column - 6)
            rows.setdefault(heading, []).append((name.ljust(column), text))
        for heading, under in rows.items():
            with formatter.section(heading):
                formatter.write_dl(under)

    def invoke(self, context: click.Context) -> Any:
        if os.environ.get("NO_COLOR"):
            context.color = False
        with termination_heard():
            code = guarded(context, lambda: super(Program, self).invoke(context))
        if code:
            context.exit(code)
        return None


class Terminated(KeyboardInterrupt):
    """Raised when a signal terminates this process (kill, timeout, scancel)."""


@contextmanager
def termination_heard() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, so that work in progress is cleaned up."""
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
    """Run a command; print errors on stderr and return the exit code."""
    try:
        action()
        if sys.stdout is not None:  # closed by the process that started this one
            sys.stdout.flush()  # here, where a reader that is gone can still be met quietly
        return 0
    except click.NoSuchOption as error:
        there = _writing(error.ctx) if error.option_name in OLD_OPTIONS else []
        if there:
            raise click.UsageError(f"no option {error.option_name}; use {', '.join(there)}", error.ctx) from None
        raise
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


def _writing(context: click.Context | None) -> list[str]:
    options = context.command.params if context is not None else ()
    writing = [one for one in options if hasattr(one.type, "suffixes") or "--out" in one.opts]
    return [f"{one.opts[0]} {one.metavar}" for one in writing]


def tell(error: HetsimError) -> None:
    """Print a hetsim error: problems of an input by line, others as a sentence."""
    if isinstance(error, ScenarioError):
        number = len(error.problems)
        for problem in error.problems[:MAX_PROBLEMS]:
            click.echo(visible(str(problem)), err=True)
        if number > MAX_PROBLEMS:
            click.echo(f"... and {number - MAX_PROBLEMS:,} more.", err=True)
        count = console.verdict(f"{number:,} problem{'s' if number != 1 else ''}", "bad")
        click.echo(f"{count}, nothing was run.", err=True)
    elif isinstance(error, UnknownName):
        fail(str(error))
        click.echo("1 problem, nothing was run.", err=True)
    else:
        fail(str(error))
        if isinstance(error, InvariantError):
            click.echo("       This is a defect of hetsim; please report it with the scenario and the seed.", err=True)


def fail(message: str) -> None:
    click.echo(f"{console.verdict('error:', 'bad')} {visible_lines(message)}", err=True)


def defect(error: Exception) -> str:
    """Return one line for an unexpected exception, which is a defect of hetsim."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}hetsim{os.sep}" in frame.filename] or list(frames)
    where = f" at {os.path.basename(ours[-1].filename)}:{ours[-1].lineno}" if ours else ""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}{where}: {said or 'no message'}. This is a defect of hetsim; please report it."


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 the run failed, 2 wrong usage, 3 invalid scenario, "
    "4 nothing meets the target (size, plan partition), 130 interrupted, 143 terminated.",
)
@click.version_option(f"{package.__version__} ({package.__build__})", prog_name="hetsim")
def hetsim() -> None:
    """Simulate a CPU+GPU cluster under a load, and compare scheduling policies.

    Start with `hetsim new`, or with `hetsim list scenarios` and `hetsim run NAME`.
    """
