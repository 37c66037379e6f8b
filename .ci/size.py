"""How large the project is, and how large it may be: `python .ci/size.py` prints a table, and fails above a limit.

A change that needs more room makes it elsewhere first; a limit is raised only with a reason in the commit.
"""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from pathlib import Path

from hetsim.cli.program import VERBS

TOP = Path(__file__).parent.parent
LIMITS = {"lines": 120_000, "lines of the core": 59_000, "statements": 83_500, "keys of scenarios": 720, "verbs": 24}
"""`statements` counts docstrings too; a key counts once for each part of a scenario that has it.

The core is sim/ without the rooms that the contract "The core imports no room" names; its goal is at most 60,000.
It is at 58,600 since searches, plans, the page, and families of arrivals and distributions are rooms.
"""


def rooms(sim: Path) -> list[Path]:
    """The folders of sim/ that the contract of the core forbids to it."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    contract = next(one for one in contracts if one["name"] == "The core imports no room")
    return [sim.joinpath(*name.split(".")) for name in contract["forbidden_modules"]]


def statements(text: str) -> int:
    """The number of statements, which stand in statements only: expressions, most of a tree, are not looked into."""
    count, blocks = 0, [ast.parse(text).body]
    while blocks:
        for one in blocks.pop():
            count += isinstance(one, ast.stmt)
            inner = (getattr(one, name, None) for name in ("body", "orelse", "handlers", "finalbody", "cases"))
            blocks += [block for block in inner if block]
    return count


def sizes() -> dict[str, int]:
    texts = [path.read_text(encoding="utf-8") for top in ("sim", "policies") for path in (TOP / top).rglob("*.py")]
    sim = TOP / "sim"
    core = [path for path in sim.rglob("*.py") if not any(path.is_relative_to(room) for room in rooms(sim))]
    schema = json.loads((TOP / "scenarios" / "hetsim_scenarios" / "hetsim.schema.json").read_text(encoding="utf-8"))
    parts = [schema, *schema["$defs"].values()]
    return {
        "lines": sum(text.count("\n") for text in texts),
        "lines of the core": sum(path.read_text(encoding="utf-8").count("\n") for path in core),
        "statements": sum(map(statements, texts)),
        "keys of scenarios": sum(len(part.get("properties", ())) for part in parts),
        "verbs": len(VERBS),
    }


if __name__ == "__main__":
    over = []
    for name, size in sizes().items():
        print(f"{name:18} {size:>8,} of {LIMITS[name]:,}")
        if size > LIMITS[name]:
            over.append(name)
    sys.exit(f"over the limit: {', '.join(over)}" if over else 0)
