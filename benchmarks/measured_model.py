"""Predict measured servers from the kernels that hetsim ships: step times, fits of an engine's constants, intervals.

A row (`benchmarks/measured_rows.py`) is a closed loop of `batch_size` clients for each group of GPUs that attends for
itself.  It is replayed here by a stepper of its own, which has the rules of an engine and only them.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from benchmarks.measured_rows import ROUNDS, Rules, Server, rules_of, server_of
from hetsim.model.step_times import StepTimes, attended
from hetsim.silicon.engines import roofline_kernels, shape_of
from hetsim.silicon.kernels import CONTEXTS, LENGTHS, PROMPTS, SEQUENCES, TOKENS, Kernels, NotMeasured, kernels_of
from hetsim.workload.costs import architectures, roofline

Fits = dict[str, dict[str, np.ndarray]]
"""Constants by GPU and engine."""
Predict = Callable[..., pd.DataFrame]
"""As `replayed`."""


@cache
def architecture(name: str, formats: tuple[str, str, str]) -> architectures.Architecture:
    """A model in the formats of a server."""
    model = architectures.model(name)
    changes = {"weights": formats[0], "experts": formats[1], "kv": formats[2]}
    return architectures.Architecture.model_validate({**model.model_dump(exclude_none=True), "number_format": changes})


@cache
def kernels(server: Server) -> Kernels | str:
    """The kernels of a server, or why they are not known."""
    peak = roofline.DEVICES.get(server.gpu)
    if peak is None:
        return f"the GPU {server.gpu} is not in the catalogue"
    try:
        return kernels_of(architecture(server.model, server.formats), server.gpu, peak, server.engine, server.divided)
    except NotMeasured as reason:
        return str(reason)


@cache
def unmeasured(server: Server) -> Kernels:
    """The kernels of a server as those of a GPU without measured ones."""
    model = architecture(server.model, server.formats)
    return roofline_kernels(model, roofline.DEVICES[server.gpu], server.divided.gpus)


@dataclass
class Replay:
    """Times of a closed loop, and its steps: count, sequences, mean context, prompt tokens, attended, waiting."""

    ttft: float
    tpot: float
    steps: np.ndarray
    tokens: int
    requests: int


def evicted(
    running: list[tuple[int, int]], free: int, arrived: list[float], decoded: int, prompts: list[int],
    outputs: list[int],
) -> list[int]:  # fmt: skip
    """Take the last that came off the running ones until a step fits; what they have is a prompt from now on."""
    made = []
    while len(running) > max(1, free):
        latest = max(running, key=lambda one: (one[0] > decoded + 1, arrived[one[1]]))
        if (left := latest[0] - decoded) < 2:
            break
        running.remove(latest)
        request = latest[1]
        prompts[request], outputs[request] = prompts[request] + outputs[request] - left, left
        free += prompts[request]
        made.append(request)
    heapq.heapify(running)
    return made


def replay(  # noqa: C901 - the rules of an engine, in one piece
    times: StepTimes, rules: Rules, clients: int, prompt: int, output: int, room: int = 1 << 40,
    reserved: bool = False, front_end: float = 0.001, rounds: int = ROUNDS,
) -> Replay:  # fmt: skip
    """A closed loop of clients, from its start; each sends its next request when the one before is answered.

    Lengths are spread evenly between a share of prompt and output, and these.  With `reserved` (TensorRT-LLM) a
    request waits for room for the keys and values of its whole answer; otherwise only for its prompt, and the last
    that came loses its keys and values when there is no room for a step (all of it is read again).
    """
    generator = np.random.default_rng(1)
    count = rounds * clients
    prompts = np.maximum(1, np.rint(prompt * generator.uniform(rules.shortest, 1.0, count))).astype(int).tolist()
    outputs = np.maximum(2, np.rint(output * generator.uniform(rules.shortest, 1.0, count))).astype(int).tolist()
    mixed, budget, every, (share_held, steps_held) = rules.mixed, rules.budget, rules.every, rules.held
    now, sent, decoded, context, used = 0.0, 0, 0, 0, 0  # used: tokens of what is being read, or of whole answers
    ticks = kept = 0  # decoding steps since the last look at requests, and since prompts wait
    waiting: deque[tuple[float, int]] = deque()
    reading: list[list[int]] = []
    running: list[tuple[int, int]] = []  # by the number of decoded steps at which it ends
    whole: list[int] = []  # read, or ended, but not seen yet
    ended: list[int] = []
    tpot: list[float] = []
    arrived, first, wanted = [0.0] * count, [math.inf] * count, list(outputs)
    log: list[tuple[int, int, float, int, int, int]] = []
    for _ in range(clients):
        waiting.append((front_end, sent))
        sent += 1

    def seen() -> None:
        nonlocal sent
        for request in whole:
            first[request] = min(first[request], now)
        for request in ended:
            tpot.append((now - first[request]) / (wanted[request] - 1))
            if sent < count:
                arrived[sent] = now
                waiting.append((now + front_end, sent))
                sent += 1
        whole.clear()
        ended.clear()

    while waiting or reading or running or ended:
        if not reading and not running:
            seen()
            if not waiting:
                break
            now, ticks = max(now, waiting[0][0]), 0
        while ticks % every == 0 and waiting and waiting[0][0] <= now + 1e-12:
            if len(running) + len(reading) >= clients - rules.fewer:
                break
            need = prompts[waiting[0][1]] + (outputs[waiting[0][1]] if reserved else 0)
            held = used if reserved else used + context + len(running)
            if held + need > room and (running or reading):
                break
            used += need
            reading.append([waiting.popleft()[1], 0])
        for request in () if reserved else evicted(running, room - used - context, arrived, decoded, prompts, outputs):
            context -= prompts[request]
            waiting.appendleft((now, request))
        sequences = len(running)
        wait = bool(running) and kept < steps_held
        wait = wait and sum(prompts[one] - read for one, read in reading) + len(running) < share_held * budget
        made: list[int] = []
        if reading and not wait:
            left, read, pairs = budget - (sequences if mixed else 0), 0, 0
            for one in reading:
                tokens = min(left, prompts[one[0]] - one[1])
                if tokens <= 0:
                    break
                read, pairs, left = read + tokens, pairs + attended(tokens, one[1]), left - tokens
                one[1] += tokens
                if one[1] == prompts[one[0]]:
                    made.append(one[0])
            decoding = sequences if mixed else 0
            seconds = times.seconds_for(read, decoding, context if mixed else 0, pairs)
            mean = context / decoding if decoding else 0.0  # a step that stalls the others has their number below 0
            unseen = len(reading) + len(waiting) + len(whole)
            log.append((1, decoding or -sequences, mean, read, pairs, unseen))
            steps, ticks, kept = 1 if decoding else 0, 0, 0
            now += seconds
            del reading[: len(made)]
        else:
            steps = running[0][0] - decoded
            steps = steps if reserved else max(1, min(steps, (room - used - context) // sequences))
            if whole or ended:
                steps = 1
            elif reading:
                steps = min(steps, steps_held - kept)
            elif waiting and waiting[0][0] > now + 1e-12:  # it need not wait for keys and values
                after = partial(times.decoding, sequences=sequences, context=context)
                steps = 1 + bisect_right(range(1, steps), waiting[0][0] - now, key=after)
            if waiting and every > 1:
                steps = min(steps, every - ticks % every)
            seconds = times.decoding(steps, sequences, context)
            unseen = len(reading) + len(waiting) + len(whole)
            log.append((steps, sequences, context / sequences + (steps - 1) / 2, 0, 0, unseen))
            ticks, kept = ticks + steps, kept + steps if reading else 0
            now += seconds
        if rules.late:
            seen()
        decoded += steps
        context += steps * sequences
        while running and running[0][0] <= decoded:
            _, request = heapq.heappop(running)
            context -= prompts[request] + outputs[request]
            used -= prompts[request] + outputs[request] if reserved else 0
            ended.append(request)
        for request in made:
            used -= 0 if reserved else prompts[request]
            heapq.heappush(running, (decoded + outputs[request] - 1, request))
            context += prompts[request] + 1
        whole += made
        if not rules.late:
            seen()
    ttft = np.array(first) - np.array(arrived)
    return Replay(float(ttft.mean()), float(np.mean(tpot)), np.array(log), sum(wanted) - count, count)


PARTS = ["matrices", "experts", "sums", "norms", "attention", "prefill", "fixed", "per_layer", "per_sequence",
         "reading"]  # fmt: skip


def features(made: Kernels, run: Replay) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each part in a token, and until the first one."""
    steps, sequences, context, read, pairs, waiting = run.steps.T
    stalled = np.maximum(0, -sequences)
    sequences = np.maximum(0, sequences)
    tokens = sequences + read
    length = np.maximum(1.0, np.where(read > 0, 2 * pairs / np.maximum(read, 1) - 1, 1.0))
    prompts = np.where(read > 0, read / length, 0.0)

    def on_tokens(values: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.where(at > 0, np.interp(at, TOKENS, values), 0.0)

    def bilinear(
        values: np.ndarray, rows: np.ndarray, row: np.ndarray, columns: np.ndarray, column: np.ndarray
    ) -> np.ndarray:
        place = np.clip(np.searchsorted(rows, row, side="right") - 1, 0, len(rows) - 2)
        share = np.clip((row - rows[place]) / (rows[place + 1] - rows[place]), 0, None)
        cell = np.clip(np.searchsorted(columns, column, side="right") - 1, 0, len(columns) - 2)
        along = np.clip((column - columns[cell]) / (columns[cell + 1] - columns[cell]), 0, None)
        low = values[place, cell] * (1 - along) + values[place, cell + 1] * along
        high = values[place + 1, cell] * (1 - along) + values[place + 1, cell + 1] * along
        return low * (1 - share) + high * share

    zero = np.zeros(len(TOKENS))
    columns = [on_tokens(made.tokens.get(part, zero), tokens) for part in PARTS[:4]]
    columns[0] = columns[0] + on_tokens(made.last, sequences + prompts)
    attention = bilinear(made.decode, SEQUENCES, sequences, CONTEXTS, context)
    columns.append(np.where(sequences > 0, attention, 0.0))
    reading = bilinear(made.prefill, PROMPTS, np.maximum(prompts, 1.0), LENGTHS, length) * np.minimum(prompts, 1.0)
    columns.append(reading)
    one = np.ones(len(steps))
    columns += [one, one * made.layers, sequences + prompts, (read > 0) * made.layers]
    table = np.stack(columns)
    in_token = (table * steps * (sequences + stalled)).sum(axis=1) / run.tokens
    in_first = (table * steps * waiting).sum(axis=1) / run.requests
    return in_token, in_first


# Fits ------------------------------------------------------------------------------------------------------------

CONSTANTS = ["kernels", "moved", "fixed", "per_layer", "nvfp4", "per_sequence", "reading", "reading_special"]
"""What is fitted of an engine: shares of the measured times, seconds a step, a layer (with nvfp4 more, for kernels that
quantize), a sequence, and a layer of a step that reads prompts (more with latent or linear attention, which has more
kernels): such steps are no recorded graph, so the host launches each kernel."""
PULL = {"kernels": (1.0, 1.0), "moved": (1.0, 0.3), "nvfp4": (0.0, 800.0), "front_end": (0.006, 10.0)}
"""Values toward which constants are pulled, and how strongly: the measured times of kernels hold, and on other servers
with H100 a front end takes about 8 ms (`FRONT_END` among them)."""
FIRST = 0.2
"""Weight of first tokens in a fit, next to the times a token."""
START = {"kernels": 1.0, "moved": 1.0, "fixed": 1e-3, "per_layer": 3e-5, "nvfp4": 1e-5, "per_sequence": 2e-5,
         "reading": 5e-5, "reading_special": 5e-4}  # fmt: skip
FRONT_END = 0.002
"""Seconds that a request takes to the scheduler in a replay; what is fitted of a front end comes on top."""
NO_ROOM = "the weights and one request do not fit into the memory of these GPUs"


def room_of(server: Server, rules: Rules) -> int:
    """Tokens whose keys and values fit into the GPUs of one group, next to the weights and 5 GB a GPU.

    The figure of the catalogue is the GPU's number of GiB: an H200 reports 140 GiB, and is sold with 141 GB.  SGLang
    takes the 5 GB from the rest of the memory.
    """
    formats = (*server.formats[:2], rules.stored or server.formats[2])
    model, peak = architecture(server.model, formats), roofline.DEVICES[server.gpu]
    divided, share = server.divided, rules.memory
    assert peak.memory is not None
    copies = divided.tensor if model.latent is not None else max(1.0, divided.tensor / model._kv_heads)
    memory = peak.memory * (2**30 / 1e9) * divided.tensor
    spare = (0.0 if server.engine == "sglang" else 5e9) * divided.tensor
    weights = model.bytes - model.expert_bytes * (1 - 1 / divided.attention)
    left = share * (memory - spare - weights) if server.engine == "trtllm" else share * memory - spare - weights
    return max(0, int(left / (model.bytes_per_token * copies)))


def refusal(server: Server, room: int, tokens: int) -> str:
    """Why a server with requests of so many tokens cannot be predicted; empty if it can."""
    known = kernels(server)
    return known if isinstance(known, str) else NO_ROOM if room < tokens else ""


def prepared(rows: pd.DataFrame, constants: dict[str, dict[str, float]]) -> pd.DataFrame:
    """The rows that can be predicted, with seconds of each part; the reasons of the others are in `attrs`."""
    made, refused = [], {}
    for name, row in rows.iterrows():
        server = server_of(row)
        rules = rules_of(row)
        room = room_of(server, rules)
        if reason := refusal(server, room, row["isl"] + row["osl"]):
            refused[name] = reason
            continue
        known = kernels(server)
        assert isinstance(known, Kernels)
        load = (int(row["batch_size"]), int(row["isl"]), int(row["osl"]), room)
        steps = known.steps(constants[server.engine])
        run = replay(steps, rules, *load, server.engine == "trtllm", FRONT_END)
        parts, first = features(known, run)
        line = [values[[0, 1, 4, 5]].sum() for values in features(unmeasured(server), run)]
        made.append({
            "name": name, "server": server, "load": load, "rules": rules, "parts": parts, "first": first,
            "nvfp4": known.nvfp4, "special": known.special, "roofline": line[0], "roofline_first": line[1],
            "transferred": len(known.transferred), "saturated": room < load[0] * (row["isl"] + row["osl"]) * 0.9,
        })  # fmt: skip
    frame = pd.DataFrame(made).set_index("name").join(rows)
    frame.attrs["refused"] = refused
    return frame


def design(frame: pd.DataFrame, unknown: bool = False, of: str = "parts") -> np.ndarray:
    """Columns of a fit, in the order of `CONSTANTS`; of an unknown GPU the roofline stands for all kernels."""
    parts = np.stack(list(frame[of]))
    columns = [parts[:, [0, 1, 4, 5]].sum(axis=1), parts[:, [2, 3]].sum(axis=1)]
    if unknown:
        columns = [frame["roofline" if of == "parts" else "roofline_first"].to_numpy(), np.zeros(len(frame))]
    columns += [parts[:, 6], parts[:, 7], parts[:, 7] * frame["nvfp4"].to_numpy(), parts[:, 8]]
    columns += [parts[:, 9], parts[:, 9] * frame["special"].to_numpy()]
    return np.column_stack(columns)


def fitted(frame: pd.DataFrame, unknown: bool = False) -> np.ndarray:
    """Constants and front end of least absolute relative errors, none below 0; some are pulled toward values.

    The errors are those of times a token of sound rows, and of their first tokens where not saturated, and warm.
    """
    frame = frame[frame["sound"]]
    y, z = (frame[f"silicon_{name}_ms"].to_numpy() / 1e3 for name in ("tpot", "ttft"))
    loose = (~frame["saturated"] & frame["warm"]).to_numpy(dtype=bool)
    token = np.column_stack([design(frame, unknown), np.zeros(len(y))]) / y[:, None]
    first = np.column_stack([design(frame, unknown, "first"), np.ones(len(y))]) / z[:, None]
    columns = np.vstack([token, FIRST * first[loose]])
    target = np.concatenate([np.ones(len(y)), np.full(loose.sum(), FIRST)])
    weights, prior, goal = np.ones(len(target)), np.zeros((len(PULL), columns.shape[1])), np.zeros(len(PULL))
    for line, (name, (value, strength)) in enumerate(PULL.items()):
        strength = 0.1 * math.sqrt(len(y)) if unknown and value == 1.0 else strength * math.sqrt(len(y))
        prior[line, [*CONSTANTS, "front_end"].index(name)], goal[line] = strength, strength * value
    for _ in range(25):
        system = np.vstack([columns * weights[:, None], prior])
        found, _ = nnls(system, np.concatenate([weights * target, goal]))
        weights = 1.0 / np.sqrt(np.maximum(np.abs(columns @ found - target), 0.03))
    return np.asarray(found)


def engine_fits(frame: pd.DataFrame, unknown: bool = False) -> dict[str, np.ndarray]:
    """The constants of each engine of a frame."""
    return {engine: fitted(part, unknown) for engine, part in frame.groupby("backend")}


def left_out(frame: pd.DataFrame, unknown: bool = False) -> tuple[np.ndarray, Fits]:
    """Seconds a token of each row, with constants fitted without any server of its GPU, and these by GPU."""
    predicted, fits = np.full(len(frame), np.nan), {}
    for gpu in sorted(frame["gpu"].unique()):
        others = engine_fits(frame[frame["gpu"] != gpu], unknown)
        fits[gpu] = others
        for engine, constants in others.items():
            chosen = ((frame["gpu"] == gpu) & (frame["backend"] == engine)).to_numpy()
            if chosen.any():
                predicted[chosen] = design(frame[chosen], unknown) @ constants[: len(CONSTANTS)]
    return predicted, fits


def errors(frame: pd.DataFrame, out: np.ndarray, of: np.ndarray, unknown: bool = False) -> np.ndarray:
    """Log of measured over predicted times of rows, a token and to the first one, fitted without some rows.

    NaN of all rows but `of`, and where no server of the engine is left.
    """
    made = np.full((len(frame), 2), np.nan)
    for engine, constants in engine_fits(frame[~out], unknown).items():
        rows = of & (frame["backend"] == engine).to_numpy()
        if rows.any():
            token, first = (design(frame[rows], unknown, part) @ constants[: len(CONSTANTS)] for part in PARTS_OF)
            made[rows] = np.log(frame.loc[rows, ["silicon_tpot_ms", "silicon_ttft_ms"]].to_numpy() / 1e3)
            made[rows] -= np.log(np.column_stack([token, first + constants[-1]]))
    return made


def replayed(frame: pd.DataFrame, fits: Fits, unknown: bool = False) -> pd.DataFrame:
    """Seconds a token and to the first token of each row, with the constants of its GPU and engine."""
    rows = []
    for _, row in frame.iterrows():
        constants = dict(zip(CONSTANTS, fits[row["gpu"]][row["backend"]][:-1].tolist(), strict=True))
        known = unmeasured(row["server"]) if unknown else kernels(row["server"])
        assert isinstance(known, Kernels)
        steps = known.steps(constants)
        run = replay(steps, row["rules"], *row["load"], row["backend"] == "trtllm", FRONT_END)
        rows.append((run.tpot, run.ttft))
    return pd.DataFrame(rows, index=frame.index, columns=["tpot", "ttft"])


def first_token(frame: pd.DataFrame, run: pd.DataFrame, fits: Fits) -> np.ndarray:
    """Seconds to the first token, with the front ends of fits."""
    front = [fits[gpu][engine][-1] for gpu, engine in zip(frame["gpu"], frame["backend"], strict=True)]
    return np.asarray(run["ttft"].to_numpy() + np.array(front))


# Intervals --------------------------------------------------------------------------------------------------------

LEAST = 5
"""Servers of an engine with a model, from which on the model counts as measured with it."""
PARTS_OF = ("parts", "first")


def cells(frame: pd.DataFrame) -> np.ndarray:
    """Engine, GPU and model of each row; models of one shape have one name."""
    shapes = {name: shape_of(architectures.model(name)) for name in sorted(frame["model"].unique())}
    names = {shape: name for name, shape in shapes.items()}
    named = frame["model"].map({name: names[shape] for name, shape in shapes.items()})
    return (frame["backend"] + "/" + frame["gpu"] + "/" + named).to_numpy()


def seen(frame: pd.DataFrame, out: np.ndarray) -> np.ndarray:
    """Is the model of a row measured with its engine, on whatever GPU, by rows that are not left out?"""
    pairs = pd.Series([re.sub("/.*/", "/", cell) for cell in cells(frame)])
    return (pairs.map(pairs[~out].value_counts()).fillna(0) >= LEAST).to_numpy()


def reach(found: list[np.ndarray], cell: np.ndarray, new: bool = False) -> list[float]:
    """Bounds that contain nine of ten errors, a token and to the first one, as far above as below, and their number.

    Each error counts, but for cells of less than `LEAST`.  For a `new` cell each cell weighs the same, and the new one
    is one of them (hierarchical conformal prediction; Dunn, Wasserman and Ramdas, Journal of the American Statistical
    Association 118, 2023), whose errors are taken as the largest.  A left-out GPU or family is as likely slower as
    faster than the others; they are too few to say on which side it errs.
    """
    columns = ["token", "first"]
    parts = [pd.DataFrame(one, columns=columns).assign(cell=cell).dropna(how="all", subset=columns) for one in found]
    table = pd.concat(parts, ignore_index=True)
    sizes = table["cell"].map(pd.concat([one["cell"].value_counts() for one in parts]).groupby(level=0).max())
    table, sizes = table[sizes >= LEAST], sizes[sizes >= LEAST]
    share = min(1.0, 0.9 + new * 0.9 / table["cell"].nunique())
    made = []
    for name in columns:
        ordered = table[name].dropna().abs().sort_values()
        weights = (sizes[ordered.index] ** -float(new)).cumsum()
        made.append(float(ordered.iloc[int((weights < share * weights.iloc[-1] * (1 - 1e-9)).sum())]))
    return [-made[0], made[0], -made[1], made[1], len(table)]


def of_known(frame: pd.DataFrame, left: str = "", unknown: bool = False) -> list[float]:
    """Bounds from GPUs left out in turn, and one besides, for models that their engine was measured with.

    Times a token of servers whose source names another load do not count; their first tokens do, as with a GPU left
    out these err more widely than the others say.
    """
    made = []
    for gpu in sorted(set(frame["gpu"]) - {left}):
        rows = (frame["gpu"] == gpu).to_numpy()
        out = rows | (frame["gpu"] == left).to_numpy()
        found = np.where(seen(frame, out)[:, None], errors(frame, out, rows, unknown), np.nan)
        found[~frame["sound"].to_numpy(dtype=bool), 0] = np.nan
        made.append(found)
    return reach(made, cells(frame))


def of_families(frame: pd.DataFrame, left: str = "", unknown: bool = False, gpus: bool = True) -> list[float]:
    """Bounds from families left out, each with each GPU (or with none), and with one GPU besides, for new models."""
    made = []
    for family_of_model in sorted(set(frame["family"])):
        same = (frame["family"] == family_of_model).to_numpy()
        for gpu in sorted(set(frame["gpu"]) - {left}) if gpus else [""]:
            rows = (frame["gpu"] == gpu).to_numpy() if gpus else np.ones(len(frame), bool)
            out = same | (rows & gpus) | (frame["gpu"] == left).to_numpy()
            if (same & rows).any():
                made.append(errors(frame, out, same & rows, unknown))
    return reach(made, cells(frame), new=True)


def own(found: np.ndarray) -> list[float] | None:
    """Bounds of the errors of a cell: on either side, or for less than 20 as far above as below; None below 9."""
    count = len(found)
    made: list[float] = []
    for column in found.T:
        ordered, distances = np.sort(column), np.sort(np.abs(column))
        if count >= 20:
            rank = min(count, math.ceil((count + 1) * 0.95)) - 1
            made += [float(ordered[count - 1 - rank]), float(ordered[rank])]
        elif count >= 9:
            distance = float(distances[math.ceil((count + 1) * 0.9) - 1])
            made += [-distance, distance]
    return [*made, count] if made else None


def coverage(
    frame: pd.DataFrame, found: np.ndarray, unknown: bool, apart: pd.DataFrame | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Are errors of each row within bounds from other GPUs' servers, left out in turn; and the half-widths as shares.

    A column for times a token, and one for first tokens.  `apart`: the rows, if they are none of the frame.
    """
    both = frame if apart is None else pd.concat([frame, apart])
    other = np.arange(len(both)) >= len(frame)
    inside, half = np.zeros((len(found), 2), bool), np.zeros((len(found), 2))
    for gpu in sorted(both["gpu"][-len(found) :].unique()):
        out = (both["gpu"] == gpu).to_numpy()
        rows, known = out[-len(found) :], seen(both, out | other)[-len(found) :]
        for chosen, of in ((rows & known, of_known), (rows & ~known, of_families)):
            if chosen.any():
                bounds = np.array(of(frame, str(gpu), unknown)[:4]).reshape(2, 2)
                inside[chosen] = (found[chosen] >= bounds[:, 0]) & (found[chosen] <= bounds[:, 1])
                half[chosen] = (np.exp(bounds[:, 1]) - np.exp(bounds[:, 0])) / 2
    return inside, half


def folded(frame: pd.DataFrame, folds: int = 5) -> np.ndarray:
    """Errors with constants of the same engine's other configurations."""
    digit = np.array([int(hashlib.sha1(name.encode()).hexdigest()[:4], 16) % folds for name in frame.index])
    made = np.full((len(frame), 2), np.nan)
    for fold in range(folds):
        rows = digit == fold
        made[rows] = errors(frame, rows, rows)[rows]
    return made


def widening(frame: pd.DataFrame) -> float:
    """How much errors of times a token grow with each factor of two to the nearest measured configuration.

    All configurations on one number of GPUs are left out in turn.
    """
    outside: list[float] = []
    distances: list[float] = []
    place = np.log2(frame[["isl", "batch_size", "gpus"]].to_numpy(dtype=float))
    place[:, 0] = np.log2((frame["isl"] + frame["osl"]).to_numpy(dtype=float))
    for gpus in sorted(frame["gpus"].unique()):
        rows = (frame["gpus"] == gpus).to_numpy()
        found = errors(frame, rows, rows)[:, 0]
        for engine in frame["backend"].unique():
            mine = (frame["backend"] == engine).to_numpy()
            chosen = mine & rows & ~np.isnan(found)
            outside += np.abs(found[chosen]).tolist()
            distances += [float(np.abs(place[mine & ~rows] - one).sum(axis=1).min()) for one in place[chosen]]
    inside = np.abs(folded(frame)[:, 0])
    growth = float(np.quantile(outside, 0.9) / np.nanquantile(inside, 0.9)) - 1.0
    return max(0.0, growth / float(np.mean(distances)))
