"""Store of finished runs, by the digest of everything that determines the outcome.

A finished run is one line of a journal.  When all runs of a block are finished (in a sweep a fixed range of points, in
other studies all runs), they become a sealed segment and the journal is deleted (`hetsim.experiment.segment`).  The
segments of a study have the same bytes for any number of workers and interruptions:

    runs/SHA256.runs                    a segment, named by the digests of its runs
    runs/journal-HOST-PROCESS-1.jsonl   runs of a block that is not complete
    runs/ab/abcdef….json                a run in the format of older versions; it is read, and not replaced

A file that was changed or is incomplete (full disk, power failure) is ignored, and its runs are executed again.  A
stored run with unknown inputs (`RunOutcome.unknown`) is executed again, too (unless `trust`).  Failures caused by the
machine (no memory, full disk, missing module) are not stored.
"""

import hashlib
import io
import os
import shutil
import warnings
from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from hetsim.errors import DamagedFile, DamageWarning, UsageError
from hetsim.experiment.segment import SEGMENT, Segment, line_of, parse_line, segment_of
from hetsim.experiment.work import RunOutcome
from hetsim.model.files import host_digest, naming, remove_left, write_whole
from hetsim.results.stored_files import read_stored

LOADED = 4  # Maximum number of segments whose rows are in memory.


class Store:
    """Stored outcomes by digest, in a folder if given; `damaged`: files that changed."""

    def __init__(self, folder: Path | None, fresh: bool = False, trust: bool = False):
        """fresh: ignore stored runs.  trust: also return runs with unknown inputs."""
        self.folder, self.fresh, self.trust = folder, fresh, trust
        self.damaged: list[Path] = []
        self._pending: dict[Hashable, dict[str, RunOutcome]] = {}  # outcomes of blocks that are not sealed, by block
        self._journals: dict[Hashable, io.FileIO] = {}
        self._journal_count = 0
        self._incomplete: set[Hashable] = set()  # blocks with failed runs to try again; the next call seals them
        self._sealed: set[Path] = set()
        self._files: _StoredFiles | None = None

    def get(
        self, run: str, metrics: Iterable[str] = (), block: Hashable = None, reduced: bool = False
    ) -> RunOutcome | None:
        """Return the stored outcome of a run, if it has these metrics; otherwise None.

        block: the block (runs that are sealed together) to which the run belongs.  reduced: also accept an outcome that
        has only some metrics, those that an earlier study kept.
        """
        if self.folder is None:
            return None
        for outcome, is_sealed in self.kept(run):
            if (outcome.unknown and not self.trust) or (outcome.reduced and not reduced):
                continue
            if outcome.values is None or all(name in outcome.values for name in metrics):
                if not is_sealed:
                    self._pending.setdefault(block, {})[run] = outcome
                elif self._files is not None:
                    self._files.forget([run])
                return outcome
        return None

    def kept(self, run: str) -> Iterator[tuple[RunOutcome, bool]]:
        """Yield a run's stored outcomes, each with False if it must be moved to a segment.

        A segment is a file of many outcomes.  Outcomes with False are in a journal or in files of their own.
        """
        for pending in self._pending.values():
            if run in pending:
                yield pending[run], True
        if not self.fresh:
            yield from self.files.outcomes(run)

    @property
    def files(self) -> "_StoredFiles":
        """The files that the folder had when it was first read."""
        if self._files is None:
            assert self.folder is not None
            self._files = _StoredFiles(self.folder, self.damaged)
        return self._files

    def put(self, run: str, outcome: RunOutcome, unknown: str = "", block: Hashable = None) -> None:
        """Write an outcome to disk; `unknown`: inputs that its digest `run` omits."""
        if self.folder is None:
            return
        if not outcome.lasting:
            self.leave(block)
            return
        outcome = replace(outcome.packed(), unknown=unknown or outcome.unknown)
        if any(is_sealed and _replaces(one, outcome) for one, is_sealed in self.kept(run)):
            return  # the first run of a study is made each time, since it stays whole
        self._append(block, line_of(run, outcome))
        self._pending.setdefault(block, {})[run] = outcome

    def _append(self, block: Hashable, line: bytes) -> None:
        journal = self._journals.get(block)
        if journal is not None and not os.fstat(journal.fileno()).st_nlink:  # another process sealed all that was in it
            journal.close()
            journal = None
        if journal is None:
            journal = self._journals[block] = self._new_journal()
        with naming(Path(str(journal.name))):
            while line:
                line = line[os.write(journal.fileno(), line) :]

    def _new_journal(self) -> io.FileIO:
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            self._journal_count += 1
            path = self.folder / f"journal-{host_digest()}-{os.getpid()}-{self._journal_count}.jsonl"
            with suppress(FileExistsError), naming(path):
                return io.FileIO(path, "xb")

    def leave(self, block: Hashable) -> None:
        """Mark a block of runs as incomplete: `seal` then writes no final file for it."""
        self._incomplete.add(block)

    def seal(self, block: Hashable = None) -> None:
        pending = self._pending.pop(block, {})
        if (journal := self._journals.pop(block, None)) is not None:
            journal.close()
        if block in self._incomplete:
            return
        if pending:
            assert self.folder is not None
            data = segment_of(pending)
            name = hashlib.sha256("".join(sorted(pending)).encode()).hexdigest()[:32]
            path = self.folder / f"{name}{SEGMENT}"
            write_whole(path, lambda temporary: temporary.write_bytes(data), durable=True)
            self._sealed.add(path)
            if self._files is not None:
                self._files.forget(pending)
        if journal is not None:
            Path(str(journal.name)).unlink(missing_ok=True)

    def close(self, complete: bool) -> None:
        """Close the files.  complete: no runs remain, so all are moved to final files."""
        if complete:
            self.seal()
            if self._files is not None:
                self._files.remove_superfluous(self._sealed)
        for journal in self._journals.values():
            journal.close()
        self._journals.clear()

    def tell(self) -> None:
        if self.damaged:
            said = f"damaged files of finished runs: {len(self.damaged):,}, such as {self.damaged[0]}"
            warnings.warn(f"{said}; the lost runs were simulated again", DamageWarning, stacklevel=3)


