"""The cost model against hand calculations."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hetsim.errors import UnknownName
from hetsim.workload.costs.roofline import (
    DEVICES,
    KernelLaunch,
    Peak,
    Work,
    device,
    kernel_time,
    occupancy,
    roofline,
    waves,
)

A100 = DEVICES["a100-40gb"]
GPUS = [name for name, peak in DEVICES.items() if peak.is_gpu]
VECTOR_ADDITION = KernelLaunch(grid=16, block=64)
"""1,024 floats in blocks of 64: two loads and a store of 4 bytes, one addition each."""


def test_arithmetic_or_memory_binds():
    """The roof is the lower of the two; the ridge is at peak flops / bandwidth operations a byte."""
    assert roofline(19.5e12, 1.0, A100) == pytest.approx(1.0)
    assert roofline(1.0, 1555e9, A100) == pytest.approx(1.0)


def test_efficiency_share_and_overhead():
    assert roofline(19.5e12, 0, A100, efficiency=0.5, share=0.25, launch_overhead=1.0) == pytest.approx(9.0)


@pytest.mark.parametrize("share", [0, 1.5])
def test_share_must_be_a_share(share):
    with pytest.raises(ValueError, match="share must be above 0 and at most 1"):
        roofline(1, 1, A100, share=share)


def test_peaks_agree_with_cores_and_clock():
    """Two operations a clock in each of 64, 128 or (Kepler) 192 single-precision cores a multiprocessor."""
    for name in GPUS:
        peak = DEVICES[name]
        cores = peak.flops / (2 * peak.clock * peak.multiprocessors)
        assert min(abs(cores - known) / known for known in (64, 128, 192)) < 0.01, name


def test_unknown_device_gets_a_suggestion():
    with pytest.raises(UnknownName, match='unknown device "v10"; did you mean "v100"?'):
        device("v10")


def test_occupancy_limited_by_threads():
    """256 threads are 8 warps; 64 warps / 8 = 8 blocks; 32 registers · 32 = 1,024 a warp allow 64 warps."""
    held = occupancy(KernelLaunch(grid=1000, block=256), A100)
    assert (held.blocks, held.warps, held.fraction, held.limit) == (8, 64, 1.0, "threads")


def test_occupancy_limited_by_blocks():
    """K20: at most 16 blocks of 2 warps are resident, half of its 64 warps."""
    held = occupancy(VECTOR_ADDITION, DEVICES["k20"])
    assert (held.blocks, held.fraction, held.limit) == (16, 0.5, "blocks")


def test_occupancy_limited_by_registers():
    """65 registers · 32 = 2,080, rounded up to 2,304; 65,536 / 2,304 = 28 warps = 3 blocks of 8."""
    held = occupancy(KernelLaunch(grid=1000, block=256, registers=65), A100)
    assert (held.blocks, held.warps, held.limit) == (3, 24, "registers")


def test_occupancy_limited_by_shared_memory():
    """A100: 48 KiB and 1 KiB reserved a block; 164 / 49 = 3 blocks."""
    held = occupancy(KernelLaunch(grid=1000, block=64, shared_memory="48 KiB"), A100)
    assert (held.blocks, held.limit) == (3, "shared_memory")


LIMITS = {
    "flops": "10 TFLOP/s", "bandwidth": "1 TB/s", "multiprocessors": 100, "threads": 1024, "blocks": 8,
    "registers": 32768, "shared_memory": "64 KiB", "shared_memory_per_block": "48 KiB",
    "shared_memory_reserved": "1 KiB", "shared_memory_granularity": "1 KiB", "threads_per_block": 512,
    "registers_per_thread": 128, "warp": 32, "register_granularity": 512, "warp_granularity": 2,
}  # fmt: skip
"""A GPU by all its limits: see the scenario gpu-by-its-limits."""


@pytest.mark.parametrize(("changed", "launch", "blocks"), [
    ({}, {"block": 256, "registers": 16}, 4),  # 1,024 threads / 256
    ({"warp": 64}, {"block": 129, "registers": 16}, 5),  # 3 of 16 warps; with 32 threads a warp 5 of 32
    ({}, {"block": 256, "registers": 100}, 1),  # 3,200 of a warp are 3,584: 9 warps, 8 in twos, a block
    ({"register_granularity": 128}, {"block": 160, "registers": 100}, 2),  # 3,200: 10 warps, 5 a block
    ({"warp_granularity": 16, "registers": 49152}, {"block": 96, "registers": 64}, 5),  # 16 of 24, 3 a block
    ({}, {"block": 64, "registers": 16, "shared_memory": "20 KiB"}, 3),  # 64 KiB / 21 KiB
    ({"shared_memory_granularity": "32 KiB"}, {"block": 64, "registers": 16, "shared_memory": "20 KiB"}, 2),
    ({"shared_memory_reserved": "12 KiB"}, {"block": 64, "registers": 16, "shared_memory": "20 KiB"}, 2),
    ({"blocks": 3}, {"block": 32, "registers": 16}, 3),
])  # fmt: skip
def test_each_limit_of_an_own_gpu_counts(changed, launch, blocks):
    peak = Peak.model_validate(LIMITS | changed)
    assert occupancy(KernelLaunch.model_validate({"grid": 1, **launch}), peak).blocks == blocks


@pytest.mark.parametrize(("launch", "sentence"), [
    ({"block": 513}, "513 threads in a block exceed the device's 512"),
    ({"block": 32, "registers": 129}, "129 registers per thread exceed the device's 128"),
    ({"block": 32, "shared_memory": "49 KiB"}, "50176 bytes of shared memory in a block exceed"),
])  # fmt: skip
def test_limits_of_a_block_of_an_own_gpu(launch, sentence):
    with pytest.raises(ValueError, match=sentence):
        occupancy(KernelLaunch.model_validate({"grid": 1, **launch}), Peak.model_validate(LIMITS))


@pytest.mark.parametrize(
    ("launch", "sentence"),
    [
        ({"grid": 1, "block": 2048}, "2048 threads in a block exceed the device's 1024"),
        ({"grid": 1, "block": 64, "shared_memory": "64 KiB"}, "65536 bytes of shared memory in a block"),
        ({"grid": 1, "block": 1024, "registers": 128}, "warps in a block, by their registers"),
    ],
)
def test_block_that_does_not_fit_is_an_error(launch, sentence):
    with pytest.raises(ValueError, match=sentence):
        occupancy(KernelLaunch.model_validate(launch), DEVICES["gtx1080ti"])


def test_grid_and_block_have_up_to_three_dimensions():
    launch = KernelLaunch(grid=[8, 4], block=[16, 16, 2])
    assert (launch.blocks, launch.threads) == (32, 512)
    with pytest.raises(ValidationError, match="at most 3"):
        KernelLaunch(grid=[1, 1, 1, 1], block=1)


def test_waves_count_resident_blocks():
    """A100: 8 blocks on each of 108 multiprocessors are a wave of 864; on a quarter of them 216."""
    launch = KernelLaunch(grid=1728, block=256)
    assert waves(launch, A100) == 2.0
    assert waves(launch, A100, share=0.25) == 8.0


@pytest.mark.parametrize("name", GPUS)
def test_vector_addition_is_timed_from_its_launch_line(name):
    """16 blocks are less than a wave; the busiest multiprocessor moves its blocks at 1/n of the bandwidth."""
    peak = DEVICES[name]
    assert waves(VECTOR_ADDITION, peak) < 1
    blocks = -(-16 // peak.multiprocessors)
    memory = blocks * 12 * 64 / (peak.bandwidth / peak.multiprocessors)
    time = kernel_time(VECTOR_ADDITION, flops=1024, bytes=12 * 1024, peak=peak)
    assert time == pytest.approx(5e-6 + memory)
    assert time < 5.2e-6


def test_whole_waves_agree_with_the_roofline():
    launch = KernelLaunch(grid=864 * 3, block=256)
    expected = roofline(1e12, 1e9, A100, efficiency=0.7, launch_overhead=5e-6)
    assert kernel_time(launch, 1e12, 1e9, A100, efficiency=0.7) == pytest.approx(expected)


def test_one_block_more_than_a_wave_costs_a_block():
    """The tail: one multiprocessor works on while the others are idle."""
    one = 1e-3 / 864 * 108
    full = kernel_time(KernelLaunch(grid=864, block=256), 19.5e9, 0, A100, launch_overhead=0)
    tail = kernel_time(KernelLaunch(grid=865, block=256), 19.5e9 * 865 / 864, 0, A100, launch_overhead=0)
    assert (full, tail - full) == (pytest.approx(1e-3), pytest.approx(one))


def test_half_the_multiprocessors_take_twice_as_long():
    launch = KernelLaunch(grid=864 * 4, block=256)
    times = [kernel_time(launch, 1e12, 0, A100, launch_overhead=0, share=share) for share in (1, 0.5)]
    assert times[1] == pytest.approx(2 * times[0])


def test_low_occupancy_does_not_hide_latency():
    """With 32 warps needed and 8 resident, a multiprocessor runs at a quarter of its peak."""
    peak = A100.model_copy(update={"warps_to_saturate": 32})
    launch = KernelLaunch(grid=108, block=256)
    fast = kernel_time(launch, 1e9, 0, A100, launch_overhead=0)
    assert kernel_time(launch, 1e9, 0, peak, launch_overhead=0) == pytest.approx(4 * fast)


def test_work_pays_the_overhead_of_every_kernel():
    work = Work(flops="19.5 GFLOP", kernels=10, steps=3)
    assert work.seconds(A100) == pytest.approx(3 * (10 * 5e-6 + 1e-3))
    assert work.seconds(A100, share=0.5) == pytest.approx(3 * (10 * 5e-6 + 2e-3))


def test_work_with_a_launch_is_timed_by_it_on_a_gpu_only():
    work = Work(flops="1024 FLOP", bytes="12288 B", launch={"grid": 16, "block": 64})
    assert work.seconds(A100) == pytest.approx(kernel_time(VECTOR_ADDITION, 1024, 12288, A100))
    assert work.seconds(DEVICES["cpu-core"]) == pytest.approx(12288 / 12e9)


def test_a_launch_needs_a_gpu():
    with pytest.raises(ValueError, match="a launch needs a GPU with multiprocessors"):
        kernel_time(VECTOR_ADDITION, 1, 1, Peak(flops="1 TFLOP/s", bandwidth="1 GB/s"))
