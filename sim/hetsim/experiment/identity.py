"""What decides the outcome of a run, as a digest: the name under which it is kept, and what a worker verifies first.

The digest covers the resolved scenario, the contents of the files it names, seed and replication, the versions of
Python, hetsim and the numeric libraries, hetsim's own source code, and the sources of policies, trace readers and
arrival processes that are not hetsim's.  What only names or arranges runs (`name`, `description`, `sweep`,
`replications`) is left out.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim import registry
from sim.scenario.schema.policy import PolicySpec

if TYPE_CHECKING:
    from types import ModuleType

    from sim.scenario.scenario import Scenario

FORMAT = 2
_NO_PART = ("name", "description", "sweep", "replications", "seed")
"""Keys that decide nothing of a run; the seed is added for each."""
_OURS = ("policies", "sim")

Signature = tuple[Path, int, int]
"""A file, its size and the time of its last change: as long as they are the same, so are the contents."""


@cache
def fingerprint() -> dict[str, str]:
    """Versions, and a digest of hetsim's source: what must be equal for the same scenario to give the same figures."""
    from sim.results.one_run.store import versions

    digest = hashlib.sha256()
    for name in ("sim", "policies"):
        digest.update(_tree(Path(str(__import__(name).__file__)).parent))
    return {**versions(), "code": digest.hexdigest()}


def _tree(folder: Path) -> bytes:
    """A digest of the Python files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.digest()


class Identity:
    """Digests of runs.  Every file is read once, and again after it has changed."""

    def __init__(self, check: bool = False) -> None:
        self.check = check
        self._files: dict[Signature, str] = {}
        self._first: dict[Path, str] = {}
        """Digests of files when they were first asked for."""
        self._sources: dict[tuple[str, str, int], str] = {}

    def parts(self, scenario: Scenario) -> dict[str, str]:
        """Digests of all that decides the runs of a scenario besides seed and replication, by what they are of."""
        values = {key: value for key, value in scenario.raw.items() if key not in _NO_PART}
        return {**fingerprint(), "scenario": _digest([FORMAT, values, self.check]), **self.inputs(scenario)}

    def inputs(self, scenario: Scenario) -> dict[str, str]:
        """Digests of the files that a scenario names, and of the sources of what is not hetsim's."""
        files = {f"file {os.path.relpath(path, scenario.base)}": self._file(path) for path in scenario.files}
        return {**files, **self._sources_of(scenario)}

    def scenario(self, scenario: Scenario) -> str:
        """Digest of a scenario without seed and replication."""
        return _digest(self.parts(scenario))

    def run(self, scenario: str, seed: int, replication: int) -> str:
        """Digest of one run of a scenario with that digest."""
        return hashlib.sha256(f"{scenario} {seed} {replication}".encode()).hexdigest()

    def _file(self, path: Path) -> str:
        key = signature(path)
        if key not in self._files:
            with path.open("rb") as stream:
                self._files[key] = hashlib.file_digest(stream, "sha256").hexdigest()
            self._first.setdefault(path, self._files[key])
        return self._files[key]

    def _sources_of(self, scenario: Scenario) -> dict[str, str]:
        """A digest of the code of each policy, trace reader and arrival process that is not hetsim's.

        As it was when it was first asked for: later changes of its files do not reach this process.
        """
        found = {}
        for kind, name, item in _named(scenario):
            module = sys.modules.get(getattr(item, "__module__", ""))
            if module is None or module.__name__.partition(".")[0] not in _OURS:
                key = kind, name, id(item)
                if key not in self._sources:
                    self._sources[key] = _source(item, module)
                found[f"source of {kind} {name}"] = self._sources[key]
        return found

    def at_first(self, scenario: Scenario) -> dict[str, str]:
        """The parts, with files as they were when they were first asked for."""
        first = {f"file {os.path.relpath(path, scenario.base)}": self._first.get(path) for path in scenario.files}
        return {**self.parts(scenario), **{name: digest or "none" for name, digest in first.items()}}


