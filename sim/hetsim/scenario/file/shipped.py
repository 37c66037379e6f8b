"""The scenarios that come with hetsim: `scenarios/THEME/NAME.yaml` of the installed package."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from sim.errors import HetsimError, UnknownName
from sim.scenario.file import document as documents


@dataclass(frozen=True)
class Shipped:
    """One shipped scenario."""

    name: str
    theme: str
    path: Path

    @property
    def description(self) -> str:
        """What it shows, in two or three sentences."""
        try:
            return " ".join(str(documents.read(self.path).data.get("description", "")).split())
        except HetsimError:
            return ""


@cache
def _folder() -> Path | None:
    try:
        return Path(str(resources.files("scenarios")))
    except ModuleNotFoundError:
        return None


def shipped() -> list[Shipped]:
    """All shipped scenarios by theme and name."""
    folder = _folder()
    if folder is None:
        return []
    return [Shipped(path.stem, path.parent.name, path) for path in sorted(folder.glob("*/*.yaml"))]


def find(name: str) -> Path:
    """The file of a shipped scenario, named `name` or `theme/name`; UnknownName with a suggestion."""
    every = shipped()
    known = {one.name: one.path for one in every} | {f"{one.theme}/{one.name}": one.path for one in every}
    if name not in known:
        names = [one.name for one in every]
        raise UnknownName("scenario", name, names, " (hetsim list scenarios; a file needs its path)")
    return known[name]
