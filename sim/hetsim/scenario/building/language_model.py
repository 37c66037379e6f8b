"""Builds the service and the replicas' modes of a `service: {kind: llm}` entry."""

import math
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from hetsim.errors import MAX_PROBLEMS, Problem, ScenarioError
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Mode
from hetsim.model.service import LanguageService, ReplicaKind
from hetsim.model.tasks import Tasks
from hetsim.policy.iterating import IterationPolicy
from hetsim.scenario.building.streams import Context, TaskStream
from hetsim.scenario.file.document import Path_, key_of
from hetsim.scenario.schema import language_model as llm_schema
from hetsim.scenario.schema.batch_tables import remarks
from hetsim.scenario.schema.demand import Demand
from hetsim.scenario.schema.steps import of_engine
from hetsim.scenario.schema.workload import WorkloadEntry
from hetsim.workload.costs.roofline import DEVICES
from hetsim.workload.traces import TaskTable

TOKENS = ("prompt_tokens", "output_tokens")
UNLIMITED = 1 << 40  # KV blocks where memory sets no limit


ESTIMATE = (
    "steps are estimated from published figures of model and GPU; compared with five measured servers the estimate is "
    "1 to 72% too short for decode steps (most for slow hosts) and up to 35% for prompt steps; a measurement "
    "replaces it: hetsim calibrate"
)
"""Warning if steps are estimated; the numbers are from docs/llm.md."""

BEYOND = {"decode": "steps of", "prefill": "steps that read"}  # What the sizes of a step's tables count, in sentences


S = TypeVar("S")


class DrawnRequests(Generic[S]):
    """Base class for building the service of a `workload:` entry and its requests."""

    def __init__(self, service: S, name: str, path: Path_, context: Context):
        self.service = service
        self.name = name
        self.path = path
        self.context = context
        self.extra: dict[str, np.ndarray] = {}  # the tokens of the requests drawn last, if they have some

    def _tokens_of(self, demand: Any, n: int, label: tuple[str, ...]) -> dict[str, np.ndarray]:
        keys, stream = ("prompt", "output"), self.context.random.stream
        drawn = [getattr(demand.tokens, key).sample(stream("tokens", *label, key), n) for key in keys]
        return {f"{key}_tokens": whole_tokens(values) for key, values in zip(keys, drawn, strict=True)}

    def _fail(self, key: str, text: str) -> Exception:
        parts = [int(part) if part.isdigit() else part for part in key.split(".")]
        return self.context.fail((*self.path, "service", *parts), text)

    def _overload(
        self, rate: float, max_rate: float, limited_rate: float, servers: str, why: str, otherwise: str
    ) -> tuple[str, float] | None:
        """Return a warning and the maximum rate (requests/s); None if `rate` is below it."""
        text = f"{self.name}: {rate:.4g} requests/s arrive"
        if rate > max_rate:
            return f"{text}, but its {servers} serve at most {max_rate:.4g}/s: the queue grows without bound", max_rate
        text = f"{text}, but {why} its {servers} serve at most {limited_rate:.4g}/s: the queue grows without bound"
        return (f"{text}; {otherwise}", limited_rate) if rate > limited_rate else None


