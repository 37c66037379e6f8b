"""A server's log of requests, and the step times inferred from the log.

The inference does not simulate the server.

Requests whose first tokens appeared simultaneously were read in one step.  Between the first and the last token of a
request, the server ran output - 1 decoding steps, and read the prompts whose first tokens appeared meanwhile.  So the
seconds between the two tokens are a sum of known counts, each times an unknown time: steps, sequences and context in
the steps, and tokens of each reading step.  These times are fitted by least squares without negative times (Lawson and
Hanson, 1974).

The time of a reading step grows with its tokens along a line that may bend at a few sizes.  The number of bends, and
whether reading has a constant of its own, is chosen by cross-validation over blocks of consecutive requests.
"""

import itertools
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.errors import file_error
from hetsim.model.batch_times import StageTable
from hetsim.model.demand import StageTime
from hetsim.model.step_times import LinearSteps
from hetsim.workload.mapped.picked_columns import PickedColumns

ARRIVAL = ("arrival", "arrival_time", "timestamp", "arrived_at")
PROMPT = ("prompt_tokens", "input_tokens", "num_prefill_tokens", "prompt_size", "prompt")
OUTPUT = ("output_tokens", "generated_tokens", "num_decode_tokens", "completion_tokens", "token_size", "output")
FIRST = ("first_token", "first_token_time", "first_token_at")
TTFT = ("ttft", "time_to_first_token")
END = ("end", "finish", "end_time", "finished_at")
LATENCY = ("latency", "e2e", "e2e_latency", "response", "request_latency")
USER = ("user", "client", "user_id", "adapter")
MODEL = ("model", "model_name", "model_id")
NEEDED = (ARRIVAL, PROMPT, OUTPUT, (*FIRST, *TTFT))  # columns that identify a log of requests with first tokens

MIN_REQUESTS = 20


@dataclass
class Log:
    """Requests by arrival: tokens, seconds from arrival to the first and last token."""

    path: Path
    arrival: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    ttft: np.ndarray
    latency: np.ndarray
    user: list[str] | None
    model: str = ""  # empty: the log does not name it

    def __len__(self) -> int:
        return len(self.arrival)


def read(path: Path, unit: str | None, where: dict[str, Any]) -> Log:
    """Read the log rows that match `where`; ScenarioError if the log cannot be used."""
    columns = PickedColumns(path, where)
    models = sorted(set(columns.texts(MODEL))) if columns.has(MODEL) else [""]
    if len(models) > 1:
        name, listed = columns.first_of(MODEL), ", ".join(models[:10]) + ", …" * (len(models) > 10)
        text = f"has requests of {len(models)} models ({listed}), and a server has one"
        raise file_error(path, f"{text}; choose its requests with --where, as in --where {name}={models[0]}", 1)
    arrival = np.array(columns.seconds(ARRIVAL, unit or _plain(columns, ARRIVAL), positive=False), dtype=float)
    prompt, output = columns.whole_numbers(PROMPT), columns.whole_numbers(OUTPUT)
    ttft = _since(columns, TTFT, FIRST, unit=unit, arrival=arrival)
    latency = _since(columns, LATENCY, END, unit=unit, arrival=arrival)
    first, end = (columns.first_of((*spans, *instants)) for spans, instants in ((TTFT, FIRST), (LATENCY, END)))
    for place, line in enumerate(columns.lines):
        if ttft[place] < 0:
            columns.complain(line, first, f"the first token is {-ttft[place]:.4g} s before the arrival of the request")
        if latency[place] < ttft[place]:
            difference = f"{ttft[place] - latency[place]:.4g} s before its first token"
            columns.complain(line, end, f"the request ends {difference}")
    columns.done()
    user = columns.texts(USER) if columns.has(USER) else None
    order = np.argsort(arrival, kind="stable")
    if len(order) < MIN_REQUESTS:
        raise file_error(path, f"must have at least {MIN_REQUESTS} requests, to fit and to validate; got {len(order)}")
    begin = arrival[order[0]]
    users = None if user is None else [user[place] for place in order.tolist()]
    tokens = [np.array(values)[order] for values in (prompt, output)]
    return Log(path, (arrival - begin)[order], tokens[0], output=tokens[1], ttft=ttft[order], latency=latency[order],
               user=users, model=models[0])  # fmt: skip


def _plain(columns: PickedColumns, wanted: tuple[str, ...]) -> str | None:
    return "s" if wanted[0] in columns.names else None


def _since(
    columns: PickedColumns, spans: tuple[str, ...], instants: tuple[str, ...], unit: str | None, arrival: np.ndarray
) -> np.ndarray:
    if columns.has(spans):
        return np.array([math.nan if one is None else one for one in columns.seconds(spans, unit, positive=False)])
    unit = unit or _plain(columns, instants)
    return np.array([math.nan if one is None else one for one in columns.seconds(instants, unit, False)]) - arrival


