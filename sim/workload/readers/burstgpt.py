"""BurstGPT traces (`format: burstgpt`): months of requests to ChatGPT and GPT-4.

    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
    5,ChatGPT,472,18,490,Conversation log

Newer releases have `Session ID` and `Elapsed time` besides; rows of other releases are read alike.  Times are seconds
from the first day's midnight.  The model becomes the class of a request, the session its user, and the recorded
response time the column `elapsed`.  Requests without response tokens failed there and are left out, unless
`failures: true`.  Further options are those of all request traces (see `sim.workload.rows.request_rows`).
Reference: Wang, Chen, Li, Kang, Fang, Zhou, Zheng, Tang, He, Guo, Wang, Wang, Zhou, Chu, BurstGPT: A Real-World
Workload Dataset to Optimize LLM Serving Systems (KDD 2025).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
    nanoseconds,
    tokens,
)
from sim.workload.rows.text_rows import NUMBER
from sim.workload.traces import TaskTable

NEEDED = ("Timestamp", "Request tokens", "Response tokens")
OPTIONAL = ("Model", "Session ID", "Elapsed time")
SECOND = 10**9


def read(
    path: ExistingFile,
    *,
    model: str | None = None,
    failures: Flag = False,
    since: Seconds = 0.0,
    until: Seconds | None = None,
    time_scale: Scale = 1.0,
    sample: Share = 1.0,
    sample_seed: SampleSeed = 0,
    sort: Flag = False,
) -> TaskTable:
    """Requests to ChatGPT and GPT-4: when they came, model, session, tokens of the prompt and of the answer; no times.

    `model` keeps the requests to one of the models, `failures` also those that got no answer; `since` and `until` cut
    a window, `time_scale` stretches it, `sample` keeps a share of the requests, and `sort` takes rows in any order.
    """
    cut = RequestCut(since, until, time_scale, sample, sample_seed, sort)
    requests = RequestRows(Path(path), cut, ("class", "user"), ("elapsed",))
    return _Reader(requests, model, failures).table()


class _Reader:
    def __init__(self, requests: RequestRows, model: str | None, failures: bool):
        self.requests = requests
        self.model = model
        self.failures = failures
        self.failed = 0
        self.models: dict[str, None] = {}

    def table(self) -> TaskTable:
        requests = self.requests
        columns = RequestColumns(requests, NEEDED, OPTIONAL)
        if self.model is not None and columns.places[3] is None:
            requests.fail("has no column Model, so that requests to one model cannot be told")
        table = requests.table(self._rows(columns))
        if self.failed:
            some = f"{self.failed:,} request{'s' if self.failed > 1 else ''} without response tokens (failed there)"
            table.notes.append(f"{requests.path}: {some} left out; failures: true keeps them")
        return table

    def _rows(self, columns: RequestColumns) -> Iterator[Request]:
        recorded = columns.places[5] is not None
        for line, (stamp, asked, answered, model, session, elapsed) in columns:
            time, wrong = nanoseconds(stamp, SECOND)
            if wrong:
                columns.wrong(line, NEEDED[0], wrong)
                continue
            prompt, wrong = tokens(asked)
            if wrong:
                columns.wrong(line, NEEDED[1], wrong)
                continue
            output, wrong = tokens(answered)
            if wrong:
                columns.wrong(line, NEEDED[2], wrong)
                continue
            took = math.nan
            if elapsed:
                if not NUMBER.fullmatch(elapsed) or float(elapsed) < 0:
                    columns.wrong(line, OPTIONAL[2], f"{shown(elapsed)} is not a number of seconds")
                    continue
                took = float(elapsed)
            if self.model is not None and model != self.model:
                self.models[model] = None
                continue
            if not output and not self.failures:
                self.failed += 1
                continue
            yield Request(line, time, prompt, output, (model, session), (), (took,) if recorded else ())
        if self.model is not None and not self.requests.read:
            known = ", ".join(shown(name) for name in self.models)
            self.requests.fail(f"no request is to the model {shown(self.model)}; there are {known or 'none at all'}")
