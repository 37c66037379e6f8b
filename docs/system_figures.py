"""Draw the pictures of docs/systems.md, and the time of the dual approximation for docs/planning.md.

    python docs/make_figures.py systems              all of them, some minutes of processor time
    python docs/make_figures.py systems=two-networks one of them
    python docs/make_figures.py cost                 the time of the dual approximation
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import hetsim as hs
from hetsim.plots.draw import figure
from hetsim.results.colors import BLUE, GREEN, GRID, INK, MUTED, ORANGE
from hetsim.workload.costs.profiles import profile
from hetsim.workload.costs.roofline import DEVICES

FOLDER = Path(__file__).parent / "systems"


def tidy(ax: Any, grid: str = "y") -> None:
    """Axes without clutter: two spines, a light grid behind."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.tick_params(colors=INK, labelsize=9)
    ax.set_axisbelow(True)
    ax.grid(True, axis=grid, color=GRID, linewidth=0.8)


Case = tuple[str, Any, dict[str, Any]]
"""What a line of a picture is called, its policy (None: the scenario's own), and what it changes."""


def policies(**named: Any) -> list[Case]:
    return [(label.replace("__", ": "), policy, {}) for label, policy in named.items()]


def by(key: str, **named: Any) -> list[Case]:
    return [(label.replace("_", " "), None, {} if value is ... else {key: value}) for label, value in named.items()]


PREEMPTION, CACHE = "cluster.nodes.gpus.preemption", "workload.images.service.cache"
STREAMS, STAGES = "cluster.nodes.gpus.streams", "workload.requests.pipeline.devices"
NETWORK = [f"cluster.nodes.{k}.network.out" for k in (0, 1)]
SKIP = {"name": "sjf", "discipline": "skip"}

BARS: dict[str, tuple[str, str, float, list[Case] | None]] = {
    "planners-on-one-gpu": ("makespan", "makespan (s)", 1, None),
    "cnn-operators": ("makespan", "makespan (ms)", 1e-3, None),
    "slack-before-the-deadline": ("energy_tasks_j", "energy of the tasks (kJ)", 1e3, None),
    "wrong-estimates": ("makespan", "makespan (s), errors of 30 %", 1, [
        (name, name, {"workload.0.estimates.error": {"distribution": "lognormal", "cv": 0.3}})
        for name in ("dual_approximation", "heteroprio", "plan_and_repair")
    ]),
    "elastic-training": ("response_mean", "mean response (h)", 3600, None),
    "save-and-restore": ("response_mean", "mean response (s)", 1, None),
    "learned-affinity": ("slowdown_mean", "mean slowdown", 1, [
        *policies(fcfs="fcfs", sjf="sjf", allox="allox"),
        *((agent, {"name": "learned", "path": f"affinity-{agent}.npz"}, {}) for agent in ("dqn", "reinforce", "ppo")),
    ]),
    "overload": ("goodput_fraction", "answered in time (%)", 1e-2, None),
    "quotas-by-type": ("response_mean", "mean response (s)", 1, None),
    "known-and-unknown": ("slo_attainment", "in time (%)", 1e-2, None),
    "opening-hours": ("1 - slo_attainment", "deadlines missed (%)", 1e-2, [
        ("daily forecast", None, {}),
        ("rate of the last 5 min",
         {"name": "predictive", "target": 0.85, "predictor": {"name": "ewma", "memory": "5 min"}}, {}),
        ("utilization", {"name": "predictive", "target": 1, "predictor": "last_value", "signal": "utilization"}, {}),
    ]),
    "list-lemma": ("makespan", "makespan (s)", 1, None),
    "overlap": ("makespan", "makespan (s)", 1, by(STREAMS, one_stream=1, two_streams=2, three_streams=3)),
    "popular-inputs": ("response_mean", "mean response (ms)", 1e-3, [
        ("nothing kept", None, {CACHE: None}), ("LRU", None, {}), ("CLOCK", None, {f"{CACHE}.evict": "clock"}),
    ]),
    "kernels-that-yield": ("slo_attainment", "urgent kernels in time (%)", 1e-2, [
        ("nothing stopped", "priority", {}), *by(PREEMPTION, FLEP=..., draining="drain"),
    ]),
    "kernels-that-let-go": ("slo_attainment", "urgent kernels in time (%)", 1e-2, [
        ("nothing stopped", "priority", {}),
        *by(PREEMPTION, draining="drain", flushing="flush", switch_over_PCIe="context_switch",
            switch_at_100_GBps={"kind": "context_switch", "rate": "100 GB/s"}),
    ]),
    "fused-network": ("makespan", "time (ms)", 1e-3, [
        ("kernel by kernel", {"name": "constraint_injection", "candidates": 2, "max_fused": 1}, {}),
        ("fused", None, {}),
    ]),
    "two-networks": ("makespan", "512 micro-batches (s)", 1, [
        ("both slow", None, {NETWORK[0]: "10 Gb/s"}),
        ("fast for the K80", None, {NETWORK[0]: "10 Gb/s", NETWORK[1]: "100 Gb/s"}),
        ("fast for the V100", None, {}), ("both fast", None, {NETWORK[1]: "100 Gb/s"}),
    ]),
    "npu-and-gpu": ("response_mean", "mean response (ms)", 1e-3, by(STAGES, NPU_and_GPU=..., GPU_alone=["gpu"])),
    "wise-sharing": ("response_mean", "mean response (min)", 60, [
        ("fcfs", "fcfs", {}), ("one job a GPU", {"name": "sharing", "margin": 0.99}, {}), ("sharing", "sharing", {}),
    ]),
    "alike-or-apart": ("response_mean", "mean response (h)", 3600, policies(
        similarity__together={"name": "similarity", "prefer": "together"}, fcfs_skip="fcfs_skip",
        spread={"scheduler": "fcfs_skip", "placement": "spread"}, similarity__apart="similarity",
    )),
}  # fmt: skip
"""Of a scenario the metric, the label of its axis, its unit, and its cases; None: the policies that it proposes."""


