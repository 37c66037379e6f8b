"""Runs the cases of a gallery entry, and compares results with published figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pandas as pd

from hetsim.errors import RunError
from hetsim.gallery.entry import RECORDED, Entry, TableCase
from hetsim.gallery.schema import FiguresTable, FigureValue, Tolerance
from hetsim.model.files import write_text, write_whole

if TYPE_CHECKING:
    from hetsim.results.one_run.result import Result

EQUAL = 1e-6  # seconds by which two equal times of a task may differ
# `runs`: the values of the replications in order, separated by spaces
COLUMNS = ("table", "case", "value", "runs", "seconds")


@dataclass(frozen=True)
class Ran:
    """One finished case: measured values by replication, and the time taken."""

    case: TableCase
    values: dict[str, list[float]]
    seconds: float


@dataclass
class Outcome:
    """The results of a gallery entry's runs, next to the published figures."""

    entry: Entry
    recorded: pd.DataFrame

    def comparison(self) -> pd.DataFrame:
        """Return one row per published figure and per extra case, in order.

        Columns: table, the axes, value, paper (published figure), paper_deviation (its standard deviation), hetsim
        (simulated figure), deviation (its standard deviation), runs, difference (hetsim - paper), allowed (maximum
        difference), within (True if in tolerance).  If a case was not run, hetsim is NaN and within is missing.
        """
        tables = enumerate(self.entry.expected.tables)
        return pd.DataFrame([row for number, table in tables for row in self._rows(number, table)])

    def _rows(self, number: int, table: FiguresTable) -> list[dict[str, Any]]:
        found_rows: list[dict[str, Any]] = []
        figures = self.entry.figures[table.name]
        shown = [axis for axis in table.axes if axis in figures]
        figures_here = {
            (parsed(row["case"]), row["value"]): mean_and_deviation([float(one) for one in row["runs"].split()])
            for row in self.recorded[self.recorded["table"] == table.name].to_dict("records")
        }
        groups: dict[tuple[str, ...], list[tuple[tuple[str, str], ...]]] = {}
        for case in self.entry.cases_of(number, table):
            labels = dict(case.labels)
            groups.setdefault(tuple(labels[axis] for axis in shown), []).append(case.labels)
        labels_of_rows = zip(*(figures[axis] for axis in shown), strict=True) if shown else [()] * len(figures)
        rows_of: dict[tuple[str, ...], list[int]] = {}
        for row, key in enumerate(labels_of_rows):
            rows_of.setdefault(key, []).append(row)
        columns = {column: figures[column].to_numpy(float) for column in table.values}
        for key, cases in groups.items():
            rows = rows_of.get(key)
            for column, value in table.values.items():
                paper = of_paper(columns[column][rows], value) if rows else (math.nan, math.nan)
                ours = [figures_here.get((labels, column)) for labels in cases]
                axes = dict(zip(shown, key, strict=True))
                found_rows.append(
                    {"table": table.name, **axes, "value": column, **judged(paper, ours, table.tolerance)}
                )
        if table.tolerance.mean_ratio is not None:
            on_average(found_rows, table.tolerance.mean_ratio)
        if table.tolerance.shape and shown:
            in_order(found_rows, [axis for axis in shown if axis != (table.across or shown[-1])])
        return found_rows

    @property
    def seconds(self) -> float:
        """Run time in s of the recorded cases, on the machine that ran them."""
        return float(self.recorded.drop_duplicates(["table", "case"])["seconds"].sum())


def of_paper(figures: Any, value: FigureValue) -> tuple[float, float]:
    """Return mean and standard deviation of a value in the paper's data.

    If the value is compared task by task, hetsim's value is the number of tasks that agree; the mean here is then the
    number of all tasks, and the deviation 0.
    """
    if value.column is not None:
        return float(len(figures)), 0.0
    return float(figures.mean()), float(figures.std(ddof=1)) if len(figures) > 1 else 0.0


