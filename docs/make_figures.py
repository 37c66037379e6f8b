"""Draw the pictures of the guide.

    python docs/make_figures.py            some minutes of processor time
    python docs/make_figures.py pictures   some of them only

queues, ratios, batches: simulations next to exact results, for docs/background/validation.md; theory-models: for
docs/theory.md.  measured-gpu: next to measurements.  vulnerable-region: a sweep and the edge in the fluid limit, for
docs/admission.md.  pictures: what the blocks of docs/pictures.md write, as far as
the page shows it.  questions: what the commands of docs/questions.md print, for the questions that have a picture.
systems (systems=NAME: one of them), cost: docs/system_figures.py.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import system_figures  # in this folder
from matplotlib.figure import Figure
from system_figures import tidy

import hetsim as hs
from hetsim import theory
from hetsim.plots.draw import figure
from hetsim.queueing.matching import match
from hetsim.results.colors import BLUE, GREEN, INK, MUTED, ORANGE

DOCS = Path(__file__).parent.absolute()
FOLDER = DOCS / "background"


def queues() -> Figure:
    """Mean wait of M/M/1 and M/M/16 over the load: Erlang's formula and intervals of ten runs."""
    picture = figure(8.0, 4.2)
    ax = picture.add_subplot()
    for servers, color in ((1, BLUE), (16, ORANGE)):
        loads = np.linspace(0.4, 0.92, 60)
        exact = [theory.mmc(load * servers, 1.0, servers=servers).wait_mean for load in loads]
        ax.plot(loads, exact, color=color, label=f"M/M/{servers}, exact")
        for load in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9):
            several = hs.replicate(
                "mm16",
                overrides={
                    "cluster.nodes.gpus.count": servers,
                    "workload.0.arrivals.rate": f"{load * servers}/s",
                    "horizon": f"{40_000 / servers + 2000} s",
                    "warmup": "2000 s",
                },
                replications=10,
            )
            found = several.interval("wait_mean", 0.99)
            ax.plot([load, load], [found.low, found.high], color=INK, lw=2, solid_capstyle="butt")
            ax.plot([load], [found.mean], marker="_", ms=9, color=INK)
    ax.set_yscale("log")
    ax.set_xlabel("load")
    ax.set_ylabel("mean wait (service = 1 s)")
    ax.plot([], [], color=INK, lw=2, label="simulated: 99 % interval of ten runs")
    ax.legend(frameon=False)
    tidy(ax)
    return picture


def entry(rate: str, mean: str = "1 s", **more: Any) -> dict[str, Any]:
    """Return a workload of Poisson arrivals with exponential run times."""
    times = {"distribution": "exponential", "mean": mean}
    return {"arrivals": {"process": "poisson", "rate": rate}, "gpu_time": times, **more}


FAULTS = [{"on": "gpu", "every": {"distribution": "exponential", "mean": "60 s"},
           "repair": {"distribution": "exponential", "mean": "10 s"}}]  # fmt: skip
