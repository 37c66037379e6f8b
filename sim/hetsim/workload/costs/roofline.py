"""A cost model: from work (operations and bytes) to seconds.

`roofline` is the model of Williams, Waterman, Patterson (Roofline, CACM 2009): a kernel is bound either by
arithmetic or by memory traffic,

    seconds = launch overhead + max(flops / (peak flops · e · s), bytes / (bandwidth · e · s)),

with e the efficiency reached and s the share of the device.

`KernelLaunch` refines it for a GPU kernel with known thread blocks.  Assumptions: all blocks do the same work; blocks
are assigned to multiprocessors in turn; each of n multiprocessors has 1/n of the device's arithmetic and bandwidth; it
reaches them if `warps_to_saturate` warps are resident, and proportionally less with fewer warps.  Blocks run in waves
of as many blocks as are resident at one time (the occupancy times the multiprocessors used), and

    seconds = launch overhead + full waves · time of a full wave + time of the last, partial wave.

A wave with k blocks on the busiest multiprocessor takes k times the roofline time of one block at 1/n of the peaks,
divided by the saturation min(1, resident warps / warps_to_saturate).  The model ignores caches, and ignores that one
multiprocessor can use somewhat more than 1/n of an idle memory; `efficiency` can be calibrated.

`roofline_steps` computes the step times of a language model from its architecture and its GPUs.  Each kernel of a step
is bound by arithmetic or by memory (Roofline), and reaches a share of the peak, its efficiency.  With tensor
parallelism each of n = `devices` GPUs has a part of every matrix, and each layer sums partial results twice; a ring sum
moves 2 (n - 1) / n of the results over each link (Shoeybi et al., Megatron-LM, 2019).  Work is assumed to be divided
evenly, and experts to be chosen uniformly and independently.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hetsim.errors import UnknownName
from hetsim.model.described import Frozen, shipped
from hetsim.model.device_type import NO_KEY
from hetsim.model.step_times import RooflineSteps
from hetsim.model.units import Bytes, BytesPerSecond, Fraction, Hertz, Operations, OperationsPerSecond, Seconds
from hetsim.workload.costs.architectures import CONTEXT, Architecture

Whole = Annotated[int, Field(ge=1, strict=True)]


class Peak(Frozen):
    """Peak rates and sizes of a device: one GPU, one CPU core or one CPU socket.

    The fields from `multiprocessors` on describe a GPU's streaming multiprocessors; only `KernelLaunch` needs them.
    """

    flops: OperationsPerSecond
    """Maximum operations per second."""
    bandwidth: BytesPerSecond
    """Maximum bytes per second from and to the device's own memory."""
    matrix_flops: OperationsPerSecond | None = None
    """Maximum operations per second of the matrix units (tensor cores), for dense matrices of 16-bit numbers."""
    fp8_flops: OperationsPerSecond | None = None
    """Maximum operations per second of the matrix units, for 8-bit floating-point numbers."""
    int8_flops: OperationsPerSecond | None = None
    """Maximum operations per second of the matrix units, for 8-bit integers."""
    fp4_flops: OperationsPerSecond | None = None
    """Maximum operations per second of the matrix units, for 4-bit floating-point numbers in blocks of 16 or 32."""
    link: BytesPerSecond | None = None
    """Maximum bytes per second that a GPU sends to the other GPUs of its node: NVLink, or PCIe without NVLink."""
    launch_overhead: Seconds = 0.0
    """Time to start a kernel."""
    memory: Bytes | None = None
    """Bytes of the device's memory; the times do not depend on it."""
    multiprocessors: Whole | None = None
    """Number of streaming multiprocessors; needed to time kernels from their thread blocks."""
    clock: Hertz | None = None
    """Clock frequency; the times do not depend on it."""
    threads: Whole = 2048
    """Maximum number of resident threads per multiprocessor."""
    blocks: Whole = 32
    """Maximum number of resident blocks per multiprocessor."""
    registers: Whole = 65536
    """Number of registers per multiprocessor."""
    shared_memory: Bytes = 49152
    """Bytes of shared memory per multiprocessor."""
    shared_memory_per_block: Bytes = 49152
    """Maximum bytes of shared memory per block."""
    shared_memory_reserved: Bytes = 0
    """Bytes of shared memory that the system reserves for each block, in addition to the block's own."""
    shared_memory_granularity: Bytes = 256
    """Granularity of shared memory: the bytes of a block are rounded up to a multiple of it."""
    threads_per_block: Whole = 1024
    """Maximum number of threads per block."""
    registers_per_thread: Whole = 255
    """Maximum number of registers per thread."""
    warp: Whole = 32
    """Number of threads per warp."""
    register_granularity: Whole = 256
    """Granularity of registers: the number of a warp's registers is rounded up to a multiple of it."""
    warp_granularity: Whole = 4
    """Granularity of warps: the number of a block's warps is rounded up to a multiple of it."""
    warps_to_saturate: Whole = 1
    """Number of resident warps with which a multiprocessor reaches the full rate; 1: any launch reaches it."""

    def _check_keys(self) -> None:
        if self.flops <= 0 or self.bandwidth <= 0:
            raise ValueError("flops and bandwidth must be above 0")

    def matrix_peak(self, arithmetic: str) -> float | None:
        """Return the matrix units' peak rate in a format; if unknown, in a wider format."""
        wider = {"fp4": (self.fp4_flops, self.fp8_flops), "fp8": (self.fp8_flops,), "int8": (self.int8_flops,)}
        return next((one for one in wider.get(arithmetic, ()) if one is not None), self.matrix_flops)

    def check_kv(self, kv: str) -> None:
        """Raise ValueError if the GPU cannot compute with keys and values in format `kv`."""
        if kv == "nvfp4" and self.fp4_flops is None:
            text = "keys and values in nvfp4 need a GPU that computes with 4-bit numbers (fp4_flops), such as b200"
            raise ValueError(f"{text}; give number_format: {{kv: fp8}}")

    @property
    def is_gpu(self) -> bool:
        """True if `multiprocessors` is known: then kernels can be timed by thread blocks."""
        return self.multiprocessors is not None


