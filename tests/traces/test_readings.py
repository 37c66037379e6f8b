"""What every reader makes of its examples, and of these with one cell changed at a time, as digests.

They say nothing of what is right, which test_readers_by_hand.py and others say: they tell whether a change that should
make a reader clearer or faster changes what is read, or what is said of a bad cell.  Where that is meant:

    python tests/traces/test_readings.py      writes tests/traces/readings.csv anew

Each case is read in parts, so that each test is quick: mutation testing leaves slow ones out.
"""

from __future__ import annotations

import csv
import hashlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
from reader_examples import CASES, Case
from test_trace_damage import SAMPLES

from hetsim import registry
from hetsim.errors import HetsimError
from hetsim.workload.costs.measured_training import StepModel

FILE = Path(__file__).with_name("readings.csv")
CELL = re.compile(r"[^\s,|;:\t\"{}\[\]=()+*]+")
CHANGES = ("", "0", "-1", "7", "2.5", "x", "300", "2026-01-01T00:00:09")
MAX_CELLS = 40
"""Cells of a text that are changed, spread evenly."""
PARTS = 6
"""Tests of a case: the first reads the first text and each sixth from there on."""


def texts(case: Case) -> Iterator[str]:
    """The example; then with each cell changed in one of the ways by turns, and with each line gone or there twice."""
    yield case.text
    cells = list(CELL.finditer(case.text))
    step = max(1, len(cells) / MAX_CELLS)
    for number in range(min(len(cells), MAX_CELLS)):
        cell = cells[int(number * step)]
        for change in CHANGES[number % 2 :: 2]:
            yield case.text[: cell.start()] + change + case.text[cell.end() :]
    lines = case.text.splitlines(keepends=True)
    for place in range(min(len(lines), 12)):
        yield "".join(lines[:place] + lines[place + 1 :])
        yield "".join(lines[: place + 1] + lines[place:])


def shown(value: Any) -> str:
    """A canonical text of what a reader returns."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.kind}{[shown(one) for one in value.tolist()]}"
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {shown(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    parts = vars(value) if hasattr(value, "__dict__") else {}
    if isinstance(value, StepModel):  # a fit, of which processors with other instructions find other last digits
        return f"{[f'{one:.5g}' for one in value.figures]}"
    if parts:
        return shown({key: one for key, one in parts.items() if key not in ("source", "opened", "line")})
    slots = getattr(type(value), "__slots__", ())
    return shown({key: getattr(value, key) for key in slots}) if slots else repr(value)


def reading(case: Case, text: str, folder: Path) -> str:
    path = folder / case.file
    path.write_text(text, encoding="utf-8", newline="")
    options: dict[str, Any] = dict(case.options)
    for key, name in case.paths.items():
        options[key] = folder / name
    try:
        read = case.read or registry.entry(case.kind, case.reader)
        text = shown(read(path, **options))
    except HetsimError as error:
        text = f"{type(error).__name__}: {error}"
    return text.replace(str(folder), "")


def digests(case: Case, folder: Path, part: slice = slice(None)) -> list[str]:
    for name, text in case.others.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    read = (reading(case, text, folder) for text in list(texts(case))[part])
    return [hashlib.sha256(one.encode()).hexdigest()[:3] for one in read]


def kept() -> dict[str, str]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return dict(csv.reader(file))


KEPT = kept() if FILE.exists() else {}


def test_every_case_has_digests_and_nothing_else_has() -> None:
    assert list(KEPT) == [name for name in CASES if name not in SAMPLES]


@pytest.mark.quick(46)
@pytest.mark.by_turns(34)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", CASES)
def test_readings_are_those_on_record(name: str, part: int, tmp_path: Path) -> None:
    """And of readers with a sample of their own whatever it is damaged to is read, or refused in a sentence."""
    chosen = slice(part, None, PARTS)
    today = digests(CASES[name], tmp_path, chosen)
    if name in SAMPLES:
        return
    pairs = zip(list(texts(CASES[name]))[chosen], KEPT[name].split()[chosen], today, strict=True)
    changed = [text for text, before, now in pairs if before != now]
    assert not changed, f"{name}: read otherwise, {len(changed)} times; the first is\n{changed[0]}\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made, FILE.open("w", newline="", encoding="utf-8") as target:
        rows = ((name, " ".join(digests(one, Path(made)))) for name, one in CASES.items() if name not in SAMPLES)
        csv.writer(target, lineterminator="\n").writerows(rows)
