"""The classes of saved runs: a tag for each, and the names of fields in files.

Files contain no Python names, and no class is looked up by a name in a file.  A renamed or moved class keeps its tag, a
renamed field its stored name (`stored=attribute`).  Any other change needs a new `VERSION`: `tests/saved_format.csv`
has the fields of all versions, and CONTRIBUTING.md describes how to change them.
"""

from collections.abc import Callable
from typing import Any

from hetsim.model import (
    bandwidth,
    batch_times,
    cluster,
    demand,
    device_type,
    exchange,
    mode,
    ragged,
    randomness,
    record,
    service,
    slices,
)
from hetsim.model import step_times as steps
from hetsim.model import tasks as task
from hetsim.workload.costs import measured_training, roofline

VERSION = 10  # Version of the files of `record/`.  Older versions are read; version 0 is not stated.
_TABLE: dict[type, str] = {
    record.RunInput: "run: name cluster tasks random horizon warmup policy services language warnings grace traces "
        "decisions",
    record.DecisionTime: "decision_time: cycle per_cycle per_waiting per_start max_starts overlap",
    randomness.RandomTree: "random_tree: seed replication loads", cluster.Cluster: "cluster: specs partitions fabric",
    cluster.Fabric: "fabric: uplinks contention stores", bandwidth.BandwidthCurve: "bandwidth_curve: sizes rates",
    cluster.NodeSpec: "node_spec: cpus memory accelerators count name cpu_type switch_size island_size nvlink cards "
        "switch network rack first price partitions driver_cores disk keep",
    cluster.Disk: "disk: read size",
    cluster.Partition: "partition: name mask default default_time max_time tier max_gpus max_cpus max_nodes users "
        "accounts claims",
    device_type.DeviceType: "device_type: name kind speed memory streams link sharing power preemption multiprocessors "
        "price peak",
    device_type.Link: "link: upload download latency duplex curve",
    device_type.Sharing: "sharing: kind switch_cost interference layouts reconfigure pairs recut",
    slices.Slice: "slice: share memory profile position", device_type.Preemption: "preemption: kind rate overhead",
    device_type.Power: "power: idle busy sleep wake", device_type.Price: "price: up asleep",
    roofline.Peak: "peak: flops bandwidth matrix_flops fp8_flops int8_flops fp4_flops link launch_overhead memory "
        "multiprocessors clock threads blocks registers shared_memory shared_memory_per_block shared_memory_reserved "
        "shared_memory_granularity "
        "threads_per_block registers_per_thread warp register_granularity warp_granularity warps_to_saturate",
    task.Tasks: "tasks: arrival shape shapes time estimate id class_code classes user_code users priority weight "
        "deadline expires bytes_in bytes_out predecessors reads writes items work hash_ids time_limit partition_code "
        "partitions refused staged extra",
    mode.Mode: "mode: name type millicores gpus share memory gpu_memory span_any span_speed span_speeds node_count "
        "exchange fixed table upload download batch_limit partition curve parts pinned slice",
    demand.Stopping: "stopping: save restore state interval block idempotent checkpoint input",
    demand.SpanSpeeds: "span_speeds: island switch node rack cluster", demand.StageTime: "stage_time: fixed per_item",
    batch_times.StageTable: "stage_table: sizes seconds between spread floor",
    batch_times.TimeSpread: "time_spread: values probabilities", mode.Shape: "shape: modes stopping preemptible",
    exchange.Exchange: "exchange: cluster compute filling phases nominal at_peak largest pipeline",
    exchange.Phase: "phase: shape group bytes fixed hidden cards loop waits inside",
    exchange.StepPipeline: "step_pipeline: schedule stages micro_batches chunks forward backward head update phases "
        "ahead",
    measured_training.TrainingCurve: "training_curve: application gpus batch",
    measured_training.Application: "application: name steps spread epochs local_limit",
    task.Item: "item: name size home lasting", task.KernelWork: "kernel_work: overhead operations traffic bytes",
    ragged.Ragged: "ragged: values starts", task.StagedRequests: "staged_requests: first stage stages id alone",
    service.Service: "service: name shape rows per_item slo noise alike bytes_in bytes_out cache request_delay "
        "response_delay about policy_key kinds scaling start key",
    service.ResultCache: "result_cache: size evict hit",
    service.ScaleBounds: "autoscaling: least=min_replicas most=max_replicas every roles",
    service.LanguageService: "language_service: name shape rows kinds block token_bytes budget=max_num_batched_tokens "
        "max_sequences max_output swap scaling prefix_block ttft tpot request_delay response_delay "
        "key start async_scheduling scheduler_recv_interval batch_wait_max_tokens_ratio batch_wait_timeout_iters",
    service.ReplicaStart: "replica_start: fixed warm sources share",
    service.ReplicaKind: "replica_kind: step blocks weights replicas prefillers mode",
    steps.LinearSteps: "linear_steps: fixed per_sequence per_prompt_token per_context_token decode prefill",
    steps.RooflineSteps: "roofline_steps: fixed host weights experts expert_share per_token per_answer "
        "per_context_token per_pair link_latency link_per_token",
    steps.KernelSteps: "kernel_steps: fixed per_sequence tokens linear last sequences contexts decode prompts lengths "
        "prefill reading",
    record.Record: "record/tasks: status ready start finish mode place upload compute download preemptions migrations "
        "energy batch first_token cached_tokens cold_start received attempt_of call_end",
}  # fmt: skip
CLASSES = {
    tag: (kind, {name: attribute or name for name, _, attribute in (one.partition("=") for one in names.split())})
    for kind, (tag, names) in ((kind, text.split(":")) for kind, text in _TABLE.items())
}  # Tag -> class, and its attributes by stored name (of a `Record`: those that are columns of a file).
_DERIVED = {"nodes", "limited", "scattered", "unit", "bare", "_known"}
READERS: dict[int, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
    0: lambda tag, fields: {name: value for name, value in fields.items() if name not in _DERIVED},
    5: lambda tag, fields: {name: value for name, value in fields.items() if name not in ("target", "cooldown")},
    4: lambda tag, fields: {name: value for name, value in fields.items() if name != "timeout"},  # of clients by now
}  # Version -> function of a tag and its fields that returns the fields of the next version.