# Peak rates from public figures; measure your own device where the answer depends on it
DEVICES: dict[str, Peak] = shipped(Peak, __file__, "devices.yaml")


def device(name: str) -> Peak:
    """Return the peak rates of a device in `DEVICES`; raise UnknownName for others."""
    if name not in DEVICES:
        raise UnknownName("device", name, DEVICES)
    return DEVICES[name]


def roofline(
    flops: float, bytes: float, peak: Peak, efficiency: float = 1.0, launch_overhead: float = 0.0, share: float = 1.0
) -> float:
    """Return the seconds of `flops` operations and `bytes` of traffic on a device.

    >>> roofline(19.5e12, 0, DEVICES["a100-40gb"])
    1.0
    """
    _require_share("efficiency", efficiency)
    _require_share("share", share)
    reached = efficiency * share
    return launch_overhead + max(flops / (peak.flops * reached), bytes / (peak.bandwidth * reached))


def _list(value: Any) -> Any:
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


# a whole number, or up to three (x, y, z)
Dimensions = Annotated[list[Whole], Field(min_length=1, max_length=3), BeforeValidator(_list)]


class KernelLaunch(Frozen):
    """Launch configuration of a GPU kernel: `{grid: 16, block: 64}`, up to 3 axes."""

    grid: Dimensions
    """Number of blocks in the grid: one whole number, or one for each of up to three axes."""
    block: Dimensions
    """Number of threads in a block: one whole number, or one for each of up to three axes."""
    registers: Whole = 32
    """Number of registers per thread."""
    shared_memory: Bytes = 0
    """Bytes of shared memory per block."""

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        return math.prod(self.block)


@dataclass(frozen=True)
class KernelOccupancy:
    """Number of resident blocks per multiprocessor, and the resource that limits it."""

    blocks: int
    warps: int
    fraction: float  # resident warps / maximum resident warps of a multiprocessor
    limit: Literal["threads", "blocks", "registers", "shared_memory"]


