"""Step times of a language model: a line, measured tables, or a roofline.

Both models have the same methods, and the engine knows no more of them than these.  While a replica only decodes, the
context grows by one token a sequence and step, and every model says in closed form what a number of steps take together
(`decoding`): that is what lets the engine jump over them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hetsim.model.batch_times import StageTable
from hetsim.model.cluster import NO_KEY
from hetsim.model.tasks import StageTime

if TYPE_CHECKING:
    from hetsim.model.units import Seconds


@dataclass(frozen=True, slots=True)
class LinearSteps:
    """Seconds of one step on one replica, linear in the step, or as measured.

    `decode` and `prefill` are the times of a step that decodes a number of sequences, or reads a number of prompt
    tokens, and nothing else; they stand in place of `per_sequence` and `per_prompt_token`.  A step that does both takes
    both, `fixed` counted once.
    """

    fixed: Seconds = 0.0
    """Time of any step; a step that decodes and reads has it once."""
    per_sequence: Seconds = 0.0
    """Time for each sequence that decodes."""
    per_prompt_token: Seconds = 0.0
    """Time for each prompt token that is read."""
    per_context_token: Seconds = 0.0
    """Time for each token of context of the sequences that decode."""
    decode: StageTable | StageTime | None = field(default=None, metadata=NO_KEY)
    prefill: StageTable | StageTime | None = field(default=None, metadata=NO_KEY)

    attends = False
    """Does the time depend on how many earlier tokens the prompt tokens of a step attend to?"""

    def decodes(self, sequences: int) -> float:
        """Seconds that decoding some sequences adds to `fixed`, without their context."""
        if self.decode is None:
            return self.per_sequence * sequences
        return self.decode.seconds_for(sequences) - self.fixed if sequences else 0.0

    def reads(self, prompt_tokens: int) -> float:
        """Seconds that reading a number of prompt tokens adds to `fixed`."""
        if self.prefill is None:
            return self.per_prompt_token * prompt_tokens
        return self.prefill.seconds_for(prompt_tokens) - self.fixed if prompt_tokens else 0.0

    def seconds_for(self, prompt_tokens: int, sequences: int, context: int, attended: int = 0) -> float:
        """A step that prefills some tokens and decodes some sequences with a context."""
        decoding = self.decodes(sequences) + self.per_context_token * context
        return self.fixed + self.reads(prompt_tokens) + decoding

    def decoding(self, steps: int, sequences: int, context: int) -> float:
        """Seconds of decode steps: the context grows by a token a sequence and step."""
        token = self.per_context_token
        each = self.per_sequence * sequences if self.decode is None else self.decodes(sequences)  # once or more a step
        return steps * (self.fixed + each + token * context) + token * sequences * (steps * (steps - 1) // 2)

    def steps_in(self, seconds: float, sequences: int, context: int) -> int:
        """Number of decoding steps in these seconds, to within one."""
        growth = self.per_context_token * sequences
        base = self.fixed + self.decodes(sequences) + self.per_context_token * context - growth / 2
        if growth > 0 and seconds > 0:
            return int((math.sqrt(base * base + 2 * growth * seconds) - base) / growth)
        return int(max(seconds, 0.0) / base) if base > 0 else 0

    def alone(self, prompt: np.ndarray, output: np.ndarray, chunk: int | None) -> np.ndarray:
        """Seconds from first step to last of requests with a replica to themselves."""
        prefills = np.ones(len(prompt)) if chunk is None else np.ceil(prompt / chunk)
        decodes = output - 1.0
        context = decodes * prompt + decodes * output / 2
        steps = self.fixed * (prefills + decodes) + self.decodes(1) * decodes
        return steps + self._reading(prompt, chunk) + self.per_context_token * context

    def _reading(self, prompt: np.ndarray, chunk: int | None) -> np.ndarray:
        """Seconds beyond `fixed` to read each prompt alone in chunks."""
        if self.prefill is None:
            return self.per_prompt_token * prompt
        tokens, place = np.unique(prompt, return_inverse=True)
        parts = [(0, int(one)) if chunk is None else divmod(int(one), chunk) for one in tokens.tolist()]
        seconds = [count * self.reads(chunk or 0) + self.reads(rest) for count, rest in parts]
        return np.array(seconds)[place].reshape(prompt.shape)

    def demand(self, prompt: np.ndarray, output: np.ndarray, sequences: int) -> tuple[float, float, float]:
        """Minimum mean seconds beyond `fixed` of prompt, answer, and both."""
        decodes = output - 1.0
        context = decodes * prompt + decodes * output / 2
        each, token = self._min_seconds(sequences)
        read = float((token * prompt).mean())
        answer = float((each * decodes + self.per_context_token * context).mean())
        return read, answer, read + answer

    def _min_seconds(self, sequences: int) -> tuple[float, float]:
        """Minimum seconds beyond `fixed` of a decoded token and a prompt token."""
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


@dataclass(frozen=True)
class RooflineSteps:
    """Seconds of a step as its kernels' arithmetic or memory bounds it.

    The weights are read once a step, whatever its tokens, and each token is multiplied with them: of the two times the
    longer one counts.  Attention is read from memory while decoding (`per_context_token`) and computed while reading
    prompts (`per_pair`: a prompt token with one token before it, or itself).  With several devices every step adds up
    partial results over their links.  No step is shorter than `host`, the time in which the host can issue its
    kernels; `fixed` comes before each step, in which nothing computes.
    """

    fixed: float = 0.0
    host: float = 0.0
    weights: float = 0.0
    """Seconds to read the weights that every token needs."""
    experts: float = 0.0
    """Seconds to read all experts of all layers."""
    expert_share: float = 1.0
    """Share of the experts of a layer that one token needs."""
    per_token: float = 0.0
    """Seconds to multiply a token with all weights that it needs, but for the last matrix."""
    per_answer: float = 0.0
    """Seconds to multiply the last matrix, which only produced tokens need."""
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
        """A step that only decodes, without `fixed`, `host` and context."""
        decode = self._known.get(sequences)
        if decode is None:
            decode = self._known[sequences] = self._matrices(sequences, sequences)
        return decode

    def seconds_for(self, prompt_tokens: int, sequences: int, context: int, attended: int = 0) -> float:
        """Seconds of a step with these prefilled, attended tokens and sequences."""
        if prompt_tokens:
            linear = self._matrices(prompt_tokens + sequences, sequences + 1)
        else:
            linear = self._decode(sequences)
        return self.fixed + max(self.host, linear + self.per_context_token * context + self.per_pair * attended)

    def _short(self, sequences: int, context: int) -> float:
        """How many steps from now on, as a real number, the host alone limits."""
        slope = self.per_context_token * sequences
        lacking = self.host - self._decode(sequences) - self.per_context_token * context
        if lacking <= 0:
            return 0.0
        return lacking / slope if slope > 0 else math.inf

    def decoding(self, steps: int, sequences: int, context: int) -> float:
        """Seconds of decoding steps: host-limited ones first, then growing ones."""
        slope = self.per_context_token * sequences
        first = self._decode(sequences) + self.per_context_token * context
        short = 0
        if first < self.host:
            short = min(steps, math.ceil(min(self._short(sequences, context), steps)))
        rest = steps - short
        # The steps short, short + 1, ..., steps - 1 each take first + slope · number.
        return steps * self.fixed + short * self.host + rest * first + slope * (rest * (steps + short - 1) / 2)

    def steps_in(self, seconds: float, sequences: int, context: int) -> int:
        """Number of decoding steps in these seconds, to within one."""
        short = self._short(sequences, context)
        flat = self.fixed + self.host
        if short > 0 and seconds <= math.ceil(min(short, 2**60)) * flat:
            return int(seconds / flat)
        begun = math.ceil(short)
        first = self.seconds_for(0, sequences, context + sequences * begun)
        growth = self.per_context_token * sequences
        rest = max(0.0, seconds - begun * flat)
        if growth <= 0:
            return begun + (int(rest / first) if first > 0 else 0)
        base = first - growth / 2
        return begun + int((math.sqrt(base * base + 2 * growth * rest) - base) / growth)

    def alone(self, prompt: np.ndarray, output: np.ndarray, chunk: int | None) -> np.ndarray:
        """Seconds from first step to last of requests with a replica to themselves."""
        pairs, place = np.unique(np.stack([prompt, output]), axis=1, return_inverse=True)
        read = {tokens: self._read_alone(tokens, chunk) for tokens in np.unique(pairs[0]).tolist()}
        seconds = [read[p] + self.decoding(o - 1, 1, p + 1) for p, o in pairs.T.tolist()]
        return np.array(seconds, dtype=float)[place.reshape(-1)]

    def _read_alone(self, prompt: int, chunk: int | None) -> float:
        done, seconds = 0, 0.0
        while done < prompt:
            tokens = prompt - done if chunk is None else min(chunk, prompt - done)
            seconds += self.seconds_for(tokens, 0, 0, attended(tokens, done))
            done += tokens
        return seconds

    def demand(self, prompt: np.ndarray, output: np.ndarray, sequences: int) -> tuple[float, float, float]:
        """Minimum mean seconds beyond `fixed` of prompt, answer, and both.

        Where the same steps do both, reading the weights hides behind arithmetic as far as it can.
        """
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


StepTimes = LinearSteps | RooflineSteps


def attended(tokens: int, before: int) -> int:
    """Pairs of a prompt's next tokens with the tokens up to each; `before` were read."""
    return tokens * before + tokens * (tokens + 1) // 2
