"""A server's log of requests, and the step times with which a simulation of that server gives the same log.

The log has for each request its arrival, its tokens, its first token and its end.  The server is a scenario: its
replicas, memory, batching and orders are what the user says; what is fitted are the numbers of its step, in the form
that it has there: of a line `fixed`, `per_prompt_token` and `per_context_token`, of a roofline the shares of the peaks
and `fixed`; and in both `front_end`, the constant of each request.

The first part of the log, in order of arrival, is fitted by Nelder and Mead's simplex on the logarithms of the numbers;
of each trial the whole part is simulated.  The rest is held back: the whole log is then simulated, and the error is
stated on the requests of the rest.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sim.calibrate.columns import Columns
from sim.engine.simulation import Simulation
from sim.errors import Problem, ScenarioError
from sim.model.files import write_text, write_whole
from sim.model.record import COMPLETED, Record, RunInput
from sim.scenario import document
from sim.scenario.llm_schema import LanguageModel
from sim.scenario.scenario import Scenario, load
from sim.workload.mapped_rows import fail

ARRIVAL = ("arrival", "arrival_time", "timestamp", "arrived_at")
PROMPT = ("prompt_tokens", "input_tokens", "num_prefill_tokens", "prompt_size", "prompt")
OUTPUT = ("output_tokens", "generated_tokens", "num_decode_tokens", "completion_tokens", "token_size", "output")
FIRST = ("first_token", "first_token_time", "first_token_at")
TTFT = ("ttft", "time_to_first_token")
END = ("end", "finish", "end_time", "finished_at")
LATENCY = ("latency", "e2e", "e2e_latency", "response", "request_latency")
USER = ("user", "client", "user_id", "adapter")

HELD_BACK = 0.3
"""Share of the requests, the last that arrive, on which nothing is fitted."""
TRIALS = 300
REACHES = (0.5, -1.0, 1.5, -0.5, 2.5)
"""Size of the first simplex of each search, in logarithms: each begins where the one before it ended."""
GAIN = 2e-3
"""Less error than this is not worth another search."""
CLOSE = 0.5
"""A fit whose mean error is beyond this describes nothing."""
LEAST_REQUESTS = 20


@dataclass
class Log:
    """Requests in order of arrival: seconds, tokens, and measured seconds to the first token and to the end."""

    path: Path
    arrival: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    ttft: np.ndarray
    latency: np.ndarray
    user: list[str] | None

    def __len__(self) -> int:
        return len(self.arrival)


def is_log(names: list[str]) -> bool:
    """Are these the columns of a log of requests with their first tokens?"""
    known = Columns.bare(names)
    return all(any(one in known for one in wanted) for wanted in (ARRIVAL, PROMPT, OUTPUT, (*FIRST, *TTFT)))


def read(path: Path, unit: str | None, where: dict[str, Any]) -> Log:
    """The log in a file; ScenarioError with file, line and column for what cannot be."""
    columns = Columns(path, where)
    arrival = np.array(columns.seconds(ARRIVAL, unit or _plain(columns, ARRIVAL), positive=False), dtype=float)
    prompt, output = columns.whole(PROMPT), columns.whole(OUTPUT)
    ttft = _since(columns, TTFT, FIRST, unit, arrival)
    latency = _since(columns, LATENCY, END, unit, arrival)
    for place, line in enumerate(columns.lines):
        if ttft[place] < 0:
            told = f"{-ttft[place]:.4g} s before its arrival"
            columns.complain(line, FIRST[0], f"the first token comes {told}")
        if latency[place] < ttft[place]:
            told = f"{ttft[place] - latency[place]:.4g} s before its first token"
            columns.complain(line, END[0], f"the request ends {told}")
    columns.done()
    user = columns.texts(USER) if columns.has(USER) else None
    order = np.argsort(arrival, kind="stable")
    if len(order) < LEAST_REQUESTS:
        raise fail(path, f"has {len(order)} requests; at least {LEAST_REQUESTS} are needed to fit and to judge")
    begin = arrival[order[0]]
    users = None if user is None else [user[place] for place in order.tolist()]
    tokens = [np.array(values)[order] for values in (prompt, output)]
    return Log(path, (arrival - begin)[order], tokens[0], tokens[1], ttft[order], latency[order], users)


def _plain(columns: Columns, wanted: tuple[str, ...]) -> str | None:
    """Seconds, for a column that is called just so: `arrival` is in seconds in the plain table of requests as well."""
    return "s" if wanted[0] in columns.names else None


def _since(
    columns: Columns, spans: tuple[str, ...], instants: tuple[str, ...], unit: str | None, arrival: np.ndarray
) -> np.ndarray:
    """Seconds since the arrival, from a column of spans or of instants."""
    if columns.has(spans):
        return np.array([math.nan if one is None else one for one in columns.seconds(spans, unit, positive=False)])
    unit = unit or _plain(columns, instants)
    return np.array([math.nan if one is None else one for one in columns.seconds(instants, unit, False)]) - arrival


@dataclass(frozen=True)
class Figure:
    """A figure of the requests held back: measured and simulated."""

    name: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        return self.simulated / self.measured - 1 if self.measured else math.nan


@dataclass
class Fitted:
    """Numbers that were fitted, by name, the trials it took, and what the simulation says of the requests held back."""

    numbers: dict[str, float]
    trials: int
    figures: list[Figure]
    held_back: int
    fitted_error: float


class Server:
    """The server of a scenario with the requests of a log, of which the first `fitted` are fitted."""

    def __init__(self, path: Path, log: Log):
        self.path = path
        self.log = log
        self.fitted = len(log) - max(1, int(HELD_BACK * len(log)))
        self._folder = tempfile.TemporaryDirectory()
        self._scenarios = {count: self._of(count) for count in (self.fitted, len(log))}
        service = self._scenarios[len(log)].model.workload[0].service
        assert isinstance(service, LanguageModel)
        self.service = service
        self._check()

    def _of(self, count: int) -> Scenario:
        """The scenario with the first requests of the log."""
        requests = Path(self._folder.name) / f"{count}.csv"
        write_whole(requests, partial(write_text, text=_requests(self.log, count)))
        return _with_requests(self.path, requests)

    def _check(self) -> None:
        served = len(self._scenarios[len(self.log)].build().tasks)
        if served != len(self.log):
            text = f"it serves {served:,} of the {len(self.log):,} requests of the log"
            raise ScenarioError(Problem(text, file=str(self.path)))

    def start(self) -> dict[str, float]:
        """Where the search begins: numbers read off the log, or what the scenario has."""
        log, step = self.log, self.service.step
        several = log.output > 1
        each = (log.latency - log.ttft)[several] / (log.output[several] - 1)
        front = self.service.front_end or max(1e-3, float(log.ttft.min()) / 4)
        if step.roofline is not None:
            one = step.roofline
            return {"memory": one.memory, "compute": one.compute, "fixed": step.fixed or 1e-3, "front_end": front}
        token = float(np.quantile(log.ttft / log.prompt, 0.02)) if len(log) else 1e-4
        fixed = float(np.quantile(each, 0.05)) if several.any() else 0.02
        return {
            "fixed": step.fixed or max(fixed, 1e-4) * 0.9,
            "per_prompt_token": step.per_prompt_token or max(token, 1e-6) / 2,
            "per_context_token": step.per_context_token or 1e-6,
            "front_end": front,
        }

    def refused(self) -> str | None:
        """What of the step stands in the way of fitting it."""
        step = self.service.step
        if step.decode is not None or step.prefill is not None:
            return "its step is a table; give a line (fixed, per_prompt_token, per_context_token) or a roofline to fit"
        return None

    def with_numbers(self, numbers: dict[str, float], count: int) -> RunInput:
        """The run of the first `count` requests with these numbers."""
        step, run = self.service.step, self._scenarios[count].build()
        change = {key: value for key, value in numbers.items() if key != "front_end"}
        if step.roofline is not None:
            shares = {key: change[key] for key in ("memory", "compute")}
            now = step.model_copy(update={
                "roofline": step.roofline.model_copy(update=shares), "fixed": change["fixed"],
            })  # fmt: skip
        else:
            now = step.model_copy(update=change)
        delay = self.service.network.request + numbers["front_end"]
        times = now.times(self.service.figures)
        return replace(run, language=[replace(run.language[0], step=times, request_delay=delay)])

    def simulated(self, numbers: dict[str, float], count: int) -> tuple[np.ndarray, np.ndarray, Record]:
        """Seconds to the first token and to the end of each of the first `count` requests; NaN: never."""
        record = Simulation(self.with_numbers(numbers, count)).run()
        arrival = record.input.tasks.arrival
        first = np.full(len(arrival), math.nan) if record.first_token is None else record.first_token
        done = record.status == COMPLETED
        return first - arrival, np.where(done, record.finish - arrival, math.nan), record


def _requests(log: Log, count: int) -> str:
    names = ["arrival", "prompt_tokens", "output_tokens", *(["user"] if log.user is not None else [])]
    rows = [",".join(names)]
    for place in range(count):
        cells = [repr(float(log.arrival[place])), str(log.prompt[place]), str(log.output[place])]
        rows.append(",".join([*cells, *([_quoted(log.user[place])] if log.user is not None else [])]))
    return "\n".join(rows) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n') else text


def service_of(path: Path) -> LanguageModel:
    """The language model of a scenario with one entry."""
    entry_of(path)
    service = load(path).model.workload[0].service
    assert isinstance(service, LanguageModel)
    return service


def entry_of(path: Path) -> dict[str, Any]:
    """The entry of workload of a scenario that describes a server, as it is written; ScenarioError if it is none."""
    workload = document.read(path).data.get("workload")
    entries = [workload] if isinstance(workload, dict) else workload
    if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
        raise ScenarioError(Problem("the server of a log is a scenario with one entry of workload", file=str(path)))
    service = entries[0].get("service")
    if not isinstance(service, dict) or service.get("kind") != "llm":
        raise ScenarioError(Problem("its entry has no service: {kind: llm, ...}", file=str(path)))
    return entries[0]


def _with_requests(path: Path, requests: Path) -> Scenario:
    """The scenario with the log's requests in place of its own."""
    entry = {key: value for key, value in entry_of(path).items() if key in ("name", "service")}
    entry["trace"] = {"format": "requests", "path": str(requests)}
    dropped = ("workload", "horizon", "warmup", "sweep", "replications")
    kept = {key: value for key, value in document.read(path).data.items() if key not in dropped}
    return load({**kept, "workload": [entry]}, base=path.parent)


