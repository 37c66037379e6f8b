"""A server's log of requests: arrivals, tokens, first tokens and ends."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.errors import file_error
from hetsim.workload.mapped.picked_columns import PickedColumns

ARRIVAL = ("arrival", "arrival_time", "timestamp", "arrived_at")
PROMPT = ("prompt_tokens", "input_tokens", "num_prefill_tokens", "prompt_size", "prompt")
OUTPUT = ("output_tokens", "generated_tokens", "num_decode_tokens", "completion_tokens", "token_size", "output")
FIRST = ("first_token", "first_token_time", "first_token_at")
TTFT = ("ttft", "time_to_first_token")
END = ("end", "finish", "end_time", "finished_at")
LATENCY = ("latency", "e2e", "e2e_latency", "response", "request_latency")
USER = ("user", "client", "user_id", "adapter")
NEEDED = (ARRIVAL, PROMPT, OUTPUT, (*FIRST, *TTFT))
"""By which a log of requests with first tokens is known."""

MIN_REQUESTS = 20


@dataclass
class Log:
    """Requests by arrival: tokens, and measured seconds to first token and end."""

    path: Path
    arrival: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    ttft: np.ndarray
    latency: np.ndarray
    user: list[str] | None

    def __len__(self) -> int:
        return len(self.arrival)


def read(path: Path, unit: str | None, where: dict[str, Any]) -> Log:
    """Read a log; ScenarioError names file, line and column of what is wrong."""
    columns = PickedColumns(path, where)
    arrival = np.array(columns.seconds(ARRIVAL, unit or _plain(columns, ARRIVAL), positive=False), dtype=float)
    prompt, output = columns.whole_numbers(PROMPT), columns.whole_numbers(OUTPUT)
    ttft = _since(columns, TTFT, FIRST, unit=unit, arrival=arrival)
    latency = _since(columns, LATENCY, END, unit=unit, arrival=arrival)
    first, end = (columns.first_of((*spans, *instants)) for spans, instants in ((TTFT, FIRST), (LATENCY, END)))
    for place, line in enumerate(columns.lines):
        if ttft[place] < 0:
            columns.complain(line, first, f"the first token comes {-ttft[place]:.4g} s before its arrival")
        if latency[place] < ttft[place]:
            difference = f"{ttft[place] - latency[place]:.4g} s before its first token"
            columns.complain(line, end, f"the request ends {difference}")
    columns.done()
    user = columns.texts(USER) if columns.has(USER) else None
    order = np.argsort(arrival, kind="stable")
    if len(order) < MIN_REQUESTS:
        raise file_error(path, f"has {len(order)} requests; at least {MIN_REQUESTS} are needed to fit and to judge")
    begin = arrival[order[0]]
    users = None if user is None else [user[place] for place in order.tolist()]
    tokens = [np.array(values)[order] for values in (prompt, output)]
    return Log(
        path, (arrival - begin)[order], tokens[0], output=tokens[1], ttft=ttft[order], latency=latency[order],
        user=users
    )


def _plain(columns: PickedColumns, wanted: tuple[str, ...]) -> str | None:
    """Seconds of a column named without a unit, as in the plain table of requests."""
    return "s" if wanted[0] in columns.names else None


def _since(
    columns: PickedColumns, spans: tuple[str, ...], instants: tuple[str, ...], unit: str | None, arrival: np.ndarray
) -> np.ndarray:
    """Seconds since the arrival, from a column of spans or of instants."""
    if columns.has(spans):
        return np.array([math.nan if one is None else one for one in columns.seconds(spans, unit, positive=False)])
    unit = unit or _plain(columns, instants)
    return np.array([math.nan if one is None else one for one in columns.seconds(instants, unit, False)]) - arrival
