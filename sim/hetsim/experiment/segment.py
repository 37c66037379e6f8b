"""Files of finished runs: journals, and the sealed segments that replace them.

A journal has one JSON line with a checksum for each run.  A segment has the outcomes of a block of runs, ordered by the
runs' digests, so that its bytes do not depend on the order in which the runs finished:

    MAGIC, then the length of the head (8 bytes)
    head        JSON: names of all columns (metrics); sets of columns (a run may lack some); notes (errors, warnings)
    index       for each run its digest (32 bytes) and the checksum of its row (8 bytes)
    checksum    SHA-256 of all of the above
    rows        for each run the number of its set and of its note in the head (4 bytes each), and 8 bytes per column
"""

import hashlib
import json
import math
import os
from array import array
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.errors import DamagedFile, UsageError
from hetsim.experiment.work import Packed, RunOutcome
from hetsim.results.formatting import json_values
from hetsim.results.stored_files import open_stored, parse_json, sealed, unsealed_text

MAGIC = b"hetsim runs 1\n"
SEGMENT = ".runs"
ENTRY = np.dtype([("run", "V32"), ("check", "V8")])
_SUM = 32


def plain(run: str, outcome: RunOutcome) -> dict[str, Any]:
    marks: dict[str, Any] = {"refused": True} if outcome.refused else {}
    marks |= {"unknown": outcome.unknown} if outcome.unknown else {}
    marks |= {"reduced": True} if outcome.reduced else {}
    values = None if outcome.values is None else json_values(outcome.values)
    return {"run": run, "error": outcome.error, **marks, "warnings": outcome.warnings, "values": values}


def outcome_of_plain(kept: Mapping[str, Any], values: Mapping[str, float] | None) -> RunOutcome:
    """Build a run's outcome from stored data; TypeError or KeyError if invalid."""
    if not all(isinstance(text, str) for text in (kept["error"], kept.get("unknown", ""), *kept["warnings"])):
        raise TypeError
    return RunOutcome(
        values, kept["warnings"], error=kept["error"], refused=kept.get("refused", False),
        unknown=kept.get("unknown", ""), reduced=kept.get("reduced", False),
    )  # fmt: skip


def line_of(run: str, outcome: RunOutcome) -> bytes:
    """Return the journal line of a run.  Older versions stored it as a file per run."""
    return sealed(plain(run, outcome)).encode()


def parse_line(path: Path, text: bytes) -> tuple[str, RunOutcome]:
    """Parse a journal line into digest and outcome; DamagedFile if it was changed."""
    kept = unsealed_text(path, text)
    try:
        if (values := kept["values"]) is not None:
            values = Packed({name: math.nan if value is None else float(value) for name, value in values.items()})
        if len(bytes.fromhex(kept["run"])) != ENTRY["run"].itemsize:
            raise ValueError
        return kept["run"], outcome_of_plain(kept, values)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DamagedFile(path, "it is not the outcome of a run") from None


def segment_of(outcomes: Mapping[str, RunOutcome]) -> bytes:
    order = sorted(outcomes)
    names = list(dict.fromkeys(name for run in order for name in outcomes[run].values or ()))
    place = {name: number for number, name in enumerate(names)}
    sets: dict[tuple[str, ...] | None, int] = {}
    notes: dict[str, int] = {}
    row = np.dtype([("set", "<u4"), ("note", "<u4"), ("values", "<f8", (len(names),))])
    rows = np.zeros(len(order), row)
    rows["values"] = np.nan
    for number, run in enumerate(order):
        outcome = outcomes[run]
        own = None if outcome.values is None else tuple(outcome.values)
        note = {name: value for name, value in plain("", replace(outcome, values=None)).items() if name != "values"}
        rows[number]["set"] = sets.setdefault(own, len(sets))
        rows[number]["note"] = notes.setdefault(json.dumps(note), len(notes))
        if own:
            rows[number]["values"][[place[name] for name in own]] = list(outcome.values.values())  # type: ignore[union-attr]
    values = rows["values"]
    values[np.isnan(values)] = np.nan  # of one kind, whichever way a run was kept before
    data, size = rows.tobytes(), row.itemsize
    index = b"".join(
        bytes.fromhex(run) + _check(data[size * number : size * (number + 1)]) for number, run in enumerate(order)
    )
    head = json.dumps({
        "runs": len(order), "columns": names, "notes": [json.loads(note) for note in notes],
        "sets": [None if own is None else [place[name] for name in own] for own in sets],
    }, ensure_ascii=False).encode()  # fmt: skip
    top = MAGIC + len(head).to_bytes(8, "little") + head + index
    return top + hashlib.sha256(top).digest() + data


