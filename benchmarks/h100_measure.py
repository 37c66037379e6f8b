# ruff: noqa: B023  (each function that uses a variable of a loop runs before the loop goes on)
"""Measure one GPU: batches, copies, two streams, decode steps, and a batch server under load.

    python -m benchmarks.h100_measure OUT batches copies streams decode server

Needs PyTorch and 60 GB of GPU memory, and takes 6 minutes on an H100, 5 of them for the server.  The part `again`
repeats five runs of the server.  Without a GPU the same code runs on the CPU with small models, to try it.
tests/measured/h100_* was made of what it writes; docs/background/measured-gpu.md says what came out.
"""

import csv
import gc
import gzip
import json
import platform
import subprocess
import sys
import time
import traceback
from collections import deque
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from hetsim.calibrate.torch_device import resnet50

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
KIND = torch.bfloat16 if CUDA else torch.float32
SIDE = 224 if CUDA else 32
if not CUDA:
    torch.set_num_threads(1)
FRAME = (3, 1080, 1920) if CUDA else (3, 48, 64)
MAX_BATCH = 64 if CUDA else 8
now = time.perf_counter


class HostEvent:
    def __init__(self, enable_timing=False):
        self.at = 0.0

    def record(self, stream=None):
        self.at = now()

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)

    def query(self):
        return True

    def synchronize(self):
        pass


class HostStream:
    def wait_event(self, event):
        pass

    def wait_stream(self, other):
        pass


def event(timing=True):
    return torch.cuda.Event(enable_timing=timing) if CUDA else HostEvent()


def new_stream():
    return torch.cuda.Stream() if CUDA else HostStream()


def on(stream):
    return torch.cuda.stream(stream) if CUDA else nullcontext()


def sync():
    if CUDA:
        torch.cuda.synchronize()


def pinned(values):
    return values.pin_memory() if CUDA else values


POOL = []


def captured(action, own_pool=False, apart=False):
    """A CUDA graph of an action, as a function that replays it."""
    if not CUDA:
        return action
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            action()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    if not own_pool and not POOL:
        POOL.append(torch.cuda.graph_pool_handle())
    with torch.cuda.graph(graph, pool=None if own_pool else POOL[0], stream=torch.cuda.Stream() if apart else None):
        action()
    return lambda keep=action: graph.replay()  # what the graph reads stays alive with the action


def timed(action, repeats, warmup=3):
    """Pairs of event time and wall time, in microseconds, of an action on the current stream."""
    for _ in range(warmup):
        action()
    sync()
    pairs = []
    for _ in range(repeats):
        first, last = event(), event()
        begin = now()
        first.record()
        action()
        last.record()
        sync()
        wall = now() - begin
        pairs.append((1e3 * first.elapsed_time(last), 1e6 * wall))
    return pairs


class Table:
    def __init__(self, folder, name, columns):
        self.path = folder / f"{name}.csv.gz"
        self.columns, self.rows = columns, []

    def add(self, *row):
        self.rows.append([f"{value:.2f}" if isinstance(value, float) else value for value in row])

    def save(self):
        with gzip.open(self.path, "wt", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(self.rows)


def median(pairs, which=0):
    return float(np.median([pair[which] for pair in pairs]))


# Models


def images():
    return resnet50().eval().to(DEVICE, KIND).to(memory_format=torch.channels_last)


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 12 if CUDA else 2).eval().to(DEVICE, KIND)


class Served:
    """ResNet-50 behind a resize of full HD frames: two slots of buffers, a CUDA graph for each slot and size."""

    def __init__(self, graphs):
        self.net = images()
        self.host = [pinned(torch.randint(0, 256, (MAX_BATCH, *FRAME), dtype=torch.uint8)) for _ in range(2)]
        self.inside = [host.to(DEVICE) for host in self.host]
        self.out = [torch.zeros(MAX_BATCH, 1000, dtype=KIND, device=DEVICE) for _ in range(2)]
        self.answer = [pinned(torch.zeros(MAX_BATCH, 1000, dtype=KIND)) for _ in range(2)]
        self.up, self.work, self.down = (new_stream() for _ in range(3))
        self.graphs = {}
        sync()
        if graphs:
            for slot in range(2):
                for n in range(MAX_BATCH, 0, -1):
                    self.graphs[slot, n] = captured(lambda: self.forward(slot, n))
        sync()

    def forward(self, slot, n):
        values = self.inside[slot][:n].to(KIND)
        values = F.interpolate(values, size=(SIDE, SIDE), mode="bilinear", align_corners=False) / 127.5 - 1.0
        self.out[slot][:n].copy_(self.net(values.contiguous(memory_format=torch.channels_last)))

    def upload(self, slot, n):
        self.inside[slot][:n].copy_(self.host[slot][:n], non_blocking=True)

    def compute(self, slot, n):
        replay = self.graphs.get((slot, n))
        if replay is None:
            self.forward(slot, n)
        else:
            replay()

    def download(self, slot, n):
        self.answer[slot][:n].copy_(self.out[slot][:n], non_blocking=True)


