"""`hetsim report`: one HTML page of what a directory holds."""

from __future__ import annotations

from pathlib import Path

import click

from hetsim.cli import console
from hetsim.cli.options import PAGE, PATH, QUIET, VERBOSITY


@click.command(short_help="Write one self-contained HTML page about a run, a comparison or a sweep.")
@click.argument("directory", type=PATH, metavar="DIR")
@click.option("--page", type=PAGE, metavar="HTML", help="Where to write it; DIR/report.html without.")
@QUIET
@VERBOSITY
def report(directory: Path, page: Path | None, quiet: bool) -> None:
    """Write an HTML page about the results in DIR of `run`, `compare` or `sweep`.
    The page needs no network and no other file.  Of runs it has charts with zoom, filters, and the facts of each task.
    """
    from hetsim.experiment.directory import load_any
    from hetsim.page import NAME, write_report
    from hetsim.results.stored_files import reading_stored

    if not directory.is_dir():
        raise click.UsageError(f'there is no directory "{directory}"; `hetsim run --out` writes one')
    with console.own_warnings(quiet), reading_stored(directory):
        path = write_report(load_any(directory), page or directory / NAME, folder=str(directory))
    console.note(f"report: {path}", quiet)
