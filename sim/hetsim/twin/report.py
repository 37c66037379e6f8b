"""A forecast for a live cluster as lines of a terminal, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from hetsim.report import terminal

if TYPE_CHECKING:
    from hetsim.twin.forecast import TwinForecast
    from hetsim.twin.judge import JudgedForecasts

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHOWN = 20  # jobs and nodes in the terminal; the page and JSON have all


def moment(seconds: float, now: float) -> str:
    """Return an instant as text, on the cluster's clock; a dash if after the horizon."""
    if not math.isfinite(seconds):
        return "–"
    return f"{datetime.fromtimestamp(now + seconds, UTC):%d %b %H:%M}"


def job_rows(told: TwinForecast, now: float) -> list[list[str]]:
    """Return rows of waiting jobs: ids, forecast start (see `heads`), start by limits."""
    rows = []
    for place, job in enumerate(told.jobs):
        starts = [moment(value, now) for value in told.quantiles(place, (0.05, 0.5, 0.95))]
        share = f"{100 * told.within(place):.0f} %"
        ids = [job.id, job.user, job.partition or job.group]
        rows.append([*ids, *starts, share, moment(float(told.by_limits[place]), now)])
    return rows


def heads(told: TwinForecast) -> list[str]:
    """Return the column headings of `job_rows`; under Kueue, queue replaces partition."""
    owner = ["user", "partition"] if any(job.partition for job in told.jobs) else ["namespace", "queue"]
    return ["job", *owner, "start, from", "median", "to (90 %)", "within", "by time limits"]


def free_rows(told: TwinForecast, now: float) -> list[list[str]]:
    """Return rows: node, median and 95 % quantile of when its present jobs are done."""
    rows = []
    for name, ends in told.free.items():
        half, late = np.quantile(ends, [0.5, 0.95])
        rows.append(["all nodes" if name == "all" else name, moment(float(half), now), moment(float(late), now)])
    return rows


FREE_HEADS = ["drained now", "free, median", "95 %"]


def error_lines(errors: Mapping[str, float]) -> list[str]:
    """Return sentences on the errors of the models on the last third of the log."""
    text_lines = []
    if not math.isnan(errors["run_time_median_error"]):
        off, inside = 100 * errors["run_time_median_error"], 100 * errors["run_time_inside_90"]
        text_lines.append(f"run times: the median error is {off:.0f} %; {inside:.0f} % lay inside 90 % intervals")
    if not math.isnan(errors["arrivals_error"]):
        off, inside = 100 * errors["arrivals_error"], 100 * errors["arrivals_inside_90"]
        text_lines.append(f"jobs that came: off by {off:.0f} % in the mean; {inside:.0f} % lay inside 90 % intervals")
    return text_lines or ["the log is too short to validate its models"]


def rule_lines(told: TwinForecast) -> list[str]:
    """Return lines on learned rules with evidence, and on jobs under unmodeled limits."""
    limits = ", ".join(f"{name} {count:,}" for name, count in told.rules.limits.items())
    kept = f"{sum(told.rules.limits.values()):,} waiting jobs are held back by limits that are not modeled ({limits})"
    return [f"learned: {text}" for text in told.rules.evidence] + ([f"{kept}: they may start later"] if limits else [])


def what_if_rows(told: TwinForecast, other: TwinForecast, now: float) -> list[list[str]]:
    """Return a row per job that waits in both forecasts, with both median starts."""
    places = {job.id: place for place, job in enumerate(other.jobs)}
    rows = []
    for place, job in enumerate(told.jobs):
        before = told.quantiles(place, [0.5])[0]
        if job.id not in places:
            rows.append([job.id, job.user, moment(before, now), "never fits", "–"])
            continue
        after = other.quantiles(places[job.id], [0.5])[0]
        both = math.isfinite(before) and math.isfinite(after)
        change = f"{(after - before) / 3600:+.1f} h" if both else "–"
        rows.append([job.id, job.user, moment(before, now), moment(after, now), change])
    return rows


WHAT_IF_HEADS = ["job", "user", "median start", "changed", "difference"]


def summary(told: TwinForecast, now: float) -> list[str]:
    """Return the forecast in sentences."""
    half = np.median(told.occupied, axis=0)
    samples, hours = len(told.starts), told.horizon / 3600
    of_capacity = f"{told.capacity:,.6g} {told.unit}"
    lines = [f"{len(told.jobs):,} jobs wait on {of_capacity}; {samples:,} samples of the next {hours:g} h"]
    if told.widening is not None:
        wide = told.widening
        lines.append(f"intervals are widened by errors of {wide.starts:,} starts forecast at {wide.snapshots} earlier "
                     "instants")  # fmt: skip
    started = np.isfinite(told.starts).mean(axis=1) if len(told.jobs) else np.ones(samples)
    lines.append(f"of the waiting jobs {100 * np.median(started):.0f} % start within {hours:g} h; "
                 f"{np.median(told.came):,.0f} more come")  # fmt: skip
    lines.append(f"median occupancy: {half[-1]:,.6g} {told.unit} at the end, maximum {half.max():,.6g}")
    return lines