PHASES = {"distribution": "hyperexponential", "mean": "1 s", "cv": 2}
POWER = {"idle": "60 W", "busy": "400 W", "sleep": "8 W", "wake": "0.8 s"}
POWER_DOWN = {"name": "power_down", "patience": "1 s", "safety": 0, "memory": "10 h"}
MODELS: list[tuple[str, str, int, list[float], Any]] = [
    ("MMPP/PH/3 (Latouche, Ramaswami 1993)", "rate in the busy state (1/s)", 3, [2, 3, 4, 5], lambda x: {"workload": [
        {"arrivals": {"process": "mmpp", "rates": ["0.4/s", f"{x}/s"], "holding": ["3 s", "2 s"]},
         "gpu_time": PHASES}]}),
    ("faults on 3 GPUs, work kept (Mitrany, Avi-Itzhak 1968)", "arrivals (1/s)", 3, [0.5, 1.2, 1.8, 2.2], lambda x: {
        "faults": FAULTS, "workload": [entry(f"{x}/s", stopping={"interval": "1 ms"})]}),
    ("faults on one, work lost (White, Christie 1958)", "arrivals (1/s)", 1, [0.1, 0.3, 0.5, 0.65], lambda x: {
        "faults": FAULTS, "workload": [entry(f"{x}/s")]}),
    ("two priorities on 3 GPUs, mean of both (a chain)", "arrivals of each (1/s)", 3, [0.2, 0.4, 0.6, 0.75], lambda x: {
        "policy": "priority", "workload": [entry(f"{x}/s", "0.5 s", name="urgent", priority=1),
                                           entry(f"{x}/s", "3 s", name="other")]}),
    ("closed loops of two classes on 2 GPUs (BCMP 1975)", "clients of each", 2, [2, 4, 6, 9], lambda x: {"workload": [
        {**entry("1/s"), "name": name, "arrivals": {"process": "closed", "clients": x, "think": think}}
        for name, think in (("eager", "3 s"), ("slow", "10 s"))]}),
    ("square wave on 2 GPUs (Jensen 1953)", "upper rate (1/s)", 2, [1.5, 2.5, 3.2, 3.8], lambda x: {"workload": [
        entry("1/s", "0.8 s") | {"arrivals": {
            "process": "piecewise_poisson", "rate": [["0 s", "0.5/s"], ["30 s", f"{x}/s"]], "period": "50 s"}}]}),
    ("a GPU that sleeps (Levy, Kleinrock 1986)", "arrivals (1/s)", 1, [0.1, 0.2, 0.3, 0.4], lambda x: {
        "cluster": {"nodes": [{"gpus": {"type": "g", "power": POWER}}]}, "policy": {"scheduler": POWER_DOWN},
        "workload": [entry(f"{x}/s")]}),
    ("PH/PH/3 (Latouche, Ramaswami 1993)", "scv of the gaps", 3, [0.25, 1.5, 3, 5], lambda x: {"workload": [
        {"arrivals": {"process": "renewal", "rate": "2.2/s", "scv": x}, "gpu_time": PHASES}]}),
]  # fmt: skip
"""Title, varied quantity, number of GPUs, values, and the changes of the scenario for a value."""


def models() -> Figure:
    """Draw predicted and simulated mean responses of scenarios that `hetsim theory` recognizes."""
    picture = figure(11.0, 12.0)
    axes = picture.subplots(4, 2).ravel()
    for ax, (title, label, gpus, values, changes) in zip(axes, MODELS, strict=True):
        base = {"name": "model", "seed": 1, "warmup": "1000 s", "horizon": "21000 s",
                "cluster": {"nodes": [{"gpus": {"type": "g", "count": gpus}}]}}  # fmt: skip
        scenarios = [hs.load(base | changes(value)) for value in values]
        metric = "throughput" if "loops" in title else "response_mean"
        predicted = [prediction(match(one), metric) for one in scenarios]
        ax.plot(values, predicted, color=BLUE, label="predicted")
        for value, one in zip(values, scenarios, strict=True):
            interval = hs.replicate(one, replications=10).interval(metric, 0.99)
            ax.plot([value, value], [interval.low, interval.high], color=INK, lw=2, solid_capstyle="butt")
            ax.plot([value], [interval.mean], marker="_", ms=9, color=INK)
        ax.set_title(title, fontsize=9)
        ax.set_xlabel(label)
        ax.set_ylabel("throughput (1/s)" if metric == "throughput" else "mean response (s)")
        ax.set_ylim(bottom=0)
        tidy(ax)
    axes[0].plot([], [], color=INK, lw=2, label="simulated: 99 % interval of ten runs")
    axes[0].legend(frameon=False)
    picture.set_layout_engine("tight")
    return picture


def prediction(matched: Any, metric: str) -> float:
    """Return the prediction for all tasks: the mean over classes, which are equally frequent in these scenarios."""
    rows = [row.value for row in matched.rows if row.metric == metric]
    return sum(rows) / len(rows)


