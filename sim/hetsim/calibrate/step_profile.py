"""Step times of a language model, measured by setting, as a service profile.

Each row of such a file is a setting: a number of requests in a batch, with their prompt and output tokens, the time of
the step that read all prompts, and the mean time of the decoding steps.  Rows with the same setting are repeats; the
median is used.  The published profiles of Splitwise (Patel et al., ISCA 2024) have this form.

Decoding takes f(sequences) + slope · context.  The slope is a weighted regression with one intercept for each number of
sequences; f is a shape of `hetsim.calibrate.shapes`.  The time to read prompts is also such a shape, of the number of
tokens; the shape `powers` adds powers of this number to the time of the shortest step, since any step reads all
weights.  Each size is left out in turn, and predicted from the other sizes, with the slope fitted without it.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.calibrate.shapes import JudgedShape, Shaped, shaped
from hetsim.workload.mapped.picked_columns import PickedColumns

PROMPT = ("prompt_size", "prompt_tokens", "prompt", "input_tokens", "input_len")
BATCH = ("batch_size", "batch", "sequences", "num_seqs")
OUTPUT = ("token_size", "output_tokens", "output", "output_len")
PREFILL = ("prompt_time", "prefill_time", "prefill", "ttft")
DECODE = ("token_time", "decode_time", "decode", "tpot", "tbt")
NEEDED = (PROMPT, BATCH, PREFILL, DECODE)  # columns that identify a profile of steps
# Columns that must have one value in a profile
SERVER = ("model", "hardware", "gpu", "device", "accelerator", "tensor_parallel", "tensor_parallel_size", "tp", "dtype",
          "quantization", "engine", "framework")  # fmt: skip
FALLS = 0.5  # a step faster than this share of a smaller step was not measured completely


@dataclass(frozen=True)
class MeasuredSetting:
    prompt: int
    batch: int
    output: int
    prefill: float
    decode: float

    @property
    def context(self) -> float:
        """Total context of all sequences, in tokens, averaged over the decoding steps."""
        return self.batch * (self.prompt + self.output / 2)


@dataclass
class StepProfile:
    what: str
    prefill: Shaped
    decode: Shaped
    per_context_token: float
    remarks: list[str] = field(default_factory=list)


def read(path: Path, unit: str | None, where: Mapping[str, Any]) -> list[MeasuredSetting]:
    """Read settings from the rows that match `where`; a ScenarioError names the line."""
    columns = PickedColumns(path, where)
    prompt, batch = columns.whole_numbers(PROMPT), columns.whole_numbers(BATCH)
    output = columns.whole_numbers(OUTPUT) if columns.has(OUTPUT) else None
    prefill, decode = columns.seconds(PREFILL, unit), columns.seconds(DECODE, unit)
    columns.done()
    columns.one_each(SERVER, "servers")
    repeats: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for row in range(len(prompt)):
        key = prompt[row], batch[row], 1 if output is None else output[row]
        repeats[key].append((prefill[row], decode[row]))
    return [
        MeasuredSetting(*key, statistics.median(one for one, _ in times), statistics.median(one for _, one in times))
        for key, times in sorted(repeats.items())
    ]


def slope(settings: list[MeasuredSetting]) -> float:
    """Fit the seconds per context token: one slope, an intercept for each batch size."""
    above = below = 0.0
    for batch in {one.batch for one in settings}:
        mine = [one for one in settings if one.batch == batch]
        context = np.array([one.context for one in mine])
        seconds = np.array([one.decode for one in mine])
        weight = seconds**-2
        x, y = (values - np.average(values, weights=weight) for values in (context, seconds))
        above += float((weight * x * y).sum())
        below += float((weight * x * x).sum())
    return max(0.0, above / below) if below > 0 else 0.0


def _by_sequences(settings: list[MeasuredSetting], each: float) -> dict[int, float]:
    return _medians((one.batch, max(one.decode - each * one.context, 0.05 * one.decode)) for one in settings)


def _medians(pairs: Iterable[tuple[int, float]]) -> dict[int, float]:
    times: dict[int, list[float]] = defaultdict(list)
    for size, seconds in pairs:
        times[size].append(seconds)
    return {size: statistics.median(times[size]) for size in sorted(times)}


def _without_falls(prefill: dict[int, float]) -> tuple[dict[int, float], list[int]]:
    """Drop times < `FALLS` × a smaller size's; return kept times and dropped sizes."""
    kept: dict[int, float] = {}
    fallen = []
    for tokens, seconds in prefill.items():
        if kept and seconds < FALLS * max(kept.values()):
            fallen.append(tokens)
        else:
            kept[tokens] = seconds
    return kept, fallen


