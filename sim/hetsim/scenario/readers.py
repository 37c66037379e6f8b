"""Table of the scenario keys that each reader supports; other keys are an error.

The engine reads every key.  Other readers (queueing models, the bound of `hetsim size`, planners) list here the keys
that they use, or that do not affect their results.  A key without a row is supported by the engine only.
`tests/scenario/test_readers.py` checks that each key of the schema has a row, and that each row belongs to a key.
"""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from hetsim import registry
from hetsim.errors import Problem
from hetsim.scenario.file import document as documents
from hetsim.scenario.file.document import Document, Path_
from hetsim.scenario.schema.policy import Policies, policy_parameters
from hetsim.scenario.schema.whole import ScenarioModel, check

# Readers: families of models in `hetsim.queueing`.
MODELS = (
    "delay", "tandem", "sharing", "priorities", "preemptive", "limit", "bucket", "trunks", "naor", "work", "patience",
    "closed", "batches", "sjf", "srtf", "las", "unlike", "faults", "setup",
    "retrials", "returns", "copies", "forks", "gangs", "choices",
)  # fmt: skip

SIZE = "size"  # The bound of `hetsim size`: fleet sizes so overloaded that no run is needed.

PLAN = "plan"  # Results that planners prove (bounds, ratios and timetables), and plans of other policies.

TRAINING = "plan-training"  # Step times in `hetsim plan-training`.

TWIN = "twin"  # Forecasts of `hetsim twin`, which has its own jobs, times, arrivals and horizon.

VALIDATE = "trace-validate"  # Checks of recorded waits in `hetsim trace validate`.

READERS = (*MODELS, SIZE, PLAN, TRAINING, TWIN, VALIDATE)

UNKNOWN = "not recognized: "

_SETS = {
    "all": {*READERS},
    "but twin": {*READERS} - {TWIN},
    "tasks": {*MODELS, PLAN, VALIDATE} - {"batches", "choices"},
    "never stop": {*MODELS, PLAN, TWIN, VALIDATE} - {"preemptive", "srtf", "las", "faults", "copies"},
    "ask no estimates": {*MODELS, PLAN, VALIDATE} - {"work", "trunks", "naor", "sjf", "srtf"},
    "none": set(),
    **{name: {name} for name in READERS},
}  # Sets of readers by name.

# Keys inside others: @ of a distribution; % of measured times; of a mapping by its name.
BELOW = {
    "@": "distribution value mean cv median sigma low high shape scale branches branches.weight branches.mean values "
         "weights path column unit name parameters parameters.* loc",
    "%": "SIZE table batch time unit where where.* between extrapolate quantiles quantiles.* samples",
    "communication": "pattern bytes every largest overlap", "data": "name size home", "time_limit": "factor",
    "layouts": "memory positions slices", "nvlink": "curve latency profile rate", "users": "count name weight zipf",
    "network": "curve download duplex in latency out profile upload", "partition": "column names names.* others",
    "partitions": "* *.accounts *.default *.default_time *.max_cpus *.max_gpus *.max_nodes *.max_time *.nodes *.tier "
                  "*.users",
    "peak": "bandwidth blocks clock flops fp4_flops fp8_flops int8_flops launch_overhead link matrix_flops memory "
            "multiprocessors registers register_granularity registers_per_thread shared_memory "
            "shared_memory_granularity shared_memory_per_block shared_memory_reserved threads threads_per_block warp "
            "warp_granularity warps_to_saturate",
    "pipeline": "devices items profile replication training", "power": "idle busy sleep wake", "price": "up asleep",
    "prices": "* *.up *.asleep", "racks": "nodes oversubscription uplink uplinks uplinks.*",
    "replications": "confidence max metric precision", "resample": "block by gpu_demand",
    "span_speeds": "island switch node rack cluster",
    "work": "bytes efficiency flops kernels launch launch.block launch.grid launch.registers launch.shared_memory "
            "launch_overhead share steps",
}  # fmt: skip

