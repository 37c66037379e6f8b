"""Readers of request traces: `azure_llm`, `burstgpt`, `requests` and `mooncake`."""

import json
import math
import re
from collections.abc import Callable, Iterator
from datetime import date
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from hetsim.errors import suggestion
from hetsim.model.units import ExistingFile, shown
from hetsim.workload.rows.request_rows import (
    LONGEST_LINE,
    Column,
    Request,
    RequestColumns,
    RequestRows,
    nanoseconds,
    tokens,
    with_cut,
)
from hetsim.workload.rows.text_rows import NUMBER, Flag
from hetsim.workload.traces import TaskTable

MOONCAKE_BLOCK = 512  # prompt tokens per hash id
MOONCAKE_KEYS: dict[str, Callable[[str], tuple[int, str]]] = {
    "timestamp": partial(nanoseconds, unit=10**6), "input_length": tokens, "output_length": tokens,
}  # fmt: skip
LARGEST_ID = 2**63 - 1


@with_cut
def mooncake(path: ExistingFile, **cut: Any) -> TaskTable:
    """Requests to a language model: arrivals, tokens, ids of prompt blocks.

    `since` and `until` select a time window, `time_scale` stretches it, `sample` selects a share of the requests, and
    `sort` accepts unordered rows.

    `timestamp` is in ms.  `hash_ids` identify the blocks of 512 prompt tokens together with everything before them, so
    that equal ids mean a common prefix that a prefix cache would find; they become `TaskTable.hash_ids`.  A file may be
    compressed with gzip.
    Reference: Qin, Li, He, Cui, Ren, Zhang, Wu, Zheng, Xu, Mooncake: Trading More Storage for Less Computation (FAST
    2025).
    """
    return _Reader(RequestRows(Path(path), cut)).table()


class _Reader:
    """Reader of JSON lines with timestamp, input_length, output_length and hash_ids."""

    def __init__(self, requests: RequestRows):
        self.requests = requests
        self.odd = 0  # requests that have not one id for each block of their prompts

    def table(self) -> TaskTable:
        table = self.requests.table(self._rows())
        if self.odd:
            some = f"{self.odd:,} request{'s' if self.odd > 1 else ''} with more or fewer hash ids than one"
            table.notes.append(f"{self.requests.path}: {some} for each {MOONCAKE_BLOCK} tokens")
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
            return None, f"must be a JSON object with {', '.join(MOONCAKE_KEYS)}; got {shown(value)}"
        if missing := [key for key in MOONCAKE_KEYS if key not in value]:
            return None, f'the key "{missing[0]}" is missing{suggestion(missing[0], value)}'
        numbers = []
        for key, parse in MOONCAKE_KEYS.items():
            value_read, wrong = parse(_cell(value[key]))
            if wrong:
                return None, f"{key}: {wrong}"
            numbers.append(value_read)
        time, prompt, output = numbers
        ids = value.get("hash_ids", [])
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one <= LARGEST_ID for one in ids):
            return None, "hash_ids: must be a list of whole numbers"
        if "hash_ids" in value and len(ids) != -(-prompt // MOONCAKE_BLOCK):
            self.odd += 1
        return Request(number, time, prompt, output=output, labels=(), ids=tuple(ids)), ""


def _cell(value: Any) -> str:
    return repr(value) if isinstance(value, float | int) and not isinstance(value, bool) else f"{value}" or '""'


_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:\+00:00|Z)?", re.ASCII)


@with_cut
def azure_llm(path: ExistingFile, **cut: Any) -> TaskTable:
    """Requests to a language model: arrivals, tokens of prompt and answer.

    `since` and `until` select a time window, `time_scale` stretches it, `sample` selects a share of the requests, and
    `sort` accepts unordered rows.

    Time stamps are read exactly, with up to nine fractional digits (the published traces have six or seven); time 0 is
    that of the first request.
    Reference: Patel, Choukse, Zhang, Shah, Goiri, Maleki, Bianchini, Splitwise: Efficient Generative LLM Inference
    Using Phase Splitting (ISCA 2024).
    """
    requests = RequestRows(Path(path), cut, from_first=True)
    return requests.table(Request(line, *values) for line, values in RequestColumns(requests, AZURE))


