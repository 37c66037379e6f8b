"""Azure LLM inference traces (`format: azure_llm`), of the years 2023 and 2024.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:17:03.9799600,4808,10

Time stamps have up to nine fractional digits (published: seven, or six and a zone), which are kept exactly; time 0 is
that of the first request.  Options are those of all request traces (see `sim.workload.rows.request_rows`).
Reference: Patel, Choukse, Zhang, Shah, Goiri, Maleki, Bianchini, Splitwise: Efficient Generative LLM Inference Using
Phase Splitting (ISCA 2024).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from functools import lru_cache
from pathlib import Path

from sim.model.paths import ExistingFile
from sim.model.units import Seconds, shown
from sim.workload.rows.request_rows import (
    Flag,
    Request,
    RequestColumns,
    RequestCut,
    RequestRows,
    SampleSeed,
    Scale,
    Share,
    tokens,
)
from sim.workload.traces import TaskTable

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:\+00:00|Z)?", re.ASCII)


def read(
    path: ExistingFile,
    *,
    since: Seconds = 0.0,
    until: Seconds | None = None,
    time_scale: Scale = 1.0,
    sample: Share = 1.0,
    sample_seed: SampleSeed = 0,
    sort: Flag = False,
) -> TaskTable:
    """Requests to a language model: when they came, tokens of the prompt and of the answer; no times.

    `since` and `until` cut a window, `time_scale` stretches it, `sample` keeps a share of the requests, and `sort`
    takes rows in any order.
    """
    cut = RequestCut(since, until, time_scale, sample, sample_seed, sort)
    requests = RequestRows(Path(path), cut, from_first=True)
    return requests.table(_rows(RequestColumns(requests, COLUMNS)))


def _rows(columns: RequestColumns) -> Iterator[Request]:
    for line, (stamp, context, generated) in columns:
        time, wrong = nanoseconds_of(stamp)
        if wrong:
            columns.wrong(line, COLUMNS[0], wrong)
            continue
        prompt, wrong = tokens(context)
        if wrong:
            columns.wrong(line, COLUMNS[1], wrong)
            continue
        output, wrong = tokens(generated)
        if wrong:
            columns.wrong(line, COLUMNS[2], wrong)
            continue
        yield Request(line, time, prompt, output)


@lru_cache(maxsize=64)
def _days(day: str) -> int | None:
    try:
        return date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        return None


def nanoseconds_of(stamp: str) -> tuple[int, str]:
    """Nanoseconds since 1970 of a time stamp, and what is wrong with it."""
    match = _STAMP.fullmatch(stamp)
    if match is None:
        return 0, f"{shown(stamp)} is not a time stamp such as 2023-11-16 18:17:03.9799600"
    day, hours, minutes, seconds, digits = match.groups("")
    days = _days(day)
    if days is None or int(hours) > 23 or int(minutes) > 59 or int(seconds) > 59:
        return 0, f"{shown(stamp)} is no time of any day"
    if not 0 <= days < 100_000:
        return 0, f"{shown(stamp)} is not between 1970 and 2243"
    whole = (days * 24 + int(hours)) * 3600 + int(minutes) * 60 + int(seconds)
    return whole * 10**9 + int(digits.ljust(9, "0")), ""