# Sections; below them readers, and the keys of the section that they understand.  `x@`, `x%`: x and the keys above
# below it; `x+`: x and the keys above for that name; `x.*`: any name below x; `x.**`: all below it, which policies and
# readers of traces declare.  A mapping that is understood may have keys that are not; one that is not is refused as a
# whole.
_TABLE = """
.
    all: name description cluster workload policy
    but twin: seed sweep sweep.** replications+ horizon warmup
    plan, plan-training, trace-validate: data+
    plan-training, twin, trace-validate: site site.at_limit site.grace site.partitions+
    faults: faults
faults
    faults: name on every@ repair@
    none: slow for together file maintenance

# No model knows tasks that span nodes, or that communicate: what joins nodes and GPUs changes nothing.
cluster
    all: nodes racks+ contention prices+
    all: stores stores.name stores.out
    plan, plan-training, trace-validate: trace trace.format trace.path trace.**
cluster.nodes
    all: name count cpus driver_cores memory cpu gpus accelerators network+ rack island nvlink+ cards price+
    all: disk disk.read disk.size keep
    all: pcie pcie.profile pcie.upload pcie.download pcie.latency pcie.duplex
    all: pcie.switch pcie.switch.size pcie.switch.upload pcie.switch.download pcie.switch.latency pcie.switch.duplex
    plan-training, twin, trace-validate: partitions
cluster.nodes.cpu
    all: type speed power+ price+ peak+
cluster.nodes.gpus
    all: type count kind speed memory streams power+ multiprocessors price+ peak+
    all: pcie pcie.upload pcie.download pcie.latency pcie.duplex
    all: sharing sharing.kind sharing.switch_cost sharing.interference
    plan, twin, trace-validate: sharing.layouts+ sharing.profiles sharing.recut sharing.reconfigure
    plan, twin, trace-validate: sharing.pairs sharing.pairs.* sharing.pairs.*.*
    never stop, size, plan-training: preemption preemption.kind preemption.rate
    twin, trace-validate: preemption.overhead

# Of the processes that models accept by name; other readers take the times of any other process (`PROCESSES`).
workload.arrivals
    all: process rate scv family interval clients think@ between rates switching holding
    plan, plan-training: first start_jitter
    delay, size, plan, plan-training, trace-validate: period
workload
    all: name
    but twin: arrivals class classes classes.weight count until
    plan, plan-training, twin, trace-validate: trace trace.format trace.path trace.** unfit
    plan, plan-training: time_scale load resample+ pipeline+
    plan, plan-training, trace-validate: skip
    tasks, plan-training: gpu_time@ gpu_time.TYPE@ cpu_time@ cpu_time.speedup
    tasks, plan-training: cpus gpus memory gpu_memory priority
    plan, plan-training, trace-validate: nodes slice span_speed span_speeds+ scaling scaling.*
    plan, plan-training, twin, trace-validate: span
    plan, plan-training: work+ profile batch steps@ efficiency devices training
    plan: reads writes
    plan-training: communication+
    plan-training, trace-validate: partition+ time_limit+
    delay, tandem, size, plan, plan-training: bytes_in@ bytes_out@
    delay, tandem, plan, plan-training: upload download
    patience, plan-training: patience@
    but twin: weight slo slo.factor deadline deadline.factor user users+ account qos
    ask no estimates, plan-training: estimates estimates.basis estimates.error@ estimates.factor
    never stop, plan-training: stopping stopping.save stopping.restore stopping.state stopping.input stopping.interval
    never stop, plan-training: stopping.block stopping.idempotent stopping.preemptible
    faults: stopping stopping.interval
    plan, trace-validate: stopping.checkpoint
    batches, size, choices: service
    choices: tokens tokens.prompt@ tokens.output@
    copies, retrials, returns: clients
    copies: clients.at_timeout clients.hedge clients.hedge.after clients.hedge.times clients.hedge.size
    copies: clients.hedge.apart
    returns: clients.timeout@ clients.at_timeout
    retrials, returns: clients.retry clients.retry.times clients.retry.on clients.retry.size clients.retry.wait
    retrials, returns: clients.retry.wait.first clients.retry.wait.factor clients.retry.wait.max
    retrials, returns: clients.retry.wait.jitter
    forks: together
    none: after drift drift.cv drift.mean
    none: clients.give_up_after clients.count clients.retry.budget ttft tpot
workload.training
    plan, plan-training: batch buckets chunks data efficiency experts micro_batch passes pipeline recomputation schedule
    plan, plan-training: sequence_parallel sharded_optimizer steps@ tensor widths
    plan, plan-training: model model.heads model.hidden model.layers model.name model.sequence model.vocabulary
workload.modes
    tasks, plan-training: . device name time@ time.speedup cpus gpus memory gpu_memory
    plan, plan-training: work+ profile batch steps@ efficiency nodes slice span span_speed span_speeds+
    plan, plan-training: upload download
workload.service
    batches, size: profile device gpus cpus memory gpu_memory gpu_memory_per_item max_batch variants name model noise
    batches, size: upload upload.per_item upload.fixed download download.per_item download.fixed
    batches, size: compute compute.per_item@ compute.fixed batching batching.name batching.max_batch
    batches, choices: kind
    choices: device gpus replicas max_num_seqs step step.fixed routing
    size: upload% compute% download% network network.request network.response batching.**
    none: compute.per_prompt_token compute.per_output_token cache
    none: gpu tensor_parallel engine uncertain drift drift.cv drift.mean also_on memory_share kv max_num_batched_tokens
    none: step.per_sequence step.per_prompt_token step.per_context_token step.decode step.prefill step.roofline
    none: interval max_output_tokens preemption prefix_cache disaggregated front_end slo async_scheduling
    none: data_parallel expert_parallel scheduler_recv_interval batch_wait_max_tokens_ratio batch_wait_timeout_iters
    none: scale scale.name scale.min scale.max scale.every scale.roles
    none: model.name model.config start start.fixed start.warm start.from start.share replicas.*

# Policies: the parameters of those that declare a model (`queueing`).
policy
    plan-training: scheduler.** admission.** batching.** routing.** routing routing.name decisions decisions.**
    plan-training: eviction eviction.name eviction.**
    none: decisions decisions.cycle decisions.per_cycle decisions.per_waiting decisions.per_start decisions.max_starts
    none: decisions.overlap
    all: scheduler scheduler.name
    tasks, size: scheduler.placement scheduler.placement.name scheduler.placement.scores scheduler.discipline
    tasks: scheduler.preemptive scheduler.aging
    unlike: scheduler.placement.threshold
    las: scheduler.thresholds
    setup: scheduler.patience scheduler.safety scheduler.memory
    none: scheduler.margin
    plan, twin, trace-validate: scheduler.**
    none: scheduler.drop_expired scheduler.placement.patient placement
    tasks, plan-training: admission admission.name
    trace-validate: admission.**
    retrials: admission.limit
    choices: routing routing.name
    limit: admission.limit admission.per_class admission.per_class.* admission.per_device admission.per_device.*
    bucket: admission.rate admission.burst admission.per admission.excess
    trunks: admission.reserve admission.reserve.* admission.servers
    naor: admission.reward admission.cost admission.objective admission.arrival_rate admission.service_time
    naor: admission.memory
    work: admission.max_wait
    batches, size, plan-training: batching batching.name batching.max_batch
    size: batching.**
"""

