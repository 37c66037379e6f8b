"""The scheduler inferred from a log: as a table, an HTML page and a scenario."""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hetsim.errors import Problem, ScenarioError
from hetsim.report import terminal
from hetsim.scenario.scenario import load
from hetsim.traces import waits_report
from hetsim.traces.from_log import take_in_limits
from hetsim.traces.waits_command import Subject, capacity_of_cluster
from hetsim.workload.logs.decisions import ranks_of
from hetsim.workload.logs.identified import Identified, RuleScore, identify
from hetsim.workload.logs.recorded_log import jobs_of

SHOWN = 8
DISCIPLINES = {
    "block": "no job starts before the first job that does not fit", "skip": "any job that fits starts",
    "easy": "EASY backfilling", "conservative": "conservative backfilling",
}  # fmt: skip
ORDERS = {
    "shortest first": "sjf", "longest first": "ljf", "narrowest first": "smallest_first",
    "widest first": "largest_first", "latest first": "lcfs", "share": "drf",
}  # fmt: skip
FIRST_COME = {
    "block": "fcfs", "skip": "fcfs_skip", "easy": "easy_backfill", "conservative": "conservative_backfill",
}  # fmt: skip
LIMITS = {"": "–", "passed": "passed by others", "reserved": "given a reservation"}
FIGURES = ("explained", "of_waiting", "early", "late", "rank_correlation")
MULTIFACTOR = {"size": 0, "priority": 0, "service": 0, "calc_period": 0, "bf_interval": 0}


def identified_of(file: str, subject: Subject) -> Identified:
    """Judge all rules on a log; ScenarioError without recorded starts or waits."""
    if (jobs := jobs_of(subject.table)) is None:
        text = "has no recorded starts (column recorded_start), from which a scheduler could be inferred"
        raise ScenarioError(Problem(text, file=file))
    run = load(subject.document).build()
    sizes = {node.name: float(node.cpus) for node in run.cluster.nodes}
    if jobs.unit == "GPUs":
        there = Counter(device.node for device in run.cluster.devices if device.type.kind != "cpu")
        sizes = {run.cluster.nodes[node].name: float(count) for node, count in there.items()}
    stated = None if subject.inferred else capacity_of_cluster(run, jobs.unit)
    identified = identify(subject.table, stated, sizes, "at_cut" in subject.table.extra)
    if identified is None:
        text = "no scheduler can be inferred: almost no job waited, or too few have a recorded start"
        raise ScenarioError(Problem(text, file=file))
    return identified


def policy_of(score: RuleScore, found: Identified) -> dict[str, Any]:
    """Return the key `policy` for a rule, with the placement that explains most jobs."""
    rule = score.rule
    depth = 0 if rule.discipline == "block" else 101
    scheduler: dict[str, Any] = {"name": FIRST_COME[rule.discipline]}
    if rule.order in ORDERS:
        scheduler = {"name": ORDERS[rule.order], "discipline": rule.discipline}
    elif rule.order == "usage":
        scheduler = {"name": "slurm_multifactor", **MULTIFACTOR, "age": rule.age, "fair_share": 1, "partition": 0,
                     "half_life": f"{rule.half_life / 3600:g} h", "bf_max_job_test": depth}  # fmt: skip
    elif rule.order == "class" and found.half.order is not None:
        ranks = ranks_of(found.half.order)
        factors = {_partition(found, name): 1 - rank / len(ranks) for name, rank in ranks.items()}
        scheduler = {"name": "slurm_multifactor", **MULTIFACTOR, "age": 1, "max_age": "10000 d", "fair_share": 0,
                     "partition": 1000, "partitions": factors, "bf_max_job_test": depth}  # fmt: skip
    policy: dict[str, Any] = {"scheduler": scheduler}
    placement = found.places[0].name if found.places else found.assumed
    if placement not in (None, "first_fit") and rule.discipline != "conservative":
        policy["placement"] = placement
    return policy


def _partition(found: Identified, name: str) -> str:
    return f"{found.half.order.kind}-{name}" if found.half.order is not None else name


def scenario_of(subject: Subject, found: Identified) -> tuple[dict[str, Any], list[str]]:
    """Return a log's scenario with its best identified rule, and notes on omissions."""
    best, half, notes = found.rules[0], found.half, list[str]()
    document = {**subject.document, "policy": policy_of(best, found)}
    document["workload"] = [dict(document["workload"][0])]
    if subject.inferred and half.jobs.nodes is not None:
        document["workload"][0]["span"] = "recorded"
    elif found.assumed is not None:
        document["workload"][0].pop("span", None)
    if (document.get("site") or {}).get("partitions") or "partition" in document["workload"][0]:
        if best.rule.limits or best.rule.order == "class":
            notes.append("limits and the order of classes are not in the scenario: it has its own partitions")
    elif best.rule.order == "class" and half.order is not None:
        names = {name: _partition(found, name) for name in ranks_of(half.order)}
        rules: dict[str, Any] = {partition: {"nodes": "*"} for partition in names.values()}
        document["site"] = {"partitions": {**rules, "others": {"nodes": "*", "default": True}}}
        document["workload"][0]["partition"] = {"column": half.order.kind, "names": names, "others": "others"}
        if best.rule.limits:
            notes.append("the limits are not in the scenario: its partitions are those of the classes")
    elif best.rule.limits and half.limits is not None:
        take_in_limits(document, half.limits.kind, half.limits.max_held, half.jobs)
    return document, notes


# What is printed ------------------------------------------------------------------------------------------------


