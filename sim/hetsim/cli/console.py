"""What goes where: data on stdout; notes, warnings and progress on stderr."""

from __future__ import annotations

import json
import sys
import warnings as python_warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.experiment.progress import TerminalBar


def lines(texts: Iterable[str]) -> None:
    """Data, on stdout."""
    click.echo("\n".join(texts))


def as_json(value: Any) -> None:
    """Data, as JSON on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def note(text: str, quiet: bool = False) -> None:
    """For people, on stderr."""
    if not quiet:
        click.echo(text, err=True)


def check_replaceable(target: Path, force: bool) -> None:
    """Refuse to replace a file without --force, before anything is computed for it."""
    if target.exists() and not force:
        raise click.UsageError(f"{target} exists; --force replaces it")


def check_written(option: str, target: Path | None, force: bool) -> None:
    """The same of the file of an option, if it is given, and that its folder is there."""
    from sim.errors import UsageError

    if target is None:
        return
    check_replaceable(target, force)
    if not target.parent.is_dir():
        raise UsageError(f'{option} {target}: there is no folder "{target.parent}"')


PICTURES = (".png", ".pdf", ".svg")


def check_picture(target: Path | None) -> None:
    """Refuse a file of --out that cannot become a picture, before anything is computed for it."""
    from sim.errors import UsageError

    if target is not None and target.suffix.lower() not in PICTURES:
        raise UsageError(f"--out {target}: a picture is written as .png, .pdf or .svg")
    if target is not None and not target.parent.is_dir():
        raise UsageError(f'--out {target}: there is no folder "{target.parent}"')


def picture(target: Path | None, draw: Callable[[], Figure], quiet: bool = False) -> None:
    """Write a figure, whole or not at all, and say where; nothing without a target."""
    from sim.model.files import write_whole

    if target is not None:
        write_whole(target, lambda file: draw().savefig(file))
        note(f"picture: {target}", quiet)


def warnings(texts: Iterable[str], quiet: bool = False) -> None:
    for text in texts:
        note(f"{click.style('warning:', fg='yellow')} {text}", quiet)


@contextmanager
def own_warnings(quiet: bool) -> Iterator[None]:
    """Pictures that fail to be drawn in it, and files that were damaged, are told as warnings of ours."""
    from sim.errors import DamageWarning, PictureWarning

    with python_warnings.catch_warnings():
        show = python_warnings.showwarning

        def told(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, DamageWarning | PictureWarning):
                warnings([str(message)], quiet)
            else:
                show(message, category, *where)

        python_warnings.showwarning = told  # type: ignore[assignment]
        yield


@contextmanager
def progress(quiet: bool) -> Iterator[TerminalBar | None]:
    """A progress bar if stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from sim.experiment.progress import TerminalBar

    bar = TerminalBar()
    try:
        yield bar
    finally:
        bar.close()


@contextmanager
def shard_reports(to_json: bool) -> Iterator[None]:
    """Of a study that was asked for a part of its runs, print what it did, and end the command."""
    from sim.experiment.shard import ShardOver

    try:
        yield
    except ShardOver as over:
        if to_json:
            as_json(over.report.to_json())
        else:
            lines([over.report.sentence])
        click.get_current_context().exit(0)


@contextmanager
def making(
    directory: Path | None, otherwise: Path, cache: Path | None, to_json: bool, quiet: bool
) -> Iterator[TerminalBar | None]:
    """What the verbs do that make runs and show their tables: those of `searching`, and the tables of a failed run."""
    kept = None if cache is None else _goes_on(cache)
    with keeping_partial(directory, otherwise, quiet), searching(kept, to_json, quiet) as bar:
        yield bar


@contextmanager
def searching(kept: str | None, to_json: bool, quiet: bool) -> Iterator[TerminalBar | None]:
    """What every verb that makes runs does: progress, warnings, shards; `kept` is said where it ends before its time.

    By an interrupt, a full disk, or workers that are gone.
    """
    try:
        with shard_reports(to_json), own_warnings(quiet), progress(quiet) as bar:
            yield bar
    except (KeyboardInterrupt, OSError, RunError) as error:
        if kept is not None and getattr(error, "result", None) is None:  # not a run that fails again
            note(kept, quiet)
        raise


def of_cache(cache: Path | None) -> str:
    """What is said where a search ends before its time."""
    return "nothing was kept; with --cache DIR it can be resumed" if cache is None else _goes_on(cache)


def _goes_on(cache: Path) -> str:
    return f"the runs that ended are in {cache}; the same command goes on from there"


@contextmanager
def keeping_partial(directory: Path | None, otherwise: Path, quiet: bool) -> Iterator[None]:
    """Of a run that fails, keep the tables up to then and say where they are.

    They lie in `partial` of the directory asked for, of `otherwise` if none was.
    """
    try:
        yield
    except RunError as error:
        if error.result is None:
            raise
        from sim.experiment.directory import save_partial

        when = f"The tables up to t = {error.time:g} s"
        try:
            place = save_partial(error.result, otherwise if directory is None else directory)
            remark = f"{when} are in {place}."
        except Exception as problem:  # the error of the run matters more than that of saving it
            remark = f"{when} could not be saved: {problem}"
        number = error.result.replication
        of = f"In replication {number}. " if number else ""
        error.args = (f"{error.args[0]}\n       {of}{remark}", *error.args[1:])
        raise
