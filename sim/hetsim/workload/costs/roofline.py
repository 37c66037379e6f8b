"""A cost model: from work (operations and bytes) to seconds.

`roofline` is the model of Williams, Waterman, Patterson (Roofline, CACM 2009): a kernel is bound either by
arithmetic or by memory traffic,

    seconds = launch overhead + max(flops / (peak flops · e · s), bytes / (bandwidth · e · s)),

with e the efficiency reached and s the share of the device.

`KernelLaunch` refines it for a GPU kernel with known thread blocks.  Stated assumptions: all blocks do the same
work; blocks are dealt out one to each multiprocessor in turn; a multiprocessor has 1/n of the device's
arithmetic and of its bandwidth; it reaches them if `warps_to_saturate` warps are resident, and
proportionally less below that.  Then with B blocks resident on each of S multiprocessors (the occupancy)

    seconds = launch overhead + full waves · time of a full wave + time of the last, partial wave,

where a wave of k blocks on the busiest multiprocessor takes k · max(flops, bytes of a block over 1/n of the
peaks), divided by the saturation min(1, resident warps / warps_to_saturate).  The model knows neither
caches, nor that one multiprocessor can draw somewhat more than its part of an otherwise idle memory;
`efficiency` is there to calibrate.

`roofline_steps` makes the steps of a language model from figures of its architecture and its GPUs.
Each kernel of a step is bound by arithmetic or by memory (Williams, Waterman and Patterson, Roofline, CACM 2009), and
reaches a share of the peak, its efficiency.  With tensor parallelism each of `devices` GPUs has its part of every
matrix, and each layer adds up partial results twice; a ring moves 2 (n - 1) / n of them over each link (Shoeybi et al.,
Megatron-LM, 2019).  Work is thought to be divided evenly, and experts to be chosen evenly and independently.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hetsim.errors import UnknownName
from hetsim.model.cluster import NO_KEY
from hetsim.model.described import Frozen, shipped
from hetsim.model.step_times import RooflineSteps
from hetsim.model.units import Bytes, BytesPerSecond, Fraction, Hertz, Operations, OperationsPerSecond, Seconds
from hetsim.workload.costs.architectures import CONTEXT, Architecture

Whole = Annotated[int, Field(ge=1, strict=True)]


class Peak(Frozen):
    """The peak of a device: one GPU, one CPU core or one CPU socket.

    The fields from `multiprocessors` on describe a GPU's streaming multiprocessors and are needed for
    `KernelLaunch` only. Shared memory and registers are per multiprocessor; `shared_memory_reserved` is what each
    block costs besides its own; `warps_to_saturate` is how many resident warps hide the latencies (1: any
    launch runs at full rate).
    """

    flops: OperationsPerSecond
    """Most operations per second."""
    bandwidth: BytesPerSecond
    """Most bytes per second from and to its own memory."""
    matrix_flops: OperationsPerSecond | None = None
    """Most operations per second of its matrix units (tensor cores) with dense matrices of 16-bit numbers."""
    fp8_flops: OperationsPerSecond | None = None
    """The same with floating-point numbers of 8 bits."""
    int8_flops: OperationsPerSecond | None = None
    """The same with whole numbers of 8 bits."""
    fp4_flops: OperationsPerSecond | None = None
    """The same with floating-point numbers of 4 bits, which have a scale for every 16 or 32."""
    link: BytesPerSecond | None = None
    """Most bytes per second that it sends to the other GPUs of its node: NVLink, or PCIe without it."""
    launch_overhead: Seconds = 0.0
    """Time to start a kernel."""
    memory: Bytes | None = None
    """Bytes of its memory; the times do not depend on it."""
    multiprocessors: Whole | None = None
    """Streaming multiprocessors; needed to time kernels from their thread blocks."""
    clock: Hertz | None = None
    """Clock frequency; the times do not depend on it."""
    threads: Whole = 2048
    """Most resident threads of a multiprocessor."""
    blocks: Whole = 32
    """Most resident blocks of a multiprocessor."""
    registers: Whole = 65536
    """Registers of a multiprocessor."""
    shared_memory: Bytes = 49152
    """Shared memory of a multiprocessor, in bytes."""
    shared_memory_per_block: Bytes = 49152
    """Most shared memory of a block, in bytes."""
    shared_memory_reserved: Bytes = 0
    """Shared memory that each block costs besides its own."""
    shared_memory_granularity: Bytes = 256
    """Shared memory is given in multiples of this, in bytes."""
    threads_per_block: Whole = 1024
    """Most threads of a block."""
    registers_per_thread: Whole = 255
    """Most registers of a thread."""
    warp: Whole = 32
    """Threads of a warp."""
    register_granularity: Whole = 256
    """Registers of a warp are given in multiples of this."""
    warp_granularity: Whole = 4
    """Warps are given in multiples of this."""
    warps_to_saturate: Whole = 1
    """Resident warps that reach the full rate; with 1 any launch does."""

    def _check_keys(self) -> None:
        if self.flops <= 0 or self.bandwidth <= 0:
            raise ValueError("flops and bandwidth must be above 0")

    def matrix_peak(self, arithmetic: str) -> float | None:
        """Maximum operations per second in a format, or the next wider one."""
        wider = {"fp4": (self.fp4_flops, self.fp8_flops), "fp8": (self.fp8_flops,), "int8": (self.int8_flops,)}
        return next((one for one in wider.get(arithmetic, ()) if one is not None), self.matrix_flops)

    @property
    def is_gpu(self) -> bool:
        """Return True if multiprocessors are known, so launches can be timed."""
        return self.multiprocessors is not None


DEVICES: dict[str, Peak] = shipped(Peak, __file__, "devices.yaml")
"""Peaks of devices from public figures; measure your own where the answer depends on them."""


def device(name: str) -> Peak:
    """The peak of a device in `DEVICES`; UnknownName with a suggestion otherwise."""
    if name not in DEVICES:
        raise UnknownName("device", name, DEVICES)
    return DEVICES[name]


def roofline(
    flops: float, bytes: float, peak: Peak, efficiency: float = 1.0, launch_overhead: float = 0.0, share: float = 1.0
) -> float:
    """Seconds for `flops` operations and `bytes` of traffic on a share of a device.

    >>> roofline(19.5e12, 0, DEVICES["a100-40gb"])
    1.0
    """
    _require_share("efficiency", efficiency)
    _require_share("share", share)
    reached = efficiency * share
    return launch_overhead + max(flops / (peak.flops * reached), bytes / (peak.bandwidth * reached))


def _list(value: Any) -> Any:
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


Dimensions = Annotated[list[Whole], Field(min_length=1, max_length=3), BeforeValidator(_list)]
"""A whole number, or up to three (x, y, z)."""


class KernelLaunch(Frozen):
    """The launch line of a GPU kernel: `{grid: 16, block: 64}`, up to 3 dimensions.

    `registers` are per thread, `shared_memory` is per block.
    """

    grid: Dimensions
    """Blocks of the grid: a whole number, or up to three."""
    block: Dimensions
    """Threads of a block: a whole number, or up to three."""
    registers: Whole = 32
    """Registers of a thread."""
    shared_memory: Bytes = 0
    """Shared memory of a block."""

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        return math.prod(self.block)


@dataclass(frozen=True)
class KernelOccupancy:
    """Resident blocks of a launch on a multiprocessor, and the limit that binds."""

    blocks: int
    warps: int
    fraction: float
    """Resident warps as a share of the most a multiprocessor can hold."""
    limit: Literal["threads", "blocks", "registers", "shared_memory"]


def occupancy(launch: KernelLaunch, peak: Peak) -> KernelOccupancy:
    """Resident blocks per multiprocessor, as NVIDIA's occupancy calculator does.

    Registers are allocated by warp and rounded up to the granularity, and warps to whole groups.
    ValueError if not even one block fits.
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
    """Whole multiprocessors in a share of the device, at least one."""
    _require_share("share", share)
    return max(1, math.floor(_require_gpu(peak) * share + 1e-9))