def lines(
    told: TwinForecast, now: float, errors: Mapping[str, float], other: TwinForecast | None = None, changed: str = "",
    only: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """Format a forecast and a what-if (`other`) for a terminal; only: job ids to show."""
    text_lines = [f"forecast from {moment(0.0, now)}", *summary(told, now), *error_lines(errors), *rule_lines(told), ""]
    rows = [row for row in job_rows(told, now) if not only or row[0] in only]
    text_lines += terminal.table([heads(told), *rows[:SHOWN]], right=(3, 4, 5, 6, 7)) if rows else ["no job waits"]
    if len(rows) > SHOWN:
        text_lines.append(f"... and {len(rows) - SHOWN:,} more jobs (--page or --json has all)")
    text_lines += ["", *terminal.table([FREE_HEADS, *free_rows(told, now)[:SHOWN]], right=(1, 2))]
    if other is not None:
        changes = [row for row in what_if_rows(told, other, now) if not only or row[0] in only]
        text_lines += ["", f"what if: {changed}", *summary(other, now)[1:]]
        text_lines += terminal.table([WHAT_IF_HEADS, *changes[:SHOWN]], right=(2, 3, 4)) if changes else []
    return text_lines


def mapping(
    told: TwinForecast, now: float, errors: Mapping[str, float], other: TwinForecast | None = None, changed: str = ""
) -> dict[str, Any]:
    """Return forecast and what-if `other` as JSON: s after `now`; null: after horizon."""
    figures: dict[str, Any] = {
        "now": f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%S}", "horizon": told.horizon, "unit": told.unit,
        "capacity": told.capacity, "samples": len(told.starts),
        "widened_by": None if told.widening is None else
        {"starts": told.widening.starts, "snapshots": told.widening.snapshots},
        "forecast_error": {name: _known(value) for name, value in errors.items()}, **_forecast(told),
        "rules": told.rules.evidence, "limits_not_modeled": told.rules.limits,
    }  # fmt: skip
    if other is not None:
        figures["what_if"] = {"changed": changed, "capacity": other.capacity, **_forecast(other)}
    return figures


def _forecast(told: TwinForecast) -> dict[str, Any]:
    jobs = []
    for place, job in enumerate(told.jobs):
        quantiles = told.quantiles(place, SHARES)
        jobs.append({
            "id": job.id, "user": job.user, "partition": job.partition, "within_horizon": told.within(place),
            **{f"start_p{100 * share:.0f}": _known(value) for share, value in zip(SHARES, quantiles, strict=True)},
            "start_by_limits": _known(float(told.by_limits[place])),
        })  # fmt: skip
    levels = np.quantile(told.occupied, (0.05, 0.5, 0.95), axis=0)
    free = {name: dict(zip(("p50", "p95"), np.quantile(ends, [0.5, 0.95]).tolist(), strict=True))
            for name, ends in told.free.items()}  # fmt: skip
    as_json = {"times": told.times.tolist(), **dict(zip(("p5", "p50", "p95"), levels.tolist(), strict=True))}
    return {"jobs": jobs, "free": free, "held": as_json,
            "jobs_to_come": float(np.median(told.came)), "notes": told.notes}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


# Judging --------------------------------------------------------------------------------------------------------


def judged_lines(judged: JudgedForecasts) -> list[str]:
    """Return a table of the errors of predicted starts."""
    rows = [["predicted by", "inside 50 %", "width", "inside 90 %", "width", "error, median", "mean"]]
    for row in judged.table():
        cells = [row["method"]]
        for share in ("50", "90"):
            cover, wide = row[f"coverage_{share}"], row[f"width_{share}"]
            cells += ["–", "–"] if cover is None else [f"{100 * cover:.0f} %", f"{wide / 3600:.1f} h"]
        rows.append([*cells, f"{row['error_median'] / 3600:.1f} h", f"{row['error_mean'] / 3600:.1f} h"])
    late = 100 * float(judged.beyond.mean())
    number, hours = len(judged.instants), judged.horizon / 3600
    head = f"{len(judged.actual):,} starts predicted at {number} instants, {hours:g} h ahead; "
    return [f"{head}{late:.0f} % of the jobs started later than that", "", *terminal.table(rows, right=range(1, 7))]
