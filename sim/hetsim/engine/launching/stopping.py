"""Stops of launches before their end: kept and lost work, saving, time limits."""

import math
from dataclasses import dataclass, field

from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.flight import durations
from hetsim.engine.flight.history import History
from hetsim.engine.flight.launch import COMPUTE, DOWNLOAD, Lane, Launch, Timetable
from hetsim.engine.flight.links import Links
from hetsim.engine.launching.launches import Launches
from hetsim.engine.queues.patience import Deadlines
from hetsim.model.record import LAUNCH_LOST, LAUNCH_MOVED, LAUNCH_STOPPED, MOVES, STOPS
from hetsim.model.task import Task

BETWEEN = 1e-9  # tolerance for rounding at block boundaries, as a fraction of a block


class Stops:
    def __init__(self, launches: Launches):
        self.launches = launches
        self.recorder = launches.recorder
        self.count = 0  # launches that have ended before their time
        self.kept_in_memory = False  # True once a launch has left output or state in the memory of its devices
        self._left: dict[Lane, None] = {}
        # lanes of launches lost to a fault in progress, and gangs that they had slowed
        self._moved: dict[Launch, None] = {}

    def stop(
        self, launch: Launch, keep: bool, outcome: int = LAUNCH_STOPPED, fault: bool = False, killed: bool = False
    ) -> float:
        """End a launch early; return when its first stage began (NaN: it had not begun).

        Transfers in progress are lost.  Finished computation counts if `keep`; after a `fault`, only up to the last
        checkpoint. `killed`: the launch's tasks end, too, which does not count as a preemption.  If a fault ends
        several launches, stop all of them before you call `follow`, which lets other launches use the released engines.
        """
        self.count += 1  # `EarliestFit` compares it to detect launches that ended early
        at_once = not fault
        if launch.fusion is not None:
            keep = fault = False  # a fused launch saves no intermediate results: all work is repeated
        launches = self.launches
        table: Timetable = launch.table or launches.tabulate(launch)
        now = launches.clock._now
        stage = table.stage(now)
        start, up, uploaded, began, computed, down = table.times(now)
        launches.transfers.cancel(table)  # transfers in progress are lost, and their callbacks canceled
        progress = residual = flushed = 0.0
        if stage == COMPUTE:
            table.settle(now)
            done = table.total - table.left
            if keep and not fault:
                residual = self._to_the_end_of_the_block(launch, table)
                if table.total - table.left < done:
                    flushed = (done - (table.total - table.left)) / done
            progress = 1.0 - table.left / table.total if table.total > 0 else 1.0
            computed = now + residual
        elif stage == DOWNLOAD:
            if not table.computed:  # not settled since it computed
                table.settle(table.compute_end)
                table.left = 0.0
            progress = 1.0
        kept = self._keep(launch, table, progress, keep=keep, fault=fault) * (1.0 - flushed)
        # Only the work of this launch must be saved; earlier work is saved already.
        saving = self._save_seconds(launch, residual) if keep and not fault and progress > 0 else 0.0
        # One that has computed has left its groups already.
        moved = launches.speeds.leave(launch) if table.joined and not table.computed else []
        if saving:
            self._occupy(launch, now + saving)  # before `release`, which forgets its slices
        launches.release(launch, table)
        if up == up and uploaded != uploaded:
            uploaded = now  # the upload was cut off
        if outcome == LAUNCH_STOPPED and (fault or not keep):
            outcome = LAUNCH_LOST
        times = start, up, uploaded, began, computed, down
        lost = table.busy * (1.0 - kept) if progress or flushed else 0.0
        end = now + residual
        row = self.recorder.launch(launch, outcome, times, end=end, busy=table.busy, energy=table.energy, lost=lost)
        for task in launch.tasks:
            if task._done == 0.0:
                self.recorder.lose(task._history.rows)  # including the work of earlier launches
                task._history.rows = []
            else:
                task._history.rows.append(row)
        launches.account(launch, table, times, end=end, kept=kept if progress else 0.0)
        for task in () if killed else launch.tasks:
            self.recorder.detail(MOVES if outcome == LAUNCH_MOVED else STOPS)[task.index] += 1
        self._left.update(dict.fromkeys(table.lanes))  # served by `follow`, once all that a fault ends are gone
        self._moved.update(dict.fromkeys(moved))
        if at_once:
            self.follow()
        return start

    def follow(self) -> None:
        """Let the launches that waited for the engines of stopped launches continue."""
        # Gangs that the same fault ended need no new times.
        parts_left, moved = tuple(self._left), [gang for gang in self._moved if gang._tasks != ()]
        self._left, self._moved = {}, {}  # emptied first, so that no launch is handled twice
        self.launches.moved(moved)
        if parts_left:
            self.launches.follow_lanes(parts_left)

    def _occupy(self, launch: Launch, until: float) -> None:
        mode = launch.placement.mode
        for task in launch.tasks:
            task._history.saved_by = until
        for device in launch.placement.devices:
            state = self.launches.capacity.of[device.index]
            if state.slices is not None:
                state.slices.busy[launch] = state.slices.busy[launch][0], until
                continue
            state.saving.append((until, mode.share or mode.millicores))  # free for others, which may wait
            state.normal = False

    def _keep(self, launch: Launch, table: Timetable, progress: float, keep: bool, fault: bool) -> float:
        """Update the finished fractions of stopped tasks; return the share of work kept."""
        computed = table.total * progress
        planned = durations.planned(launch)  # before the finished fraction of its tasks changes
        # A fused launch keeps no work.
        by_estimate = 0.0 if launch.fusion is not None else min(1.0, computed / planned) if planned > 0 else 1.0
        kept_seconds = 0.0
        for task in launch.tasks:
            if (history := task._history) is None:
                history = task._history = History()
            before, seen = task._done, task.done
            if launch.placement.mode.curve is not None:
                reached = durations.reached(launch, computed, estimated=False)
                reached_by_estimate = durations.reached(launch, computed, estimated=True)
            else:
                reached = before + (1.0 - before) * progress
                reached_by_estimate = seen + (1.0 - seen) * by_estimate
            if keep and not fault:
                task._done = reached
                history.checkpoint = reached  # what a stop saves is as good as a checkpoint
            elif fault:  # work since the last checkpoint is lost
                task._done = max(history.checkpoint, _last_checkpoint(table, task, reached))
                history.checkpoint = task._done
            else:
                task._done = history.checkpoint = 0.0  # spoliation: all work is lost, saved or not
            # The estimated progress loses the same share as the true one.
            task.done = min(1.0, reached_by_estimate * task._done / reached) if reached > 0 else 0.0
            if task._done > before and launch.placement.mode.curve is not None:
                kept_seconds += (task._done - before) / (reached - before) * computed
            elif task._done > before:
                kept_seconds += (task._done - before) / (1.0 - before) * table.total / len(launch.tasks)
            if task._done > before or (progress == 1.0 and keep and not fault):
                history.save(launch.placement.devices, task.shape.stopping, self.launches.clock._now, fault)
                self.kept_in_memory = self.kept_in_memory or history.in_memory
            elif fault or not keep:
                history.lose(task._done == 0)
            if task._done == 0 and before > 0:
                # Spoliation also discards the work of earlier launches.
                for name in ("upload", "compute", "download"):
                    self.recorder.detail(name)[task.index] = 0.0
        return kept_seconds / computed if computed > 0 else float(progress == 1.0 and keep)

    def _to_the_end_of_the_block(self, launch: Launch, table: Timetable) -> float:
        """Return the seconds until a kernel can stop: 0, or those to the end of its block."""
        kind = launch.placement.devices[0].type.preemption.kind
        block = max(task.shape.stopping.block for task in launch.tasks)
        if kind == "context_switch" or not block or launch.placement.mode.on_cpu:
            return 0.0
        done = table.total - table.left
        earlier = launch.task._done  # blocks are counted from the start of the task, not of this launch
        before = table.total * earlier / (1.0 - earlier)  # `total` is the part 1 - earlier of the task
        blocks = (before + done) / block
        if kind == "flush" and all(task.shape.stopping.idempotent for task in launch.tasks):
            kept = max(0.0, math.floor(blocks + BETWEEN) * block - before)
            table.left = min(table.total, table.total - min(kept, done))  # back to the last whole block
            return 0.0
        more = min(table.left, max(0.0, math.ceil(blocks - BETWEEN) * block - before - done))
        seconds = more / table.rate if table.rate > 0 else 0.0
        table.left -= more  # computed before it leaves, so it counts as done
        table.busy += table.busy_rate * seconds
        table.energy += table.watts * seconds
        return seconds

    def _save_seconds(self, launch: Launch, residual: float) -> float:
        """Return the seconds to save a stopped launch's state.

        If devices do not save state (kinds drain and flush), return `residual`, the seconds until the block ends.
        """
        devices, kind = launch.placement.devices, launch.placement.mode.type
        if kind.preemption.kind != "context_switch":
            return residual
        seconds = 0.0
        for task in launch.tasks:
            stopping = task.shape.stopping
            seconds += stopping.save
            if (part := stopping.state / len(devices)) and kind.preemption.rate is not None:
                seconds += part / kind.preemption.rate
            elif part and kind.kind != "cpu":
                seconds += max(Links.alone(self.launches.links.down(device), part) for device in devices)
        return seconds


