"""Steps of language models: the table over time, and the times between tokens.

A row is one event of a replica: a step that reads prompts, or a series of similar decode-only steps.  A table therefore
has a few rows per request, whatever the length of the answers.
"""

import math

import numpy as np
import pandas as pd

from hetsim.model.record import COMPLETED, Record
from hetsim.results.declared import WAIT_MEAN
from hetsim.results.one_run.launches import PlaceColumns, categorical, launches_of
from hetsim.results.one_run.measured import Run
from hetsim.results.one_run.usage import overlap

UNLIMITED = 1 << 40
"""KV blocks where memory sets no limit."""
SINGLE_STEPS = 5_000_000
"""Up to so many steps each counts with its own time; where there are more, all of a row count with their mean."""


def steps_table(record: Record) -> pd.DataFrame:
    """The table of events of replicas, by the end of each event.

    `service`, `replica` (its number), `device`; `start`, `end` (s), `steps` (equal ones); `sequences` that decode in
    each, `prompt_tokens` read, `tokens` (both, of all the steps); `running` and `waiting` requests (in the replica, and
    sent to it and not in it, when the steps end); KV blocks: `kv_blocks` there are, `kv_used_start`, `kv_used` (when
    the steps end, the most within the row) and `kv_free` then, `kv_cached` (free ones that hold prefixes); missing
    where memory sets no limit.
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
    """Seconds between consecutive tokens of an answer, and their counts.

    For tokens that came between the times `low` and `high`.
    """
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
    """Seconds of the first step of each row with copying, and increment a step.

    Several steps have no copying before them, and one speed.
    """
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
    """Quantile of a sample with repeated values, linear between order statistics.

    `weights[i]` is the number of times that `values[i]` occurs.  NaN for an empty sample.
    """
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
    """The table of stages by name; empty if no request has stages.

    Of the requests that arrive in the window: `items` is how many items came to the stage or will, `completed` how
    many left it.  `wait` is the time from when the stage before it has finished (of the first, the arrival) to the
    start, `service` = upload + compute + download, `overhead` the rest of it, as of tasks; so the means of wait,
    service and overhead, summed over the stages, make the mean response where all requests of one item complete.
    `batch_mean` is items a launch, `utilization` the part of the window in which its `devices` computed for it.
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
