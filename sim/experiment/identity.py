"""What decides the outcome of a run, as a digest: the name under which a finished run is kept.

The digest covers the resolved scenario, the contents of the files it names, seed and replication, the versions of
Python, hetsim and the libraries, hetsim's own source code, and that of policies which are not hetsim's.  What only
names or arranges runs (`name`, `description`, `sweep`, `replications`) is left out.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import secrets
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim import registry
from sim.scenario.policy_schema import PolicySpec

if TYPE_CHECKING:
    from sim.scenario.scenario import Scenario

FORMAT = 1
_NO_PART = ("name", "description", "sweep", "replications", "seed")
"""Keys that decide nothing of a run; the seed comes beside."""


@cache
def fingerprint() -> dict[str, str]:
    """Versions, and a digest of hetsim's source: what must be equal for the same scenario to give the same figures."""
    import policies
    import sim
    from sim.results.store import versions

    digest = hashlib.sha256()
    for package in (sim, policies):
        folder = Path(str(package.__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return {**versions(), "code": digest.hexdigest()}


class Identity:
    """Digests of runs; every file is read once."""

    def __init__(self, check: bool = False) -> None:
        self.check = check
        self._files: dict[tuple[Path, int, int], str] = {}
        self._sources: dict[tuple[str, str], str] = {}

    def scenario(self, scenario: Scenario) -> str:
        """Digest of a scenario without seed and replication."""
        values = {key: value for key, value in scenario.raw.items() if key not in _NO_PART}
        files = sorted((os.path.relpath(path, scenario.base), self._file(path)) for path in scenario.files)
        sources = [self._source(spec) for spec in _specs(scenario)]
        parts = [FORMAT, fingerprint(), values, files, sources, self.check]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    def run(self, scenario: str, seed: int, replication: int) -> str:
        """Digest of one run of a scenario with that digest."""
        return hashlib.sha256(f"{scenario} {seed} {replication}".encode()).hexdigest()

    def _file(self, path: Path) -> str:
        about = path.stat()
        key = (path, about.st_size, about.st_mtime_ns)
        if key not in self._files:
            with path.open("rb") as stream:
                self._files[key] = hashlib.file_digest(stream, "sha256").hexdigest()
        return self._files[key]

    def _source(self, spec: PolicySpec) -> str:
        """A digest of the source of a policy that is not hetsim's; of ours the empty text."""
        key = (spec.kind, spec.name)
        if key not in self._sources:
            item = registry.policy(*key)
            ours = getattr(item, "__module__", "").partition(".")[0] in ("policies", "sim")
            self._sources[key] = "" if ours else _digest(item)
        return self._sources[key]


def _digest(item: Any) -> str:
    """Of the module that an object is from, else of its own source; of what has none, never the same twice."""
    try:
        path = inspect.getsourcefile(item)
        text = Path(path).read_bytes() if path and Path(path).is_file() else inspect.getsource(item).encode()
    except (OSError, TypeError):
        return secrets.token_hex(16)
    return hashlib.sha256(text).hexdigest()


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
