"""Distill measured kernel times into the surfaces that `sim/hetsim/silicon/` ships.

`python -m benchmarks.distil WHEEL` reads the kernel tables of the wheel aiconfigurator-core (Apache-2.0) and writes
`surfaces.parquet`; `--check WHEEL` verifies that the shipped file is what this script makes of that wheel.

A surface is a regular grid of times of one kernel of one engine on one GPU: a row of the Parquet with the names and
points of its axes and log2 of nanoseconds, in steps of 1/512.  Of the tables the newest version of each engine is
taken.  Cells that were not measured are continued in log-log along the axes in turn, with slopes between 0 and 1.2.
`--unmeasured WHEEL` prints how far two rules for what was not measured are from measured times: the continuation of
sparse attention, and experts divided as they were not measured (`hetsim.silicon.kernels`).
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import zipfile
from collections.abc import Iterator
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hetsim.silicon import kernels
from hetsim.silicon.exact import SOURCE
from hetsim.workload.costs import architectures, roofline

OUT = Path(__file__).parents[1] / "sim" / "hetsim" / "silicon" / "surfaces.parquet"
DATA = "aiconfigurator_core/systems/data/"
GPUS = {
    "a100_sxm": "a100-80gb", "l40s": "l40s", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200",
    "b300_sxm": "b300", "gb200": "gb200", "gb300": "gb300",
}  # fmt: skip
ENGINES = ("vllm", "trtllm", "sglang")
STEPS = 512.0
POWERS = [2**i for i in range(18)]
ROWS = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384]
SIDES = [128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 65536]
BATCHES = POWERS[:11]
CONTEXTS = [16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 131072]
PROMPTS = [16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
TOKENS = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384]
SPARSE_HEADS = [kernels.SPARSE_HEADS * 2**i for i in range(5)]
EXPERTS = [
    (2048, 768, 8, 128), (3072, 1536, 8, 256), (4096, 1536, 8, 128), (4096, 1024, 10, 512), (2880, 2880, 4, 128),
    (7168, 2048, 8, 256), (7168, 2048, 8, 384), (6144, 2048, 8, 256), (5120, 8192, 1, 128), (4096, 14336, 2, 8),
    (6144, 16384, 2, 8),
]  # fmt: skip
"""Hidden size, intermediate size, experts of a token, experts."""


def measured(frame: pd.DataFrame, axes: dict[str, list[int]]) -> np.ndarray | None:
    """Log2 of the nanoseconds of a table on a grid, NaN where nothing was measured; None if nothing lies on it."""
    for name, points in axes.items():
        frame = frame[frame[name].isin(points)]
    if frame.empty:
        return None
    values = np.full([len(points) for points in axes.values()], np.nan)
    best = frame.groupby(list(axes))["latency"].min()
    index = [np.searchsorted(points, best.index.get_level_values(name)) for name, points in axes.items()]
    values[tuple(index)] = np.log2(np.maximum(best.to_numpy(), 1e-4) * 1e6)
    return values


def grid(frame: pd.DataFrame, axes: dict[str, list[int]]) -> np.ndarray | None:
    """Log2 of the nanoseconds of a table on a grid, with missing cells continued; None if nothing lies on it."""
    values = measured(frame, axes)
    return None if values is None else continued(values, axes)


def continued(values: np.ndarray, axes: dict[str, list[int]]) -> np.ndarray:
    """Values with missing cells continued along the axes in turn."""
    values = values.copy()
    # Sequences first, since a batch of long contexts is bound by the memory, which a short one measures.
    for axis in sorted(range(values.ndim), key=lambda axis: (axis != values.ndim - 2, -axis)):
        points = np.log2(list(axes.values())[axis])
        for line in lines(np.moveaxis(values, axis, -1)):
            continue_line(line, points)
    return values


def lines(values: np.ndarray) -> Iterator[np.ndarray]:
    """The lines along the last axis, as views."""
    for index in np.ndindex(values.shape[:-1]):
        yield values[index]


def continue_line(line: np.ndarray, points: np.ndarray) -> None:
    """Fill the gaps of a line, and continue it at both ends."""
    there = np.flatnonzero(~np.isnan(line))
    if not len(there) or len(there) == len(line):
        return
    inside = np.isnan(line)
    line[inside] = np.interp(points[inside], points[there], line[there])
    first, last = there[0], there[-1]
    for end, next_, cells in ((first, there[min(1, len(there) - 1)], range(first)),
                              (last, there[max(-2, -len(there))], range(last + 1, len(line)))):
        run = points[end] - points[next_]
        slope = min(1.2, max(0.0, (line[end] - line[next_]) / run)) if run else 0.0
        for cell in cells:
            line[cell] = line[end] + slope * (points[cell] - points[end])


class Wheel:
    """The kernel tables of a wheel, by GPU, kernel and engine."""

    def __init__(self, path: str):
        self.archive = zipfile.ZipFile(path)
        self.names = self.archive.namelist()
        record = next(name for name in self.names if name.endswith(".dist-info/RECORD"))
        self.record = hashlib.sha256(self.archive.read(record)).hexdigest()

    def table(self, gpu: str, kernel: str, engine: str, name: str) -> tuple[str, pd.DataFrame] | None:
        """The newest version of a table, and that version; None if there is none."""
        return next(self.tables(gpu, kernel, engine, name), None)

    def tables(self, gpu: str, kernel: str, engine: str, name: str) -> Iterator[tuple[str, pd.DataFrame]]:
        """All versions of a table, the newest first."""
        pattern = re.compile(f"{re.escape(DATA)}{gpu}/{kernel}/{engine}/([^/]+)/{name}_perf.parquet")
        versions = [match for match in map(pattern.fullmatch, self.names) if match]
        for match in sorted(versions, key=lambda one: version_key(one[1]), reverse=True):
            yield match[1], pd.read_parquet(BytesIO(self.archive.read(match[0])))


def version_key(text: str) -> tuple[int, ...]:
    """Numbers of a version, in order."""
    return tuple(map(int, re.findall(r"\d+", text)))


Row = dict[str, Any]


def surfaces(wheel: Wheel) -> Iterator[Row]:
    """All surfaces of a wheel, in a fixed order."""
    for system, gpu in GPUS.items():
        for engine in ENGINES:
            for made in (matrices, attention, latent, experts, sums, batched, linear, sparse):
                for version, kernel, number_format, shape, axes, values in made(wheel, system, engine):
                    yield {
                        "gpu": gpu, "engine": engine, "version": version, "kernel": kernel, "format": number_format,
                        "shape": list(shape), "axes": [list(map(int, points)) for points in axes.values()],
                        "values": np.rint(values.ravel() * STEPS).astype(np.int16),
                    }  # fmt: skip


Made = Iterator[tuple[str, str, str, tuple[int, ...], dict[str, list[int]], np.ndarray]]


def matrices(wheel: Wheel, gpu: str, engine: str) -> Made:
    """Dense matrices: (m × k) · (k × n)."""
    read = wheel.table(gpu, "gemm", engine, "gemm")
    if read is None:
        return
    version, frame = read
    axes = {"m": ROWS, "n": SIDES, "k": SIDES}
    for number_format, part in frame.groupby("gemm_dtype"):
        values = grid(part, axes)
        if values is not None and number_format in ("bfloat16", "fp8", "fp8_block", "nvfp4"):
            yield version, "matrix", str(number_format), (), axes, values


def attention(wheel: Wheel, gpu: str, engine: str) -> Made:
    """Attention of one layer: decoding by heads, sequences and context; prompts by heads, prompts and their length."""
    for phase in ("generation", "context"):
        read = wheel.table(gpu, "attention", engine, f"{phase}_attention")
        if read is None:
            continue
        version, frame = read
        if "window_size" not in frame:
            frame = frame.assign(window_size=0)
        frame = frame[frame["window_size"].isin((0, 128)) & frame["head_dim"].isin((64, 128, 256))]
        frame = frame[frame["num_heads"] % frame["num_key_value_heads"] == 0]
        frame = frame.assign(share=frame["num_heads"] // frame["num_key_value_heads"], context=frame["step"] + 1)
        for (size, window, number_format), part in frame.groupby(["head_dim", "window_size", "kv_cache_dtype"]):
            if window and size != 64:
                continue
            axes: dict[str, list[int]]
            if phase == "generation":
                axes = {"num_key_value_heads": POWERS[:4], "share": [1, 2, 4, 8, 16], "batch_size": BATCHES,
                        "context": CONTEXTS}  # fmt: skip
            else:
                part = part.loc[part["attn_dtype"] == "bfloat16"]
                axes = {"num_heads": POWERS[:7], "batch_size": [1, 4, 16, 64], "isl": PROMPTS}
            values = grid(part, axes)
            if values is not None:
                kernel = "decode" if phase == "generation" else "prefill"
                yield version, kernel, str(number_format), (int(size), int(window)), axes, values


def latent(wheel: Wheel, gpu: str, engine: str) -> Made:
    """Multi-head latent attention: the module with its projections, or the kernel alone."""
    for phase, short in (("generation", "decode"), ("context", "prefill")):
        batches = BATCHES if phase == "generation" else [1, 4, 16, 64]
        axes = {"num_heads": POWERS[:8], "batch_size": batches}
        axes |= {"step": CONTEXTS} if phase == "generation" else {"isl": PROMPTS}
        read = wheel.table(gpu, "mla", engine, f"mla_{phase}_module")
        if read is not None:
            version, frame = read
            for (number_format, kept), part in frame.groupby(["gemm_type", "kv_cache_dtype"]):
                values = grid(part, axes)
                if values is not None:
                    yield version, f"latent_module_{short}", f"{number_format}/{kept}", (), axes, values
        read = wheel.table(gpu, "mla", engine, f"{phase}_mla")
        if read is not None:
            version, frame = read
            frame = frame.assign(step=frame["step"] + 1)
            for kept, part in frame.groupby("kv_cache_dtype"):
                values = grid(part, axes)
                if values is not None:
                    yield version, f"latent_{short}", str(kept), (), axes, values


def experts(wheel: Wheel, gpu: str, engine: str) -> Made:
    """Experts of one layer, by how they are divided and tokens; tokens choose them unevenly (a power law of 1.2)."""
    seen = set()
    keys = ["hidden_size", "inter_size", "topk", "num_experts"]
    for version, frame in wheel.tables(gpu, "moe", engine, "moe"):
        frame = frame[frame["distribution"] == "power_law_1.2"]
        frame = frame[frame["moe_tp_size"] * frame["moe_ep_size"] <= 8]
        for shape in EXPERTS:
            of_shape = frame[(frame[keys] == list(shape)).all(axis=1)]
            for number_format, part in of_shape.groupby("moe_dtype"):
                for divided, cell in part.groupby(["moe_tp_size", "moe_ep_size"]):
                    key = (shape, number_format, divided)
                    if key in seen:
                        continue
                    axes = {"num_tokens": TOKENS}
                    values = grid(cell, axes)
                    if values is not None:
                        seen.add(key)
                        yield version, "experts", str(number_format), (*shape, *map(int, divided)), axes, values


def sums(wheel: Wheel, gpu: str, engine: str) -> Made:
    """Sums over GPUs by bytes, and other collectives of NCCL (of vLLM only: they are the same for all)."""
    axes = {"num_gpus": [2, 4, 8], "message_size": [2**i for i in range(8, 30)]}
    read = wheel.table(gpu, "comm", engine, "custom_allreduce")
    if read is not None:
        version, frame = read
        values = grid(frame, axes)
        if values is not None:
            yield version, "all_reduce", "bfloat16", (), axes, values
    read = wheel.table(gpu, "comm", "nccl", "nccl") if engine == "vllm" else None
    if read is not None:
        version, frame = read
        for name, part in frame[frame["nccl_dtype"] == "half"].groupby("op_name"):
            values = grid(part, axes)
            if values is not None:
                yield version, f"nccl_{name}", "bfloat16", (), axes, values


def batched(wheel: Wheel, gpu: str, engine: str) -> Made:
    """The two batched products of latent attention where it is no module."""
    read = wheel.table(gpu, "mla_bmm", engine, "mla_bmm")
    if read is None:
        return
    version, frame = read
    axes = {"num_heads": POWERS[:8], "num_tokens": TOKENS}
    for (name, number_format), part in frame.groupby(["op_name", "bmm_dtype"]):
        values = grid(part, axes)
        if values is not None:
            yield version, str(name), str(number_format), (), axes, values


def linear(wheel: Wheel, gpu: str, engine: str) -> Made:
    """Gated delta networks (linear attention): all kernels of one layer by heads, sequences and their length."""
    read = wheel.table(gpu, "linear_attention", engine, "gdn")
    if read is None:
        return
    version, frame = read
    frame = frame[frame["d_model"] == 4096]
    for phase, short in (("generation", "decode"), ("context", "prefill")):
        axes = {"num_v_heads": [8, 16, 32, 64], "batch_size": BATCHES if short == "decode" else [1, 4, 16, 64]}
        axes |= {"seq_len": [1] if short == "decode" else PROMPTS}
        total = None
        for _, part in frame[frame["phase"] == phase].groupby("kernel_source"):
            values = grid(part, axes)
            if values is not None:
                total = values if total is None else np.logaddexp2(total, values)
        if total is not None:
            yield version, f"delta_{short}", "bfloat16", (), axes, total


def sparse(wheel: Wheel, gpu: str, engine: str) -> Made:
    """Attention to tokens that an indexer chooses: the module with all projections, for each measured model.

    Longer contexts, more sequences and more heads never take less time: a shorter time of a larger cell also holds for
    the smaller ones.  TensorRT-LLM has times at exactly 2,048 tokens that are up to three times those of 4,096.
    """
    for phase, short in (("generation", "decode"), ("context", "prefill")):
        seen, name, first = set(), f"dsa_{phase}_module", "step" if phase == "generation" else "isl"
        axes = {"num_heads": SPARSE_HEADS, "batch_size": BATCHES if short == "decode" else BATCHES[:9]}
        axes |= {"step": CONTEXTS} if short == "decode" else {"isl": [*PROMPTS, 32768]}
        for version, frame in wheel.tables(gpu, "sparse_attention", engine, name):
            frame = frame[(frame["op_name"] == name) & ((frame["step"] == 0) | (first == "step"))]
            for key, part in frame.groupby(["architecture", "gemm_type", "kv_cache_dtype"]):
                values = measured(part, axes)
                if key not in seen and values is not None:
                    seen.add(key)
                    least = kernels.never_shorter(np.where(np.isnan(values), np.inf, values))
                    values = np.where(np.isnan(values), np.nan, least)
                    values = longer_contexts(values, axes) if short == "decode" else more_prompts(values, axes)
                    shape = tuple(SOURCE["architectures"][key[0]])
                    yield version, f"sparse_{short}", f"{key[1]}/{key[2]}", shape, axes, kernels.never_shorter(values)


def longer_contexts(values: np.ndarray, axes: dict[str, list[int]]) -> np.ndarray:
    """Decoding with more sequences of longer contexts than were measured: the geometric mean of two bounds.

    The lower bound continues the growth in sequences as it is where they are few.  In the upper bound each sequence
    adds for the longer context what the largest measured number of sequences of that context add, each.
    """
    upper, there = values.copy(), ~np.isnan(values)
    for heads, many, context in np.argwhere(~there):
        fewer, nearer = there[heads, :many, context], there[heads, many, :context]
        if fewer.any() and nearer.any():
            most, last = np.flatnonzero(fewer)[-1], np.flatnonzero(nearer)[-1]
            if there[heads, most, last]:
                more = 2 ** values[heads, most, context] - 2 ** values[heads, most, last]
                each = max(0.0, more) / axes["batch_size"][most]
                total = 2 ** values[heads, many, last] + each * axes["batch_size"][many]
                upper[heads, many, context] = np.log2(total)
    return (continued(values, axes) + continued(upper, axes)) / 2


def more_prompts(values: np.ndarray, axes: dict[str, list[int]]) -> np.ndarray:
    """Prompts of one length take times in proportion to their number, where the host's launches hide them.

    The tables of prompts were measured without a recorded graph: up to some thousand tokens their times are those of
    the launches (0.1 to 3 ms), within a quarter.  Servers have launches too, which the engines' constants include.
    """
    counts, launched = np.log2(axes["batch_size"]), np.nanmin(values) + np.log2(1.25)
    values = values.copy()
    for line in lines(np.moveaxis(values, 1, -1)):
        if (there := np.flatnonzero(~np.isnan(line))).size:
            share = line[there[-1]] + counts - counts[there[-1]]
            line[there[-1] + 1 :] = share[there[-1] + 1 :]
            line[:] = np.where(line <= launched, np.minimum(line, share), line)
    return continued(values, axes)


def made_of(wheel: Wheel) -> bytes:
    """The Parquet of a wheel."""
    rows = list(surfaces(wheel))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    schema = pa.schema([
        ("gpu", pa.string()), ("engine", pa.string()), ("version", pa.string()), ("kernel", pa.string()),
        ("format", pa.string()), ("shape", pa.list_(pa.int32())), ("axes", pa.list_(pa.list_(pa.int32()))),
        ("values", pa.list_(pa.int16())),
    ], metadata={"record": wheel.record, "source": "aiconfigurator-core, Apache-2.0"})  # fmt: skip
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=schema), sink, compression="zstd", compression_level=19)
    return bytes(sink.getvalue())


def unmeasured_contexts(wheel: Wheel) -> pd.DataFrame:
    """Predicted over measured decoding times of sparse attention that SGLang's tables would not contain.

    Those tables end at 262,144 tokens in all sequences; the others do not.
    """
    rows, axes = [], {"num_heads": SPARSE_HEADS, "batch_size": BATCHES, "step": CONTEXTS}
    tokens = np.outer(BATCHES, CONTEXTS)
    for system, engine in product(GPUS, ("vllm", "trtllm")):
        read = wheel.table(system, "sparse_attention", engine, "dsa_generation_module")
        for _, part in read[1].groupby(["architecture", "gemm_type", "kv_cache_dtype"]) if read else ():
            values = measured(part, axes)
            assert values is not None
            least = kernels.never_shorter(np.where(np.isnan(values), np.inf, values))
            kept = np.where(np.isnan(values) | (tokens > 1 << 18), np.nan, least)
            error = 2 ** (longer_contexts(kept, axes) - least)
            for many, context in np.argwhere(tokens > 1 << 18):
                doublings = round(np.log2(tokens[many, context] / (1 << 18)))
                rows += [(doublings, one) for one, there in zip(error[:, many, context], values[:, many, context],
                                                                strict=True) if not np.isnan(there)]  # fmt: skip
    return pd.DataFrame(rows, columns=["tokens / 2^18, log2", "ratio"])


def unmeasured_divisions() -> pd.DataFrame:
    """Predicted over measured times of divided experts, from the same experts undivided and by the two rules."""
    rows, some = [], architectures.model("gpt-oss-120b")
    tables = {key: one for key, one in kernels.surfaces().items() if key[2] == "experts"}
    for key, surface in tables.items():
        gpu, engine, shape = *key[:2], key[4]
        whole = [one for one in tables if one[:4] == key[:4] and one[4][:4] == shape[:4] and one[4][4] == 1]
        if shape[4] == 1 or not whole:
            continue
        divided = kernels.Divided(shape[4] * shape[5], 1, shape[4], shape[5])
        builder = kernels.Builder(some, gpu, roofline.DEVICES[gpu], engine, divided)
        others = {one: builder._divided_by_others(one) for one in whole}
        base = min(whole, key=lambda one: (not others[one], kernels.far(shape[4:], one[4][4:]), one))
        if pairs := others[base]:
            ratios = [tables[one].at(TOKENS) / tables[other].at(TOKENS) for one, other in pairs]
            share = base[4][5] / (shape[4] * shape[5])
            undivided, own = tables[base].at(TOKENS), surface.at(TOKENS)
            by_others = undivided * np.prod(ratios, axis=0) ** (1 / len(ratios)) / own
            rows += [(engine, shape[4], *one) for one in zip(by_others, undivided * share / own, strict=True)]
    return pd.DataFrame(rows, columns=["engine", "tensor parallel", "by other engines", "by weights"])


def unmeasured(wheel: Wheel) -> None:
    """Print the errors of what stands in for kernels that were not measured: medians, and 90 % quantiles."""
    contexts, divisions = unmeasured_contexts(wheel), unmeasured_divisions()
    print("sparse attention, continued: predicted / measured")
    print(contexts.groupby(contexts.columns[0])["ratio"].describe(percentiles=[0.05, 0.5, 0.95]).round(3).to_string())
    rules = ["by other engines", "by weights"]
    divisions[rules] = (divisions[rules] - 1).abs()
    for by in (["engine"], ["engine", "tensor parallel"]):
        print("divided experts: errors,", len(divisions), "times")
        print(divisions.groupby(by)[rules].quantile([0.5, 0.9]).unstack().round(3).to_string())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", help="the wheel aiconfigurator-core")
    parser.add_argument("--check", action="store_true", help="compare with the shipped surfaces, and write nothing")
    parser.add_argument("--unmeasured", action="store_true", help="only print errors of rules for missing kernels")
    given = parser.parse_args()
    wheel = Wheel(given.wheel)
    if given.unmeasured:
        unmeasured(wheel)
        return 0
    made = made_of(wheel)
    print(f"{len(made):,} bytes, RECORD of the wheel {wheel.record}")
    if given.check:
        shipped = pq.read_table(OUT)
        same = pq.read_table(BytesIO(made)).equals(shipped, check_metadata=True)
        print("the shipped surfaces are those of this wheel" if same else "the shipped surfaces differ")
        return 0 if same else 1
    OUT.write_bytes(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
