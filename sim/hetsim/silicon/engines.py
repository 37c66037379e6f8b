"""Named serving engines: their constants, and their errors on measured servers.

`benchmarks/measured_servers.py --write` writes `engines.json` from measured servers: constants fitted to each engine,
and bounds that contain the signed errors of nine of ten servers (split conformal).  For a model, number format or GPU
that was not measured with the engine, the bounds are those of errors on whole model families, or GPUs, that were
excluded from the fit.
Reference: NVIDIA, Kernel Times of aiconfigurator-core 0.12.0 (2026), for the surfaces in `surfaces.parquet`.
"""

import json
import math
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from typing import Any

import numpy as np

from hetsim.build import package_data
from hetsim.model.step_times import KernelSteps
from hetsim.silicon import kernels as parts
from hetsim.silicon.exact import SOURCE, installed
from hetsim.silicon.kernels import Divided, Kernels, NotMeasured, kernels_for, kernels_of, surfaces
from hetsim.workload.costs import architectures
from hetsim.workload.costs.architectures import Architecture, NumberFormat
from hetsim.workload.costs.roofline import DEVICES, Efficiency, Peak, device, roofline_steps

QUANTILE = 1.6449  # of the standard normal distribution, for intervals with 90 %
NO_GPU = "no measured kernels of this GPU"
RELEASE = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4})+(rc[0-9]{1,4})?(\.post[0-9]{1,4})?")
NODE = (1, 2, 4, 8)  # numbers of GPUs of a node over which `support` divides a model


@cache
def fitted() -> dict[str, Any]:
    """Return the fitted constants of each engine, their errors and the measured loads."""
    return dict(json.loads(package_data(__file__, "engines.json")))


