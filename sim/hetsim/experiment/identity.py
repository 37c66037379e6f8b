"""The digest of everything that determines the outcome of a run.

A finished run is stored under this digest, and a worker compares the digest before it starts.  The digest covers the
resolved scenario, the contents of its files, seed and replication, the versions of Python, hetsim and its libraries,
hetsim's own source code, and all code and data that the user's policies, trace readers and arrival processes
reference (`hetsim.experiment.code_digest`).  Keys that only name or arrange runs (`name`, `description`, `sweep`,
`replications`) are not part of it.
"""

import ast
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from hetsim import registry
from hetsim.experiment.code_digest import OURS, code_digest, stated_identity
from hetsim.model.files import InputFiles, watch_opens
from hetsim.model.units import ExistingFile, ExistingFolder
from hetsim.results.one_run.store import package_version, versions
from hetsim.scenario.scenario import Scenario
from hetsim.scenario.schema.policy import PolicySpec

FORMAT = 3
# Keys that do not affect a run, and the seed, which is added for each run.
_NO_PART = ("name", "description", "sweep", "replications", "seed")
UNKNOWN = "unknown inputs of "  # Prefix of the names of parts that list what the digest of a code does not cover.

# Path, size and time of the last change; the contents count as equal while these are equal.
Signature = tuple[Path, int, int]


@cache
def fingerprint() -> dict[str, str]:
    """Versions, and a digest of hetsim's source; if all are equal, results are equal."""
    digest = hashlib.sha256()
    for name in OURS:
        digest.update(_tree(Path(str(__import__(name).__file__)).parent))
    return {**versions(), "code": digest.hexdigest()}


def _tree(folder: Path) -> bytes:
    digest = hashlib.sha256()
    suffixes = {".py", ".json", ".parquet", ".yaml"} if folder.name == OURS[0] else {".py"}
    for path in sorted(path for path in folder.rglob("*") if path.suffix in suffixes):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.digest()


class Identity:
    """Computes digests of runs; a file is read once, and again only after a change."""

    def __init__(self, check: bool = False) -> None:
        self.check = check
        self._files: dict[Signature, str] = {}
        self._first: dict[Path, str] = {}  # digests of files when they were first asked for
        # (object, kept so that its id is not reused; its digest; what that omits)
        self._sources: dict[tuple[str, str, int], tuple[Any, str, tuple[str, ...]]] = {}
        self.named: dict[str, str] = {}  # digests of the files and code of all scenarios so far
        self.unknown: dict[str, str] = {}  # Digest of a scenario -> why it does not cover all inputs of its runs.

    def parts(self, scenario: Scenario) -> dict[str, str]:
        """Digests, by part, of all inputs of a scenario except seed and replication."""
        values = {key: value for key, value in scenario.raw.items() if key not in _NO_PART}
        self.named |= (inputs := self.inputs(scenario))
        return {**fingerprint(), "scenario": plain_digest([FORMAT, values, self.check]), **inputs}

    def inputs(self, scenario: Scenario) -> dict[str, str]:
        """Digests of the files that a scenario names, and of code outside hetsim."""
        files = {f"file {os.path.relpath(path, scenario.base)}": self._file(path) for path in scenario.files}
        program = scenario.document.program
        return {**files, **self._sources_of(scenario), **({} if program is None else program.inputs(UNKNOWN))}

    def scenario(self, scenario: Scenario) -> str:
        """Digest of a scenario, without seed and replication."""
        parts = self.parts(scenario)
        digest = plain_digest(parts)
        unknown = {name.removeprefix(UNKNOWN): why for name, why in parts.items() if name.startswith(UNKNOWN)}
        if unknown:
            self.unknown[digest] = "; ".join(f"{name}: {why}" for name, why in unknown.items())
        return digest

    def run(self, scenario: str, seed: int, replication: int) -> str:
        return hashlib.sha256(f"{scenario} {seed} {replication}".encode()).hexdigest()

    def _file(self, path: Path) -> str:
        key = signature(path)
        if key not in self._files:
            if path.is_dir():  # what is in it is a file of the scenario too
                self._files[key] = plain_digest(sorted(inner.name for inner in path.iterdir()))
            else:
                with path.open("rb") as stream:
                    self._files[key] = hashlib.file_digest(stream, "sha256").hexdigest()
            self._first.setdefault(path, self._files[key])
        return self._files[key]

    def _sources_of(self, scenario: Scenario) -> dict[str, str]:
        parts = {}
        for kind, name, item in _named(scenario):
            if isinstance(item, str) and item.partition(".")[0] in OURS:
                parts.update(packages_of(item.partition(":")[0]))
                continue
            key = kind, name, id(item)
            if key not in self._sources:
                own = item.partition(".")[0].partition(":")[0] if isinstance(item, str) else ""
                value = registry.load_object(item) if isinstance(item, str) else item
                self._sources[key] = item, *_watched(kind, value, *code_digest(value, own))
            _, parts[f"source of {kind} {name}"], reasons = self._sources[key]
            if reasons:
                parts[f"{UNKNOWN}{kind} {name}"] = "; ".join(reasons)
        return parts

    def at_first(self, scenario: Scenario) -> dict[str, str]:
        """Return `parts` with the digests that files had when they were first read.

        If they differ from those of now, a file has changed during the study.
        """
        first = {f"file {os.path.relpath(path, scenario.base)}": self._first.get(path) for path in scenario.files}
        return {**self.parts(scenario), **{name: digest or "none" for name, digest in first.items()}}


