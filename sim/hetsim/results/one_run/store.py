"""Run directories: scenario, seed, versions, tables, summary; written as a whole.

    run.json            name, seed, replication, policy and its notes, window, versions, warnings, error, digests of
                        all other files and of the scenario's inputs; with a checksum
    scenario.yaml       the resolved scenario
    summary.json        the output of `--json`
    tasks.parquet       tables; also launches, devices, timeline, and if they apply steps, links, stages, calls
    record/             the engine's record and its input (`hetsim.results.saved_input`), for `explain` and metrics
                        that are computed later

No file records when or where the run was made, or how long the policy planned (`Record.planning` is wall clock): the
same run gives the same files.  A loaded run is saved as a copy of its files.
"""

import json
import math
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from hetsim.build import BUILD
from hetsim.errors import DamagedFile, UsageError
from hetsim.model.files import flush, naming, temporary_folder, umask, write_text
from hetsim.model.record import PREEMPTIONS, Record
from hetsim.results.declared import current_name
from hetsim.results.formatting import json_number
from hetsim.results.one_run.measured import Run
from hetsim.results.saved_classes import CLASSES
from hetsim.results.saved_input import ARRAYS, OBJECTS, load_input, save_input
from hetsim.results.stored_files import check_names, digests, read_frame, read_json, sealed, unsealed, verify

MARK = "run.json"
TABLES = ("tasks", "launches", "devices", "timeline")
# Tables of runs with language models, networks between nodes, pipelines, and clients that retry.
FURTHER = ("steps", "links", "stages", "calls")
LATER = (*(f"{name}.parquet" for name in (*TABLES, *FURTHER)), "record/")
_COLUMNS = CLASSES["record/tasks"][1]
_OPTIONAL = ("launches", "cycles", "stays", "links", "steps")
_TABLES, _MISSING = "aiconfigurator-core", "not installed"  # tables of kernels: `hetsim.silicon.exact`
_PACKAGES = ("hetsim", "simpy", "numpy", "pandas", "scipy", "pyarrow")


def versions() -> dict[str, str]:
    """Versions of Python, the platform and the packages that affect results."""
    here = {"python": platform.python_version(), "platform": platform.machine()}
    packages = {package: package_version(package) for package in (*_PACKAGES, _TABLES)}
    return here | {name: version for name, version in packages.items() if name != _TABLES or version != _MISSING}


@cache
def package_version(package: str) -> str:
    """Version of a package, cached because parsing its metadata is slow."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _MISSING


def write_directory(target: Path, write: Callable[[Path], None], mark: str = MARK) -> Path:
    """Call `write` to fill a temporary folder, then rename the folder to `target`.

    An existing directory is replaced if it is empty or contains the file `mark`; otherwise UsageError.  An OSError
    names the file by its path in the target.
    """
    if target.exists() or target.is_symlink():
        ours = target.is_dir() and not target.is_symlink() and ((target / mark).is_file() or not any(target.iterdir()))
        if not ours:
            raise UsageError(f"{target} exists and is not a run directory; it was not changed")
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = temporary_folder(target, "new")
    try:
        fresh.chmod(0o777 & ~umask())  # mkdtemp makes it private; a result is as readable as any other file
        write(fresh)
        for path in (*fresh.rglob("*"), fresh):
            flush(path)
        if target.exists():
            old = temporary_folder(target, "old")
            target.rename(old / "old")
            fresh.rename(target)
            shutil.rmtree(old)
        else:
            fresh.rename(target)
        flush(target.parent)
    except BaseException as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if isinstance(error, OSError) and error.filename is not None:
            error.filename = str(error.filename).replace(str(fresh), str(target), 1)
        raise
    return target


class Kept(Run, Protocol):
    """Protocol of a run that can be saved: it has all that a run directory contains."""

    seed: int
    replication: int
    scenario: str | None
    error: str | None
    inputs: dict[str, str]
    saved: "Saved | None"

    @property
    def warmup(self) -> float: ...
    @property
    def timeline(self) -> pd.DataFrame: ...
    @property
    def warnings(self) -> list[str]: ...
    def to_json(self) -> dict[str, Any]:
        """The contents of summary.json."""


def save(result: Kept, target: Path) -> Path:
    def write(folder: Path) -> None:
        if result.saved is not None:
            _copy(result.saved, folder)
            return
        for name in TABLES:
            write_table(getattr(result, name), folder / f"{name}.parquet")
        for name in FURTHER:
            if len(getattr(result, name)):
                write_table(getattr(result, name), folder / f"{name}.parquet")
        write_json(folder / "summary.json", result.to_json())
        if result.scenario is not None:
            write_text(folder / "scenario.yaml", result.scenario)
        _save_record(result.record, folder / "record")
        write_mark(folder, _description(result))

    return write_directory(target, write)


def write_mark(folder: Path, about: dict[str, Any]) -> None:
    """Mark a folder as results: write digests of its files, without nested results."""
    runs = [path.parent for path in folder.rglob(MARK)]
    files = [path for path in folder.rglob("*") if path.is_file() and not any(run in path.parents for run in runs)]
    digest_by_name = digests(folder, sorted(path.relative_to(folder).as_posix() for path in files))
    write_text(folder / MARK, sealed({**about, "files": digest_by_name}, 1))


def read_mark(folder: Path, later: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read a directory's mark (run.json); verify it and the files that it lists.

    later: files whose names begin with one of these texts are not verified here, but when they are read.
    """
    check_names(folder / MARK, [MARK])
    about = unsealed(folder / MARK)
    files = about.get("files", {})
    if not isinstance(files, dict):
        raise DamagedFile(folder / MARK, "the entry `files` must map names to digests")
    check_names(folder / MARK, files)
    for name, digest in files.items():
        if not name.startswith(later):
            verify(folder / name, digest)
    return about


