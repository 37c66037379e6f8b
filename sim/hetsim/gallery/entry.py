"""Reads and checks entries of the gallery (published experiments to repeat)."""

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from hetsim.errors import Problem, ScenarioError, UnknownName, UsageError
from hetsim.gallery.schema import Axis, AxisValue, Expected, FiguresTable
from hetsim.model.files import opened
from hetsim.scenario.file import document as documents
from hetsim.scenario.file.problems import translate
from hetsim.scenario.file.shipped import _folder, find

EXPECTED = "expected.yaml"
RECORDED = "recorded.csv"  # outcome of the last recorded run, next to the expected file

Labels = tuple[tuple[str, str], ...]
Key = documents.Path_  # axes and values of a case, in the order of the axes


@dataclass(frozen=True)
class TableCase:
    """One run of a gallery entry's table: the scenario with a value of each axis."""

    table: str
    labels: Labels
    source: Path | str
    policy: Any
    overrides: tuple[tuple[str, Any], ...]

    @property
    def text(self) -> str:
        return ", ".join(f"{axis} {value}" for axis, value in self.labels) or "the scenario"


@dataclass
class Entry:
    """A gallery entry: the contents of its file expected.yaml, and its folder."""

    name: str
    path: Path
    expected: Expected
    document: documents.Document = field(repr=False)
    inputs: Path | None = None  # folder with files that do not ship. Default: the entry's own folder

    @property
    def folder(self) -> Path:
        return self.path.parent

    def problem(self, key: Key, message: str) -> ScenarioError:
        return ScenarioError(self.document.problem(key, message))

    def scenario_of(self, given: str | None, key: Key) -> Path | str:
        """Return a scenario's file, given as a path or as the name of a shipped scenario.

        given: path relative to the entry's folder, or name; None: FOLDER.yaml next to that folder.  key: its place in
        the entry's file, for errors.
        """
        if given is None:
            scenario = self.folder.parent / f"{self.folder.name}.yaml"
            if scenario.exists():
                return scenario
            raise self.problem(("scenario",), f"the file {scenario} does not exist; give the key scenario")
        if given.endswith((".yaml", ".yml")) or "/" in given:
            path = self.folder / given
            if not path.exists():
                raise self.problem(key, f"the file {path} does not exist")
            return path
        try:
            return find(given)
        except UnknownName as error:
            raise self.problem(key, str(error)) from None

    @cached_property
    def figures(self) -> dict[str, pd.DataFrame]:
        """Published figures by table: axes as texts, values as numbers."""
        return {table.name: self._figures(number, table) for number, table in enumerate(self.expected.tables)}

    def _figures(self, number: int, table: FiguresTable) -> pd.DataFrame:
        key = ("tables", number, "figures")
        if isinstance(table.figures, str):
            frame = self._csv(table.figures, key)
        else:
            frame = pd.DataFrame(table.figures).astype(str)
        for column, wanted in table.where.items():
            self._has(frame, column, ("tables", number, "where", column), table)
            frame = frame[frame[column] == str(wanted)]
        if not len(frame):
            raise self.problem(key, f"no row of the figures belongs to table {table.name}")
        if table.wide is not None:
            for column in table.wide.columns:
                self._has(frame, column, ("tables", number, "wide", "columns", column), table)
            kept = [column for column in frame if column not in table.wide.columns]
            frame = frame.melt(kept, list(table.wide.columns), table.wide.axis, table.wide.value)
            frame[table.wide.axis] = frame[table.wide.axis].map(table.wide.columns)
        for column, value in table.values.items():
            self._has(frame, column, ("tables", number, "values", column), table)
            frame[column] = pd.to_numeric(frame[column], errors="coerce")
            if frame[column].isna().any():
                raise self.problem(key, f'column "{column}" must have numbers only')
            if value.column is not None:
                self._has(frame, value.key, ("tables", number, "values", column, "key"), table)
        if table.seeds is not None:
            self._has(frame, table.seeds, ("tables", number, "seeds"), table)
        return frame.reset_index(drop=True)

    def _csv(self, name: str, key: Key) -> pd.DataFrame:
        path = self.folder / name
        if not path.is_file():
            raise self.problem(key, f"the file {path} does not exist")
        try:
            return pd.read_csv(path, dtype=str, keep_default_na=False)
        except (ValueError, UnicodeDecodeError, OSError, EOFError) as error:
            raise self.problem(key, f"{path} cannot be read as a table: {error}") from None

    def _has(self, frame: pd.DataFrame, column: str, key: Key, table: FiguresTable) -> None:
        if column not in frame:
            there = ", ".join(map(str, frame.columns))
            raise self.problem(key, f'the figures of table {table.name} have no column "{column}"; they have {there}')

    def table(self, name: str) -> FiguresTable:
        return next(table for table in self.expected.tables if table.name == name)

    # Cases --------------------------------------------------------------------------------------------------------

    def ways(self, number: int, table: FiguresTable) -> dict[str, dict[str, AxisValue]]:
        """Return the changes to the scenario for each value of each axis of a table."""
        ways, figures = {}, self.figures[table.name]
        for name, axis in table.axes.items():
            key = ("tables", number, "axes", name)
            in_figures = list(dict.fromkeys(figures[name])) if name in figures else None
            if axis.values is not None:
                self._check_values(axis.values, in_figures, table, name=name, key=key)
                ways[name] = axis.values | axis.extra_values
                continue
            assert axis.each is not None
            rows = self._filling(axis, in_figures, table, name=name, key=key)
            inputs = {"inputs": str((self.inputs or self.folder).resolve())}
            ways[name] = {value: filled(axis.each, value, row | inputs) for value, row in rows.items()}
            ways[name] |= axis.extra_values
        return ways

    def _check_values(
        self, values: Mapping[str, AxisValue], found: list[str] | None, table: FiguresTable, name: str, key: Key
    ) -> None:
        for value in found or []:
            if value not in values:
                problem = f'the figures have {name} "{value}", but values does not state how it is run'
                raise self.problem((*key, "values"), f"{problem}; values has {', '.join(values)}")
        for value in values:
            if found is not None and value not in found:
                problem = f'the figures of table {table.name} have no row of {name} "{value}"'
                raise self.problem((*key, "values", value), f"{problem}; if it has no figures, use extra_values")

    def _filling(
        self, axis: Axis, found: list[str] | None, table: FiguresTable, name: str, key: Key
    ) -> dict[str, dict[str, str]]:
        if axis.table is None:
            if found is None:
                raise self.problem(key, f'the figures of {table.name} need a column "{name}", or the axis a table')
            return {value: {name: value} for value in found}
        rows = self._rows(axis, name, (*key, "table"))
        if found is None:
            return rows
        for value in found:
            if value not in rows:
                raise self.problem((*key, "table"), f'{axis.table} has no row for {name} "{value}"')
        return {value: row for value, row in rows.items() if value in found}

    def _rows(self, axis: Axis, name: str, key: Key) -> dict[str, dict[str, str]]:
        assert axis.table is not None
        frame = self._csv(axis.table, key)
        for column, wanted in axis.where.items():
            if column not in frame:
                raise self.problem(key, f'{axis.table} has no column "{column}"')
            frame = frame[frame[column] == str(wanted)]
        if not len(frame):
            raise self.problem(key, f"{axis.table} has no row that matches `where`")
        column = name if name in frame else frame.columns[0]
        return {str(row[column]): {str(k): str(v) for k, v in row.items()} for row in frame.to_dict("records")}

    def cases(self, chosen: Mapping[str, list[str]] | None = None) -> Iterator[TableCase]:
        """Yield the cases of all tables of this entry.

        chosen: values by axis (None: all); only tables with all these axes are used, and only cases with chosen values.
        """
        for number, table in enumerate(self.expected.tables):
            if all(axis in table.axes for axis in chosen or {}):
                yield from self.cases_of(number, table, chosen)

    def cases_of(
        self, number: int, table: FiguresTable, chosen: Mapping[str, list[str]] | None = None
    ) -> Iterator[TableCase]:
        """Yield the runs that a table of this entry compares.

        They are the combinations of axis values for which the paper has figures, and those with an additional value
        (`extra_values` of an axis).  chosen: by axis, the only values to run.
        """
        ways = self.ways(number, table)
        chosen = chosen or {}
        kept = [[value for value in values if value in chosen.get(axis, values)] for axis, values in ways.items()]
        figures = self.figures[table.name]
        have = [axis for axis in ways if axis in figures]
        there = set(figures[have].itertuples(index=False, name=None)) if have else None
        source = self.scenario_of(table.scenario or self.expected.scenario, ("tables", number, "scenario"))
        for combination in itertools.product(*kept):
            labels = tuple(zip(ways, combination, strict=True))
            is_extra = any(value in table.axes[axis].extra_values for axis, value in labels)
            if not is_extra and there is not None and tuple(dict(labels)[axis] for axis in have) not in there:
                continue  # the authors have no figure of this combination
            here: Path | str = source
            policy: Any = None
            overrides: dict[str, Any] = {}
            for axis, value in labels:
                way = ways[axis][value]
                policy = way.policy if way.policy is not None else policy
                overrides |= way.set
                if way.scenario is not None:
                    here = self.scenario_of(way.scenario, ("tables", number, "axes", axis))
            yield TableCase(table.name, labels, here, policy=policy, overrides=tuple(overrides.items()))

    def short_cases(self) -> Iterator[tuple[TableCase, int | None]]:
        """Yield the cases that CI runs at each change, with replications (None: default)."""
        for number, table in enumerate(self.expected.tables):
            if not table.short:
                continue
            chosen = {axis: [str(value) for value in values]
                      for axis, values in table.short.items() if isinstance(values, list)}  # fmt: skip
            for axis in chosen:
                if axis not in table.axes:
                    raise self.problem(("tables", number, "short", axis), f'table {table.name} has no axis "{axis}"')
            count = table.short.get("replications")
            for case in self.cases_of(number, table, chosen):
                yield case, count if isinstance(count, int) else None

    def missing(self, case: TableCase) -> str | None:
        """Return a message if an input file of a case is missing; None if none is missing.

        Only the entry's `inputs` are checked: files that the license does not allow hetsim to include.
        ScenarioError if a file has another SHA-256 than the entry states.
        """
        for place, needed in enumerate(self.expected.inputs):
            path = (self.inputs or self.folder).resolve() / needed.file
            if not any(value == str(path) for _, value in case.overrides):
                continue
            if not path.is_file():
                return f"{needed.file} does not ship; get it from {needed.url} and give its folder with --inputs"
            digest = hashlib.sha256()
            with opened(path) as content:
                while block := content.read(1 << 20):
                    digest.update(block)
            if needed.sha256 not in (None, actual := digest.hexdigest()):
                problem = f"{path} must have the SHA-256 {needed.sha256}; got {actual}: it is another file"
                raise self.problem(("inputs", place, "sha256"), problem)
        return None

    # Checks -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check everything that can be checked before a run; ScenarioError lists problems."""
        problems: list[Problem] = []
        if self.expected.notice is not None and not (self.folder / self.expected.notice).is_file():
            text = f"{self.folder / self.expected.notice} does not exist: inputs under {self.expected.license} ship"
            problems.append(self.document.problem(("notice",), f"{text} with their notice"))
        for number, table in enumerate(self.expected.tables):
            try:
                self._check_table(number, table)
            except ScenarioError as error:
                problems += error.problems
        if problems:
            raise ScenarioError(list(dict.fromkeys(problems)))

    def _check_table(self, number: int, table: FiguresTable) -> None:
        from hetsim.scenario.scenario import load
        from hetsim.scenario.schema.policy import long_form

        if table.seeds is None and table.tolerance.deviations is not None:
            raise self.problem(
                ("tables", number, "tolerance"), "deviations are over the authors' seeds; give seeds, their column"
            )
        if not (cases := list(self.cases_of(number, table))):
            raise self.problem(("tables", number), f"table {table.name} has no case to run; give each axis a value")
        scenario = load(cases[0].source)
        proposed = [long_form(scenario.raw.get("policy")), *map(long_form, _proposals(scenario.raw))]
        for case in cases:
            if case.policy is not None and case.source == cases[0].source and long_form(case.policy) not in proposed:
                problem = f"the policy of {case.text} is not one of the scenario {case.source}"
                raise self.problem(
                    ("tables", number, "axes"), f"{problem} (policy, sweep.policy): add it to one of these keys"
                )
        if table.seeds is not None:
            seeds = self.figures[table.name][table.seeds].nunique()
            runs = self.replications(table, scenario)
            if seeds != runs:
                text = f"the figures have {seeds} seeds, and the scenario {cases[0].source} makes {runs} replications"
                raise self.problem(("tables", number, "seeds"), f"{text}: both must have the same number")

    @staticmethod
    def replications(table: FiguresTable, scenario: Any) -> int:
        if table.replications is not None:
            return table.replications
        count = scenario.model.replications
        return count if isinstance(count, int) else 10


