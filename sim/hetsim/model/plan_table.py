"""A plan as a table: read by the policy `replay`, written by `hetsim plan`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetsim.model.files import write_whole
from hetsim.model.plan import Plan
from hetsim.model.tasks import Tasks

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("task", "mode", "device", "order")
TIME_COLUMNS = ("start", "finish")  # planned times, for readers only: a plan is followed by its order
COPY_COLUMNS = ("item", "after")  # columns that only a plan with prefetches or drops has
LAUNCH_COLUMN = "launch"  # column of plans with fused launches: equal numbers are one launch, blank is a single task


def plan_table(plan: Plan, tasks: Tasks) -> "pd.DataFrame":
    """Return one row per step in the order of the plan, then one per prefetch or drop."""
    import pandas as pd

    columns = list(COLUMNS)
    rows: list[tuple[Any, ...]] = []
    for order, step in enumerate(plan.steps):
        names = [mode.name for mode in tasks.shapes[tasks.shape[step.task]].modes]
        name = names[step.mode]
        mode = name if names.count(name) == 1 else step.mode
        rows.append((str(tasks.name(step.task)), str(mode), "+".join(step.devices), order))
    if plan.timetable is not None:
        columns += TIME_COLUMNS
        rows = [(*row, *times) for row, times in zip(rows, plan.timetable.tolist(), strict=True)]
    if plan.fused:
        columns.append(LAUNCH_COLUMN)
        numbers = {number: str(one) for one, together in enumerate(plan.fused) for number in together}
        rows = [(*row, numbers.get(number, "")) for number, row in enumerate(rows)]
    if plan.copies:
        columns += COPY_COLUMNS
        rows = [(*row, "", "") for row in rows]
        blank = ((None, None) if plan.timetable is not None else ()) + (("",) if plan.fused else ())
        for order, copy in enumerate(plan.copies, start=len(rows)):
            after = ("", "") if copy.after is None else (str(tasks.name(copy.after)), copy.moment)
            verb = "drop" if copy.drop else "fetch"
            rows.append((after[0], verb, copy.device, order, *blank, tasks.items[copy.item].name, after[1]))
    return pd.DataFrame(rows, columns=columns)


def write_plan(plan: Plan, tasks: Tasks, path: str | Path) -> None:
    """Write the table atomically: Parquet if the name ends with .parquet, else CSV."""
    table = plan_table(plan, tasks)
    put = table.to_parquet if Path(path).suffix == ".parquet" else table.to_csv
    write_whole(Path(path), lambda file: put(file, index=False))
