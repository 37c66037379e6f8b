"""The directory of a sweep: its mark, finished runs and final tables.

    sweep.json              the mark: keys, points, policies, replications, versions, digests of the rows
    scenario.yaml           the scenario that all points change
    runs/                   finished runs (`hetsim.experiment.store`), unless another cache was named
    table.parquet           the tables, written when all runs are finished
    replications.parquet
    tables.json             digests of the other files; written last

Each file is written completely or not at all, so a sweep that was killed at any moment can be resumed, and a changed
file is written again.  No file records when or where it was made: the same sweep gives the same bytes.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetsim.errors import DamagedFile, UsageError
from hetsim.experiment.identity import differences, plain_digest
from hetsim.model.files import TEMPORARY, remove_left, write_whole
from hetsim.model.units import shown
from hetsim.results.formatting import listed
from hetsim.results.many_runs.sweep import EACH, MARK, SCENARIO, TABLE, TABLES
from hetsim.results.many_runs.sweep_tables import SweepTables
from hetsim.results.stored_files import digests, open_stored, sealed, unsealed

RUNS = "runs"
MAX_INDENTED = 10_000  # Maximum number of points for which the mark is indented, to be readable.
_PARTS = {
    "scenario": "the scenario",
    "points": "the points",
    "policies": "the policies",
    "replications": "the number of replications",
    "seed": "the seed",
    "metrics": "the metrics",
    "keep": "the figures that are kept",
    "versions": "hetsim's code or the versions of its libraries",
}


class Directory:
    """The directory of a sweep, locked by this process; `claim` creates it."""

    def __init__(self, folder: Path, handle: int | None):
        self.folder, self._handle = folder, handle

    @property
    def runs(self) -> Path:
        return self.folder / RUNS

    def finish(self, tables: SweepTables) -> None:
        tables.write(self.folder / TABLE, self.folder / EACH)
        # The digests last: they say that all is there.
        text = sealed({"files": digests(self.folder, (MARK, SCENARIO, EACH, TABLE))}, 1)
        write_whole(self.folder / TABLES, lambda path: path.write_text(text, encoding="utf-8"), durable=True)

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def mark_of(about: Mapping[str, Any]) -> str:
    return sealed(about, 1 if len(about["points"]) <= MAX_INDENTED else None)


def check_folder(target: str | Path, about: Mapping[str, Any], mark: str = "", *, resume: bool, fresh: bool) -> str:
    """Return the state of a sweep's folder: `new`, `same`, `extended` or `replaced`.

    `new`: it has no sweep.  `same`: it has this sweep.  `extended`: with `resume`, it has another sweep that shares
    runs with this one, or its file `sweep.json` is damaged.  `replaced`: it has a sweep, but `fresh` is True.
    about: description of this sweep.  mark: the contents that `sweep.json` should have.  UsageError if the folder
    cannot be used for this sweep; nothing is written.
    """
    folder = Path(target)
    names = _contents(folder, target)
    for name in (MARK, SCENARIO, TABLE, EACH, TABLES):
        if (folder / name).is_dir():
            raise UsageError(f"{folder / name} must be a file of a sweep, but is a folder; nothing was changed")
    if MARK not in names:
        if any(not name.startswith(TEMPORARY) for name in names):
            raise UsageError(f"{folder} exists and is not the directory of a sweep; it was not changed")
        if resume:
            raise UsageError(f"{folder} has no sweep to resume; leave out --resume to start one")
        return "new"
    if fresh:
        return "replaced"
    if _has(folder / MARK, mark):
        return "same"
    try:
        there = unsealed(folder / MARK)
    except (OSError, DamagedFile) as error:
        if resume:
            return "extended"
        why = error if isinstance(error, DamagedFile) else f"{folder / MARK} cannot be read: {error.strerror}"
        raise UsageError(f"{why}; --resume rewrites it and reuses the intact runs, --fresh starts again") from None
    if not (other := _differences(there, about)):
        return "same"
    said = f"{folder} has another sweep (it differs in {listed(other)})"
    if not resume:
        raise UsageError(
            f"{said}; give another directory, --fresh to replace that sweep, or --resume to reuse those of its "
            "runs that match"
        )
    if not _rows(there) & _rows(about):
        raise UsageError(f"{said}, and no run of it belongs to this sweep; give another directory, or --fresh")
    return "extended"


def _contents(folder: Path, target: str | Path) -> list[str]:
    try:
        there = os.access(folder, os.F_OK) or folder.is_symlink() or folder.exists()
        names = [inner.name for inner in folder.iterdir()] if there and folder.is_dir() else []
    except (OSError, ValueError) as error:
        raise UsageError(f"{shown(str(target))} cannot be used: {getattr(error, 'strerror', None) or error}") from None
    if there and not folder.is_dir():
        raise UsageError(f"{folder} must be a folder; got a file, which was not changed")
    return names


def _row_text(about: Mapping[str, Any]) -> str:
    rows = about.get("rows")
    return "".join(map(str, rows)) if isinstance(rows, list) else str(rows)


def _rows(about: Mapping[str, Any]) -> set[str]:
    text = _row_text(about)
    return {text[at : at + 64] for at in range(0, len(text), 64)}


def _differences(there: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    other = [text for part, text in _PARTS.items() if there.get(part) != about.get(part)]
    if not other and _row_text(there) != about["rows"]:
        own, theirs = about.get("inputs", {}), there.get("inputs")
        theirs = {name: str(theirs.get(name, "none")) for name in own} if isinstance(theirs, dict) else own
        here, runs = ({"runs": plain_digest(_row_text(one))} for one in (about, there))
        texts = differences(own, theirs) or differences(here, runs)
        return [f"the contents of files that it names, or the code of a policy ({texts})"]
    return other


def claim(
    target: str | Path, about: Mapping[str, Any], scenario: str, *, resume: bool, fresh: bool, shared: bool = False
) -> Directory:
    """Prepare and lock the directory for the runs of a sweep.

    resume: UsageError unless it has a sweep to continue.  fresh: delete the sweep in it.  shared: other processes
    (shards of the sweep) may write equal files to it at the same time.  UsageError, with nothing changed, if the
    directory cannot be used.
    """
    mark = mark_of(about)
    state = check_folder(target, about, mark, resume=resume, fresh=fresh)
    folder = Path(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        directory = Directory(folder, None if shared else _lock(folder))
        try:
            for pattern in ("", f"{RUNS}/"):
                remove_left(folder, pattern)
            if state in ("replaced", "extended"):
                for name in (TABLES, TABLE, EACH):
                    (folder / name).unlink(missing_ok=True)
            if state == "replaced" and directory.runs.is_dir():
                shutil.rmtree(directory.runs)
            for name, wanted in ((MARK, mark), (SCENARIO, scenario)):  # the mark first: it says what the folder is
                _ensure(folder / name, wanted)
        except BaseException:
            directory.release()
            raise
    except OSError as error:
        raise UsageError(f"{shown(str(target))} cannot be written: {error.strerror or error}") from None
    return directory


def _ensure(path: Path, text: str) -> None:
    if not _has(path, text):
        write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), durable=True)


def _has(path: Path, text: str) -> bool:
    try:
        with open_stored(path) as stream:
            data = text.encode()
            return os.fstat(stream.fileno()).st_size == len(data) and stream.read() == data
    except (OSError, DamagedFile):
        return False


def _lock(folder: Path) -> int | None:
    try:
        import fcntl
    except ImportError:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UsageError(f"another hetsim process is running the sweep in {folder}; wait until it ends") from None
    except OSError:  # a file system without locks
        os.close(handle)
        return None
    return handle