# (a)


def part_batches(out):
    table = Table(out, "batches", ("model", "size", "event_us", "wall_us"))
    repeats = 50 if CUDA else 3
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256) if CUDA else (1, 2, 4)
    with torch.inference_mode():
        for name, net, shape in (("resnet50", images(), (3, SIDE, SIDE)), ("encoder", encoder(), (128, 768))):
            for n in sizes:
                values = torch.randn(n, *shape, device=DEVICE).to(KIND)
                if len(shape) == 3:
                    values = values.contiguous(memory_format=torch.channels_last)
                for pair in (pairs := timed(lambda: net(values), repeats, 5)):
                    table.add(name, n, *pair)
                print(f"{name} {n}: {median(pairs):.0f} us, wall {median(pairs, 1):.0f}", flush=True)
                if n in (1, 8, 64):
                    replay = captured(lambda: net(values), own_pool=True)
                    for pair in (pairs := timed(replay, repeats, 5)):
                        table.add(f"{name} graph", n, *pair)
                    print(f"{name} graph {n}: {median(pairs):.0f} us, wall {median(pairs, 1):.0f}", flush=True)
                    del replay
    table.save()


# (b)


def part_copies(out):  # noqa: C901  (a list of measurements)
    table = Table(out, "copies", ("direction", "memory", "bytes", "event_us", "wall_us"))
    top = 30 if CUDA else 20
    size = 1 << top
    device = torch.empty(size, dtype=torch.uint8, device=DEVICE).random_(0, 256)
    device2 = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    hosts = {"pageable": torch.empty(size, dtype=torch.uint8).random_(0, 256)}
    hosts["pinned"] = pinned(hosts["pageable"])
    other = pinned(torch.zeros(size, dtype=torch.uint8))
    for memory, host in hosts.items():
        for k in range(12, top + 1, 2):
            n = 1 << k
            repeats = 30 if k <= 24 else 10 if k <= 28 or memory == "pinned" else 4
            ways = {"up": lambda: device[:n].copy_(host[:n], non_blocking=True)}
            ways["down"] = lambda: host[:n].copy_(device[:n], non_blocking=True)
            for way, action in ways.items():
                for pair in (pairs := timed(action, repeats, 3 if k <= 24 else 1)):
                    table.add(way, memory, n, *pair)
                print(f"{way} {memory} {n}: {median(pairs):.1f} us, {n / median(pairs) / 1e3:.2f} GB/s")
    table.save()
    both = Table(out, "overlap", ("what", "bytes", "event_us", "alone_us"))
    up, down = new_stream(), new_stream()

    def together(first, second, repeats=20):
        """Microseconds of each of two actions that start together, on streams of their own."""
        rows = []
        for k in range(repeats + 2):
            marks = [event() for _ in range(4)]
            sync()
            for stream, action, (begin, end) in ((up, first, marks[:2]), (down, second, marks[2:])):
                with on(stream):
                    begin.record()
                    action()
                    end.record()
            sync()
            if k >= 2:
                rows.append((1e3 * marks[0].elapsed_time(marks[1]), 1e3 * marks[2].elapsed_time(marks[3])))
        return rows

    host = hosts["pinned"]
    for k in (20, 24, 28) if CUDA else (14,):
        n = 1 << k
        rounds = max(1, (1 << 28) // n) if CUDA else 1

        def copy_up():
            for _ in range(rounds):
                device[:n].copy_(host[:n], non_blocking=True)

        def copy_down():
            for _ in range(rounds):
                other[:n].copy_(device2[:n], non_blocking=True)

        alone = [median(timed(copy_up, 10)), median(timed(copy_down, 10))]
        rows = together(copy_up, copy_down)
        for number, what in enumerate(("up beside down", "down beside up")):
            for row in rows:
                both.add(what, n, row[number] / rounds, alone[number] / rounds)
            print(f"{what} {n}: {np.median([r[number] for r in rows]) / rounds:.1f} alone {alone[number] / rounds:.1f}")
    side = 8192 if CUDA else 64
    a, b, c = (torch.randn(side, side, device=DEVICE).to(KIND) for _ in range(3))
    big = [torch.empty(1 << (29 if CUDA else 12), device=DEVICE, dtype=torch.uint8) for _ in range(2)]

    def products():
        for _ in range(12):
            torch.mm(a, b, out=c)

    def moves():
        for _ in range(40):
            big[0].copy_(big[1])

    n = 1 << 28 if CUDA else 1 << 14

    def copy_up():
        for _ in range(3):
            device[:n].copy_(host[:n], non_blocking=True)

    def copy_down():
        for _ in range(3):
            host[:n].copy_(device[:n], non_blocking=True)

    for name, kernel in (("matrix products", products), ("memory kernel", moves)):
        for way, copy in (("up", copy_up), ("down", copy_down)):
            alone = [median(timed(copy, 6)), median(timed(kernel, 6))]
            rows = together(copy, kernel, 10)
            for number, what in enumerate((f"{way} beside {name}", f"{name} beside {way}")):
                for row in rows:
                    both.add(what, n, row[number], alone[number])
                print(f"{what}: {np.median([r[number] for r in rows]):.0f} alone {alone[number]:.0f}")
    both.save()


# (c)


def part_streams(out):  # noqa: C901
    table = Table(out, "streams", ("kernel", "size", "alone_us", "two_us"))
    streams = [new_stream(), new_stream()]

    def both(actions, repeats=12):
        rows = []
        for k in range(repeats + 2):
            sync()
            begin = now()
            for stream, action in zip(streams, actions, strict=False):
                with on(stream):
                    action()
            sync()
            if k >= 2:
                rows.append(1e6 * (now() - begin))
        return rows

    def record(name, size, one, two, rounds):
        turns = [(both([one], 4), both([two], 4), both([one, two], 4)) for _ in range(3)]
        alone = [[value for turn in turns for value in turn[k]] for k in (0, 1)]
        pair = [value for turn in turns for value in turn[2]]
        for number in range(len(pair)):
            table.add(name, size, (alone[0][number] + alone[1][number]) / 2 / rounds, pair[number] / rounds)
        print(f"{name} {size}: alone {np.median(alone) / rounds:.2f} two {np.median(pair) / rounds:.2f} us", flush=True)

    for side in (128, 256, 512, 1024, 1536, 2048, 4096, 8192) if CUDA else (32, 64):
        rounds = int(min(1000, max(10, 4e12 / (2 * side**3)))) if CUDA else 2
        actions, operands = [], []
        for _ in range(2):
            a, b, c = (torch.randn(side, side, device=DEVICE).to(KIND) for _ in range(3))

            def products(a=a, b=b, c=c):
                for _ in range(rounds):
                    torch.mm(a, b, out=c)

            actions.append(captured(products, own_pool=True, apart=True))
            operands.append((a, b, c))
        record("matrix product", side, *actions, rounds)
        for a, b, c in operands:
            error = (c.float() - torch.mm(a, b).float()).norm() / c.float().norm()
            print(f"  off by {error.item():.1e}")
    for k in (14, 16, 18, 20, 22, 24, 26) if CUDA else (8,):
        actions = []
        rounds = 200 if k <= 22 else 40
        for _ in range(2):
            a = torch.ones(1 << k, device=DEVICE)

            def scale(a=a):
                for _ in range(rounds):
                    a.mul_(1.0)

            actions.append(captured(scale, own_pool=True, apart=True))
        record("scaling", 1 << k, *actions, rounds)
    nets = [images(), images()]
    with torch.inference_mode():
        for n in (1, 4, 16, 64) if CUDA else (1,):
            actions = []
            for net in nets:
                values = (
                    torch.randn(n, 3, SIDE, SIDE, device=DEVICE).to(KIND).contiguous(memory_format=torch.channels_last)
                )

                def forward(net=net, values=values):
                    for _ in range(5):
                        net(values)

                actions.append(captured(forward, own_pool=True, apart=True))
            record("resnet50", n, *actions, 5)
    table.save()


# (f)

SIZES = (32, 4096, 32, 8, 128, 14336, 128256) if CUDA else (2, 64, 4, 2, 16, 96, 100)
LAYERS, HIDDEN, HEADS, KV, HEAD, INNER, WORDS = SIZES


class Decoder:
    """The matrices of a Llama 3 8B with random weights, and one buffer for keys and values."""

    def __init__(self, tokens):
        def weight(rows, columns):
            return torch.empty(rows, columns, device=DEVICE, dtype=KIND).normal_(0, 0.02)

        self.layers = [
            (
                weight(HIDDEN + 2 * KV * HEAD, HIDDEN),
                weight(HIDDEN, HIDDEN),
                weight(2 * INNER, HIDDEN),
                weight(HIDDEN, INNER),
            )
            for _ in range(LAYERS)
        ]
        self.head = weight(WORDS, HIDDEN)
        self.gain = torch.ones(HIDDEN, device=DEVICE, dtype=KIND)
        self.cache = torch.empty(LAYERS, 2, tokens * KV * HEAD, device=DEVICE, dtype=KIND)
        for layer in range(LAYERS):
            self.cache[layer].normal_(0, 1)

    def step(self, x, n, context):
        """One step of n sequences with a token each, or (context 0) of one prompt of n tokens."""
        for number, (qkv, out, up, down) in enumerate(self.layers):
            y = F.linear(F.rms_norm(x, (HIDDEN,), self.gain), qkv)
            q, k, v = y.split((HIDDEN, KV * HEAD, KV * HEAD), -1)
            if context:
                room = n * context * KV * HEAD
                keys, values = (self.cache[number, i, :room].view(n, KV, context, HEAD) for i in (0, 1))
                keys[:, :, -1].copy_(k.view(n, KV, HEAD))
                values[:, :, -1].copy_(v.view(n, KV, HEAD))
                # the query heads of a group are the rows of one product with its keys
                q = q.reshape(n, KV, HEADS // KV, HEAD)
                a = F.scaled_dot_product_attention(q, keys, values).reshape(n, HIDDEN)
            else:
                q = q.view(1, n, HEADS, HEAD).transpose(1, 2)
                k = k.view(1, n, KV, HEAD).transpose(1, 2).repeat_interleave(HEADS // KV, 1)
                v = v.view(1, n, KV, HEAD).transpose(1, 2).repeat_interleave(HEADS // KV, 1)
                a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, HIDDEN)
            x = x + F.linear(a, out)
            gate, inner = F.linear(F.rms_norm(x, (HIDDEN,), self.gain), up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * inner, down)
        if not context:
            x = x[-1:]
        return F.linear(F.rms_norm(x, (HIDDEN,), self.gain), self.head).argmax(-1)


def part_decode(out):
    table = Table(out, "decode", ("what", "batch", "tokens", "event_us", "wall_us"))
    sizes = (1, 2, 4, 8, 16, 32, 64) if CUDA else (1, 2)
    contexts = (128, 512, 1024, 2048, 4096) if CUDA else (16, 32)
    with torch.inference_mode():
        model = Decoder(sizes[-1] * contexts[-1])
        for n in sizes:
            x = torch.randn(n, HIDDEN, device=DEVICE).to(KIND)
            for context in contexts:
                replay = captured(lambda: model.step(x, n, context), own_pool=True)
                for pair in (pairs := timed(replay, 20 if CUDA else 2, 3)):
                    table.add("decode graph", n, context, *pair)
                line = f"decode {n} x {context}: {median(pairs):.0f} us"
                if context in contexts[:1] + contexts[-1:]:
                    for pair in (pairs := timed(lambda: model.step(x, n, context), 10 if CUDA else 2, 2)):
                        table.add("decode eager", n, context, *pair)
                    line += f", eager {median(pairs):.0f}"
                print(line, flush=True)
                del replay
        for n in (128, 256, 512, 1024, 2048, 4096) if CUDA else (16,):
            x = torch.randn(n, HIDDEN, device=DEVICE).to(KIND)
            for pair in (pairs := timed(lambda: model.step(x, n, 0), 10 if CUDA else 2, 2)):
                table.add("prefill eager", 1, n, *pair)
            print(f"prefill {n}: {median(pairs):.0f} us", flush=True)
    table.save()


# (d), (e)


def poisson(rate, seconds, seed):
    random = np.random.default_rng(seed)
    return np.sort(np.round(random.random(random.poisson(rate * seconds)) * seconds, 6))


def ramp(low, high, seconds, seed):
    """From low to high in 40 % of the time, 20 % at high, and back: thinned."""
    random = np.random.default_rng(seed)
    times = np.sort(np.round(random.random(random.poisson(high * seconds)) * seconds, 6))
    rate = np.interp(times, [0, 0.4 * seconds, 0.6 * seconds, seconds], [low, high, high, low])
    return times[random.random(len(times)) * high < rate]


def stages(marks):
    return [1e3 * marks[k].elapsed_time(marks[k + 1]) for k in (0, 2, 4)]


def serve_serial(served, arrivals, log):
    """All that waits, up to a limit, uploaded, computed, downloaded, answered; then the next."""
    done = 0
    begin = now() + 0.01
    due = begin + arrivals
    with on(served.work):
        while done < len(due):
            while now() < due[done]:
                pass
            launch = now()
            n = min(int(np.searchsorted(due, launch, side="right")) - done, MAX_BATCH)
            marks = [event() for _ in range(6)]
            for k, action in enumerate((served.upload, served.compute, served.download)):
                marks[2 * k].record()
                action(0, n)
                marks[2 * k + 1].record()
            issued = now()
            marks[5].synchronize()
            log.append((launch - begin, n, now() - begin, [*stages(marks), 1e6 * (issued - launch)]))
            done += n


def serve_overlapped(served, arrivals, log):
    """Two batches in flight, on streams of their own for upload, compute and download."""
    taken, done, turn = 0, 0, 0
    begin = now() + 0.01
    due = begin + arrivals
    flying = deque()
    while done < len(due):
        if flying and flying[0][2][5].query():
            launch, n, marks, issued = flying.popleft()
            log.append((launch - begin, n, now() - begin, [*stages(marks), 1e6 * (issued - launch)]))
            done += n
        if len(flying) < 2 and taken < len(due) and due[taken] <= (launch := now()):
            n = min(int(np.searchsorted(due, launch, side="right")) - taken, MAX_BATCH)
            marks = [event() for _ in range(6)]
            slot = turn = 1 - turn
            before = None
            for k, (stream, action) in enumerate(
                ((served.up, served.upload), (served.work, served.compute), (served.down, served.download))
            ):
                with on(stream):
                    if before is not None:
                        stream.wait_event(before)
                    marks[2 * k].record()
                    action(slot, n)
                    marks[2 * k + 1].record()
                    before = marks[2 * k + 1]
            flying.append((launch, n, marks, now()))
            taken += n


def summary(arrivals, log):
    sizes = np.array([row[1] for row in log])
    response = np.repeat([row[2] for row in log], sizes) - arrivals
    lasted = log[-1][2] - arrivals[0]
    quantiles = np.quantile(response, [0.5, 0.9, 0.99])
    return {
        "requests": len(arrivals),
        "mean": response.mean(),
        **dict(zip(("p50", "p90", "p99"), quantiles, strict=True)),
        "batch": len(arrivals) / len(log),
        "throughput": len(arrivals) / lasted,
    }


AGAIN = [("graph", "serial", 0.9, 4192, 20.0, 3), ("graph", "async", 0.6, 5299, 20.0, 1)]
AGAIN += [("graph", "async", 0.9, 7949, 20.0, 3), ("eager", "serial", 0.6, 2718, 10.0, 0)]
AGAIN += [("graph", "serial", 0.6, 2795, 10.0, 1)]
"""Runs that are repeated, at the rates of the first attempt: mode, executor, load, rate, seconds, seed."""


def stage_times(served, points, mode, uploads):
    """Measure the stages of the served model; median microseconds of a full batch, and the capacities."""
    powers = [1 << k for k in range(MAX_BATCH.bit_length()) if 1 << k <= MAX_BATCH]
    medians = dict(uploads)
    for stage, action in (("upload", served.upload), ("compute", served.compute), ("download", served.download)):
        if stage in medians and stage != "compute":
            continue  # transfers are the same in both modes
        sizes = range(1, MAX_BATCH + 1) if stage == "compute" and mode == "graph" else powers
        with on(served.work):
            for n in sizes:
                pairs = timed(lambda: action(0, n), 50 if n in powers else 12, 3)
                for pair in pairs:
                    points.add(mode, stage, n, *pair)
        medians[stage] = median(pairs)
        print(f"{mode} {stage} {n}: {medians[stage]:.1f} us", flush=True)
    stages = [medians[stage] for stage in ("upload", "compute", "download")]
    rates = {"serial": MAX_BATCH / sum(stages) * 1e6, "async": MAX_BATCH / max(stages) * 1e6}
    return medians, {kind: round(rate) for kind, rate in rates.items()}


def planned(capacity):
    """The runs of the server: mode, executor, what is known of the run, and its arrivals."""
    for mode, seconds, loads in (("graph", 20.0, (0.3, 0.6, 0.8, 0.9, 1.2)), ("eager", 10.0, (0.6, 0.9))):
        for kind in ("serial", "async"):
            for seed, load in enumerate(loads):
                yield mode, kind, load, round(load * capacity[mode][kind]), seconds, seed
    high = round(0.9 * capacity["graph"]["serial"])
    for kind in ("serial", "async"):
        yield "graph", kind, "ramp", high, 20.0, 100


def part_server(out, again=False):
    columns = ("run", "launch_us", "size", "done_us", "upload_us", "compute_us", "download_us", "issue_us")
    table = Table(out, "server", columns)
    points = Table(out, "stages", ("mode", "stage", "size", "event_us", "wall_us"))
    runs, capacity, transfers = [], {}, {}
    with torch.inference_mode():
        served = Served(graphs=True)
        graphs = served.graphs
        for mode in ("graph", "eager"):
            served.graphs = graphs if mode == "graph" else {}
            transfers, capacity[mode] = stage_times(served, points, mode, transfers)
        points.save()
        for mode, kind, load, rate, seconds, seed in AGAIN if again else planned(capacity):
            seconds = seconds if CUDA else 0.5
            rate = rate if CUDA else min(rate, 100)
            times = ramp(200, rate, seconds, seed) if load == "ramp" else poisson(rate, seconds, seed)
            served.graphs = graphs if mode == "graph" else {}
            log = []
            gc.collect()
            gc.disable()
            (serve_serial if kind == "serial" else serve_overlapped)(served, times, log)
            gc.enable()
            name = f"{mode} {kind} {load}"
            for launch, n, done, stages in log:
                table.add(name, round(1e6 * launch), n, round(1e6 * done), *(round(one, 1) for one in stages))
            about = {"mode": mode, "kind": kind, "load": load, "rate": rate, "seconds": seconds, "seed": seed}
            runs.append({**about, **{key: float(value) for key, value in summary(times, log).items()}})
            print(runs[-1], flush=True)
            (out / "runs.json").write_text(json.dumps(runs, indent=1))
        table.save()


def state():
    """What nvidia-smi says of the GPU now."""
    keys = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={keys}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return "none"


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    begin = now()
    info = [f"python {platform.python_version()} torch {torch.__version__}", state()]
    if CUDA:
        info.append(f"{torch.cuda.get_device_name()} cuda {torch.version.cuda} cudnn {torch.backends.cudnn.version()}")
    print(*info, sep="\n", flush=True)
    parts = {
        "batches": part_batches,
        "copies": part_copies,
        "streams": part_streams,
        "decode": part_decode,
        "server": part_server,
        "again": lambda out: part_server(out, again=True),
    }
    for name in sys.argv[2:]:
        started = now()
        try:
            parts[name](out)
        except Exception:
            traceback.print_exc(file=sys.stdout)
        POOL.clear()
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()
        info.append(f"{name} {now() - started:.1f} s; {state()}")
        print(f"== {info[-1]}; {now() - begin:.0f} s in all", flush=True)
    (out / f"info-{'-'.join(sys.argv[2:])}.txt").write_text("\n".join(info) + "\n")


if __name__ == "__main__":
    main()
