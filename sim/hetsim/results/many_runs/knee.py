"""The knee of a sweep: the value of a key from which on more of it gains little."""

import numpy as np

from hetsim.results.declared import has_direction, higher_is_better
from hetsim.results.formatting import metric_name
from hetsim.results.many_runs.sweep import Sweep
from hetsim.results.statistics import student_interval

NOUNS = {"cluster.nodes.count": ("nodes", "node"), "cluster.nodes.gpus.count": ("GPUs a node", "GPU")}


def knees(sweep: Sweep) -> list[str]:
    """Name the knee of each policy's curve in a sweep over one numeric key.

    The knee is the least value after which every step gains less than 5 % of the metric there, and before which one
    gained more.  With replications a gain is the upper end of its paired 95 % interval.
    """
    metric = next((name for name in sweep.shown_metrics if has_direction(name)), None)
    if metric is None or len(sweep.keys) != 1 or sweep.table[sweep.keys[0]].dtype.kind not in "if":
        return []
    key, lines = sweep.keys[0], []
    integers = all(isinstance(value, int) for value in sweep.points[key])
    path = ".".join(part for part in key.split(".") if not part.isdigit())
    many, single = NOUNS.get(path, ("", "one" if integers else "step"))
    for policy, mine in sweep.by_replication.groupby("policy", sort=False, observed=True):
        values = mine.pivot_table(metric, key, "replication", dropna=False).dropna(axis=1).sort_index()
        widths = np.diff(values.index) if integers else np.ones(max(len(values) - 1, 0))
        steps = np.diff(values.to_numpy(dtype=float), axis=0) / widths[:, None] * (2 * higher_is_better(metric) - 1)
        gains = [student_interval(step).high if len(step) > 1 else step.sum() for step in steps]
        small = [gain <= 0 or gain < 0.05 * abs(mean) for gain, mean in zip(gains, values.mean(axis=1), strict=False)]
        knee = max((step + 1 for step, below in enumerate(small) if not below), default=0)
        if np.isfinite(values).all(axis=None) and 0 < knee < len(small):
            value = sweep.points[key].loc[sweep.table.loc[sweep.table[key] == values.index[knee], "point"].iloc[0]]
            place = f"{value} {many}" if many else f"{key} = {value}"
            lines.append(f"{policy}: {place}: each further {single} gains less than 5 % in {metric_name(metric)}")
    return lines
