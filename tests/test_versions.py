"""The lowest versions that are promised are those that CI installs."""

from __future__ import annotations

import importlib
import pkgutil
import re
import tomllib
from pathlib import Path

import hetsim as hs
import hetsim_policies

ROOT = Path(__file__).parent.parent
PINNED = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / ".ci" / "lowest.txt").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    re.split(r"\W", text.replace("-", "_"))[0] for group in PROJECT["optional-dependencies"].values() for text in group
}


def bounds(requirements: list[str]) -> dict[str, str]:
    """Name -> lower bound of those that have one."""
    return dict(match.groups() for text in requirements if (match := re.fullmatch(r"([\w-]+)>=([\d.]+)", text)))


def test_the_lowest_versions_are_those_of_pyproject():
    needed = bounds(PROJECT["dependencies"])
    assert len(needed) == len(PROJECT["dependencies"])
    promised = {**bounds(PROJECT["optional-dependencies"]["test"]), **needed}
    assert needed.keys() <= PINNED.keys() <= promised.keys()
    assert {name: padded(version) for name, version in PINNED.items()} == {
        name: padded(promised[name]) for name in PINNED
    }


def test_the_lowest_python_is_the_one_they_are_tried_on():
    assert PROJECT["requires-python"] == ">=3.11"
    assert 'has "$python" 3.11' in (ROOT / ".ci" / "versions").read_text()


def padded(version: str) -> tuple[int, ...]:
    """Three numbers: 8.2 is 8.2.0."""
    numbers = [int(part) for part in version.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))


def test_every_module_can_be_imported():
    """With whatever versions are here; only what an optional extra brings may be missing."""
    names = [
        module.name
        for package in (hs, hetsim_policies)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    assert len(names) > 400
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            assert error.name in EXTRAS, name
