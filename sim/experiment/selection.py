"""The best of several policies with a stated probability: replications go on until the race is decided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sim.errors import UsageError
from sim.experiment.jobs import Case, Watch, begun, cut_warmup, runner, simulate, take, tell_all
from sim.experiment.progress import Progress, Told

if TYPE_CHECKING:
    from sim.results.replications import Replications
    from sim.results.selection import Selection


def run_selection(
    cases: list[Case],
    metric: str,
    probability: float,
    delta: float,
    *,
    first: int | None = None,
    most: int | None = None,
    check: bool = False,
    metrics: Iterable[str] = (),
    workers: int = 1,
    progress: Progress | bool | None = None,
) -> tuple[dict[str, Replications], Selection]:
    """Runs of the cases, by label, and which is best: see `sim.results.selection`.

    first: replications of every case before any leaves.  Rounds follow, a replication of each that is left, until
    one is left or there are `most`.
    """
    from sim.results import selection

    first = selection.FIRST if first is None else first
    most = max(selection.MOST, first) if most is None else most
    if workers < 1:
        raise UsageError(f"workers must be at least 1, not {workers}")
    if first < 3:
        raise UsageError(f"the first stage of a selection takes at least 3 replications, not {first}")
    race = selection.Race([case.label for case in cases], metric, probability, delta)
    further = list(dict.fromkeys([*metrics, metric]))
    number = {case.label: index for index, case in enumerate(cases)}
    jobs = [(index, replication) for replication in range(most) for index in range(len(cases))]
    with (
        Told(progress) as told,
        Watch(told, first * len(cases)) as watch,
        runner(cases, len(jobs), check, further, workers, watch) as fetch,
    ):
        remarks, warnings = cut_warmup(fetch, [most] * len(cases))
        fetch.begin(jobs)
        runs: dict[str, Replications] = {}
        for label, index in number.items():
            result = simulate(fetch.cases[index], 0, check=check, watch=watch)
            runs[label] = begun(result, further)
            race.add(label, result.metric(metric), runs[label].count_of(metric, 0))
            watch.finished()
        for replication in range(1, most):
            watch.skipped(-len(race.left) if replication >= first else 0)
            for label in race.left:
                outcome = fetch(number[label], replication)
                take(runs[label], outcome, replication)
                assert outcome.values is not None
                race.add(label, outcome.values[metric], runs[label].count_of(metric, replication))
                watch.finished()
            if replication + 1 == first:
                race.start()
            if replication + 1 >= first:
                for label in race.screen():
                    fetch.drop(number[label])
                if race.over:
                    break
    tell_all(runs.values(), remarks, warnings)
    return runs, race.found()
