"""Output: data go to stdout; notes, warnings and progress to stderr."""

import json
import re
import sys
import warnings as python_warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hetsim.errors import DamageWarning, PictureWarning, RunError, UnknownInputs, visible_lines
from hetsim.model.files import write_whole

if TYPE_CHECKING:
    from hetsim.experiment.progress import TerminalBar
    from hetsim.results.panels import Picture


# colors of verdicts; click omits them without a terminal, and with NO_COLOR
PALETTE: dict[str, dict[str, Any]] = {
    "good": {"fg": "green"}, "unsure": {"fg": "yellow"}, "bad": {"fg": "red", "bold": True},
    "best": {"fg": "green", "bold": True},
}  # fmt: skip


def verdict(text: str, kind: str) -> str:
    """Return a text in the color of a kind of verdict (good, unsure, bad or best)."""
    return click.style(text, **PALETTE[kind])


def lines(texts: Iterable[str], verdicts: Mapping[str, str] | None = None) -> None:
    """Print lines on stdout; control characters are printed as escape sequences.

    verdicts: pattern -> kind of verdict, which colors text that matches; the first match counts.  `texts` must not be
    colored already: color codes would count in the column widths of a table.
    """
    text = "\n".join(map(visible_lines, texts))
    kinds = [*(verdicts or {}).values()]
    if verdicts:
        pattern = "|".join(f"(?P<v{number}>{one})" for number, one in enumerate(verdicts))
        text = re.sub(pattern, lambda match: verdict(match[0], kinds[int(str(match.lastgroup)[1:])]), text, flags=re.M)
    click.echo(text)


def as_json(value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    # A name of a file cannot write to the terminal here either: in JSON such characters stand only in texts.
    click.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def result(to_json: bool, value: Callable[[], Any], texts: Callable[[], Iterable[str]],
           verdicts: Mapping[str, str] | None = None) -> None:  # fmt: skip
    """Print a command's result as JSON (`value`) or as text; only one is computed."""
    as_json(value()) if to_json else lines(texts(), verdicts)


def note(text: str, quiet: bool = False) -> None:
    """Print a line for people on stderr."""
    if not quiet:
        click.echo(visible_lines(text), err=True)


def notes(texts: Iterable[str], quiet: bool = False) -> None:
    for text in texts:
        note(text, quiet)


def check_replaceable(target: Path | None, force: bool) -> None:
    """Raise UsageError if a file exists without --force, before computing anything."""
    if target is not None and target.exists() and not force:
        raise click.UsageError(f"{target} already exists; --force replaces it")


def picture(target: Path | None, draw: "Callable[[], Picture]", quiet: bool = False) -> None:
    """Write a picture atomically, and print its path; do nothing without a target."""
    if target is not None:
        write_whole(target, lambda file: draw().save(file))
        note(f"picture: {target}", quiet)


def warnings(texts: Iterable[str], quiet: bool = False) -> None:
    for text in texts:
        if not quiet:
            click.echo(f"{verdict('warning:', 'unsure')} {visible_lines(text)}", err=True)


@contextmanager
def own_warnings(quiet: bool) -> Iterator[None]:
    """In a `with` block, print hetsim's own Python warnings as `warning:` lines.

    They are about pictures, damaged files and unknown inputs; with `quiet`, they are not printed.
    """
    with python_warnings.catch_warnings():
        show = python_warnings.showwarning

        def show_own(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, DamageWarning | PictureWarning | UnknownInputs):
                warnings([str(message)], quiet)
            else:
                show(message, category, *where)

        python_warnings.showwarning = show_own  # type: ignore[assignment]
        yield


class CaseLines:
    """Progress without a terminal: a line on stderr for each case, in order."""

    def __call__(self, share: float) -> None:
        """Ignore the share of finished work: only a terminal's progress bar shows it."""

    def case(self, text: str) -> None:
        note(text)


@contextmanager
def progress(quiet: bool, cases: bool = False) -> "Iterator[TerminalBar | CaseLines | None]":
    """Show a progress bar on a terminal; elsewhere, with `cases`, one line per case."""
    if quiet or not sys.stderr.isatty():
        yield CaseLines() if cases and not quiet else None
        return
    from hetsim.experiment.progress import TerminalBar

    bar = TerminalBar()
    try:
        yield bar
    finally:
        bar.close()


@contextmanager
def shard_reports(to_json: bool) -> Iterator[None]:
    """Context of a command with `--shard`: report the finished runs, and then exit."""
    from hetsim.experiment.shard import ShardOver

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
    directory: Path | None, otherwise: Path, cache: str | Path | None, to_json: bool, quiet: bool, cases: bool = False
) -> "Iterator[TerminalBar | CaseLines | None]":
    """As `searching`, and save the tables of a failed run (otherwise: default folder)."""
    kept = None if cache is None else of_cache(cache)
    with keeping_partial(directory, otherwise), searching(kept, to_json, quiet, cases) as bar:
        yield bar


@contextmanager
def searching(
    kept: str | None, to_json: bool, quiet: bool, cases: bool = False
) -> "Iterator[TerminalBar | CaseLines | None]":
    """Context in which a command runs a study: progress, warnings, shard reports.

    kept: text printed if the study ends early (an interrupt, a full disk, lost workers); None: no text.  cases: without
    a terminal, print a line for each case.
    """
    try:
        with shard_reports(to_json), own_warnings(quiet), progress(quiet, cases) as bar:
            yield bar
    except (KeyboardInterrupt, OSError, RunError) as error:
        if kept is not None and getattr(error, "result", None) is None:  # not a run that fails again
            note(kept, quiet)
        raise


def of_cache(cache: str | Path | None) -> str:
    """Return a note on how to resume interrupted work (cache None: not possible)."""
    if cache is None:
        return "no finished run was saved; with --cache DIR a command can be resumed"
    return f"the finished runs are in {cache}; the same command resumes from them"


@contextmanager
def keeping_partial(directory: Path | None, otherwise: Path) -> Iterator[None]:
    """Store the tables of a failed run in `partial` of `directory`, or of `otherwise`."""
    try:
        yield
    except RunError as error:
        if error.result is None:
            raise
        from hetsim.experiment.directory import save_partial

        when = f"The tables up to t = {error.time:g} s"
        try:
            place = save_partial(error.result, otherwise if directory is None else directory)
            remark = f"{when} are in {place}."
        except Exception as problem:  # the error of the run matters more than that of saving it
            remark = f"{when} could not be saved: {problem}"
        number = error.result.replication
        where = f"In replication {number}. " if number else ""
        error.args = (f"{error.args[0]}\n       {where}{remark}", *error.args[1:])
        raise
