"""Readers of job logs: a reader of a path, with options, from one of a log."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

from hetsim.model.paths import ExistingFile
from hetsim.workload.rows.job_log import JobLog, LogCut
from hetsim.workload.rows.job_tables import Assembly
from hetsim.workload.traces import TaskTable


def job_log(read: Callable[..., TaskTable | JobLog]) -> Callable[..., TaskTable]:
    """Make `read(log, own options)` a reader of a path with the common options too.

    It gives a table, or (annotated so) the log itself, to be made a table.  The latter can also be read in parts:
    `reader.parts(folder, path, **options)`, see `TableParts`.
    """

    def log_of(path: Path, given: dict[str, Any], folder: Path | None = None) -> JobLog:
        common = {option.name: given.pop(option.name) for option in fields(LogCut) if option.name in given}
        return JobLog(Path(path), LogCut(**common), folder)

    @wraps(read)
    def reader(path: Path, **given: Any) -> TaskTable:
        log = read(log_of(path, given), **given)
        return table_of(log) if isinstance(log, JobLog) else log

    def parts(folder: Path, path: Path, **given: Any) -> TableParts:
        log = log_of(path, given, folder)
        try:
            read(log, **given)
            return TableParts(log)
        except BaseException:
            log.blocks.close()
            raise

    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.signature(read, eval_str=True)
    own = list(signature.parameters.values())[1:]
    common = inspect.signature(LogCut, eval_str=True).parameters.values()
    path = inspect.Parameter("path", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=ExistingFile)
    reader.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [path, *(one.replace(kind=keyword) for one in [*own, *common])], return_annotation=TaskTable
    )
    if signature.return_annotation is JobLog:
        reader.parts = parts  # type: ignore[attr-defined]
    return reader


class TableParts:
    """The tasks of a log as consecutive tables, for logs larger than memory.

    Rows wait on disk, in a nameless file in a folder, until all are known.  `notes` are complete once the tables are
    through.
    """

    def __init__(self, log: JobLog):
        self._blocks = log.blocks
        self._assembly = Assembly(log)
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[TaskTable]:
        try:
            yield from self._assembly.tables()
            self.notes = self._assembly.notes()
        finally:
            self.close()

    def close(self) -> None:
        self._blocks.close()


def table_of(log: JobLog) -> TaskTable:
    """The table of a log after its options; ScenarioError with all problems."""
    assembly = Assembly(log)
    (table,) = assembly.tables()
    table.notes += assembly.notes()
    return table