def proposed(name: str) -> list[Case]:
    """The policies that a scenario's file proposes to compare, by the part of them that differs."""
    found = hs.load(name).raw["sweep"]["policy"]
    return [(label_of(policy, found), policy, {}) for policy in found]


def label_of(policy: Any, others: list[Any]) -> str:
    if isinstance(policy, str):
        return policy
    flat = {key: value for key, value in policy.items() if key != "name"}
    for part in ("admission", "batching", "scheduler"):
        chosen = policy.get(part)
        same = [one for one in others if isinstance(one, dict) and one.get(part) == chosen]
        if chosen is not None and same == [policy]:
            return chosen if isinstance(chosen, str) else label_of(chosen, [])
    told = ", ".join(f"{key}: {value}" for key, value in flat.items() if isinstance(value, str | int | float))
    alone = sum(1 for one in others if isinstance(one, dict) and one.get("name") == policy.get("name")) < 2
    name = str(policy.get("name", policy.get("scheduler", "")))
    return name if alone or not told else f"{name} ({told})"


def bars(name: str) -> Figure:
    """A metric under each case: the mean of the scenario's replications with its 95 % interval."""
    metric, label, unit, cases = BARS[name]
    cases = proposed(name) if cases is None else cases
    picture = figure(6.4, 0.9 + 0.32 * len(cases))
    ax = picture.add_subplot()
    for place, (_, policy, overrides) in enumerate(cases):
        runs = hs.replicate(name, policy=policy, overrides=overrides)
        found = runs.interval(metric.removeprefix("1 - ")) if len(runs) > 1 else None
        mean = (found.mean if found else runs.column(metric).iloc[0]) / unit
        mean = 1 / unit - mean if metric.startswith("1 - ") else mean
        ax.barh(place, mean, height=0.62, color=BLUE)
        if found and np.isfinite(found.half_width):
            ax.errorbar(mean, place, xerr=found.half_width / unit, color=INK, capsize=3, lw=1.2)
        ax.annotate(f"{mean:.3g}", (mean + (found.half_width / unit if found else 0), place), (4, 0),
                    textcoords="offset points", va="center", fontsize=8.5, color=INK)  # fmt: skip
    ax.set_yticks(range(len(cases)), [label for label, _, _ in cases])
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.set_xlim(left=0)
    ax.set_xlabel(label, fontsize=9, color=INK)
    tidy(ax, "x")
    return picture


def ramp(name: str) -> Figure:
    """Four panels over time, serial and asynchronous batches side by side."""
    names = {"serial": "serial_greedy", "asynchronous": "async_linear"}
    runs = {f"{label} ({policy})": {"batching": policy} for label, policy in names.items()}
    return hs.plots.batches({label: hs.run(name, policy=policy) for label, policy in runs.items()}).figure()


