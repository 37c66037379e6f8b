"""Small systems with services: requests in batches, and language models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hetsim.model.record import RunInput
from hetsim.testing.systems import System

if TYPE_CHECKING:
    from hetsim.scenario.scenario import Scenario

SERVICE = {
    "upload": {"per_item": "2 ms"}, "compute": {"per_item": "10 ms", "fixed": "50 ms"}, "download": {"fixed": "1 ms"},
}  # fmt: skip
STEP = {"fixed": "10 ms", "per_sequence": "1 ms", "per_prompt_token": "0.1 ms"}


@dataclass(frozen=True)
class ServedScenario(System):
    """A scenario with services, to be run under any policy that serves them."""

    scenario: Scenario | None = None

    def run_input(self, scheduler: Any, admission: Any = None) -> RunInput:
        """A run of it under this policy, with batching policies of its own."""
        assert self.scenario is not None
        built = self.scenario.build(1)
        return replace(built, scheduler=scheduler, admission=admission, policy=type(scheduler).__name__)

    def __repr__(self) -> str:
        return f"Served({self.name!r}: {self.cluster.describe()}, {len(self.tasks)} tasks)"


def served_systems() -> list[ServedScenario]:
    """Those of the conformance suite, made again."""
    gpu = {"type": "g", "count": 2, "streams": 2}
    requests = _entry("web", 30, "30/s", {"service": SERVICE})
    jobs = _entry("jobs", 12, "4/s", {"gpu_time": {"distribution": "exponential", "mean": "0.4 s"}})
    distant = _entry("web", 20, "20/s", {"service": SERVICE | {"network": "5 ms"}})
    chat = _entry("chat", 12, "8/s", {"service": {"kind": "llm", "step": STEP}, "tokens": {"prompt": 50, "output": 6}})
    tight = {"kind": "llm", "step": STEP, "kv": {"tokens": 160, "block": 4}}
    crowded = _entry("chat", 14, "30/s", {"service": tight, "tokens": {"prompt": 40, "output": 30}})
    apart = {"kind": "llm", "step": STEP, "kv": {"per_token": "1 MB"}, "disaggregated": {"prefill": 1, "decode": 1}}
    handed = _entry("apart", 8, "8/s", {"service": apart, "tokens": {"prompt": 50, "output": 8}})
    scaled = {"kind": "llm", "step": STEP, "model": "20 MB", "autoscale": {"min": 1, "max": 2, "target": 2}}
    growing = _entry("chat", 12, "20/s", {"service": scaled, "tokens": {"prompt": 60, "output": 20}})
    several = gpu | {"streams": 1, "count": 5, "memory": "2 GB"}
    return [
        _served("requests in batches", gpu, [requests]),
        _served("requests and tasks", gpu, [requests, jobs]),
        _served("requests over a network", gpu | {"streams": 1}, [distant]),
        _served("a language model and tasks", gpu | {"streams": 1}, [chat, jobs]),
        _served("a language model short of memory", gpu | {"streams": 1}, [crowded, jobs]),
        _served("a language model by itself", gpu | {"streams": 1}, [crowded]),
        _served("two language models and requests", several, [handed, growing, requests]),
    ]


def _entry(name: str, count: int, rate: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "arrivals": {"process": "poisson", "rate": rate}, "count": count, **more}


def _served(name: str, gpu: dict[str, Any], workload: list[dict[str, Any]]) -> ServedScenario:
    from hetsim.scenario.scenario import load  # pydantic takes its time

    node = {"cpus": 4, "gpus": gpu, "pcie": {"upload": "5 GB/s"}}
    described = {"name": "served", "seed": 1, "cluster": {"nodes": [node]}, "workload": workload}
    scenario = load(described)
    built = scenario.build(1)
    return ServedScenario(name, built.cluster, built.tasks, scenario=scenario)
