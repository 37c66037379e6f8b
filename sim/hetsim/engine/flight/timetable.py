"""Times of stages: computed from the engines and launches of accelerators.

An accelerator has an upload, a compute and a download engine.  A copy engine serves one transfer at a time; the next is
the waiting transfer whose launch started first.  The compute engine serves launches in start order, concurrently while
their shares fit.  Unknown times (the end of a transfer on a shared link, or of a launch that shares its accelerator)
are inf, which propagates through `max` and `+` to everything that waits for them.

`again` computes the times of all stages that have not begun on some lanes (accelerators), in O(k²) for k launches in
flight there; `append_shared` computes the times of a new launch if all launches compute concurrently, in O(k).
"""

from collections.abc import Callable, Iterable, Sequence

from hetsim.engine.flight.launch import INF, Lane, Launch, Timetable
from hetsim.engine.flight.part import Part
from hetsim.model.device_type import WHOLE

Rate = Callable[[Launch], None]  # sets the rate at which a launch will compute


def append_shared(lane: Lane, table: Timetable, now: float) -> bool:
    """Set a new launch's known times if it can compute concurrently with all others.

    The lane is an accelerator.  The end of the computation remains unknown.  Return False if the shares of its launches
    do not all fit at once, or if an earlier launch will request the upload engine only later, so that the new launch
    uploads first.  The caller then recomputes all times with `again`.
    """
    if not all_compute(lane):
        return False
    for part in lane.uploads:
        if part.ask > now:
            return False
    at = table.begin
    for part in table.up:
        if lane.upload > at:
            at = lane.upload
        part.at = at
        part.until = lane.upload = at = at + part.delay + part.span
    table.uploaded = at
    table.ready = table.compute_start = table.updated = at = at + table.restore
    if at > lane.ready:
        lane.ready = at
    lane.download = INF if table.down else lane.download  # the time of its download request is unknown yet
    return True


def download_over(lane: Lane, now: float) -> list[Launch]:
    """Reschedule an accelerator's downloads after one ended; return their launches."""
    lane.download = serve(lane.downloads, now)
    waited = []
    for part in lane.downloads:
        part.owner.own_table.end = part.until
        waited.append(part.owner)  # in start order, in which their entries are set
    return waited


def all_compute(lane: Lane) -> bool:
    """Return True if all launches of the accelerator may compute concurrently."""
    if lane.sliced or len(lane.flights) < 2:
        return True
    return sum([launch.placement.mode.share for launch in lane.flights]) <= WHOLE  # whole numbers: exact


def again(
    lanes: Sequence[Lane], now: float, rate: Rate, on_cores: Launch | None = None
) -> tuple[Sequence[Lane], list[Launch]]:  # fmt: skip
    """Recompute the times of all stages that have not begun on these accelerators.

    Stages are upload, computing and download.  Accelerators connected by a gang (a launch on several of them) are
    included. `rate`: function that sets the rate of a launch; `on_cores`: a launch that needs no accelerator.  Return
    all accelerators included, and their launches.
    """
    lanes, flights = together(lanes) if on_cores is None else (lanes, [on_cores])
    for lane in lanes:
        lane.upload = serve(lane.uploads, now)  # uploads, computing, downloads: each follows from the one before
    # `together` has asked each for its timetable: none of them is a sketch any more.
    tables: list[tuple[Launch, Timetable]] = [(launch, launch.own_table) for launch in flights]
    for _, table in tables:
        get_ready(table, now)
    _compute(tables, lanes, now, rate)
    for _, table in tables:
        for part in table.down:
            part.ask = table.compute_end
    for lane in lanes:
        lane.download = serve(lane.downloads, now)
        # Without reservations of removed launches.
        lane.compute = max([now, *[launch.own_table.compute_end for launch in lane.flights]])
        lane.ready = max([launch.own_table.ready for launch in lane.flights], default=0.0)
    for _, table in tables:
        table.end = max([part.until for part in table.down], default=table.compute_end)
        if table.items and not table.computed:
            table.end = INF  # its downloads are known once it has computed
    return lanes, flights


def together(lanes: Sequence[Lane]) -> tuple[Sequence[Lane], list[Launch]]:
    """Return these accelerators, all connected to them by gangs, and their launches."""
    if len(lanes) == 1 and max([len(launch.table.lanes) for launch in lanes[0].flights], default=1) == 1:
        return lanes, list(lanes[0].flights)
    tied = dict.fromkeys(lanes)
    launches: dict[int, Launch] = {}
    queue = list(tied)  # breadth first: gangs tie lanes, which have further gangs
    for lane in queue:  # grows as it is walked
        for launch in lane.flights:
            if launch.number not in launches:
                launches[launch.number] = launch
                for other in launch.table.lanes:
                    if other not in tied:
                        tied[other] = None
                        queue.append(other)
    return queue, [launches[number] for number in sorted(launches)]  # start order, by which turns are given