TOGETHER = 0.25  # first tokens closer than this share of a step belong to one step
EXPLAINS = 0.05  # mean error (on left-out blocks) above which the sum does not describe the server
BENDS = (0, 1, 3, 7)
BLOCKS = 5
SEQUENCES = 1  # column of counts with the sequences; often the context column is equivalent
MIN_SPANS = 50  # minimum number of spans between first and last tokens: a dozen per fitted number


@dataclass(frozen=True)
class Reading:
    """Step times inferred from a log; a step that reads prompts takes `reads` longer."""

    fixed: float
    per_sequence: float
    per_context_token: float
    sizes: tuple[int, ...]
    reads: tuple[float, ...]  # the additional seconds at `sizes` prompt tokens; linear in between
    error: float  # mean relative error of the spans, on left-out blocks of requests

    def times(self, between: bool, pace: float = 1.0) -> LinearSteps:
        """Return the step times, each multiplied by `pace`.

        between: True if steps that read prompts run between decoding steps; False if one step can do both.
        """
        decode = StageTime(pace * self.fixed, pace * self.per_sequence)
        reading_seconds = [pace * (one if between else one + self.fixed) for one in self.reads]
        prefill: StageTime | StageTable
        if len(self.sizes) == 2:
            each = (reading_seconds[1] - reading_seconds[0]) / (self.sizes[1] - self.sizes[0])
            prefill = StageTime(max(0.0, reading_seconds[0] - each * self.sizes[0]), each)
        else:
            prefill = StageTable(self.sizes, tuple(reading_seconds))
        fixed = min(decode.seconds_for(1), prefill.seconds_for(1))
        return LinearSteps(fixed, per_context_token=pace * self.per_context_token, decode=decode, prefill=prefill)


def written(times: LinearSteps) -> dict[str, Any]:
    """Return step times as the value of the key `step` of a scenario's service, in s."""
    decode, prefill = times.decode, times.prefill
    assert isinstance(decode, StageTime)
    if isinstance(prefill, StageTable):
        reading: dict[str, Any] = {"table": dict(zip(prefill.sizes, prefill.seconds, strict=True)), "extrapolate": True}
    else:
        assert prefill is not None
        reading = {"fixed": prefill.fixed, "per_item": prefill.per_item}
    return {"fixed": times.fixed, "decode": {"fixed": decode.fixed, "per_item": decode.per_item}, "prefill": reading,
            "per_context_token": times.per_context_token}  # fmt: skip


@dataclass(frozen=True)
class Spans:
    """Seconds, decoding steps and tokens between each request's first and last token."""

    seconds: np.ndarray
    steps: np.ndarray
    sequences: np.ndarray  # sum over the request's steps of decoding sequences
    context: np.ndarray
    first: np.ndarray
    last: np.ndarray  # reading steps in between: `first` inclusive, `last` exclusive
    read: np.ndarray  # prompt tokens of each reading step, in order of time


def spans(
    arrival: np.ndarray, prompt: np.ndarray, output: np.ndarray, ttft: np.ndarray, latency: np.ndarray,
    budget: int | None = None, until: float = np.inf,
) -> Spans:  # fmt: skip
    """Return the time, steps and tokens from first to last token of each request.

    budget: maximum tokens per step; larger prompts were read in several steps.
    until: use only spans that end by this time, in seconds.
    """
    begun, over = arrival + ttft, arrival + latency
    several = output > 1
    gap = TOGETHER * float(np.quantile((over - begun)[several] / (output[several] - 1), 0.05))
    order = np.argsort(begun, kind="stable")
    times = begun[order]
    starts = np.concatenate([[0], np.flatnonzero(np.diff(times) > gap) + 1])
    read_at = times[starts]
    read = np.add.reduceat(prompt[order].astype(float), starts)
    if budget is not None and read.max() > budget:
        pieces = np.ceil(read / budget).astype(int)
        ends = np.cumsum(pieces) - 1
        rest = read - budget * (pieces - 1)
        read_at = np.repeat(read_at, pieces)
        read = np.full(len(read_at), float(budget))
        read[ends] = rest
    # Tokens of a sequence between its first and last grow evenly; sums over the sequences are linear between events.
    rate = np.where(several, (output - 1) / np.maximum(over - begun, 1e-9), 0.0)
    events = np.unique(np.concatenate([begun, over]))
    into, out = np.searchsorted(events, begun), np.searchsorted(events, over)

    def summed(values: np.ndarray) -> np.ndarray:
        change = np.zeros(len(events) + 1)
        np.add.at(change, into, values)
        np.add.at(change, out, -values)
        return np.cumsum(change)[:-1]

    running, level, slope = summed(np.where(several, 1.0, 0.0)), summed(prompt + 1 - rate * begun), summed(rate)
    passed = np.diff(events)
    middle = (events[1:] + events[:-1]) / 2
    running_sum = np.concatenate([[0.0], np.cumsum(running[:-1] * passed)])
    context_sum = np.concatenate([[0.0], np.cumsum(level[:-1] * passed + slope[:-1] * middle * passed)])
    first = np.searchsorted(read_at, begun + gap)
    last = np.maximum(np.searchsorted(read_at, over - gap / 4), first)
    kept = several & (over <= until)
    return Spans(
        (over - begun)[kept], (output - 1)[kept].astype(float), ((running_sum[out] - running_sum[into]) * rate)[kept],
        context=((context_sum[out] - context_sum[into]) * rate)[kept], first=first[kept], last=last[kept], read=read,
    )  # fmt: skip


