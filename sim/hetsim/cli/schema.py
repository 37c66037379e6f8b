"""`hetsim schema`: the JSON Schema of scenario files, for editors."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sim.cli import console
from sim.cli.options import VERBOSITY


@click.command(short_help="Print the JSON Schema of scenario files.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this file instead.")
@VERBOSITY
def schema(out: Path | None, verbose: bool) -> None:
    """Print the JSON Schema of scenario files, or write it to a file.

    Editors complete and check with it while you type.  Scenarios begin with a line that names it:

        # yaml-language-server: $schema=hetsim.schema.json

    `hetsim schema --out hetsim.schema.json` writes the file next to a scenario of your own.
    """
    from sim.model.files import write_text, write_whole
    from sim.scenario.schema.whole import json_schema

    if out is None:
        console.as_json(json_schema())
        return
    text = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    write_whole(out, lambda path: write_text(path, text))
    console.note(f"schema: {out}")