def get_ready(table: Timetable, now: float) -> None:
    """Set the time at which a launch has its data and may request the compute engine."""
    if table.compute_start <= now:
        return
    if not table.prepared:
        table.uploaded = table.ready = INF
        return
    table.uploaded = max([part.until for part in table.up], default=table.begin)
    table.ready = table.uploaded + table.restore


def serve(parts: Iterable[Part], now: float) -> float:
    """Schedule transfers on a copy engine in start order; return when it is free."""
    free, todo = now, []
    for part in parts:
        # A part that has begun keeps the engine to its end; one on a shared link begins when its flow is sent.
        if part.at <= now and (part.begun or part.alone):
            if part.until > free:
                free = part.until
        else:
            todo.append(part)
    if len(todo) == 1:
        part = todo[0]
        part.at = at = part.ask if part.ask > free else free
        part.until = free = at + part.delay + part.span  # inf if its end is unknown
        return free
    while todo:
        # Next is the part that can begin first; of several at the same time, the first in start order.
        best, first = None, INF
        for part in todo:
            asks = part.ask if part.ask > free else free
            if asks < first:
                best, first = part, asks
        if best is None:  # the other parts request the engine at unknown times
            for part in todo:
                part.at = part.until = INF
            return INF
        best.at = first
        best.until = free = first + best.delay + best.span
        todo.remove(best)  # the remaining parts compete again when this one ends
    return free


def _compute(tables: Sequence[tuple[Launch, Timetable]], lanes: Sequence[Lane], now: float, rate: Rate) -> None:
    used = dict.fromkeys(lanes, 0)  # shares in use at the instant considered
    ends: list[tuple[float, Launch, Timetable]] = []
    asking: list[tuple[Launch, Timetable]] = []
    for launch, table in tables:
        # Launches that have not begun are planned again: an earlier launch may be gone, or slower.
        if table.compute_start > now:
            table.compute_start = table.compute_end = INF
            if table.ready < INF:  # else the time of its request is unknown
                asking.append((launch, table))
        elif table.compute_end > now:
            for lane in table.lanes:
                used[lane] += launch.placement.mode.share
            ends.append((table.compute_end, launch, table))
    time = now  # Go from one instant at which a launch asks or ends to the next, and admit launches in start order.
    while asking and time < INF:
        asking, begun = _admit(asking, used, time)  # after the ends of that instant: they make room
        for launch, table in begun:
            _begin(launch, table, time, rate)
            ends.append((table.compute_end, launch, table))
        later = [table.ready for _, table in asking if table.ready > time]  # others wait for an end
        time = min([*later, *[end for end, _, _ in ends]], default=INF)
        for end, launch, table in ends:
            if end <= time:
                for lane in table.lanes:
                    used[lane] -= launch.placement.mode.share
        ends = [entry for entry in ends if entry[0] > time]  # their shares are free, and counted as such once


def _admit(
    asking: list[tuple[Launch, Timetable]], used: dict[Lane, int], time: float
) -> tuple[list[tuple[Launch, Timetable]], list[tuple[Launch, Timetable]]]:
    """Return which launches still wait and which compute now; add these to `used`."""
    waiting, begun = [], []
    closed: dict[Lane, None] = {}
    for launch, table in asking:
        share = launch.placement.mode.share
        if table.ready <= time:
            for lane in table.lanes:
                # Start order holds behind a launch that waits for a lane.
                if lane in closed or not (lane.sliced or used[lane] + share <= WHOLE):
                    closed.update(dict.fromkeys(table.lanes))  # no later one may overtake it, on any of its lanes
                    break
            else:
                for lane in table.lanes:
                    used[lane] += share
                begun.append((launch, table))
                continue
        waiting.append((launch, table))
    return waiting, begun


def _begin(launch: Launch, table: Timetable, time: float, rate: Rate) -> None:
    table.compute_start = table.updated = time
    if table.group is not None:  # its rate is set when it joins the others there
        table.compute_end = table.finish_at = INF
        return
    rate(launch)
    table.compute_end = table.finish_at = time + table.left / table.rate if table.rate > 0 else INF
