"""How large the project is, and how large it may be: `python .ci/size.py` prints a table, and fails above a limit.

A change that needs more room makes it elsewhere first; a limit is raised only with a reason in the commit.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

from hetsim.cli.program import VERBS

TOP = Path(__file__).parent.parent
LIMITS = {"lines": 120_000, "statements": 83_500, "keys of scenarios": 720, "verbs": 24}
"""`statements` counts docstrings too; a key counts once for each part of a scenario that has it."""


def sizes() -> dict[str, int]:
    texts = [path.read_text(encoding="utf-8") for top in ("sim", "policies") for path in (TOP / top).rglob("*.py")]
    schema = json.loads((TOP / "scenarios" / "hetsim_scenarios" / "hetsim.schema.json").read_text(encoding="utf-8"))
    parts = [schema, *schema["$defs"].values()]
    return {
        "lines": sum(text.count("\n") for text in texts),
        "statements": sum(isinstance(node, ast.stmt) for text in texts for node in ast.walk(ast.parse(text))),
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
