"""The launches of a run as columns, recorded by the engine or derived from tasks.

The device tables, the timeline and `explain` read `LaunchColumns`; users see `launches_table`.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from hetsim.model.mode import Mode
from hetsim.model.plan import cores_on
from hetsim.model.record import (
    COMPLETED,
    LAUNCH_COMPLETED,
    LAUNCH_LOST,
    LAUNCH_RUNNING,
    OUTCOME_NAMES,
    UNFINISHED,
    Record,
)
from hetsim.results.declared import ENERGY
from hetsim.results.one_run.modes import ModeTable

COLUMNS = (
    "launch", "task", "members", "mode", "device_type", "device", "node", "decided", "start", "upload_start",
    "upload_end", "compute_start", "compute_end", "download_start", "end", "outcome", "busy", "lost", ENERGY,
    "fill",
)  # fmt: skip
FUSED = "fused"  # Extra column of runs with fused kernels: the names of the fused tasks, in order.


@dataclass
class LaunchColumns:
    """Columns with one entry per launch; a launch that still runs ends with the run.

    `mode`: codes of the ModeTable.  `busy`: device-seconds computed (GPUs × share × time; in a CPU mode cores × time);
    `lost`: the part of `busy` that was lost work; `energy`: joules above idle; `open`: True if it ran at the end.
    If the engine recorded no launches, each started task is one launch, whose columns are derived from its times.
    """

    task: np.ndarray
    mode: np.ndarray
    place: np.ndarray
    decided: np.ndarray
    start: np.ndarray
    compute_start: np.ndarray
    compute_end: np.ndarray
    end: np.ndarray
    busy: np.ndarray
    energy: np.ndarray
    open: np.ndarray
    lost: np.ndarray | None = None
    members: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.task)

    @property
    def lost_part(self) -> np.ndarray | float:
        """Lost part of each launch's computing, 0 to 1."""
        if self.lost is None or not self.lost.any():
            return 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.busy > 0, np.minimum(self.lost / self.busy, 1.0), 0.0)


def launches_of(record: Record, table: ModeTable) -> LaunchColumns:
    """Return a record's launches, derived from the task columns if not recorded."""
    if record.launches is None:
        return _derived(record, table)
    columns = record.launches
    task = np.asarray(columns["task"])
    mode = table.codes(record.input.tasks.shape[task], np.asarray(columns["mode"]))
    ended = _or_end(columns["end"], record.end)
    compute_start = np.asarray(columns["compute_start"], dtype=np.float64)
    compute_end = np.asarray(columns["compute_end"], dtype=np.float64)
    # A launch stopped or cut off while computing has no end of that stage of its own.
    compute_end = np.where(np.isnan(compute_end) & ~np.isnan(compute_start), ended, compute_end)
    length = np.nan_to_num(compute_end - compute_start)
    busy = np.nan_to_num(columns["busy"]) if "busy" in columns else length * table.units[mode]
    energy = np.nan_to_num(columns["energy"]) if "energy" in columns else length * table.dynamic_watts[mode]
    return LaunchColumns(
        task=task, mode=mode, place=np.asarray(columns["place"]),
        decided=np.asarray(columns["decided"], dtype=np.float64), start=np.asarray(columns["start"], dtype=np.float64),
        compute_start=compute_start, compute_end=compute_end, end=ended, busy=busy, energy=energy,
        open=_running(columns), lost=np.nan_to_num(columns["lost"]) if "lost" in columns else None,
        members=np.asarray(columns["members"]) if "members" in columns else None,
    )  # fmt: skip


