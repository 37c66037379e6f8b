"""Parts that families of models share: common assumptions, and result rows."""

import math
from collections.abc import Iterable, Mapping

from hetsim.model.mode import Mode
from hetsim.queueing.facts import Customers, Facts, Law, Match, PredictedRow, Unmatched, law_of
from hetsim.results.declared import RESPONSE_MEAN, WAIT_MEAN
from hetsim.theory.prediction import Prediction

SMALL = "the exact Markov chain is small enough to solve"
WAIT_P95, QUEUE_LENGTH, JOBS_IN_SYSTEM = "wait_p95", "queue_length_mean", "jobs_in_system_mean"


def moves_data(facts: Facts) -> bool:
    keys = ("bytes_in", "bytes_out", "upload", "download")
    return any(getattr(one.demand, key) for one in facts.customers for key in keys)


def sized_tasks(facts: Facts) -> bool:
    """Check that all scenario keys are covered, tasks share a mode, times are random."""
    return facts.recognized & facts.one_way() and facts.sizes_known()


def own_order(facts: Facts) -> bool:
    """Check assumptions of models where a GPU runs one task at a time, in any order."""
    understood = facts.arrivals() & sized_tasks(facts)
    facts.open_door()
    facts.undisturbed()
    facts.one_in_flight()
    facts.free_taken()
    return understood


def own_lines(facts: Facts) -> bool:
    """Check that each server is the only device of its type, with its own queue."""
    understood = facts.arrivals() & facts.recognized
    facts.open_door()
    facts.order(blind=False)
    facts.alone()
    discipline = getattr(facts.policies.scheduler.make(), "discipline", "")
    facts.suppose("a task waits only for tasks that need the same device", discipline == "skip", "policy.scheduler",
                  facts.policies.scheduler.name)  # fmt: skip
    modes, nodes = facts.modes, facts.cluster.nodes
    slots = [[facts.slots(node, mode) for mode in modes] for node in nodes]
    counts = [sum(column) for column in zip(*slots, strict=True)]
    single = len({mode.type.name for mode in modes}) == len(modes) and counts == [1] * len(modes)
    facts.suppose("each server is the one device of its type", single, "cluster.nodes", facts.shown_modes)
    facts.suppose("servers never wait for cores or memory of their node", facts.side_by_side(slots), "cluster.nodes")
    return understood and single


def equal_service(facts: Facts, kinds: Iterable[tuple[Mode, Customers]]) -> Law:
    """Return the service time of all tasks; raise Unmatched if modes differ in it."""
    timings = [facts.timing_on(mode, one.demand) for mode, one in kinds]
    laws = [law_of(one[0]).times(one[1]) for one in timings if one is not None]
    alike = len(laws) == len(timings) and all(math.isclose(law.mean, laws[0].mean) for law in laws)
    require(facts.suppose("all servers have one mean service", alike, facts.time_key))
    facts.exponential(next((law for law in laws if law.kind != "exponential"), laws[0]))
    return laws[0]


def require(*held: bool) -> None:
    """Raise Unmatched unless all required assumptions hold."""
    if not all(held):
        raise Unmatched


def matched(facts: Facts, model: str, prediction: Prediction | None = None, rows: Iterable[PredictedRow] = ()) -> Match:
    match = Match(model, facts.assumptions)
    if match.verdict != "none":
        match.rows = list(rows)
        if prediction is not None:
            match.formula_error = prediction.error
    return match


def rows_of(facts: Facts, line: Prediction, computing: float, tails: bool, loss: bool = False) -> list[PredictedRow]:
    """Return the figures of a prediction as rows named like the simulator's metrics.

    computing: mean number of computing tasks.  tails: include percentiles that the model has.  loss: include the loss.
    """
    return predicted_rows({
        WAIT_MEAN: line.wait_mean,
        WAIT_P95: line.wait_percentile(0.95) if tails and line.wait_above is not None else None,
        RESPONSE_MEAN: line.response_mean,
        "response_p95": line.response_percentile(0.95) if tails and line.response_above is not None else None,
        QUEUE_LENGTH: line.queue_length_mean,
        JOBS_IN_SYSTEM: line.jobs_in_system_mean,
        facts.busy_metric: facts.busy_share(computing),
        "loss": line.loss if loss else None,
    })  # fmt: skip


def predicted_rows(figures: Mapping[str, float | None]) -> list[PredictedRow]:
    """Return a row for each figure that is not None."""
    return [PredictedRow(metric, value) for metric, value in figures.items() if value is not None]


def matched_with_loss(facts: Facts, model: str, line: Prediction, tails: bool) -> Match:
    """Return the match of a loss model; line: its prediction; tails: with percentiles."""
    return matched(facts, model, line, rows_of(facts, line, line.throughput * facts.law.mean, tails, loss=True))


def rows_inside(line: Prediction) -> list[PredictedRow]:
    """Return rows for the number in the system and the time in the system."""
    return predicted_rows({RESPONSE_MEAN: line.response_mean, JOBS_IN_SYSTEM: line.jobs_in_system_mean})
