"""Predict measured servers that read prompts and decode on different GPUs, none of them fitted.

These are the rows with `mode` disagg that give the numbers of their workers, each worker on at most eight GPUs.  Their
descriptions (of which the digest is taken, as for the other rows) also have the columns of both roles.  A row is a
closed loop of as many clients as it names.  Each front end sends requests to the workers of a role in turn.  A prompt
is read; its keys and values are sent as soon as a worker has room for the answer; then this worker decodes the answer.

`measured_recipes.csv` has the settings of InferenceMAX that its configurations of that day name: recipes of NVIDIA's
srt-slurm, and scripts of dynamo before 2026.  Missing ones are no limits.  `read_` and `decode_` say how the workers
are divided (groups that attend for themselves, expert parallelism), also where the columns of the row differ.
"""

from __future__ import annotations

import heapq
import pathlib
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from benchmarks import measured_model as servers
from benchmarks.measured_rows import KEY, ROUNDS, Rules, Server, once, public, rules_of, sample, server_of
from hetsim.model.step_times import attended
from hetsim.silicon.kernels import TOKENS, Kernels
from hetsim.workload.costs import roofline

ROLES = ("prefill", "decode")
PARTS = ["tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"]
COLUMNS = [*KEY, *(f"{role}_{name}" for role in ROLES for name in ("num_workers", "batch_size", *PARTS))]
RECIPES = pathlib.Path(__file__).with_name("measured_recipes.csv")
LIMITS = ["prompts", "tokens", "slots", "requests"]
NETWORK = 50e9
"""Bytes per second between GPUs of two workers: InfiniBand with 400 Gb/s for each GPU."""
RACK = ("gb200", "gb300")
"""GPUs whose workers are in one rack with NVLink, of whose rate transfers get the share that hetsim's sums get."""