def clipper(name: str) -> Figure:
    """Each batch of the first 8 s: how many requests it takes and how long, against the limit."""
    picture = figure(8.4, 4.4)
    upper, lower = picture.subplots(2, 1, sharex=True)
    for policy, color in (("serial_greedy", MUTED), ("clipper_aimd", BLUE), ("clipper_quantile", ORANGE)):
        rows = hs.run(name, policy={"batching": policy}, overrides={"horizon": "8 s", "warmup": 0}).launches
        rows = rows[rows["outcome"] == "completed"]
        upper.plot(rows["decided"], rows["members"], ".-", ms=4, lw=0.8, color=color, label=policy)
        lower.plot(rows["decided"], 1e3 * (rows["end"] - rows["decided"]), ".-", ms=4, lw=0.8, color=color)
    lower.axhline(80, color=GREEN, ls="--", lw=1.2, label="limit")
    for ax, label in ((upper, "requests a batch"), (lower, "time of a batch (ms)")):
        ax.set_ylabel(label, fontsize=9, color=INK)
        ax.set_ylim(bottom=0)
        tidy(ax)
    lower.set_xlabel("time (s)", fontsize=9, color=INK)
    lower.set_xlim(0, 8)
    lower.legend(frameon=False, fontsize=9, loc="lower right")
    upper.legend(frameon=False, fontsize=9, loc="lower right", ncols=3)
    return picture


def thresholds(name: str) -> Figure:
    """Mean response over the rate: a threshold, no threshold, a timeout and a fixed size; and what the first gains."""
    from hetsim_policies.batching.bulk_queue import BulkQueue, mean_responses

    picture = figure(10.0, 3.6)
    ax, below = picture.subplots(1, 2)
    looks = ((GREEN, "^-"), (BLUE, "o-"), (ORANGE, "s--"), (MUTED, "d--"))
    greedy = np.array([])
    for (label, policy, _), (color, style) in zip(proposed(name), looks, strict=True):
        found = []
        for rate in RATES:
            over = {"workload.images.arrivals.rate": f"{rate}/s", "horizon": f"{12_000 / rate + 10:.0f} s"}
            found.append(hs.replicate(name, policy=policy, overrides=over, replications=5).column("response_mean"))
        values = 1e3 * np.array(found)
        ax.plot(RATES, values.mean(axis=1), style, ms=4, lw=1.2, color=color, label=label)
        greedy = greedy if len(greedy) else values
        if label == "batopt":
            gain = 100 * (values / greedy - 1)
            half = 2.78 * gain.std(axis=1, ddof=1) / np.sqrt(gain.shape[1])
            below.errorbar(RATES, gain.mean(axis=1), half, fmt="o", ms=4, color=color, capsize=3, label="batopt, 95 %")
    times = np.ceil(np.arange(1, 33) / 8) * 0.004 + 0.012
    grid = np.arange(50, 460, 10)
    best = [mean_responses(BulkQueue(float(rate), times, 128), list(range(1, 9))) for rate in grid]
    gains = [100 * (min(one) / one[0] - 1) for one in best]
    below.plot(grid, gains, color=INK, lw=1, label="the best threshold, exact")
    ax.set_ylim(0, 90)
    for panel, label in ((ax, "mean response (ms)"), (below, "response, against serial_greedy (%)")):
        panel.set_xlabel("requests per second", fontsize=9, color=INK)
        panel.set_ylabel(label, fontsize=9, color=INK)
        panel.legend(frameon=False, fontsize=9)
        tidy(panel)
    return picture


RATES = (50, 100, 150, 200, 300, 400, 450)


def generations(scenario: str) -> Figure:
    """Mean response against the energy of the tasks, with 95 % intervals."""
    cases = policies(
        fcfs="fcfs", earliest_finish={"scheduler": "fcfs_skip", "placement": "earliest_finish"},
        **{f"budget {most}": {"name": "multi_generation", "budget": most}
           for most in (1, 1.5, 2, 10)},
    )  # fmt: skip
    picture = figure(7.0, 4.0)
    ax = picture.add_subplot()
    for label, policy, _ in cases:
        several = hs.replicate(scenario, policy=policy)
        x, y = several.interval("energy_tasks_j"), several.interval("response_mean")
        planned = label.startswith("budget")
        halves, color = (y.half_width / 3600, x.half_width / 3.6e6), BLUE if planned else ORANGE
        name = "multi_generation, by its budget" if label == "budget 1" else None
        ax.errorbar(x.mean / 3.6e6, y.mean / 3600, *halves, "o", ms=5, lw=0.9, color=color, label=name)
        shift = {"fcfs": (6, 12), "budget 1.5": (-6, -12), "budget 10": (-6, -12)}.get(label, (6, -12))
        ax.annotate(label, (x.mean / 3.6e6, y.mean / 3600), shift, textcoords="offset points", fontsize=8.5, color=INK,
                    ha="left" if shift[0] > 0 else "right")  # fmt: skip
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    ax.set_xlabel("energy of the tasks (kWh)", fontsize=9, color=INK)
    ax.set_ylabel("mean response (h)", fontsize=9, color=INK)
    ax.margins(x=0.12, y=0.08)
    tidy(ax)
    return picture