_ALIKE = {
    "workload.classes.": "workload.",
    "cluster.nodes.accelerators.": "cluster.nodes.gpus.",
    "workload.service.variants.": "workload.service.",
}  # Sections with the keys of others.

# Sections that may name a file with their keys (`profile`), and the file's section.
_PROFILES = {
    "workload.service": "service", "cluster.nodes.pcie": "pcie", "cluster.nodes.network": "network",
    "cluster.nodes.nvlink": "nvlink",
}  # fmt: skip


# Arrival processes with rows of their own; of other processes, models refuse the name.
PROCESSES = ("poisson", "renewal", "deterministic", "mmpp", "closed", "piecewise_poisson")


class ReadScenario(Protocol):
    """Protocol: a scenario that is validated, but not built into a run."""

    document: Document
    base: Path
    model: ScenarioModel
    policies: Policies


@cache
def rows() -> dict[str, frozenset[str]]:
    """Map keys to readers (models, planners) that support them; `x.**`: keys below x."""
    readers_by_key: dict[str, frozenset[str]] = {}
    section = ""
    for line in _TABLE.splitlines():
        if not line.startswith(" "):
            section = section if not line or line.startswith("#") else line.strip(".") + "." if line != "." else ""
            continue
        names, _, keys = line.partition(":")
        readers = frozenset[str]().union(*(_SETS[name.strip()] for name in names.split(",")))
        for key in keys.split():
            base = key.rstrip("@%+")
            kind = base.rpartition(".")[2] if key[-1] == "+" else key[len(base) :]
            below = BELOW[kind].split() if kind else []
            for name in (base, *(f"{base}.{one}" for one in below)):
                name = (section + name).rstrip(".") if name == "." else section + name
                readers_by_key[name] = readers_by_key.get(name, frozenset()) | readers
    return readers_by_key