def occupations_of(record: Record, table: ModeTable) -> tuple[LaunchColumns, list[Mode]]:
    """Return what occupies devices over time, in the form of launches.

    A replica that serves batches occupies its devices from its start to its end, so it is one launch, and the launches
    of its batches occupy nothing.  Replicas are the last rows; their modes are returned, too.
    """
    launches = launches_of(record, table)
    if not record.occupied:
        return launches, []
    services = {one.shape.index: one for one in record.input.services if one.kinds}
    inside = np.isin(record.input.tasks.shape[launches.task], list(services))
    shape, position, place = np.array([row[:3] for row in record.occupied]).T
    since, until = np.array([row[3:5] for row in record.occupied]).T
    task, never, nothing = np.array([services[one].rows[0] for one in shape]), until * np.nan, until * 0.0
    further = (task, table.codes(shape, position), place, since, never, never, never, until, nothing, nothing,
               until >= record.end)  # fmt: skip
    ended = replace(launches, end=np.where(inside, launches.decided, launches.end), open=launches.open & ~inside)
    columns = [np.append(getattr(ended, one.name), more) for one, more in zip(fields(ended), further, strict=False)]
    modes = [services[one].kinds[kind].mode for one, kind in zip(shape, position, strict=True)]
    return LaunchColumns(*columns), [mode for mode in modes if mode is not None]


def _derived(record: Record, table: ModeTable) -> LaunchColumns:
    task = np.flatnonzero((record.start == record.start) & (record.place >= 0))
    start, shape = record.start[task], record.input.tasks.shape
    mode = table.codes(shape if len(table.offset) == 1 else shape[task], record.mode[task])
    end = _or_end(record.finish[task], record.end)
    compute_start, compute_end = start, end
    if record.compute is not None:
        if record.upload is not None:
            compute_start = start + record.upload[task]
        compute_end = np.where(record.status[task] == UNFINISHED, end, compute_start + record.compute[task])
    length = np.maximum(compute_end - compute_start, 0.0)
    energy = length * table.dynamic_watts[mode] if record.energy is None else record.energy[task]
    busy, unfinished = length * table.units[mode], np.isnan(record.finish[task])
    return LaunchColumns(
        task, mode, record.place[task], decided=start, start=start, compute_start=compute_start,
        compute_end=compute_end, end=end, busy=busy, energy=energy, open=unfinished,
    )  # fmt: skip


def _running(columns: dict[str, np.ndarray]) -> np.ndarray:
    still = np.isnan(np.asarray(columns["end"], dtype=np.float64))
    return still | (np.asarray(columns["outcome"]) == LAUNCH_RUNNING) if "outcome" in columns else still


