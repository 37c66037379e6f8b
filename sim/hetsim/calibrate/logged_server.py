"""A scenario of the server of a request log, with step times under trial."""

import math
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetsim.calibrate import log_steps
from hetsim.calibrate.log_steps import Reading
from hetsim.calibrate.request_log import Log
from hetsim.engine.simulation import Simulation
from hetsim.errors import file_error
from hetsim.model.files import write_text, write_whole
from hetsim.model.record import COMPLETED, Record
from hetsim.model.step_times import StepTimes
from hetsim.scenario.file import document
from hetsim.scenario.scenario import Scenario, load
from hetsim.scenario.schema.language_model import LanguageModel

HELD_BACK = 0.3
"""Share of the requests, the last that arrive, on which nothing is fitted."""


class Server:
    """A server with the requests of a log, of which the first `fitted` are fitted."""

    def __init__(self, path: Path, log: Log):
        self.path = path
        self.log = log
        self.fitted = len(log) - max(1, int(HELD_BACK * len(log)))
        self._folder = tempfile.TemporaryDirectory()
        requests = Path(self._folder.name) / "requests.csv"
        columns: dict[str, Any] = {"arrival": log.arrival, "prompt_tokens": log.prompt, "output_tokens": log.output}
        columns |= {} if log.user is None else {"user": log.user}
        text = pd.DataFrame(columns).to_csv(index=False, lineterminator="\n")
        write_whole(requests, partial(write_text, text=text))
        self._scenario = _with_requests(path, requests)
        service = self._scenario.model.workload[0].service
        assert isinstance(service, LanguageModel)
        self.service = service
        written = entry_of(path)["service"]
        step = written.get("step")
        asked = "profile" in written or (isinstance(step, dict) and "roofline" in step)
        self.wants_roofline = service.step.roofline is not None and asked
        """Is a roofline written there?  The one that a preset brings is an estimate, which measured steps replace."""
        served = len(self._scenario.build().tasks)
        if served != len(self.log):
            raise file_error(self.path, f"it serves {served:,} of the {len(self.log):,} requests of the log")

    def start(self) -> dict[str, float]:
        """First values of the search: read off the log, or those of the scenario."""
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

    def step_of(self, numbers: dict[str, float]) -> dict[str, Any]:
        """The service's `step` with these numbers, of those that `start` names."""
        change = {key: value for key, value in numbers.items() if key != "front_end"}
        if self.service.step.roofline is not None:
            return {"roofline": {key: change.pop(key) for key in ("memory", "compute")}, **change}
        return change

    def times_of(self, numbers: dict[str, float]) -> StepTimes:
        """The step times with these numbers."""
        step, change = self.service.step, self.step_of(numbers)
        if step.roofline is not None:
            change["roofline"] = step.roofline.model_copy(update=change["roofline"])
        return step.model_copy(update=change).times(self.service.figures)

    def read_off(self, count: int) -> Reading | None:
        """Read step times off the first `count` requests; None where that is impossible."""
        service, log = self.service, self.log
        if self.wants_roofline or service.disaggregated is not None or service.autoscale is not None:
            return None
        if service.replicas not in (None, 1) or not (self.log.output[:count] > 1).any():
            return None
        arrival, prompt, output, ttft, latency = (
            one[:count] for one in (log.arrival, log.prompt, log.output, log.ttft, log.latency)
        )  # fmt: skip
        later = (log.arrival + log.ttft)[count:]
        until = float(later.min()) if len(later) else math.inf  # from then on steps do what those requests want
        budget = service.max_num_batched_tokens
        return log_steps.fit(
            log_steps.spans(arrival, prompt, output, ttft=ttft, latency=latency, budget=budget, until=until)
        )

    def simulated(self, times: StepTimes, front_end: float) -> tuple[np.ndarray, np.ndarray, Record]:
        """Seconds to the first token and to the end of each request; NaN: never."""
        run = self._scenario.build()
        delay = self.service.network.request_delay + front_end
        (service,) = run.language
        service = replace(service, kinds=(replace(service.kinds[0], step=times),), request_delay=delay)
        record = Simulation(replace(run, language=[service])).run()
        arrival = record.input.tasks.arrival
        first = np.full(len(arrival), math.nan) if record.first_token is None else record.first_token
        return first - arrival, np.where(record.status == COMPLETED, record.finish - arrival, math.nan), record


def entry_of(path: Path) -> dict[str, Any]:
    """Return the workload entry of a server as written; ScenarioError without one."""
    workload = document.read(path).data.get("workload")
    entries = [workload] if isinstance(workload, dict) else workload
    if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
        raise file_error(path, "the server of a log is a scenario with one entry of workload")
    service = entries[0].get("service")
    if not isinstance(service, dict) or service.get("kind") != "llm":
        raise file_error(path, "its entry has no service: {kind: llm, ...}")
    return entries[0]


def _with_requests(path: Path, requests: Path) -> Scenario:
    """The scenario with the log's requests in place of its own."""
    entry = {key: value for key, value in entry_of(path).items() if key in ("name", "service")}
    entry["trace"] = {"format": "requests", "path": str(requests)}
    dropped = ("workload", "horizon", "warmup", "sweep", "replications")
    kept = {key: value for key, value in document.read(path).data.items() if key not in dropped}
    return load({**kept, "workload": [entry]}, base=path.parent)