def pattern_of(path: str) -> str:
    """Return the key that the table of readers has for a path of the scenario."""
    for section, other in _ALIKE.items():
        if path.startswith(section) and path != "workload.classes.weight":
            path = other + path.removeprefix(section)
    return path


@cache
def readers_of(pattern: str) -> frozenset[str] | None:
    """Return the readers (models, planners) that support a key; None: not in `rows()`."""
    parts = pattern.split(".")
    stars = [".".join(parts[:end]) + ".**" for end in range(1, len(parts) + 1)]
    permitted = [row for row in (rows().get(name) for name in (pattern, *stars)) if row is not None]
    return frozenset[str]().union(*permitted) if permitted else None


def not_understood(scenario: ReadScenario, reader: str, entry: int | None = None) -> list[Problem]:
    """Return problems of keys unknown to a reader; `entry`: skip other entries' keys."""
    first_paths: dict[str, Path_] = {}
    for path, pattern in _unknown(scenario.document.data, (), "", reader=reader, base=scenario.base):
        other = entry is not None and path[0] == "workload" and isinstance(path[1], int) and path[1] != entry
        if not other and pattern not in first_paths and not _as_if_absent(scenario, path):
            first_paths[pattern] = path
    problem = scenario.document.problem
    return [problem(path, UNKNOWN + _shown(path)) for path in first_paths.values()]


def _shown(path: Path_) -> str:
    names = [str(part) for part in path if not isinstance(part, int)]
    return ".".join(names[1:] if names[0] == "workload" else names)


def _unknown(value: Any, path: Path_, pattern: str, reader: str, base: Path) -> Iterator[tuple[Path_, str]]:
    if path and reader not in (readers_of(pattern) or ()):
        yield path, pattern
    elif isinstance(value, list):
        for number, one in enumerate(value):
            if isinstance(one, dict):
                yield from _unknown(one, (*path, number), pattern, reader=reader, base=base)
    elif isinstance(value, dict):
        if pattern == "workload.arrivals" and value.get("process") not in PROCESSES:
            return
        if (section := _PROFILES.get(pattern)) is not None and isinstance(value.get("profile"), str):
            value = {**documents.read(base / value["profile"]).data[section], **value}
        for key, inner in value.items():
            yield from _unknown(inner, (*path, key), _below(pattern, str(key)), reader=reader, base=base)


def _below(pattern: str, key: str) -> str:
    if key.startswith("gpu_time."):
        key = "gpu_time.TYPE"
    elif key[0].isdigit() and pattern.startswith("workload.service"):
        key = "SIZE"
    elif f"{pattern}.*" in rows():
        key = "*"
    return pattern_of(f"{pattern}.{key}" if pattern else key)


def _as_if_absent(scenario: ReadScenario, path: Path_) -> bool:
    changed = Document(deepcopy(scenario.document.data))
    here: Any = changed.data
    for part in path[:-1]:
        here = here.get(part) if isinstance(here, dict) else here[part]
        if here is None:  # from a profile
            return False
    if path[-1] not in here:
        return False
    if here.pop(path[-1]) is None:
        return True
    if path[0] == "policy":
        return len(path) == 3 and _is_default(scenario, str(path[1]), str(path[2]))
    model, _ = check(changed, scenario.base)
    return model == scenario.model


def _is_default(scenario: ReadScenario, part: str, key: str) -> bool:
    spec = getattr(scenario.policies, part, None)
    if spec is None or key not in spec.parameters:
        return False
    signature = policy_parameters(spec.kind, registry.policy(spec.kind, spec.name))
    return bool(signature[key].default == spec.parameters[key])
