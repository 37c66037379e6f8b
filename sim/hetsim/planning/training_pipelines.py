"""The schedule of a training job's pipeline, where it ran."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetsim.errors import UsageError
from hetsim.model.exchange import Exchange
from hetsim.pipelines.schedule import PipelineSchedule, step_schedule
from hetsim.results.one_run.explain import find_tasks
from hetsim.results.one_run.result import Result


def training_pipeline(result: Result, task: Any = None) -> tuple[PipelineSchedule, str]:
    """A step of a job with stages on its last devices, and the job's id.

    Without a task that of the job with the most GPU time.  UsageError where no job, or not this one, has stages.
    """
    record, exchanges = result.record, _exchanges(result)
    if not exchanges:
        text = "no job here has a pipeline that ran; `training` with `pipeline` of 2 or more has one"
        if result.record.input.tasks.staged is not None:
            text += "; what the stages of requests (`pipeline:` of an entry) did is in hetsim.plots.gantt"
        raise UsageError(text)
    if task is None:
        busy = result.modes.units[_codes(result)] * (np.nan_to_num(record.finish, nan=record.end) - record.start)
        row = max(exchanges, key=lambda one: (busy[one], -one))
    else:
        row = find_tasks(result, task)[0]
        if row not in exchanges:
            raise UsageError(f"task {task} has no pipeline that ran; those with one: {_some(result, exchanges)}")
    exchange = exchanges[row]
    devices, _ = record.places[record.place[row]]
    profile = exchange.profile_of([record.input.cluster.devices[one] for one in devices])
    assert exchange.pipeline is not None
    seconds = dict(zip(exchange.pipeline.phases, profile.exposed(), strict=True))
    return step_schedule(exchange.pipeline, seconds, profile.seconds), str(record.input.tasks.name(row))


def has_pipelines(result: Result) -> bool:
    """Return True if a job with stages ran."""
    return bool(_exchanges(result))


def _codes(result: Result) -> np.ndarray:
    return result.modes.codes(result.record.input.tasks.shape, result.record.mode)


def _exchanges(result: Result) -> dict[int, Exchange]:
    """Of each row with a pipeline that ran, how it did."""
    exchanges: dict[int, Exchange] = {}
    modes, codes, place = result.modes.modes, _codes(result), result.record.place
    for code, mode in enumerate(modes):
        if mode.exchange is not None and mode.exchange.pipeline is not None:
            exchanges.update(dict.fromkeys(np.flatnonzero((codes == code) & (place >= 0)).tolist(), mode.exchange))
    return exchanges


def _some(result: Result, rows: dict[int, Exchange]) -> str:
    names = [str(result.record.input.tasks.name(row)) for row in sorted(rows)]
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
