"""The tables of a sweep, built in blocks of rows, in memory or in growing files."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetsim.model.files import temporary_folder, write_whole
from hetsim.results.many_runs.replications import COMMON_END
from hetsim.results.one_run.estimands import ratio_contributions, weight_of
from hetsim.results.statistics import excess_kurtosis, freedom, student_quantiles

CONFIDENCE = 0.95
_END, _WATTS = "_end", "_watts_at_end"

Columns = Mapping[str, Sequence[Any]]  # Values of a sweep's keys: key -> one value per row.


@dataclass
class SweepRow:
    """Data of one row; `runs`: values of each replication, None if it failed."""

    point: int
    policy: str
    seed: int
    runs: list[Mapping[str, float] | None] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    warmup: float | None = None


class SweepTables:
    """Result tables of a sweep (`table`, `by_replication`), filled point by point."""

    def __init__(self, columns: Columns, *, several: bool, text_seeds: bool, folder: Path | None = None):
        """columns: by key, its value in each row; several: rows have several replications.

        text_seeds: store seeds as text.  folder: write tables to files next to this path; None: keep them in memory.
        """
        self.columns, self.several, self.text_seeds = columns, several, text_seeds
        self.names: dict[str, None] = {}  # names of the runs' values, in order of first appearance
        self.rows = 0
        self.parts: list[tuple[pd.DataFrame, pd.DataFrame]] = []
        self._folder = None if folder is None else temporary_folder(folder, "new")
        self._files = None if self._folder is None else [GrowingTable(self._folder, name) for name in ("table", "each")]

    def add(self, rows: Sequence[SweepRow]) -> None:
        self.names |= dict.fromkeys(name for row in rows for run in row.runs if run is not None for name in run)
        here = {key: column[self.rows : self.rows + len(rows)] for key, column in self.columns.items()}
        self.rows += len(rows)
        frames = tables(here, rows, list(self.names), several=self.several, text_seeds=self.text_seeds)
        if self._files is None:
            self.parts.append(frames)
        else:
            for file, frame in zip(self._files, frames, strict=True):
                file.add(frame)

    def frames(self) -> list[pd.DataFrame]:
        if len(self.parts) == 1:
            return list(self.parts[0])
        each = zip(*self.parts, strict=True)
        return [
            pd.concat([part.reindex(columns=parts[-1].columns) for part in parts], ignore_index=True) for parts in each
        ]

    def write(self, *targets: Path) -> None:
        for number, target in enumerate(targets):
            if self._files is not None:
                write_whole(target, self._files[number].move, durable=True)
            else:
                write_whole(target, partial(self.frames()[number].to_parquet, index=False), durable=True)

    def close(self) -> None:
        if self._files is not None and self._folder is not None:
            for file in self._files:
                file.close()
            shutil.rmtree(self._folder, ignore_errors=True)


class GrowingTable:
    """A Parquet file written in parts; later parts may add columns."""

    def __init__(self, folder: Path, name: str):
        self.folder, self.name = folder, name
        self.files: list[Path] = []
        self._columns: list[str] = []
        self._writer: Any = None

    def add(self, frame: pd.DataFrame) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None or list(frame.columns) != self._columns:
            self.close()
            self.files.append(self.folder / f"{self.name}-{len(self.files)}.parquet")
            self._columns = list(frame.columns)
            self._writer = pq.ParquetWriter(self.files[-1], pa.Schema.from_pandas(frame, preserve_index=False))
        self._writer.write_table(pa.Table.from_pandas(frame, schema=self._writer.schema, preserve_index=False))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def move(self, target: Path) -> None:
        """Finish the file and move it to `target`."""
        self.close()
        if len(self.files) > 1:
            self._join()
        self.files[-1].replace(target)

    def _join(self) -> None:
        import pyarrow.parquet as pq

        joined = GrowingTable(self.folder, f"{self.name}-whole")
        for path in self.files:
            with pq.ParquetFile(path) as file:
                for number in range(file.num_row_groups):
                    joined.add(file.read_row_group(number).to_pandas().reindex(columns=self._columns))
        joined.close()
        self.files = joined.files


def tables(
    keys: Columns, rows: Sequence[SweepRow], all_names: Sequence[str], several: bool, text_seeds: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Build tables of means, with CIs if `several`, and of runs; seeds may be text."""
    kept = [name for name in all_names if name not in (_END, _WATTS, "replication")]
    names = [name for name in kept if not name.startswith("_")]
    failed = np.array([bool(row.errors) or any(run is None for run in row.runs) for row in rows])
    counts = np.array([len(row.runs) for row in rows], dtype=np.int64)
    common = _common_counts(rows, counts, failed)
    full_cube, cube_of = _cube(rows, all_names), {name: at for at, name in enumerate(all_names)}
    places = [[cube_of.get(name or "", -1) for name in wanted]
              for wanted in ([*names, _END, _WATTS], map(weight_of, names), kept)]  # fmt: skip
    cube = full_cube[:, :, places[0]]
    cube = _common_energy(cube, rows, names)
    energies = [names.index(name) for name in COMMON_END if name in names]
    for at in energies:
        cube[np.arange(cube.shape[1]) >= common[:, None], at] = np.nan
    weights = full_cube[:, :, places[1]]
    means, half = _estimates(cube[:, :, : len(names)], weights, names, counts)
    if (common < counts).any():
        for at in energies:
            means[:, at], half[:, at] = (
                part[:, at] for part in _estimates(cube[:, :, : len(names)], weights, names, common)
            )
    means[failed] = half[failed] = np.nan
    facts = _facts(keys, rows, failed, text_seeds)
    columns: dict[str, Any] = {**facts, **{name: means[:, at] for at, name in enumerate(names)}}
    if several:
        for at, name in enumerate(names):
            columns[f"{name}_ci_low"] = means[:, at] - half[:, at]
            columns[f"{name}_ci_high"] = means[:, at] + half[:, at]
    numbers = [name for name in kept if name.startswith("_")]
    both = np.concatenate([cube[:, :, : len(names)], full_cube[:, :, [cube_of[name] for name in numbers]]], axis=2)
    return pd.DataFrame(columns), _each(keys, rows, both, names=[*names, *numbers], text_seeds=text_seeds)