def fit(what: str, settings: list[MeasuredSetting], wanted: str | None = None) -> StepProfile:
    """Fit how long a language model takes to read prompts and to decode, by size.

    wanted: shape of the curves (line, broken line, powers, table); None: the shape with the least validation error.
    """
    prefill, fallen = _without_falls(_medians((one.prompt * one.batch, one.prefill) for one in settings))
    remarks = []
    if fallen:
        sizes = ", ".join(f"{tokens:,}" for tokens in fallen)
        text = f"steps that read {sizes} tokens take less than half the time of smaller steps"
        remarks.append(f"{text}: their measurement is incomplete, so these settings are left out")
        settings = [one for one in settings if one.prompt * one.batch not in fallen]
    each = slope(settings)
    sequences = _by_sequences(settings, each)
    floor = min(min(sequences.values()), min(prefill.values()))
    decode = shaped(tuple(sequences), tuple(sequences.values()), None if wanted == "powers" else wanted)
    decode.judged = [_judged(settings, one.shape) for one in decode.judged]
    read = shaped(tuple(prefill), tuple(prefill.values()), wanted, floor)
    for one in (read, decode) if wanted is None else ():
        # The shape with the smallest error: steps have no simple shape.
        best = min(one.judged, key=lambda judged: judged.error).shape if one.judged else one.chosen
        if best != one.chosen:
            again = shaped(one.sizes, one.seconds, best, one.floor)
            one.chosen, one.knots, one.line = again.chosen, again.knots, again.line
    if not each:
        remarks.append("longer context makes steps no longer, or only one context was measured: context costs 0 s")
    return StepProfile(what, read, decode, per_context_token=each, remarks=remarks)


def _judged(settings: list[MeasuredSetting], shape: str) -> JudgedShape:
    errors: dict[int, float] = {}
    for batch in sorted({one.batch for one in settings}):
        rest = [one for one in settings if one.batch != batch]
        each = slope(rest)
        times_of_rest = _by_sequences(rest, each)
        base = shaped(tuple(times_of_rest), tuple(times_of_rest.values()), shape).seconds_at(batch)
        mine = [one for one in settings if one.batch == batch]
        errors[batch] = statistics.mean(abs((base + each * one.context) / one.decode - 1) for one in mine)
    values = list(errors.values())
    worst = max(errors, key=lambda batch: errors[batch])
    scatter = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return JudgedShape(shape, statistics.mean(values), scatter, worst=errors[worst], worst_size=worst)


def profile(found: StepProfile) -> dict[str, Any]:
    fixed = min(found.prefill.seconds_at(found.prefill.sizes[0]), found.decode.seconds_at(found.decode.sizes[0]))
    fixed = min(fixed, *found.prefill.seconds, *found.decode.seconds)
    if found.prefill.floor is not None:
        fixed = min(fixed, found.prefill.floor)
    step: dict[str, Any] = {"fixed": f"{1e3 * fixed:.6f} ms"}
    for name, one in (("decode", found.decode), ("prefill", found.prefill)):
        if one.chosen == "line":
            step[name] = {"fixed": _time(max(one.line[1], fixed)), "per_item": _time(one.line[0])}
        else:
            step[name] = {"table": {size: _time(max(seconds, fixed)) for size, seconds in one.knots.items()}}
            if one.chosen == "powers":
                step[name]["between"] = "power"
    if found.per_context_token:
        step["per_context_token"] = f"{1e9 * found.per_context_token:.6g} ns"
    about = {"decode": found.decode.about, "prefill": found.prefill.about}
    return {"service": {"kind": "llm", "step": step}, "measured": {"from": found.what, "stages": about}}


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.7g} ms"