def signature(path: Path) -> Signature:
    about = path.stat()
    return path, about.st_size, about.st_mtime_ns


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def differences(here: Mapping[str, str], there: Mapping[str, str], where: tuple[str, str] = ("there", "here")) -> str:
    """`numpy 2.1.0 there, 2.2.0 here; file jobs.csv: sha256 1a2b… there, 3c4d… here`: what would give other figures."""
    texts = []
    for name in {**here, **there}:
        one, other = there.get(name, "none"), here.get(name, "none")
        if one == other:
            continue
        hashed = max(len(one), len(other)) == 64
        texts.append(
            f"{'code of hetsim' if name == 'code' else name}: sha256 {one[:12]} {where[0]}, {other[:12]} {where[1]}"
            if hashed else f"{name} {one} {where[0]}, {other} {where[1]}"
        )  # fmt: skip
    return "; ".join(texts)


# Sources that are not hetsim's ----------------------------------------------------------------------------------


def _named(scenario: Scenario) -> list[tuple[str, str, Any]]:
    """Kind, name and object of all that a scenario names and other packages may have brought."""
    named = [(spec.kind, spec.name, registry.policy(spec.kind, spec.name)) for spec in _specs(scenario)]
    for kind, names in _entries(scenario):
        named += [(kind, name, registry.entry(kind, name)) for name in names]
    return named


def _entries(scenario: Scenario) -> Iterator[tuple[str, list[str]]]:
    """Names of trace readers and arrival processes that are not built in."""
    own = {kind: registry.third_party(kind) for kind in ("traces", "arrivals", "clusters")}
    if not any(own.values()):
        return
    texts = set(_texts(scenario.raw))
    for kind, names in own.items():
        yield kind, sorted(set(names) & texts)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value


def _source(item: Any, module: ModuleType | None) -> str:
    """A digest of the code that an object needs: its package, or its module and those that the module imports.

    Modules of Python and of installed packages are left out, unless the object is from one.  Of what has no source,
    the digest is never the same twice.
    """
    try:
        if module is None or not getattr(module, "__file__", None):
            return hashlib.sha256(inspect.getsource(item).encode()).hexdigest()
        digest = hashlib.sha256()
        for path in sorted(_reached(module), key=lambda path: path.name):
            digest.update(_tree(path) if path.is_dir() else path.read_bytes())
        return digest.hexdigest()
    except (OSError, TypeError):
        return secrets.token_hex(32)


def _reached(module: ModuleType) -> set[Path]:
    """The folders of packages and the files of modules that a module is made of, itself among them."""
    found: set[Path] = set()
    todo, seen = [module], set()
    while todo:
        one = todo.pop()
        if one.__name__ in seen:
            continue
        seen.add(one.__name__)
        top = sys.modules.get(one.__name__.partition(".")[0], one)
        places = [Path(place) for place in getattr(top, "__path__", ())]
        found.update(places or [Path(str(one.__file__))])
        for value in list(vars(one).values()):
            name = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
            other = sys.modules.get(name) if isinstance(name, str) else None
            if other is not None and _is_user_code(other):
                todo.append(other)
    return found


def _is_user_code(module: ModuleType) -> bool:
    top, file = module.__name__.partition(".")[0], getattr(module, "__file__", None)
    if not file or not file.endswith(".py") or top in _OURS or top in sys.stdlib_module_names:
        return False
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)


def _specs(scenario: Scenario) -> list[PolicySpec]:
    """All policies of a scenario, those inside others too."""
    policies = scenario.policies
    first = [policies.scheduler, policies.admission, policies.batching, policies.routing]
    todo = [*first, *policies.of_service.values(), *policies.routing_of.values()]
    found = []
    while todo:
        spec = todo.pop()
        if spec is not None:
            found.append(spec)
            todo += [value for value in spec.parameters.values() if isinstance(value, PolicySpec)]
    return sorted(found, key=lambda spec: (spec.kind, spec.name))
