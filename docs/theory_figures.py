"""Draw one plot for each queueing model, and write the page that shows them.

    python docs/theory_figures.py              all of them, about half a minute
    python docs/theory_figures.py srpt mphc    some; the page is written whole

`PLOTS` declares each: the functions of `hetsim.theory` in it, the paper, what is varied, and the lines.  Pictures are
docs/background/theory/NAME.png, the page is docs/background/theory-plots.md.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy import stats
from system_figures import tidy

from hetsim import theory
from hetsim.plots.draw import figure
from hetsim.results.colors import BLUE, GREEN, ORANGE

FOLDER = Path(__file__).parent / "background" / "theory"
PAGE = FOLDER.parent / "theory-plots.md"


class Plot(NamedTuple):
    """A plot: functions of the model, paper, axes, values of x, and a line for each label."""

    functions: str
    paper: str
    x: str
    y: str
    values: Sequence[float]
    lines: dict[str, Callable[[float], float]]


LOADS = np.linspace(0.1, 0.95, 30)
FEW = np.linspace(0.1, 0.95, 12)
WAIT, RESPONSE, LOSS = "mean wait", "mean response", "loss probability"
EXPONENTIAL = theory.phase_type([1], [[0]], [1])
ERLANG_2 = theory.phase_type([1, 0], [[0, 2], [0, 0]], [0, 2])
MIXED = theory.phase_type([0.1, 0.9], [[0, 0], [0, 0]], [0.2, 1.8])
SIZES = stats.weibull_min(0.6, scale=1 / math.gamma(1 + 1 / 0.6))
PAIR = [[0, 0.2], [0.2, 0]]


def by(*counts: int, unit: str = "servers") -> dict[str, int]:
    return {f"{unit}: {count}": count for count in counts}


PLOTS = {
    "mmc": Plot("mm1 mmc erlang_c", "Erlang, Solution of Some Problems in the Theory of Probabilities (1917)",
                "load", WAIT, LOADS, {
        label: lambda x, c=c: theory.mmc(x * c, 1, c).wait_mean for label, c in by(1, 4, 16).items()}),
    "erlang_b": Plot("erlang_b servers_for_loss load_for_loss", "Erlang (1917)", "load", LOSS, LOADS, {
        label: lambda x, c=c: theory.erlang_b(x * c, c) for label, c in by(1, 8, 64).items()}),
    "servers": Plot("servers_for_wait servers_for_delay load_for_delay halfin_whitt",
                    "Halfin and Whitt, Heavy-Traffic Limits for Queues with Many Exponential Servers (1981)",
                    "offered load a", "servers − a", np.arange(2, 60, 2), {
        "10 % of the customers wait": lambda x: theory.servers_for_delay(x, 0.1) - x,
        "square-root rule": lambda x: theory.halfin_whitt(x, 1, 0.1).safety * math.sqrt(x)}),
    "mmck": Plot("mmck", "Kleinrock, Queueing Systems I (1975)", "load", LOSS, np.linspace(0.1, 2, 30), {
        label: lambda x, k=k: theory.mmck(x * 4, 1, 4, k).loss for label, k in by(4, 8, 32, unit="places").items()}),
    "mmc_abandonment": Plot("mmc_abandonment", "Palm, Research on Telephone Traffic (1957)", "load", LOSS,
                            np.linspace(0.2, 2, 30), {
        f"patience {p:g}": lambda x, p=p: theory.mmc_abandonment(4 * x, 1, 4, p).loss for p in (0.2, 1, 5)}),
    "retrials": Plot("retrials", "Falin and Templeton, Retrial Queues (1997)", "load", WAIT, FEW[:-1], {
        f"retry after {r:g}": lambda x, r=r: theory.retrials(4 * x, 1, 4, r).wait_mean for r in (0.2, 1, 5)}),
    "closed_loop": Plot("closed_loop closed_classes",
                        "Palm (1958); Baskett, Chandy, Muntz and Palacios, Networks of Queues (1975)",
                        "clients", "throughput", range(1, 40), {
        label: lambda x, c=c: theory.closed_loop(int(x), 8, 1, c).throughput for label, c in by(1, 2, 4).items()}),
    "mg1": Plot("mg1 md1", "Pollaczek (1930); Khinchine (1932)", "load", WAIT, LOADS, {
        f"scv {scv:g}": lambda x, scv=scv: theory.mg1(x, 1, scv).wait_mean for scv in (0, 1, 4)}),
    "mdc": Plot("mdc", "Crommelin, Delay Probability Formulae (1932)", "load", WAIT, LOADS, {
        label: lambda x, c=c: theory.mdc(x * c, 1, c).wait_mean for label, c in by(1, 4, 16).items()}),
    "mphc": Plot("mphc phase_type map_phc", "Latouche and Ramaswami, A Logarithmic Reduction Algorithm (1993)",
                 "load of 4 servers", WAIT, FEW, {
        "Erlang-2": lambda x: theory.mphc(4 * x, ERLANG_2, 4).wait_mean,
        "hyperexponential": lambda x: theory.mphc(4 * x, MIXED, 4).wait_mean}),
    "mmpp_mc": Plot("mmpp_mc", "Fischer and Meier-Hellstern, The MMPP Cookbook (1993)", "load of 4 servers", WAIT,
                    FEW, {
        f"rates 1 : {r:g}": lambda x, r=r: theory.mmpp_mc(
            [8 * x / (1 + r), 8 * x * r / (1 + r)], PAIR, 1, 4).wait_mean for r in (1, 3, 9)}),
    "gim1": Plot("gim1", "Kendall, Stochastic Processes Occurring in the Theory of Queues (1953)", "load", WAIT,
                 LOADS, {
        "constant gaps": lambda x: theory.gim1(x, 1, lambda s: -math.expm1(-s / x)).wait_mean,
        "exponential gaps": lambda x: theory.gim1(x, 1, lambda s: s / (x + s)).wait_mean}),
    "mg1_ps": Plot("mg1_ps", "Kleinrock, Time-Shared Systems (1967)", "load", RESPONSE, LOADS, {
        "processor sharing": lambda x: theory.mg1_ps(x, 1).response_mean,
        "FCFS, scv 4": lambda x: theory.mg1(x, 1, 4).response_mean}),
    "allen_cunneen": Plot("allen_cunneen", "Allen, Probability, Statistics, and Queueing Theory (1990)",
                          "load of 4 servers", WAIT, FEW, {
        "approximation": lambda x: theory.allen_cunneen(4 * x, 1, 4, 1, 5).wait_mean,
        "exact (hyperexponential)": lambda x: theory.mphc(4 * x, HEAVY, 4).wait_mean}),
    "priorities": Plot("nonpreemptive preemptive_resume", "Cobham (1954); White and Christie (1958)",
                       "total load of both classes", RESPONSE, LOADS, {
        "higher, waiting": lambda x: theory.nonpreemptive([(x / 2, 1), (x / 2, 1)])[0].response_mean,
        "higher, preempting": lambda x: theory.preemptive_resume([(x / 2, 1), (x / 2, 1)])[0].response_mean,
        "lower": lambda x: theory.nonpreemptive([(x / 2, 1), (x / 2, 1)])[1].response_mean}),
    "srpt": Plot("srpt sjf psjf las", "Schrage and Miller (1966); Phipps (1956); Kleinrock (1976)",
                 "load", RESPONSE, FEW[:-1], {
        name: lambda x, order=order: order(x, SIZES, (0, np.inf)).response_mean
        for name, order in (("srpt", theory.srpt), ("sjf", theory.sjf), ("las", theory.las))}),
    "bulk_service": Plot("bulk_service", "Bailey, On Queueing Processes with Bulk Service (1954)", "arrival rate",
                         RESPONSE, np.linspace(0.1, 3.6, 30), {
        label: lambda x, b=b: theory.bulk_service(x, 1, b).response_mean if x < 0.97 * b else math.nan
        for label, b in by(1, 2, 4, unit="largest batch").items()}),
    "greedy_batches": Plot("greedy_batches inoue_bounds",
                           "Inoue, Queueing Analysis of GPU-Based Inference Servers with Dynamic Batching (2021)",
                           "arrival rate", RESPONSE, np.linspace(0.5, 9, 15), {
        "exact": lambda x: theory.greedy_batches(x, 0.1, 0.5).response_mean,
        "upper bound": lambda x: min(theory.inoue_bounds(x, 0.1, 0.5).upper, 60)}),
    "tandem": Plot("jackson tandem", "Jackson, Networks of Waiting Lines (1957)", "arrival rate", RESPONSE,
                   np.linspace(0.5, 6, 30), {
        "CPU, PCIe, GPU": lambda x: theory.tandem(x, [(0.1, 4), (0.02, 1), (0.15, 1)]).response_mean,
        "GPU alone": lambda x: theory.mm1(x, 0.15).response_mean}),
    "fork_join": Plot("fork_join", "Flatto and Hahn (1984); Nelson and Tantawi, Approximate Analysis (1988)", "load",
                      RESPONSE, LOADS, {
        label: lambda x, n=n: theory.fork_join(x, 1, n).response_mean
        for label, n in by(1, 2, 8, unit="parts").items()}),
    "redundancy": Plot("redundancy", "Gardner and others, Redundancy-d (2017)", "load of 10 servers", RESPONSE, LOADS, {
        label: lambda x, d=d: theory.redundancy(10 * x, 1, 10, d).response_mean
        for label, d in by(1, 2, 10, unit="copies").items()}),
    "power_of_choices": Plot("power_of_choices", "Mitzenmacher (2001); Gast and Van Houdt (2017)",
                             "load", RESPONSE, FEW, {
        "1 choice": lambda x: theory.power_of_choices(3 * x, 1, 3, 1).response_mean,
        "2 choices of 3 servers": lambda x: theory.power_of_choices(3 * x, 1, 3).response_mean,
        "2 choices of 50 servers": lambda x: theory.power_of_choices(50 * x, 1, 50).response_mean}),
    "unlike_servers": Plot("unlike_servers", "Gumbel (1960); Singh (1970)", "total load of both servers",
                           RESPONSE, LOADS, {
        f"slow server: {k:g} times slower": lambda x, k=k: theory.unlike_servers(
            x * (1 + 1 / k), [(1, 1), (k, 1)]).response_mean
        for k in (1, 3, 8)}),
    "slow_server": Plot("slow_server best_threshold", "Lin and Kumar, Control of Two Heterogeneous Servers (1984)",
                        "threshold", RESPONSE, range(1, 16), {
        f"slow server: {k:g} times slower": lambda x, k=k: theory.slow_server(0.8, 1, k, int(x)).response_mean
        for k in (4, 10, 20)}),
    "breakdowns": Plot("mg1_breakdowns mmc_breakdowns", "White and Christie (1958); Mitrany and Avi-Itzhak (1968)",
                       "mean time between faults", RESPONSE, np.geomspace(4, 400, 25), {
        "1 server, work lost": lambda x: theory.mg1_breakdowns(0.5, 1.0, x, 1).response_mean,
        "2 servers, work kept": lambda x: theory.mmc_breakdowns(1.0, 1, 2, x, 1).response_mean}),
    "mg1_setup": Plot("mg1_setup", "Levy and Kleinrock, A Queue with Starter (1986)", "load", RESPONSE, LOADS, {
        f"sleeps after {idle:g}": lambda x, idle=idle: theory.mg1_setup(x, 1, 1, 4, sleep_after=idle).response_mean
        for idle in (0, 2, 20)}),
    "mphc_setup": Plot("mphc_setup", "Welch, On a Generalized M/G/1 Queuing Process (1964), for one server; "
                       "the Markov chain is solved", "load", RESPONSE, LOADS, {
        label: lambda x, c=c: theory.mphc_setup(c * x, EXPONENTIAL, c, 1.0).response_mean
        for label, c in by(1, 2, 4).items()}),
    "mmc_periodic": Plot("mmc_periodic", "Jensen, Markoff Chains as an Aid (1953)", "length of a cycle", WAIT,
                         np.geomspace(1, 200, 10), {
        "rates 0.2 and 1.2": lambda x: theory.mmc_periodic([(x / 2, 0.2), (x / 2, 1.2)], 1, 1).wait_mean}),
    "settling_time": Plot("settling_time", "Jensen (1953)", "load", "time to reach 95 %", FEW[2:-1], {
        label: lambda x, c=c: theory.settling_time(c * x, 1, c) for label, c in by(1, 4).items()}),
    "trunk_reservation": Plot("trunk_reservation", "Miller, A Queueing Reward System (1969)", "load", LOSS, LOADS, {
        f"{kept} servers reserved": lambda x, kept=kept: theory.trunk_reservation(
            10, [(5 * x, 1, kept), (5 * x, 1, 0)]).loss[1]
        for kept in (0, 1, 3)}),
    "kaufman_roberts": Plot("kaufman_roberts", "Kaufman (1981); Roberts (1981)", "load of 8 GPUs", LOSS,
                            np.linspace(0.1, 1.5, 30), {
        f"gangs of {w}": lambda x, k=k: theory.kaufman_roberts(
            8, [(8 * x / 3 / width, 1, width) for width in (1, 2, 4)]).loss[k] for k, w in enumerate((1, 2, 4))}),
    "multiserver_jobs": Plot("multiserver_jobs", "Rumyantsev and Morozov (2017); Grosof and others (2020)",
                             "share of wide jobs", "maximum utilization", np.linspace(0.02, 0.98, 30), {
        f"jobs of 1 and {wide} of 8 servers": lambda x, wide=wide: theory.multiserver_jobs(
            8, [(1 - x, 1, 1), (x, 1, wide)]).utilization for wide in (3, 5, 8)}),
    "workload_limit": Plot("workload_limit", "Gavish and Schweitzer (1977)", "load", LOSS, np.linspace(0.1, 2, 30), {
        f"workload limit {limit:g}": lambda x, limit=limit: theory.workload_limit(x, 1, limit).loss
        for limit in (0, 2, 10)}),
    "token_bucket": Plot("token_bucket", "Takács (1962); Berger (1991)", "arrival rate / refill rate", LOSS,
                         np.linspace(0.1, 2, 30), {
        f"bucket depth {depth}": lambda x, depth=depth: theory.token_bucket(x, 1, depth) for depth in (1, 4, 16)}),
    "naor": Plot("naor", "Naor, The Regulation of Queue Size by Levying Tolls (1969)", "reward / cost of waiting",
                 "threshold", np.arange(1.5, 20, 0.5), {
        name: lambda x, name=name: getattr(theory.naor(0.7, 1, x, 1), name)
        for name in ("individual", "social", "revenue")}),
}  # fmt: skip
HEAVY = theory.phase_type(  # an scv of 5 with balanced means
    [(1 + math.sqrt(4 / 6)) / 2, (1 - math.sqrt(4 / 6)) / 2], [[0, 0], [0, 0]],
    [1 + math.sqrt(4 / 6), 1 - math.sqrt(4 / 6)])  # fmt: skip


def draw(name: str) -> None:
    plot, picture = PLOTS[name], figure(4.2, 2.7)
    ax = picture.add_subplot()
    for (label, line), color in zip(plot.lines.items(), (BLUE, ORANGE, GREEN), strict=False):
        ax.plot(plot.values, [line(value) for value in plot.values], color=color, label=label)
    ax.set(xlabel=plot.x, ylabel=plot.y)
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, fontsize=8)
    tidy(ax)
    drawn = io.BytesIO()
    picture.savefig(drawn, dpi=90)
    few = Image.open(drawn).convert("RGB").quantize(64, Image.Quantize.MAXCOVERAGE)
    few.save(FOLDER / f"{name}.png", optimize=True)


def page() -> str:
    parts = ["# Plots of the queueing models", "This page shows one plot per queueing model of `hetsim.theory`. Each "
             "heading lists the functions of the model, and the line below it names the publication of the model. The "
             "mean service time is 1 unless the plot states another value. [The table of models]"
             "(../theory.md#the-models) lists the assumptions and the accuracy of each model. The command "
             "`python docs/theory_figures.py` draws the plots and writes this page."]  # fmt: skip
    for name, plot in PLOTS.items():
        functions = ", ".join(f"`{one}`" for one in plot.functions.split())
        parts += [
            f"## {functions}",
            f"Source: {plot.paper}.",
            f"![{plot.y[0].upper()}{plot.y[1:]} over {plot.x}](theory/{name}.png)",
        ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for one in sys.argv[1:] or PLOTS:
        draw(one)
    PAGE.write_text(page(), encoding="utf-8")