def joined(logs: list[Spans]) -> Spans:
    """Combine the spans (first to last token) of several request logs as if from one."""
    starts = np.cumsum([0, *(len(one.read) for one in logs[:-1])])
    pairs = zip(logs, starts, strict=True)
    moved = [replace(one, first=one.first + start, last=one.last + start) for one, start in pairs]
    return Spans(*(np.concatenate([getattr(one, part.name) for one in moved]) for part in fields(Spans)))


def fit(log: Spans) -> Reading | None:
    """Fit a server's step times to a request log; None if no fit explains the log.

    A span is the time from a request's first token to its last.  None also with fewer than `MIN_SPANS` spans.
    """
    if len(log.seconds) < MIN_SPANS or (log.last > log.first).sum() < MIN_SPANS:
        return None
    blocks = np.array_split(np.arange(len(log.seconds)), BLOCKS)
    judged: list[tuple[float, float, np.ndarray, np.ndarray]] = []
    for knots, several in itertools.product(_shapes(log), (False, True)):
        table = _counts(log, knots)
        if not several:
            table[:, SEQUENCES] = 0.0
        errors = []
        for block in blocks:
            rest = np.setdiff1d(np.arange(len(log.seconds)), block)
            numbers = _nonnegative_fit(table[rest], log.seconds[rest])
            errors.append(float(np.abs(table[block] @ numbers / log.seconds[block] - 1).mean()))
        judged.append((float(np.mean(errors)), float(np.std(errors, ddof=1)) / BLOCKS**0.5, knots, table))
    best = min(judged, key=lambda one: one[0])
    if not best[0] <= EXPLAINS:
        return None
    error, _, knots, table = next(one for one in judged if one[0] <= best[0] + best[1])  # the simplest that is as good
    fixed, each, context, constant, *slopes = _nonnegative_fit(table, log.seconds).tolist()
    rises = np.diff(knots) * np.array(slopes)
    reads = constant + slopes[0] * knots[0] + np.concatenate([[0.0], np.cumsum(rises)])
    if not (fixed > 0 and reads[0] > 0):
        return None
    return Reading(fixed, each, context, sizes=tuple(map(int, knots)), reads=tuple(map(float, reads)), error=error)


def _shapes(log: Spans) -> list[np.ndarray]:
    """Candidate knots (prompt sizes) of the piecewise linear time to read a prompt."""
    first, last = int(log.read.min()), int(log.read.max())
    if first == last:
        first = max(0, last - 1)
    shapes: list[np.ndarray] = []
    for bends in BENDS:
        inner = np.quantile(log.read, np.arange(1, bends + 1) / (bends + 1), method="nearest").astype(int)
        knots = np.unique(np.concatenate([[max(1, first)], inner, [max(2, last)]]))
        if not shapes or len(knots) > len(shapes[-1]):
            shapes.append(knots)
    return shapes


def _counts(log: Spans, knots: np.ndarray) -> np.ndarray:
    """Return the regressors of the times of spans, one row per span.

    Columns: numbers of steps, of sequences, of context tokens and of steps that read prompts; for each interval between
    two `knots` (prompt tokens), the number of prompt tokens that lie in it, summed over the steps that read prompts.
    """
    size = log.read
    parts = []
    for place in range(len(knots) - 1):
        low = 0 if place == 0 else knots[place]
        high = np.inf if place == len(knots) - 2 else knots[place + 1]
        parts.append(np.clip(size, low, high) - low)
    columns = []
    for values in [np.ones(len(size)), *parts]:
        total = np.concatenate([[0.0], np.cumsum(values)])
        columns.append(total[log.last] - total[log.first])
    return np.stack([log.steps, log.sequences, log.context, *columns], axis=1)


def _nonnegative_fit(table: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    from scipy.optimize import nnls

    weight = seconds**-0.5
    scale = np.maximum(np.abs(table).max(axis=0), 1e-12)  # columns differ by many orders of magnitude
    numbers, _ = nnls(table * weight[:, None] / scale, seconds * weight)
    return np.asarray(numbers / scale)