def rows_of(wheel: str) -> pd.DataFrame:
    """Servers whose workers are described and have at most eight GPUs each, each configuration once."""
    rows = sample(wheel, "disagg")
    rows = rows[rows["decode_num_workers"].notna()].copy()
    for role in ROLES:
        gpus = rows[[f"{role}_{name}" for name in PARTS[:3]]].fillna(1).replace(0, 1).prod(axis=1)
        rows = rows[gpus <= 8].copy()
    first = once(rows, COLUMNS)
    groups = first["decode_attention_dp_size"].replace(0, 1) * first["decode_num_workers"]
    named = first["silicon_data_source"].str.extract(r"silicon_concurrency=(\d+)")[0].astype(float)
    first["clients"] = named.fillna(first["decode_batch_size"] * groups).astype(int)
    first["batch_size"] = np.maximum(1, first["clients"] // groups)
    recipes = pd.read_csv(RECIPES, dtype={"clients": str})
    recipes["clients"] = recipes["clients"].str.split("x")
    recipes = recipes.explode("clients").astype({"clients": int})
    keys = list(recipes.columns[: recipes.columns.get_loc("clients") + 1])
    made = first.join(recipes.set_index(keys), on=keys, validate="m:1")
    made[LIMITS] = made[LIMITS].fillna(1 << 40)
    return made.assign(front_ends=made["front_ends"].fillna(1).astype(int))


@dataclass(frozen=True)
class Role:
    """The workers of a role; most and slots are numbers of each of their groups."""

    server: Server
    workers: int
    rules: Rules
    most: int  # prompts of a step, or requests that decode
    slots: int  # prompts that are read, or whose keys and values are not sent yet
    room: int  # tokens of a worker whose keys and values fit into the memory


def role_of(row: pd.Series, role: str) -> Role:
    """The workers of a role, with published settings.

    TensorRT-LLM divides no prompts, and in InferenceMAX it sees what it has read at once (disable_overlap_scheduler).
    """
    made, whole, reads, recipe = row.copy(), row["backend"] == "trtllm", role == "prefill", not pd.isna(row["recipe"])
    made[PARTS] = row[[f"{role}_{name}" for name in PARTS]].fillna(0).to_numpy()
    made["attention"] = max(1, made["attention_dp_size"])
    gpus = made["gpus"] = made["tp_size"] * made["attention"]
    prompts, tokens, slots, requests = (int(row[name]) for name in LIMITS)
    if recipe:
        name = "read" if reads else "decode"
        made["attention"], made["moe_ep_size"] = row[f"{name}_groups"], row[f"{name}_experts"]
        made["tp_size"], made["moe_tp_size"] = gpus // made["attention"], gpus // made["moe_ep_size"]
    rules, server = rules_of(made), server_of(made)
    if recipe:
        rules = replace(rules, budget=tokens, late=rules.late and not (reads and whole), memory=row["memory"])
    elif whole:
        rules, prompts = replace(rules, budget=tokens), 1
    room = 1 << 40 if reads else server.divided.attention * servers.room_of(server, rules)
    return Role(server, int(row[f"{role}_num_workers"]), rules, prompts if reads else requests, slots, room)


class Times:
    """Step times of a worker whose groups have unequal numbers of tokens: its experts get all of them."""

    def __init__(self, made: Kernels, constants: dict[str, float], groups: int) -> None:
        self.steps, self.groups = made.steps(constants), groups
        self.experts = constants["kernels"] * made.tokens.get("experts", np.zeros(len(TOKENS)))

    def excess(self, most: int, total: int) -> float:
        """Seconds of the experts if all groups had the most tokens, less those with this total."""
        high, low = np.interp([most, total / self.groups], TOKENS, self.experts).tolist()
        return float(high - low)

    def reading(self, groups: list[tuple[int, int]]) -> float:
        """Seconds of a step by tokens and attended pairs of each group."""
        tokens, pairs = max(groups)
        return self.steps.seconds_for(tokens, 0, 0, pairs) - self.excess(tokens, sum(one for one, _ in groups))

    def decoding(self, steps: int, sequences: int, context: int) -> float:
        """Seconds of steps that decode; context: tokens of all sequences of all groups."""
        most = -(-sequences // self.groups)
        return self.steps.decoding(steps, most, context * most // sequences) - steps * self.excess(most, sequences)


class Worker:
    """A worker of either role."""

    def __init__(self, groups: int) -> None:
        self.groups, self.busy = groups, False
        self.queues: list[deque[list[int]]] = [deque() for _ in range(groups)]  # prompts, and tokens that are read
        self.held, self.links = [0] * groups, [0.0] * groups  # slots, and when the link of a group is free
        self.made: list[int] = []  # prompts of this step, or requests whose first token it decodes
        self.unseen: list[int] = []
        self.waiting: deque[int] = deque()  # for a slot of a worker that decodes
        self.ready: list[int] = []
        self.running: list[tuple[int, int]] = []  # by the number of decoded steps at which it ends
        self.slots = self.used = self.context = self.done = self.steps = self.turn = 0
        self.start, self.cut = 0.0, False  # cut: the steps end at the next look at requests


class Replay:
    """A closed loop of clients, from its start.

    TensorRT-LLM and SGLang give the first token when keys and values have come, before the next step (in the sources
    `_handle_first_token_response` and `process_prebuilt`).  vLLM reads the last token of a prompt again, and gives the
    token of that step.  `load` has clients, prompt and output; `seconds` sends keys and values of a token.
    """

    def __init__(self, times: list[Times], roles: list[Role], load: list[int], seconds: float, fronts: int) -> None:
        (self.read, self.write), (self.reader, self.decoder), self.seconds = times, roles, seconds
        self.again, self.whole = self.decoder.server.engine == "vllm", self.reader.server.engine != "sglang"
        generator, low, self.count = np.random.default_rng(1), self.reader.rules.shortest, ROUNDS * load[0]
        lengths = [np.rint(most * generator.uniform(low, 1.0, self.count)).astype(int) for most in load[1:]]
        self.prompts, self.outputs = (
            np.maximum(least, one).tolist() for least, one in zip((1, 2), lengths, strict=True)
        )
        self.front = generator.integers(fronts, size=self.count).tolist()
        self.turns = generator.integers(1 << 20, size=(2, fronts)) if fronts > 1 else np.zeros((2, 1), int)
        self.workers = [
            [Worker(time.groups) for _ in range(role.workers)] for time, role in zip(times, roles, strict=True)
        ]
        self.arrived, self.first, self.tpot = [0.0] * self.count, [0.0] * self.count, [0.0] * self.count
        self.origin: dict[int, tuple[Worker, int]] = {}
        self.events: list[tuple[float, int, str, Worker, int]] = []
        self.order = self.sent = 0
        for _ in range(load[0]):
            self.sends(0.0)
        while self.events:
            now, _, kind, worker, value = heapq.heappop(self.events)
            getattr(self, kind)(now, worker, value)

    def push(self, when: float, kind: str, worker: Worker, value: int = 0) -> None:
        self.order += 1
        heapq.heappush(self.events, (when, self.order, kind, worker, value))

    def next(self, role: int, request: int) -> Worker:
        """The worker whose turn it is at the front end of a request."""
        workers, front = self.workers[role], self.front[request]
        self.turns[role, front] += 1
        return workers[self.turns[role, front] % len(workers)]

    def sends(self, now: float, _: Worker | None = None, __: int = 0) -> None:
        """A client sends its next request."""
        if self.sent < self.count:
            self.arrived[self.sent] = now
            self.push(now + servers.FRONT_END, "arrives", self.next(0, self.sent), self.sent)
            self.sent += 1

    def arrives(self, now: float, worker: Worker, request: int) -> None:
        min(worker.queues, key=len).append([request, 0])
        self.wake(now, worker)

    def wake(self, now: float, worker: Worker) -> None:
        if not worker.busy and any(worker.queues):
            worker.busy = True
            self.push(now, "begins", worker)  # after the others of this instant

    def begins(self, now: float, worker: Worker, _: int = 0) -> None:
        """Read prompts, if there are some and slots for them."""
        tokens = []
        for group, queue in enumerate(worker.queues):
            left, pairs = self.reader.rules.budget, 0
            for number, one in enumerate(queue):
                more = self.prompts[one[0]] - one[1]
                full = worker.held[group] == self.reader.slots and not one[1]
                if number == self.reader.most or left <= 0 or full or (self.whole and number and more > left):
                    break
                worker.held[group] += not one[1]
                self.origin[one[0]] = worker, group
                more = more if self.whole else min(more, left)
                pairs, left = pairs + attended(more, one[1]), left - more
                one[1] += more
            tokens.append((self.reader.rules.budget - left, pairs))
            while queue and queue[0][1] == self.prompts[queue[0][0]]:
                worker.made.append(queue.popleft()[0])
        worker.busy = any(read for read, _ in tokens)
        if worker.busy:
            self.push(now + self.read.reading(tokens), "ends", worker)
        else:
            self.show(now, worker)

    def ends(self, now: float, worker: Worker, _: int) -> None:
        if self.reader.rules.late:  # the prompts of the step before
            self.show(now, worker)
        worker.unseen, worker.made = worker.made, []
        if not self.reader.rules.late:
            self.show(now, worker)
        self.begins(now, worker)

    def show(self, now: float, worker: Worker) -> None:
        seen, worker.unseen = worker.unseen, []
        for request in seen:
            decoder = self.next(1, request)
            decoder.waiting.append(request)
            self.look(now, decoder)

    def fill(self, now: float, worker: Worker) -> None:
        """Send keys and values of prompts for whose answers there are slots and room."""
        while worker.waiting and worker.slots < self.decoder.most * worker.groups:
            request = worker.waiting[0]
            need = self.prompts[request] + self.outputs[request]
            if worker.slots and worker.used + need > self.decoder.room:
                break
            worker.waiting.popleft()
            worker.slots, worker.used = worker.slots + 1, worker.used + need
            source, group = self.origin[request]
            source.links[group] = max(now, source.links[group]) + self.seconds * self.prompts[request]
            self.push(source.links[group], "comes", worker, request)

    def comes(self, now: float, worker: Worker, request: int) -> None:
        source, group = self.origin.pop(request)
        source.held[group] -= 1
        self.wake(now, source)
        worker.ready.append(request)
        self.look(now, worker)

    def look(self, now: float, worker: Worker) -> None:
        """Look at requests at the first boundary from now on."""
        if not worker.running:
            self.decoded(now, worker, worker.turn)
        elif not worker.cut and (worker.ready or worker.slots < self.decoder.most * worker.groups):
            after = partial(self.write.decoding, sequences=len(worker.running), context=worker.context)
            steps = 1 + bisect_left(range(1, worker.steps), now - worker.start, key=after)
            worker.cut = True
            if steps < worker.steps:
                worker.turn, worker.steps = worker.turn + 1, steps
                self.push(max(now, worker.start + after(steps)), "decoded", worker, worker.turn)

    def decoded(self, now: float, worker: Worker, turn: int) -> None:
        """The boundary after some steps: answers end and begin."""
        if turn != worker.turn:
            return
        number, again = len(worker.running), self.again
        worker.done, worker.context = worker.done + worker.steps, worker.context + worker.steps * number
        late = self.write.decoding(1, number, worker.context) if self.decoder.rules.late and number else 0.0
        for request in worker.made:
            self.first[request] = now + late
        while worker.running and worker.running[0][0] <= worker.done:
            request = heapq.heappop(worker.running)[1]
            tokens = self.prompts[request] + self.outputs[request]
            worker.context, worker.slots, worker.used = worker.context - tokens, worker.slots - 1, worker.used - tokens
            seen = now + (late if worker.running else 0.0)
            self.tpot[request] = (seen - self.first[request]) / (self.outputs[request] - 1)
            self.push(seen, "sends", worker)
        for request in worker.ready:
            heapq.heappush(worker.running, (worker.done + self.outputs[request] - (not again), request))
            worker.context += self.prompts[request] + (not again)
            self.first[request] = now
        worker.made, worker.ready = worker.ready if again else [], []
        self.fill(now, worker)
        worker.turn, worker.cut, worker.steps = worker.turn + 1, False, 0
        if worker.running:
            worker.start, worker.steps = now, 1 if worker.made else worker.running[0][0] - worker.done
            end = now + self.write.decoding(worker.steps, len(worker.running), worker.context)
            self.push(end, "decoded", worker, worker.turn)


def prepared(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that can be predicted; the reasons of the others are in `attrs`."""
    made, refused = [], {}
    for name, row in rows.iterrows():
        roles = [role_of(row, role) for role in ROLES]
        reason = "no recipe is known" if public(row) and pd.isna(row["recipe"]) else ""
        if reason := reason or max(servers.refusal(role.server, role.room, row["isl"] + row["osl"]) for role in roles):
            refused[name] = reason
            continue
        server = roles[1].server
        made.append({"name": name, "roles": roles, "server": server, "gpus": server.divided.gpus})
    frame = pd.DataFrame(made).set_index("name").join(rows)
    frame.attrs["refused"] = refused
    return frame


def replayed(frame: pd.DataFrame, fits: servers.Fits, unknown: bool = False) -> pd.DataFrame:
    """Seconds a token and to the first token of each row, with the constants of its GPU and engine."""
    made = []
    for row in frame.itertuples():
        constants = dict(zip(servers.CONSTANTS, fits[row.gpu][row.backend][:-1].tolist(), strict=True))
        one, two = pair = [role.server for role in row.roles]
        known = [servers.unmeasured(server) if unknown else servers.kernels(server) for server in pair]
        times = [
            Times(kernels, constants, server.divided.attention) for kernels, server in zip(known, pair, strict=True)
        ]
        model, peak = servers.architecture(two.model, two.formats), roofline.DEVICES[row.gpu]
        copies = two.divided.tensor if model.latent is not None else 1  # each GPU keeps all of them
        rate = roofline.Efficiency().link * peak.link if row.gpu in RACK else NETWORK
        seconds = model.bytes_per_token * copies / (rate * min(one.divided.tensor, two.divided.tensor))
        run = Replay(times, row.roles, [row.clients, row.isl, row.osl], seconds, row.front_ends)
        made.append((np.mean(run.tpot), np.mean(np.array(run.first) - np.array(run.arrived))))
    return pd.DataFrame(made, index=frame.index, columns=["tpot", "ttft"])
