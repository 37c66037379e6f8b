"""Several tasks launched as one kernel: what it reads, writes and computes.

The tasks run in their order.  An item is *inside* if only tasks of the launch use it, its first access is a write, and
its last access is a read: such an item is never written to memory, and needs neither memory nor a link.  Inputs are
items that a task reads before any task of the launch has written them; outputs are the other items written.

Compute time for tasks of known work (`hetsim.model.tasks.KernelWork`): the largest launch overhead, plus the larger of
total operation time and total memory traffic time.  Traffic is saved for every read of an item that an earlier task of
the launch has written or read, and for every write of an item that is inside or is written again later; a task saves at
most all its traffic.  A task of unknown work adds its own time to both totals, so it overlaps with no other task, and
only the seconds per launch of its mode (`fixed`) are saved.  So a fused launch never computes for longer than its tasks
one after the other.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hetsim.model.demand import StageTime
from hetsim.model.device_type import MILLI
from hetsim.model.mode import Mode
from hetsim.model.tasks import Tasks


def fused_mode(modes: Sequence[Mode]) -> Mode:
    """Return the mode of a fused launch: the maximum of its tasks' demands."""
    first = modes[0]
    return Mode(
        name="+".join(dict.fromkeys(mode.name for mode in modes)),
        type=first.type,
        millicores=max(mode.millicores for mode in modes),
        gpus=first.gpus,
        share=first.share,
        memory=max(mode.memory for mode in modes),
        gpu_memory=max(mode.gpu_memory for mode in modes),
        fixed=max(mode.single for mode in modes),
        upload=StageTime(fixed=sum(mode.upload.seconds_for(1) for mode in modes)),
        download=StageTime(fixed=sum(mode.download.seconds_for(1) for mode in modes)),
        partition=first.partition,
        parts=tuple(modes),
    )


def fusible(modes: Sequence[Mode]) -> str | None:
    """Return why tasks in these modes cannot be fused (end of a sentence), else None."""
    first = modes[0]
    for mode in modes:
        one = mode.gpus == 1 and mode.whole_devices if mode.gpus else mode.millicores == MILLI
        if not one or mode.table is not None:
            return f"mode {mode.name} does not run on exactly one core or one whole accelerator"
        if mode.type is not first.type:
            return f"modes {first.name} and {mode.name} run on different types of device"
        if mode.partition is not first.partition:
            return f"modes {first.name} and {mode.name} are bound to different partitions"
    return None


def users_of_items(tasks: Tasks) -> tuple[list[int], list[int]]:
    """Return the number of tasks that read each item, and the number that write it."""
    counts = []
    for rows in (tasks.reads, tasks.writes):
        users = [0] * len(tasks.items)
        for row in rows or ():
            for item in row:
                users[item] += 1
        counts.append(users)
    return counts[0], counts[1]


@dataclass(frozen=True)
class Fusion:
    """The data of a fused launch; `saved`: bytes of memory traffic saved, by task."""

    rows: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    inside: tuple[int, ...]
    saved: tuple[float, ...]

    @property
    def held_items(self) -> tuple[int, ...]:
        """Data items that need memory on the device: inputs and outputs of the launch."""
        return tuple(dict.fromkeys((*self.inputs, *self.outputs)))

    @property
    def first(self) -> int:
        return self.rows[0]


def fusion_of(tasks: Tasks, rows: Iterable[int], readers: Sequence[int], writers: Sequence[int]) -> Fusion:
    """Return the items that tasks fused in this order read, write and keep inside.

    readers, writers: number of tasks that still have to read and write each item, the fused tasks included
    (`users_of_items`).

    Cost: linear in the items read and written.
    """
    rows = tuple(rows)
    reads = [() if tasks.reads is None else tasks.reads[row] for row in rows]
    writes = [() if tasks.writes is None else tasks.writes[row] for row in rows]
    own_reads: dict[int, int] = {}
    own_writes: dict[int, int] = {}
    last_write: dict[int, int] = {}
    last_read: dict[int, int] = {}
    inputs: dict[int, None] = {}
    for number, (read, written) in enumerate(zip(reads, writes, strict=True)):
        for item in read:
            own_reads[item] = own_reads.get(item, 0) + 1
            last_read[item] = number
            if item not in last_write:
                inputs[item] = None
        for item in written:
            own_writes[item] = own_writes.get(item, 0) + 1
            last_write[item] = number
    outputs = []
    for item, writer in last_write.items():
        wanted = readers[item] > own_reads.get(item, 0) or writers[item] > own_writes[item]
        if wanted or last_read.get(item, -1) <= writer:
            outputs.append(item)
    kept = dict.fromkeys(outputs)
    inside = [item for item in last_write if item not in kept and item not in inputs]
    saved = []
    seen: dict[int, None] = {}
    for number, (read, written) in enumerate(zip(reads, writes, strict=True)):
        away = sum(tasks.items[item].size for item in read if item in seen)
        away += sum(tasks.items[item].size for item in written if item not in kept or last_write[item] > number)
        saved.append(float(away))
        seen.update(dict.fromkeys((*read, *written)))
    return Fusion(rows, tuple(inputs), tuple(outputs), inside=tuple(inside), saved=tuple(saved))


def fused_seconds(
    tasks: Tasks, fusion: Fusion, positions: Sequence[int], modes: Sequence[Mode], own: Sequence[float],
    left: Sequence[float],
) -> float:  # fmt: skip
    """Return a fused kernel's compute seconds; `left`: fraction of `own` times left."""
    fixed = overhead = operations = traffic = 0.0
    work = tasks.work
    for row, saved, position, mode, seconds, part in zip(
        fusion.rows, fusion.saved, positions, modes, own, left, strict=True
    ):
        fixed = max(fixed, mode.single * part)
        seconds *= part
        alone = math.nan if work is None else work.alone(row, position)
        if not alone > 0:
            operations += seconds
            traffic += seconds
            continue
        assert work is not None
        scale = seconds / alone  # for an inexact estimate, or a measured time
        moved = float(work.bytes[row, position])
        overhead = max(overhead, float(work.overhead[row, position]) * scale)
        operations += float(work.operations[row, position]) * scale
        traffic += float(work.traffic[row, position]) * scale * (max(0.0, 1.0 - saved / moved) if moved else 1.0)
    return fixed + overhead + max(operations, traffic)
