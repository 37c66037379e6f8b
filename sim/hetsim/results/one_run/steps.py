"""Steps of language models: the table over time, and the times between tokens.

A row is one event of a replica: a step that reads prompts, or a series of equal decode-only steps.  The table therefore
has a few rows per request, however long the answers are.
"""

import math

import numpy as np
import pandas as pd

from hetsim.model.record import COMPLETED, Record
from hetsim.results.declared import WAIT_MEAN
from hetsim.results.one_run.launches import PlaceColumns, categorical, launches_of
from hetsim.results.one_run.measured import Run
from hetsim.results.one_run.usage import overlap

UNLIMITED = 1 << 40  # Number of KV blocks if memory sets no limit.
SINGLE_STEPS = 5_000_000  # Maximum number of steps timed one by one; above it the steps of a row count with their mean.


def steps_table(record: Record) -> pd.DataFrame:
    """Return a table of replica events: each is a step, or several decoding steps.

    Rows are in the order of their ends.  Columns: `service`, `replica` (its number), `device`; `start`, `end` (s);
    `steps` in the event; `sequences` decoded in each step, `prompt_tokens` read, `tokens` (decoded and read in all
    steps); requests `running` in the replica, and `waiting` for it, at the end; KV blocks (missing if memory sets no
    limit): `kv_blocks` in total, `kv_used_start`, `kv_used` (at the end, where use is highest in the event), `kv_free`
    and `kv_cached` (free blocks that contain prefixes) at the end.
    """
    if (steps := record.steps) is None:
        return pd.DataFrame()
    code = steps["replica"]
    names, numbers, blocks, place = (np.array(column) for column in zip(*record.replicas, strict=True))
    devices, device_of = PlaceColumns(record).names(place)
    services, which = np.unique(names, return_inverse=True)
    total = np.where(blocks[code] >= UNLIMITED, np.nan, blocks[code].astype(float))
    used = total - steps["free"]
    columns = {
        "service": categorical(which[code], services.tolist()),
        "replica": numbers[code],
        "device": categorical(devices[place[code]], device_of),
        **{name: steps[name] for name in ("start", "end", "steps", "sequences", "prompt_tokens")},
        "tokens": steps["steps"] * steps["sequences"] + steps["prompt_tokens"],
        "running": steps["running"],
        "waiting": steps["waiting"],
        "kv_blocks": total,
        "kv_used_start": used,
        "kv_used": used + steps["taken"],
        "kv_free": total - used - steps["taken"],
        "kv_cached": np.where(np.isnan(total), np.nan, steps["cached"]),
    }
    return pd.DataFrame(columns, copy=False)


def token_gaps(record: Record, low: float = 0.0, high: float = np.inf) -> tuple[np.ndarray, np.ndarray]:
    """Return token gaps (s) that end in [low, high], and how often each gap occurs."""
    if (rows := record.steps) is None:
        return np.empty(0), np.empty(0)
    chosen = np.flatnonzero(rows["sequences"] > 0)
    chosen = chosen[np.lexsort((rows["end"][chosen], rows["replica"][chosen]))]
    code, end, count, number, start, fresh = (
        rows[name][chosen] for name in ("replica", "end", "steps", "sequences", "start", "fresh")
    )
    before = np.r_[np.nan, end[:-1]]
    before[np.r_[True, code[1:] != code[:-1]]] = np.nan
    first, growth = _first_steps(record, chosen)
    parts = [(start + first, start + first - before, number - fresh)]
    if int(count.sum()) <= SINGLE_STEPS:
        owner = np.repeat(np.arange(len(count)), count - 1)
        step = np.arange(len(owner)) - np.repeat(np.cumsum(count - 1) - (count - 1), count - 1) + 1
        gap = first[owner] + step * growth[owner]
        until = first[owner] * (step + 1) + growth[owner] * (step * (step + 1) / 2)
        parts.append((start[owner] + until, gap, number[owner]))
    else:
        more = count > 1
        gap = (end - start - first)[more] / (count[more] - 1)
        parts.append((end[more], gap, (number * (count - 1))[more]))
    if record.token_gaps is not None:
        parts.append((record.token_gaps[:, 0], record.token_gaps[:, 1], np.ones(len(record.token_gaps))))
    time, gaps, weights = (np.concatenate([np.asarray(part[k], float) for part in parts]) for k in range(3))
    kept = (weights > 0) & (time >= low) & (time <= high) & ~np.isnan(gaps)
    return gaps[kept], weights[kept]