def judged(
    paper: tuple[float, float], ours: Sequence[tuple[float, float, int] | None], tolerance: Tolerance
) -> dict[str, Any]:
    """Return one row of the comparison: a published value, ours, and the difference.

    `ours`: (mean, deviation, runs) of each case, None if it was not run; the cases' mean is compared.
    """
    known_values = [one for one in ours if one is not None]
    complete = len(known_values) == len(ours)
    mean = sum(one[0] for one in known_values) / len(known_values) if known_values and complete else math.nan
    deviation = known_values[0][1] if len(known_values) == 1 else math.nan
    runs = sum(one[2] for one in known_values)
    allowed, within = allowance(paper, (mean, deviation, runs), tolerance)
    return {
        "paper": paper[0], "paper_deviation": paper[1], "hetsim": mean, "deviation": deviation, "runs": runs,
        "difference": math.nan if tolerance.shape else mean - paper[0], "allowed": allowed, "within": within,
    }  # fmt: skip


def on_average(rows: Sequence[dict[str, Any]], bound: float) -> None:
    """Set `within` of rows: True if a value's mean ratio to the paper is ≤ `bound`."""
    for value in dict.fromkeys(row["value"] for row in rows):
        judged_rows = [row for row in rows if row["value"] == value and not math.isnan(row["paper"])]
        ratios = [row["hetsim"] / row["paper"] for row in judged_rows]
        if not ratios or any(math.isnan(ratio) for ratio in ratios):
            continue  # some were not run
        mean = math.fsum(ratios) / len(ratios)
        for row in judged_rows:
            row["within"] = mean <= bound * (1 + 1e-9)
            row["allowed"] = abs((bound - 1) * row["paper"])


def ratios(rows: pd.DataFrame) -> tuple[float, float]:
    """Return mean and maximum of hetsim's values divided by the paper's."""
    ratio = rows["hetsim"] / rows["paper"]
    return float(ratio.mean()), float(ratio.max())


def difference(row: Mapping[Any, Any], tolerance: Tolerance, unit: str = "") -> str:
    """Return the distance of a comparison row from the paper's figure as text."""
    if row["difference"] != row["difference"]:
        return "–"
    if tolerance.mean_ratio is not None:
        return f"{100 * row['difference'] / row['paper']:+.2f} %"
    return number(row["difference"]) + unit


def in_order(rows: Sequence[dict[str, Any]], groups: Sequence[str]) -> None:
    """Set `within` of a row: True if it ranks in its group as it does in the paper."""
    places = [row for row in rows if not math.isnan(row["paper"]) and not math.isnan(row["hetsim"])]
    for row in places:
        others = [one for one in places if all(one[name] == row[name] for name in ("value", *groups))]
        others = [one for one in others if one["paper"] != row["paper"]]
        if others:
            row["within"] = all((one["paper"] < row["paper"]) == (one["hetsim"] < row["hetsim"]) for one in others)


def allowance(
    paper: tuple[float, float], ours: tuple[float, float, int], tolerance: Tolerance
) -> tuple[float, bool | None]:
    """Return the allowed difference, and whether `ours` is within (None: not judged)."""
    figure, spread = paper
    mean, deviation, runs = ours
    if math.isnan(figure) or math.isnan(mean) or tolerance.shape or tolerance.mean_ratio is not None:
        return math.nan, None
    if tolerance.upper_bound:
        return 0.0, mean <= figure * (1 + 1e-9)
    if tolerance.absolute is not None:
        allowed = tolerance.absolute
    elif tolerance.relative is not None:
        allowed = tolerance.relative * abs(figure)
    elif tolerance.deviations is not None:
        allowed = tolerance.deviations * spread
    else:
        from scipy.special import stdtrit

        assert tolerance.interval is not None
        if runs < 2:
            return math.nan, None
        allowed = float(stdtrit(runs - 1, 0.5 + tolerance.interval / 2)) * deviation / math.sqrt(runs)
    return allowed, bool(abs(mean - figure) <= allowed * (1 + 1e-9) + 1e-12)


# Running ----------------------------------------------------------------------------------------------------------


