"""Rows of a log with its own columns: CSV, Parquet, JSON lines.

The file is read in parts; the memory does not grow with the file.
"""

import csv
import json
import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from hetsim.errors import file_error
from hetsim.model.files import open_input
from hetsim.model.units import shown
from hetsim.workload.rows.text_rows import LONGEST_LINE, SEPARATORS, numbered_lines

SPACE = " "  # separator if the first line has no other sign; several spaces count as one
LOOKED_AT = 1000  # rows that determine the names in JSON lines before the whole file is read

FORMATS = ("csv", "parquet", "jsonl")


class FileRows:
    """Base class of files that are read as rows of cells."""

    names: list[str]  # of the columns
    word: str  # what row numbers count: lines of the file, or rows if it has no lines
    keyed: bool  # each row has its own keys, so that an empty cell may be a missing key

    def cells(self, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
        """Yield each row's number and its cells in these columns; None for a missing cell."""
        raise NotImplementedError

    def missing(self, columns: Sequence[str]) -> list[str]:
        """Return those of `columns` that the file lacks, if this is known before reading."""
        return [name for name in columns if name not in self.names]


class Csv(FileRows):
    """A file whose columns are separated by a character; quoted cells may contain it.

    If `separator` is None, it is detected from the first line.  `header`: the column names, if the file has none.
    """

    word = "line"
    keyed = False

    def __init__(self, path: Path, separator: str | None = None, header: Sequence[str] | None = None):
        self.path = path
        self._header = header
        lines = ((number, text) for number, text in _without_remarks(path) if text.strip())
        if (first := next(lines, None)) is None:
            raise file_error(path, "has no rows" if path.stat().st_size else "is empty")
        self.separator = separator or _separator(first[1])
        self.names: list[str] = list(header) if header else []
        if not header:
            number, cells = next(self._records())
            self.names = [str(cell).strip() for cell in cells]
            if len(self.names) == 1 and separator is not None:
                other = _separator(first[1])
                if other in first[1] and other != separator:
                    word = SEPARATORS.get(separator, f'"{separator}"')
                    raise file_error(path, f"its columns are separated by {SEPARATORS[other]}, not by {word}", 1)
            self._line = number

    def cells(self, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
        places = [self.names.index(name) if name in self.names else None for name in columns]
        width = len(self.names)
        records = self._records()
        if not self._header:
            next(records)
        for number, cells in records:
            if len(cells) != width:
                raise file_error(self.path, self._uneven(len(cells)), number)
            yield number, [None if place is None else cells[place] for place in places]

    def _uneven(self, count: int) -> str:
        has = "1 cell" if count == 1 else f"{count} cells"
        width = len(self.names)
        named = "the header has" if not self._header else "the key header names"
        text = f"the row has {has}, but {named} {width} column{'s' * (width != 1)}"
        if self._header or width >= count:
            return text
        return f"{text}; line {self._line} ({shown(self.names[0])}, ...) was read as the names of the columns"

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        source = _Lines(self.path, self.separator == SPACE)
        reader = csv.reader(source, delimiter=self.separator, strict=True, skipinitialspace=True)
        while True:
            begin = source.number + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                reason = "a quotation mark is not closed" if "end of data" in str(error) else str(error)
                raise file_error(self.path, f"cannot be read as a row of cells: {reason}", begin) from None
            if cells is None:
                return
            if cells and (len(cells) > 1 or cells[0].strip()):
                yield begin, cells


class _Lines:
    """Counted lines of a file, each with a line feed, as the csv module requires."""

    def __init__(self, path: Path, spaced: bool):
        self.number = 0
        self._path, self._spaced = path, spaced
        self._lines = _without_remarks(path)

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        self.number, text = next(self._lines)
        if "\0" in text:
            what = "has NUL bytes, so it is not text; if it is UTF-16, save it as UTF-8"
            raise file_error(self._path, what, self.number)
        return (text.removesuffix("\r") if not self._spaced else text.rstrip()) + "\n"


def _without_remarks(path: Path) -> Iterator[tuple[int, str]]:
    head = True
    for number, text in numbered_lines(path, LONGEST_LINE):
        if head and text.startswith("#") and not any(mark in text for mark in SEPARATORS):
            continue
        head = head and not text.strip()
        yield number, text


def _separator(line: str) -> str:
    if any(mark in line for mark in SEPARATORS):
        return max(SEPARATORS, key=line.count)
    return SPACE if SPACE in line.strip() else ","


class Parquet(FileRows):
    """A Parquet file, read in batches of rows."""

    word = "row"
    keyed = False

    def __init__(self, path: Path):
        import pyarrow as pa
        from pyarrow import parquet

        self.path = path
        try:
            source = open_input(path)
            weakref.finalize(self, source.close)
            self._file = parquet.ParquetFile(source)
            self.names = list(self._file.schema_arrow.names)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise file_error(path, f"cannot be read as Parquet: {' '.join(str(error).split())}") from None
        for field in self._file.schema_arrow:
            if pa.types.is_nested(field.type):
                self.names.remove(field.name)
        if not self._file.metadata.num_rows:
            raise file_error(path, "the table has no rows")

    def cells(self, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
        import pyarrow as pa

        number = 0
        try:
            for batch in self._file.iter_batches(columns=list(dict.fromkeys(columns))):
                batch.validate(full=True)  # texts too: Parquet does not promise that their bytes are UTF-8
                lists = [_values(batch.column(batch.schema.names.index(name))) for name in columns]
                for cells in zip(*lists, strict=True):
                    number += 1
                    yield number, list(cells)
        except (pa.ArrowException, OSError, OverflowError) as error:  # of a date that Python does not have
            raise file_error(self.path, f"cannot be read as Parquet: {' '.join(str(error).split())}") from None


def _values(column: Any) -> list[Any]:
    import pyarrow as pa
    from pyarrow import compute

    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        # Python's dates have microseconds; finer ones would be refused one by one.
        column = compute.cast(column, pa.timestamp("us", kind.tz), safe=False)
    elif pa.types.is_duration(kind) and kind.unit == "ns":
        column = compute.cast(column, pa.duration("us"), safe=False)
    elif pa.types.is_date(kind):
        column = compute.cast(column, pa.timestamp("us"))
    elif pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
    return column.to_pylist()


class JsonLines(FileRows):
    """JSON lines: one object per line; `resources.gpus` is a nested key."""

    word = "line"
    keyed = True

    def __init__(self, path: Path):
        self.path = path
        self.seen: set[str] = set()
        names: dict[str, None] = {}
        for _, row in islice(self._objects(), LOOKED_AT):
            names.update(dict.fromkeys(_keys(row)))
        if not names:
            raise file_error(path, "has no rows" if path.stat().st_size else "is empty")
        self.names = list(names)

    def missing(self, columns: Sequence[str]) -> list[str]:
        return [name for name in super().missing(columns) if name not in self.seen]

    def cells(self, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
        for number, row in self._objects():
            yield number, [self._cell(row, name) for name in columns]

    def _cell(self, row: dict[str, Any], name: str) -> Any:
        try:
            value = _dig(row, name)
        except KeyError:
            return None
        self.seen.add(name)
        return value

    def _objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, text in numbered_lines(self.path, LONGEST_LINE):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (json.JSONDecodeError, RecursionError) as error:
                what = error.msg if isinstance(error, json.JSONDecodeError) else "too deep"
                is_list = number == 1 and text.strip() in ("[", "{")
                hint = "; each line must be one JSON object" if is_list else ""
                raise file_error(self.path, f"the line is not JSON ({what}){hint}", number) from None
            if not isinstance(row, dict):
                raise file_error(self.path, "the line is not a JSON object", number)
            yield number, row


def _dig(found: Any, name: str) -> Any:
    if isinstance(found, dict):
        if name in found:
            return found[name]
        for at in [at for at, sign in enumerate(name) if sign == "." and name[:at] in found]:
            with suppress(KeyError):
                return _dig(found[name[:at]], name[at + 1 :])
    raise KeyError(name)


def _keys(row: dict[str, Any], before: str = "") -> Iterator[str]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def rows_of(
    path: Path, form: str, separator: str | None = None, header: Sequence[str] | None = None
) -> Csv | Parquet | JsonLines:
    """Return the rows of a file in one of `FORMATS`; ScenarioError if unreadable."""
    if form == "parquet":
        return Parquet(path)
    return JsonLines(path) if form == "jsonl" else Csv(path, separator, header)


def is_blank(value: Any, words: frozenset[str | float]) -> bool:
    """Return True if a cell contains no value."""
    if isinstance(value, str | int):
        return value in words
    return value is None or (isinstance(value, float) and (math.isnan(value) or value in words))


def tidied(value: Any) -> Any:
    """Strip a text cell; ValueError if the cell is neither text, number nor time."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict | list | bytes):
        raise ValueError("is neither a text nor a number")
    return value


def tidied_row(path: Path, number: int, cells: Sequence[Any]) -> list[Any]:
    """Strip all cells of a row; ScenarioError names the row."""
    try:
        return [tidied(cell) for cell in cells]
    except ValueError as error:
        raise file_error(path, f"row {number}: a cell {error}") from None


def beginning(rows: FileRows, count: int) -> list[tuple[int, list[Any]]]:
    """Return the first `count` rows (number and cells), with all columns."""
    return list(islice(rows.cells(rows.names), count))
