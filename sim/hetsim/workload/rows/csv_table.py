"""Tables of separated values, row by row, with addresses of problems."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from hetsim.errors import suggestion
from hetsim.model.units import shown
from hetsim.workload.rows.text_rows import NUMBER, ReadFile, numbered_lines

LONGEST_LINE = 16_000_000
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


class CsvTable:
    """The rows of a file with one separator, as cells of the wanted columns.

    `header`: the names of the columns where the file itself does not tell them.
    """

    def __init__(
        self,
        log: ReadFile,
        needed: tuple[str, ...],
        optional: tuple[str, ...] = (),
        separator: str = ",",
        header: tuple[str, ...] | None = None,
        longest: int = LONGEST_LINE,
    ):
        self.log = log
        self.separator = separator
        self.rows = ((number, line) for number, line in numbered_lines(log.path, longest) if line.strip())
        self.text = ""
        """The row as it stands in the file."""
        if header is None:
            first = next(self.rows, None)
            if first is None:
                log.fail("has no rows" if log.path.stat().st_size else "is empty")
            header = tuple(cell.strip() for cell in self._split(*first) or [])
            self._check(header, first[0], needed)
        elif not log.path.stat().st_size:
            log.fail("is empty")
        self.width = len(header)
        places = {name.casefold(): place for place, name in enumerate(header)}
        self.names = (*needed, *optional)
        self.places = [places.get(name.casefold()) for name in self.names]
        self.has = {name: name.casefold() in places for name in self.names}

    def _check(self, header: tuple[str, ...], line: int, needed: tuple[str, ...]) -> None:
        lower = [name.casefold() for name in header]
        missing = [name for name in needed if name.casefold() not in lower]
        for other, word in SEPARATORS.items():
            if missing and other != self.separator and len(header) == 1 and other in header[0]:
                self.log.fail(f"its columns are separated by {word}, expected are {SEPARATORS[self.separator]}", line)
        if missing and all(NUMBER.fullmatch(cell) for cell in header):
            self.log.fail(f"the first line is a row of numbers; expected is a header with {', '.join(needed)}", line)
        if len(set(lower)) < len(lower):
            self.log.fail("two columns have one name", line)
        for name in missing:
            near = suggestion(name, header) or f"; there are {', '.join(shown(one) for one in header[:12])}"
            self.log.row_problems.add(f'no column "{name}"{near}', line)
        self.log.row_problems.fail_if_any()

    def _split(self, number: int, line: str) -> list[str] | None:
        line = line.rstrip("\r")
        if '"' not in line:
            return line.split(self.separator)
        try:
            return next(csv.reader([line], delimiter=self.separator, strict=True))
        except csv.Error as error:
            self.log.row_problems.add(f"cannot be read as a row of cells: {error}", number)
            return None

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        width, places = self.width, self.places
        for number, line in self.rows:
            cells = self._split(number, line)
            if cells is None:
                continue
            if len(cells) != width:
                has = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
                self.log.row_problems.add(f"the row has {has}, expected are {width}", number)
                continue
            self.text = line
            yield number, ["" if place is None else cells[place].strip() for place in places]
