"""A PyTorch module on this machine, timed with CUDA events; and ResNet-50.

Only this file imports torch, and only `hetsim calibrate` imports this file (needs the extra `calibrate`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hetsim.calibrate.measure import HostDevice

PIPELINE = 12  # batches in a row when two streams are timed; the first two fill the pipeline and do not count


def device_of(model: nn.Module, where: str) -> TorchDevice | HostDevice:
    """Return a device to measure the module on; `where`: cuda, cpu, auto (GPU first)."""
    if where == "auto":
        where = "cuda" if torch.cuda.is_available() else "cpu"
    if (shape := getattr(model, "input_shape", None)) is None:
        raise ValueError("the module must have an attribute input_shape, the shape of one item, such as (3, 224, 224)")
    return TorchDevice(model, tuple(shape)) if where == "cuda" else _on_host(model, tuple(shape))


def _bytes(values: torch.Tensor) -> int:
    return values[0].numel() * values.element_size()


def _on_host(model: nn.Module, shape: tuple[int, ...]) -> HostDevice:
    model.eval()
    items = torch.randn(1, *shape)

    @torch.inference_mode()
    def run(n: int) -> torch.Tensor:
        nonlocal items
        if len(items) < n:
            items = torch.randn(n, *shape)
        result: torch.Tensor = model(items[:n])
        return result

    name = f"CPU, {torch.get_num_threads()} threads of PyTorch {torch.__version__.split('+')[0]}"
    return HostDevice(run, name, _bytes(items), _bytes(run(1)))


class TorchDevice:
    """A PyTorch module measured on a GPU: a stream per stage, two buffers of batches."""

    kind = "gpu"
    memories: tuple[str, ...] = ("pinned", "pageable")

    def __init__(self, model: nn.Module, shape: tuple[int, ...]):
        self.model = model.eval().cuda()
        self.shape = shape
        self.name = torch.cuda.get_device_name()
        self.up, self.work, self.down = (torch.cuda.Stream() for _ in range(3))
        self.room = 0
        self.turn = 0
        self._reserve(1)
        self.bytes_in, self.bytes_out = _bytes(self.inputs[0]), _bytes(self.result)

    def _reserve(self, n: int) -> None:
        if n <= self.room:
            return
        torch.cuda.synchronize()
        pageable = torch.randn(n, *self.shape)
        self.host = {"pageable": pageable, "pinned": pageable.pin_memory()}
        self.inputs = [pageable.cuda(), pageable.cuda()]
        with torch.inference_mode():
            self.result = self.model(self.inputs[0])
        empty = torch.empty(self.result.shape, dtype=self.result.dtype)
        self.results = {"pageable": empty, "pinned": empty.pin_memory()}
        self.landing = [torch.empty_like(empty).pin_memory() for _ in range(2)]
        self.free: list[Any] = [None, None]  # events after which a buffer of inputs may be written again
        torch.cuda.synchronize()
        self.room = n

    @staticmethod
    def _timed(stream: Any, action: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream), torch.inference_mode():
            begin.record()
            action()
            end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def upload(self, n: int, memory: str) -> float:
        self._reserve(n)
        return self._timed(self.up, lambda: self.inputs[0][:n].copy_(self.host[memory][:n], non_blocking=True))

    def compute(self, n: int) -> float:
        self._reserve(n)
        return self._timed(self.work, lambda: self.model(self.inputs[0][:n]))

    def download(self, n: int, memory: str) -> float:
        self._reserve(n)
        return self._timed(self.down, lambda: self.results[memory][:n].copy_(self.result[:n], non_blocking=True))

    def overlapped(self, n: int) -> float:
        ended = [self.submit(n) for _ in range(2)]
        while not ended[0]():
            pass
        begin = time.perf_counter()
        for _ in range(PIPELINE - 2):
            ended.append(self.submit(n))
            while not ended[-2]():  # two in flight
                pass
        while not ended[-1]():
            pass
        return (time.perf_counter() - begin) / (PIPELINE - 1)

    def submit(self, n: int) -> Callable[[], bool]:
        self._reserve(n)
        slot = self.turn = 1 - self.turn
        there, computed, ended = (torch.cuda.Event() for _ in range(3))
        with torch.inference_mode():
            with torch.cuda.stream(self.up):
                if self.free[slot] is not None:
                    self.up.wait_event(self.free[slot])
                self.inputs[slot][:n].copy_(self.host["pinned"][:n], non_blocking=True)
                there.record()
            with torch.cuda.stream(self.work):
                self.work.wait_event(there)
                result = self.model(self.inputs[slot][:n])
                computed.record()
            with torch.cuda.stream(self.down):
                self.down.wait_event(computed)
                self.landing[slot][:n].copy_(result, non_blocking=True)
                result.record_stream(self.down)  # its memory is not reused before it has been copied
                ended.record()
        self.free[slot] = computed
        query: Callable[[], bool] = ended.query
        return query


# A network ------------------------------------------------------------------------------------------------------


def _unit(before: int, after: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)]


class Bottleneck(nn.Module):
    """A residual block of three convolutions with a shortcut connection (ResNet-50)."""

    def __init__(self, before: int, width: int, stride: int):
        super().__init__()
        after = 4 * width
        self.inner = nn.Sequential(
            *_unit(before, width, 1), nn.ReLU(), *_unit(width, width, 3, stride), nn.ReLU(), *_unit(width, after, 1)
        )
        alike = stride == 1 and before == after
        self.around = nn.Identity() if alike else nn.Sequential(*_unit(before, after, 1, stride))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(values) + self.around(values))


class Images(nn.Sequential):
    input_shape = (3, 224, 224)


def resnet50() -> nn.Module:
    """Make ResNet-50 with random weights, for images of 3 × 224 × 224.

    Reference: Deep Residual Learning for Image Recognition (He and others, CVPR 2016).
    """
    torch.manual_seed(0)
    layers: list[nn.Module] = [*_unit(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(Bottleneck(before, width, stride if number == 0 else 1))
            before = 4 * width
    return Images(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))
