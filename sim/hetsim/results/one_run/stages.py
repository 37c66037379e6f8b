"""Stages of the pipelines: a row counts items at a stage, never requests."""

import math

import numpy as np
import pandas as pd

from hetsim.model.record import COMPLETED
from hetsim.results.declared import WAIT_MEAN
from hetsim.results.one_run.launches import PlaceColumns, launches_of
from hetsim.results.one_run.measured import Run
from hetsim.results.one_run.usage import overlap

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
