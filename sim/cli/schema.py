"""`hetsim schema`: the JSON Schema of scenario files, for editors."""

from __future__ import annotations

import click

from sim.cli import console
from sim.cli.options import VERBOSITY


@click.command(short_help="Print the JSON Schema of scenario files.")
@VERBOSITY
def schema(verbose: bool) -> None:
    """Print the JSON Schema of scenario files.

    Editors use it to complete and check while you type: `hetsim schema > hetsim.schema.json`.
    """
    from sim.scenario.schema.whole import json_schema

    console.as_json(json_schema())
