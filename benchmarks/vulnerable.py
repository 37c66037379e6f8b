"""Where overload stays, in the fluid limit and in runs: `python -m benchmarks.vulnerable`.

c servers, exponential times of 1 s, calls at a load ρ whose clients wait for 3 s and try three times more at once, and
a trigger: n calls a server that come at one instant (scenario `vulnerable-region`).  In the fluid limit (c to infinity
with ρ and n fixed) an attempt that finds x tasks a server in the system waits for w = max(x - 1, 0) seconds, fails with
the chance exp(-(3 - w)), or 1 from w = 3 on, and is followed by another one 3 s later; x falls by min(x, 1) a second.

edge        for each load the least trigger after which the fluid stays down, and the share of runs with 10, 40 and 160
            servers that do after 0.7, 0.85, 1, 1.15 and 1.3 times as much
permanence  after a large trigger, when half of the calls are answered again, by the fluid and in runs.  Attempts never
            come faster than 4 ρ: below a load of 1/4 the system is stable, and any collapse ends; above, it grows
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import hetsim as hs
from benchmarks.measure import Row, chosen, parser_of, print_table

TIMEOUT, TRIES, AT = 3.0, 4, 30.0
LOADS = (0.26, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
RUN_AT = (0.3, 0.5, 0.7, 0.9)
"""Loads at which systems of several sizes are run, too."""
SHARES = (0.7, 0.85, 1.0, 1.15, 1.3)
KEYS = "workload.calls.arrivals.rate", "workload.trigger.arrivals.count"


def failing(tasks: float) -> float:
    """The integral of an attempt's chance to fail, over the tasks a server that it finds, from 0."""
    never = math.exp(-TIMEOUT)
    if tasks <= 1:
        return tasks * never
    return math.exp(min(tasks - 1 - TIMEOUT, 0.0)) + max(tasks - 1 - TIMEOUT, 0.0)


def fluid(load: float, trigger: float, seconds: float, step: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """From the trigger on, at each step: tasks a server, and the share of calls that come then and will be answered.

    `lost[k]` is what fails of the attempts number k that are sent in each step, and comes again 3 s later.
    """
    lag, steps = round(TIMEOUT / step), round(seconds / step)
    usual = [load * math.exp(-TIMEOUT * k) for k in range(TRIES)]
    lost, chance, inside = np.zeros((TRIES, steps)), np.ones(steps), np.zeros(steps)
    tasks = sum(usual)
    for at in range(steps):
        chance[at] = math.exp(min(tasks - 1 - TIMEOUT, 0.0)) if tasks > 1 else math.exp(-TIMEOUT)
        served = step * min(tasks, 1.0)
        for tried in range(TRIES):
            flow = usual[tried] * step if not tried or at < lag else float(lost[tried - 1, at - lag])
            flow += trigger if at == tried == 0 else 0.0
            lost[tried, at] = failing(tasks + flow) - failing(tasks)
            tasks += flow
        tasks -= served
        inside[at] = tasks
    end = steps - lag * (TRIES - 1)
    return inside[:end], 1 - np.prod([chance[lag * k : lag * k + end] for k in range(TRIES)], axis=0)


def edge(load: float, seconds: float = 200.0) -> float:
    """The least trigger a server after which the fluid stays down; of steps of 60 and 30 ms to a step of 0."""
    found = []
    for step in (0.06, 0.03):
        low, high = 0.0, 8.0
        while high - low > 0.002:
            middle = (low + high) / 2
            stays = fluid(load, middle, seconds, step)[1][-1] < 0.5
            low, high = (low, middle) if stays else (middle, high)
        found.append((low + high) / 2)
    return 2 * found[1] - found[0]


def back_after(answered: np.ndarray, step: float) -> float:
    """When half of the calls are answered again; infinite if they are not."""
    below = np.flatnonzero(answered < 0.5)
    return 0.0 if not len(below) else math.inf if below[-1] == len(answered) - 1 else float((below[-1] + 1) * step)


def runs_of(load: float, servers: int, trigger: float, horizon: float, seed: int) -> Any:
    """A run of the scenario, of another size."""
    over = dict(zip(KEYS, (f"{load * servers}/s", round(trigger * servers)), strict=True))
    until = {"workload.calls.until": f"{horizon - 12} s", "horizon": f"{horizon} s", "warmup": f"{horizon - 40} s"}
    return hs.run("vulnerable-region", overrides={**over, **until, "cluster.nodes.cpus": servers}, seed=seed)


def edge_figures(loads: Sequence[float], sizes: dict[int, int]) -> Iterator[Row]:
    """By load the fluid's edge, and how many runs stay down near it."""
    for load in loads:
        least = edge(load)
        yield Row(f"edge at a load of {load:g}", f"{least:.2f} calls a server")
        for servers, number in sizes.items() if load in RUN_AT else ():
            down = [np.mean([runs_of(load, servers, least * share, 150, seed).metric("slo_attainment") < 0.5
                             for seed in range(1, number + 1)]) for share in SHARES]  # fmt: skip
            yield Row(f"  {servers} servers, {number} runs", ", ".join(f"{100 * one:.0f} %" for one in down))


def permanence_figures(loads: Sequence[float], horizon: float, trigger: float = 20.0) -> Iterator[Row]:
    """By load when calls are answered again after a trigger of 20 calls a server."""
    for load in loads:
        expected = back_after(fluid(load, trigger, horizon, 0.05)[1], 0.05)
        found = []
        for seed in (1, 2, 3):
            calls = runs_of(load, 10, trigger, horizon, seed).calls
            calls = calls[(calls["class"] == "calls") & (calls["arrival"] > AT) & (calls["arrival"] < horizon - 12)]
            answered = (calls["status"] == "completed").groupby((calls["arrival"] - AT) // 20).mean()
            found.append(back_after(answered.to_numpy(), 20.0))
        texts = ["never" if math.isinf(one) else f"{one:,.0f} s" for one in (expected, *found)]
        yield Row(f"back at a load of {load:g}", f"fluid: {texts[0]}; runs of {horizon:,.0f} s: {', '.join(texts[1:])}")


def main(arguments: Sequence[str] | None = None) -> None:
    names = ("edge", "permanence")
    parser = parser_of("vulnerable", __doc__, names)
    options = parser.parse_args(arguments)
    some = options.quick
    figures = {
        "edge": partial(edge_figures, (0.7,) if some else LOADS, {10: 2} if some else {10: 40, 40: 24, 160: 8}),
        "permanence": partial(permanence_figures, (0.2,) if some else (0.15, 0.2, 0.22, 0.24, 0.26, 0.28, 0.3),
                              600.0 if some else 7_200.0),
    }  # fmt: skip
    head = Row("ten, 40 and 160 servers", "stay down after 0.7, 0.85, 1, 1.15, 1.3 of the edge")
    print_table(figures, chosen(parser, figures, options.only), options.quick, head)


if __name__ == "__main__":
    main()
