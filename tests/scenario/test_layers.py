"""Modules import downward only, as the contracts in pyproject.toml say."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import syntax

TOP = Path(__file__).parents[2]
DOTTED = re.compile(r"(hetsim|hetsim_policies|hetsim_scenarios|benchmarks)(\.\w+)*(\.\w*|:\w+)$")
QUOTED = re.compile(r"""["'](?:hetsim|benchmarks)""")
"""A file without it has no such string."""
REGISTRIES = {
    "sim/hetsim/__init__.py": "_WHERE",
    "sim/hetsim/cli/listing.py": "SUPPORT",
    "sim/hetsim/cli/program.py": "VERBS",
    "sim/hetsim/engine/fork.py": "INPUT",
    "sim/hetsim/experiment/workers.py": "TAKEN_BY_RUNS",
    "sim/hetsim/learning/__init__.py": "ENVIRONMENTS",
    "sim/hetsim/learning/agents/__init__.py": "AGENTS",
    "sim/hetsim/plots/__init__.py": "_OF_ROOMS",
    "sim/hetsim/registry.py": "_TABLES",
    "sim/hetsim/results/declared.py": "_PACKAGE",
    "sim/hetsim/results/panels.py": "PLOTS",
    "sim/hetsim/scenario/building/synthetic.py": "STREAMS",
    "sim/hetsim/scenario/schema/steps.py": "ENGINES",
    "sim/hetsim/workload/arrivals.py": "BUILTIN",
    "sim/hetsim/workload/distributions.py": "FAMILIES",
    "sim/hetsim/workload/measurements.py": "MEASUREMENTS",
    "sim/hetsim/workload/node_lists.py": "BUILTIN",
    "sim/hetsim/workload/traces.py": "BUILTIN",
}
"""The only places that may name a module in a string, which import-linter does not see: tables of names to load."""


OTHER_NAMES = ("hetsim.", "hetsim_policies.", "hetsim._compiled", "hetsim.metrics", "hetsim.policies", "hetsim.verbose")
"""No modules: prefixes that are compared, a file that compiled wheels have, groups of entry points, a key of click."""


def dotted_strings(text: str) -> Iterator[tuple[str, int, str]]:
    """Strings that name a module or an object of ours: the module-level name they are assigned to, line and string."""
    for statement in ast.parse(text).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        name = targets[0].id if isinstance(targets[0], ast.Name) else ""
        for node in ast.walk(statement):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.match(node.value):
                yield name, node.lineno, node.value


@pytest.mark.slow
def test_the_rooms_of_the_engine_import_downward_only(capsys: pytest.CaptureFixture[str]) -> None:
    from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports  # takes long to import

    status = lint_imports(config_filename=str(TOP / "pyproject.toml"), no_cache=True, no_logo=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_matplotlib_is_imported_in_one_file() -> None:
    imports = re.compile(r"^\s*(?:from|import) matplotlib", re.MULTILINE)
    files = [path for path in (TOP / "sim").rglob("*.py") if imports.search(path.read_text(encoding="utf-8"))]
    assert files == [TOP / "sim" / "hetsim" / "plots" / "draw.py"]


@pytest.mark.slow
def test_modules_are_named_in_strings_by_registries_only() -> None:
    hidden, used = [], set()
    for folder in ("sim", "policies", "benchmarks"):
        for path in sorted((TOP / folder).rglob("*.py")):
            file = path.relative_to(TOP).as_posix()
            source = path.read_text(encoding="utf-8")
            for name, line, text in dotted_strings(source) if QUOTED.search(source) else ():
                if name and REGISTRIES.get(file) == name:
                    used.add(file)
                elif text not in OTHER_NAMES:
                    hidden.append(f"{file}:{line}: {text}")
    assert not hidden, "write an import, inside the function if need be:\n" + "\n".join(hidden)
    assert used == set(REGISTRIES), "these name no module any more"


def test_every_module_is_in_the_core_or_in_a_room() -> None:
    """So that a new package is in the contract "The core imports no room", on one of its two sides."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {one["name"]: one for one in project["tool"]["importlinter"]["contracts"]}
    contract = contracts["The core imports no room"]
    core, rooms = contract["source_modules"], contract["forbidden_modules"]
    outside = []
    for folder in (TOP / "sim", TOP / "policies"):
        for path in sorted(folder.rglob("*.py")):
            module = ".".join(path.relative_to(folder).with_suffix("").parts)
            sides = [any(module == name or module.startswith(f"{name}.") for name in side) for side in (core, rooms)]
            if path.name != "__init__.py" and sum(sides) != 1:
                outside.append(module)
    assert outside == []
    assert "allow_indirect_imports" not in contract, "what an import leads to counts as well"


def test_a_hidden_import_is_seen() -> None:
    text = (
        'def f():\n    """hetsim.model"""\n    return load("hetsim.learning.agents:AGENTS")\n'
        'T = {"a": "hetsim_policies.x:Y"}\n'
        'def g(name):\n    return load(f"hetsim.plots.{name}")\n'
    )
    assert list(dotted_strings(text)) == [
        ("", 2, "hetsim.model"), ("", 3, "hetsim.learning.agents:AGENTS"), ("T", 4, "hetsim_policies.x:Y"),
        ("", 6, "hetsim.plots."),
    ]  # fmt: skip


def test_benchmarks_import_one_another_in_no_circle() -> None:
    imports = {
        file.stem: {
            node.module.split(".")[1]
            for node in syntax.by_class(ast.parse(file.read_text(encoding="utf-8"))).get(ast.ImportFrom, ())
            if (node.module or "").startswith("benchmarks.")
        }
        for file in (TOP / "benchmarks").glob("*.py")
    }  # fmt: skip
    order = list(TopologicalSorter(imports).static_order())  # CycleError names the circle
    assert order.index("gang_load") < order.index("saturated") < order.index("cluster")
