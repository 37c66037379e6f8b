"""The record of a run: columns that are written while the run proceeds.

A task whose only launch is compute-only (no transfers, nominal speed) is stored in five arrays, without a row; all
other launches are written as rows of the launches table.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from struct import Struct, pack
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hetsim.model.cluster import Cluster
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.record import (
    COMPLETED,
    LAUNCH_COMPLETED,
    LAUNCH_RUNNING,
    MOVES,
    NOT_ARRIVED,
    PREEMPTIONS,
    STAGE_SPANS,
    STOPS,
    UNFINISHED,
    Record,
    RunInput,
)
from hetsim.model.tasks import Tasks

if TYPE_CHECKING:
    from hetsim.engine.flight.launch import Launch

# columns of a row of equal LLM steps that were one event: two times, then integers
STEPS = (
    "start", "end", "replica", "steps", "sequences", "prompt_tokens", "context", "free", "taken", "cached", "running",
    "waiting", "fresh",
)  # fmt: skip
pack_steps = Struct("2d11q").pack


def step_columns(rows: bytearray) -> dict[str, np.ndarray]:
    kinds = [(name, "d" if name in ("start", "end") else "q") for name in STEPS]
    table = np.frombuffer(rows, dtype=kinds)
    return {name: table[name].copy() for name in STEPS}


def per_mode(tasks: Tasks, rows: np.ndarray, mode: np.ndarray, value: Callable[[Mode], float]) -> np.ndarray:
    """Return an array: `value` of the mode in which the task of each row ran."""
    max_modes = max(len(shape.modes) for shape in tasks.shapes)
    table = np.zeros((len(tasks.shapes), max_modes))
    for shape in tasks.shapes:
        for position, its_mode in enumerate(shape.modes):
            table[shape.index, position] = value(its_mode)
    return table[tasks.shape[rows], mode[rows]]


def _watts(mode: Mode) -> float:
    """Return the power above idle (W) of one device (GPU or core) of a mode."""
    return mode.type.power.busy - mode.type.power.idle


def rows_of(kind: str, nothing: int | float, count: int) -> Any:
    """Return a column of `count` items that equal `nothing`; kind: `array` typecode."""
    return memoryview(array(kind, [nothing]) * count)


class PlacementCodes:
    """Integer codes of placements: first devices, then single cores, then gangs."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        # First code of each node's cores; the last value is the first code of gangs.
        self.core_base = list(accumulate((node.cpus for node in cluster.nodes), initial=len(cluster.devices)))
        self._base = self.core_base.pop()
        self._more: dict[tuple[tuple[int, ...], int], int] = {}

    def code(self, placement: Placement, cores: int) -> int:
        """Return the integer code of a placement; `cores`: bitmask of named cores, else 0."""
        devices = placement.devices
        if len(devices) == 1:
            if not cores:
                return devices[0].index
            if not cores & (cores - 1):
                return self.core_base[devices[0].node] + cores.bit_length() - 1
        key = (tuple([device.index for device in devices]), cores)
        # `len` is evaluated before the insertion, so that codes have no gaps.
        return self._more.setdefault(key, self._base + len(self._more))

    def table(self) -> list[tuple[tuple[int, ...], tuple[int, ...] | None]]:
        rows: list[tuple[tuple[int, ...], tuple[int, ...] | None]] = [((d.index,), None) for d in self.cluster.devices]
        for node in self.cluster.nodes:
            rows += [((node.cpu.index,), (core,)) for core in range(node.cpus)]
        for devices, cores in self._more:
            rows.append((devices, tuple(c for c in range(cores.bit_length()) if cores >> c & 1) if cores else None))
        return rows


NAN = math.nan
LAUNCH_TIMES = (
    "decided", "start", "upload_start", "upload_end", "compute_start", "compute_end", "download_start", "end",
)  # fmt: skip

# columns of a launch that was not both plain and complete; the first six are integers
ROW = ("launch", "task", "members", "mode", "place", "outcome", *LAUNCH_TIMES, "busy", "energy", "lost")
WIDTH = len(ROW)
_AS_ROW, _NUMBER = Struct(f"={WIDTH}d"), Struct("=d")
_pack: Final = _AS_ROW.pack
_pack_slice: Final = Struct("=2q").pack
BUSY, ENERGY, LOST = (ROW.index(name) for name in ("busy", "energy", "lost"))

