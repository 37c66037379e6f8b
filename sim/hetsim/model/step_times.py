"""Step times of a language model: lines, tables, a roofline, or sums of kernels.

All classes have the same methods, and the engine uses only these.  While a replica only decodes, the context grows by
one token per sequence and step, and every class computes the total time of a number of steps in closed form
(`decoding`), which lets the engine simulate them as one event.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hetsim.model.batch_times import StageTable
from hetsim.model.demand import StageTime
from hetsim.model.device_type import NO_KEY

if TYPE_CHECKING:
    from hetsim.model.units import Seconds


@dataclass(frozen=True, slots=True)
class LinearSteps:
    """Seconds of a step of one replica: linear in tokens, or with measured parts.

    `decode`: times of steps that only decode, by number of sequences; `prefill`: times of steps that only prefill, by
    number of prompt tokens.  They replace `per_sequence` and `per_prompt_token`.  A step that does both takes the sum
    of both times, with `fixed` counted once.
    """

    fixed: Seconds = 0.0
    """Time of any step; a step that decodes and prefills has it once."""
    per_sequence: Seconds = 0.0
    """Time for each sequence that decodes."""
    per_prompt_token: Seconds = 0.0
    """Time for each prompt token that is prefilled."""
    per_context_token: Seconds = 0.0
    """Time for each token of context of the decoding sequences."""
    decode: StageTable | StageTime | None = field(default=None, metadata=NO_KEY)
    prefill: StageTable | StageTime | None = field(default=None, metadata=NO_KEY)

    attends = False  # True if the time depends on how many earlier tokens the prompt tokens attend to

    def decodes(self, sequences: int) -> float:
        """Return the seconds that decoding sequences add to a step, whatever the context."""
        if self.decode is None:
            return self.per_sequence * sequences
        return self.decode.seconds_for(sequences) - self.fixed if sequences else 0.0

    def reads(self, prompt_tokens: int) -> float:
        """Return the seconds that prefilling prompt tokens adds to a step."""
        if self.prefill is None:
            return self.per_prompt_token * prompt_tokens
        return self.prefill.seconds_for(prompt_tokens) - self.fixed if prompt_tokens else 0.0

    def seconds_for(self, prompt_tokens: int, sequences: int, context: int, attended: int = 0) -> float:
        """Return a step's seconds; context: tokens of all `sequences`; attended: not used."""
        decoding = self.decodes(sequences) + self.per_context_token * context
        return self.fixed + self.reads(prompt_tokens) + decoding

    def decoding(self, steps: int, sequences: int, context: int) -> float:
        """Return the seconds of decode steps; each adds a context token per sequence."""
        token = self.per_context_token
        each = self.per_sequence * sequences if self.decode is None else self.decodes(sequences)  # once or more a step
        return steps * (self.fixed + each + token * context) + token * sequences * (steps * (steps - 1) // 2)

    def alone(self, prompt: np.ndarray, output: np.ndarray, chunk: int | None) -> np.ndarray:
        """Return each request's seconds alone on a replica; prompts in chunks of `chunk`."""
        prefills = np.ones(len(prompt)) if chunk is None else np.ceil(prompt / chunk)
        decodes = output - 1.0
        context = decodes * prompt + decodes * output / 2
        steps = self.fixed * (prefills + decodes) + self.decodes(1) * decodes
        return steps + self._reading(prompt, chunk) + self.per_context_token * context

    def _reading(self, prompt: np.ndarray, chunk: int | None) -> np.ndarray:
        if self.prefill is None:
            return self.per_prompt_token * prompt
        tokens, place = np.unique(prompt, return_inverse=True)
        parts = [(0, int(one)) if chunk is None else divmod(int(one), chunk) for one in tokens.tolist()]
        seconds = [count * self.reads(chunk or 0) + self.reads(rest) for count, rest in parts]
        return np.array(seconds)[place].reshape(prompt.shape)

    def demand(self, prompt: np.ndarray, output: np.ndarray, sequences: int) -> tuple[float, float, float]:
        """Return the minimum mean seconds per request: for prompt, for answer, for both.

        `sequences`: maximum number of requests that decode together.  The time `fixed` of each step is not included.
        """
        decodes = output - 1.0
        context = decodes * prompt + decodes * output / 2
        each, token = self._min_seconds(sequences)
        read = float((token * prompt).mean())
        answer = float((each * decodes + self.per_context_token * context).mean())
        return read, answer, read + answer

    def _min_seconds(self, sequences: int) -> tuple[float, float]:
        """Return the minimum seconds (without `fixed`) per decoded and per prompt token."""
        each, token = self.per_sequence, self.per_prompt_token
        if isinstance(self.decode, StageTime):
            each = max(0.0, self.decode.seconds_for(sequences) - self.fixed) / sequences
        elif self.decode is not None:
            each = max(0.0, self.decode.min_per_item(sequences) - self.fixed / sequences)
        if isinstance(self.prefill, StageTime):
            token = self.prefill.per_item
        elif self.prefill is not None:
            largest = self.prefill.sizes[-1]
            sizes = (1, *self.prefill.sizes, 1 << 20) if len(self.prefill.sizes) > 1 else (largest,)
            token = max(0.0, min(self.reads(size) / size for size in sizes))
        return each, token


def _alone(times: RooflineSteps | KernelSteps, prompt: np.ndarray, output: np.ndarray, chunk: int | None) -> np.ndarray:
    pairs, place = np.unique(np.stack([prompt, output]), axis=1, return_inverse=True)
    read = {tokens: _read_alone(times, tokens, chunk) for tokens in np.unique(pairs[0]).tolist()}
    seconds = [read[p] + times.decoding(o - 1, 1, p + 1) for p, o in pairs.T.tolist()]
    return np.array(seconds, dtype=float)[place.reshape(-1)]


@dataclass(frozen=True)
class RooflineSteps:
    """Seconds of a step, bounded by its kernels' arithmetic or memory traffic.

    In each step the weights are read once, and each token is multiplied with the weights: the longer of these two times
    counts.  Attention is bounded by memory while decoding (`per_context_token`) and by arithmetic while prefilling
    (`per_pair`: seconds for each pair of a prompt token and an earlier token or itself).  With several devices every
    step adds up partial results over their links.  No step is shorter than `host`, the time in which the host can issue
    its kernels; `fixed` is added to each step, and the devices are idle during it.
    """

    fixed: float = 0.0
    host: float = 0.0
    weights: float = 0.0  # seconds to read the weights that every token needs
    experts: float = 0.0  # seconds to read all experts of all layers
    expert_share: float = 1.0  # share of the experts of a layer that one token needs
    per_token: float = 0.0  # seconds to multiply a token with all its weights except the last matrix
    per_answer: float = 0.0  # seconds to multiply the last matrix, which only generated tokens need
    per_context_token: float = 0.0
    per_pair: float = 0.0
    link_latency: float = 0.0
    link_per_token: float = 0.0
    _known: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    attends = True

    def _matrices(self, tokens: int, answers: int) -> float:
        touched = self.experts * (1.0 - (1.0 - self.expert_share) ** tokens) if self.experts else 0.0
        linear = max(self.weights + touched, self.per_token * tokens + self.per_answer * answers)
        return linear + self.link_latency + self.link_per_token * tokens

    def _decode(self, sequences: int) -> float:
        """Return the part of a decoding step's time that does not depend on the context."""
        if (decode := self._known.get(sequences)) is None:
            decode = self._known[sequences] = self._matrices(sequences, sequences)
        return decode

    def seconds_for(self, prompt_tokens: int, sequences: int, context: int, attended: int = 0) -> float:
        """Return a step's seconds.

        attended: pairs of a prompt token with an earlier token (or itself), as the function `attended` counts them.
        """
        if prompt_tokens:
            linear = self._matrices(prompt_tokens + sequences, sequences + 1)
        else:
            linear = self._decode(sequences)
        return self.fixed + max(self.host, linear + self.per_context_token * context + self.per_pair * attended)

    def decoding(self, steps: int, sequences: int, context: int) -> float:
        """Return the seconds of `steps` decoding steps in a row.

        The context grows from step to step: the first steps may be limited by the host, all later ones by the GPU.
        """
        slope = self.per_context_token * sequences
        first = self._decode(sequences) + self.per_context_token * context
        short = 0
        if first < self.host:
            lacking = self.host - self._decode(sequences) - self.per_context_token * context
            short = min(steps, math.ceil(min(lacking / slope, steps))) if slope > 0 else steps
        rest = steps - short
        # The steps short, short + 1, ..., steps - 1 each take first + slope · number.
        return steps * self.fixed + short * self.host + rest * first + slope * (rest * (steps + short - 1) / 2)

    alone = _alone

    def demand(self, prompt: np.ndarray, output: np.ndarray, sequences: int) -> tuple[float, float, float]:
        decodes = output - 1.0
        context = decodes * prompt + decodes * output / 2
        moving = float((self.per_context_token * context).mean())
        tokens, answers = float(prompt.mean()), float(decodes.mean())
        read = (self.per_token + self.link_per_token) * tokens
        read += self.per_pair * float((prompt * (prompt + 1.0) / 2).mean())
        share = answers / sequences
        answer = max(share * self.host, share * self._decode(sequences) + moving)
        arithmetic = read + answers * (self.per_token + self.per_answer + self.link_per_token) + moving
        return read, answer, max(arithmetic, answer)


@dataclass(frozen=True)
class KernelSteps:
    """Seconds of a step as the sum of its kernels' measured times.

    The times of kernels that depend only on the number of tokens (matrices, experts, sums over GPUs) are interpolated
    between `tokens`; so is the time of the last matrix, which only generated tokens need.  Attention times are two
    tables: for decoding, by number of sequences and mean context; for prompts, by their number and length.  Both tables
    are interpolated between the points and extrapolated beyond the last point; contexts and lengths begin at 0.
    `fixed` is added to each step, `reading` if it reads prompts, `per_sequence` for each of its sequences and prompts.
    """

    fixed: float
    per_sequence: float
    tokens: tuple[int, ...]
    linear: tuple[float, ...]
    last: tuple[float, ...]
    sequences: tuple[int, ...]
    contexts: tuple[int, ...]
    decode: tuple[tuple[float, ...], ...]
    prompts: tuple[int, ...]
    lengths: tuple[int, ...]
    prefill: tuple[tuple[float, ...], ...]
    reading: float = 0.0
    _known: dict[int, tuple[float, tuple[float, ...]]] = field(default_factory=dict, repr=False, compare=False)

    attends = True

    def _decode(self, sequences: int) -> tuple[float, tuple[float, ...]]:
        """Return a step's seconds without attention, and those of attention by context."""
        if (times := self._known.get(sequences)) is None:
            each = self.fixed + self.per_sequence * sequences
            matrices = on_line(self.tokens, self.linear, sequences) + on_line(self.tokens, self.last, sequences)
            place = _segment(self.sequences, sequences)
            low, high = self.sequences[place], self.sequences[place + 1]
            share = (sequences - low) / (high - low)
            rows = zip(self.decode[place], self.decode[place + 1], strict=True)
            attention = tuple(max(0.0, first + share * (second - first)) for first, second in rows)
            times = self._known[sequences] = each + matrices, attention
        return times

    def seconds_for(self, prompt_tokens: int, sequences: int, context: int, attended: int = 0) -> float:
        seconds = 0.0
        if sequences:
            seconds, attention = self._decode(sequences)
            seconds += on_line(self.contexts, attention, context / sequences)
        if prompt_tokens:
            length = max(1.0, 2.0 * attended / prompt_tokens - 1.0)
            count = prompt_tokens / length
            if sequences:
                seconds -= on_line(self.tokens, self.linear, sequences) + on_line(self.tokens, self.last, sequences)
            else:
                seconds = self.fixed
            seconds += on_line(self.tokens, self.linear, prompt_tokens + sequences) + self.per_sequence * count
            seconds += on_line(self.tokens, self.last, sequences + count) + self._reading(count, length) + self.reading
        return seconds or self.fixed

    def _reading(self, prompts: float, length: float) -> float:
        if prompts <= self.prompts[0]:
            return on_line(self.lengths, self.prefill[0], length) * prompts / self.prompts[0]
        place = _segment(self.prompts, prompts)
        low, high = self.prompts[place], self.prompts[place + 1]
        first, second = (on_line(self.lengths, self.prefill[row], length) for row in (place, place + 1))
        return first + (second - first) * (prompts - low) / (high - low)

    def decoding(self, steps: int, sequences: int, context: int) -> float:
        each, attention = self._decode(sequences)
        done, seconds, contexts, mean = 0, 0.0, self.contexts, context / sequences
        place = _segment(contexts, mean)
        while done < steps:
            low, high = contexts[place], contexts[place + 1]
            slope = (attention[place + 1] - attention[place]) / (high - low)
            count = steps - done
            if place + 2 < len(contexts):
                count = min(count, max(0, math.ceil(high - (mean + done))))
            first = each + attention[place] + slope * (mean + done - low)
            seconds += count * first + slope * (count * (count - 1) / 2)
            done, place = done + count, place + 1
        return seconds

    alone = _alone

    def demand(self, prompt: np.ndarray, output: np.ndarray, sequences: int) -> tuple[float, float, float]:
        decodes = output - 1.0
        tokens, answers = float(prompt.mean()), float(decodes.mean())
        each = min(seconds / size for size, seconds in zip(self.tokens, self.linear, strict=True))
        lengths = np.clip(prompt, 1.0, None)
        rows = zip(self.prompts, self.prefill, strict=True)
        apart = np.min([np.array(row) / count for count, row in rows], axis=0)
        read = each * tokens + float(np.interp(lengths, self.lengths, apart).mean())
        context = int(sequences * float((prompt + output / 2).mean()))
        answer = answers / sequences * (self.seconds_for(0, sequences, context) - self.fixed)
        return read, answer, max(read + each * answers, answer)


def _segment(points: tuple[int, ...], value: float) -> int:
    return min(max(bisect_right(points, value) - 1, 0), len(points) - 2)


def on_line(points: tuple[int, ...], values: tuple[float, ...], value: float) -> float:
    """Interpolate linearly: constant below the points, extrapolated above them."""
    place = _segment(points, value)
    low = points[place]
    if value <= low:
        return values[place]
    return values[place] + (values[place + 1] - values[place]) * (value - low) / (points[place + 1] - low)


StepTimes = LinearSteps | RooflineSteps | KernelSteps


def _read_alone(times: RooflineSteps | KernelSteps, prompt: int, chunk: int | None) -> float:
    done, seconds = 0, 0.0
    while done < prompt:
        tokens = prompt - done if chunk is None else min(chunk, prompt - done)
        seconds += times.seconds_for(tokens, 0, 0, attended(tokens, done))
        done += tokens
    return seconds


# fields of step times, and of their parts, that are not seconds
_COUNTS = {
    "sizes", "between", "spread", "tokens", "sequences", "contexts", "prompts", "lengths", "expert_share", "_known"
}  # fmt: skip


def scaled(times: Any, factor: float) -> Any:
    if is_dataclass(times) and not isinstance(times, type):
        seconds = {one.name: getattr(times, one.name) for one in fields(times) if one.name not in _COUNTS}
        emptied: dict[str, Any] = {"_known": {}} if hasattr(times, "_known") else {}
        return replace(times, **{name: scaled(value, factor) for name, value in seconds.items()}, **emptied)
    if isinstance(times, tuple):
        return tuple(scaled(value, factor) for value in times)
    return None if times is None else times * factor


def attended(tokens: int, before: int) -> int:
    """Return the number of pairs of a new prompt token with itself or an earlier one."""
    return tokens * before + tokens * (tokens + 1) // 2