def _check(row: bytes) -> bytes:
    return hashlib.blake2b(row, digest_size=8).digest()


class Segment:
    """A segment file: its index, and its rows once `load` is called."""

    def __init__(self, path: Path):
        self.path = path
        with open_stored(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            top = stream.read(len(MAGIC) + 8)
            text = stream.read(min(size, int.from_bytes(top[len(MAGIC) :], "little")))
            try:
                head = parse_json(path, text)
                index = stream.read(min(size, max(0, ENTRY.itemsize * head["runs"])))
                if hashlib.sha256(top + text + index).digest() != stream.read(_SUM) or not top.startswith(MAGIC):
                    raise ValueError
                self.index = np.frombuffer(index, ENTRY)
                self.columns, self.sets, self.notes = head["columns"], head["sets"], head["notes"]
                self._names = [None if own is None else tuple(self.columns[at] for at in own) for own in self.sets]
                if not all(isinstance(name, str) for name in self.columns):
                    raise TypeError
                for note in self.notes:
                    outcome_of_plain(note, None)
            except (ValueError, KeyError, TypeError, IndexError, AttributeError):
                if top.startswith(MAGIC[:-2]) and not top.startswith(MAGIC):
                    raise UsageError(f"{path} cannot be read: it was written by another version of hetsim") from None
                raise DamagedFile(path, "its checksum does not match") from None
            self._begin = stream.tell()
        self._size = 8 + 8 * len(self.columns)
        self._in_order = [own == list(range(len(self.columns))) for own in self.sets]
        self._rows: bytes | None = None

    def __len__(self) -> int:
        return len(self.index)

    def run(self, number: int) -> str:
        return bytes(self.index["run"][number]).hex()

    def load(self) -> list[int]:
        """Read the rows; return the numbers of the damaged ones."""
        if self._rows is None:
            with open_stored(self.path) as stream:
                stream.seek(self._begin)
                self._rows = stream.read()
        count = len(self._rows) // self._size
        begins = np.frombuffer(self._rows[: count * self._size], "<u4").reshape(count, self._size // 4)[:, :2]
        if (begins >= (len(self.sets), len(self.notes))).any():
            return list(range(len(self)))
        checks = enumerate(self.index["check"])
        return [number for number, check in checks if number >= count or _check(self._row(number)) != bytes(check)]

    def unload(self) -> None:
        self._rows = None

    def _row(self, number: int) -> bytes:
        assert self._rows is not None
        return self._rows[self._size * number : self._size * (number + 1)]

    def outcome(self, number: int) -> RunOutcome:
        """Return the outcome in a row; the rows must be loaded, and this one undamaged."""
        row = self._row(number)
        own = int.from_bytes(row[:4], "little")
        note, places, names = self.notes[int.from_bytes(row[4:8], "little")], self.sets[own], self._names[own]
        if names is None:
            return outcome_of_plain(note, None)
        numbers = array("d", row[8:])
        if not self._in_order[own]:
            numbers = array("d", [numbers[at] for at in places])
        return outcome_of_plain(note, Packed.from_numbers(names, numbers))
