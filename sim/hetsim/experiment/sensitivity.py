"""How much results depend on language models' step times, from paired runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hetsim.experiment.options import StudyOptions
from hetsim.experiment.run import begun
from hetsim.experiment.study import Case, Replicates, Study
from hetsim.experiment.work import Setup
from hetsim.results.formatting import PERCENT, metric_name, several, units_of
from hetsim.results.many_runs.replications import Replications, replication_values
from hetsim.results.one_run.estimands import ATTAINMENT
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import Scenario
from hetsim.scenario.schema.language_model import LanguageModel

LONGER = 0.01  # share by which steps are longer in the second run
PAIRS = 2  # maximum number of replications that are run again
INTERVAL = "90 %: at least"  # in warnings of runs about the interval of step times
METRICS = ("ttft_mean", "ttft_p99", ATTAINMENT)


def sentences(sensitivity: Mapping[str, Any]) -> list[str]:
    """Return sentences on the effect of longer language model steps, and on intervals."""
    intervals = [f"{text}." for text in sensitivity.get("intervals", [])]
    if not sensitivity.get("metrics"):
        return intervals
    parts, count = [], sensitivity["replications"]
    for name, (before, after) in ((name, row.values()) for name, row in sensitivity["metrics"].items()):
        change = f"{100 * (after / before - 1):+.2g} % " if before and units_of(name) != PERCENT else ""
        parts.append(f"{metric_name(name)} {change}({' to '.join(several([before, after], units_of(name)))})")
    runs = "the same run" if count == 1 else f"the same {count} replications"
    where = f" with {sensitivity['case']}" if "case" in sensitivity else ""
    said = [f"If steps of language models take {100 * LONGER:g} % longer{where}: {', '.join(parts)}; {runs}."]
    verdicts = ", ".join(f"{text}: {verdict}" for text, verdict in sensitivity.get("verdicts", {}).items())
    said += [f"Verdicts with this difference: {verdicts}."] if verdicts else []
    return said + intervals


def longer_steps(scenario: Scenario) -> dict[str, Any]:
    changes = {}
    for number, service in enumerate(entry.service for entry in scenario.model.workload):
        if not isinstance(service, LanguageModel):
            continue
        if any(one is not None for one in (service.engine, service.interval, service.drift)):
            drift = {} if service.drift is None else service.drift.model_dump(exclude_unset=True)
            changes[f"workload.{number}.service.drift"] = {**drift, "mean": drift.get("mean", 1.0) * (1 + LONGER)}
    return changes


def paired(
    study: Study, case: Case, values: Sequence[Mapping[str, float]], warmup: float | None, further: Sequence[str] = ()
) -> dict[str, Any]:
    """Repeat the first replications with longer language model steps, and compare.

    Parameters: values: metrics of each replication without the change; warmup: a detected warm-up, or None; further:
        metrics to compare besides METRICS.
    Returns: step_time (the factor), replications, and by metric the mean without the change and with longer steps, if
        both are finite; empty if no language model has uncertain step times.
    """
    changes = longer_steps(case.scenario.with_overrides(case.overrides) if case.overrides else case.scenario)
    if not changes or case.scenario.document.program is not None:
        return {}
    longer = replace(case, overrides={**case.overrides, **changes}, digest="")
    series = Replicates(longer, min(PAIRS, len(values)), warmup=warmup)
    study.meter.expect(series.goal)
    study.make([series])
    metrics, pair = {}, (values[: series.goal], [outcome.values or {} for outcome in series.taken])
    for name in dict.fromkeys((*METRICS, *further)):
        means = [sum(row.get(name, math.nan) for row in side) / series.goal for side in pair]
        if all(map(math.isfinite, means)):
            metrics[name] = dict(zip(("mean", "longer"), means, strict=True))
    return {"step_time": 1 + LONGER, "replications": series.goal, "metrics": metrics}


def sensitivity(scenario: Scenario, outcome: Result | Replications, seed: int | None = None) -> dict[str, Any]:
    """Return by how much results change if all steps of language models get longer.

    outcome: the finished run or replications.  Returns the mapping of `paired`; {} if no step times are uncertain.
    """
    if not longer_steps(scenario):
        return {}
    first, case = outcome if isinstance(outcome, Result) else outcome.results[0], Case(scenario, seed=seed)
    rows = [replication_values(first)]
    if isinstance(outcome, Replications):
        rows = [{str(name): value for name, value in row.items()} for row in outcome.values.to_dict("records")]
    with begun(StudyOptions(), Setup((scenario,), METRICS)) as study:
        return paired(study, case, rows, first.record.input.warmup if case.auto_warmup else None)
