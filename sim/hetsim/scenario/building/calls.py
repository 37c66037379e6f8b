"""Calls: rows of a stream for the attempts that clients may make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from hetsim.errors import Problem, ScenarioError
from hetsim.model.clients import Calls
from hetsim.model.ragged import Ragged
from hetsim.model.tasks import KernelWork, Tasks
from hetsim.scenario.building.streams import Context, TaskStream


def with_retries(stream: TaskStream, context: Context) -> TaskStream:
    """The stream with rows for all retries behind its own: equal tasks, not yet sent."""
    if stream.calls is None or stream.calls.retry is None:
        return stream
    times, count = stream.calls.retry.times, len(stream)
    again = np.tile(np.arange(count), 1 + times)
    changes: dict[str, Any] = {}
    for one in fields(stream):
        column = getattr(stream, one.name)
        if isinstance(column, np.ndarray | Ragged | KernelWork):
            changes[one.name] = column[again] if isinstance(column, np.ndarray) else column.take(again)
    changes["arrival"][count:] = math.inf
    if stream.calls is not None and stream.calls.retry is not None and stream.calls.retry.size == "new":
        random = context.random.stream("retry sizes", stream.name)
        kind = stream.shape if stream.class_code is None else stream.class_code
        for one in np.unique(kind):
            same = np.flatnonzero(kind == one)
            again[count:][kind[again[count:]] == one] = random.choice(same, times * len(same))
        changes["time"] = stream.time[again]
        changes["estimate"] = None if stream.estimate is None else stream.estimate[again]
    if stream.id is not None:
        later = [f"{name}/{attempt}" for attempt in range(2, 2 + times) for name in stream.id.tolist()]
        changes["id"] = np.array(stream.id.tolist() + later, dtype=object)
    refused = {row + part * count: why for row, why in stream.refused.items() for part in range(1 + times)}
    return replace(stream, **changes, refused=refused, extra={key: own[again] for key, own in stream.extra.items()})


def calls_of(streams: list[TaskStream], rank: np.ndarray, counts: list[int], context: Context) -> Calls | None:
    """The attempts of all streams.

    rank: rows of their tasks; counts: how many of each stream are not retries.
    """
    if all(stream.calls is None for stream in streams):
        return None
    total = len(rank)
    calls = Calls(
        [], whose=np.full(total, -1, np.int16), attempt_of=np.full(total, -1), following=np.full(total, -1),
        number=np.zeros(total, np.int8), bucket=np.zeros(total, np.int32), drawn=np.ones(total),
    )  # fmt: skip
    start = 0
    for stream, count in zip(streams, counts, strict=True):
        attempts = rank[start : start + len(stream)].reshape(-1, max(1, count))
        start += len(stream)
        if stream.calls is None or not count:
            continue
        calls.whose[attempts] = len(calls.clients)
        calls.clients.append(stream.calls)
        calls.attempt_of[attempts] = attempts[0]
        calls.following[attempts[:-1]] = attempts[1:]
        calls.number[attempts] = np.arange(len(attempts))[:, None]
        if stream.calls.count is not None:
            random = context.random.stream("clients", stream.name)
            calls.bucket[attempts] = random.integers(stream.calls.count, size=count)
        retry = stream.calls.retry
        if retry is not None and retry.wait.jitter != "none":
            random = context.random.stream("retries", stream.name)
            draw = random.random if retry.wait.jitter == "full" else random.standard_exponential
            calls.drawn[attempts[1:]] = draw(attempts[1:].shape)
    return calls


REACTIONS = {
    "timeout": "no attempt times out (give a timeout, below give_up_after where that is given)",
    "rejected": "nothing rejects an attempt (name a policy.admission, or a policy that drops what is late)",
    "failed": "no attempt fails (what a fault stops waits again; tasks are killed at their time limits with "
    "site: {at_limit: kill})",
}
"""Causes of retries, and what is said where none of them can happen."""


def check_retries(
    calls: Calls, tasks: Tasks, streams: list[TaskStream], policies: Sequence[Any], batching: Sequence[Any],
    killing: bool, context: Context,
) -> None:  # fmt: skip
    """ScenarioError for retries to which nothing in the scenario can lead.

    policies: of the whole run, each with `rejects`; batching: likewise, of each stream that is a service; killing: are
    tasks killed at their time limits?
    """
    problems: list[Problem] = []
    served = iter(batching)
    sent = [stream for stream in streams if len(stream)]
    rejecting = [stream.service is not None and next(served).rejects for stream in sent]
    with_calls = [pair for pair in zip(sent, rejecting, strict=True) if pair[0].calls is not None]
    for number, ((stream, drops), clients) in enumerate(zip(with_calls, calls.clients, strict=True)):
        if clients.retry is None:
            continue
        rows = np.flatnonzero(calls.whose == number)
        limits = tasks.time_limit
        possible = {
            "timeout": clients.timeout < clients.give_up_after,
            "rejected": drops or any(one.rejects for one in policies) or bool(np.isin(rows, list(tasks.refused)).any()),
            "failed": killing and limits is not None and bool(np.isfinite(limits[rows]).any()),
        }
        if not any(possible[cause] for cause in clients.retry.on):
            whys = "; ".join(why for cause, why in REACTIONS.items() if cause in clients.retry.on)
            path = (*stream.path, "clients", "retry", "on")
            problems.append(context.problem(path, f"it has nothing to react to: {whys}"))
    if problems:
        raise ScenarioError(problems)