def _off(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Mean absolute difference, as a share of the mean measured; what never came counts as no time at all."""
    scale = float(theirs.mean()) if len(theirs) else 0.0
    if scale <= 0:
        return 0.0
    return float(np.where(np.isnan(ours), theirs, np.abs(ours - theirs)).mean()) / scale


def fit(server: Server, tell: Callable[[str], None] = lambda _: None) -> Fitted:
    """The numbers with which the simulation is nearest to the first part of the log, and its error on the rest.

    ScenarioError where the step is of a form that is not fitted, or where the search finds no server like the log's.
    """
    from scipy.optimize import minimize

    log = server.log
    refused = server.refused()
    if refused is not None:
        raise ScenarioError(Problem(refused, file=str(server.path), key="workload.service.step"))
    count = server.fitted
    several = log.output > 1
    start = server.start()
    names = list(start)

    def numbers_of(point: np.ndarray) -> dict[str, float]:
        found = {name: math.exp(min(10.0, float(value))) for name, value in zip(names, point, strict=True)}
        return {name: min(1.0, value) if name in ("memory", "compute") else value for name, value in found.items()}

    def error(point: np.ndarray) -> float:
        ttft, latency, _ = server.simulated(numbers_of(point), count)
        own = _off((latency - ttft)[several[:count]], (log.latency - log.ttft)[:count][several[:count]])
        return (_off(ttft, log.ttft[:count]) + _off(latency, log.latency[:count]) + own) / 3

    point = np.log([start[name] for name in names])
    tell(f"fitting {', '.join(names)} to {count:,} requests")
    trials, best, converged = 0, math.inf, False
    for reach in REACHES:  # a simplex that has shrunk to a point beside a step of the error begins anew
        simplex = np.vstack([point, *(point + reach * row for row in np.eye(len(names)))])
        options = {"maxfev": TRIALS, "xatol": 2e-3, "fatol": 1e-5, "initial_simplex": simplex}
        found = minimize(error, point, method="Nelder-Mead", options=options)
        trials += int(found.nfev)
        converged |= bool(found.success)
        if not found.fun < best:
            break
        point, gained, best = found.x, best - found.fun, float(found.fun)
        if gained < GAIN or best < GAIN:
            break
    numbers = numbers_of(point)
    if not converged or not best < CLOSE:
        shown = ", ".join(f"{name} = {value:.3g}" for name, value in numbers.items())
        why = f"after {trials} trials the mean error is still {best:.0%} ({shown})"
        hint = "does the scenario describe this server (GPUs, memory, max_num_seqs, max_num_batched_tokens, batching)?"
        raise ScenarioError(Problem(f"the fit does not converge: {why}; {hint}", file=str(log.path)))
    ttft, latency, record = server.simulated(numbers, len(log))
    rest = slice(count, None)
    figures = [
        Figure("mean time to first token", float(log.ttft[rest].mean()), float(np.nanmean(ttft[rest]))),
        Figure("mean latency", float(log.latency[rest].mean()), float(np.nanmean(latency[rest]))),
        Figure("p99 latency", float(np.quantile(log.latency[rest], 0.99)), float(np.nanquantile(latency[rest], 0.99))),
        Figure("total time", float((log.arrival + log.latency).max()), float(np.nanmax(record.finish))),
    ]
    return Fitted(numbers, trials, figures, len(log) - count, best)


def compared(server: Server, numbers: dict[str, float]) -> list[Figure]:
    """A whole log against the simulation with numbers that were fitted to another."""
    log = server.log
    ttft, latency, record = server.simulated(numbers, len(log))
    return [
        Figure("mean time to first token", float(log.ttft.mean()), float(np.nanmean(ttft))),
        Figure("mean latency", float(log.latency.mean()), float(np.nanmean(latency))),
        Figure("total time", float((log.arrival + log.latency).max()), float(np.nanmax(record.finish))),
    ]