@with_cut
def burstgpt(path: ExistingFile, *, model: str | None = None, failures: Flag = False, **cut: Any) -> TaskTable:
    """Requests to ChatGPT and GPT-4: arrivals, model, session, tokens.

    `model` selects the requests to one model, `failures` includes requests without an answer; `since` and `until`
    select a time window, `time_scale` stretches it, `sample` selects a share of the requests, and `sort` accepts
    unordered rows.

    Newer releases also have `Session ID` and `Elapsed time`; all releases can be read.  Times are seconds from the
    first day's midnight.  The model becomes the class of a request, the session its user, and the recorded response
    time the column `elapsed`.  Requests without response tokens failed; they are skipped unless `failures: true`.
    Reference: Wang, Chen, Li, Kang, Fang, Zhou, Zheng, Tang, He, Guo, Wang, Wang, Zhou, Chu, BurstGPT: A Real-World
    Workload Dataset to Optimize LLM Serving Systems (KDD 2025).
    """
    requests = RequestRows(Path(path), cut, ("class", "user"), ("elapsed",))
    columns = RequestColumns(requests, BURST)
    if model is not None and not columns.has("Model"):
        requests.fail("must have a column Model to select requests to one model")
    recorded = columns.has("Elapsed time")
    failed, others = 0, dict[str, None]()

    def rows() -> Iterator[Request]:
        nonlocal failed
        for line, (time, prompt, output, elapsed, to, session) in columns:
            if model is not None and to != model:
                others[to] = None
            elif not output and not failures:
                failed += 1
            else:
                yield Request(line, time, prompt, output=output, labels=(to, session), ids=(),
                              numbers=(elapsed,) if recorded else ())  # fmt: skip
        if model is not None and not requests.read:
            listed = ", ".join(map(shown, others)) or "none at all"
            requests.fail(f"there is no request to the model {shown(model)}; the models are {listed}")

    table = requests.table(rows())
    if failed:
        some = f"{failed:,} request{'s' if failed > 1 else ''} without response tokens (failed there)"
        table.notes.append(f"{requests.path}: {some} left out; failures: true keeps them")
    return table


@with_cut
def plain(path: ExistingFile, **cut: Any) -> TaskTable:
    """Requests in a plain table: arrival; optionally tokens, class, user, ids.

    `since` and `until` select a time window, `time_scale` stretches it, `sample` selects a share of the requests, and
    `sort` accepts unordered rows.

    Columns: arrival (seconds), prompt_tokens, output_tokens; optional: class, user, and hash_ids (whole numbers
    separated by `;`).  Only `arrival` is required; without token columns the requests have no tokens.
    """
    requests = RequestRows(Path(path), cut, ("class", "user"))
    columns = RequestColumns(requests, PLAIN)
    table = requests.table(Request(line, time, prompt, output=output, labels=(class_, user), ids=ids)
                           for line, (time, prompt, output, ids, class_, user) in columns)  # fmt: skip
    for name in ("prompt_tokens", "output_tokens"):
        if not columns.has(name):
            del table.extra[name]
    return table


# Cells ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _days(day: str) -> int | None:
    try:
        return date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        return None


def nanoseconds_of(stamp: str) -> tuple[int, str]:
    """Return a time stamp as nanoseconds since 1970, and a problem ("": none)."""
    if (match := _STAMP.fullmatch(stamp)) is None:
        return 0, f"{shown(stamp)} is not a time stamp such as 2023-11-16 18:17:03.9799600"
    day, hours, minutes, seconds, digits = match.groups("")
    days = _days(day)
    if days is None or int(hours) > 23 or int(minutes) > 59 or int(seconds) > 59:
        return 0, f"{shown(stamp)} is not a time of any day"
    if not 0 <= days < 100_000:
        return 0, f"{shown(stamp)} is not between 1970 and 2243"
    full_seconds = (days * 24 + int(hours)) * 3600 + int(minutes) * 60 + int(seconds)
    return full_seconds * 10**9 + int(digits.ljust(9, "0")), ""


def _elapsed(cell: str) -> tuple[float, str]:
    if cell and (not NUMBER.fullmatch(cell) or float(cell) < 0):
        return 0.0, f"{shown(cell)} is not a number of seconds"
    return float(cell or math.nan), ""


def _ids(cell: str) -> tuple[tuple[int, ...], str]:
    parts = cell.split(";") if cell else []
    if not all(part.isascii() and part.isdigit() and len(part) < 20 and int(part) <= LARGEST_ID for part in parts):
        return (), "must be whole numbers separated by ;"
    return tuple(map(int, parts)), ""


def _text(cell: str) -> tuple[str, str]:
    return cell, ""


# Formats: time, tokens of the prompt and of the answer, and what else there may be ------------------------------

SECONDS = partial(nanoseconds, unit=10**9)
# 2023-11-16 18:17:03.9799600,4808,10
AZURE = (Column("TIMESTAMP", nanoseconds_of), Column("ContextTokens", tokens), Column("GeneratedTokens", tokens))
# 5,ChatGPT,472,18,490,Conversation log
BURST = (Column("Timestamp", SECONDS), Column("Request tokens", tokens), Column("Response tokens", tokens),
         Column("Elapsed time", _elapsed, math.nan), Column("Model", _text, ""),
         Column("Session ID", _text, ""))  # fmt: skip
PLAIN = (Column("arrival", SECONDS), Column("prompt_tokens", tokens, 0), Column("output_tokens", tokens, 0),
         Column("hash_ids", _ids, ()), Column("class", _text, ""), Column("user", _text, ""))  # fmt: skip