def name_of(score: RuleScore, found: Identified) -> str:
    """Return a policy's name and main parameters, for a rule that explains a log."""
    scheduler = policy_of(score, found)["scheduler"]
    rule = score.rule
    text = str(scheduler["name"])
    text += f" ({scheduler['discipline']})" if "discipline" in scheduler else ""
    if rule.order == "usage":
        age = f", age {rule.age:g}" if rule.age else ""
        text += f" (fair share, half-life {scheduler['half_life']}{age}, depth {scheduler['bf_max_job_test']})"
    elif rule.order == "class" and found.half.order is not None:
        text += f" ({found.half.order.kind}, depth {scheduler['bf_max_job_test']})"
    return text + (" with limits" if rule.limits else "")


HEADS = ("scheduler", "", "order", "what may pass", "kept by a limit", "explained", "of waiting", "too early",
         "too late", "of ranks")  # fmt: skip


def rows(found: Identified) -> list[list[str]]:
    """Return a row of texts (columns: `HEADS`) for each scheduling rule that is tried."""
    lines = []
    for number, one in enumerate(found.rules):
        order = f"{one.rule.order} of users" if one.rule.order in ("share", "usage") else one.rule.order
        ranks = "–" if math.isnan(one.rank_correlation) else f"{one.rank_correlation:.2f}"
        mark = "best" if number == 0 else "alike" if one.alike else ""
        lines.append([name_of(one, found), mark, order, DISCIPLINES[one.rule.discipline], LIMITS[one.rule.limits],
                      *map(_percent, (one.explained, one.of_waiting, one.early, one.late)), ranks])  # fmt: skip
    return lines


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def explained(score: RuleScore, found: Identified) -> str:
    """Return a sentence on how many starts in the log a scheduling rule predicts."""
    starts = f"{_percent(score.explained)} of the starts within {found.cycle:.3g} s"
    return f"{name_of(score, found)} explains {starts}, and {_percent(score.of_waiting)} of those of jobs that waited"


def conclusion(found: Identified) -> list[str]:
    """Return sentences on the best rule, equally good rules, and unexplained starts."""
    best = found.rules[0]
    texts = [explained(best, found)]
    if others := [name_of(one, found) for one in found.rules[1:] if one.alike]:
        texts.append(f"indistinguishable from it by this log: {', '.join(others)}")
    texts.append(
        f"unexplained: {_percent(1 - best.explained)} of the starts; {_percent(best.early)} of the jobs started later "
        f"than the scheduler predicts (for unknown reasons), {_percent(best.late)} earlier"
    )
    if not best.of_waiting >= 0.5:
        texts.append("most waiting jobs started at other times than any scheduler predicts: do not rely on the result")
    return texts


def places_text(found: Identified) -> str:
    """Return a sentence on the placement that explains the recorded nodes best."""
    if found.assumed is not None:
        return f"placement: the log has no nodes; the placement {found.assumed} explains the starts best"
    if not found.places:
        return "placement: unknown, since the log has no nodes, or jobs had no choice of nodes"
    shares = [f"{one.name} {_percent(one.explained)}" for one in found.places]
    alike = [one.name for one in found.places[1:] if one.alike]
    count = len(found.places[0].right)
    text = f"placement: {', '.join(shares)} of {count:,} places where a job had a choice"
    text += f" ({_percent(found.by_chance)} by chance)"
    return text + (f"; indistinguishable from {found.places[0].name}: {', '.join(alike)}" if alike else "")


def fitted(found: Identified) -> list[str]:
    """Return what was inferred from the half of the log to which rules were fitted."""
    judged = len(found.rules[0].right)
    text = f"rules are fitted on one half of the {len(found.half.jobs):,} jobs and judged on {judged:,} of the other"
    return [text, *waits_report.inferred(found.half)]


def lines(found: Identified) -> list[str]:
    shown = max(SHOWN, sum(one.alike for one in found.rules))
    table = [[*row[:2], *row[5:]] for row in (list(HEADS), *rows(found)[:shown])]
    return [*conclusion(found), places_text(found), "", *terminal.table(table, right=range(2, 7)), "",
            *(f"  {text}" for text in fitted(found))]  # fmt: skip


def mapping(found: Identified) -> dict[str, Any]:
    """Return the identified scheduling rules as JSON data."""
    rules = [
        {"policy": policy_of(one, found), "order": one.rule.order, "discipline": one.rule.discipline,
         "limits": one.rule.limits or None, "alike": one.alike,
         **{name: None if math.isnan(value := getattr(one, name)) else value for name in FIGURES}}
        for one in found.rules
    ]  # fmt: skip
    places = [{"name": one.name, "explained": one.explained, "alike": one.alike} for one in found.places]
    return {
        "jobs": len(found.half.jobs), "judged": len(found.rules[0].right), "cycle": found.cycle,
        "capacity": found.half.capacity, "unit": found.half.jobs.unit, "rules": rules, "placements": places,
        "placement_by_chance": found.by_chance, **waits_report.rules_of(found.half),
    }  # fmt: skip


def write_page(path: Path, name: str, found: Identified, notes: Iterable[str]) -> None:
    from hetsim.page import elements
    from hetsim.page.elements import Section, items, table, warnings

    under = "Validated on the half of the jobs that was not used for fitting."
    places = [[one.name, _percent(one.explained), "alike" if one.alike else ""] for one in found.places]
    chance = [["at random", _percent(found.by_chance), ""]]
    sections = [
        Section("Schedulers", table(HEADS, rows(found), under)),
        Section("Placements", table(["Placement", "Of places explained", ""], places + chance) if places else ""),
        Section("What was inferred", items(fitted(found))),
        Section("Notes", warnings(notes)),
    ]
    head = [*conclusion(found), places_text(found)]
    elements.write_page(path, elements.page(f"Which scheduler made {name}", head, sections))
