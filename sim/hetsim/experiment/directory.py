"""Directories of results: one run, replications, or a comparison.

The tables are written completely or not at all.  Pictures are drawn after the tables are written; a picture that
fails gives a warning with its name (`hetsim.results.panels`), and the tables remain.

One run         the files of `Result.save` (tables, summary.json, scenario.yaml, run.json)
replications    run.json, scenario.yaml, summary.json, replications.parquet (rows: replications; columns: metrics),
                and replication-0/: the first run in full
comparison      run.json, comparison.json, comparison.csv (means and half-widths), pairs.csv, by_class.csv, by_gpus.csv
                and by_user.csv where there are several of these groups, and one directory for each policy; if a
                policy has a plan also plans.csv, and the policies' pictures are Gantt charts

Each directory has a picture (picture.png) by default; a comparison also has distributions.png (response, wait and
slowdown) and over_time.png (GPUs, queue and fragmentation), both of the first runs, and a picture for each by_*.csv.
The directory of one run has the by_*.csv that were requested.  If a run fails, its tables up to the failure are in the
folder `partial`.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import pandas as pd

from hetsim.errors import UsageError
from hetsim.model.files import write_text
from hetsim.model.units import shown
from hetsim.results.formatting import json_values
from hetsim.results.many_runs.compare import COMPARISON, Comparison
from hetsim.results.many_runs.groups import differences_json, flat, groups_json
from hetsim.results.many_runs.replications import FIRST, REPLICATIONS, Replications
from hetsim.results.many_runs.selection import Selection
from hetsim.results.many_runs.sweep import MARK as SWEPT
from hetsim.results.many_runs.sweep import Sweep
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.store import MARK, versions, write_csv, write_directory, write_json, write_mark, write_table
from hetsim.results.panels import drawn, write_picture
from hetsim.scenario.scenario import Overrides, Scenario
from hetsim.scenario.scenario import load as load_scenario

# Grouping (class, gpus, user) -> table of `hetsim.results.many_runs.groups.table_of_groups`.
Groups = Mapping[str, pd.DataFrame]

PICTURE = "picture.png"
PARTIAL = "partial"  # Subdirectory with the tables of a failed run up to its failure.

MAX_BARS = 20_000  # Maximum number of launches in a Gantt chart; above it the default picture is drawn.


def folder_name(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", re.sub(r"\s*\+\s*", "+", text)).strip("-.") or "run"


def save(
    outcome: Result | Replications, directory: str | Path, *, picture: bool = True, groups: Groups | None = None
) -> Path:
    """Write the directory of a Result or Replications, with tables by group."""

    def write(folder: Path) -> None:
        _write(outcome, folder)
        for name, table in (groups or {}).items():
            write_csv(flat(table), folder / f"by_{name}.csv")

    _drop_partial(Path(directory))
    target = write_directory(Path(directory), write)
    if picture:
        _draw(outcome, target / PICTURE)
    return target


def check_target(directory: str | Path) -> Path:
    """Raise UsageError if a directory cannot be written, before the run starts."""
    target = Path(directory)
    try:
        if os.access(target, os.F_OK) or target.is_symlink() or target.exists():
            names = {inner.name for inner in target.iterdir()} if target.is_dir() and not target.is_symlink() else None
            if names is None or (names and MARK not in names and names != {PARTIAL}):
                raise UsageError(f"{target} exists and is not a run directory; it was not changed")
        parent = target.absolute().parent
        while not parent.exists():
            parent = parent.parent
        if not parent.is_dir():
            raise UsageError(f"{target} cannot be written: {parent} is not a folder")
        os.rmdir(tempfile.mkdtemp(prefix=".hetsim-", dir=parent))  # the only test that all file systems pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the name is not valid"
        raise UsageError(f"{shown(str(target))} cannot be written: {reason}") from None
    return target


def save_partial(result: Result, directory: str | Path) -> Path:
    return result.save(Path(directory) / PARTIAL)


def _drop_partial(target: Path) -> None:
    partial = target / PARTIAL
    if target.is_dir() and [inner.name for inner in target.iterdir()] == [PARTIAL] and (partial / MARK).is_file():
        shutil.rmtree(partial)


def save_comparison(
    comparison: Comparison,
    runs: Mapping[str, Result | Replications],
    directory: str | Path,
    *,
    picture: bool = True,
    groups: Groups | None = None,
) -> Path:
    """Write the directory of a comparison and of its runs, with tables by group."""

    def write(folder: Path) -> None:
        for label, outcome in runs.items():
            _write(outcome, folder / folder_name(label))
        table = comparison.table.copy()
        table.columns = ["_".join(names) for names in table.columns]
        if comparison.refused:
            table = table.reindex([*table.index, *comparison.refused]).rename_axis("policy")
            table["refused"] = table.index.map(lambda label: comparison.refused.get(label, ""))
        write_csv(table, folder / "comparison.csv")
        write_csv(comparison.pairs, folder / "pairs.csv", index=False)
        if not comparison.plans.empty:
            write_csv(_without_clock(comparison.plans), folder / "plans.csv")
        for name, group_table in (groups or {}).items():
            write_csv(flat(group_table), folder / f"by_{name}.csv")
        write_json(folder / COMPARISON, comparison_json(comparison, runs, groups))
        first = next(iter(runs.values()))
        folders = {label: folder_name(label) for label in runs}
        about = {"name": first.name, "seed": first.seed, "policies": folders, "versions": versions()}
        if comparison.asked:
            about["asked"] = dict(comparison.asked)
        write_mark(folder, about)

    _drop_partial(Path(directory))
    target = write_directory(Path(directory), write)
    if picture:
        _draw_comparison(comparison, runs, groups or {}, target)
    return target


def _draw_comparison(
    comparison: Comparison, runs: Mapping[str, Result | Replications], groups: Groups, folder: Path
) -> None:
    first = {label: kept_runs[0] for label, outcome in runs.items() if (kept_runs := _whole_runs(outcome))}
    # Gantt charts of plans have a common end of their time axes.
    until = None if comparison.plans.empty else max(run.end for run in first.values())
    for label, outcome in runs.items():
        _draw(outcome, folder / folder_name(label) / PICTURE, until)
    _save_figure("comparison", comparison, folder / PICTURE)
    if first:
        _save_figure("distributions", first, folder / "distributions.png")
        _save_figure("over_time", first, folder / "over_time.png")
    for name, group_table in groups.items():
        _save_figure("groups", group_table, folder / f"by_{name}.png")


def _whole_runs(outcome: Result | Replications) -> list[Result]:
    return [outcome] if isinstance(outcome, Result) else outcome.results


def _without_clock(plans: pd.DataFrame) -> pd.DataFrame:
    return plans.drop(columns="planning_s")


def comparison_json(
    comparison: Comparison, runs: Mapping[str, Result | Replications], groups: Groups | None = None
) -> dict[str, Any]:
    """Build the JSON of a comparison: {"scenario", "seed", "policies", ...}.

    "policies" maps labels to summaries.  If a policy has a plan, "plans" is {label: {planned_makespan, makespan,
    lower_bound, ratio}}.  With tables of groups, "groups" is {by: {label: {group: {metric: value, or {mean, half_width,
    n}}}}}, and "group_differences" is {by: [...]}, whose entries are those of "differences" with the group.  Policies
    that cannot run the scenario are only in "refused": {label: reason}.
    """
    first = next(iter(runs.values()))
    plans = {
        str(label): json_values({str(name): value for name, value in row.items()})
        for label, row in _without_clock(comparison.plans).iterrows()
    }
    return {
        "scenario": first.name,
        "seed": first.seed,
        **({"plans": plans} if plans else {}),
        "policies": {label: outcome.to_json()["summary"] for label, outcome in runs.items()},
        **({"refused": dict(comparison.refused)} if comparison.refused else {}),
        "baseline": comparison.baseline,
        "differences": differences_json(comparison.pairs),
        "winners": comparison.winners,
        "sentences": comparison.sentences,
        **({
            "groups": groups_json(groups, not isinstance(first, Result)),
            "group_differences": {by: differences_json(comparison.differences_by(by)) for by in groups},
        } if groups else {}),  # fmt: skip
        **({"selection": _selection(comparison.selection)} if comparison.selection is not None else {}),
    }


def _selection(found: Selection) -> dict[str, Any]:
    keys = ("metric", "probability", "delta", "best")
    in_race = {"left": list(found.remaining), "replications": dict(found.runs)}
    return {**{key: getattr(found, key) for key in keys}, **in_race}


@overload
def load(source: Mapping[str, Any], overrides: Overrides = ()) -> Scenario: ...
@overload
def load(source: str | Path, overrides: Overrides = ()) -> Any: ...
def load(source: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> Any:
    """Load a scenario to inspect, change and run, or the results in a folder.

    For type checkers, `Scenario.load`, `Result.load`, `Replications.load`, `Comparison.load` and `Sweep.load` have one
    return type each.

    Parameters:
        source: the scenario, as `run` accepts it: a file, the name of a shipped scenario, or a mapping; or a folder
            that `--out` or `save` wrote.
        overrides: values of the scenario to change.
    Returns: the scenario, or the results in the folder.
    Raises:
        ScenarioError: the scenario is invalid.
        UsageError: there is no such scenario, or the folder is damaged.
    """
    kind = _kind_of(Path(source)) if isinstance(source, str | Path) else None
    if kind is None or not isinstance(source, str | Path):
        return load_scenario(source, overrides)
    if overrides:
        raise UsageError(f"{source} is a directory of results, to which overrides cannot be applied")
    return kind.load(source)


def load_any(directory: str | Path) -> Result | Replications | Comparison | Sweep:
    """Load the results in a directory, whichever command wrote them."""
    return (_kind_of(Path(directory)) or Result).load(directory)


def _kind_of(folder: Path) -> type[Result | Replications | Comparison | Sweep] | None:
    kinds = {SWEPT: Sweep, COMPARISON: Comparison, REPLICATIONS: Replications, MARK: Result}
    return next((kind for name, kind in kinds.items() if (folder / name).is_file()), None)


def first_run(directory: str | Path) -> Result:
    """Load the run in a directory, or the first of its replications."""
    folder = _not_comparison(Path(directory))
    return Result.load(folder / FIRST if (folder / REPLICATIONS).is_file() else folder)


def _not_comparison(folder: Path) -> Path:
    if (folder / COMPARISON).is_file():
        runs = sorted(str(inner) for inner in folder.iterdir() if inner.is_dir())
        raise UsageError(f"{folder} is a comparison; give one of its runs: {', '.join(runs)}")
    if (folder / "sweep.json").is_file():
        raise UsageError(
            f"{folder} is a sweep, which stores metrics of runs but not their tasks: run two of its points "
            "with `hetsim run --set KEY=VALUE --out DIR`"
        )
    return folder


def _write(outcome: Result | Replications, folder: Path) -> None:
    if not isinstance(outcome, Replications):
        outcome.save(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    first = outcome.results[0]
    first.save(folder / FIRST)
    # All that a comparison needs, private columns included.
    write_table(outcome._frame(), folder / REPLICATIONS, index=None)
    write_json(folder / "summary.json", outcome.to_json())
    if first.scenario is not None:
        write_text(folder / "scenario.yaml", first.scenario)
    about = {
        "name": outcome.name,
        "seed": outcome.seed,
        "replications": len(outcome),
        "policy": outcome.policy,
        "warnings": outcome.warnings,
        "remarks": outcome.remarks,
        "versions": versions(),
    }
    write_mark(folder, about)


def _draw(outcome: Result | Replications, path: Path, until: float | None = None) -> None:
    runs = _whole_runs(outcome)
    if until is None or not runs or len(runs[0].launches) > MAX_BARS:
        _save_figure("default", outcome, path)
    else:
        _save_figure("gantt", runs[0], path, until=until)


def _save_figure(name: str, results: Any, path: Path, **options: Any) -> None:
    write_picture(lambda: drawn(name, results, **options), path)