class _StoredFiles:
    def __init__(self, folder: Path, damaged: list[Path]):
        self.folder, self.damaged = folder, damaged
        self.segments: list[Segment] = []
        # runs of journals and damaged segments, which their block seals again
        self.single: dict[str, tuple[RunOutcome, Path]] = {}
        self._sources: dict[Path, int | None] = {}  # journals with their sizes, and damaged segments
        self._loaded: list[int] = []
        self._dropped: set[int] = set()
        for path in sorted(folder.glob(f"*{SEGMENT}")):
            with suppress(FileNotFoundError):
                try:
                    self.segments.append(Segment(path))
                except DamagedFile:
                    if path.is_dir():
                        raise UsageError(f"{path} must be a file of runs; got a folder: move it elsewhere") from None
                    self._damage(path)
        self.has_files = any(len(inner.name) == 2 for inner in folder.glob("??"))
        for path in sorted(folder.glob("journal-*.jsonl")):
            with suppress(FileNotFoundError):
                self._read(path)
        entries = [segment.index["run"] for segment in self.segments]
        digests = np.concatenate(entries) if entries else np.zeros(0, "V32")
        starts = np.ascontiguousarray(digests).view(">u8").reshape(-1, 4)[:, 0].astype(np.uint64)
        order = np.argsort(starts, kind="stable")
        self._starts = starts[order]
        which = np.repeat(np.arange(len(entries)), [len(one) for one in entries]).astype(np.int32)
        rows = np.concatenate([np.arange(len(one)) for one in entries]) if entries else np.zeros(0)
        self._which, self._rows = which[order], rows.astype(np.int32)[order]

    def _damage(self, path: Path) -> None:
        self.damaged.append(path)
        self._sources[path] = None

    def _read(self, path: Path) -> None:
        text = read_stored(path)
        self._sources[path] = len(text)
        for line in text[: text.rfind(b"\n") + 1].splitlines(keepends=True):
            try:
                run, outcome = parse_line(path, line)
            except UsageError:
                self.damaged += [path] if path not in self.damaged else []
                continue
            self.single[run] = outcome, path

    def outcomes(self, run: str) -> Iterator[tuple[RunOutcome, bool]]:
        """Yield a run's outcomes, each with True if it is in a file of many (segment)."""
        start, marked = np.uint64(int(run[:16], 16)), []
        at = int(self._starts.searchsorted(start))
        while at < len(self._starts) and self._starts[at] == start:
            segment, row = self.segments[self._which[at]], int(self._rows[at])
            if self._load(int(self._which[at])) and segment.run(row) == run:
                outcome = segment.outcome(row)
                if outcome.unknown:
                    marked.append((segment.path.stat().st_mtime_ns, outcome))
                else:
                    yield outcome, True
            at += 1
        if run in self.single:
            yield self.single[run][0], False
        for _, outcome in sorted(marked, key=lambda one: -one[0]):
            yield outcome, True
        if self.has_files:
            yield from self._file(run)

    def _load(self, number: int) -> bool:
        if number in self._loaded:
            return True
        if number in self._dropped:
            return False
        segment = self.segments[number]
        try:
            bad = set(segment.load())
        except OSError:
            bad = set(range(len(segment)))
        if not bad:
            self._loaded.append(number)
            if len(self._loaded) > LOADED:
                self.segments[self._loaded.pop(0)].unload()
            return True
        self._dropped.add(number)
        self._damage(segment.path)
        for row in set(range(len(segment))) - bad:
            self.single.setdefault(segment.run(row), (segment.outcome(row), segment.path))
        segment.unload()
        return False

    def _file(self, run: str) -> Iterator[tuple[RunOutcome, bool]]:
        path = self.folder / run[:2] / f"{run}.json"
        try:
            stored_run, outcome = parse_line(path, read_stored(path))
        except FileNotFoundError:
            return
        except (OSError, UsageError):
            stored_run = ""
        if stored_run == run:
            yield outcome, True
        else:
            self.damaged.append(path)

    def copy_segments(self, into: Store) -> int:
        copied = 0
        for number, segment in enumerate(self.segments):
            if self._load(number) and not any(True for row in range(len(segment)) for _ in into.kept(segment.run(row))):
                assert into.folder is not None
                into.folder.mkdir(parents=True, exist_ok=True)
                write_whole(into.folder / segment.path.name, partial(shutil.copyfile, segment.path), durable=True)
                self._dropped.add(number)
                self._loaded.remove(number)
                copied += len(segment)
        return copied

    def all(self) -> Iterator[tuple[str, RunOutcome]]:
        for number, segment in enumerate(self.segments):
            if self._load(number):
                for row in range(len(segment)):
                    yield segment.run(row), segment.outcome(row)
        for run, (outcome, _) in self.single.items():
            yield run, outcome
        for path in sorted(self.folder.glob("??/*.json")):
            for outcome, _ in self._file(path.stem):
                yield path.stem, outcome

    def forget(self, runs: Iterable[str]) -> None:
        for run in runs:
            self.single.pop(run, None)

    def remove_superfluous(self, sealed: set[Path]) -> None:
        needed = {path for _, path in self.single.values()} | sealed
        for path, size in self._sources.items():
            with suppress(FileNotFoundError):
                if path not in needed and size in (None, path.stat().st_size):
                    path.unlink()


