"""Summaries of load generators: figures of a server's requests at one rate.

The figures used are the mean and the percentiles 50, 90 and 99 of the time to first token, of the mean time between the
tokens of a request, and of the latency, as far as the file has them.  A summary has no arrivals: each trial simulates
its number of requests at its rate, or with its number of concurrent clients, always with the same random numbers.
"""

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.calibrate.request_log import Log
from hetsim.calibrate.server_log import PARTS, Figure, Server, defined, deviation, entry_of
from hetsim.errors import ScenarioError
from hetsim.model.record import RunInput
from hetsim.model.step_times import StepTimes
from hetsim.scenario.file import document
from hetsim.scenario.file.document import Document

MEASURES = ("time to first token", "time between tokens", "latency")
RANKS = {"mean": 1.0, "p50": 1.0, "p90": 0.5, "p99": 0.1}  # with weights: high percentiles vary most between runs
_GENAI = ("time_to_first_token", "inter_token_latency", "request_latency")
_CONFIG = ("input_config.", "input_config.loadgen.", "input_config.perf_analyzer.stimulus.")
# Dotted keys of vLLM, of GenAI-Perf and AIPerf, and of inference-perf: seconds of the unit of times; a time, with the
# words of MEASURES and of RANKS; requests, prompt and output tokens; rates, of which the last is what was reached; and
# concurrent clients, which are used if no rate was asked for.
FORMATS: tuple[tuple[Any, ...], ...] = (
    (1e-3, "{rank}_{measure}_ms", ("ttft", "tpot", "e2el"), ("mean", "median", "p90", "p99"),
     ("completed", "total_input_tokens", "total_output_tokens"), ("request_rate", "request_throughput"),
     ("max_concurrency",)),
    (1e-3, "{measure}.{rank}", _GENAI, ("avg", "p50", "p90", "p99"),
     ("request_count.avg", "input_sequence_length.avg", "output_sequence_length.avg"),
     (*(f"{part}request_rate" for part in _CONFIG), "request_throughput.avg"),
     tuple(f"{part}concurrency" for part in _CONFIG)),
    (1.0, "successes.latency.{measure}.{rank}", ("time_to_first_token", "time_per_output_token", _GENAI[2]),
     ("mean", "median", "p90", "p99"), ("successes.count", "successes.prompt_len.mean", "successes.output_len.mean"),
     ("load_summary.requested_rate", "load_summary.achieved_rate"), ()),
)  # fmt: skip
MODELS = ("model_id", "input_config.model_names")  # keys that name the model, if any


