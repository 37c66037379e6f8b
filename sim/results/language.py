"""Requests to language models in the tables of a run: times of tokens, and whether their limits were kept.

A replica serves many requests at a time, each for its own part of a busy period, so what a launch of a batch says of
its members does not hold here: they run from their own start to their own finish.
"""

from __future__ import annotations

import numpy as np

from sim.model.record import COMPLETED, Record, RunInput


def rows_of(run: RunInput) -> np.ndarray:
    """The rows of requests to language models."""
    rows = [service.rows for service in run.language]
    return np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)


def periods(record: Record, task: np.ndarray) -> np.ndarray:
    """Which launches (given by their task) are busy periods of replicas."""
    shapes = [service.shape.index for service in record.input.language]
    return np.isin(record.input.tasks.shape[task], shapes)


def token_times(record: Record) -> dict[str, np.ndarray]:
    """Columns `ttft`, `tpot` of the record's rows: seconds from arrival to the first token, and for each further
    one on average; NaN where there are none."""
    if not record.input.language:
        return {}
    tasks = record.input.tasks
    count = len(tasks)
    first = np.full(count, np.nan) if record.first_token is None else record.first_token
    further = np.full(count, np.nan)
    rows = rows_of(record.input)
    output = np.maximum(1.0, np.rint(np.nan_to_num(np.asarray(tasks.extra["output_tokens"], dtype=float)[rows])))
    with np.errstate(divide="ignore", invalid="ignore"):
        further[rows] = np.where(output > 1, (record.finish[rows] - first[rows]) / (output - 1), np.nan)
    return {"ttft": first - tasks.arrival, "tpot": further}


def limits(record: Record, times: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Rows that have a limit on a time of tokens, and rows that kept all they have (one token has no `tpot`)."""
    count = len(record.status)
    limited, kept = np.zeros(count, bool), np.ones(count, bool)
    for service in record.input.language:
        rows = service.rows
        for name, limit in (("ttft", service.ttft), ("tpot", service.tpot)):
            if np.isfinite(limit):
                limited[rows] = True
                kept[rows] &= ~(times[name][rows] > limit)
    return limited, kept & (record.status == COMPLETED)


def running(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """From when to when each request that has started was served."""
    rows = rows_of(record.input)
    start, finish = record.start[rows], record.finish[rows]
    started = ~np.isnan(start)
    return start[started], np.where(np.isnan(finish), record.end, finish)[started]
