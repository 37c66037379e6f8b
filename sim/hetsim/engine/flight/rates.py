"""The rates at which launches compute.

A launch's rate is set only here: the minimum over its devices of frequency / slowdown × share.  A gang's rate is also
multiplied by `Mode.span_rate` (the factor for its island, switch, node, rack, cluster, or links between its nodes) and
by its slowdown on shared links (`hetsim.engine.flight.contention`).  A change of rate moves the launch's one event; if
the new rate is equal, nothing happens.  Launches that share an accelerator have one common event, their next finish.
"""

from collections.abc import Iterable

from hetsim.engine.flight.launch import INF, Lane, Launch, ShareGroup, Timetable
from hetsim.engine.kernel.clock import FINISH, Clock
from hetsim.engine.resources.capacity import Capacity
from hetsim.engine.resources.occupancy import DeviceState, GpuState
from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE, Sharing
from hetsim.model.mode import Mode

Rates = tuple[float, float, float]  # (rate, device-seconds computed per second, watts above idle)


class Speeds:
    """Rates of launches, and groups of launches that slow each other."""

    def __init__(self, clock: Clock, capacity: Capacity):
        self.clock = clock
        self.capacity = capacity
        self.nominal: dict[Mode, Rates] = {}  # rates of modes on devices in their normal state, cached by `nominal_of`

    def plan(self, launch: Launch) -> None:
        """Set the rates of a launch from the present state of its devices."""
        table: Timetable = launch.own_table
        table.rate, table.busy_rate, table.watts = self._rates_of(launch, table)

    def nominal_of(self, launch: Launch) -> Rates:
        """Return the rates of a launch on unshared devices in their normal state."""
        mode = launch.placement.mode
        if launch.placement.parts is not None:
            return self._reckon(launch)  # cores of several nodes: each placement has its own rates
        if (rates := self.nominal.get(mode)) is None:
            rates = self.nominal[mode] = self._reckon(launch)
        return rates

    def _rates_of(self, launch: Launch, table: Timetable) -> Rates:
        devices, states = launch.placement.devices, self.capacity.of
        if len(devices) == 1 and states[devices[0].index].normal and (not table.lanes or table.lanes[0].group is None):
            return self.nominal_of(launch)
        return self._reckon(launch)

    def _reckon(self, launch: Launch) -> Rates:
        placement = launch.placement
        devices = placement.devices
        mode, parts = placement.mode, placement.parts
        rate, busy, watts = self._on(launch, devices[0], mode.millicores if parts is None else parts[0])
        if len(devices) > 1:
            for position, device in enumerate(devices[1:], 1):
                factor, part, power = self._on(launch, device, 0 if parts is None else parts[position])
                busy += part
                watts += power
                rate = min(rate, factor)  # a gang goes at the pace of its slowest device
            rate *= mode.span_rate(devices)
            table = launch.own_table
            if table is not None and table.traffic is not None:
                rate *= table.traffic.factor  # slowdown on shared links between its nodes
        return rate, busy, watts

    def _on(self, launch: Launch, device: Device, millicores: int) -> Rates:
        mode = launch.placement.mode
        state = self.capacity.of[device.index]
        kind = device.type
        frequency = state.frequency
        factor = frequency / state.slowdown  # exactly 1.0 on a device in its normal state
        if mode.on_cpu:
            part = millicores / 1000
        else:
            part = mode.share / WHOLE
            lane: Lane = state.lane
            if (group := lane.group) is not None:
                sharing = kind.sharing
                if not lane.sliced:
                    measured = sharing.pairs and _measured(launch, group.members, sharing)
                    if measured:
                        factor *= measured
                    else:
                        factor /= 1.0 + sharing.interference * (group.share - mode.share) / WHOLE
                elif len(group.members) > 1:
                    portion = min(1.0, WHOLE / group.share)  # time slices that other launches do not use are available
                    measured = sharing.pairs and _measured(launch, group.members, sharing)
                    factor *= measured or portion * (1.0 - sharing.switch_cost)
                    part *= portion  # device-seconds computed: what it takes of the engine
        power = kind.power
        return factor, part, part * (power.busy - power.idle) * frequency**3

    # Changes --------------------------------------------------------------------------------------------------

    def rerate(self, launch: Launch, rates: Rates | None = None) -> bool:
        """Update the rates of a launch; return False if they are unchanged."""
        table: Timetable = launch.own_table
        rate, busy, watts = rates or self._rates_of(launch, table)
        # Equal floats: the same formula on the same state gives the same bits.
        if rate == table.rate and busy == table.busy_rate and watts == table.watts:
            return False
        if table.updated != self.clock._now:  # else nothing is to be settled, at whatever rate
            table.settle(self.clock._now)
        table.busy_rate, table.watts = busy, watts
        if rate != table.rate:
            table.rate = rate
            table.finish_at = table.updated + table.left / rate if rate > 0 else INF
            if table.group is None:
                table.compute_end = table.finish_at
        return True

    # Sharing --------------------------------------------------------------------------------------------------

    def join(self, launch: Launch) -> list[Launch]:
        """Start computing on shared accelerators; return the gangs whose ends have moved."""
        table: Timetable = launch.own_table
        groups = [lane.group for lane in table.lanes if lane.group is not None]
        for group in groups:
            group.members.append(launch)
            group.share += launch.placement.mode.share
        table.rate = 0.0  # so that `rerate` sees a change, whatever the rate is
        if table.group is None:
            self.rerate(launch)
        return self.regroup(groups)

    def leave(self, launch: Launch) -> list[Launch]:
        """Remove a launch from its groups; return the gangs whose ends have moved."""
        table: Timetable = launch.own_table
        groups = [lane.group for lane in table.lanes if lane.group is not None]
        for group in groups:
            group.members.remove(launch)
            group.share -= launch.placement.mode.share  # whole numbers: no rounding adds up
        return self.regroup(groups)

    def regroup(self, groups: Iterable[ShareGroup]) -> list[Launch]:
        """Update rates and ends of groups sharing a device; return gangs with a new end."""
        moved = []
        for group in groups:
            soonest = INF
            for member in group.members:
                table: Timetable = member.own_table
                changed = self.rerate(member, self._reckon(member))
                # A gang computes in several groups, so its end is an event of its own.
                if table.group is not group:
                    if changed:
                        moved.append(member)
                elif table.finish_at < soonest:  # the group's one event is its next end
                    soonest = table.finish_at
            if soonest < INF:
                self.clock.again(soonest, FINISH, group)
            else:
                self.clock.cancel(group)
        return moved

    def retime(self, state: DeviceState, launches: Iterable[Launch]) -> list[Launch]:
        """Update rates after a device's speed change; return gangs whose ends have moved."""
        now = self.clock._now
        for launch in launches:
            table: Timetable = launch.own_table
            if table.compute_start <= now < max(table.compute_end, table.finish_at):
                self.rerate(launch)
        if isinstance(state, GpuState) and state.lane.group is not None:
            return self.regroup([state.lane.group])  # those that share the device change together
        return []


def _measured(launch: Launch, members: list[Launch], sharing: Sharing) -> float:
    """Return a launch's speed next to `members` by measured slowdowns; 0 if unknown."""
    speed = 1.0
    for other in members:
        if other is not launch:
            # Division by inf gives 0: a pair without a measurement makes the speed unknown.
            speed /= sharing.slower.get((launch.task.class_, other.task.class_), INF)
    return speed
