"""The scenarios shipped with hetsim (`scenarios/hetsim_scenarios/THEME/`)."""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from hetsim.errors import HetsimError, UnknownName
from hetsim.scenario.file import document as documents


@dataclass(frozen=True)
class Shipped:
    """One shipped scenario."""

    name: str
    theme: str
    path: Path

    @property
    def description(self) -> str:
        try:
            return " ".join(str(documents.read(self.path).data.get("description", "")).split())
        except HetsimError:
            return ""


@cache
def _folder() -> Path | None:
    try:
        return Path(str(resources.files("hetsim_scenarios")))
    except ModuleNotFoundError:
        return None


def shipped() -> list[Shipped]:
    """Return all shipped scenarios by theme and name."""
    if (folder := _folder()) is None:
        return []
    return [Shipped(path.stem, path.parent.name, path) for path in sorted(folder.glob("*/*.yaml"))]


def find(name: str) -> Path:
    """Return the file of a shipped scenario `name` or `theme/name`; else UnknownName."""
    every = shipped()
    by_name = {one.name: one.path for one in every} | {f"{one.theme}/{one.name}": one.path for one in every}
    if name not in by_name:
        names = [one.name for one in every]
        raise UnknownName("scenario", name, names, " (hetsim list scenarios; a file needs its path)")
    return by_name[name]


def template(kind: str) -> list[Path]:
    """Return the files of a template of `hetsim new` (of a `kind`), sorted by name."""
    folder = _folder()
    within = [] if folder is None else sorted((folder / "templates" / kind).glob("*.*"))
    files = [path for path in within if path.is_file()]
    if not files:
        raise HetsimError(f'the template "{kind}" is not installed: the package hetsim_scenarios lacks it')
    return files
