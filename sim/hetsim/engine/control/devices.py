"""Changes of devices in mid-run: frequency, sleep, slowdown, failure and repair."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hetsim.engine.control.completion import Completion
from hetsim.engine.core.policy_errors import call, illegal
from hetsim.engine.core.rounds import Rounds
from hetsim.engine.core.state import RunState, launches_on, lost_input
from hetsim.engine.flight.launch import RESTORE, Launch, Resident
from hetsim.engine.kernel.clock import FAULT, Later
from hetsim.engine.launching.launches import Launches
from hetsim.engine.resources.occupancy import GpuState
from hetsim.model.device import Device
from hetsim.model.record import FAILED, LAUNCH_STOPPED
from hetsim.model.task import BLOCKED, WAITING
from hetsim.policy.decisions import as_number


@dataclass(eq=False)
class Devices:
    """Changes the state of devices in one run."""

    run: RunState
    rounds: Rounds
    launches: Launches
    completion: Completion

    def state(self, device: Device) -> Any:
        states = self.run.capacity.of
        if not 0 <= device.index < len(states) or states[device.index].device is not device:
            raise illegal(self.run, f"names {device}, which is not a device of this cluster")
        return states[device.index]

    def set(self, device: Device, wanted: Any) -> None:
        """Carry out a policy's Set: a frequency, "off", "on" or "wake"."""
        run, state = self.run, self.state(device)
        run.steady = False  # ends of launches may change from now on
        now = run.clock._now
        log = run.recorder.device_log
        waking = state.sleeping and state.ready_at > now  # it accepts no launch until it is awake
        if wanted == "off":
            busy = launches_on(run, device)
            if isinstance(state, GpuState) and state.lane.fetching:
                raise illegal(run, f"puts {device} to sleep while data are transferred to it")
            if busy:
                holds = f"{busy[0].holder} is on it" if isinstance(busy[0], Resident) else f"{busy[0].task} is on it"
                raise illegal(run, f"puts {device} to sleep while {holds}")
            if state.sleeping and not waking:
                return
            if state.ready_at > now:  # it was waking: remove the future entry of the log
                log.remove((state.ready_at, device.index, "awake", 0.0))
                state.ready_at = now
            log.append((now, device.index, "sleep", 0.0))
            if not state.sleeping:
                self._set_asleep(device, True)
        elif wanted in ("on", "wake"):
            if state.sleeping and not waking:
                state.ready_at = now + device.type.power.wake
                log.append((now, device.index, "wake", 0.0))
                log.append((state.ready_at, device.index, "awake", 0.0))
                if wanted == "wake" and state.ready_at > now:
                    run.clock.at(state.ready_at, FAULT, Later(self._awake, device, state.ready_at))
                else:
                    self._set_asleep(device, False)  # open at once; what is placed there waits until it is awake
            elif wanted == "on" and waking:
                self._set_asleep(device, False)
        else:
            if (frequency := as_number(wanted)) is None or not 0 < frequency < math.inf:
                raise illegal(run, f"sets {device} to the frequency {wanted!r}; it must be a finite number above 0")
            if frequency != state.frequency:
                log.append((now, device.index, "frequency", frequency))
                self._set_pace(device, frequency, state.slowdown)

    def _set_asleep(self, device: Device, asleep: bool) -> None:
        run, state = self.run, self.state(device)
        state.sleeping = asleep
        self._close(state, 0)
        call(run, run.scheduler.device, device, state.up and not asleep)

    def _awake(self, device: Device, at: float) -> None:
        state = self.state(device)
        if state.sleeping and state.ready_at == at:  # else it was opened, or put to sleep again
            self._set_asleep(device, False)
            self.rounds.changed("release")

    def partition(self, device: Device, layout: Any) -> None:
        """Set the MIG layout of a GPU; None: from now on, launches that start choose it."""
        run, state = self.run, self.state(device)
        if (slices := state.slices) is None:
            raise illegal(run, f"partitions {device}, which is not a MIG GPU (sharing: mig)")
        if layout is not None:
            layout = layout if isinstance(layout, list | tuple) else [layout]
            new, into = slices.named(layout), f"partitions {device} into [{', '.join(map(str, layout))}]"
            if new is None:
                there = " with the slices that are busy" if slices.busy else ""
                raise illegal(run, f"{into}, which is not one of the GPU's layouts{there}")
            if new != slices.layout and slices.busy and device.type.sharing.recut != "idle":
                raise illegal(run, f"{into}, but the GPU has busy slices (with recut: idle, the others may change)")
            slices.recut(new, run.clock._now)  # busy slices are part of the new layout
        slices.fixed = layout is not None
        run.capacity.changed(state)

    def stop_replica(self, device: Device) -> None:
        """Carry out a policy's Stop of the replica on a device."""
        run = self.run
        self.state(device)
        replica = next((one for one in launches_on(run, device) if isinstance(one, Resident)), None)
        if replica is None:
            why = "which no replica of a language model occupies; stop tasks by Stop(task)"
            raise illegal(run, f"stopped the replica on {device}, {why}")
        if not replica.holder.service.shape.preemptible:
            raise illegal(run, f"stopped {replica.holder}, but it is not preemptible")
        self.run.serving.lose([replica], LAUNCH_STOPPED)
        self.rounds.changed("release")

    def set_slowdown(self, device: Device, factor: float) -> None:
        """Set the slowdown of a device: its launches take `factor` times as long."""
        self.run.steady = False
        self._set_pace(device, self.state(device).frequency, factor * (1.0 + device.type.preemption.overhead))
        self.rounds.changed("change")

    def _set_pace(self, device: Device, frequency: float, slowdown: float) -> None:
        state, launches = self.state(device), launches_on(self.run, device)
        for launch in launches:
            self.launches.materialize(launch)  # at the old speed, which changes below
        state.frequency, state.slowdown = frequency, slowdown  # after `materialize`, before `retime`
        state.normal = False
        self.launches.retime(state, launches)  # replicas among them: their steps change, too

    def close(self, device: Device, closed: bool) -> None:
        """Close a device to new launches (`closed`, before maintenance), or open it again."""
        run, state = self.run, self.state(device)
        run.steady = False
        states = [state]
        if device.type.kind == "cpu":  # the whole node
            states += [self.state(one) for one in run.input.cluster.nodes[device.node].accelerators]
        for one in states:
            self._close(one, 1 if closed else -1)
        self.rounds.changed("change" if closed else "release")

    def _close(self, state: Any, more: int) -> None:
        """Add `more` to a device's number of maintenances; close or open it accordingly."""
        state.closed += more
        state.asleep = state.sleeping or state.closed > 0
        state.normal = False
        self.run.capacity.changed(state)

    def set_up(self, device: Device, up: bool) -> None:
        """Mark a device as up or failed; launches on a failed one resume from checkpoints.

        A failed CPU device means that its node failed: the accelerators of the node cannot be used either.
        """
        run, state = self.run, self.state(device)
        if state.up == up:
            return
        run.steady = False  # ends may change from now on, so forecasts must check every launch
        state.up = up
        if not up:
            state.normal = False
        run.recorder.device_log.append((run.clock._now, device.index, "up" if up else "down", 0.0))
        lost = [device] if device.type.kind != "cpu" else [device, *run.input.cluster.nodes[device.node].accelerators]
        for one in lost if not up else ():
            self.state(one).failed_at = run.clock._now  # by which `History.look` sees that saved data are gone
        # A gang on several of the devices is listed once.
        there = list({launch.number: launch for one in lost for launch in launches_on(run, one)}.values())
        if not up and self.completion.stops.kept_in_memory:  # launches elsewhere may fetch their state from here
            there += [one for one in run.running.values() if one not in there and self._fetches(one, lost)]
        residents = [launch for launch in there if isinstance(launch, Resident)]
        # Before `_lose_data`: these launches have pinned the items.
        self.completion.lose(launch for launch in there if not launch.resident)
        if not up and run.places.items:
            for one in lost:
                self._lose_data(one)
        run.capacity.changed(state)
        if not up and device.type.kind == "cpu":
            run.loading.lose_host(device.node)
        if up:
            self.run.serving.refill()
        else:
            self.run.serving.lose(residents)
        call(run, run.scheduler.device, device, up and not state.sleeping)
        self.rounds.changed("release" if up else "change")

    def _lose_data(self, device: Device) -> None:
        run = self.run
        if device.type.kind == "cpu":
            return
        items = run.places.lose(device)
        run.lost_items.update(dict.fromkeys(items))
        if not items:
            return
        early = [launch for launch in run.running.values()
                 if launch.table is not None and launch.table.stage(run.clock._now) < RESTORE]  # fmt: skip
        self.completion.lose(
            launch for launch in early if any(lost_input(run, task) is not None for task in launch.tasks)
        )
        for task in [*run.waiting.values(), *run.graph.blocked.values()]:
            if (lost := lost_input(run, task)) is not None and task.state in (WAITING, BLOCKED):
                self.completion.end_task(task, FAILED, f"its input {lost} was lost with {device}")

    def _fetches(self, launch: Launch, devices: Sequence[Device]) -> bool:
        """Return True if a launch must still restore state from these devices' memory."""
        table, kept = launch.own_table, [task._history for task in launch._tasks or () if task._history is not None]
        if table is None or not kept or table.stage(self.run.clock._now) >= RESTORE:
            return False
        return any(history.gives(device, launch.placement) for history in kept for device in devices)
