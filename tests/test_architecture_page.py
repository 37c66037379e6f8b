"""The map of the project names files and floors that are there."""

from __future__ import annotations

import re
import tomllib

import pages

PAGE = (pages.TOP / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_file_named_exists():
    named = re.findall(r"`((?:sim|policies|scenarios|tests|docs)/[\w/.]+)`", PAGE)
    assert len(set(named)) > 30
    assert [name for name in named if not (pages.TOP / name).exists()] == []


def test_the_floors_are_those_of_the_contract():
    """From the top; a floor that import-linter cuts in two is drawn once."""
    project = tomllib.loads((pages.TOP / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["name"] == "Rooms import downward only")
    floors: list[str] = []
    for layer in layers:
        for room in layer.split("|"):
            name = ".".join(room.strip().split(".")[:2])
            if name not in floors:
                floors.append(name)
    drawing = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert drawing
    assert sorted(set(re.findall(r"hetsim\.\w+", drawing[1]))) == sorted(floors)
    drawn = [found[0] for line in drawing[1].splitlines() if (found := re.findall(r"^ (hetsim\.\w+)", line))]
    order = {name: place for place, name in enumerate(floors)}
    assert [order[name] for name in drawn] == sorted(order[name] for name in drawn)


def test_ten_stops():
    assert re.findall(r"^(\d+)\. \*\*", PAGE, re.MULTILINE) == [str(number) for number in range(1, 11)]