def _read(file: Path) -> Document:
    """Read a summary without its lists, which vLLM adds with `--save-detailed`."""
    try:
        data = json.loads(file.read_bytes()) if file.is_file() else None
    except (OSError, ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not any(isinstance(value, list) for value in data.values()):
        return document.read(file, "a summary")  # with the places of mistakes
    return Document({key: value for key, value in data.items() if not isinstance(value, list)}, str(file))


def _value(read: Document, key: str) -> Any:
    value = read.data
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _number(read: Document, key: str, most: float = math.inf) -> float:
    value, limit = _value(read, key), "" if most == math.inf else f", at most {most:,}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= min(most, 1e100):
        what = "is missing" if value is None else f"must be a number above 0{limit}, not {value}"
        raise ScenarioError(read.problem(tuple(key.split(".")), what))
    return float(value)


class SummaryServer(Server):
    """A server with the JSON file of a load generator instead of a log of requests.

    The entry of the scenario may state the process of the arrivals, whose rate the file replaces, and the distribution
    of `tokens`, which is scaled to the file's mean.  Otherwise arrivals are Poisson, and all requests are equal.
    The fit uses all values of the file, so it cannot be validated on other values.

    Raises:
        ScenarioError: the file is of no known load generator, or a value is missing or invalid.
    """

    def __init__(self, path: Path, file: Path, service: Path | None = None):
        read, entry = _read(file), entry_of(path)
        formats = (one for one in FORMATS if _value(read, one[1].format(measure=one[2][0], rank=one[3][0])))
        if (form := next(formats, None)) is None:
            text = "has no mean time to first token where vLLM, GenAI-Perf or inference-perf write it"
            raise ScenarioError(read.problem((), f"{text} (mean_ttft_ms, time_to_first_token.avg, successes.latency)"))
        unit, time, measures, ranks, counts, rates, concurrency = form
        pairs = product(zip(MEASURES, measures, strict=True), zip(RANKS, ranks, strict=True))
        keys = {(one, rank): time.format(measure=word, rank=name) for (one, word), (rank, name) in pairs}
        self.measured = {one: unit * _number(read, key) for one, key in keys.items() if _value(read, key) is not None}
        requests, tokens = _number(read, counts[0], 10**6), [_number(read, one, 10**15) for one in counts[1:]]
        count, each = max(1, round(requests)), requests if counts[1].startswith("total") else 1
        self.tokens = tokens[0] / each, tokens[1] / each
        prompt, output = (max(1, round(one)) for one in self.tokens)
        asked = next((one for one in rates if _value(read, one) not in (None, "inf")), rates[0])
        rate, clients = _number(read, asked), [one for one in concurrency if _value(read, one)]
        process = entry.get("arrivals")
        arrivals = {**(process if isinstance(process, dict) else {"process": "poisson"}), "rate": f"{rate}/s"}
        if asked == rates[-1] and clients:
            arrivals = {"process": "closed", "clients": round(_number(read, clients[0])), "think": "0 s"}
        elif _value(read, rates[0]) == "inf":
            arrivals = {"process": "all_at_once", "count": count}
        demand = {"arrivals": arrivals, "tokens": entry.get("tokens", {"prompt": prompt, "output": output})}
        demand |= {} if arrivals["process"] == "all_at_once" else {"count": count}
        mean, each_token = (unit * _number(read, keys[one, "mean"]) for one in MEASURES[:2])
        values = (0.0, prompt, output, mean, mean + each_token * (output - 1))
        arrival, prompts, outputs, ttft, latency = (np.full(count, one) for one in values)
        log = Log(file, arrival, prompts, output=outputs, ttft=ttft, latency=latency, user=None)  # starts the search
        log.model = ", ".join(str(named) for key in MODELS if (named := _value(read, key)))
        super().__init__(path, log, demand, service)
        self.count, self.fitted, self.load = count, count, rate

    def spans(self) -> None:
        return None

    def build(self) -> RunInput:
        """Return a run's input, with token counts scaled to the means in the summary file."""
        run = super().build()
        for name, mean in zip(("prompt_tokens", "output_tokens"), self.tokens, strict=True):
            tokens = run.tasks.extra[name]
            run.tasks.extra[name] = np.maximum(1, np.rint(tokens * (mean / tokens.mean()))).astype(tokens.dtype)
        return run

    def error(self, times: StepTimes, front_end: float) -> float:
        errors = [min(1.0, abs(one.error)) for one in self.figures(times, front_end, 0)]
        return float(np.average(errors, weights=[RANKS[rank] for _, rank in self.measured]))

    def behind(self, times: StepTimes, front_end: float, parts: int = 1, first: int = 0) -> np.ndarray:
        """Return log(measured / simulated mean token interval) in `parts` replications."""
        rows = []
        for self.replication in reversed(range(parts)):  # the last is the one with which trials are simulated
            means = [one for one in self.figures(times, front_end, 0) if one.name.startswith("mean time between")]
            rows.append(sum(math.log(one.measured / one.simulated) for one in means))
        return np.array(rows)

    def standard_error(self, times: StepTimes, front_end: float) -> float:
        """Return √2 times the deviation of `behind` between replications.

        The random arrivals and tokens of the file differ from those of the simulation.
        """
        return math.inf if self.count < PARTS else 2**0.5 * deviation(self.behind(times, front_end, PARTS))

    def figures(self, times: StepTimes, front_end: float, first: int) -> list[Figure]:
        ttft, latency, record = self.simulated(times, front_end)
        steps = record.input.tasks.extra["output_tokens"] - 1
        between = ((latency - ttft) / np.maximum(steps, 1))[steps > 0]
        values = dict(zip(MEASURES, map(defined, (ttft, between, latency)), strict=True))
        return [
            Figure(f"{rank} {measure}", measured, float(np.mean(values[measure]) if rank == "mean" else
                                                        np.percentile(values[measure], float(rank[1:]))))
            for (measure, rank), measured in self.measured.items()
        ]  # fmt: skip