EMPTY: dict[str, Any] = {"batch": -1, "first_token": NAN}  # initial value of a detail column where it is not 0

# detail columns that the record receives unchanged, if they were written
DETAILS = (
    "upload", "compute", "download", "energy", STOPS, MOVES, "cached_tokens", "first_token", "received", "cold_start",
)  # fmt: skip


class Recorder:
    """Columns of one run; the hot path writes `start`, `finish` and others directly."""

    def __init__(self, run: RunInput):
        self.run = run
        count = len(run.tasks)
        self.start: memoryview[float] = rows_of("d", NAN, count)
        self.finish: memoryview[float] = rows_of("d", NAN, count)
        self.mode: memoryview[int] = rows_of("h", -1, count)
        self.place: memoryview[int] = rows_of("i", -1, count)
        self.status: memoryview[int] = rows_of("b", NOT_ARRIVED, count)
        self.ready: memoryview[float] | None = None
        self.reasons: dict[int, str] = {}
        self.holds: list[tuple[float, int, str]] = []
        self.device_log: list[tuple[float, int, str, float]] = []
        self.occupied: list[tuple[int, int, int, float, float, float, float]] = []
        self.batched = False
        # by number of a fused launch: task rows, and saved memory traffic in bytes
        self.fused: dict[int, tuple[tuple[int, ...], tuple[float, ...]]] = {}
        self._staged_by: memoryview[float] | None = None
        self._detail: dict[str, memoryview[float]] = {}
        self.steps = bytearray()  # rows of LLM steps (STEPS); packed, since columns take four times as long to write
        # token gaps that do not follow from `steps`: time of the second token, and the gap in s
        self._gaps = array("d")
        # service, number, KV blocks and placement code of each replica
        self._replicas: list[tuple[str, int, int, int]] = []
        self._rows = bytearray()  # launches, row after row (ROW; the task of a batch is -1); packed, as `steps`
        # by batch: queue number and position of its first request; -1: its rows follow in `_members`
        self._slices = bytearray()
        self._members = bytearray()  # rows of the requests of batches made of objects, one batch after the other
        # rows of the tasks of each launch of several tasks, by the launch's row
        self._groups: dict[int, tuple[int, ...]] = {}
        # requests rejected as a slice: queue, first, count, status, time, reason
        self.discarded: list[tuple[int, int, int, int, float, str]] = []
        self._places = PlacementCodes(run.cluster)
        self.place_code = self._places.code

    def longer(self, count: int) -> dict[int, Any]:
        """Return copies of all columns with `count` more rows, by `id` of each column."""
        columns: list[tuple[Any, Any]] = [
            (self.start, NAN), (self.finish, NAN), (self.mode, -1), (self.place, -1), (self.status, NOT_ARRIVED),
            (self.ready, NAN), *((column, EMPTY.get(name, 0)) for name, column in self._detail.items()),
        ]  # fmt: skip
        copies = {}
        for column, nothing in columns:
            if column is not None:
                more: Any = array(column.format, [nothing]) * count
                # By `id`: a fork uses these copies in place of the run's columns.
                copies[id(column)] = memoryview(array(column.format, column.tobytes()) + more)
        return copies

    def detail(self, name: str) -> "memoryview[float]":
        """Return an optional per-task column, which is created at its first use."""
        if (column := self._detail.get(name)) is None:
            kind = "i" if name.startswith(STOPS) or name in (MOVES, "batch") else "d"
            column = self._detail[name] = rows_of(kind, EMPTY.get(name, 0), len(self.status))
        return column

    def staged(self, row: int) -> bool:
        """Return True if launches of this task have rows, other than those of batches."""
        return "batch" in self._detail and self._detail["batch"][row] >= 0

    def computed(self) -> Iterator[tuple[int, float]]:
        """Yield (task row, device-seconds) for each task of every launch written as a row."""
        slices, members = iter(memoryview(self._slices).cast("q")), iter(memoryview(self._members).cast("q"))
        for number, row in enumerate(_AS_ROW.iter_unpack(self._rows)):
            together: Iterable[int] = self._groups.get(number, (int(row[1]),))
            if row[1] < 0:
                rows, first, count = self.run.services[next(slices)].rows, next(slices), int(row[2])
                together = rows[first : first + count].tolist() if first >= 0 else islice(members, count)
            for member in together:
                yield member, row[BUSY] / row[2]  # members of a launch share its device-seconds equally

    def lose(self, rows: list[int]) -> None:
        """Mark the work of these rows of launches as lost."""
        for row in rows:
            first = row * _AS_ROW.size
            (busy,) = _NUMBER.unpack_from(self._rows, first + BUSY * _NUMBER.size)
            _NUMBER.pack_into(self._rows, first + LOST * _NUMBER.size, busy)  # in place: rows have one width

    def launch(
        self, launch: "Launch", outcome: int, times: tuple[float, ...], end: float, busy: float, energy: float,
        lost: float = 0.0,
    ) -> int:  # fmt: skip
        """Write a row for a launch that had stages or was stopped; return its number.

        `times`: start, begin and end of the upload, begin and end of computing, begin of the download; NaN for missing
        stages.  `busy`, `lost`: device-seconds; `energy`: joules.
        """
        tasks = launch.tasks
        number = self._row(launch, tasks[0].index, len(tasks), outcome=outcome, rest=(*times, end, busy, energy, lost))
        if len(tasks) > 1:
            self.batched = True
            self._groups[number] = tuple(task.index for task in tasks)
            if launch.fusion is not None:
                self.fused[launch.number] = launch.fusion.rows, launch.fusion.saved
        return number

    def _row(self, launch: "Launch", task: int, members: int, outcome: int, rest: tuple[float, ...]) -> int:
        place = self._places.code(launch.placement, launch.cores)
        self._rows += _pack(launch.number, task, members, launch.position, place, outcome, launch.decided, *rest)
        return len(self._rows) // _AS_ROW.size - 1

    def completed(self, launch: "Launch", times: tuple[float, ...], end: float, busy: float, energy: float) -> None:
        """Write a row for a completed launch of one task, and the columns of the task."""
        (task,) = launch._tasks  # type: ignore[misc]
        row, number = task.index, launch.number
        place = self._places.code(launch.placement, launch.cores)
        start, up, uploaded, began, computed, down = times
        self._rows += _pack(
            number, row, 1, launch.position, place, LAUNCH_COMPLETED, launch.decided, start, up, uploaded, began,
            computed, down, end, busy, energy, 0.0,
        )  # fmt: skip
        first = self.start[row]
        if first != first:  # NaN: a task that was stopped keeps its first start
            self.start[row] = start
        self.finish[row] = end
        self.status[row] = COMPLETED
        if self._staged_by is None:
            self._staged_by = self.detail("batch")
        self._staged_by[row] = number  # its mode and place follow from this row at the end of the run

    def energy_of_launches(self, first: int) -> array:
        """Return the energy above idle (J) of the launch rows from `first` on."""
        return array("d", bytes(self._rows[first * _AS_ROW.size :]))[ENERGY::WIDTH]

    def batch(
        self, launch: "Launch", outcome: int, times: tuple[float, ...], end: float, busy: float, energy: float
    ) -> None:
        """Write a row for a batch; rows of its requests are derived at the end of the run."""
        terms: Any = launch.terms
        requests = terms.requests
        self._row(launch, -1, requests.count, outcome=outcome, rest=(*times, end, busy, energy, 0.0))
        self._slices += _pack_slice(requests.queue.number, terms.first)
        if requests.count > 1:
            self.batched = True
        if terms.first < 0:
            self._members += pack(f"={len(terms.rows)}q", *terms.rows)

    def period(
        self, number: int, task: int, members: int, mode: int, place: int, outcome: int, times: tuple[float, ...],
        busy: float, energy: float,
    ) -> None:  # fmt: skip
        """Write a replica's busy period; times: `LAUNCH_TIMES`; busy: device-s; energy: J."""
        self._groups[len(self._rows) // _AS_ROW.size] = ()  # the attained service of its requests is counted separately
        self._rows += _pack(number, task, members, mode, place, outcome, *times, busy, energy, 0.0)
        self.batched = True

    def replica(self, service: str, number: int, blocks: int, placement: Placement) -> int:
        """Register a replica; return its number, which identifies it in rows of steps."""
        self._replicas.append((service, number, blocks, self.place_code(placement, 0)))
        return len(self._replicas) - 1

    def token_gap(self, time: float, before: float) -> None:
        """Record the seconds from a token at the time `before` to the next one, at `time`."""
        self._gaps.extend((time, time - before))

    def _launches(self, end: float) -> dict[str, np.ndarray] | None:
        """Fill the tasks' columns from the rows; return all launches, None: no rows."""
        services = self.run.services
        for queue, first, count, status, time, reason in self.discarded:
            rows = services[queue].rows[first : first + count]
            np.asarray(self.status)[rows] = status
            np.asarray(self.finish)[rows] = time
            self.reasons.update(dict.fromkeys(rows.tolist(), reason))
        table = np.frombuffer(self._rows).reshape(-1, WIDTH).T if self._rows else np.empty((WIDTH, 0))
        columns = {name: one.astype("q") if name in ROW[:6] else one for name, one in zip(ROW, table, strict=True)}
        batched, ended = columns["task"] < 0, columns["outcome"] == LAUNCH_COMPLETED
        single = ended & ~batched
        single[list(self._groups)] = False  # what tasks share was accounted as they ended
        # Tasks whose only launch ended well, in full; and these launches.
        done = np.flatnonzero(single)
        tasks = columns["task"][done]
        if len(done):
            own = np.asarray(self.detail("batch"))[tasks] == columns["launch"][done]
            done, tasks = done[own], tasks[own]
            np.asarray(self.mode)[tasks], np.asarray(self.place)[tasks] = columns["mode"][done], columns["place"][done]
        # If all launches are batches, the stages of requests follow from those of their batches (`Record.stage`).
        lean = self.batched and bool(batched.all()) and not self._detail
        if self._slices:
            rows, whose = self._requests(columns, np.flatnonzero(batched))
            if not lean:
                done = np.concatenate([done, whose[ended[whose]]])
                tasks = np.concatenate([tasks, rows[ended[whose]]])
        count = len(batched)
        if not count and "energy" not in self._detail:
            return None
        columns = self._with_plain(columns, end)
        if not lean:
            plain: np.ndarray = count + np.flatnonzero(columns["outcome"][count:] == LAUNCH_COMPLETED)
            done, tasks = np.concatenate([done, plain]), np.concatenate([tasks, columns["task"][plain]])
            np.asarray(self.detail("energy"))[tasks] += columns["energy"][done] / columns["members"][done]
            for name, (since, until) in STAGE_SPANS.items():
                spans = columns[until][done] - columns[since][done]
                np.asarray(self.detail(name))[tasks] += np.nan_to_num(spans)
        order = np.lexsort((columns["task"], columns["decided"]))  # a fixed order, independent of the order of writing
        return {name: column[order] for name, column in columns.items()} if count else None

    def _requests(self, columns: dict[str, np.ndarray], batches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Write the columns of requests in batches; return their rows and their launches."""
        services = self.run.services
        queues, firsts = np.frombuffer(self._slices, np.int64).reshape(-1, 2).T
        counts = columns["members"][batches]
        ends = np.cumsum(counts)
        whose: np.ndarray = np.repeat(batches, counts)
        rows: np.ndarray = np.empty(int(ends[-1]), dtype=np.int64)
        queue: np.ndarray = np.repeat(queues, counts)
        first: np.ndarray = np.repeat(firsts, counts)
        rows[first < 0] = np.frombuffer(self._members, np.int64)  # in the order of the batches, as they were written
        offset = np.arange(len(rows)) - np.repeat(ends - counts, counts) + first
        for number, service in enumerate(services):
            here = (first >= 0) & (queue == number)
            rows[here] = service.rows[offset[here]]
        del queue, first, offset
        columns["task"][batches] = rows[ends - counts]
        start = np.asarray(self.start)
        start[rows] = np.where(np.isnan(start[rows]), columns["start"][whose], start[rows])  # stopped ones keep theirs
        for column, name in ((self.mode, "mode"), (self.place, "place"), (self.detail("batch"), "launch")):
            np.asarray(column)[rows] = columns[name][whose]
        ended = columns["outcome"][whose] == LAUNCH_COMPLETED
        done, back = rows[ended], np.array([service.response_delay for service in services])
        finish = (columns["end"][whose] + np.repeat(back[queues], counts))[ended]
        # An answer that would arrive at the horizon, or later, does not count.
        np.asarray(self.status)[done] = np.where(finish < self.run.horizon, COMPLETED, UNFINISHED)
        np.asarray(self.finish)[done] = np.where(finish < self.run.horizon, finish, NAN)
        return rows, whose

    def record(self, end: float, stats: dict[str, float]) -> Record:
        """Return all columns as arrays; called once, after the run."""
        run = self.run
        tasks = run.tasks
        launches = self._launches(end)
        status = np.asarray(self.status)
        ready = tasks.arrival if self.ready is None else np.asarray(self.ready)
        if (status == NOT_ARRIVED).any():
            ready = np.where(status == NOT_ARRIVED, NAN, ready)
        asked: list[Any] = [*run.services, *run.language]
        for service in asked:
            if service.request_delay:  # a request is ready when it has arrived at the node
                ready = ready.copy()  # it may be the arrival column of the input
                ready[service.rows] += service.request_delay
        detail = {name: np.asarray(column) for name, column in self._detail.items()}
        as_they_are: dict[str, Any] = {name: detail.get(name) for name in DETAILS}
        preempted = {name: detail[f"preemptions_{name}"] for name in PREEMPTIONS if f"preemptions_{name}" in detail}
        return Record(
            input=run, end=end, status=status, ready=ready, start=np.asarray(self.start),
            finish=np.asarray(self.finish), mode=np.asarray(self.mode), place=np.asarray(self.place),
            places=self._places.table(), **as_they_are,
            batch=detail.get("batch") if self.batched else None, reasons=self.reasons, launches=launches,
            steps=step_columns(self.steps) if self._replicas else None,
            token_gaps=np.array(self._gaps).reshape(-1, 2) if self._gaps else None, replicas=self._replicas,
            preemptions_by=preempted, device_log=sorted(self.device_log, key=lambda row: row[0]), holds=self.holds,
            fused=self.fused, stats=stats, occupied=self.occupied,
        )  # fmt: skip

    def _with_plain(self, rows: dict[str, np.ndarray], end: float) -> dict[str, np.ndarray]:
        """Return columns of launches, followed by compute-only ones that wrote no row."""
        tasks, batch = self.run.tasks, np.asarray(self.detail("batch"))
        start, finish = np.asarray(self.start), np.asarray(self.finish)
        mode, place, status = np.asarray(self.mode), np.asarray(self.place), np.asarray(self.status)
        # A task without a row ran plainly: in one launch, all computing, from start to finish or to the end of the run.
        running = (status == UNFINISHED) & (place >= 0) & (batch < 0)
        for service in self.run.language:  # a request that has lost its replica waits for another one
            running[service.rows] = False
        # A task without a place was answered from a cache.
        plain = np.flatnonzero(((status == COMPLETED) & (batch < 0) & (place >= 0)) | running)
        began = start[plain]
        over = np.where(running[plain], end, finish[plain])
        busy = (over - began) * per_mode(tasks, plain, mode, lambda m: m.width)
        added: dict[str, Any] = {
            "launch": -1, "task": plain, "members": 1, "mode": mode[plain], "place": place[plain],
            "outcome": np.where(running[plain], LAUNCH_RUNNING, LAUNCH_COMPLETED), "decided": began, "start": began,
            "upload_start": NAN, "upload_end": NAN, "compute_start": began, "compute_end": over,
            "download_start": NAN, "end": over, "busy": busy, "energy": busy * per_mode(tasks, plain, mode, _watts),
            "lost": 0.0,
        }  # fmt: skip
        return {
            name: np.concatenate([column, np.broadcast_to(np.asarray(added[name], column.dtype), plain.shape)])
            for name, column in rows.items()
        }
