"""Docstrings and comments name only modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent.parent
ROOTS = {"hetsim": TOP / "sim", "hetsim_policies": TOP / "policies"}


def exists(name: str) -> bool:
    """Return True for a module or package, or for a lowercase name of one (a function, a table)."""
    *parents, last = name.split(".")
    path = ROOTS[name.partition(".")[0]].joinpath(*parents)
    if (path / last).is_dir() or (path / f"{last}.py").is_file():
        return True
    package = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return package.is_file() and re.search(rf"\b{last}\b", package.read_text(encoding="utf-8")) is not None


@pytest.mark.parametrize(("folder", "package"), [("policies", "hetsim(?:_policies)?"), ("sim", "hetsim_policies")])
def test_named_modules_exist(folder: str, package: str) -> None:
    """In the simulator names such as `hetsim.policies` are those of groups of entry points."""
    module = re.compile(rf"`({package}(?:\.[a-z_]+)+)")
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((TOP / folder).rglob("*.py"))}
    missing = [
        f"{path.relative_to(TOP)}: {name}"
        for path, text in texts.items() for name in module.findall(text) if not exists(name)
    ]  # fmt: skip
    assert not missing
