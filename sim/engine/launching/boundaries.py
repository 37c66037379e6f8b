"""The next boundary of a launch: when its pending entry is due, and what for."""

from __future__ import annotations

from collections.abc import Sequence

from sim.engine.flight.launch import COMPUTED, END, INF, JOIN, READY, TURN, Timetable
from sim.engine.flight.part import Part


def next_boundary(table: Timetable) -> tuple[float, int]:
    """The next boundary of a launch for which something must be done before its end."""
    if not table.prepared:
        return table.begin, READY
    turn = _turn(table.up) if table.up else INF
    if turn < INF:
        return turn, TURN
    if not table.computed:
        lanes = table.lanes
        traffic = table.traffic
        shared = traffic is not None or (lanes and lanes[0].group is not None)
        if shared and not table.joined:
            return table.compute_start, JOIN
        if (table.items or shared) and (traffic is None or not traffic.simple):
            return table.compute_end, COMPUTED
    turn = _turn(table.down) if table.down else INF
    return (turn, TURN) if turn < INF else (table.end, END)


def _turn(parts: Sequence[Part]) -> float:
    """The time at which the next transfer that needs events of its own gets its engine."""
    first = INF
    for part in parts:
        if not (part.alone or part.begun) and part.at < first:
            first = part.at
    return first