def run(
    entry: Entry,
    chosen: Mapping[str, list[str]] | None = None,
    *,
    short: bool = False,
    workers: int | None = 1,
    told: Callable[[str], None] | None = None,
    keep: bool = False,
) -> Outcome:
    """Run all cases of an entry, those with chosen values, or its short ones.

    workers: number of processes, None for one per core; results do not depend on it.
    told: called with a line for each case.
    keep: store each finished case next to the entry (`record`), so that an interrupted run loses nothing.
    Cases are skipped if inputs are missing that are not shipped.
    """
    entry.check()
    work = []
    for case, count in entry.short_cases() if short else ((case, None) for case in entry.cases(chosen)):
        if (missing := entry.missing(case)) is None:
            work.append((case, count))
        elif told is not None:
            told(f"{entry.name}: {case.table}: {case.text}: not run: {missing}")
    rows: list[dict[str, Any]] = []
    for ran in _ran(entry, work, workers):
        if told is not None:
            told(f"{entry.name}: {ran.case.table}: {ran.case.text}: {ran.seconds:.1f} s")
        rows += [
            {
                "table": ran.case.table, "case": written(ran.case.labels), "value": column,
                "runs": " ".join(f"{value:.10g}" for value in values), "seconds": round(ran.seconds, 1),
            }
            for column, values in ran.values.items()
        ]  # fmt: skip
        if keep:
            record(Outcome(entry, frame(rows)))
    return Outcome(entry, frame(rows))


def frame(rows: Iterable[Mapping[Any, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(COLUMNS))


def _ran(entry: Entry, work: Sequence[tuple[TableCase, int | None]], workers: int | None) -> Iterator[Ran]:
    from hetsim.experiment.workers import Workers, as_worker, process_pool

    processes = Workers(workers).workers
    jobs = [(entry, case, count) for case, count in work]
    if processes == 1 or len(jobs) < 2:
        done: dict[str, Ran] = {}
        for job in jobs:
            same = _sameness(*job)  # two tables may look at the same runs
            ran = done.get(same)
            ran = ran_case(*job) if ran is None else Ran(job[1], ran.values, 0.0)
            done[same] = ran
            yield ran
        return
    pool: ProcessPoolExecutor = process_pool(min(processes, len(jobs)), as_worker)
    try:
        with pool:
            yield from pool.map(ran_case, *zip(*jobs, strict=True))
    except BrokenExecutor:
        raise RunError("a worker process was killed, maybe for lack of memory: use fewer --workers") from None


def _sameness(entry: Entry, case: TableCase, count: int | None) -> str:
    """Return a text that is equal for cases with the same runs and measures."""
    table = entry.table(case.table)
    of_tasks = case.table if any(value.column is not None for value in table.values.values()) else ""
    return repr((case.source, case.policy, case.overrides, count, table.replications, table.values, of_tasks))


def ran_case(entry: Entry, case: TableCase, count: int | None = None) -> Ran:
    from hetsim.experiment.run import prepare
    from hetsim.experiment.work import RunJob, simulate

    begun = perf_counter()
    table = entry.table(case.table)
    scenario = prepare(case.source, case.policy, dict(case.overrides))
    runs = entry.replications(table, scenario) if count is None else count
    values: dict[str, list[float]] = {column: [] for column in table.values}
    for replication in range(runs):
        result = simulate(scenario, RunJob(0, {}, scenario.model.seed, replication), described=False)
        for column, value in table.values.items():
            values[column].append(measured(entry, table, case, result=result, column=column, value=value))
    return Ran(case, values, perf_counter() - begun)


def measured(
    entry: Entry, table: FiguresTable, case: TableCase, result: Result, column: str, value: FigureValue
) -> float:
    """Return one run's value for a column of published figures, in the paper's unit."""
    if value.column is not None:
        return float(_equal(entry, table, case, result=result, column=column, value=value))
    assert value.metric is not None
    if value.start is not None and value.to is not None:
        from hetsim.results.one_run.metrics import Measured, metric
        from hetsim.results.one_run.usage import usage

        window = Measured(result)
        window.low, window.high = value.start, value.to
        window.__dict__["use"] = usage(result.record, result.modes, value.start, value.to)
        return metric(value.metric)(window) * value.scale
    if value.metric in result.notes and isinstance(result.notes[value.metric], int | float):
        return float(result.notes[value.metric]) * value.scale
    return result.metric(value.metric) * value.scale


def _equal(entry: Entry, table: FiguresTable, case: TableCase, result: Result, column: str, value: FigureValue) -> int:
    """Return how many tasks have the value that the paper gives for the same id."""
    assert value.column is not None
    figures = entry.figures[table.name]
    for axis, label in case.labels:
        if axis in figures:
            figures = figures[figures[axis] == label]
    wanted = dict(zip(figures[value.key].astype(str), figures[column].to_numpy(float), strict=True))
    tasks = result.tasks
    measured_values = zip(tasks["id"].astype(str), tasks[value.column].to_numpy(float) * value.scale, strict=True)
    return sum(name in wanted and abs(wanted[name] - number) <= EQUAL for name, number in measured_values)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float, int]:
    count = len(values)
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((one - mean) ** 2 for one in values) / (count - 1)) if count > 1 else 0.0
    return mean, spread, count


