"""A scenario: loaded, validated, and ready to be built into runs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetsim.errors import Problem, ScenarioError, UsageError, several, suggested_key
from hetsim.model.files import InputFiles, open_input, recorded_inputs
from hetsim.model.randomness import JUDGED
from hetsim.model.record import RunInput
from hetsim.scenario import overrides as setting
from hetsim.scenario.file import document as documents
from hetsim.scenario.file.document import Document
from hetsim.scenario.schema.policy import Policies, check_policies
from hetsim.scenario.schema.whole import ScenarioModel, check
from hetsim.scenario.schema.workload import TraceSpec, check_traces
from hetsim.workload.traces import TaskTable

if TYPE_CHECKING:
    from hetsim.engine.simulation import Simulation

# `{"policy.scheduler.name": "sjf"}`, or `["policy.scheduler.name=sjf"]` as on the command line.
Overrides = Mapping[str, Any] | list[str] | tuple[str, ...]


class Scenario:
    """One scenario; immutable.  Attributes:

    model      the validated values (`hetsim.scenario.schema.whole.ScenarioModel`)
    policies   the policies with validated parameters
    base       the folder to which paths in the scenario are relative
    raw        the document as plain data, overrides applied and the policy in its long form
    inputs     the files that were named or opened during validation
    notes      remarks for the user (unused columns of a trace, unused times), known after `build`
    """

    def __init__(
        self, document: Document, base: Path, model: ScenarioModel, policies: Policies, traces: dict[int, TraceSpec],
        inputs: InputFiles,
    ):  # fmt: skip
        self.document = document
        self.base = base
        self.model = model
        self.policies = policies
        self.traces = traces
        self.inputs = inputs
        self.notes: list[str] = []
        self._tables: dict[int, TaskTable] = {}

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def description(self) -> str:
        return " ".join(self.model.description.split())

    @property
    def raw(self) -> dict[str, Any]:
        return self.document.data

    @property
    def file(self) -> str | None:
        return self.document.file

    def to_yaml(self, absolute_paths: bool = False, warmup: str | None = None) -> str:
        """Write the resolved scenario; loaded again, it is the same scenario.

        Parameters: absolute_paths: write full paths of files, so that the text can be moved; warmup: a time that
            replaces the scenario's warm-up.
        Returns: YAML.
        """
        return self.deferred_yaml(absolute_paths, warmup)()

    def deferred_yaml(self, absolute_paths: bool = False, warmup: str | None = None) -> Callable[[], str]:
        """Return a function that later writes the scenario, as it is now, as YAML."""
        # Names of files are resolved now: later the working directory, and what lies there, may be others.
        raw = documents.with_full_paths(self.raw, self.inputs.named) if absolute_paths else self.raw
        return partial(documents.dump, raw if warmup is None else {**raw, "warmup": warmup})

    def with_overrides(self, overrides: Overrides) -> Scenario:
        """Copy the scenario with some values changed.

        Parameters: overrides: values to change, as in `hetsim.run`.
        Returns: another scenario.
        """
        return from_document(self.document.copy(), self.base, overrides)

    def joined(self, changed: Mapping[str, Scenario]) -> Scenario:
        """Copy the scenario, with top-level keys (such as `policy`) of other scenarios.

        Parameters: changed: by key, the scenario whose value is used (it must not name files, which are not copied).
        Returns: the combined scenario, which shares its parts with the given scenarios.
        """
        raw = {**self.raw, **{key: one.raw[key] for key, one in changed.items()}}
        document = Document(raw, self.file, program=self.document.program)
        model = self.model.model_copy(update={key: getattr(one.model, key) for key, one in changed.items()})
        entries = changed.get("workload", self)
        own = {name: getattr(entries.policies, name) for name in ("of_service", "routing_of", "scale_of")}
        policies = replace(changed.get("policy", self).policies, **own)
        return Scenario(document, self.base, model, policies=policies, traces=entries.traces, inputs=InputFiles())

    def moved(self) -> Scenario:
        """Return the same scenario, with the path of its folder as an absolute path."""
        return from_document(self.document.copy(), self.base.resolve())

    @property
    def content_hash(self) -> str:
        """Hash of everything that determines a run, except the seed."""
        digest = hashlib.sha256(json.dumps(self.raw, sort_keys=True, default=str).encode())
        for path in self.files:
            if not path.is_dir():
                with open_input(path) as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()

    @property
    def files(self) -> list[Path]:
        """Files that were named or opened in validation, and all files in named folders."""
        paths = {*self.inputs.paths, *self.inputs.opened}
        for folder in [path for path in paths if path.is_dir()]:
            paths.update(folder.rglob("*"))
        return sorted(paths)

    def undeclared(self, opened: InputFiles) -> str:
        """Return a warning about files that a run opened and the scenario does not name.

        Parameters: opened: files recorded during the run.
        Returns: the warning, or "" if there is no such file.
        """
        read = {*opened.opened, *opened.seen, *self.inputs.seen}
        read.update(path for table in self._tables.values() for path in table.opened)
        declared = {os.path.abspath(path) for path in self.files} if read else set()
        paths = sorted({os.path.abspath(path) for path in read} - declared)
        names = [path.removeprefix(f"{os.path.abspath(self.base)}{os.sep}") for path in paths]
        return f"opened files that the scenario does not name: {', '.join(names)}" if names else ""

    def table(self, entry: int) -> TaskTable:
        """Read the trace of a workload entry; cached.

        Parameters: entry: number of the entry.
        Returns: the tasks of the trace.
        """
        if entry not in self._tables:
            table = self._tables[entry] = self.traces[entry].read()
            self.notes += table.notes
        return self._tables[entry]

    def share_table(self, entry: int, table: TaskTable) -> None:
        """Use a trace that another scenario has already read for this entry."""
        self._tables[entry] = table
        self.notes += table.notes

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any] | Scenario, overrides: Overrides = ()) -> Scenario:
        """Load a scenario from a file, a shipped name, or a mapping.

        Parameters: source: file, shipped name or mapping; overrides: values to change.
        Returns: the scenario.
        """
        return load(source, overrides)

    def build(self, seed: int | None = None, replication: int = 0, loads: str = JUDGED) -> RunInput:
        """Build the input of one run.

        Parameters: seed, replication: identify the run; loads: its purpose, judging or training, which
            determines its random numbers, too (`hetsim.model.randomness`).
        Returns: the input of the engine: cluster, tasks, policies and others.
        """
        from hetsim.scenario.building.run_input import build

        with self.addresses():
            return build(self, seed, replication, loads)

    def begin(
        self, seed: int | None = None, replication: int = 0, *, check: bool = False, warmup: float | None = None
    ) -> Simulation:
        """Prepare one run up to the start of its clock.

        This places replicas of language models on their devices, and lets static policies make their plans, which may
        take long.  `warmup` replaces that of the scenario.
        """
        from hetsim.engine.simulation import Simulation

        run = self.build(seed, replication)
        if warmup is not None:
            run.warmup = warmup
        with self.addresses():
            return Simulation(run, check=check)

    @contextmanager
    def addresses(self) -> Iterator[None]:
        """Context manager that adds file, line and column of the key to raised problems."""
        try:
            yield
        except ScenarioError as error:
            raise ScenarioError([self.document.addressed(problem) for problem in error.problems]) from None

    def __getstate__(self) -> dict[str, Any]:
        # Tables can be large: a worker process reads them again.
        return {**self.__dict__, "_tables": {}}

    def __repr__(self) -> str:
        return f"Scenario({self.name!r})"


def load(
    source: str | Path | Mapping[str, Any] | Scenario, overrides: Overrides = (), base: str | Path | None = None
) -> Scenario:
    """Load a scenario: a file, a shipped name or a mapping, with `overrides`.

    A text is the path of a file if it contains a folder, ends with a YAML suffix, or names an existing file; otherwise
    it is the name of a shipped scenario.  `base`: the folder to which paths are relative; by default that of the file,
    or for a mapping the working directory.  ScenarioError lists everything that is wrong.
    """
    if isinstance(source, Scenario):
        return source.with_overrides(overrides) if overrides else source
    if isinstance(source, Mapping):
        document, folder = documents.from_mapping(dict(source)), Path()
    elif isinstance(source, str | os.PathLike):
        path = _path(source)
        document, folder = documents.read(path), path.parent
    else:
        raise UsageError(f"scenario must be a file, the name of a shipped one, a mapping or a Scenario; got {source!r}")
    return from_document(document, folder if base is None else Path(base), overrides)


def from_document(document: Document, base: Path, overrides: Overrides = ()) -> Scenario:
    """Validate a document, which is changed in place, and return its scenario."""
    setting.apply(document, assignments(overrides))
    with recorded_inputs() as inputs:
        model, problems = check(document, base)
        policies, policy_problems = check_policies(document, base)
        traces, trace_problems = check_traces(document, base)
    problems += [*policy_problems, *_sweep_paths(document)]
    problems += [problem for problem in trace_problems if problem not in problems]
    if problems or model is None or policies is None:
        raise _in_order(problems + _further(document, base, traces))
    return Scenario(document, base, model, policies=policies, traces=traces, inputs=inputs)


def _in_order(problems: list[Problem]) -> ScenarioError:
    def place(problem: Problem) -> tuple[str, int, int]:
        return problem.file or "", problem.line or 0, problem.column or 0

    ordered: list[Problem | str] = [*sorted(problems, key=place)]
    return ScenarioError(ordered)


def _sweep_paths(document: Document) -> Iterator[Problem]:
    sweep = document.data.get("sweep")
    for key in sweep if isinstance(sweep, dict) else ():
        try:
            setting.check_path(document.data, key)
            if key.partition(".")[0] not in ScenarioModel.model_fields:
                near = suggested_key(key.partition(".")[0], ScenarioModel.model_fields)
                raise LookupError(f'there is no key "{key.partition(".")[0]}" in a scenario{near}')
        except LookupError as error:
            yield document.problem(("sweep", key), str(error.args[0]))


def _further(document: Document, base: Path, traces: dict[int, TraceSpec]) -> list[Problem]:
    """Return more problems of an invalid scenario: of traces, cluster and workload."""
    from hetsim.scenario.building.streams_and_items import check_parts

    problems: list[Problem] = []
    tables: dict[int, TaskTable] = {}
    for number, spec in traces.items():
        try:
            tables[number] = spec.read()
        except ScenarioError as error:
            problems += error.problems
    return problems + check_parts(document, base, tables)


def _path(source: str | Path) -> Path:
    path = Path(source)
    try:
        there = path.exists()
    except (OSError, ValueError):  # too long for a name, or a NUL in it: `read` says so
        there = True
    if there or isinstance(source, Path) or path.suffix in (".yaml", ".yml", ".json"):
        return path
    from hetsim.scenario.file.shipped import find

    return find(str(source))


def assignments(overrides: Overrides) -> list[tuple[str, Any]]:
    """Return overrides as pairs of path and value; UsageError for a malformed text."""
    if isinstance(overrides, Mapping):
        return [(str(key), documents.from_mapping(value).data) for key, value in overrides.items()]
    what = "a mapping of keys to values, or a list of key.path=value"
    return [setting.parse_assignment(str(text)) for text in several(overrides, "overrides", what)]