def _copy(saved: "Saved", folder: Path) -> None:
    for name, digest in saved.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(verify(saved.directory / name, digest), folder / name)
    shutil.copyfile(saved.directory / MARK, folder / MARK)


def write_table(frame: pd.DataFrame, path: Path, index: bool | None = False) -> None:
    with naming(path):
        frame.to_parquet(path, index=index)


def write_csv(table: pd.DataFrame, path: Path, index: bool = True) -> None:
    """Write a table as CSV; texts that a spreadsheet would execute are escaped."""
    shown = table.rename(columns=_no_formula)
    shown.index = shown.index.map(_no_formulas)
    with naming(path):
        shown.map(_no_formula).to_csv(path, index=index)


def _no_formulas(label: Any) -> Any:
    return tuple(map(_no_formula, label)) if isinstance(label, tuple) else _no_formula(label)


def _no_formula(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _description(result: Kept) -> dict[str, Any]:
    return {
        "name": result.name,
        "seed": result.seed,
        "replication": result.replication,
        "policy": result.policy,
        "notes": _mapped(result.notes, lambda value: json_number(value) if isinstance(value, float) else value),
        "warmup": result.warmup,
        "horizon": None if math.isinf(result.horizon) else result.horizon,
        "end": result.end,
        "bound": result.bound,
        "warnings": result.warnings,
        "error": result.error,
        "inputs": result.inputs,
        "versions": versions(),
        "build": BUILD,
    }


def _mapped(note: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(note, dict):
        return {key: _mapped(value, convert) for key, value in note.items()}
    return [_mapped(value, convert) for value in note] if isinstance(note, list) else convert(note)


def _numbers_from_json(note: Any) -> Any:
    return _mapped(note, lambda value: float(value) if value in ("Infinity", "-Infinity") else value)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _save_record(record: Record, folder: Path) -> None:
    folder.mkdir()
    columns = {name: getattr(record, attribute) for name, attribute in _COLUMNS.items()}
    columns = {name: values for name, values in columns.items() if values is not None}
    # A closed loop writes these while it runs; a rebuilt input would not have them.
    columns["arrival"] = record.input.tasks.arrival
    if record.input.tasks.deadline is not None:
        columns["deadline"] = record.input.tasks.deadline
    columns |= {f"preemptions_{kind}": values for kind, values in record.preemptions_by.items()}
    write_table(pd.DataFrame(columns), folder / "tasks.parquet")
    if record.token_gaps is not None:
        write_table(pd.DataFrame(record.token_gaps, columns=["time", "gap"]), folder / "gaps.parquet")
    for name in _OPTIONAL:
        if (columns_of := getattr(record, name)) is not None:
            write_table(pd.DataFrame(columns_of), folder / f"{name}.parquet")
    rest = {
        "end": record.end,
        "places": record.places,
        "reasons": [[int(task), text] for task, text in record.reasons.items()],
        "device_log": record.device_log,
        "holds": record.holds,
        "occupied": record.occupied,
        "fused": [[launch, *figures] for launch, figures in record.fused.items()],
        "replicas": record.replicas,
        "stats": record.stats,
    }
    text = json.dumps(rest, default=lambda value: value.item())
    write_text(folder / "rest.json", text + "\n")
    save_input(record.input, folder)


@dataclass
class Saved:
    """A saved run's directory, before any table is read."""

    directory: Path
    files: dict[str, str]
    inputs: dict[str, str]
    named: dict[str, Any]  # name, seed, replication, policy, error, bound, scenario
    stated: dict[str, Any]  # warmup, end, horizon, warnings, notes
    values: dict[str, float]  # values of the summary's metrics


def open_run(directory: Path) -> Saved:
    """Open and verify a run directory; UsageError if it is not one, or damaged."""
    scenario = directory / "scenario.yaml"
    try:
        about = read_mark(directory, LATER)
        listed = about.get("files", {})
        summary = read_json(directory / "summary.json")["summary"]
        named = {name: about[name] for name in ("name", "seed", "replication", "policy", "error", "bound")}
        named["scenario"] = scenario.read_text(encoding="utf-8") if scenario.name in listed else None
        facts = {
            "warmup": about["warmup"],
            "end": about["end"],
            "warnings": list(about["warnings"]),
            "notes": _numbers_from_json(about.get("notes", {})),
            "horizon": math.inf if about["horizon"] is None else about["horizon"],
        }
        if not all(isinstance(text, str) for text in (named["name"], named["policy"], *facts["warnings"])):
            raise TypeError(f"the name, policy and warnings of {MARK} must be texts")
        values = {current_name(name): math.nan if value is None else value if isinstance(value, int) else float(value)
              for name, value in summary.items()}  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        why = f"{MARK} has no {problem}" if isinstance(problem, KeyError) else str(problem)
        why = why if (directory / MARK).is_file() else f"it has no {MARK}"
        raise UsageError(f"{directory} is not a run directory: {why}") from None
    return Saved(directory, listed, about.get("inputs", {}), named=named, stated=facts, values=values)


def read_table(saved: Saved, name: str) -> pd.DataFrame:
    """Read a table of a run; DamagedFile if its file is damaged."""
    path = verify(saved.directory / name, saved.files.get(name))
    try:
        frame = read_frame(path)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:  # what pandas makes of metadata
        raise DamagedFile(path, f"it cannot be read as Parquet ({error})") from None
    for column in frame:
        kind = frame[column].dtype
        if isinstance(kind, pd.CategoricalDtype) and not len(kind.categories):  # Parquet keeps no type of none
            frame[column] = frame[column].cat.set_categories(pd.Index([], dtype="str"))
    return frame


def load_record(saved: Saved) -> Record:
    """Read the record of a run and its input; DamagedFile if damaged."""
    for name in LATER[:-1]:
        if name in saved.files:
            verify(saved.directory / name, saved.files[name])
    try:
        return _record(saved, saved.directory)
    except UsageError:
        raise
    except Exception as error:  # what others wrote can fail in any class or library
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise DamagedFile(saved.directory / "record", f"it cannot be read ({reason})") from None


def _record(saved: Saved, directory: Path) -> Record:
    about = unsealed(directory / MARK)
    tasks = read_table(saved, "record/tasks.parquet")
    columns: dict[str, Any] = {str(name): values.to_numpy() for name, values in tasks.items()}
    rest = read_json(verify(directory / "record/rest.json", saved.files.get("record/rest.json")))

    def recorded(name: str) -> Any:
        if not (directory / "record" / f"{name}.parquet").is_file():
            return None
        frame = read_table(saved, f"record/{name}.parquet")
        return {str(column): values.to_numpy() for column, values in frame.items()}

    gaps = recorded("gaps")
    kinds = {kind: columns.pop(f"preemptions_{kind}") for kind in PREEMPTIONS if f"preemptions_{kind}" in columns}
    for name in (OBJECTS, ARRAYS):
        verify(directory / "record" / name, saved.files.get(f"record/{name}"))
    run = load_input(directory / "record")
    if len(run.tasks) != len(tasks):
        raise ValueError(f"its input has {len(run.tasks):,} tasks, but its table has {len(tasks):,} rows")
    run.policy = about["policy"]
    run.tasks.arrival = columns.pop("arrival").copy()
    run.tasks.deadline = columns.pop("deadline", None)
    if "occupied" not in rest:  # before version 7, which requests started a replica was not recorded
        columns["cold_start"] = np.full(len(tasks), np.nan)
    return Record(
        input=run, end=rest["end"], **{_COLUMNS[name]: values for name, values in columns.items()},
        places=[(tuple(devices), None if cores is None else tuple(cores)) for devices, cores in rest["places"]],
        reasons=dict(rest["reasons"]), **{name: recorded(name) for name in _OPTIONAL},
        token_gaps=None if gaps is None else np.column_stack([gaps["time"], gaps["gap"]]),
        replicas=[(service, number, blocks, place) for service, number, blocks, place in rest.get("replicas", [])],
        preemptions_by=kinds,
        device_log=[(time, device, what, value) for time, device, what, value in rest["device_log"]],
        holds=[(time, task, cause) for time, task, cause in rest["holds"]],
        occupied=[tuple(row) for row in rest.get("occupied", [])],
        fused={launch: (tuple(rows), tuple(saved)) for launch, rows, saved in rest["fused"]}, stats=rest["stats"],
        notes=_numbers_from_json(about.get("notes", {})),
    )  # fmt: skip
