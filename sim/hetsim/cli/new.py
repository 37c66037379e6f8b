"""`hetsim new`: a folder to start from."""

import shutil
from pathlib import Path

import click

from hetsim.cli import console
from hetsim.cli.options import FOLDER, QUIET, VERBOSITY
from hetsim.report.terminal import table

KINDS = {
    "log": "a log of jobs with columns of its own, and the cluster that it is replayed on",
    "serving": "a service that answers requests in batches, with a latency target",
    "language-model": "a server of a language model, from published figures",
    "graph": "kernels that wait for each other, on cores and a GPU",
    "policy": "a scheduling policy of your own in Python, with its test",
}
README = "README.md"


@click.command(short_help="Make a folder to start from: a scenario, its files, and the next commands.")
@click.argument("folder", metavar="FOLDER", type=FOLDER)
@click.option("--kind", type=click.Choice(list(KINDS)), help="What is in it; without it the kinds are listed.")
@QUIET
@VERBOSITY
def new(folder: Path, kind: str | None, quiet: bool) -> None:
    """Make a folder to start from: a scenario, its files, and a README.

    FOLDER must be new or empty.
    """
    from hetsim.results.one_run.store import write_directory
    from hetsim.scenario.file.shipped import template

    if kind is None:
        listed = "\n".join(table([["  --kind " + name, text] for name, text in KINDS.items()]))
        raise click.UsageError(f"say what is to be in {folder}:\n{listed}")
    if folder.is_symlink() or (folder.is_dir() and any(folder.iterdir())):
        raise click.UsageError(f"{folder} is not an empty folder; nothing was written")
    files = template(kind)

    def write(target: Path) -> None:
        for file in files:
            shutil.copyfile(file, target / file.name)

    write_directory(folder, write, mark=README)
    console.lines([f"{folder / file.name}" for file in files])
    console.note(f"next: the commands in {folder / README}", quiet)
