"""Texts and the page on recorded waits: their reasons, and simulated waits."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.page.elements import Cell, Section, items, page, picture, table, warnings, write_page
from hetsim.plots.style import look, until
from hetsim.report import terminal
from hetsim.results.colors import BLUE, GRID, MUTED, VERMILION
from hetsim.results.panels import ROUND_TIMES, Axis, Band, Boxes, Line, Panel, Picture, Texts, row_boxes, time_axis
from hetsim.traces.from_log import Compared
from hetsim.workload.logs.recorded_log import FULL, HeldOverTime
from hetsim.workload.logs.waits import REASONS, Explained

MEANING = {
    "no room": "did not fit into the free part of the cluster",
    "nodes down": "did not fit into the free part of the nodes that were up",
    "before the log": "the head of the log: running jobs are missing in the log",
    "limit": "its {kind} occupied its inferred limit",
    "priority": "a job with precedence waited for devices",
    "order": "an earlier job waited for devices",
    "fragmented": "fitted into the free part of the cluster, but on no single node",
    "held back": "it fitted; the log does not show why it did not start",
}
MAX_SHOWN = 8


def meaning(explained: Explained, reason: str) -> str:
    kind = explained.limits.kind if explained.limits is not None else "user"
    return MEANING[reason].format(kind=kind)


def lines(explained: Explained, compared: Compared | None, simulated: bool) -> list[str]:
    jobs = explained.jobs
    mean = terminal.several([explained.mean_wait], terminal.SECONDS)[0]
    of_capacity = f"{explained.capacity:,.6g} {jobs.unit}"
    rows = [["why jobs waited", "of all waiting", ""]]
    rows += [[reason, f"{100 * share:.1f} %", meaning(explained, reason)] for reason, share in explained.shares.items()]
    heading = f"mean recorded wait {mean} over {len(jobs):,} jobs, on {of_capacity}"
    text_lines = ["", heading, "", *terminal.table(rows, right=(1,))]
    text_lines += [f"  {text}" for text in inferred(explained)]
    if compared is not None and simulated:
        heads = [f"waits under {policy_of(compared)}", "jobs", "recorded", "simulated", "correlation", "of ranks"]
        said = conclusion(compared)
        text_lines += ["", *terminal.table([heads, *variant_rows(compared)], right=range(1, 6))]
        text_lines += ["", said] if said else []
    return text_lines


def inferred(explained: Explained) -> list[str]:
    """Return sentences on capacity, limits and priority order, as inferred from a log."""
    jobs, texts = explained.jobs, _site(explained)
    lacking = [level for _, level in explained.curve if level < explained.capacity]
    if lacking:
        texts.append(f"capacity: at times only {min(lacking):,.6g} of {explained.capacity:,.6g} {jobs.unit} were up")
    if explained.warm_end > jobs.arrival[0]:
        at = terminal.several([explained.warm_end - float(jobs.arrival[0])], terminal.SECONDS)[0]
        texts.append(f"head: the log reaches its usual number of {jobs.unit} {at} after its first submission")
    if explained.limits is not None:
        limits = sorted(explained.limits.max_held.items(), key=lambda one: -one[1])
        shown = ", ".join(f"{name} {limit:,.6g}" for name, limit in limits[:MAX_SHOWN])
        more = f" and {len(limits) - MAX_SHOWN} more" if len(limits) > MAX_SHOWN else ""
        texts.append(f"limits by {explained.limits.kind}, in {jobs.unit}: {shown}{more}")
    if explained.order is not None:
        pairs = explained.order.pairs[:MAX_SHOWN]
        shown = ", ".join(f"{first} before {second} ({n} passed, {back} back)" for first, second, n, back in pairs)
        texts.append(f"order by {explained.order.kind}: {shown}")
    return texts


def _site(explained: Explained) -> list[str]:
    site, unit, sentences = explained.site, explained.jobs.unit, []
    if not site.stated:
        bound = "at least " if site.full < FULL else ""
        by = f", the sum of {len(site.by_node):,} nodes" if site.by_node else ""
        share = f"all of them are occupied for {100 * site.full:.1f} % of the time with jobs"
        sentences.append(f"capacity: {bound}{site.amount:,.6g} {unit}{by}; {share}")
    for name, first, seconds, level, jobs in sorted(site.beyond, key=lambda one: -one[2])[:MAX_SHOWN]:
        at, long = terminal.several([first, seconds], terminal.SECONDS)
        lines = [str(explained.jobs.line(job)) for job in jobs[:MAX_SHOWN]] + ["..."] * (len(jobs) > MAX_SHOWN)
        whose = f"node {name} has" if name else f"the {site.amount:,.6g} {unit} of the cluster"
        text = f"the log uses more than {whose}: up to {level:,.6g} {unit} for {long} in total, first at {at}"
        sentences.append(f"{text}, by the rows {', '.join(lines)}")
    return sentences


def variant_rows(compared: Compared) -> list[list[str]]:
    """List per variant: name, jobs, mean recorded and simulated wait, correlations."""
    rows = []
    means = [mean for one in compared.variants if one.jobs for mean in (one.recorded, one.simulated)]
    written = iter(terminal.several(means, terminal.SECONDS)) if means else iter(())
    for variant in compared.variants:
        times = [next(written), next(written)] if variant.jobs else ["–", "–"]
        pair = (variant.correlation, variant.rank_correlation)
        name = variant.name if variant.kept else f"{variant.name}: no improvement, left out"
        rows.append([name, f"{variant.jobs:,}", *times, *("–" if math.isnan(r) else f"{r:.2f}" for r in pair)])
    return rows


def conclusion(compared: Compared) -> str:
    """State how rules inferred from a job log improve simulated waits; "" if unknown."""
    first, last = compared.variants[0], compared.best
    if last is first or math.isnan(first.correlation) or math.isnan(last.correlation):
        return ""
    times = terminal.several([last.simulated, last.recorded], terminal.SECONDS)
    ranks = f"{first.correlation:.2f} to {last.correlation:.2f}"
    verb = "rises" if last.correlation > first.correlation else "goes"
    average = f"the mean wait is {times[0]}, recorded {times[1]}"
    return f"With what was inferred the correlation {verb} from {ranks}, and {average}."


def policy_of(compared: Compared) -> str:
    policy = compared.variants[0].document.get("policy")
    if isinstance(policy, Mapping):
        policy = policy.get("scheduler", policy)
    return str(policy.get("name", policy) if isinstance(policy, Mapping) else policy)


def mapping(explained: Explained, compared: Compared | None, simulated: bool) -> dict[str, Any]:
    """Return explained waits as JSON data, with simulated variants if there are any."""
    figures: dict[str, Any] = {
        "jobs": len(explained.jobs),
        "unit": explained.jobs.unit,
        "mean_recorded_wait": explained.mean_wait,
        "capacity": explained.capacity,
        "capacity_stated": explained.site.stated,
        "capacity_full": explained.site.full,
        "beyond": [{"node": name, "first": first, "seconds": seconds, "most": level,
                    "rows": [explained.jobs.line(job) for job in jobs]}
                   for name, first, seconds, level, jobs in explained.site.beyond],
        "capacity_curve": [list(point) for point in explained.curve],
        "head_until": explained.warm_end,
        "shares": explained.shares,
        **rules_of(explained),
    }
    if compared is not None and simulated:
        names = ("name", "kept", "error", "jobs", "recorded", "simulated", "correlation", "rank_correlation")
        figures["variants"] = [
            {name: None if (value := getattr(one, name)) != value else value for name in names}
            for one in compared.variants
        ]
    return figures


def rules_of(explained: Explained) -> dict[str, Any]:
    """Return the limits and the class priorities that a log shows, as plain values."""
    limits, order = explained.limits, explained.order
    return {
        "limits": None if limits is None else {"kind": limits.kind, "most": limits.max_held},
        "order": None if order is None else {"kind": order.kind, "pairs": [list(pair) for pair in order.pairs]},
    }


SHORTEST = 1.0  # seconds at which waits of 0 are drawn


def write_waits(
    path: Path, name: str, explained: Explained, compared: Compared | None, simulated: bool, notes: Iterable[str] = ()
) -> None:
    write_page(path, waits_page(name, explained, compared if simulated else None, notes))


def waits_page(name: str, explained: Explained, compared: Compared | None, notes: Iterable[str] = ()) -> str:
    mean = terminal.several([explained.mean_wait], terminal.SECONDS)[0]
    of_capacity = f"{explained.capacity:,.6g} {explained.jobs.unit}"
    said = [f"Mean recorded wait {mean} over {len(explained.jobs):,} jobs, on {of_capacity}."]
    said += [conclusion(compared)] if compared is not None else []
    shares = [
        [reason, Cell(f"{100 * share:.1f} %", share), meaning(explained, reason)]
        for reason, share in explained.shares.items()
    ]
    sections = [
        Section("Picture", picture(lambda: draw(explained, compared), "what was held, why jobs waited, and how long")),
        Section("Why jobs waited", table(["Reason", "Of all waiting", "Meaning"], shares)),
        Section("What the log shows of its site", items(inferred(explained))),
        Section("Recorded and simulated waits", "" if compared is None else _variants(compared)),
        Section("Notes", warnings(notes)),
    ]
    return page(f"Recorded waits of {name}", filter(None, said), sections)


def _variants(compared: Compared) -> str:
    rows = []
    for number, (one, texts) in enumerate(zip(compared.variants, variant_rows(compared), strict=True)):
        values = (one.jobs, one.recorded, one.simulated, one.correlation, one.rank_correlation)
        rows.append([Cell(str(number), number), texts[0], *map(Cell, texts[1:], values)])
    titles = ["Step", "Scenario", "Jobs", "Recorded mean", "Simulated mean", "Correlation", "Of ranks"]
    under = f"Waits under {policy_of(compared)}, with the inferred properties added one by one."
    return table(titles, rows, under)


def draw(explained: Explained, compared: Compared | None = None) -> Picture:
    """Draw the used capacity, the reasons of waits, and the distribution of waits."""
    return Picture([[_held(explained)], [_reasons(explained), _waits(explained, compared)]], 9, 7)


def _held(explained: Explained) -> Panel:
    jobs = explained.jobs
    occupancy = HeldOverTime(jobs.start, jobs.end, jobs.amount)
    low, high = float(jobs.arrival[0]), float(jobs.end.max())
    time, level = until(high, occupancy.times, occupancy.level)
    at, up = zip(*explained.curve, (high, explained.curve[-1][1]), strict=True)
    head = [Boxes([low], [explained.warm_end], [-np.inf], [np.inf], label="head of the log", color=GRID)]
    marks: list[Any] = [
        *head * (explained.warm_end > low),
        # Shaded up to the highest level of each interval: what matters is how near it comes to the capacity.
        Band(time, 0.0, level, alpha=0.15, steps=True, peak=True), Line(time, level, "held", width=1.0, steps=True),
        # Each step as a line of its own: these are not averaged.
        Line(np.repeat(at, 2)[1:], np.repeat(up, 2)[:-1], "capacity, as inferred", VERMILION, width=1.6),
    ]  # fmt: skip
    return Panel(marks, time_axis(low, high), Axis(jobs.unit, 0, 1.08 * explained.capacity),
                 f"{len(jobs):,} jobs from their recorded starts on", legend="above right", means=True)  # fmt: skip


def _reasons(explained: Explained) -> Panel:
    place, shares = np.arange(len(REASONS)), np.array([100 * explained.shares[reason] for reason in REASONS])
    marks: list[Any] = [
        row_boxes(0 * shares[mine], shares[mine], place[mine], 0.35, color=color)
        for color, mine in ((MUTED, np.array(REASONS) == "held back"), (BLUE, np.array(REASONS) != "held back"))
    ]  # fmt: skip
    marks.append(Texts(shares, place, [f"{share:.1f} %" for share in shares], size=9, shift=(4, 0)))
    y = Axis("", len(REASONS) - 0.5, -0.5, list(enumerate(REASONS)))
    x = Axis("of all waiting (%)", 0, 1.2 * max(*shares, 1.0))
    return Panel(marks, x, y, "why jobs waited", grid="x", small=True)


def _waits(explained: Explained, compared: Compared | None) -> Panel:
    run = [one for one in (compared.variants if compared is not None else []) if one.waits is not None and one.jobs]
    lines = {"recorded": run[0].waits[0] if run and run[0].waits is not None else explained.jobs.wait}
    best = [number for number, one in enumerate(run) if one.kept]
    for one in dict.fromkeys([0, best[-1]]) if best else ():
        waits = run[one].waits
        assert waits is not None
        lines["simulated, as it stands" if one == 0 else "simulated, with all that was kept"] = waits[1]
    marks = []
    for number, (label, values) in enumerate(lines.items()):
        ordered = np.maximum(np.sort(values), SHORTEST)
        share = 100 * np.arange(1, len(ordered) + 1) / max(1, len(ordered))
        step = max(1, len(ordered) // 2000)
        marks.append(Line(ordered[::step], share[::step], label, steps=True, width=1.6, **look(number)))
    x = Axis(f"wait (at most; none is drawn as {SHORTEST:g} s)", ticks=ROUND_TIMES, log=True)
    title = "how long they waited"
    return Panel(list(marks), x, Axis("jobs (%)", 0, 101), title, grid="both", legend="inside", small=True)