KERNELS = {
    "cluster": {"nodes": [{"cpus": 8, "gpus": {"type": "v100", "count": 3}}]},
    "workload": [
        {
            "name": "kernels",
            "arrivals": {"process": "all_at_once", "count": 30},
            "gpu_time": {"distribution": "lognormal", "mean": "4 s", "cv": 0.8},
            "cpu_time": {"speedup": 6},
        },
        {
            "name": "scalar",
            "arrivals": {"process": "all_at_once", "count": 15},
            "cpu_time": {"distribution": "uniform", "low": "2 s", "high": "14 s"},
            "gpu_time": {"distribution": "uniform", "low": "2 s", "high": "20 s"},
        },
    ],
}
"""The tasks of docs/planning.md."""


def ratios() -> Figure:
    """Draw the makespan over the certified lower bound, for forty random instances of one workload."""
    policies = ["dual_approximation", "heft", "greedy_dual", "heteroprio", "mct", "min_min", "graham"]
    over = {policy: [] for policy in policies}
    for seed in range(40):
        runs = {policy: hs.run({**KERNELS, "seed": seed, "policy": policy}) for policy in policies}
        first = runs["dual_approximation"]
        bound = first.metric("makespan") / first.metric("makespan_ratio")
        for policy, result in runs.items():
            over[policy].append(result.metric("makespan") / bound)
    picture = figure(8.0, 3.8)
    ax = picture.add_subplot()
    ax.boxplot(
        list(over.values()), orientation="horizontal", whis=(0, 100), widths=0.55, medianprops={"color": BLUE, "lw": 2}
    )
    ax.set_yticks(range(1, len(policies) + 1), policies)
    ax.invert_yaxis()
    ax.axvline(4 / 3, color=GREEN, ls="--", label="4/3: proven for dual_approximation")
    ax.set_xlabel("makespan / certified lower bound, forty draws (median, quartiles, extremes)")
    ax.legend(frameon=False)
    tidy(ax, "x")
    return picture


def batches() -> Figure:
    """Mean latency of batches over the rate: the Markov chain of greedy batches, and both policies simulated."""
    per_item, fixed = (0.114 + 1.264) / 1e3, (0.15 + 13 + 0.05) / 1e3
    picture = figure(8.0, 4.2)
    ax = picture.add_subplot()
    rates = np.linspace(50, 690, 50)
    exact = [1e3 * theory.greedy_batches(rate, per_item, fixed).response_mean for rate in rates]
    ax.plot(rates, exact, color=BLUE, label="serial_greedy, exact (a Markov chain)")
    marks = (100, 196, 300, 400, 500, 600, 653)
    for policy, color, kept in (("serial_greedy", INK, []), ("async_linear", ORANGE, [])):
        for rate in marks:
            over = {"workload.0.arrivals.rate": f"{rate}/s"}
            several = hs.replicate("async-latency", policy={"batching": policy}, overrides=over, replications=10)
            found = several.interval("response_mean", 0.99)
            kept.append((1e3 * found.low, 1e3 * found.mean, 1e3 * found.high))
        low, mean, high = np.array(kept).T
        ax.errorbar(
            marks, mean, [mean - low, high - mean], fmt="o", ms=4, color=color, capsize=3,
            label=f"{policy}, simulated: 99 % interval of ten runs",
        )  # fmt: skip
    ax.set_yscale("log")
    ax.set_xlabel("requests per second")
    ax.set_ylabel("mean latency (ms)")
    ax.legend(frameon=False)
    tidy(ax)
    ax.tick_params(which="minor", colors=MUTED)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter("{x:g}")
    return picture


