"""Finished runs, kept under the digest of everything that decides what they give (`sim.experiment.identity`).

A run is a file of JSON, `ab/abcdef….json`, with a checksum: written under another name first, then renamed.  A file
that was changed, or is not whole (a disk that was full, a power cut), counts for nothing; the run is made again.
Failures that lie with the machine (no memory, a full disk, a missing module) are not kept.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from pathlib import Path

from sim.errors import DamageWarning, UsageError
from sim.experiment.work import Outcome
from sim.model.files import write_whole
from sim.results.sealed import sealed, unsealed


class Store:
    """Outcomes by the digest of their run, in a folder; without one nothing is kept.

    damaged     files that were found and are not what was written
    """

    def __init__(self, folder: Path | None, fresh: bool = False):
        """fresh: what is there is not looked at."""
        self.folder, self.fresh = folder, fresh
        self.damaged: list[Path] = []

    def path(self, run: str) -> Path:
        assert self.folder is not None
        return self.folder / run[:2] / f"{run}.json"

    def get(self, run: str, metrics: Iterable[str] = ()) -> Outcome | None:
        """The outcome of a run that was kept whole, with all these metrics besides those of every summary."""
        if self.folder is None or self.fresh:
            return None
        try:
            kept = unsealed(self.path(run), older=False)
        except FileNotFoundError:
            return None
        except (OSError, UsageError):
            kept = {}
        if kept.get("run") != run or "values" not in kept:
            self.damaged.append(self.path(run))
            return None
        if kept["values"] is None:
            return Outcome(None, kept["warnings"], error=kept["error"])
        values = {name: math.nan if value is None else float(value) for name, value in kept["values"].items()}
        return Outcome(values, kept["warnings"]) if all(name in values for name in metrics) else None

    def put(self, run: str, outcome: Outcome) -> None:
        """Keep an outcome; it is on disk, whole, when this returns."""
        if self.folder is None or not outcome.lasting:
            return
        from sim.results.result import json_values

        values = None if outcome.values is None else json_values(outcome.values)
        kept = {"run": run, "error": outcome.error, "warnings": outcome.warnings, "values": values}
        path = self.path(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda temporary: temporary.write_text(sealed(kept), encoding="utf-8"))

    def tell(self) -> None:
        """Warn of the files that were damaged."""
        if self.damaged:
            said = f"finished runs whose files were damaged: {len(self.damaged):,}, such as {self.damaged[0]}"
            warnings.warn(f"{said}; they were made again", DamageWarning, stacklevel=3)


def open_cache(cache: str | Path | None) -> Path | None:
    """The folder of a cache, made if it is not there."""
    if cache is None:
        return None
    folder = Path(cache).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the cache {folder} cannot be written: {error.strerror}") from None
    return folder
