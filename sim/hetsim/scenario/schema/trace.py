"""The `trace:` of a workload entry: its reader, and the reader's parameters."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hetsim import registry
from hetsim.errors import Problem, ScenarioError, UnknownName
from hetsim.model.files import recorded_inputs
from hetsim.scenario.file.document import Document, Path_
from hetsim.scenario.file.problems import translate
from hetsim.scenario.schema.policy import parameter_model
from hetsim.scenario.schema.workload import WorkloadEntry
from hetsim.workload.traces import TaskTable


@dataclass(frozen=True)
class TraceSpec:
    """A trace reader with validated parameters."""

    format: str
    parameters: dict[str, Any]

    def read(self) -> TaskTable:
        """Read the tasks; ScenarioError with file, line and column."""
        reader: Callable[..., TaskTable] = registry.entry("traces", self.format)
        with recorded_inputs() as inputs:
            table = reader(**self.parameters)
        table.opened = (*inputs.opened, *inputs.seen)
        return table


def check_traces(document: Document, base: Path) -> tuple[dict[int, TraceSpec], list[Problem]]:
    """Traces of workload entries by number, and problems with their keys.

    Works on the raw document, so that a missing file is reported with the errors of other parts.
    """
    specs: dict[int, TraceSpec] = {}
    problems: list[Problem] = []
    for number, path, trace in document.in_entries("trace"):
        if isinstance(trace, dict) and isinstance(trace.get("format"), str):
            spec, wrong = _check(document, path, trace, base)
            problems += wrong
            if spec:
                specs[number] = spec
    return specs, problems


def _check(
    document: Document, path: Path_, trace: dict[str, Any], base: Path
) -> tuple[TraceSpec | None, list[Problem]]:
    try:
        reader = registry.entry("traces", trace["format"])
    except UnknownName as error:
        return None, [document.problem((*path, "format"), str(error))]
    signature = dict(inspect.signature(reader, eval_str=True).parameters)
    model = parameter_model(f"trace {trace['format']}", signature)
    given = {key: value for key, value in trace.items() if key != "format"}
    try:
        checked = model.model_validate(given, context={"base": str(base)})
    except ValidationError as error:
        return None, translate(error, document, model, prefix=path, holder=WorkloadEntry)
    values = {key: getattr(checked, key) for key in checked.model_fields_set}
    if (check := getattr(reader, "check", None)) is not None:
        try:
            wrong: list[tuple[str, str]] = check(**values)
        except ScenarioError as error:
            return None, error.problems
        if wrong:
            return None, [document.problem((*path, *_parts(key, trace)), message) for key, message in wrong]
    return TraceSpec(trace["format"], values), []


def _parts(key: str, trace: dict[str, Any]) -> tuple[str, ...]:
    """The path of a key such as columns.gpu_time.v100 within the trace."""
    first, _, rest = key.partition(".")
    inside = trace.get(first)
    if first not in trace:
        return ()
    return (first, rest) if rest and isinstance(inside, dict) and rest in inside else (first,)