def _common_counts(rows: Sequence[SweepRow], counts: np.ndarray, failed: np.ndarray) -> np.ndarray:
    fewest: dict[int, int] = {}
    for row, count, out in zip(rows, counts.tolist(), failed, strict=True):
        if not out:
            fewest[row.point] = min(count, fewest.get(row.point, count))
    each = zip(rows, counts.tolist(), strict=True)
    return np.array([min(count, fewest.get(row.point, count)) for row, count in each], dtype=np.int64)


def _estimates(
    cube: np.ndarray, weights: np.ndarray, names: Sequence[str], counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    means = np.full((cube.shape[0], cube.shape[2]), np.nan)
    half = means.copy()
    for count in np.unique(counts[counts > 0]).tolist() if names else ():
        mine = counts == count
        part = cube[mine, :count]
        given = ratio_contributions(np.moveaxis(part, 1, 2), np.moveaxis(weights[mine, :count], 1, 2))
        with np.errstate(invalid="ignore"):
            means[mine] = given.mean(axis=2)
        if count > 1:
            half[mine] = _half_widths(part, given, names)
    return means, half


def _cube(rows: Sequence[SweepRow], names: Sequence[str]) -> np.ndarray:
    """Return values by row, replication, name; a last NaN column for missing names."""
    cube = np.full((len(rows), max((len(row.runs) for row in rows), default=0), len(names) + 1), np.nan)
    wanted = tuple(names)
    for number, row in enumerate(rows):
        for replication, run in enumerate(row.runs):
            if run is None:
                continue
            numbers = getattr(run, "numbers", None)  # of a run that is packed
            same = numbers is not None and tuple(run) == wanted
            cube[number, replication, :-1] = numbers if same else [run.get(name, np.nan) for name in names]
    return cube


def _common_energy(cube: np.ndarray, rows: Sequence[SweepRow], names: list[str]) -> np.ndarray:
    if COMMON_END[0] not in names:
        return cube
    _, point, several = np.unique([row.point for row in rows], return_inverse=True, return_counts=True)
    last = np.full((len(several), cube.shape[1]), np.nan)
    np.fmax.at(last, point, cube[:, :, -2])
    further = np.where(np.isnan(cube[:, :, -2]), 0.0, (last[point] - cube[:, :, -2]) * cube[:, :, -1])
    further[several[point] < 2] = 0.0
    for name in COMMON_END:
        if name in names:
            cube[:, :, names.index(name)] += further
    return cube


def _half_widths(cube: np.ndarray, given: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return CI half-widths by row and metric; `given`: jackknife values of `cube`."""
    count = cube.shape[1]
    with np.errstate(invalid="ignore"):
        spread, mean = given.std(axis=2, ddof=1), given.mean(axis=2)
    spread[(cube == cube[:, :1]).all(axis=1) & (spread != 0)] = 0.0  # rounding of the mean
    same = ((cube == cube[:, :1]) | np.isnan(cube)).all(axis=(1, 2))
    kurtosis = [excess_kurtosis(name, spread[:, i], mean[:, i]) for i, name in enumerate(names)]
    degrees = freedom(np.stack(kurtosis, axis=1), count)
    half = student_quantiles(0.5 + CONFIDENCE / 2, degrees) * spread / np.sqrt(count)
    half[same] = np.nan
    half[~np.isfinite(cube).all(axis=1)] = np.nan
    return half


def _facts(keys: Columns, rows: Sequence[SweepRow], failed: np.ndarray, text_seeds: bool) -> dict[str, Any]:
    cuts = np.array([np.nan if row.warmup is None else row.warmup for row in rows])
    return {
        "point": np.array([row.point for row in rows], dtype=np.int64),
        **{key: pd.Series(list(column)) for key, column in keys.items()},
        "policy": [row.policy for row in rows],
        "seed": _seeds([row.seed for row in rows], text_seeds),
        "replications": np.array([len(row.runs) for row in rows], dtype=np.int64),
        **({} if all(row.warmup is None for row in rows) else {"warmup_cut": cuts}),
        "status": np.where(failed, "failed", "done"),
        "error": ["; ".join(dict.fromkeys(row.errors)) for row in rows],
        "warnings": ["; ".join(dict.fromkeys(row.warnings)) for row in rows],
    }


def _seeds(seeds: list[int], as_text: bool) -> list[str] | np.ndarray:
    return [str(seed) for seed in seeds] if as_text else np.array(seeds, dtype=np.int64)


def _each(
    keys: Columns, rows: Sequence[SweepRow], cube: np.ndarray, names: list[str], text_seeds: bool
) -> pd.DataFrame:
    made = [(number, replication) for number, row in enumerate(rows) for replication in range(len(row.runs))]
    point = [rows[number].point for number, _ in made]
    row_of = np.array([number for number, _ in made], dtype=np.int64)
    replication = np.array([replication for _, replication in made], dtype=np.int64)
    failed = np.array([rows[number].runs[which] is None for number, which in made])
    columns: dict[str, Any] = {
        "point": np.array(point, dtype=np.int64),
        **{key: pd.Series([column[number] for number in row_of]) for key, column in keys.items()},
        "policy": [rows[number].policy for number in row_of],
        "seed": _seeds([rows[number].seed for number in row_of], text_seeds),
        "replication": replication,
        "status": np.where(failed, "failed", "done"),
    }
    for at, name in enumerate(names):
        columns[name] = cube[row_of, replication, at]
    return pd.DataFrame(columns)
