"""Parts that pages about runs, comparisons and sweeps share."""

import math
from collections.abc import Iterable
from functools import partial
from itertools import combinations
from shlex import quote
from typing import Any

import pandas as pd

from hetsim.experiment.policies import written
from hetsim.page import elements
from hetsim.page.elements import Cell, Markup, Section
from hetsim.results.declared import has_direction
from hetsim.results.formatting import figures, metric_name, pair
from hetsim.results.many_runs.compare import Comparison
from hetsim.results.many_runs.findings import Finding, better
from hetsim.results.many_runs.groups import difference_cells
from hetsim.results.many_runs.sweep import Sweep
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.store import versions

Parts = tuple[str, list[str], list[Section], bytes]  # title, lines below it, sections, columns of the explorable runs


def sentence_case(text: str) -> str:
    """Capitalize the first letter only; `GPU` is not changed."""
    return text[:1].upper() + text[1:]


def scenario_of(first: Result) -> str:
    """Return HTML with the scenario of a run, as a collapsed section."""
    return "" if first.scenario is None else elements.code(first.scenario, "the resolved scenario")


def command(first: Result, folder: str, verb: str, replications: int | None = None, more: Iterable[str] = ()) -> str:
    """Return the `hetsim VERB` command that repeats runs; empty without a scenario."""
    words = [f"hetsim {verb} {scenario_file(folder)} --seed {first.seed}", *more]
    words += [] if replications is None else [f"--replications {replications}"]
    return "" if first.scenario is None else " ".join(words)


def commands(text: str, runs: Iterable[Result] = ()) -> str:
    """Return HTML: the commands `text`, and versions with which they repeat the runs."""
    used = dict.fromkeys(f"{name} {version}" for name, version in versions().items())
    used |= {f"{name} (SHA-256 {digest[:12]})": None for run in runs for name, digest in run.inputs.items()
             if name.startswith("external ")}  # fmt: skip
    listed = elements.escape(", ".join(used))
    return text and elements.code(text) + f"<p>The same versions give the same bytes. Here: {listed}.</p>"


def scenario_file(folder: str) -> str:
    """Return the path of the scenario in a directory, quoted for a shell."""
    return quote(f"{folder}/scenario.yaml" if folder else "scenario.yaml")


def policy_option(label: str, value: Any = None) -> str:
    """Return `--policy sjf`, or `--policy` with a mapping for a label with parameters."""
    return f"--policy {quote(policy_text(label, value))}"


def policy_text(label: str, value: Any = None) -> str:
    """Return a policy in the form of the command line."""
    return written(label, value) or label


def better_sentence(finding: Finding, base: float) -> str:
    """Return a finding as a sentence: A is better than B in a metric by 36 ± 5 %.

    If neither high nor low values of the metric are better, the sentence says higher or lower.  If the difference is
    not significant or has no percentage, the finding's own sentence is returned.
    base: mean of the other policy, to which percentages refer.
    """
    if finding.shown != "different" or not (base != 0 and math.isfinite(base)):
        return finding.sentence
    if not has_direction(finding.metric):
        word = "higher" if finding.difference > 0 else "lower"
    else:
        word = "better" if better(finding.metric, finding.difference) else "worse"
    share = pair(100 * abs(finding.difference / base), 100 * finding.half_width / abs(base))
    return (
        f"{finding.policy} is {word} than {finding.other} in {metric_name(finding.metric)} by {share} %, "
        f"n = {finding.n} ({finding.gap}; paired, {100 * finding.confidence:g} %, Holm)."
    )


MAX_ROWS = 2000  # maximum number of rows of a table on a page
DIFFERENCE_TITLES = ("policy", "other", "policy - other", "p (Holm)", "shown", "n")
HOLM_OF_METRIC = "Intervals and p are corrected by Holm's procedure over the pairs of a metric."


def difference_rows(metric: str, rows: pd.DataFrame) -> list[list[str | Cell]]:
    """Return the rows of a table of paired differences in one metric, in one unit."""
    values, halves = rows["difference"].tolist(), rows["half_width"].tolist()
    texts = difference_cells(metric, values, halves, [False] * len(values))
    return [
        [
            str(record["policy"]), str(record["other"]), Cell(text, float(record["difference"])),
            Cell(figures(record["p"], 2), float(record["p"])), "yes" if record["significant"] else "no",
            Cell(str(record["n"]), float(record["n"])),
        ]
        for text, record in zip(texts, rows.to_dict("records"), strict=True)
    ]  # fmt: skip


def regret_picture(found: Comparison | Sweep, metrics: list[str], to: Markup) -> str:
    """Picture of policies' distances from the best one, in the first suitable metric."""
    from hetsim import plots  # large: not before the folder has been read

    for name in metrics:
        # Refused for a metric of which neither way is better, or 0 at its best.
        draw, caption = partial(plots.regret, found, name), "The distance of each policy from the best policy."
        if drawn := to.picture(draw, f"regret in {metric_name(name)}", caption, optional=True):
            return drawn
    return ""


def front_picture(found: Comparison | Sweep, metrics: list[str], to: Markup) -> str:
    """Draw the Pareto front of two `metrics` of different quantities; "" if none."""
    from hetsim import plots  # large: not before the folder has been read

    for one, other in combinations(metrics, 2):
        if one.rpartition("_")[0] == other.rpartition("_")[0]:
            continue  # the mean and a percentile of the same thing trade nothing off
        alt = f"{metric_name(one)} and {metric_name(other)}"
        caption = "The dashed line joins the points that no other point beats in both metrics."
        if drawn := to.picture(partial(plots.pareto, found, one, other), alt, caption, optional=True):
            return drawn
    return ""
