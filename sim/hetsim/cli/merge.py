"""`hetsim merge`: finished runs of several folders in one."""

from pathlib import Path

import click

from hetsim.cli import console
from hetsim.cli.options import FOLDER, PATH, QUIET, VERBOSITY


@click.command(short_help="Put finished runs of several machines into one folder.")
@click.argument("sources", nargs=-1, required=True, type=PATH, metavar="DIR...")
@click.option("--into", required=True, type=FOLDER, metavar="DIR",
              help="A cache, or the directory of a sweep; it may be one of the others.")  # fmt: skip
@QUIET
@VERBOSITY
def merge(sources: tuple[Path, ...], into: Path, quiet: bool) -> None:
    """Copy finished runs of caches (--cache) and sweeps (--out) into one folder.

    For shards that had no folder in common. Every run is checked; files with damaged ones are named. The command of the
    study, with that folder and without --shard, then makes what is missing, and the tables.
    """
    from hetsim.experiment.store import merge_stores

    merged = merge_stores(sources, into)
    said = "is damaged: runs in it that are whole were copied, others left out"
    console.warnings((f"{path} {said}" for path in merged.damaged), quiet)
    console.lines([merged.sentence])