def measured_gpu() -> Figure:
    """Draw the latency of a batch server on an H100, with predictions as lines and measurements as marks."""
    from benchmarks import h100

    picture = figure(8.0, 3.8)
    loads, ramp = picture.subplots(1, 2)
    runs = [run for run in h100.runs() if run["executor"] == "graph" and run["load"] != "1.2"]
    for streams, kind, color in ((1, "serial", BLUE), (2, "asynchronous", ORANGE)):
        steady = [run for run in runs if run["streams"] == streams and run["load"] != "ramp"]
        simulated = [h100.predicted(run) for run in steady if run["attempt"] == 1]
        rates = [run["rate"] for run in steady if run["attempt"] == 1]
        for key, style, mark in (("mean_ms", "-", "o"), ("p99_ms", "--", "^")):
            name = f"{kind}, {'mean' if key == 'mean_ms' else '99th percentile'}"
            loads.plot(rates, [row[key] for row in simulated], style, color=color, label=name)
            loads.plot([run["rate"] for run in steady], [run[key] for run in steady], mark, ms=4, color=color)
        (run,) = (one for one in runs if one["load"] == "ramp" and one["streams"] == streams)
        there = h100.ramp(streams)
        tasks = h100.simulated(run).tasks
        here = 1e3 * tasks["response"].groupby(tasks["arrival"].astype(int)).mean()
        ramp.plot(here.index + 0.5, here, color=color, label=f"{kind}, mean")
        ramp.plot(there["second"] + 0.5, there["mean_ms"], "o", ms=4, color=color)
    loads.set_yscale("log")
    loads.yaxis.set_major_formatter("{x:g}")
    loads.yaxis.set_minor_formatter("")
    loads.set_title("lines: predicted, marks: measured", loc="left", fontsize=9, color=MUTED)
    loads.set_xlabel("requests per second")
    ramp.set_xlabel("second (200/s to 4,192/s and back)")
    for ax in (loads, ramp):
        ax.set_ylabel("latency (ms)")
        ax.legend(frameon=False, fontsize=8)
        tidy(ax)
    return picture


RED = "#D62728"
"""Color that is visible on the light and the dark cells of a map."""


def vulnerable_region(table: pd.DataFrame | None = None) -> Figure:
    """Draw the share of answered calls by load and trigger, from a sweep, and the edge of the fluid limit."""
    from benchmarks import vulnerable

    rate, trigger = vulnerable.KEYS
    if table is None:
        table = hs.sweep("vulnerable-region", metrics=["slo_attainment"], replications=30).table
    grid = table.pivot(index=trigger, columns=rate, values="slo_attainment")
    sides = []
    for at in (grid.columns.to_numpy(float) / 10, grid.index.to_numpy(float)):
        middle = (at[1:] + at[:-1]) / 2
        sides.append(np.concatenate([[2 * at[0] - middle[0]], middle, [2 * at[-1] - middle[-1]]]))
    picture = figure(8.0, 4.6)
    ax = picture.add_subplot()
    cells = ax.pcolormesh(*sides, 100 * grid.to_numpy(float), cmap="cividis", vmin=0, vmax=100)
    picture.colorbar(cells, label="calls answered in the last minute (%)")
    loads = np.array([0.251, 0.26, 0.28, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.94])
    ax.plot(loads, [10 * vulnerable.edge(load) for load in loads], color=RED, lw=2, label="edge in the fluid limit")
    ax.axvline(0.25, color=RED, ls="--", label="below it every collapse ends")
    ax.set_xlim(sides[0][0], sides[0][-1])
    ax.set_ylim(sides[1][0], sides[1][-1])
    ax.set_xlabel("load of ten servers")
    ax.set_ylabel("trigger: calls that come at once")
    ax.legend(loc="upper left", fontsize=8)
    tidy(ax)
    return picture


def pictures() -> None:
    """Run the Python blocks of docs/pictures.md in a folder of their own, and keep the files that the page shows."""
    page = (DOCS / "pictures.md").read_text(encoding="utf-8")
    target = DOCS / "pictures"
    target.mkdir(exist_ok=True)
    names: dict[str, Any] = {"__name__": "page"}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for block in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
            exec(block, names)
        for name in re.findall(r"\]\(pictures/(.*?\.png)\)", page):
            shutil.copy(name, target / name)


