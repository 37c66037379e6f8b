"""Check a Chrome trace that `hetsim run --perfetto` or another program wrote.

    problems = check_trace("run.json.gz")     # [] if all is well

What is checked: every event has what its kind needs; slices have times and lengths that are not negative, and on one
thread they either follow one another or lie one inside the other; an arrow has one beginning and one end, each
inside a slice of its thread, the end not before the beginning; a counter's times do not go back.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Line = tuple[Any, Any]

NEEDED = {
    "X": ("name", "pid", "tid", "ts", "dur"),
    "C": ("name", "pid", "ts", "args"),
    "M": ("name", "pid", "args"),
    "s": ("id", "pid", "tid", "ts"),
    "f": ("id", "pid", "tid", "ts"),
}
"""What an event of each kind must have."""


def _grain(time: float) -> float:
    """Microseconds by which times may differ: rounding in files and in floats."""
    return 5e-4 + 1e-15 * time


def check_trace(path: str | Path, *, overlap: bool = False) -> list[str]:
    """Find what is wrong with a trace file for Perfetto's viewer.

    Parameters: path: the file; overlap: allow slices that lie one inside the other on a thread, which hetsim never
        writes.
    Returns: a sentence for each mistake.
    """
    try:
        data = Path(path).read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        content = json.loads(data)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        return [f"{path} cannot be read as JSON: {error}"]
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        return [f"{path} has no list of events"]
    problems = list(_wrong_events(events))
    if problems:
        return problems
    slices = _slices(events)
    problems += [problem for line, mine in slices.items() for problem in _wrong_nesting(line, mine, overlap)]
    problems += _wrong_arrows(events, slices)
    problems += _wrong_counters(events)
    return problems


def _wrong_events(events: list[Event]) -> Iterator[str]:
    for number, event in enumerate(events):
        kind = event.get("ph") if isinstance(event, dict) else None
        if kind not in NEEDED:
            yield f"event {number} is of no known kind: {str(event)[:100]}"
            continue
        missing = [name for name in NEEDED[kind] if name not in event]
        if missing:
            yield f'event {number} ("{kind}") lacks {", ".join(missing)}'
        for name in ("ts", "dur"):
            value = event.get(name, 0.0)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                yield f'event {number} ("{event.get("name")}") has {name} = {value!r}: a number not below 0 is wanted'


def _slices(events: list[Event]) -> dict[Line, list[Event]]:
    """Slices by thread, in order of begin; empty ones first, then the longest."""
    slices: dict[Line, list[Event]] = {}
    for event in events:
        if event["ph"] == "X":
            slices.setdefault((event["pid"], event["tid"]), []).append(event)
    for mine in slices.values():
        mine.sort(key=lambda event: (event["ts"], event["dur"] > 0, -event["dur"]))
    return slices


def _wrong_nesting(line: Line, slices: list[Event], overlap: bool) -> Iterator[str]:
    open_: list[Event] = []
    for event in slices:
        while open_ and _end(open_[-1]) <= event["ts"] + _grain(event["ts"]):
            open_.pop()
        if open_ and (not overlap or _end(event) > _end(open_[-1]) + _grain(event["ts"])):
            outer = open_[-1]
            yield (
                f'process {line[0]}, thread {line[1]}: "{event["name"]}" at {event["ts"]} µs begins before '
                f'"{outer["name"]}" ends at {_end(outer)} µs'
            )
        open_.append(event)


def _end(event: Event) -> float:
    return float(event["ts"] + event["dur"])


def _wrong_arrows(events: list[Event], slices: dict[Line, list[Event]]) -> Iterator[str]:
    ends: dict[Any, dict[str, list[Event]]] = {}
    for event in events:
        if event["ph"] in "sf":
            ends.setdefault(event["id"], {"s": [], "f": []})[event["ph"]].append(event)
    begins = {line: [event["ts"] for event in mine] for line, mine in slices.items()}
    for number, both in ends.items():
        if len(both["s"]) != 1 or len(both["f"]) != 1:
            yield f"arrow {number} has {len(both['s'])} beginnings and {len(both['f'])} ends, not one of each"
            continue
        (source,), (target,) = both["s"], both["f"]
        if target["ts"] < source["ts"] - _grain(source["ts"]):
            yield f"arrow {number} ends at {target['ts']} µs, before it begins at {source['ts']} µs"
        for event in (source, target):
            line = (event["pid"], event["tid"])
            if not _inside(event["ts"], begins.get(line, []), slices.get(line, [])):
                yield f"arrow {number} touches no slice of process {line[0]}, thread {line[1]} at {event['ts']} µs"


def _inside(time: float, begins: list[float], slices: list[Event]) -> bool:
    from bisect import bisect_right

    before = bisect_right(begins, time + _grain(time))
    return any(_end(event) >= time - _grain(time) for event in slices[max(0, before - 3) : before])


def _wrong_counters(events: list[Event]) -> Iterator[str]:
    last: dict[tuple[Any, str], float] = {}
    for event in events:
        if event["ph"] != "C":
            continue
        key = (event["pid"], event["name"])
        if event["ts"] < last.get(key, 0.0):
            yield f'counter "{key[1]}" of process {key[0]} goes back to {event["ts"]} µs'
        last[key] = event["ts"]
        wrong = {name: value for name, value in event["args"].items() if not isinstance(value, int | float)}
        if wrong:
            yield f'counter "{key[1]}" of process {key[0]} has values that are not numbers: {wrong}'