def launch_numbers(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Return each row's launch number; rows whose number is missing (-1) get new ones."""
    if "launch" not in columns:
        return np.arange(len(columns["task"]))
    number = np.asarray(columns["launch"], dtype=np.int64).copy()
    missing = number < 0
    number[missing] = number.max(initial=-1) + 1 + np.arange(int(missing.sum()))
    return number


def _or_end(times: np.ndarray, end: float) -> np.ndarray:
    return np.where(np.isnan(times), end, times)


class PlaceColumns:
    """The places (sets of devices on which launches ran) of a record, as flat arrays."""

    def __init__(self, record: Record):
        cluster = record.input.cluster
        self.count = len(record.places)
        devices = [place[0] for place in record.places]
        self.sizes = np.fromiter(map(len, devices), np.int64, self.count)
        self.flat = np.fromiter(chain.from_iterable(devices), np.int64)  # device indexes, place after place
        self.owner = np.repeat(np.arange(self.count), self.sizes)  # the place of each entry of `flat`
        # units of each entry of `flat`: cores of a launch over nodes, else 1 device
        self.amount = np.ones(len(self.flat))
        self.over_nodes = np.zeros(self.count, bool)  # which places are cores of several nodes
        begin = np.cumsum(self.sizes) - self.sizes
        for number in np.flatnonzero(self.sizes > 1).tolist():
            on, cores = record.places[number]
            if cores is not None:
                self.over_nodes[number] = True
                counts = [len(here) for here in cores_on(on, cores, cluster)]
                self.amount[begin[number] : begin[number] + len(on)] = counts
        self.totals = np.bincount(self.owner, weights=self.amount, minlength=self.count)  # the sum of these by place
        node_of = np.array([device.node for device in cluster.devices], dtype=np.int64)
        cpu_of = np.array([node.cpu.index for node in cluster.nodes], dtype=np.int64)
        self.hosts = cpu_of[node_of[self.flat]] if self.count else self.flat  # the CPU device of each entry's node
        self._record = record

    def spread(self, place: np.ndarray, weight: np.ndarray, devices: int, *, to_hosts: bool = False) -> np.ndarray:
        """Sum the weights of launches by device; each device of a launch gets the weight.

        `place`, `weight`: place and weight of each launch.  If a launch uses cores of several nodes, its weight is
        divided among these nodes in proportion to its cores.
        `to_hosts`: divide the weight among the CPU devices of the nodes, in proportion to the launch's devices there.
        """
        by_place = np.bincount(place, weights=weight, minlength=self.count).astype(np.float64)
        if to_hosts:
            by_place /= np.maximum(self.totals, 1)
        elif self.over_nodes.any():
            by_place[self.over_nodes] /= self.totals[self.over_nodes]
        weights = by_place[self.owner]
        if self.over_nodes.any():
            weights *= self.amount
        return np.bincount(self.hosts if to_hosts else self.flat, weights=weights, minlength=devices)

    def begun(self, place: np.ndarray, chosen: np.ndarray, devices: int) -> np.ndarray:
        """Count the chosen launches that used each device; `place`: place of each launch."""
        by_place = np.bincount(place, weights=chosen, minlength=self.count)
        return np.bincount(self.flat, weights=by_place[self.owner], minlength=devices)

    def pairs(self, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sizes = self.sizes[place]
        first = np.concatenate([[0], np.cumsum(self.sizes)])[place]
        entry = np.repeat(np.arange(len(place)), sizes)
        within = np.arange(len(entry)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return entry, self.flat[np.repeat(first, sizes) + within]

    def divided(self, place: np.ndarray, rate: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Divide launches' rates over their devices; return arrays (launch, device, rate)."""
        entry, device = self.pairs(place)
        totals = np.maximum(self.totals[place[entry]], 1)
        if not self.over_nodes.any():
            return entry, device, rate[entry] / totals
        begin = np.cumsum(self.sizes) - self.sizes
        within = np.arange(len(entry)) - np.searchsorted(entry, entry)
        return entry, device, rate[entry] * self.amount[begin[place[entry]] + within] / totals

    def names(self, used: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Return a code for each place (device set; -1: not in `used`), and names by code."""
        cluster = self._record.input.cluster
        texts = []
        for devices, cores in self._used(used):
            if cores is None:
                texts.append("+".join([cluster.devices[d].name for d in devices]))
            else:
                named = zip(devices, cores_on(devices, cores, cluster), strict=True)
                texts.append("+".join([f"{cluster.devices[d].name}{core}" for d, here in named for core in here]))
        return self._codes(used, texts)

    def node_names(self, used: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Return codes by place (-1: no place or not `used`), and node names by code."""
        cluster = self._record.input.cluster
        nodes = [dict.fromkeys(cluster.devices[d].node for d in devices) for devices, _ in self._used(used)]
        texts = ["+".join([cluster.nodes[n].name for n in sorted(chosen)]) for chosen in nodes]
        return self._codes(used, texts)

    def spreads(self, used: np.ndarray) -> dict[str, Any]:
        """Return, by place, the number of nodes (`hosts`) and, if there are any, of racks."""
        cluster = self._record.input.cluster
        counts = {"hosts": np.zeros(self.count + 1, np.int32)}
        if any(node.spec.rack is not None for node in cluster.nodes):
            counts["racks"] = np.zeros(self.count + 1, np.int32)
        for place in np.unique(used[used >= 0]).tolist():
            devices = [cluster.devices[index] for index in self._record.places[place][0]]
            counts["hosts"][place] = len({device.node for device in devices})
            if "racks" in counts:
                counts["racks"][place] = len({device.rack for device in devices if device.rack is not None})
        return counts

    def _used(self, used: np.ndarray) -> list[tuple[tuple[int, ...], tuple[int, ...] | None]]:
        return [self._record.places[place] for place in np.unique(used[used >= 0])]

    def _codes(self, used: np.ndarray, texts: list[str]) -> tuple[np.ndarray, list[str]]:
        codes, names = _coded(texts)
        lookup = np.full(self.count + 1, -1, dtype=np.int32)
        lookup[np.unique(used[used >= 0])] = codes[:-1]
        return lookup, names


def _coded(texts: list[str]) -> tuple[np.ndarray, list[str]]:
    code_of: dict[str, int] = {}
    codes = [code_of.setdefault(text, len(code_of)) for text in texts]
    return np.array([*codes, -1], dtype=np.int32), list(code_of)


def categorical(codes: np.ndarray, names: list[str]) -> Any:
    """Build a categorical from codes and names (repeats allowed); -1 is missing."""
    lookup, categories = _coded(list(names))
    if len(categories) != len(names):
        codes = lookup[codes]
    return pd.Categorical.from_codes(codes, dtype=_categories(tuple(categories)))


@lru_cache(64)  # replications and tables of a run have the same: half of the time that a small table takes
def _categories(names: tuple[str, ...]) -> pd.CategoricalDtype:
    return pd.CategoricalDtype(pd.Index(names, dtype=str))


def launches_table(record: Record, table: ModeTable) -> pd.DataFrame:
    """Return the table of launches: place, stages, outcome, and energy of each.

    `fill` is the time from ready to decision of the launch's first task: the time in which a batch was filled.
    """
    launches = launches_of(record, table)
    columns, count, tasks = record.launches, len(launches), record.input.tasks
    places = PlaceColumns(record)
    if columns is None:
        status = record.status[launches.task]
        outcome = np.where(
            status == COMPLETED, LAUNCH_COMPLETED, np.where(status == UNFINISHED, LAUNCH_RUNNING, LAUNCH_LOST)
        )
        upload, download = record.upload, record.download
        uploaded = np.zeros(count, bool) if upload is None else upload[launches.task] > 0
        downloaded = np.zeros(count, bool) if download is None else download[launches.task] > 0
        raw = {
            "upload_start": np.where(uploaded, launches.start, np.nan),
            "upload_end": np.where(uploaded, launches.compute_start, np.nan),
            "compute_start": launches.compute_start,
            "compute_end": np.where(outcome == LAUNCH_RUNNING, np.nan, launches.compute_end),
            "download_start": np.where(downloaded, launches.compute_end, np.nan),
            "end": record.finish[launches.task],
        }
    else:
        raw, outcome = columns, np.asarray(columns["outcome"])
    place_codes, place_names = places.names(launches.place)
    node_codes, node_names = places.node_names(launches.place)
    frame = {
        "launch": np.arange(count) if columns is None else launch_numbers(columns),
        "task": launches.task if tasks.id is None else ids_of_one_kind(tasks.id)[launches.task],
        "members": np.ones(count, np.int32) if launches.members is None else launches.members,
        "mode": categorical(launches.mode, [mode.name for mode in table.modes]),
        "device_type": categorical(launches.mode, [mode.type.name for mode in table.modes]),
        "device": categorical(place_codes[launches.place], place_names),
        "node": categorical(node_codes[launches.place], node_names),
        "decided": launches.decided,
        "start": launches.start,
        **{name: raw[name] for name in COLUMNS[9:15]},
        "outcome": categorical(outcome, [OUTCOME_NAMES[code] for code in range(len(OUTCOME_NAMES))]),
        "busy": launches.busy,
        "lost": np.zeros(count) if launches.lost is None else launches.lost,
        ENERGY: launches.energy if record.input.cluster.has_watts else np.full(count, np.nan),
        "fill": launches.decided - record.ready[launches.task],
    }
    if record.fused:
        frame[FUSED] = [
            "+".join(str(tasks.name(row)) for row in record.fused[number][0]) if number in record.fused else ""
            for number in frame["launch"].tolist()
        ]
    return pd.DataFrame(frame, columns=[*COLUMNS, FUSED] if record.fused else list(COLUMNS))


def ids_of_one_kind(ids: Any) -> np.ndarray:
    """Return the ids of all tasks, as text if they have several types."""
    array = np.asarray(ids)
    if array.dtype.hasobject and pd.api.types.infer_dtype(array, skipna=True).startswith("mixed"):
        return np.array([str(one) for one in array], dtype=object)
    return array