def written(labels: Sequence[tuple[str, str]]) -> str:
    """Return a case's (axis, value) labels as one text, such as `rate=2; seed=1`."""
    return "; ".join(f"{axis}={value}" for axis, value in labels)


def parsed(text: str) -> tuple[tuple[str, str], ...]:
    """Return the (axis, value) pairs of a text such as `load=0.7; policy=fcfs`."""
    parts = [part.partition("=") for part in text.split("; ") if part]
    return tuple((axis, value) for axis, _, value in parts)


# What is kept -----------------------------------------------------------------------------------------------------


def recorded(entry: Entry) -> Outcome:
    """Return the outcome of the entry's last run, which is empty before the first."""
    path = entry.folder / RECORDED
    if not path.exists():
        return Outcome(entry, frame([]))
    return Outcome(entry, pd.read_csv(path, keep_default_na=False, dtype={"runs": str})[list(COLUMNS)])


def record(outcome: Outcome) -> None:
    """Store a gallery entry's results in its folder; those of other cases remain."""
    before = recorded(outcome.entry).recorded
    key = ["table", "case", "value"]
    again = set(outcome.recorded[key].itertuples(index=False, name=None))
    kept = before[[row not in again for row in before[key].itertuples(index=False, name=None)]]
    together = pd.concat([kept, outcome.recorded]) if len(kept) else outcome.recorded
    order = {(case.table, written(case.labels)): place for place, case in enumerate(outcome.entry.cases())}
    rows = [row for row in together.to_dict("records") if (row["table"], row["case"]) in order]
    rows.sort(key=lambda row: order[row["table"], row["case"]])
    write_whole(outcome.entry.folder / RECORDED, partial(write_text, text=frame(rows).to_csv(index=False)))


# In words ---------------------------------------------------------------------------------------------------------


def sentence(comparison: pd.DataFrame) -> str:
    """State the number of figures within the tolerance, and the largest difference."""
    judged_ = comparison[comparison["within"].notna()]
    missing = int((comparison["hetsim"].isna() & comparison["paper"].notna()).sum())
    if not len(judged_):
        return "not run" if missing else "no figure is compared"
    good = int(judged_["within"].astype(bool).sum())
    text = f"{good} of {len(judged_)} figures are within the tolerance" + (f", {missing} not run" if missing else "")
    outside = judged_[~judged_["within"].astype(bool)]
    if len(outside):
        share = (outside["difference"].abs() / outside["allowed"].where(outside["allowed"] > 0, 1e-12)).fillna(0.0)
        worst = outside.iloc[int(share.to_numpy().argmax())]
        axes = [str(worst[name]) for name in comparison.columns[1 : list(comparison.columns).index("value")]
                if isinstance(worst[name], str)]  # fmt: skip
        where = ", ".join([*axes, str(worst["value"])])
        if worst["difference"] != worst["difference"]:
            text += f"; the rank differs from the paper's in {where}: {number(worst['hetsim'])}"
        else:
            text += f"; the largest deviation is {where}: {number(worst['hetsim'])}, paper {number(worst['paper'])}"
    return text


def number(value: float) -> str:
    """Return a figure as text for people."""
    if value != value:
        return "–"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.4g}"
