"""Finished runs, kept under the digest of everything that decides what they give (`hetsim.experiment.identity`).

A run is a file of JSON, `ab/abcdef….json`, with a checksum: written under another name first, then renamed.  A file
that was changed, or is not whole (a disk that was full, a power cut), counts for nothing; the run is made again.
So is one that is marked: its inputs were not all known, and may have been others.
Failures that lie with the machine (no memory, a full disk, a missing module) are not kept.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hetsim.errors import DamageWarning, UsageError
from hetsim.experiment.work import RunOutcome
from hetsim.model.files import remove_left, write_whole
from hetsim.results.sealed import sealed, unsealed

UNKNOWN = "unknown"
"""The mark of an outcome: which of its inputs its digest does not cover."""


class Store:
    """Outcomes by the digest of their run, in a folder; without one nothing is kept.

    damaged     files that were found and are not what was written
    """

    def __init__(self, folder: Path | None, fresh: bool = False, trust: bool = False):
        """fresh: what is there is not looked at.  trust: outcomes of inputs that are unknown are given out too."""
        self.folder, self.fresh, self.trust = folder, fresh, trust
        self.damaged: list[Path] = []

    def path(self, run: str) -> Path:
        assert self.folder is not None
        return self.folder / run[:2] / f"{run}.json"

    def get(self, run: str, metrics: Iterable[str] = ()) -> RunOutcome | None:
        """The outcome of a run that was kept whole, with all these metrics besides those of every summary."""
        if self.folder is None or self.fresh:
            return None
        try:
            kept = unsealed(self.path(run))
        except FileNotFoundError:
            return None
        except (OSError, UsageError):
            kept = {}
        if kept.get("run") != run or "values" not in kept:
            self.damaged.append(self.path(run))
            return None
        if kept.get(UNKNOWN) and not self.trust:
            return None
        if kept["values"] is None:
            return RunOutcome(None, kept["warnings"], error=kept["error"], refused=kept.get("refused", False))
        values = {name: math.nan if value is None else float(value) for name, value in kept["values"].items()}
        return RunOutcome(values, kept["warnings"]) if all(name in values for name in metrics) else None

    def put(self, run: str, outcome: RunOutcome, unknown: str = "") -> None:
        """Keep an outcome, on disk and whole when this returns; `unknown`: the inputs that its digest leaves out."""
        if self.folder is None or not outcome.lasting:
            return
        from hetsim.results.formatting import json_values

        values = None if outcome.values is None else json_values(outcome.values)
        refused: dict[str, Any] = {"refused": True} if outcome.refused else {}
        refused |= {UNKNOWN: unknown} if unknown else {}
        kept = {"run": run, "error": outcome.error, **refused, "warnings": outcome.warnings, "values": values}
        path = self.path(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda temporary: temporary.write_text(sealed(kept), encoding="utf-8"))

    def tell(self) -> None:
        """Warn of the files that were damaged."""
        if self.damaged:
            said = f"finished runs with damaged files: {len(self.damaged):,}, such as {self.damaged[0]}"
            warnings.warn(f"{said}; they were made again", DamageWarning, stacklevel=3)


def open_cache(cache: str | Path | None) -> Path | None:
    """The folder of a cache, made if it is not there."""
    if cache is None:
        return None
    folder = Path(cache).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_left(folder, "??/")
    except OSError as error:
        raise UsageError(f"the cache {folder} cannot be written: {error.strerror}") from None
    return folder


@dataclass(frozen=True)
class Merged:
    """What `merge_stores` did: files `copied`, `there` already, and `damaged` ones that were left out."""

    copied: int
    there: int
    damaged: list[Path]

    @property
    def sentence(self) -> str:
        left = f", {len(self.damaged):,} damaged left out" if self.damaged else ""
        runs = f"{self.copied:,} finished run{'s' if self.copied != 1 else ''}"
        return f"{runs} copied, {self.there:,} there already{left}"


def merge_stores(sources: Iterable[Path], into: Path) -> Merged:
    """Copy finished runs from caches, or directories of sweeps, into one.

    UsageError if a folder has no runs, or two have different outcomes under one digest: one of the machines that made
    them gives other figures from the same inputs.
    """
    target = Store(_runs_of(into), trust=True)
    copied, there, damaged = 0, 0, []
    for source in sources:
        folder = Store(_runs_of(source), trust=True)
        names = sorted(folder.folder.glob("??/*.json")) if folder.folder is not None else []
        if not names:
            raise UsageError(f"there are no finished runs in {source}: it is no cache and no directory of a sweep")
        for path in names:
            try:
                kept = unsealed(path)
            except UsageError:
                damaged.append(path)
                continue
            here = target.path(path.stem)
            if not here.is_file() or target.get(path.stem) is None:
                here.parent.mkdir(parents=True, exist_ok=True)
                write_whole(here, partial(shutil.copyfile, path))
                copied += 1
            elif UNKNOWN in kept or _same(kept, unsealed(here)):
                there += 1
            else:
                raise UsageError(
                    f"{path} and {here} are outcomes of one run and differ: one of the machines that made them gives "
                    "other figures from the same inputs; make them with one kind of machine"
                )
    return Merged(copied, there, damaged)


def _runs_of(folder: Path) -> Path:
    """Where a cache, or the directory of a sweep, has its runs."""
    return folder / "runs" if (folder / "sweep.json").is_file() or (folder / "runs").is_dir() else folder


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Do two outcomes agree where both have a value?  One may have been asked for more metrics."""
    first, second = one["values"], other["values"]
    if first is None or second is None:
        return one == other
    return all(first[name] == second[name] for name in set(first) & set(second))
