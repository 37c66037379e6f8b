"""Sensitivity of results to the step times of language models, from paired runs.

Near capacity a small error of the step times moves the time to the first token by a multiple, so the same replications
are run again with longer steps and compared one by one (common random numbers).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hetsim.experiment.options import StudyOptions
from hetsim.experiment.run import begun
from hetsim.experiment.study import Case, Replicates, Study
from hetsim.experiment.work import Setup
from hetsim.results.formatting import PERCENT, json_number, metric_name, several, units_of
from hetsim.results.many_runs.replications import Replications, replication_values
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import Scenario
from hetsim.scenario.schema.language_model import LanguageModel

LONGER = 0.01  # share by which steps are longer in the second run
PAIRS = 2  # maximum number of replications that are run again
METRICS = ("ttft_mean", "ttft_p99", "slo_attainment")


@dataclass(frozen=True)
class Sensitivity:
    """Means of metrics over `replications`, as they are and with `LONGER` steps."""

    replications: int
    means: Mapping[str, tuple[float, float]]
    verdicts: Mapping[str, str] = field(default_factory=dict)  # by target, with the difference added to its estimate

    @property
    def sentences(self) -> list[str]:
        parts = []
        for name, (before, after) in self.means.items():
            change = f"{100 * (after / before - 1):+.2g} % " if units_of(name) != PERCENT and before > 0 else ""
            parts.append(f"{metric_name(name)} {change}({' to '.join(several([before, after], units_of(name)))})")
        runs = "the same run" if self.replications == 1 else f"the same {self.replications} replications"
        said = [f"If steps of language models take {100 * LONGER:g} % longer: {', '.join(parts)}; {runs}."]
        verdicts = ", ".join(f"{text}: {verdict}" for text, verdict in self.verdicts.items())
        return [*said, f"Verdicts with this difference: {verdicts}."] if verdicts else said

    def to_json(self) -> dict[str, Any]:
        values = {name: {"mean": json_number(a), "longer": json_number(b)} for name, (a, b) in self.means.items()}
        verdicts = {"verdicts": dict(self.verdicts)} if self.verdicts else {}
        return {"step_time": 1 + LONGER, "replications": self.replications, "metrics": values, **verdicts}


def longer_steps(scenario: Scenario) -> dict[str, Any]:
    """Return overrides for longer steps of an engine or with drift; empty if none has."""
    changes = {}
    for number, entry in enumerate(scenario.model.workload):
        service = entry.service
        if isinstance(service, LanguageModel) and (service.engine is not None or service.drift is not None):
            drift = {} if service.drift is None else service.drift.model_dump(exclude_unset=True)
            changes[f"workload.{number}.service.drift"] = {**drift, "mean": drift.get("mean", 1.0) * (1 + LONGER)}
    return changes


def paired(
    study: Study, case: Case, values: Sequence[Mapping[str, float]], warmup: float | None, further: Sequence[str] = ()
) -> Sensitivity | None:
    """Run the first replications of a case again with longer steps, and compare.

    Parameters: values: metrics of each replication as it is; warmup: a detected one; further: metrics besides METRICS.
    Returns: the sensitivity, or None if no steps are uncertain, a run fails, or no metric is finite.
    """
    changes = longer_steps(case.scenario.with_overrides(case.overrides) if case.overrides else case.scenario)
    if not changes or case.scenario.document.program is not None:
        return None
    longer = replace(case, overrides={**case.overrides, **changes}, digest="")
    series = Replicates(longer, min(PAIRS, len(values)), warmup=warmup)
    study.meter.expect(series.goal)
    study.make([series])
    means = {}
    for name in dict.fromkeys((*METRICS, *further)):
        rows = (values[: series.goal], [outcome.values or {} for outcome in series.taken])
        before, after = (sum(row.get(name, math.nan) for row in side) / series.goal for side in rows)
        if math.isfinite(before) and math.isfinite(after):
            means[name] = (before, after)
    return Sensitivity(series.goal, means) if means else None


def sensitivity(scenario: Scenario, outcome: Result | Replications, seed: int | None = None) -> Sensitivity | None:
    """Return the sensitivity of a finished run or of its first replications.

    Parameters: scenario, seed: those of the run; outcome: its result.
    Returns: as for `paired`.
    """
    if not longer_steps(scenario):
        return None
    first, rows, case = outcome, [], Case(scenario, seed=seed)
    if isinstance(outcome, Replications):
        first, rows = outcome.results[0], outcome.values.to_dict("records")
    with begun(StudyOptions(), Setup((scenario,), METRICS)) as study:
        rows = rows or [replication_values(first)]
        return paired(study, case, rows, first.record.input.warmup if case.auto_warmup else None)
