"""Finished runs, kept under a hash of everything that decides what they give.

The hash covers the resolved scenario, the contents of the files it names, seed and replication, the versions of
Python, hetsim and the libraries, hetsim's own source code, and that of policies which are not hetsim's.  What only
names or arranges runs (`name`, `description`, `sweep`, `replications`) is left out.

A run is a file of JSON, `ab/abcdef….json`: written under another name first, then renamed.  A file that is not whole
(a disk that was full, a power cut) is as good as none.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import secrets
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim import registry
from sim.experiment.jobs import Outcome
from sim.model.files import write_whole
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


class Hashes:
    """The hashes of a sweep's runs; files are read once."""

    def __init__(self, check: bool = False) -> None:
        self.check = check
        self._files: dict[tuple[Path, int, int], str] = {}
        self._sources: dict[tuple[str, str], str] = {}

    def scenario(self, scenario: Scenario) -> str:
        """Of a scenario without seed and replication."""
        values = {key: value for key, value in scenario.raw.items() if key not in _NO_PART}
        files = sorted((os.path.relpath(path, scenario.base), self._file(path)) for path in scenario.files)
        sources = [self._source(spec) for spec in _specs(scenario)]
        parts = [FORMAT, fingerprint(), values, files, sources, self.check]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    def run(self, scenario: str, seed: int, replication: int) -> str:
        """Of one run of a scenario with that hash."""
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


class Store:
    """Outcomes by the hash of their run; in a folder, or without one in memory only."""

    def __init__(self, folder: Path | None, metrics: list[str], fresh: bool = False):
        """metrics: which a run that is found must have besides those of every summary; `fresh` finds none."""
        self.folder, self.metrics, self.fresh = folder, metrics, fresh

    def path(self, run: str) -> Path:
        assert self.folder is not None
        return self.folder / run[:2] / f"{run}.json"

    def get(self, run: str) -> Outcome | None:
        """The outcome of a run that was kept whole, with all metrics asked for."""
        if self.folder is None or self.fresh:
            return None
        try:
            kept = json.loads(self.path(run).read_text(encoding="utf-8"))
            if kept["run"] != run:
                return None
            if kept["values"] is None:
                return Outcome(None, kept["warnings"], error=kept["error"])
            values = {name: math.nan if value is None else float(value) for name, value in kept["values"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return Outcome(values, kept["warnings"]) if all(name in values for name in self.metrics) else None

    def put(self, run: str, outcome: Outcome) -> None:
        """Keep an outcome; it is on disk, whole, when this returns."""
        if self.folder is None or not outcome.lasting:
            return
        from sim.results.result import json_values

        values = None if outcome.values is None else json_values(outcome.values)
        kept = {"run": run, "error": outcome.error, "warnings": outcome.warnings, "values": values}
        path = self.path(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(kept, ensure_ascii=False, allow_nan=False)
        write_whole(path, lambda temporary: temporary.write_text(text + "\n", encoding="utf-8"))