def waves(launch: KernelLaunch, peak: Peak, share: float = 1.0) -> float:
    """Blocks of the grid / resident blocks: 2.5 is two and a half waves."""
    return launch.blocks / (occupancy(launch, peak).blocks * active_multiprocessors(peak, share))


def kernel_time(
    launch: KernelLaunch, flops: float, bytes: float, peak: Peak, efficiency: float = 1.0,
    launch_overhead: float | None = None, share: float = 1.0,
) -> float:  # fmt: skip
    """Seconds of a GPU kernel that does `flops` and moves `bytes` in all blocks.

    The model is that of the module docstring; `launch_overhead` defaults to the device's.
    """
    _require_share("efficiency", efficiency)
    multiprocessors = _require_gpu(peak)
    resident, active = occupancy(launch, peak), active_multiprocessors(peak, share)
    alone = roofline(flops, bytes, peak, efficiency) * multiprocessors / launch.blocks
    warps = resident.warps // resident.blocks

    def wave(blocks: int) -> float:
        """Time until a multiprocessor has finished this number of blocks."""
        return blocks * alone / min(1.0, blocks * warps / peak.warps_to_saturate)

    full, rest = divmod(launch.blocks, resident.blocks * active)
    busy = full * wave(resident.blocks) + (wave(math.ceil(rest / active)) if rest else 0.0)
    return (peak.launch_overhead if launch_overhead is None else launch_overhead) + busy