def open_cache(cache: str | Path | None) -> Path | None:
    """Return the folder of a cache, created if missing."""
    if cache is None:
        return None
    folder = Path(cache).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_left(folder, "")
    except OSError as error:
        raise UsageError(f"the cache {folder} cannot be written: {error.strerror}") from None
    return folder


@dataclass(frozen=True)
class Merged:
    """Result of `merge_stores`: runs `copied`, runs already `there`, damaged files."""

    copied: int
    there: int
    damaged: list[Path]

    @property
    def sentence(self) -> str:
        files = "file" if len(self.damaged) == 1 else "files"
        damaged = f", {len(self.damaged):,} damaged {files}" if self.damaged else ""
        runs = f"{self.copied:,} finished run{'s' if self.copied != 1 else ''}"
        return f"{runs} copied, {self.there:,} there already{damaged}"


def merge_stores(sources: Iterable[Path], into: Path) -> Merged:
    """Copy finished runs from several caches or sweep directories into one.

    A file of many runs (segment) is copied as a whole if the target has none of its runs; other runs are appended to a
    journal.  UsageError if a folder has no runs, or if two folders have different outcomes under one digest: then one
    of the machines computes other results from the same inputs.
    """
    target = _runs_of(into)
    remove_left(target, "")
    copied, there, damaged = 0, 0, list[Path]()
    for source in sources:
        own_damaged: list[Path] = []
        files = _StoredFiles(_runs_of(source), own_damaged)
        store = Store(target, trust=True)
        before = copied + there
        copied += files.copy_segments(store)
        for run, outcome in files.all():
            if (here := next(store.kept(run), None)) is None:
                store.put(run, outcome)
                copied += 1
            elif outcome.unknown or _same(outcome, here[0]):
                there += 1
            else:
                raise UsageError(
                    f"{source} and {into} have different outcomes of the same run ({run[:12]}…): the machines that "
                    "made them compute different figures from equal inputs; use machines of one type"
                )
        if copied + there == before:
            reason = "it is neither a cache nor the directory of a sweep"
            if own_damaged:
                reason = f"{own_damaged[0]} is damaged"
            raise UsageError(f"there are no finished runs in {source}: {reason}")
        store.close(complete=False)
        damaged += own_damaged
    return Merged(copied, there, damaged)


def _runs_of(folder: Path) -> Path:
    return folder / "runs" if (folder / "sweep.json").is_file() or (folder / "runs").is_dir() else folder


def _replaces(one: RunOutcome, other: RunOutcome) -> bool:
    if one.unknown or other.unknown or one.reduced > other.reduced:
        return False
    same = (one.values is None, one.error) == (other.values is None, other.error)
    return same and set(one.values or ()) >= set(other.values or ())


def _same(one: RunOutcome, other: RunOutcome) -> bool:
    if one.values is None or other.values is None:
        return one == other
    common = set(one.values) & set(other.values)
    return all(repr(one.values[name]) == repr(other.values[name]) for name in common)
