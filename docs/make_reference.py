"""Write docs/reference, the schema of scenarios, and works.bib, from the declarations in hetsim.

    python docs/make_reference.py            writes the pages
    python docs/make_reference.py --check    exit code 1 if a page differs from the page that would be written

Each page has a module in docs/reference_pages.  scenario: the JSON Schema of scenario files.  policies, traces: the
registries and the texts at the head of each file.  readers: the keys that theory, sizing and planners understand.
results: the metrics and the columns of the tables.  commands: the help texts of the command line.  python: signatures
and docstrings of the public functions and classes.  works: the references of docstrings, as BibTeX.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from reference_pages.commands import commands_page  # noqa: E402
from reference_pages.policies import guarantee, head, policies_pages, reference  # noqa: E402
from reference_pages.python import public_functions, python_page  # noqa: E402
from reference_pages.readers import readers_page  # noqa: E402
from reference_pages.results import TABLES, results_page  # noqa: E402
from reference_pages.scenario import scenario_page  # noqa: E402
from reference_pages.traces import traces_page  # noqa: E402
from reference_pages.works import works_bib  # noqa: E402

from hetsim.scenario.schema.whole import json_schema  # noqa: E402

__all__ = ["TABLES", "guarantee", "head", "main", "pages", "public_functions", "reference"]

FOLDER = HERE / "reference"
SCHEMA = "../../scenarios/hetsim_scenarios/hetsim.schema.json"
"""What editors read: the first line of shipped scenarios names it."""
WORKS = "../../sim/hetsim/page/works.bib"
"""The works that policies, readers and models name: papers take their references from it."""


def pages() -> dict[str, str]:
    """Name of each file, from docs/reference on, and its text."""
    made = {
        "scenario": scenario_page, "results": results_page, "commands": commands_page,
        "traces": traces_page, "python": python_page, "readers": readers_page,
    }  # fmt: skip
    found = {f"{name}.md": "\n".join(make()).rstrip() + "\n" for name, make in made.items()}
    found |= {name: "\n".join(lines).rstrip() + "\n" for name, lines in policies_pages().items()}
    found[WORKS] = "\n\n".join(works_bib()) + "\n"
    return found | {SCHEMA: json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"}


def main(arguments: list[str]) -> int:
    stale = []
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = FOLDER / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    if stale and "--check" in arguments:
        print(f"{', '.join(stale)}: not what docs/make_reference.py writes now; run it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
