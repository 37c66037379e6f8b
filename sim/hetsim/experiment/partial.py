"""Tables of a sweep that is still running, read from its directory."""

import warnings
from itertools import product
from pathlib import Path
from typing import Any

from hetsim.errors import HetsimError, UsageError
from hetsim.experiment.folder import RUNS
from hetsim.experiment.policies import written
from hetsim.experiment.store import Store
from hetsim.experiment.study import Study
from hetsim.experiment.sweep import OpenBlocks, SweepPlan, plan_sweep
from hetsim.experiment.workers import Workers
from hetsim.results.many_runs.sweep import MARK, SCENARIO, Sweep
from hetsim.results.stored_files import unsealed
from hetsim.scenario.file.document import parse_value


def planned_again(folder: Path) -> SweepPlan:
    """Rebuild the plan of a sweep from the files in its directory.

    Raises: UsageError: the files do not describe the sweep completely: a policy or an input exists only in Python.
    """
    about = unsealed(folder / MARK)
    rows = [[parse_value(one) if isinstance(one, str) else one for one in values] for values in about["points"]]
    points = [dict(zip(about["keys"], row, strict=True)) for row in rows]
    options: dict[str, Any] = {"points": points} if about["keys"] else {"over": {}}
    options |= {"seed": None if "seed" in about["keys"] else about["seed"]}
    options |= {"replications": about["replications"], "metrics": about["metrics"], "keep": about.get("keep", ())}
    named = [written(label) or label for label in about["policies"]]
    for policies, check in product((named, None), (False, True)):  # None: those of the scenario and of the points
        try:
            plan = plan_sweep(folder / SCENARIO, policies=policies, check=check, **options)
        except HetsimError:
            continue
        if plan.checked.runs.hex() == about["rows"] and not plan.pilots:
            return plan
    raise UsageError(
        f"the sweep in {folder} can be shown only when it is finished, as its files do not define all runs: it has "
        "policies of single points or in Python, an input that has changed since, or a warm-up found from pilot runs"
    )


def so_far(plan: SweepPlan, folder: Path) -> Sweep | None:
    """Return the sweep of all points whose runs are finished; None if no point is."""
    study = Study(plan.setup, Workers(), store=Store(folder / RUNS, trust=True), identity=plan.identity)
    blocks = OpenBlocks(len(plan.rows), len(plan.rows), lambda _, rows: None)
    with warnings.catch_warnings(action="ignore"):  # the program that makes the runs has them
        outstanding = study.outstanding(plan.wanted(study, range(len(plan.rows)), blocks))
    made = blocks.first
    going = {row.point for row, runs in zip(plan.rows, made, strict=True) if not runs.done}
    there = [number for number, row in enumerate(plan.rows) if row.point not in going]
    if not there:
        return None
    tables = plan.tables(only=there)
    tables.add([plan.row(number, made[number]) for number in there])
    sweep = plan.result(tables)
    rest = f"{'' if plan.amount.precision is None else 'at least '}{len(outstanding):,} runs are left"
    sweep.remarks = [*sweep.remarks, f"so far {len(there):,} of {len(plan.rows):,} rows have all their runs; {rest}"]
    return sweep
