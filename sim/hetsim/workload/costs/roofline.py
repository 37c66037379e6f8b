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
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from hetsim.errors import UnknownName
from hetsim.model.described import Described
from hetsim.model.units import Bytes, BytesPerSecond, Fraction, Hertz, Operations, OperationsPerSecond, Seconds

Whole = Annotated[int, Field(ge=1, strict=True)]


class Peak(Described):
    """The peak of a device: one GPU, one CPU core or one CPU socket.

    The fields from `multiprocessors` on describe a GPU's streaming multiprocessors and are needed for
    `KernelLaunch` only. Shared memory and registers are per multiprocessor; `shared_memory_reserved` is what each
    block costs besides its own; `warps_to_saturate` is how many resident warps hide the latencies (1: any
    launch runs at full rate).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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

    @model_validator(mode="after")
    def _check(self) -> Peak:
        if self.flops <= 0 or self.bandwidth <= 0:
            raise ValueError("flops and bandwidth must be above 0")
        return self

    def matrix_peak(self, arithmetic: str) -> float | None:
        """Most operations per second in a format, or in the next wider one it has."""
        wider = {"fp4": (self.fp4_flops, self.fp8_flops), "fp8": (self.fp8_flops,), "int8": (self.int8_flops,)}
        return next((one for one in wider.get(arithmetic, ()) if one is not None), self.matrix_flops)

    @property
    def is_gpu(self) -> bool:
        """Whether the multiprocessors are known, so that launches can be timed."""
        return self.multiprocessors is not None


def _gpu(flops: str, bandwidth: str, memory: str, **limits: Any) -> Peak:
    # 5 us is the usual order of a kernel launch on an idle stream, measured many times on all these
    # generations; no data sheet states it.
    values = {"flops": flops, "bandwidth": bandwidth, "memory": memory, "launch_overhead": "5 us"}
    return Peak.model_validate({**values, **limits})


def _matrix(*peaks: float | None) -> dict[str, Any]:
    """Peaks of matrix units with numbers of 16 bits, FP8, INT8 and FP4, in TFLOP/s."""
    keys = ("matrix_flops", "fp8_flops", "int8_flops", "fp4_flops")
    return {key: f"{value} TFLOP/s" for key, value in zip(keys, peaks, strict=False) if value is not None}


_RESERVED = {"shared_memory_reserved": "1 KiB", "shared_memory_granularity": "128 B"}
_AMPERE = {"shared_memory": "164 KiB", "shared_memory_per_block": "163 KiB", **_RESERVED}
_HOPPER = {"shared_memory": "228 KiB", "shared_memory_per_block": "227 KiB", **_RESERVED}
_SMALL = {"threads": 1536, "shared_memory": "100 KiB", "shared_memory_per_block": "99 KiB", **_RESERVED}
"""Limits of compute capabilities 8.0, 9.0, and 8.6 or 8.9."""

DEVICES: dict[str, Peak] = {
    # Single-precision peak at boost clock, without tensor cores, from NVIDIA's data sheets and architecture
    # white papers (named per line); limits per multiprocessor from the table "Technical Specifications per
    # Compute Capability" of the CUDA C++ Programming Guide (K20: of its release 11, the last that lists
    # 3.5).
    # Of the matrix units the peak with dense matrices, from the same sources; of links one direction:
    # all NVLinks of a GPU together, or PCIe (16 GB/s of generation 3, 32 of 4, 64 of 5) where it has none.
    # GeForce GTX 1080 Ti product page; compute capability 6.1.
    "gtx1080ti": _gpu(
        "11.34 TFLOP/s", "484 GB/s", "11 GB", multiprocessors=28, clock="1.582 GHz", shared_memory="96 KiB"
    ),
    # Tesla K20 board specification BD-06455; white paper "Kepler GK110"; compute capability 3.5.
    "k20": _gpu("3.52 TFLOP/s", "208 GB/s", "5 GB", multiprocessors=13, clock="0.706 GHz", blocks=16),
    # White paper "NVIDIA Tesla P100" (SXM2); compute capability 6.0, two partitions a multiprocessor.
    "p100": _gpu(
        "10.6 TFLOP/s", "732 GB/s", "16 GB", multiprocessors=56, clock="1.48 GHz", shared_memory="64 KiB",
        warp_granularity=2,
        matrix_flops="21.2 TFLOP/s", link="80 GB/s",
    ),
    # White paper "NVIDIA Tesla V100 GPU architecture" (SXM2, 16 GB); compute capability 7.0.
    "v100": _gpu(
        "15.7 TFLOP/s", "900 GB/s", "16 GB", multiprocessors=80, clock="1.53 GHz", matrix_flops="125 TFLOP/s",
        link="150 GB/s",
        shared_memory="96 KiB", shared_memory_per_block="96 KiB",
    ),
    # White paper "NVIDIA Turing GPU architecture" (Tesla T4); compute capability 7.5.
    "t4": _gpu(
        "8.1 TFLOP/s", "320 GB/s", "16 GB", multiprocessors=40, clock="1.59 GHz",
        threads=1024, blocks=16, shared_memory="64 KiB", shared_memory_per_block="64 KiB",
        **_matrix(65, None, 130), link="16 GB/s",
    ),
    # White paper "NVIDIA A100 Tensor Core GPU architecture" (SXM4, 40 GB); compute capability 8.0.
    "a100-40gb": _gpu(
        "19.5 TFLOP/s", "1555 GB/s", "40 GB", multiprocessors=108, clock="1.41 GHz", **_matrix(312, None, 624),
        link="300 GB/s", **_AMPERE
    ),
    # The same with more and faster memory: data sheet "NVIDIA A100 80GB" (SXM).
    "a100-80gb": _gpu(
        "19.5 TFLOP/s", "2039 GB/s", "80 GB", multiprocessors=108, clock="1.41 GHz", **_matrix(312, None, 624),
        link="300 GB/s", **_AMPERE
    ),
    # Data sheet "NVIDIA A10G" (the A10 of a cloud provider, with slower tensor cores), without its multiprocessors.
    "a10g": Peak(flops="31.5 TFLOP/s", bandwidth="600 GB/s", memory="24 GB", launch_overhead="5 us",
                 matrix_flops="70 TFLOP/s", link="32 GB/s"),
    # Data sheet "NVIDIA A10"; compute capability 8.6.
    "a10": _gpu(
        "31.2 TFLOP/s", "600 GB/s", "24 GB", multiprocessors=72, clock="1.695 GHz", **_matrix(125, None, 250),
        link="32 GB/s", **_SMALL,
        blocks=16,
    ),
    # Data sheet "NVIDIA RTX A6000"; compute capability 8.6.
    "rtx-a6000": _gpu(
        "38.7 TFLOP/s", "768 GB/s", "48 GB", multiprocessors=84, clock="1.8 GHz", **_matrix(154.8, None, 309.7),
        link="56 GB/s", **_SMALL,
        blocks=16,
    ),
    # White paper "NVIDIA Ada GPU architecture", data sheets; compute capability 8.9.
    "rtx4090": _gpu(
        "82.6 TFLOP/s", "1008 GB/s", "24 GB", multiprocessors=128, clock="2.52 GHz", **_matrix(165.2, 330.3, 660.6),
        link="32 GB/s", **_SMALL,
        blocks=24,
    ),
    "l4": _gpu(
        "30.3 TFLOP/s", "300 GB/s", "24 GB", multiprocessors=58, clock="2.04 GHz", **_matrix(121, 242, 242),
        link="32 GB/s", **_SMALL,
        blocks=24,
    ),
    "l40s": _gpu(
        "91.6 TFLOP/s", "864 GB/s", "48 GB", multiprocessors=142, clock="2.52 GHz", **_matrix(362, 733, 733),
        link="32 GB/s", **_SMALL,
        blocks=24,
    ),
    # White paper "NVIDIA H100 Tensor Core GPU architecture", data sheet; compute capability 9.0. Without a suffix SXM5.
    "h100": _gpu(
        "66.9 TFLOP/s", "3350 GB/s", "80 GB", multiprocessors=132, clock="1.98 GHz", **_matrix(989, 1979, 1979),
        link="450 GB/s", **_HOPPER
    ),
    "h100-pcie": _gpu(
        "51.2 TFLOP/s", "2000 GB/s", "80 GB", multiprocessors=114, clock="1.755 GHz", **_matrix(756, 1513, 1513),
        link="64 GB/s", **_HOPPER
    ),
    # Data sheet "NVIDIA H200" (SXM); compute capability 9.0.
    "h200": _gpu(
        "66.9 TFLOP/s", "4800 GB/s", "141 GB", multiprocessors=132, clock="1.98 GHz", **_matrix(989, 1979, 1979),
        link="450 GB/s", **_HOPPER
    ),
    # Hopper for China, from the tables of its sellers (NVIDIA publishes no data sheet); its clock is not stated there.
    "h20": _gpu("44 TFLOP/s", "4000 GB/s", "96 GB", link="450 GB/s", **_matrix(148, 296, 296)),
    # Data sheets "NVIDIA HGX B200", "HGX B300", "GB200 NVL72" and "GB300 NVL72", divided by their GPUs, and by
    # two where they count zeros that are left out, without multiprocessors. Memory of the B300s as drivers report it.
    # Blackwell Ultra has few units for whole numbers.
    "b200": _gpu("75 TFLOP/s", "8000 GB/s", "180 GB", link="900 GB/s", **_matrix(2250, 4500, 4500, 9000)),
    "b300": _gpu("75 TFLOP/s", "7750 GB/s", "288 GB", link="900 GB/s", **_matrix(2250, 4500, 153.5, 14000)),
    "gb200": _gpu("80 TFLOP/s", "8000 GB/s", "186 GB", link="900 GB/s", **_matrix(2500, 5000, 5000, 10000)),
    "gb300": _gpu("80 TFLOP/s", "8000 GB/s", "288 GB", link="900 GB/s", **_matrix(2500, 5000, 165, 15000)),
    # Data sheets "AMD Instinct MI300X", "MI325X" and "MI355X"; their compute units are not multiprocessors as in
    # `KernelLaunch`. Of seven links to the other GPUs of a node one direction.
    "mi300x": _gpu("163.4 TFLOP/s", "5300 GB/s", "192 GB", link="448 GB/s", **_matrix(1307, 2615, 2615)),
    "mi325x": _gpu("163.4 TFLOP/s", "6000 GB/s", "256 GB", link="448 GB/s", **_matrix(1307, 2615, 2615)),
    "mi355x": _gpu("157.3 TFLOP/s", "8000 GB/s", "288 GB", link="537 GB/s", **_matrix(2517, 5033, 5033, 10066)),
    # A generic core with AVX2: 3 GHz × two fused multiply-adds × 8 lanes × 2 operations; the bandwidth that
    # one core can draw is limited by its outstanding cache misses, typically to about 12 GB/s.
    "cpu-core": Peak(flops="96 GFLOP/s", bandwidth="12 GB/s", clock="3 GHz"),
    # Intel Xeon Gold 6130 (16 cores, 1.9 GHz with all cores in AVX-512, two units of 16 lanes; six channels
    # of DDR4-2666): 16 × 1.9 GHz × 64 operations; Intel ARK and the specification update 336065.
    "xeon-socket": Peak(flops="1946 GFLOP/s", bandwidth="128 GB/s", clock="1.9 GHz"),
}  # fmt: skip
"""Peaks of devices from public figures; measure your own where the answer depends on them."""


def device(name: str) -> Peak:
    """The peak of a device in `DEVICES`; UnknownName with a suggestion otherwise."""
    if name not in DEVICES:
        raise UnknownName("device", name, DEVICES)
    return DEVICES[name]


def roofline(
    flops: float,
    bytes: float,
    peak: Peak,
    efficiency: float = 1.0,
    launch_overhead: float = 0.0,
    share: float = 1.0,
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


class KernelLaunch(Described):
    """The launch line of a GPU kernel: `{grid: 16, block: 64}`, up to 3 dimensions.

    `registers` are per thread, `shared_memory` is per block.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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
        """Thread blocks in the grid."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads in a block."""
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
    """Blocks of the grid / resident blocks; 2.5 is two full waves and a half one."""
    return launch.blocks / (occupancy(launch, peak).blocks * active_multiprocessors(peak, share))


