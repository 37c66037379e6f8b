"""Layers of a network for `hetsim plan partition`, from PipeDream or a table.

PipeDream: one line per layer (`node4 -- Conv2d(...) -- forward_compute_time=0.5, backward_compute_time=1.1,
activation_size=1024.0, parameter_size=64.0`; milliseconds and bytes), then one line per edge that begins with a tab.

Table: CSV with the columns layer, activations, weights (bytes) and forward, backward (seconds).  Further columns such
as seconds.npu contain the seconds on a type of device; they may replace the other times.  Rows are in layer order.
"""

import csv
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from hetsim.errors import Problem, ScenarioError, file_error
from hetsim.model.files import open_text
from hetsim.model.units import MAX_NUMBER
from hetsim.pipelines.layer_cuts import Cuts, Layer, chain
from hetsim.pipelines.partition import MAX_CUTS

FIGURES = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
COLUMNS = ("layer", "activations", "weights", "forward", "backward")
ON = "seconds."


def read_profile(path: str | Path) -> Cuts:
    """Read a network's layers and its possible cuts; ScenarioError names the line."""
    path = Path(path)
    try:
        with open_text(path, newline=None) as source:
            text = source.read()
    except UnicodeDecodeError:
        raise file_error(path, "the file is not UTF-8 text") from None
    except OSError as error:
        raise file_error(path, f"cannot be read: {error.strerror}") from None
    if path.suffix.lower() == ".csv":
        return _table(text, str(path))
    return _pipedream(text, str(path))


def _number(text: str, what: str, file: str, line: int, column: int | None) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_NUMBER:
        said = f'{what}: must be a number from 0 to {MAX_NUMBER:g}; got "{text.strip()}"'
        raise file_error(file, said, line, column)
    return value


def _column(raw: str, place: int) -> int | None:
    """Return where CSV cell `place` begins (from 1); None if a quote is not closed."""
    if raw.count('"') % 2:
        return None
    commas, quoted = 0, False
    for at, sign in enumerate(raw):
        if commas == place:
            return at + 1
        quoted ^= sign == '"'
        commas += sign == "," and not quoted
    return len(raw) + 1


def _table(text: str, file: str) -> Cuts:
    lines = text.splitlines()
    reader = csv.DictReader(lines)
    header = list(reader.fieldnames or [])
    devices = [name for name in header if name.startswith(ON) and name != ON]
    _check_header(header, devices, lines, file)
    layers = []
    for row in reader:
        line = reader.line_num
        raw = lines[line - 1]
        if None in row or None in row.values():
            cells = next(csv.reader([raw]), []) if raw.count('"') % 2 == 0 else []
            short = f"; got {len(cells)}" if cells else ""
            where = _column(raw, min(len(cells), len(header)))
            raise file_error(file, f"a row must have {len(header)} values, as the header{short}", line, where)

        def figure(name: str, row: dict = row, line: int = line, raw: str = raw) -> float:
            if name not in header:
                return 0.0
            return _number(row[name], name, file, line=line, column=_column(raw, header.index(name)))

        layers.append(Layer(row["layer"], figure("forward"), figure("backward"), activations=figure("activations"),
                            weights=figure("weights"),
                            on={name[len(ON) :]: figure(name) for name in devices}))  # fmt: skip
    if not layers:
        raise file_error(file, "the file has no layer")
    _check_times(layers, header, lines[0], file)
    return chain(layers)


def _check_header(header: list[str], devices: list[str], lines: list[str], file: str) -> None:
    needed = ["layer", "activations", *(() if devices else ("forward",))]
    wrong: list[tuple[str, int | None]] = []
    wrong += [(f'the column "{name}" is missing', None) for name in needed if name not in header]
    there = f"there are {', '.join(COLUMNS)} and {ON}DEVICE"
    wrong += [(f'unknown column "{name}"; {there}', place) for place, name in enumerate(header)
              if name not in COLUMNS and name not in devices]  # fmt: skip
    wrong += [(f'the column "{name}" appears twice', len(header) - 1 - header[::-1].index(name))
              for name in dict.fromkeys(header) if header.count(name) > 1]  # fmt: skip
    if wrong:
        places = [(said, None if place is None else _column(lines[0], place)) for said, place in wrong]
        raise ScenarioError([Problem(said, "", file, line=1, column=column) for said, column in places])


def _check_times(layers: list[Layer], header: list[str], first: str, file: str) -> None:
    devices = [name for name in header if name.startswith(ON)]
    empty = [name for name in devices if not any((one.on or {})[name[len(ON) :]] for one in layers)]
    general = any(one.seconds for one in layers)
    if "forward" in header and not any(one.forward for one in layers) and (general or not layers[0].on):
        empty.append("forward")
    if empty:
        said = "at least one layer must take more than 0 s"
        raise ScenarioError([Problem(f"{name}: {said}", "", file, line=1, column=_column(first, header.index(name)))
                             for name in empty])  # fmt: skip


