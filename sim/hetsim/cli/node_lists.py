"""`hetsim cluster`: node lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sim.cli import console
from sim.cli.options import VERBOSITY
from sim.cli.program import Verbs


@click.group(cls=Verbs, short_help="Convert lists of nodes.")
def cluster() -> None:
    """Convert lists of nodes: the machines of a cluster in a file."""


@cluster.command(short_help="Write the nodes of a list as they stand in a scenario.")
@click.argument("file", metavar="FILE")
@click.option("--format", "form", required=True, help="See `hetsim list clusters`.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE",
              help="A parameter of the format's reader (repeatable).")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="YAML", help="Write it there.")
@VERBOSITY
def convert(file: str, form: str, options: tuple[str, ...], out: Path | None, verbose: bool) -> None:
    """Write `cluster:` with the nodes of a list, equal ones as a group with its count and a name.

    In a scenario the groups can be varied by name: --over cluster.nodes.a100.count=8..32.
    """
    from sim.model.files import write_text, write_whole
    from sim.scenario.file.document import dump

    nodes = grouped(read_nodes(file, form, options))
    text = dump({"cluster": {"nodes": nodes}})
    if out is None:
        console.lines([text.rstrip()])
        return
    write_whole(out, lambda path: write_text(path, text))
    total = sum(node["count"] for node in nodes)
    console.note(f"{total:,} nodes in {len(nodes):,} group{'s' if len(nodes) != 1 else ''}: {out}")


def read_nodes(file: str, form: str, options: tuple[str, ...]) -> list[dict[str, Any]]:
    """The nodes of a list, as a scenario has them."""
    from sim.errors import ScenarioError, UsageError
    from sim.scenario.fields import KeyProblem
    from sim.scenario.overrides import parse_assignment
    from sim.scenario.schema.cluster import listed

    if not Path(file).is_file():
        raise UsageError(f"there is no file {file}")
    try:
        return listed({"format": form, "path": file, **dict(map(parse_assignment, options))}, ".")
    except KeyProblem as error:
        raise ScenarioError(error.problems or str(error)) from None


def grouped(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nodes that are equal but for their names as one group each, named after their accelerators."""
    groups: dict[str, dict[str, Any]] = {}
    names: dict[str, int] = {}
    for node in nodes:
        rest = {key: value for key, value in node.items() if key not in ("name", "count")}
        group = groups.get(repr(rest))
        if group is None:
            name = _name(rest)
            names[name] = names.get(name, 0) + 1
            name = name if names[name] == 1 else f"{name}-{names[name]}"
            group = groups[repr(rest)] = {"name": name, "count": 0, **rest}
        group["count"] += node.get("count", 1)
    return list(groups.values())


def _name(node: dict[str, Any]) -> str:
    """`a100`, or `cpu` of a node without accelerators."""
    import re

    found = [node[key] for key in ("gpus", "accelerators") if node.get(key)]
    first = found[0][0] if found and isinstance(found[0], list) else found[0] if found else {}
    text = str(first.get("type", "gpu")) if found else "cpu"
    return re.sub(r"[^\w-]+", "-", text).strip("-").lower() or "group"
