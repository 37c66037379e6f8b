"""`hetsim report`: one HTML page about the results in a directory."""

from contextlib import suppress
from pathlib import Path
from shlex import quote

import click

from hetsim.cli import console
from hetsim.cli.options import FOLDER, PAGE, PATH, QUIET, VERBOSITY


@click.command(short_help="Write one self-contained HTML page about a run, a comparison or a sweep.")
@click.argument("directory", type=PATH, metavar="DIR")
@click.option("--page", type=PAGE, metavar="HTML", help="File of the page; without it DIR/report.html.")
@click.option("--watch", is_flag=True, help="Serve the current page on this machine only, until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65535), help="With --watch: the port; without it any free port.")
@click.option("--paper", is_flag=True, help="Write a folder for LaTeX instead: figures, tables, methods, references.")
@click.option("--style", type=click.Choice(["ieee", "acm", "neurips"]), help="With --paper: the venue's widths.")
@click.option("--out", type=FOLDER, metavar="FOLDER", help="With --paper: the folder to write; without it DIR/paper.")
@QUIET
@VERBOSITY
def report(
    directory: Path, page: Path | None, watch: bool, port: int | None, paper: bool, style: str | None, out: Path | None,
    quiet: bool,
) -> None:  # fmt: skip
    """Write an HTML page about the results in DIR of `run`, `compare` or `sweep`.
    The page needs no network and no other file.  For runs it has charts with zoom, filters, and details of each task.
    With --watch the directory may still be missing or unfinished: the points of a sweep appear as their runs end.
    With --paper the files for a paper are written, with the same tables and pictures.
    """
    from hetsim.experiment.directory import load_any
    from hetsim.page import NAME, write_report
    from hetsim.results.stored_files import reading_stored

    if port is not None and not watch:
        raise click.UsageError("--port needs --watch")
    if (style is not None or out is not None) and not paper:
        raise click.UsageError(f"--{'out' if style is None else 'style'} needs --paper; --page HTML writes a page")
    if paper and (style is None or watch or page is not None):
        raise click.UsageError("--paper needs --style ieee, acm or neurips, and excludes --page and --watch")
    if page is not None and watch:
        raise click.UsageError("--watch and --page exclude each other: leave out --page")
    if not directory.is_dir() and (directory.exists() or not watch):
        raise click.UsageError(f'the directory "{directory}" does not exist; `hetsim run --out` writes one')
    if watch:
        from hetsim.page.watch import PageServer

        with PageServer(directory, port or 0) as server, suppress(KeyboardInterrupt):
            console.lines([server.address])
            console.note(f"watching {directory}; Ctrl-C ends it", quiet)
            server.serve_forever()
        return
    with console.own_warnings(quiet), reading_stored(directory):
        if paper and style is not None:
            from hetsim.page.paper import write_paper

            text = f"hetsim report {quote(str(directory))} --paper --style {style}"
            text += "" if out is None else f" --out {quote(str(out))}"
            folder = write_paper(load_any(directory), directory, out or directory / "paper", style=style, again=text)
            console.note(f"paper: {folder}", quiet)
            return
        path = write_report(load_any(directory), page or directory / NAME, folder=str(directory))
    console.note(f"report: {path}", quiet)