def _pipedream(text: str, file: str) -> Cuts:
    """Read PipeDream's text of a network, without input layers, which cost nothing."""
    layers: dict[str, Layer] = {}
    after: dict[str, list[str]] = {}
    into: dict[str, list[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        parts = line.strip().split(" -- ")
        if line.startswith("\t"):
            unknown = [name for name in parts if name not in layers]
            if len(parts) != 2 or unknown:
                said = f'there is no layer "{unknown[0]}" before this line' if unknown else "must be NODE -- NODE"
                raise file_error(file, f"an edge: {said}", number)
            after.setdefault(parts[0], []).append(parts[1])
            into.setdefault(parts[1], []).append(parts[0])
            continue
        if parts[0] in layers:
            raise file_error(file, f'layer "{parts[0]}" is given twice', number)
        layers[parts[0]] = _layer(parts, file, number, line)
    for name in [one for one in layers if layers[one].name.startswith("Input") and not into.get(one)]:
        _remove(name, layers, after, into)
    for name in [one for one in layers if layers[one].name.startswith("__getitem__") and not after.get(one)]:
        _remove(name, layers, after, into)
    if not layers:
        raise file_error(file, "the file has no layer")
    if not any(one.forward for one in layers.values()):
        said = "forward_compute_time: at least one layer must take more than 0 s"
        raise file_error(file, said, 1)
    return _cuts(layers, after, into, file)


def _layer(parts: list[str], file: str, line: int, raw: str) -> Layer:
    if len(parts) < 3:
        raise file_error(file, "must be NODE -- DESCRIPTION -- FIGURES, or a tab and NODE -- NODE", line)
    given = dict(re.findall(r"(\w+)=(\[[^]]*\]|[^,]*)", parts[2]))
    if missing := [name for name in FIGURES if name not in given]:
        raise file_error(file, f'layer "{parts[0]}": {", ".join(missing)} missing', line)

    def figure(name: str) -> float:
        several = given[name].strip("[]").split(";") if given[name].startswith("[") else [given[name]]
        return sum(_number(one, name, file, line=line, column=raw.find(f"{name}=") + len(name) + 2) for one in several)

    forward, backward, activations, weights = (figure(name) for name in FIGURES)
    return Layer(parts[1], forward / 1000, backward / 1000, activations=activations, weights=weights)


def _remove(name: str, layers: dict[str, Layer], after: dict[str, list[str]], into: dict[str, list[str]]) -> None:
    del layers[name]
    for other in after.pop(name, ()):
        into[other].remove(name)
    for other in into.pop(name, ()):
        after[other].remove(name)


def _cuts(layers: dict[str, Layer], after: dict[str, list[str]], into: dict[str, list[str]], file: str) -> Cuts:
    """Return all cuts of a layer graph (edges `after`, `into`) in topological order."""
    order = _sorted(layers, after, into, file)
    ancestors: dict[str, frozenset[str]] = {}
    for name in order:
        earlier = [ancestors[one] | {one} for one in into.get(name, ())]
        ancestors[name] = frozenset().union(*earlier)
    graph = _Antichains(after, ancestors)
    first: tuple[str, ...] = (next(name for name in layers if not into.get(name)),)
    later: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    queue = deque([first])
    while queue:
        here = queue.popleft()
        if here in later:
            continue
        later[here] = list(dict.fromkeys(graph.next(here)))
        if len(later) > MAX_CUTS:
            text = f"the network must have at most {MAX_CUTS:,} cuts; join layers"
            raise file_error(file, text)
        queue.extend(later[here])
    states = _topological(first, later)
    numbers = {name: place for place, name in enumerate(order)}
    closed = [frozenset().union(*(ancestors[one] | {one} for one in state)) for state in states]
    if unread := [name for name in layers if name not in closed[-1]]:
        text = f'layer "{unread[0]}" ({layers[unread[0]].name}) does not lead to the last layer, the only end'
        raise file_error(file, text)
    crossing = [sum(layers[one].activations for one in graph.augmented(state)) for state in states]
    before = np.array([[a < b for b in closed] for a in closed])
    return Cuts(tuple(layers[name] for name in order),
                tuple(frozenset(numbers[one] for one in members) for members in closed), np.array(crossing),
                before)  # fmt: skip


class _Antichains:
    """Sets of layers in which no layer is an ancestor of another."""

    def __init__(self, after: dict[str, list[str]], ancestors: dict[str, frozenset[str]]):
        self.after, self.ancestors = after, ancestors

    def augmented(self, antichain: Iterable[str]) -> list[str]:
        """Add ancestors of the antichain's layers where a branch to other layers begins.

        As in PipeDream, a layer at which branches begin is added even if each branch has a layer in the antichain: its
        output then counts as sent across the cut, although nothing after the cut reads it.
        """
        antichain = list(antichain)
        extra = dict.fromkeys(
            earlier
            for one in antichain
            for earlier in sorted(self.ancestors[one])
            if any(then not in self.ancestors[one] and then != one for then in self.after.get(earlier, ()))
        )
        return [*extra, *antichain]

    def next(self, antichain: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        wide = self.augmented(antichain)
        for old in dict.fromkeys(wide):
            for new in self.after.get(old, ()):
                if new in antichain or any(new in self.ancestors[one] for one in wide):
                    continue
                names = {new if one == old else one for one in wide}
                yield tuple(sorted(a for a in names if not any(a in self.ancestors[b] for b in names)))


def _sorted(layers: dict[str, Layer], after: dict, into: dict, file: str) -> list[str]:
    waiting = {name: len(into.get(name, ())) for name in layers}
    ready = deque(name for name in layers if not waiting[name])
    ordered = []
    while ready:
        ordered.append(ready.popleft())
        for then in after.get(ordered[-1], ()):
            waiting[then] -= 1
            if not waiting[then]:
                ready.append(then)
    if len(ordered) < len(layers):
        name = next(one for one in layers if waiting[one])
        raise file_error(file, f'the layers form a cycle; "{name}" is in it or after it')
    return ordered


def _topological(first: tuple[str, ...], later: dict) -> list[tuple[str, ...]]:
    order, seen, stack = [], {first}, [(first, iter(later[first]))]
    while stack:
        here, rest = stack[-1]
        for then in rest:
            if then not in seen:
                seen.add(then)
                stack.append((then, iter(later[then])))
                break
        else:
            order.append(here)
            stack.pop()
    return order[::-1]