def signature(path: Path) -> Signature:
    about = path.stat()
    return path, about.st_size, about.st_mtime_ns


_ENCODER = json.JSONEncoder(sort_keys=True, default=str)


def plain_digest(value: Any) -> str:
    return hashlib.sha256(_ENCODER.encode(value).encode()).hexdigest()


def differences(here: Mapping[str, str], there: Mapping[str, str], where: tuple[str, str] = ("there", "here")) -> str:
    """List the inputs that differ: `numpy 2.1.0 there, 2.2.0 here; ...`."""
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


# Code that a scenario names -------------------------------------------------------------------------------------


def _named(scenario: Scenario) -> list[tuple[str, str, Any]]:
    named = [(spec.kind, spec.name, registry.reference(spec.kind, spec.name)) for spec in _specs(scenario)]
    own = {kind: registry.third_party(kind) for kind in ("traces", "arrivals", "clusters")}
    if any(own.values()):
        texts = set(_texts(scenario.raw))
        for kind, names in own.items():
            named += [(kind, name, registry.table(kind)[name]) for name in sorted(set(names) & texts)]
    return named


def undeclared(scenario: Scenario, opened: InputFiles) -> str:
    """Return a warning about opened files that the run's digest does not cover.

    "" if there are none, or if the user's code says what it depends on (`identity`).
    """
    warning = scenario.undeclared(opened)
    theirs = [item for _, _, item in _named(scenario)
              if not (isinstance(item, str) and item.partition(".")[0] in OURS)] if warning else []  # fmt: skip
    loaded = [registry.load_object(item) if isinstance(item, str) else item for item in theirs]
    return "" if loaded and all(stated_identity(item) is not None for item in loaded) else warning


def _watched(kind: str, item: Any, digest: str, reasons: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a policy's code, and why it may be incomplete.

    Code that opens files does not make the digest incomplete if opened files are recorded during the run.
    """
    annotations = [one.annotation for one in registry.parameters(item).values()]
    kinds = [inner for one in annotations for inner in (one, *get_args(one))]
    if ExistingFile not in kinds and ExistingFolder not in kinds and kind in registry.POLICY_KINDS:
        return digest, reasons
    watch_opens()
    return digest, tuple(reason for reason in reasons if " opens files" not in reason)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value


@cache
def packages_of(module: str) -> dict[str, str]:
    packages: dict[str, str] = {}
    todo, seen, others = [module], set[str](), {*OURS, *versions(), *sys.stdlib_module_names}
    while todo:
        one = todo.pop()
        names = _imported(one) if one not in seen and one.startswith("hetsim_policies.") else ()
        seen.add(one)
        todo += names
        tops = {name.partition(".")[0] for name in names} - others
        packages |= {f"package {top}": package_version(top) for top in tops}
    return packages


@cache
def _imported(module: str) -> tuple[str, ...]:
    spec = find_spec(module)
    steps: list[ast.AST] = [ast.parse(b"" if spec is None or spec.origin is None else Path(spec.origin).read_bytes())]
    for node in steps:  # it grows; an expression imports nothing
        inner = ast.iter_child_nodes(node)
        steps += [one for one in inner if isinstance(one, ast.stmt | ast.ExceptHandler | ast.match_case)]
    imports = [node for node in steps if isinstance(node, ast.Import | ast.ImportFrom)]
    return tuple({getattr(node, "module", None) or one.name: None for node in imports for one in node.names})


def _specs(scenario: Scenario) -> list[PolicySpec]:
    policies = scenario.policies
    first = [policies.scheduler, policies.admission, policies.batching, policies.routing, policies.eviction]
    todo = [*first, *policies.of_service.values(), *policies.routing_of.values(), *policies.scale_of.values()]
    specs = []
    while todo:
        if (spec := todo.pop()) is not None:
            specs.append(spec)
            todo += [value for value in spec.parameters.values() if isinstance(value, PolicySpec)]
    return sorted(specs, key=lambda spec: (spec.kind, spec.name))