def occupancy(launch: KernelLaunch, peak: Peak) -> KernelOccupancy:
    """Return resident blocks per multiprocessor, like NVIDIA's occupancy calculator.

    Registers of a warp are rounded up to `register_granularity`, and the number of warps whose registers fit is rounded
    down to a multiple of `warp_granularity`.  ValueError if not even one block fits.
    """
    _require_gpu(peak)
    warps = math.ceil(launch.threads / peak.warp)
    per_warp = _round_up(launch.registers * peak.warp, peak.register_granularity)
    register_warps = peak.registers // per_warp // peak.warp_granularity * peak.warp_granularity
    shared = launch.shared_memory + peak.shared_memory_reserved
    _require_fit("threads in a block", launch.threads, peak.threads_per_block)
    _require_fit("registers per thread", launch.registers, peak.registers_per_thread)
    _require_fit("bytes of shared memory in a block", launch.shared_memory, peak.shared_memory_per_block)
    _require_fit("warps in a block, by their registers,", warps, register_warps)
    limits: dict[Literal["threads", "blocks", "registers", "shared_memory"], int] = {
        "threads": peak.threads // peak.warp // warps,
        "blocks": peak.blocks,
        "registers": register_warps // warps,
    }
    if shared:
        limits["shared_memory"] = peak.shared_memory // _round_up(shared, peak.shared_memory_granularity)
    limit = min(limits, key=lambda name: limits[name])  # the first named, where several bind
    blocks = limits[limit]
    return KernelOccupancy(blocks, blocks * warps, blocks * warps / (peak.threads // peak.warp), limit)


def active_multiprocessors(peak: Peak, share: float = 1.0) -> int:
    """Return the number of whole multiprocessors in a device share, at least one."""
    _require_share("share", share)
    return max(1, math.floor(_require_gpu(peak) * share + 1e-9))


def waves(launch: KernelLaunch, peak: Peak, share: float = 1.0) -> float:
    """Return the number of waves: blocks of the grid / blocks resident at one time."""
    return launch.blocks / (occupancy(launch, peak).blocks * active_multiprocessors(peak, share))


def kernel_time(
    launch: KernelLaunch, flops: float, bytes: float, peak: Peak, efficiency: float = 1.0,
    launch_overhead: float | None = None, share: float = 1.0,
) -> float:  # fmt: skip
    """Return the seconds of a GPU kernel; `flops` and `bytes` are sums of all blocks.

    The module docstring states the model; `launch_overhead` defaults to the device's; `share`: part of the GPU.
    """
    _require_share("efficiency", efficiency)
    multiprocessors = _require_gpu(peak)
    resident, active = occupancy(launch, peak), active_multiprocessors(peak, share)
    alone = roofline(flops, bytes, peak, efficiency) * multiprocessors / launch.blocks
    warps = resident.warps // resident.blocks

    def wave(blocks: int) -> float:
        return blocks * alone / min(1.0, blocks * warps / peak.warps_to_saturate)

    full, rest = divmod(launch.blocks, resident.blocks * active)
    busy = full * wave(resident.blocks) + (wave(math.ceil(rest / active)) if rest else 0.0)
    return (peak.launch_overhead if launch_overhead is None else launch_overhead) + busy


class Work(Frozen):
    """Work to be timed on any device: `{flops: 3 GFLOP, bytes: 200 MB, steps: 1000}`.

    The work is a number of equal steps.  With `launch`, a GPU's time is computed from thread blocks; flops and bytes
    are then the sums over all kernels of a step, each of which has this launch configuration.
    """

    flops: Operations
    """Operations per step."""
    bytes: Bytes = 0
    """Bytes per step that are moved from and to the device's memory."""
    efficiency: Fraction = 1.0
    """Fraction of the device's peak rates that the work reaches."""
    launch_overhead: Seconds | None = None
    """Time to start a kernel. Default: the device's own overhead."""
    steps: Annotated[int, Field(ge=0, strict=True)] = 1
    """Number of equal steps that the work consists of."""
    kernels: Whole = 1
    """Number of kernels per step; each kernel pays the launch overhead."""
    launch: KernelLaunch | None = None
    """Thread blocks of the kernels, from which a GPU's time is computed. Default: computed from flops and bytes
    alone."""
    share: Fraction = 1.0
    """Share of the device that the work demands."""

    def _check_keys(self) -> None:
        _require_share("efficiency", self.efficiency)
        _require_share("share", self.share)

    def step_seconds(self, peak: Peak, share: float | None = None) -> float:
        """Return the seconds of a step on a share of a device (None: the work's share)."""
        share = self.share if share is None else share
        overhead = peak.launch_overhead if self.launch_overhead is None else self.launch_overhead
        if self.launch is None or not peak.is_gpu:
            busy = roofline(self.flops, self.bytes, peak, self.efficiency, share=share)
            return self.kernels * overhead + busy
        flops, bytes = self.flops / self.kernels, self.bytes / self.kernels
        kernel = kernel_time(
            self.launch, flops, bytes, peak=peak, efficiency=self.efficiency, launch_overhead=overhead, share=share
        )
        return self.kernels * kernel

    def parts(self, peak: Peak) -> tuple[float, float, float, float]:
        """Return total seconds of launch overhead, operations, and traffic; total bytes."""
        overhead = self.steps * self.kernels * (
            peak.launch_overhead if self.launch_overhead is None else self.launch_overhead
        )
        bare = {"launch_overhead": 0.0}
        operations = self.model_copy(update={**bare, "bytes": 0}).seconds(peak)
        traffic = self.model_copy(update={**bare, "flops": 0.0}).seconds(peak)
        return overhead, operations, traffic, float(self.steps * self.bytes)

    def seconds(self, peak: Peak, share: float | None = None) -> float:
        return self.steps * self.step_seconds(peak, share)


def _round_up(value: int, granularity: int) -> int:
    return math.ceil(value / granularity) * granularity


def _require_gpu(peak: Peak) -> int:
    if peak.multiprocessors is None:
        raise ValueError("a launch needs a GPU with multiprocessors")
    return peak.multiprocessors


def _require_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1; got {value:g}")


def _require_fit(what: str, wanted: int, most: int) -> None:
    if wanted > most:
        raise ValueError(f"{wanted} {what} exceed the device's {most}")


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Fractions of the peak rates that kernels reach, and latencies of links and host.

    The defaults are medians of fits to published measurements (docs/llm.md reports their errors).
    """

    memory: Fraction = 0.75
    """Fraction of the memory bandwidth that is reached when weights, keys and values are read."""
    compute: Fraction = 0.6
    """Fraction of the matrix units' peak that is reached when tokens are multiplied with weights."""
    attention: Fraction = 0.3
    """Fraction of the matrix units' peak that attention reaches while prompts are read."""
    link: Fraction = 0.6
    """Fraction of the bandwidth between GPUs that is reached."""
    link_latency: Seconds = 10e-6
    """Latency of each sum of partial results over the GPUs; a layer has two such sums."""
    host: Seconds = 0.0
    """Time in which the host launches the kernels of a step; a step takes at least this time."""
    fixed: float = field(default=0.0, metadata=NO_KEY)


def roofline_steps(model: Architecture, gpu: Peak, devices: int, reached: Efficiency) -> RooflineSteps:
    """Return a model's step times on `devices` GPUs that reach these efficiencies.

    `gpu` must state `matrix_flops` and, for several devices, `link`.  ValueError: as `Peak.check_kv`.
    """
    gpu.check_kv(model.number_format.kv)
    fast = gpu.matrix_peak(model.number_format.arithmetic)
    assert gpu.matrix_flops is not None and fast is not None
    read = 1.0 / (devices * gpu.bandwidth * reached.memory)
    peak = devices * gpu.matrix_flops
    multiply = 2.0 / (devices * fast * reached.compute)
    attends = peak * reached.attention
    # A token of context in that of `CONTEXT`: read, or computed where latent attention is bound by it.
    scored = sum(one.decode_operations * one.share(CONTEXT) for one in model.attentions)
    latency = per_token = 0.0
    if devices > 1:
        assert gpu.link is not None
        sums = 2 * model.layers
        latency = sums * reached.link_latency
        per_token = sums * model.hidden * 2.0 * 2.0 * (devices - 1) / devices / (gpu.link * reached.link)
    return RooflineSteps(
        fixed=reached.fixed, host=reached.host, weights=model.dense_bytes * read,
        experts=model.expert_bytes * read,
        expert_share=model.active_experts / model.experts,
        per_token=(model.active_parameters - model.head + model.state_operations / 2) * multiply,
        per_answer=model.head * 2.0 / (peak * reached.compute),
        per_context_token=max(model.read(devices) * read, scored / attends),
        per_pair=model.operations_per_pair / attends, link_latency=latency, link_per_token=per_token,
    )  # fmt: skip