def engine_of(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and constants of an engine such as vllm-0.15; ValueError if unknown."""
    engines = fitted()["engines"]
    name, _, version = text.partition("-")
    if name not in engines or not RELEASE.fullmatch(version):
        said = ", ".join(f"{one}-{figures['to']}" for one, figures in engines.items())
        raise ValueError(f"engine must be an engine and its version, such as {said}; got {text}")
    first, last = engines[name]["from"], engines[name]["to"]
    low, number, high = map(numbered, (first, version, last))
    plain = re.sub("(?<![0-9])0+(?=[0-9])", "", version)  # no release has leading zeros
    for end, outside in ((first, number < low[: len(number)]), (last, number > high), (plain, plain != version)):
        if outside:
            raise ValueError(f"{name} was measured from {first} to {last}; got {version}; the nearest is {name}-{end}")
    return name, engines[name]


def numbered(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall("[0-9]+", version)))[:2]


def gpu_of(peak: Peak) -> str | None:
    """Return the name of the measured GPU with these peak rates, or None."""
    return next((key[0] for key in surfaces() if DEVICES.get(key[0]) == peak), None)


def roofline_kernels(model: Architecture, peak: Peak, gpus: int) -> Kernels:
    """Return kernels from a roofline, for a GPU without measured kernels."""
    line = roofline_steps(model, peak, gpus, Efficiency())
    kernels = kernels_for(model)
    kernels.add("matrices", np.array([line.seconds_for(tokens, 0, 0) for tokens in parts.TOKENS.tolist()]))
    for row, many in enumerate(parts.SEQUENCES.tolist()):
        bare = line.seconds_for(0, many, 0)
        kernels.decode[row] = [line.seconds_for(0, many, many * context) - bare for context in parts.CONTEXTS.tolist()]
    for row, many in enumerate(parts.PROMPTS.tolist()):
        kernels.prefill[row] = [line.per_pair * many * length * (length + 1) / 2 for length in parts.LENGTHS.tolist()]
    return kernels


@lru_cache(maxsize=64)
def steps_of(model: Architecture, peak: Peak, gpus: int, text: str, data: int = 1, expert: int = 1) -> KernelSteps:
    """Return step times of an engine (vllm-0.15) on `gpus` GPUs; ValueError: unknown.

    data: number of replicas that share their experts, all of them with as many tokens in a step; expert: degree of
    expert parallelism.
    """
    kernels, constants = kernels_with(model, peak, Divided(gpus, data, None, expert), text)
    return kernels.steps(constants)


def kernels_with(model: Architecture, peak: Peak, divided: Divided, text: str) -> tuple[Kernels, dict[str, float]]:
    """Return a step's kernels and an engine's constants; ValueError as `steps_of`."""
    (engine, figures), gpu = engine_of(text), gpu_of(peak)
    peak.check_kv(model.number_format.kv)
    if peak.matrix_flops is None:
        raise ValueError("the peak of the GPU's matrix units is unknown")
    if gpu is None and divided.attention * divided.expert > 1:
        raise ValueError(f"{NO_GPU}, but of data_parallel and expert_parallel only measured kernels are known")
    if gpu is None:
        return roofline_kernels(model, peak, divided.gpus), figures["unknown"]
    try:
        return kernels_of(model, gpu, peak, engine=engine, divided=divided), figures["constants"]
    except NotMeasured as reason:
        raise ValueError(f"{reason}; leave out engine to estimate the steps from figures of the GPU") from None


def defaults(text: str) -> dict[str, Any]:
    """Return an engine's defaults of service keys; text: engine, such as vllm-0.15."""
    _, figures = engine_of(text)
    keys: dict[str, Any] = {"max_num_batched_tokens": figures["tokens"], "front_end": f"{figures['front_end']} s"}
    if numbered(text.partition("-")[2]) >= numbered(figures["asynchronous"]):
        keys["async_scheduling"] = True
    if figures["phases"] != "mixed":
        keys["batching"] = {"name": "continuous", "phases": figures["phases"]}
    return keys


def shape_of(model: Architecture) -> Architecture:
    """Return what models of one family and size have in common.

    Number formats and the vocabulary may differ.
    """
    return model.model_copy(update={"number_format": NumberFormat(), "vocabulary": 1})


def formats_of(model: Architecture) -> str:
    """Return the kernels' number format of weights, or weights/experts: bfloat16/fp8."""
    weights = model.number_format.weights
    names = [weights, model.number_format.experts or weights][: 1 + (model.experts > 1)]
    return "/".join(parts.FORMATS.get(name, (name,))[0] for name in names)


@cache
def measured_models(engine: str) -> dict[Architecture, str]:
    """Return the names of the models measured on an engine's servers, by architecture."""
    return {shape_of(architectures.model(name)): name for name in fitted()["engines"][engine]["models"]}


@dataclass(frozen=True)
class Interval:
    """Range of measured / predicted step time that contains 90 % of measured servers."""

    low: float
    high: float
    # measured: servers with this model and GPU; transferred: of the model, with other GPUs, and kernels of the GPU;
    # guessed: neither; "": this server
    level: str = ""
    servers: int = 1
    like: str = ""
    why: str = ""  # of a guess: what was not measured
    first: tuple[float, float] | None = None  # the range for times to the first token
    memory: tuple[float, float, int] | None = None  # that of measured / computed KV blocks, and number of servers

    def __str__(self) -> str:
        bounds = f"90 %: at least {self.low:.2f}, at most {self.high:.2f} times as long"
        if not self.level:
            return f"{bounds} (requests of this server, by hetsim calibrate)"
        if self.first is not None:
            bounds += ", first tokens at least {:.2f}, at most {:.2f} times".format(*self.first)
        level = f"guess: {self.why}" if self.why else self.level
        text = f"{bounds} ({level}; errors of {self.servers:,} measured servers, {self.like})"
        if self.memory is not None:
            text += ", KV blocks {:.2f} to {:.2f} times as many ({} measured servers)".format(*self.memory)
        return text

    @property
    def normal(self) -> tuple[float, float]:
        """Mean and standard deviation of log(measured / predicted), which is normal."""
        return _normal(self.low, self.high)

    def factor(self, generator: np.random.Generator) -> float:
        """Draw a lognormal factor for all steps; 90 % of such factors are in the interval."""
        return math.exp(generator.normal(*self.normal))

    def memory_factor(self, generator: np.random.Generator) -> float:
        """Draw a lognormal factor for the number of KV blocks; 1 without an interval."""
        return 1.0 if self.memory is None else math.exp(generator.normal(*_normal(*self.memory[:2])))

    def updated(self, factor: float, error: float, drift: float, within: float, again: bool) -> "Interval":
        """Return the interval after the factor was measured in one run (Bayes).

        factor: the measured log(factor), with standard error `error`.  drift: standard deviation of log(factor) from
        run to run; within: the part of `drift` that this interval already includes.  again: True: return the interval
        of another run, with the drift of that run; False: return that of the factor that all runs have in common.
        """
        if math.isinf(error):
            return self
        prior, spread = self.normal
        own, run = max(spread**2 - within**2, spread**2 / 4), error**2 + drift**2
        middle = (prior * run + factor * own) / (run + own)
        half = QUANTILE * math.sqrt(own * run / (run + own) + again * drift**2)
        return Interval(math.exp(middle - half), math.exp(middle + half))


def _normal(low: float, high: float) -> tuple[float, float]:
    return math.log(low * high) / 2, math.log(high / low) / (2 * QUANTILE)


def interval(
    model: Architecture, peak: Peak, gpus: int, text: str, load: tuple[float, float] | None = None
) -> Interval:  # fmt: skip
    """Return the 90 % interval of measured / predicted step times.

    `text`: serving engine and version, such as vllm-0.15.  A load (tokens per request, concurrent requests) widens the
    interval by its distance to the nearest measured load.  If the engine was not measured with this model or number
    format of weights, the interval is that of the prediction errors for model families that were excluded from the fit.
    """
    (engine, figures), gpu, data = engine_of(text), gpu_of(peak), fitted()
    name, formats = measured_models(engine).get(shape_of(model)), formats_of(model)
    level = "guessed" if gpu is None else "measured" if gpu in figures["gpus"] else "transferred"
    why, key, near, wider = "" if gpu is not None else NO_GPU, f"{engine}/{gpu}/{name}", None, 1.0
    if name is None or formats not in figures["formats"]:
        why = f"no measured model of this family and size with {engine}"
        if name is not None:
            why = f"no measured server with weights in {formats.replace('/', ' and ')} with {engine}"
        row, like = data["errors"]["families"][level], "families of models left out"
        like, level = like + ", and GPUs" * (level != "measured"), "guessed"
    elif key in data["errors"]["measured"]:
        row, near, like = data["errors"]["measured"][key], data["points"][key], key.replace("/", ", ")
    else:
        level = "guessed" if gpu is None else "transferred"
        row, like = data["errors"]["known"][level], "GPUs left out"
    if near and load is not None:
        distances = np.abs(np.array(near) - np.log2([load[0], load[1], gpus])).sum(axis=1)
        wider += data["widening"] * float(distances.min())
    like += "; kernels of {package} {version}".format(**SOURCE) if gpu is not None and installed() is not None else ""
    step, first = (((low + high) / 2, (high - low) / 2 * wider) for low, high in (row[:2], row[2:4]))
    (low, high), ends = ((math.exp(middle - half), math.exp(middle + half)) for middle, half in (step, first))
    memory = figures.get("memory") and (*map(math.exp, figures["memory"][:2]), figures["memory"][2])
    return Interval(low, high, level, servers=row[4], like=like, why=why, first=ends, memory=memory)


def support(architecture: Architecture, gpu_name: str) -> list[dict[str, Any]]:
    """Return how reliable a model's step times on a GPU are, a row per serving engine.

    Numbers of GPUs with equal results share a row.  UnknownName if the GPU is not known.
    """
    peak = device(gpu_name)
    rows = dict[tuple[str, ...], dict[str, Any]]()
    for (name, figures), gpus in product(fitted()["engines"].items(), NODE):
        level, bounds, transferred = _support(architecture, peak, gpus, f"{name}-{figures['to']}")
        versions, summary = f"{name}-{figures['from']} to {figures['to']}", "; ".join((str(bounds), *transferred))
        row: dict[str, Any] = {"name": versions, "gpu": gpu_name, "kind": level, "summary": summary}
        if isinstance(bounds, Interval):
            row |= {"low": bounds.low, "high": bounds.high, "first": bounds.first, "transferred": transferred}
        rows.setdefault((versions, level, summary), {**row, "gpus": []})["gpus"].append(gpus)
    for row in rows.values():
        row["name"] += f" on {', '.join(map(str, row['gpus']))} GPU" + "s" * (row["gpus"] != [1])
    return list(rows.values())


def _support(architecture: Architecture, peak: Peak, gpus: int, text: str) -> tuple[str, Interval | str, list[str]]:
    try:
        architecture.check_parts(gpus)
        if peak.memory is not None and architecture.bytes >= peak.memory * gpus:
            raise ValueError(f"{architecture.bytes / 1e9:.4g} GB of weights do not fit into the memory of the GPUs")
        kernels, _ = kernels_with(architecture, peak, Divided(gpus), text)
    except ValueError as reason:
        return "none", str(reason).partition(";")[0], []
    bounds = interval(architecture, peak, gpus, text)
    return bounds.level, bounds, kernels.transferred