def networks(_: str) -> Figure:
    """Where the time of a training step goes on a V100, from the layers of each network."""
    names = ("cnn", "rnn", "lstm", "gan")
    parts = np.array([profile(f"{name}_training").step().parts(DEVICES["v100"])[:3] for name in names]) * 1e3
    picture = figure(7.0, 2.9)
    ax = picture.add_subplot()
    for row, (launching, operations, traffic) in enumerate(parts):
        busy = max(operations, traffic)
        ax.barh(row, launching, height=0.5, color=MUTED, label=None if row else "launching kernels")
        color, label = (BLUE, "operations") if operations >= traffic else (ORANGE, "memory traffic")
        ax.barh(row, busy, left=launching, height=0.5, color=color, label=None if row not in (0, 1) else label)
        at = (launching + busy, row)
        ax.annotate(f"{at[0]:.3f} ms", at, (4, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK)
    ax.set_yticks(range(len(names)), [name.upper() for name in names])
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.set_xlabel("one training step of 64 samples on a V100 (ms)", fontsize=9, color=INK)
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    tidy(ax, "x")
    return picture


DRAWN: Mapping[str, Callable[[str], Figure]] = {
    **dict.fromkeys(BARS, bars), "async-ramp": ramp, "async-ramp-clients": ramp, "clipper-limit": clipper,
    "batopt-threshold": thresholds, "fast-for-those-that-gain": generations, "deep-learning-mix": networks,
}  # fmt: skip


def systems(only: str = "") -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        if only in ("", name):
            draw(name).savefig(FOLDER / f"{name}.png", dpi=64 if draw is ramp else 80, bbox_inches="tight")


# The time of the dual approximation ----------------------------------------------------------------------------


def cost() -> Figure:
    """Processor time of a guess of the recursion as published, and of the whole search as shipped, over n, m and k."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks.dual_as_published import as_published
    from benchmarks.static import processor_time, random_times
    from hetsim_policies.static.common.bounds import linear_bound
    from hetsim_policies.static.dual_approximation import solve

    def seconds(n: int, m: int, k: int) -> tuple[float, float]:
        p, q = random_times(n)
        guess = linear_bound(p, q, m, k) * 1.01
        steps = partial(as_published, p, q, m, k, guess), partial(solve, p, q, m, k)
        one, whole = (statistics.median(processor_time(step) for _ in range(3)) for step in steps)
        return one, whole

    sweeps = (  # of one letter, the sizes at k = 1 and at k >= 2, and the exponents of its bound
        ("n", [(n, 16, 1) for n in (25, 50, 100, 200, 400)], [(n, 8, 4) for n in (12, 25, 50, 100)], (2, 2)),
        ("m", [(100, m, 1) for m in (4, 8, 16, 32, 64)], [(40, m, 4) for m in (2, 4, 8, 16, 24)], (2, 2)),
        ("k", [], [(40, 8, k) for k in (2, 3, 4, 6, 8)], (0, 3)),
    )
    picture = figure(11.0, 4.0)
    for (letter, single, several, powers), ax in zip(sweeps, picture.subplots(1, 3, sharey=True), strict=True):
        place = "nmk".index(letter)
        for sizes, power, color, bound in ((single, powers[0], BLUE, "n²m²"), (several, powers[1], ORANGE, "n²k³m²")):
            if not sizes:
                continue
            fixed = ", ".join(f"{name} = {size}" for name, size in zip("nmk", sizes[0], strict=True) if name != letter)
            x = np.array([size[place] for size in sizes])
            one, whole = np.array([seconds(*size) for size in sizes]).T
            ax.plot(x, one, "o-", ms=4, lw=1.2, color=color, label=f"a guess as published, {fixed}")
            ax.plot(x, one[-1] * (x / x[-1]) ** power, ":", lw=1.4, color=color, label=f"O({bound})")
            ax.plot(x, whole, "x--", ms=5, lw=1, color=color, label="whole search as shipped")
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlabel({"n": "tasks n", "m": "CPU cores m", "k": "GPUs k"}[letter], fontsize=9, color=INK)
        ax.legend(frameon=False, fontsize=7, loc="upper left")
        ax.set_ylim(3e-4, 3e2)
        tidy(ax)
    picture.axes[0].set_ylabel("processor time (s)", fontsize=9, color=INK)
    return picture

