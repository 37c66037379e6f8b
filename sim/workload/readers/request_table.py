"""The plain request table (`format: requests`): a CSV file with one row a request, as `hetsim trace convert` writes it.

Columns: arrival (seconds), prompt_tokens, output_tokens; optional: class, user, and hash_ids (whole numbers separated
by `;`).  All but `arrival` may be missing: then the requests have no tokens.  Options are those of all request traces
(see `sim.workload.rows.request_rows`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sim.model.paths import ExistingFile
from sim.model.units import Seconds
from sim.workload.readers.mooncake import LARGEST_ID
from sim.workload.rows.request_rows import (
    Flag,
    Request,
    RequestColumns,
    RequestCut,
    RequestRows,
    SampleSeed,
    Scale,
    Share,
    nanoseconds,
    tokens,
)
from sim.workload.traces import TaskTable

OPTIONAL = ("prompt_tokens", "output_tokens", "class", "user", "hash_ids")
SECOND = 10**9


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
    """Requests as a plain table: arrival, and where there are such columns tokens, class, user and hash ids; no times.

    `since` and `until` cut a window, `time_scale` stretches it, `sample` keeps a share of the requests, and `sort`
    takes rows in any order.
    """
    cut = RequestCut(since, until, time_scale, sample, sample_seed, sort)
    requests = RequestRows(Path(path), cut, ("class", "user"))
    columns = RequestColumns(requests, ("arrival",), OPTIONAL)
    table = requests.table(_rows(columns))
    for name in OPTIONAL[:2]:
        if name not in columns.known:
            del table.extra[name]
    return table


def _rows(columns: RequestColumns) -> Iterator[Request]:
    lengths = [place is not None for place in columns.places[1:3]]
    for line, (arrival, asked, answered, class_, user, names) in columns:
        time, wrong = nanoseconds(arrival, SECOND)
        if wrong:
            columns.wrong(line, "arrival", wrong)
            continue
        prompt, wrong = tokens(asked) if lengths[0] else (0, "")
        if wrong:
            columns.wrong(line, OPTIONAL[0], wrong)
            continue
        output, wrong = tokens(answered) if lengths[1] else (0, "")
        if wrong:
            columns.wrong(line, OPTIONAL[1], wrong)
            continue
        parts = names.split(";") if names else []
        if not all(part.isascii() and part.isdigit() and len(part) < 20 and int(part) <= LARGEST_ID for part in parts):
            columns.wrong(line, OPTIONAL[4], "expected whole numbers separated by ;")
            continue
        yield Request(line, time, prompt, output, (class_, user), tuple(map(int, parts)))