QUESTIONS = {
    "load": ("jobs per hour", "mean wait (min)", 60.0),
    "clients": ("clients", "mean response (s)", 1.0),
    "checkpoints": ("time between checkpoints (h)", "makespan (days)", 86_400.0),
    "mig-or-mps": ("interference", "mean response (s)", 1.0),
    "batch-size": ("batch size", "mean response (ms)", 1e-3),
    "overlap": ("requests per second", "mean response (ms)", 1e-3),
    "capacity": ("requests per second", "answered within 100 ms (%)", 0.01),
    "cores": ("CPU cores beside two GPUs", "makespan (s)", 1.0),
}
"""Pictures of docs/questions.md: title of both axes, and what the metric is divided by."""


def number(value: Any) -> float | str:
    """A swept value as a number in its own unit (hours for times), or a text."""
    if isinstance(value, int | float):
        return value
    found = re.fullmatch(r"([0-9.]+) ?(/s|/h|min|h)?", str(value))
    return float(found[1]) / (60 if found[2] == "min" else 1) if found else str(value)


def answer(sweep: dict[str, Any], name: str) -> Figure:
    """Draw the first metric of a sweep over its last key, a line per policy or per value of the first key."""
    across, up, unit = QUESTIONS[name]
    metric = "makespan" if "makespan" in up else sweep["metrics"][-1]
    *first, key = sweep["keys"]
    lines: dict[str, list[tuple[Any, ...]]] = {}
    policies = {row["policy"].split(" (")[0] for row in sweep["rows"]}
    for row in sweep["rows"]:
        label = str(row["values"][first[0]]) if first else row["policy"].split(" (")[0]
        found = row["metrics"][metric]
        point = (number(row["values"][key]), *(found[part] / unit for part in ("mean", "ci_low", "ci_high")))
        lines.setdefault(label, []).append(point)
    picture = figure(5.6, 2.8)
    ax = picture.add_subplot()
    for (label, points), color in zip(lines.items(), (BLUE, ORANGE), strict=False):
        x, mean, low, high = map(np.array, zip(*points, strict=True))
        ax.errorbar(x, mean, [mean - low, high - mean], fmt="o-", ms=4, color=color, capsize=3, label=label)
    if name == "batch-size":
        ax.set_yscale("log")
    if first or len(policies) > 1:
        ax.legend(frameon=False)
    ax.set_xlabel(across)
    ax.set_ylabel(up)
    tidy(ax)
    return picture


def questions() -> None:
    """Run the command before each picture of docs/questions.md, and draw its results with 95 % confidence intervals."""
    import click.testing

    from hetsim.cli.program import hetsim

    target = DOCS / "pictures" / "questions"
    target.mkdir(exist_ok=True)
    page = (DOCS / "questions.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for name, text in re.findall(r"ave this as `([^`]+)`:\n\n```\w+\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
            Path(name).write_text(text, encoding="utf-8")
        for section in re.split(r"(?m)^### ", page):
            for name in re.findall(r"\]\(pictures/questions/(.*?)\.png\)", section):
                command = re.findall(r"^hetsim (.*)$", section, re.MULTILINE)[-1]
                done = click.testing.CliRunner().invoke(hetsim, [*shlex.split(command), "--json", "--quiet"])
                answer(json.loads(done.stdout), name).savefig(target / f"{name}.png", dpi=90)


FIGURES = (("queues", queues), ("theory-models", models), ("ratios", ratios), ("batches", batches),
           ("measured-gpu", measured_gpu))  # fmt: skip


def main(asked: list[str]) -> None:
    for name, draw in FIGURES:
        if not asked or name in asked:
            draw().savefig(FOLDER / f"{name}.png", dpi=110)
    if not asked or "vulnerable-region" in asked:
        vulnerable_region().savefig(DOCS / "vulnerable-region.png", dpi=80)
    if not asked or "pictures" in asked:
        pictures()
    if not asked or "questions" in asked:
        questions()
    for name in (word.partition("=")[2] for word in asked or ["systems"] if word.split("=")[0] == "systems"):
        system_figures.systems(name)
    if not asked or "cost" in asked:
        system_figures.cost().savefig(DOCS / "dual-approximation-time.png", dpi=80)


if __name__ == "__main__":
    main(sys.argv[1:])