def _last_checkpoint(table: Timetable, task: Task, reached: float) -> float:
    interval = task.shape.stopping.interval
    full = table.total / (1.0 - task._done) if task._done < 1 else table.total
    if math.isinf(interval) or full <= 0:
        return 0.0
    # A checkpoint that is due at this very instant counts, rounding or not.
    return min(reached, math.floor(reached * full / interval * (1 + 1e-12)) * interval / full)


@dataclass(eq=False)
class TimeLimits:
    """Kills tasks that occupy devices for longer than their time limit.

    The time of a task is the time for which it occupies devices, transfers and restoring included.  It continues after
    a stop that keeps work, a move or a change of mode; after a failure of a device, or a stop that loses the work, it
    begins at 0 again, since the job is submitted again.  A task that ends exactly at its limit is completed.
    """

    state: RunState
    signals: Signals
    grace: float
    _used: dict[int, float] = field(default_factory=dict)  # seconds that earlier launches of a task took, by its row
    _watched: dict[int, Launch] = field(default_factory=dict)  # running launches that may exceed it, by number

    def __post_init__(self) -> None:
        self.signals.slowed = self.watch
        self._ends = Deadlines(self.state.clock, self._due, self._watched.__contains__)

    def watch(self, launch: Launch) -> None:
        """Set a timer for a launch that may exceed its time limit."""
        limit = self.state.tasks.time_limit  # in a fork the table may have more rows than at the start
        assert limit is not None
        seconds_left = min(float(limit[task.index]) - self._used.get(task.index, 0.0) for task in launch.tasks)
        end = launch.decided + seconds_left + self.grace  # since it holds devices, transfers included
        if end == math.inf or launch.number in self._watched:
            return
        # It will end in time, unless `Signals.slowed` is called.
        if launch.table is None and launch.decided + durations.work(launch) <= end:
            return
        self._watched[launch.number] = launch
        self._ends.watch(launch.number, end)

    def over(self, launch: Launch, keep: bool = True) -> None:
        """Forget an ended launch; `keep`: count its seconds toward its tasks' time limits."""
        self._watched.pop(launch.number, None)
        for task in launch.tasks:
            if keep:
                self._used[task.index] = self._used.get(task.index, 0.0) + self.state.clock._now - launch.decided
            else:
                self._used.pop(task.index, None)  # it has ended, or is submitted again

    def _due(self, number: int) -> None:
        self.signals.kill(self._watched.pop(number), "time limit")
