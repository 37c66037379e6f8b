"""Merge the streams of a workload into one table of tasks, sorted by arrival."""

import math
from typing import Any

import numpy as np

from hetsim.model.clients import Calls
from hetsim.model.ragged import Ragged
from hetsim.model.record import ClosedStream
from hetsim.model.service import LanguageService, Service
from hetsim.model.tasks import Item, KernelWork, StagedRequests, Tasks
from hetsim.scenario.building.language_model import language_of
from hetsim.scenario.building.served import service_of
from hetsim.scenario.building.streams import Context, TaskStream, calls_of, with_attempts


def merge(
    streams: list[TaskStream], context: Context, items: list[Item]
) -> tuple[Tasks, list[ClosedStream], list[Service], list[LanguageService], Calls | None]:
    """Merge the entries' tasks by arrival; those without an arrival (inf) are last.

    Returns the tasks, the closed loops, the services, the language models, and calls that clients repeat (None: none).
    """
    counts = [len(stream) // stream.depth for stream in streams]
    streams = [with_attempts(stream, context) for stream in streams]
    sizes = [len(stream) for stream in streams]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    total = int(starts[-1])
    arrival = _joined([stream.arrival for stream in streams])
    order = None if total == 0 or bool(np.all(arrival[1:] >= arrival[:-1])) else np.argsort(arrival, kind="stable")

    def sort(column: np.ndarray) -> np.ndarray:
        return column if order is None else column[order]

    def sort_codes(column: str, names: str) -> tuple[np.ndarray | None, list[str]]:
        codes, merged = _merged_codes(streams, column, names, sizes)
        return None if codes is None else sort(codes), merged

    def optional(name: str, default: float) -> np.ndarray | None:
        columns = [getattr(stream, name) for stream in streams]
        if all(column is None for column in columns):
            return None
        parts = [np.full(n, default) if c is None else c for c, n in zip(columns, sizes, strict=True)]
        return sort(_joined(parts))

    arrival = sort(arrival)
    time = estimate = sort(_matrix([stream.time for stream in streams]))
    if any(stream.estimate is not None for stream in streams):
        estimate = sort(_matrix([s.time if s.estimate is None else s.estimate for s in streams]))
    rank = np.arange(total)
    if order is not None:
        rank[order] = np.arange(total)
    class_code, classes = sort_codes("class_code", "classes")
    user_code, users = sort_codes("user_code", "users")
    partition_code, partitions = sort_codes("partition_code", "partitions")
    refused = {int(rank[start + row]): reason for stream, start in zip(streams, starts.tolist(), strict=False)
               for row, reason in stream.refused.items()}  # fmt: skip
    deadline, patience = optional("deadline", math.nan), optional("patience", math.inf)
    bytes_in, bytes_out = _bytes(optional("bytes_in", 0.0)), _bytes(optional("bytes_out", 0.0))
    tasks = Tasks(
        arrival=arrival, shape=sort(_joined([stream.shape for stream in streams])), shapes=context.modes.shapes,
        time=time, estimate=estimate, id=_ids(streams, sizes, sort), class_code=class_code, classes=classes,
        user_code=user_code, users=users, priority=optional("priority", 0.0), weight=optional("weight", 1.0),
        deadline=None if deadline is None else np.where(np.isinf(arrival), math.nan, arrival + deadline),
        expires=None if patience is None else arrival + patience, bytes_in=bytes_in, bytes_out=bytes_out, items=items,
        work=_work(streams, order), hash_ids=_hash_ids(streams, order), partition_code=partition_code,
        partitions=partitions, refused=dict(sorted(refused.items())), extra={
            name: sort(_joined([s.extra.get(name, np.full(n, math.nan)) for s, n in zip(streams, sizes, strict=True)]))
            for name in dict.fromkeys(name for stream in streams for name in stream.extra)
        },
    )  # fmt: skip
    if any(partitions) and "partition" not in tasks.extra:
        codes = np.zeros(total, dtype=np.int32) if tasks.partition_code is None else tasks.partition_code
        tasks.extra["partition"] = np.array(partitions, dtype=object)[codes]
    _join_graph(tasks, streams, starts, rank=rank, order=order)
    tasks.staged = _staged(streams, starts, rank)
    _join_items(tasks, streams, order)
    _results_in_place(tasks)
    closed: list[ClosedStream] = []
    services: list[Service] = []
    language: list[LanguageService] = []
    for stream, start, number in zip(streams, starts.tolist(), counts, strict=False):
        rows = rank[start : start + len(stream)]
        if stream.think is not None:
            sent = [None if own is None else own[:number] for own in (stream.deadline, stream.patience)]
            closed.append(ClosedStream(stream.name, rows[:number], stream.clients, stream.think, *sent))
        if stream.service is not None and len(rows):
            services.append(service_of(stream, stream.service, np.sort(rows), tasks))
        if stream.language is not None and len(rows):
            language.append(language_of(stream, stream.language, np.sort(rows), tasks))
    return tasks, closed, services, language, calls_of(streams, rank, counts, context)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _matrix(parts: list[np.ndarray]) -> np.ndarray:
    width = max(part.shape[1] for part in parts)
    short = {number: width - part.shape[1] for number, part in enumerate(parts) if part.shape[1] < width}
    filled = [
        np.pad(part, ((0, 0), (0, short[number])), constant_values=np.inf) if number in short else part
        for number, part in enumerate(parts)
    ]
    return _joined(filled)


def _work(streams: list[TaskStream], order: np.ndarray | None) -> KernelWork | None:
    if all(stream.work is None for stream in streams):
        return None
    width = max(stream.time.shape[1] for stream in streams)
    parts = [KernelWork.unknown(len(stream), width) for stream in streams]
    for stream, part in zip(streams, parts, strict=True):
        for column, of_stream in zip(part.columns, () if stream.work is None else stream.work.columns, strict=False):
            column[:, : of_stream.shape[1]] = of_stream
    joined = KernelWork(*(np.concatenate(columns) for columns in zip(*(part.columns for part in parts), strict=True)))
    return joined if order is None else joined.take(order)


def _bytes(column: np.ndarray | None) -> np.ndarray | None:
    return None if column is None or not column.any() else column.astype(np.int64)


def _merged_codes(
    streams: list[TaskStream], column: str, names: str, sizes: list[int]
) -> tuple[np.ndarray | None, list[str]]:
    code_of: dict[str, int] = {}
    parts = []
    for stream, size in zip(streams, sizes, strict=True):
        numbers = np.array([code_of.setdefault(name, len(code_of)) for name in getattr(stream, names)], dtype=np.int32)
        codes = getattr(stream, column)
        parts.append(np.full(size, numbers[0], dtype=np.int32) if codes is None else numbers[codes])
    return (None if len(code_of) == 1 else _joined(parts)), list(code_of)


def _ids(streams: list[TaskStream], sizes: list[int], sort: Any) -> np.ndarray | None:
    if all(stream.id is None for stream in streams):
        return None
    if len(streams) == 1:
        assert streams[0].id is not None
        return sort(streams[0].id)
    parts = []
    for stream, size in zip(streams, sizes, strict=True):
        own = range(size) if stream.id is None else stream.id.tolist()
        parts.append(np.array([f"{stream.name}/{value}" for value in own], dtype=object))
    return sort(_joined(parts))


def _hash_ids(streams: list[TaskStream], order: np.ndarray | None) -> Ragged | None:
    if all(stream.hash_ids is None for stream in streams):
        return None
    parts = [Ragged.empty(len(stream)) if stream.hash_ids is None else stream.hash_ids for stream in streams]
    joined = Ragged.joined(parts)
    return joined if order is None else joined.take(order)


def _sorted_lists(streams: list[TaskStream], lists: list[list[Any]], order: np.ndarray | None) -> list[Any]:
    flat = [row for part in lists for row in part]
    return flat if order is None else [flat[row] for row in order.tolist()]


def _join_graph(tasks: Tasks, streams: list[TaskStream], starts: np.ndarray, rank: np.ndarray, order: Any) -> None:
    if all(stream.predecessors is None for stream in streams):
        return
    new = rank.tolist()
    parts: list[list[tuple[int, ...]]] = []
    for stream, start in zip(streams, starts.tolist(), strict=False):
        if stream.predecessors is None:
            parts.append([()] * len(stream))
        else:
            parts.append([tuple(new[start + p] for p in row) for row in stream.predecessors])
    tasks.predecessors = _sorted_lists(streams, parts, order)


def _staged(streams: list[TaskStream], starts: np.ndarray, rank: np.ndarray) -> StagedRequests | None:
    """Return the request and the stage of each task; None if no stream has stages."""
    if all(stream.stages is None for stream in streams):
        return None
    total = len(rank)
    staged = StagedRequests(
        np.arange(total), np.full(total, -1, np.int32), [], id=np.empty(total, dtype=object),
        alone=np.full(total, math.nan)
    )
    for stream, start in zip(streams, starts.tolist(), strict=False):
        own = rank[start : start + len(stream)]
        if stream.stages is None:
            ids = range(len(stream)) if stream.id is None else stream.id.tolist()
        else:
            staged.first[own] = rank[start + stream.stages.first]
            staged.stage[own] = stream.stages.stage + len(staged.stages)
            staged.stages += stream.stages.names
            staged.alone[own] = stream.stages.alone
            ids = stream.stages.id.tolist()
        staged.id[own] = list(ids) if len(streams) == 1 else [f"{stream.name}/{value}" for value in ids]
    return staged


def _join_items(tasks: Tasks, streams: list[TaskStream], order: Any) -> None:
    index = {item.name: number for number, item in enumerate(tasks.items)}
    for key in ("reads", "writes"):
        if all(getattr(stream, key) is None for stream in streams):
            continue
        parts = []
        for stream in streams:
            lists = getattr(stream, key) or [()] * len(stream)
            parts.append([tuple(index[name] for name in row) for row in lists])
        setattr(tasks, key, _sorted_lists(streams, parts, order))


def _results_in_place(tasks: Tasks) -> None:
    """Turn outputs that successors read into data items, which remain on the device."""
    if tasks.predecessors is None or tasks.bytes_out is None:
        return
    tasks.items = list(tasks.items)
    made: dict[int, int] = {}
    extra_reads: dict[int, list[int]] = {}
    for row, predecessors in enumerate(tasks.predecessors):
        for predecessor in predecessors:
            if not (size := int(tasks.bytes_out[predecessor])):
                continue
            if predecessor not in made:
                made[predecessor] = len(tasks.items)
                tasks.items.append(Item(f"{tasks.name(predecessor)}:out", size))
            extra_reads.setdefault(row, []).append(made[predecessor])
    if not made:
        return
    reads = list(tasks.reads or [()] * len(tasks))
    writes = list(tasks.writes or [()] * len(tasks))
    tasks.bytes_out = tasks.bytes_out.copy()
    for row, item in made.items():
        writes[row] = (*writes[row], item)
        tasks.bytes_out[row] = 0
    for row, items in extra_reads.items():
        reads[row] = (*reads[row], *items)
    tasks.reads, tasks.writes = reads, writes
    if not tasks.bytes_out.any():
        tasks.bytes_out = None
