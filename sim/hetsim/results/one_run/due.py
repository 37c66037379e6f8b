"""When deadlines are due, and until when a run tells whether they were met."""

from __future__ import annotations

import math

import numpy as np

from hetsim.model.record import UNFINISHED, Record
from hetsim.results.one_run import language


def due_times(record: Record) -> np.ndarray:
    """When it is decided at the latest whether each row meets its deadline; NaN where it has none.

    Of a request to a language model with limits on its tokens: the time at which the last limit is kept or missed.
    """
    tasks = record.input.tasks
    due = np.full(len(tasks), np.nan) if tasks.deadline is None else tasks.deadline
    return np.fmin(due, language.due_times(record)) if record.input.language else due


def observed_until(record: Record) -> float:
    """Until when outcomes are known: the end of the run, or for ever where it was drained."""
    drained = math.isinf(record.input.horizon) and not (record.status == UNFINISHED).any()
    return math.inf if drained else record.end
