"""`hetsim schema`: the JSON Schema of scenario files, for editors."""

import json
from pathlib import Path

import click

from hetsim.cli import console
from hetsim.cli.options import SCHEMA, VERBOSITY
from hetsim.model.files import write_text, write_whole


@click.command(short_help="Print the JSON Schema of scenario files.")
@click.option("--file", type=SCHEMA, metavar="JSON", help="Write it to this file instead.")
@VERBOSITY
def schema(file: Path | None) -> None:
    """Print the JSON Schema of scenario files, or write it to a file.

    Editors complete and check with it while you type.  Scenarios begin with a line that names it:

        # yaml-language-server: $schema=hetsim.schema.json

    `hetsim schema --file hetsim.schema.json` writes the file next to a scenario of your own.
    """
    from hetsim.scenario.schema.whole import json_schema

    if file is None:
        console.as_json(json_schema())
        return
    text = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    write_whole(file, lambda path: write_text(path, text))
    console.note(f"schema: {file}")