class ServedLanguage(DrawnRequests[llm_schema.LanguageModel]):
    """Builder of a `workload:` entry's language-model service and of its requests."""

    @cached_property
    def modes(self) -> list[tuple[llm_schema.LanguageModel, Mode]]:
        """The language model and a replica's mode, for each type of device."""
        return [(kind, self._mode_on(kind, number)) for number, kind in enumerate(self.service.kinds)]

    def _mode_on(self, service: llm_schema.LanguageModel, number: int) -> Mode:
        key = "device" if not number else f"also_on.{number - 1}.device"
        devices = [one for one in self.context.modes.of_kind(service.device) if one.kind != "cpu"]
        if len(devices) != 1:
            raise self._fail(key, self._which(devices, service.device))
        device = devices[0]
        if device.streams > 1 or device.sharing.kind != "exclusive":
            text = f"{device.name} must not be shared (sharing: exclusive, streams: 1)"
            raise self._fail(key, f"a replica does not share devices; {text}")
        name = self.name if not number else f"{self.name} on {device.name}"
        occupied = Demand.model_construct(gpus=service.gpus, gpu_memory=device.memory)
        mode = self.context.modes.mode(device, occupied, name=name)
        if self.context.modes.fits(mode):
            blocks_of(service, device, self)
        elif number:
            raise self._fail(key, f"no node has {service.gpus} × {device.name}")
        return mode

    def _which(self, devices: list[DeviceType], named: str) -> str:
        if devices:
            names = ", ".join(one.name for one in devices)
            return f"step times are for one type of device, but {named} can be {names}; name one type"
        return f"the cluster has no accelerator {named}"

    def ways(self, n: int, label: tuple[str, ...], demand: Any) -> list[tuple[Mode, np.ndarray]]:
        """Draw n requests, set `self.extra` to tokens; return modes with seconds if alone."""
        if demand.tokens is None:
            text = "the lengths of prompts and answers are missing; give tokens: {prompt: ..., output: ...}"
            raise self.context.fail(self.path, text)
        self.extra = self._within(self._tokens_of(demand, n, label))
        return self._alone()

    def recorded(self, extra: dict[str, np.ndarray], n: int) -> list[tuple[Mode, np.ndarray]]:
        """Return modes and times of the n requests of a trace, each served alone."""
        if missing := [name for name in TOKENS if name not in extra]:
            text = f"this trace lacks the lengths of requests: it has no {' and no '.join(missing)}"
            raise self.context.fail((*self.path, "trace"), text)
        self.extra = self._within({name: whole_tokens(extra[name]) for name in TOKENS})
        return self._alone()

    def _within(self, extra: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        longest = self.service.max_output_tokens
        if isinstance(longest, int):
            extra["output_tokens"] = np.minimum(extra["output_tokens"], longest)
        return extra

    def _alone(self) -> list[tuple[Mode, np.ndarray]]:
        prompt, output = self.extra["prompt_tokens"], self.extra["output_tokens"]
        limit = self.service.max_num_batched_tokens
        return [(mode, kind.times.alone(prompt, output, limit)) for kind, mode in self.modes]

    def finish(self, stream: TaskStream, entry: WorkloadEntry) -> None:
        """Attach the service to its entry's tasks; add warnings and a check of its load."""
        stream.language = self.service
        stream.replica_modes = self.modes
        for kind, mode in stream.replica_modes:
            self._remarks(kind, mode)
        if any(kind.estimated for kind, _ in stream.replica_modes) and ESTIMATE not in " ".join(self.context.warnings):
            self.context.warnings.append(f"{self.name}: {ESTIMATE}")
        if not len(stream):
            return
        drift = self.service.drift
        run = 1.0 if drift is None else drift.factor(self.context.random.stream("drift", self.name))
        for kind, mode in stream.replica_modes:
            steps, memory = self._factors(kind, stream)
            blocks = blocks_of(kind, mode.type, self)
            stream.step_factors.append(run * steps)
            stream.kv_blocks.append(max(1, int(blocks * memory)) if memory != 1.0 else blocks)
        stream.time = stream.time * np.array(stream.step_factors)
        if self.service.prefix_cache is not None and stream.hash_ids is None:
            text = "prefix_cache has no effect: no request has prefixes of prompts (hash_ids of a trace)"
            self.context.warnings.append(f"{self.name}: {text}")
        prompt, output = stream.extra["prompt_tokens"], stream.extra["output_tokens"]
        block = 16 if self.service.kv is None else self.service.kv.block
        if beyond := int((-(-(prompt + output - 1) // block) > max(stream.kv_blocks)).sum()):
            what = f"{beyond:,} of {len(stream):,} requests need more KV blocks than a replica has and are rejected"
            self.context.warnings.append(f"{self.name}: {what}")
        rate = request_rate(entry, stream)

        def overload(batching: IterationPolicy, policy: str) -> tuple[str, float] | None:
            max_rate, limit = self._capacity(stream, math.inf), self.service.max_num_batched_tokens
            limited_rate = math.inf if limit is None else self._capacity(stream, limit)
            why = f"with at most {limit or 0:,} tokens in a step (max_num_batched_tokens)"
            otherwise = f"without that limit they serve {max_rate:.4g}/s"
            return self._overload(rate, max_rate, limited_rate, servers="replicas", why=why, otherwise=otherwise)

        stream.overload = overload

    def _factors(self, service: llm_schema.LanguageModel, stream: TaskStream) -> tuple[float, float]:
        """Warn of a type's intervals, if any; return factors on its steps and KV blocks."""
        factor = 1.0
        if service.interval is not None:
            interval = of_engine("measured")(*service.interval)
            factor = math.exp(interval.normal[0])
        elif service.engine is None or service.figures is None:
            return factor, 1.0
        else:
            tokens = float((stream.extra["prompt_tokens"] + stream.extra["output_tokens"]).mean())
            model, gpu, gpus = service.figures
            load = tokens, service.max_sequences
            interval = of_engine("interval")(model, gpu, gpus * service.data_parallel, service.engine, load=load)
            if service.kv is None or service.kv.tokens is not None:
                interval = replace(interval, memory=None)
        where = "" if service.device == self.service.device else f" on {service.device}"
        text = f"{self.name}: steps{f' with {service.engine}' if service.engine else ''}{where} take, {interval}"
        if text not in self.context.warnings:
            self.context.warnings.append(text)
        if not service.uncertain:
            return factor, 1.0
        steps, memory = (self.context.random.stream(name, self.name) for name in ("steps", "memory"))
        return interval.factor(steps), interval.memory_factor(memory)

    def _capacity(self, stream: TaskStream, max_num_batched_tokens: float) -> float:
        """Return the maximum number of requests per second that the replicas can serve.

        It assumes full steps: max_num_seqs requests share a decoding step, and prompts fill max_num_batched_tokens;
        without disaggregation, one step both decodes and reads prompts.
        """
        service, scale, apart = self.service, self.service.scale, self.service.disaggregated
        prompt, output = (stream.extra[name] for name in TOKENS)
        decoding = float((output - 1.0).mean()) / service.max_sequences
        reading = float(prompt.mean()) / max_num_batched_tokens
        filled = float((prompt + output - 1.0).mean()) / max_num_batched_tokens
        max_times = [0.0, 0.0]  # of those that decode, or do both, and of those that only prefill
        for factor, (kind, _) in zip(stream.step_factors, self.modes, strict=True):
            times, counts = kind.times_of(factor), service.starts(kind)
            prefill, decode, together = times.demand(prompt, output, service.max_sequences)
            alone = decode + times.fixed * decoding, prefill + times.fixed * reading
            if service.disaggregated is None:
                alone = together + times.fixed * max(decoding, filled), 0.0
            for side, (count, seconds) in enumerate(zip(counts, alone, strict=True)):
                if scale is not None and apart is None and not side:
                    max_times[0] = max(max_times[0], scale.max_replicas / seconds if seconds > 0 else math.inf)
                elif count:
                    if scale is not None and ("decode", "prefill")[side] in scale.roles:
                        count = scale.max_replicas
                    max_times[side] += count / seconds if seconds > 0 else math.inf
        return min(max_times) if service.disaggregated is not None else max_times[0]

    def _remarks(self, service: llm_schema.LanguageModel, mode: Mode) -> None:
        for name in ("decode", "prefill"):
            if (stage := getattr(service.step, name)) is not None and stage.measured is not None:
                sentences = remarks(stage.measured, f"{self.name}: {name}", stage.extrapolate, BEYOND[name])
                self.context.warnings += [text for text in sentences if text not in self.context.warnings]
        named = DEVICES.get(mode.type.name.lower())
        if service.figures is not None and service.step.roofline is not None and named not in (None, service.gpu):
            what = f"gpu names another GPU than {mode.type.name}, on which the service runs"
            self.context.warnings.append(f"{self.name}: {what}")


def request_rate(entry: WorkloadEntry, stream: TaskStream) -> float:
    """Return the long-run number of requests per second; 0 for a closed loop."""
    arrivals: Any = entry.arrivals
    if arrivals is not None:
        return 0.0 if arrivals.closed else arrivals.rate_mean or 0.0
    lasts = float(stream.arrival.max() - stream.arrival.min())
    return (len(stream) - 1) / lasts if lasts > 0 else 0.0


def check_tokens(table: TaskTable, kept: np.ndarray) -> None:
    """Raise ScenarioError for rows in `kept` with fewer than one token."""
    problems: list[Problem] = []
    for name in TOKENS:
        if name not in table.extra:
            continue
        rows = np.sort(kept[~(table.extra[name][kept] >= 1)])
        for row in rows[:MAX_PROBLEMS].tolist():
            text = f"{name} must be at least 1 token; got {table.extra[name][row]:g}"
            problems.append(Problem(text, file=table.source, line=table.line(row)))
        if len(rows) > MAX_PROBLEMS:
            more = f"and {len(rows) - MAX_PROBLEMS:,} more requests with {name} below 1"
            problems.append(Problem(more, file=table.source))
    if problems:
        problems.sort(key=lambda problem: problem.line or math.inf)
        raise ScenarioError(problems)


def whole_tokens(values: np.ndarray) -> np.ndarray:
    """Round tokens to whole numbers, at least one."""
    return np.clip(np.rint(np.nan_to_num(values)), 1, llm_schema.MAX_TOKENS).astype(np.int64)


def blocks_of(service: llm_schema.LanguageModel, device: DeviceType, served: ServedLanguage | None = None) -> int:
    """Return how many KV blocks fit in a replica's memory next to the weights."""
    limit = None if service.kv is None else service.kv.tokens
    each = device.memory
    if each is None and service.gpu is not None:
        each = service.gpu.memory
    if each is None:
        return UNLIMITED if limit is None or service.kv is None else limit // service.kv.block
    memory, beside = int(each * service.gpus * service.share), each * service.gpus - service.weights
    what = f"{service.gpus} × {device.name}" if service.gpus > 1 else f"one {device.name}"
    if beside >= 0 and (service.engine or "").startswith(llm_schema.OF_THE_REST):
        memory = int(beside * service.share) + service.weights
        what = f"{what} (the model and {service.share:.0%} of the rest)"
    elif service.share < 1:
        what = f"{service.share:.0%} of {what}"
    room = memory - service.weights
    if room < 0 and served is not None:
        raise served._fail("model", f"the model needs {service.weights / 1e9:.4g} GB; {what} has {memory / 1e9:.4g} GB")
    if service.kv is None:
        return UNLIMITED
    if limit is not None:
        need = service.weights + limit * (service.kv.per_token or 0)
        if need > memory and served is not None:
            text = f"the model and {limit:,} tokens need {need / 1e9:.4g} GB, but {what} has {memory / 1e9:.4g} GB"
            raise served._fail("kv", text)
        return limit // service.kv.block
    assert service.kv.per_token is not None
    blocks = room // (service.kv.per_token * service.kv.block)
    if blocks < 1 and served is not None:
        raise served._fail("kv", f"the model and one KV block do not fit into the {memory / 1e9:g} GB of {what}")
    return int(blocks)


def joining_problem(stream: TaskStream, batching: IterationPolicy) -> tuple[str, str] | None:
    """Return a key with which the batching policy cannot work, and why, or None."""
    service = stream.language
    assert service is not None
    if batching.by_client and stream.weight is not None and not (stream.weight > 0).all():
        text = f"the weight of a client must be above 0; got {stream.weight.min():g}"
        return "batching", text
    if not batching.reserves:
        return None
    if service.max_output_tokens is None:
        text = "the policy reserves memory for the longest answer of a request, which is unknown"
        return "batching", f"{text}; give max_output_tokens: a number, or exact"
    block = 16 if service.kv is None else service.kv.block
    room = max(stream.kv_blocks) * block
    prompt, output = stream.extra["prompt_tokens"], stream.extra["output_tokens"]
    longest = output if service.max_output_tokens == "exact" else service.max_output_tokens
    need = int((prompt + longest).min()) + block - 2
    if need > room:
        text = f"the smallest request reserves {need:,} tokens, prompt and longest answer"
        key = "kv" if service.max_output_tokens == "exact" else "max_output_tokens"
        return key, f"{text}; a replica has room for {room:,}"
    return None


def language_of(
    stream: TaskStream, service: llm_schema.LanguageModel, rows: np.ndarray, tasks: Tasks
) -> LanguageService:  # fmt: skip
    """Return the language model of a stream; `rows`: rows of its requests, by arrival."""
    shape = tasks.shapes[tasks.shape[rows[0]]]
    return LanguageService(
        name=stream.name,
        shape=shape,
        rows=rows,
        kinds=tuple(
            ReplicaKind(kind.times_of(factor), blocks, kind.weights, *service.starts(kind))
            for factor, blocks, (kind, mode) in zip(
                stream.step_factors, stream.kv_blocks, stream.replica_modes, strict=True
            )
            if mode in shape.modes
        ),
        token_bytes=0 if service.kv is None else service.kv.per_token or 0,
        max_sequences=service.max_sequences,
        max_output=0 if service.max_output_tokens == "exact" else service.max_output_tokens,
        swap=service.preemption == "swap",
        scaling=None if service.scale is None else service.scale.made(),
        start=service.start,
        prefix_block=0 if service.prefix_cache is None else service.prefix_cache.tokens,
        request_delay=service.network.request_delay + service.front_end,
        response_delay=service.network.response_delay,
        key=key_of((*stream.path, "service")),
        **({} if service.kv is None else service.kv.given),
        **service.given,
        **service.slo.given,
    )
