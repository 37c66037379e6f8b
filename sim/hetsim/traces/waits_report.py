"""Texts on recorded waits: their reasons, and the distance of simulated waits."""

import math
from collections.abc import Mapping
from typing import Any

from hetsim.report import terminal
from hetsim.traces.from_log import Compared
from hetsim.workload.logs.recorded_log import FULL
from hetsim.workload.logs.waits import Explained

MEANING = {
    "no room": "did not fit into what was free of the cluster",
    "nodes down": "did not fit into what was free of the nodes that were up",
    "before the log": "the head of the log: jobs ran that it does not know",
    "limit": "its {kind} held as much as it ever does",
    "priority": "a job that goes before it waited for room",
    "order": "a job that came earlier waited for room",
    "fragmented": "fitted on no single node, though into what was free of the cluster",
    "held back": "it fitted; nothing in the log says why it did not start",
}
MAX_SHOWN = 8


def meaning(explained: Explained, reason: str) -> str:
    """The meaning of a reason."""
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
    """Sentences on what the log shows about its site."""
    jobs, texts = explained.jobs, _site(explained)
    lacking = [level for _, level in explained.curve if level < explained.capacity]
    if lacking:
        texts.append(f"capacity: at times only {min(lacking):,.6g} of {explained.capacity:,.6g} {jobs.unit} were up")
    if explained.warm_end > jobs.arrival[0]:
        at = terminal.several([explained.warm_end - float(jobs.arrival[0])], terminal.SECONDS)[0]
        texts.append(f"head: the log holds its usual {jobs.unit} {at} after its first submission")
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
    """Where the capacity is from, and where the log holds more."""
    site, unit, sentences = explained.site, explained.jobs.unit, []
    if not site.stated:
        bound = "at least " if site.full < FULL else ""
        by = f", the sum of {len(site.by_node):,} nodes" if site.by_node else ""
        share = f"all of them are held for {100 * site.full:.1f} % of the time with jobs"
        sentences.append(f"capacity: {bound}{site.amount:,.6g} {unit}{by}; {share}")
    for name, first, seconds, level, jobs in sorted(site.beyond, key=lambda one: -one[2])[:MAX_SHOWN]:
        at, long = terminal.several([first, seconds], terminal.SECONDS)
        lines = [str(explained.jobs.line(job)) for job in jobs[:MAX_SHOWN]] + ["..."] * (len(jobs) > MAX_SHOWN)
        whose = f"node {name} has" if name else f"the {site.amount:,.6g} {unit} of the cluster"
        text = f"the log holds more than {whose}: up to {level:,.6g} {unit} for {long} in all, first at {at}"
        sentences.append(f"{text}, by the rows {', '.join(lines)}")
    return sentences


def variant_rows(compared: Compared) -> list[list[str]]:
    """A row per scenario: name, jobs, mean waits, and correlations."""
    rows = []
    means = [mean for one in compared.variants if one.jobs for mean in (one.recorded, one.simulated)]
    written = iter(terminal.several(means, terminal.SECONDS)) if means else iter(())
    for variant in compared.variants:
        times = [next(written), next(written)] if variant.jobs else ["–", "–"]
        pair = (variant.correlation, variant.rank_correlation)
        name = variant.name if variant.kept else f"{variant.name}: no better, left out"
        rows.append([name, f"{variant.jobs:,}", *times, *("–" if math.isnan(r) else f"{r:.2f}" for r in pair)])
    return rows


def conclusion(compared: Compared) -> str:
    """Sentences on what the inferred rules gained; empty without a comparison."""
    first, last = compared.variants[0], compared.best
    if last is first or math.isnan(first.correlation) or math.isnan(last.correlation):
        return ""
    times = terminal.several([last.simulated, last.recorded], terminal.SECONDS)
    ranks = f"{first.correlation:.2f} to {last.correlation:.2f}"
    verb = "rises" if last.correlation > first.correlation else "goes"
    average = f"the mean wait is {times[0]} against {times[1]} on record"
    return f"With what was inferred the correlation {verb} from {ranks}, and {average}."


def policy_of(compared: Compared) -> str:
    """The policy under which waits were simulated."""
    policy = compared.variants[0].document.get("policy")
    if isinstance(policy, Mapping):
        policy = policy.get("scheduler", policy)
    return str(policy.get("name", policy) if isinstance(policy, Mapping) else policy)


def mapping(explained: Explained, compared: Compared | None, simulated: bool) -> dict[str, Any]:
    """The result as plain values for programs."""
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
    """The limits and the order that a log shows, as plain values."""
    limits, order = explained.limits, explained.order
    return {
        "limits": None if limits is None else {"kind": limits.kind, "most": limits.max_held},
        "order": None if order is None else {"kind": order.kind, "pairs": [list(pair) for pair in order.pairs]},
    }