def _first_steps(record: Record, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, by table row, the first step's seconds, and their growth with each step."""
    rows = record.steps
    assert rows is not None
    services = {service.name: service for service in record.input.language}
    devices = record.input.cluster.devices
    times = [services[name].kind_on(devices[record.places[place][0][0]].type).step
             for name, _, _, place in record.replicas]  # fmt: skip
    count, number, context = (rows[name][chosen] for name in ("steps", "sequences", "context"))
    seconds = rows["end"][chosen] - rows["start"][chosen]
    first, growth = seconds.copy(), np.zeros(len(seconds))
    for place in np.flatnonzero(count > 1).tolist():
        steps, step = int(count[place]), times[int(rows["replica"][chosen[place]])]
        sequences, there = int(number[place]), int(context[place])
        one, two, all_ = (step.decoding(k, sequences, there) for k in (1, 2, steps))
        longer = two - 2 * one
        extra = seconds[place] - all_
        first[place], growth[place] = one + max(0.0, extra), longer
        if abs(extra) > 1e-9 * all_:  # at another speed
            first[place], growth[place] = one * (seconds[place] / all_), longer * (seconds[place] / all_)
    return first, growth


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """Quantile of values that occur `weights` times, interpolated; NaN if empty."""
    if not len(values):
        return np.nan
    order = np.argsort(values, kind="stable")
    values, until = values[order], np.cumsum(weights[order])
    position = share * (until[-1] - 1)
    low, high = np.searchsorted(until, [np.floor(position), np.ceil(position)], side="right")
    part = position - np.floor(position)
    return float(values[low] + (values[min(high, len(values) - 1)] - values[low]) * part)


SECONDS_COLUMNS = (WAIT_MEAN, "wait_p95", "service_mean", "overhead_mean")
COLUMNS = ("device_type", "devices", "items", "completed", *SECONDS_COLUMNS, "batch_mean", "utilization")


def stage_figures(result: Run) -> pd.DataFrame:
    """Return the table of stages by name; empty if no request has stages.

    Covers the requests that arrive in the window.  `items`: items that need the stage.  `completed`: items that
    finished it.  `wait`: time from the end of the previous stage (for the first, the arrival) to the start.  `service`:
    upload + compute + download.  `overhead`: the remaining time.  If all requests have one item and complete, the means
    of wait, service and overhead, summed over the stages, are the mean response.  `batch_mean`: items per launch.
    `utilization`: share of the window in which the stage's `devices` computed for it.
    """
    frame, (low, high) = result.stages, result.window
    if frame.empty:
        return pd.DataFrame(columns=list(COLUMNS)).rename_axis("stage")
    arrival = frame["arrival"].to_numpy()
    inside = frame[(arrival >= low) & (arrival < result.horizon)]
    record = result.record
    staged = record.input.tasks.staged
    assert staged is not None
    launches, places = launches_of(record, result.modes), PlaceColumns(record)
    stage = staged.stage[launches.task]
    busy = overlap(launches.compute_start, launches.compute_end, low, high)
    members = np.ones(len(launches)) if launches.members is None else launches.members
    rows = {}
    for number, name in enumerate(frame["stage"].cat.categories):
        mine = stage == number
        devices = len(np.unique(places.pairs(launches.place[mine])[1]))
        here = inside[inside["stage"] == name]
        done = here[here["status"].cat.codes == COMPLETED]
        wait = here["wait"].dropna()
        time = devices * (high - low)
        rows[name] = {
            "device_type": "+".join(dict.fromkeys(here["device_type"].dropna().astype(str))),
            "devices": devices,
            "items": len(here),
            "completed": len(done),
            WAIT_MEAN: wait.mean(),
            "wait_p95": wait.quantile(0.95) if len(wait) else math.nan,
            "service_mean": (done["upload"] + done["compute"] + done["download"]).mean(),
            "overhead_mean": done["overhead"].mean(),
            "batch_mean": members[mine].mean() if mine.any() else math.nan,
            "utilization": busy[mine].sum() / time if time > 0 else math.nan,
        }
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS)).rename_axis("stage")