def kernel_time(
    launch: KernelLaunch,
    flops: float,
    bytes: float,
    peak: Peak,
    efficiency: float = 1.0,
    launch_overhead: float | None = None,
    share: float = 1.0,
) -> float:
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


class Work(Described):
    """Work to time on any device: `{flops: 3 GFLOP, bytes: 200 MB, steps: 1000}`.

    flops, bytes, `kernels` and `launch` are of one step.  A step of several kernels pays the launch
    overhead for each; `launch_overhead` defaults to the device's.  With `launch`, a GPU is timed from its
    thread blocks, and flops and bytes are those of all kernels of the step together, alike in their launch
    line.  `share` is the share of the device that the work demands.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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

    @model_validator(mode="after")
    def _check(self) -> Work:
        _require_share("efficiency", self.efficiency)
        _require_share("share", self.share)
        return self

    def step_seconds(self, peak: Peak, share: float | None = None) -> float:
        """Seconds of one step on a device, or on another share of it than the work's own."""
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
        """Seconds of launching, of operations and of traffic alone, and the bytes."""
        overhead = self.steps * self.kernels * (
            peak.launch_overhead if self.launch_overhead is None else self.launch_overhead
        )
        bare = {"launch_overhead": 0.0}
        operations = self.model_copy(update={**bare, "bytes": 0}).seconds(peak)
        traffic = self.model_copy(update={**bare, "flops": 0.0}).seconds(peak)
        return overhead, operations, traffic, float(self.steps * self.bytes)

    def seconds(self, peak: Peak, share: float | None = None) -> float:
        """Seconds of all steps."""
        return self.steps * self.step_seconds(peak, share)


def _round_up(value: int, granularity: int) -> int:
    return math.ceil(value / granularity) * granularity


def _require_gpu(peak: Peak) -> int:
    if peak.multiprocessors is None:
        raise ValueError("a launch needs a device with multiprocessors, a GPU")
    return peak.multiprocessors


def _require_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, not {value:g}")


def _require_fit(what: str, wanted: int, most: int) -> None:
    if wanted > most:
        raise ValueError(f"{wanted} {what} are more than the device's {most}")
