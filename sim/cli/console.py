"""What goes where: data on stdout; notes, warnings and progress on stderr."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from sim.errors import RunError

PATIENCE = 2.0
"""Seconds before a bar appears: shorter runs need none."""


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


def warnings(texts: Iterable[str], quiet: bool = False) -> None:
    for text in texts:
        note(f"{click.style('warning:', fg='yellow')} {text}", quiet)


class Bar:
    """A bar on a terminal, from the third second on; a function of the share done."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.bar: Any = None

    def __call__(self, share: float) -> None:
        if self.bar is None:
            if time.monotonic() - self.begin < PATIENCE:
                return
            from tqdm import tqdm

            form = "{percentage:3.0f} % |{bar}| {elapsed}, {remaining} left"
            # miniters=0: every report is drawn.  A terminal that gives its size as 0 is taken for one of 80 × 24.
            wide, high = shutil.get_terminal_size()
            self.bar = tqdm(
                total=1.0, file=sys.stderr, leave=False, bar_format=form, mininterval=0, miniters=0,
                ncols=wide, nrows=high,
            )  # fmt: skip
            self.bar.start_t -= time.monotonic() - self.begin
        self.bar.update(share - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


@contextmanager
def progress(quiet: bool) -> Iterator[Bar | None]:
    """A bar if anybody is looking: stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    bar = Bar()
    try:
        yield bar
    finally:
        bar.close()


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