def _proposals(raw: Mapping[str, Any]) -> list[Any]:
    sweep = raw.get("sweep")
    policies = sweep.get("policy", []) if isinstance(sweep, Mapping) else []
    policies = policies.values() if isinstance(policies, Mapping) else policies
    return list(policies) if isinstance(policies, Iterable) and not isinstance(policies, str) else []


_PLACE = re.compile(r"\{(\w*)\}")


def filled(way: AxisValue, value: str, row: Mapping[str, str]) -> AxisValue:
    """Fill the texts of an axis value: `{}` with `value`, `{column}` from `row`."""

    def fill(given: Any) -> Any:
        if isinstance(given, str) and _PLACE.search(given):
            text = _PLACE.sub(lambda found: row.get(found[1], "") if found[1] else value, given)
            return documents.resolve(text)
        if isinstance(given, Mapping):
            return {key: fill(inner) for key, inner in given.items()}
        if isinstance(given, list):
            return [fill(inner) for inner in given]
        return given

    set_ = {key: fill(inner) for key, inner in way.set.items()}
    return way.model_copy(update={"set": set_, "policy": fill(way.policy)})


# Where entries are ------------------------------------------------------------------------------------------------


def shipped() -> dict[str, Path]:
    """Return the files with expected results of the shipped gallery entries, by name."""
    folder = _folder()
    paths = sorted(folder.glob(f"published/*/{EXPECTED}")) if folder is not None else []
    return {path.parent.name: path for path in paths}


def entry(name: str | Path) -> Entry:
    """Return a gallery entry by name, folder, or file; ScenarioError if it is invalid."""
    shipped_entries = shipped()
    path = Path(name)
    if str(name) in shipped_entries:
        path = shipped_entries[str(name)]
    elif path.is_dir() and (path / EXPECTED).exists():
        path = path / EXPECTED
    elif not path.exists():
        if path.suffix in (".yaml", ".yml") or "/" in str(name):
            raise ScenarioError(Problem("the file does not exist", file=str(name)))
        raise UnknownName("entry of the gallery", str(name), shipped_entries, " (hetsim gallery lists them)")
    elif path.is_dir():
        raise UsageError(f"{path}: the folder has no file {EXPECTED}")
    return read(path)


def entries() -> list[Entry]:
    """Return all shipped entries, by name."""
    return [read(path) for path in shipped().values()]


def read(path: Path) -> Entry:
    document = documents.read(path)
    if not isinstance(document.data, Mapping):
        raise ScenarioError(document.problem((), "the file must be a mapping"))
    try:
        expected = Expected.model_validate(document.data)
    except ValidationError as error:
        raise ScenarioError(translate(error, document, Expected)) from None
    return Entry(path.resolve().parent.name, path, expected, document)
