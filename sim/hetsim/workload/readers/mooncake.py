"""Mooncake traces (`format: mooncake`): one JSON object a line.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353, 2354]}

`timestamp` is in ms.  `hash_ids` name the blocks of 512 tokens of the prompt, each by all that stands before it too,
so that equal ids are a common beginning that a prefix cache would find; they are kept as `TaskTable.hash_ids`.
A file may be compressed with gzip.  Options are those of all request traces (see `hetsim.workload.rows.request_rows`).
Reference: Qin, Li, He, Cui, Ren, Zhang, Wu, Zheng, Xu, Mooncake: Trading More Storage for Less Computation (FAST 2025).
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hetsim.errors import suggestion
from hetsim.model.units import ExistingFile, shown
from hetsim.workload.rows.request_rows import LONGEST_LINE, Request, RequestRows, nanoseconds, tokens, with_cut
from hetsim.workload.traces import TaskTable

BLOCK = 512
"""Tokens of a prompt that one hash id names."""
KEYS: dict[str, Callable[[str], tuple[int, str]]] = {
    "timestamp": partial(nanoseconds, unit=10**6), "input_length": tokens, "output_length": tokens,
}  # fmt: skip
LARGEST_ID = 2**63 - 1


@with_cut
def read(path: ExistingFile, **cut: Any) -> TaskTable:
    """Requests to a language model: arrivals, tokens, ids of prompt blocks.

    `since` and `until` cut a window, `time_scale` stretches it, `sample` keeps a share of the requests, and `sort`
    takes rows in any order.
    """
    return _Reader(RequestRows(Path(path), cut)).table()


class _Reader:
    def __init__(self, requests: RequestRows):
        self.requests = requests
        self.odd = 0
        """Requests that have not one id for each block of their prompts."""

    def table(self) -> TaskTable:
        table = self.requests.table(self._rows())
        if self.odd:
            some = f"{self.odd:,} request{'s' if self.odd > 1 else ''}"
            table.notes.append(f"{self.requests.path}: {some} without exactly one hash id for each {BLOCK} tokens")
        return table

    def _rows(self) -> Iterator[Request]:
        row_problems = self.requests.row_problems
        for number, text in self.requests.filled_lines(LONGEST_LINE):
            line = text.strip()
            try:
                row, wrong = self._row(number, line)
            except (ValueError, RecursionError) as error:
                place = getattr(error, "colno", None)
                why = getattr(error, "msg", "too deep or too long")
                row_problems.add(f"is not a JSON object ({why})", number, place)
                if number == 1 and "," in line and not line.startswith("{"):
                    return  # another format altogether: every line would be wrong
                continue
            if row is None:
                row_problems.add(wrong, number)
            else:
                yield row

    def _row(self, number: int, line: str) -> tuple[Request | None, str]:
        value = json.loads(line)
        if not isinstance(value, dict):
            return None, f"expected a JSON object with {', '.join(KEYS)}, not {shown(value)}"
        if missing := [key for key in KEYS if key not in value]:
            return None, f'the key "{missing[0]}" is missing{suggestion(missing[0], value)}'
        numbers = []
        for key, parse in KEYS.items():
            value_read, wrong = parse(_text(value[key]))
            if wrong:
                return None, f"{key}: {wrong}"
            numbers.append(value_read)
        time, prompt, output = numbers
        ids = value.get("hash_ids", [])
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one <= LARGEST_ID for one in ids):
            return None, "hash_ids: expected a list of whole numbers"
        if "hash_ids" in value and len(ids) != -(-prompt // BLOCK):
            self.odd += 1
        return Request(number, time, prompt, output=output, labels=(), ids=tuple(ids)), ""


def _text(value: Any) -> str:
    """A number as its cell in a table would be; what is none shows itself."""
    return repr(value) if isinstance(value, float | int) and not isinstance(value, bool) else f"{value}" or '""'