class Work(Frozen):
    """Work to time on any device: `{flops: 3 GFLOP, bytes: 200 MB, steps: 1000}`.

    flops, bytes, `kernels` and `launch` are of one step.  A step of several kernels pays the launch
    overhead for each; `launch_overhead` defaults to the device's.  With `launch`, a GPU is timed from its
    thread blocks, and flops and bytes are those of all kernels of the step together, alike in their launch
    line.  `share` is the share of the device that the work demands.
    """

    flops: Operations
    """Operations of one step."""
    bytes: Bytes = 0
    """Bytes that one step moves from and to the device's memory."""
    efficiency: Fraction = 1.0
    """Share of the device's best rates that is reached."""
    launch_overhead: Seconds | None = None
    """Time to start a kernel; the device's own unless given."""
    steps: Annotated[int, Field(ge=0, strict=True)] = 1
    """Number of steps."""
    kernels: Whole = 1
    """Kernels in a step, each of which pays the launch overhead."""
    launch: KernelLaunch | None = None
    """Thread blocks of the kernels, from which a GPU is timed; not used unless given."""
    share: Fraction = 1.0
    """Share of the device that the work demands."""

    def _check_keys(self) -> None:
        _require_share("efficiency", self.efficiency)
        _require_share("share", self.share)

    def step_seconds(self, peak: Peak, share: float | None = None) -> float:
        """Seconds of one step on a device, or on another share of it."""
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
        """Seconds of launching, operations and traffic alone, and the bytes."""
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
    """Shares of the peaks that kernels reach, and times that no data sheet states.

    The shares are medians of what was fitted to published measurements (docs/llm.md says how far off they are).
    """

    memory: Fraction = 0.75
    """Share of the memory bandwidth that is reached when weights, keys and values are read."""
    compute: Fraction = 0.6
    """Share of the peak of the matrix units reached when tokens are multiplied with weights."""
    attention: Fraction = 0.3
    """Share of that peak that attention reaches while prompts are read."""
    link: Fraction = 0.6
    """Share of the bandwidth between the GPUs that is reached."""
    link_latency: Seconds = 10e-6
    """Time once for each sum over the GPUs, of which a layer has two."""
    host: Seconds = 0.0
    """Time in which the host issues the kernels of a step, which is no shorter."""
    fixed: float = field(default=0.0, metadata=NO_KEY)


def roofline_steps(model: Architecture, gpu: Peak, devices: int, reached: Efficiency) -> RooflineSteps:
    """Step times of a model on some GPUs of a node; needs `matrix_flops` and `link`."""
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
        experts=model.experts * model.expert * model.expert_width * read,
        expert_share=model.active_experts / model.experts,
        per_token=(model.active_parameters - model.head + model.state_operations / 2) * multiply,
        per_answer=model.head * 2.0 / (peak * reached.compute),
        per_context_token=max(model.read(devices) * read, scored / attends),
        per_pair=model.operations_per_pair / attends, link_latency=latency, link_per_token=per_token,
    )  # fmt: skip
