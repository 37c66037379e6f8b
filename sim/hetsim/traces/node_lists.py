"""Lists of nodes in a file, for `hetsim trace convert` and `hetsim twin`."""

import difflib
import re
from pathlib import Path
from typing import Any

from hetsim import registry
from hetsim.cli import console
from hetsim.errors import KeyProblem, ScenarioError, UsageError
from hetsim.model.files import write_text, write_whole


def format_of_nodes(file: str, form: str | None) -> str | None:
    """Return the format of a node list, given or recognized; None for a trace."""
    from hetsim.workload.logs.recognize import node_list

    if form is None:
        return node_list(file)
    formats = registry.table("clusters")
    near = difflib.get_close_matches(form, [*formats, *registry.table("traces")], n=1, cutoff=0.5)
    return form if near and near[0] in formats else None


def convert_nodes(file: str, form: str, options: tuple[str, ...], target: Path | None) -> None:
    """Write or print a node list as the key `cluster`, and other keys that it implies."""
    from hetsim.scenario.file.document import dump
    from hetsim.scenario.overrides import parse_assignment
    from hetsim.scenario.scenario import load

    nodes, parts, notes = grouped(read_nodes(file, form, options)), {}, []
    if (more := getattr(registry.entry("clusters", form), "more", None)) is not None:
        parts, notes = more(file, **dict(map(parse_assignment, options)))
        job = {"arrivals": {"process": "poisson", "rate": "1/h"}, "count": 1, "cpu_time": "1 s"}
        load({"name": "site", "cluster": {"nodes": nodes}, **parts, "workload": job})  # what cannot be is said now
    text = dump({"cluster": {"nodes": nodes}, **parts})
    if target is None:
        console.lines([text.rstrip()])
    else:
        write_whole(target, lambda path: write_text(path, text))
        total = sum(node["count"] for node in nodes)
        console.note(f"{total:,} nodes in {len(nodes):,} group{'s' if len(nodes) != 1 else ''}: {target}")
    console.notes(notes)


def read_nodes(file: str, form: str, options: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the nodes of a list, as in the key `cluster.nodes` of a scenario."""
    from hetsim.scenario.overrides import parse_assignment
    from hetsim.scenario.schema.cluster import listed

    if not Path(file).is_file():
        raise UsageError(f"there is no file {file}")
    try:
        return listed({"format": form, "path": file, **dict(map(parse_assignment, options))}, ".")
    except KeyProblem as error:
        raise ScenarioError(error.problems or str(error)) from None


def grouped(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge nodes that differ only in name into groups, named after the accelerator."""
    groups: dict[str, dict[str, Any]] = {}
    names: dict[str, int] = {}
    for node in nodes:
        rest = {key: value for key, value in node.items() if key not in ("name", "count")}
        if (group := groups.get(repr(rest))) is None:
            name = _name(rest)
            names[name] = names.get(name, 0) + 1
            name = name if names[name] == 1 else f"{name}-{names[name]}"
            group = groups[repr(rest)] = {"name": name, "count": 0, **rest}
        group["count"] += node.get("count", 1)
    return list(groups.values())


def _name(node: dict[str, Any]) -> str:
    kinds = [node[key] for key in ("gpus", "accelerators") if node.get(key)]
    first = kinds[0][0] if kinds and isinstance(kinds[0], list) else kinds[0] if kinds else {}
    text = str(first.get("type", "gpu")) if kinds else "cpu"
    return re.sub(r"[^\w-]+", "-", text).strip("-").lower() or "group"
