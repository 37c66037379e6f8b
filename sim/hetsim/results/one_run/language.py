"""Columns of requests to language models: token times and their limits.

A replica serves many requests at a time, each during its own part of a busy period; a request's times are therefore
its own start and finish, not those of the replica's launch.
"""

import numpy as np

from hetsim.model.record import COMPLETED, PREEMPTIONS, UNFINISHED, Record, RunInput
from hetsim.model.service import LanguageService


def rows_of(run: RunInput) -> np.ndarray:
    rows = [service.rows for service in run.language]
    return np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)


def periods(record: Record, task: np.ndarray) -> np.ndarray:
    """Mask of the launches that are busy periods of replicas."""
    return np.isin(record.input.tasks.shape[task], [service.shape.index for service in record.input.language])


def token_times(record: Record) -> dict[str, np.ndarray]:
    """Columns `ttft` (first token) and `tpot` (per further token), in s, or NaN."""
    if not record.input.language:
        return {}
    tasks = record.input.tasks
    count = len(tasks)
    first = first_tokens(record)
    further = np.full(count, np.nan)
    rows = rows_of(record.input)
    output = _output(record, rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        has_tpot = (output > 1) & (record.status[rows] == COMPLETED)
        further[rows] = np.where(has_tpot, (record.finish[rows] - first[rows]) / (output - 1), np.nan)
    return {"ttft": first - tasks.arrival, "tpot": further}


def counts(record: Record) -> dict[str, np.ndarray]:
    """Return counts by request: `preemptions_KIND`, and with a cache `cached_tokens`."""
    if not record.input.language:
        return {}
    none = np.zeros(len(record.status), np.int32)
    columns = {f"preemptions_{kind}": record.preemptions_by.get(kind, none) for kind in PREEMPTIONS}
    if any(service.prefix_block for service in record.input.language):
        cached = none if record.cached_tokens is None else record.cached_tokens
        columns["cached_tokens"] = np.where(np.isnan(record.start), np.nan, cached)
    return columns


def _output(record: Record, rows: np.ndarray) -> np.ndarray:
    given = np.asarray(record.input.tasks.extra["output_tokens"], dtype=float)[rows]
    return np.maximum(1.0, np.rint(np.nan_to_num(given)))


def limits(record: Record, times: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return two masks: rows with limits on token times, and rows that satisfy them.

    If only the first token has a limit, the limit is satisfied once that token is in time, even if the request has not
    finished when the run ends.  With one output token, `tpot` is not checked.  If a client retries a request, the time
    to its first token begins at the first attempt.
    """
    limited, kept = np.zeros(len(record.status), bool), record.status == COMPLETED
    begun = ~np.isnan(times["ttft"]) & (record.status == UNFINISHED)
    if record.attempt_of is not None:
        called = np.where(record.attempt_of < 0, np.arange(len(begun)), record.attempt_of)
        times = {**times, "ttft": first_tokens(record) - record.input.tasks.arrival[called]}
    for service in record.input.language:
        rows, own = service.rows, _limits_of(record.input, service)
        kept[rows] |= begun[rows] & np.isinf(own["tpot"])
        for name, limit in own.items():
            limited[rows] |= np.isfinite(limit)
            kept[rows] &= ~(times[name][rows] > limit)
    return limited, kept


def due_times(record: Record) -> np.ndarray:
    """Return when it is known if a request meets its token limits (NaN: no limits).

    This is when the last token is due: the time at which the first token is due, plus the limit per further token (0
    without one) times their number.  Without a limit for the first token, its actual time is used; if there was no
    first token, the end of the request (rejection, failure, reneging), or inf while the request waits.
    """
    due = np.full(len(record.status), np.nan)
    for service in record.input.language:
        rows, (ttft, tpot) = service.rows, _limits_of(record.input, service).values()
        came, gone = first_tokens(record)[rows], np.nan_to_num(record.finish[rows], nan=np.inf)
        first = np.where(np.isinf(ttft), np.where(np.isnan(came), gone, came), record.input.tasks.arrival[rows] + ttft)
        last = first + np.where(np.isinf(tpot), 0.0, tpot) * (_output(record, rows) - 1)
        due[rows] = np.where(np.isinf(ttft) & np.isinf(tpot), np.nan, last)
    return due


def _limits_of(run: RunInput, service: LanguageService) -> dict[str, np.ndarray]:
    none, rows = np.zeros(len(run.tasks)), service.rows
    own = {name: run.tasks.extra.get(f"{name}_limit", none)[rows] for name in ("ttft", "tpot")}
    return {name: np.where(limit > 0, limit, getattr(service, name)) for name, limit in own.items()}


def first_tokens(record: Record) -> np.ndarray:
    """Time of each row's first token; NaN without one."""
    return np.full(len(record.status), np.nan) if record.first_token is None else record.first_token


def running(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of service of each request that has started."""
    rows = rows_of(record.input)
    start, finish = record.start[rows], record.finish[rows]
    started = ~np.isnan(start)
    return start[started], np.where(np.isnan(finish), record.end, finish)[started]
