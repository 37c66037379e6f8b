"""The points of a sweep (a grid, a list or samples), each under all policies."""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from hetsim.errors import Problem, ScenarioError, UsageError, several, suggested_key, suggestion
from hetsim.experiment.policies import PolicyLike, named_policies, named_policy
from hetsim.model.files import InputFiles
from hetsim.model.units import Seed, quantity
from hetsim.scenario import overrides as setting
from hetsim.scenario.file import document as documents
from hetsim.scenario.scenario import Scenario
from hetsim.scenario.schema.sweep import Range, is_range, read_range
from hetsim.scenario.schema.whole import ScenarioModel

SAMPLES = ("grid", "random", "latin_hypercube", "sobol")

MAX_ROWS = 1_000_000  # Maximum number of rows (points × policies) of one sweep.

_UNSWEPT = {
    "replications": "the number is the same for all points: give replications (--replications)",
    "sweep": "a sweep cannot contain a sweep",
    "name": "it is the scenario's name, which changes no result",
    "description": "it is a description, which changes no result",
}

MAX_CASES, MAX_PARTS = 100_000, 2_000  # Maximum numbers of cached facts of scenarios, and of cached scenarios.
PARTS_TEXT = 10_000_000  # Maximum number of characters of these scenarios; in memory each takes about 15 times as much.
_SEED = TypeAdapter(Seed)
_SCALARS = {str, int, float, bool, type(None)}

Axis = list[Any] | Range
Points = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class PointRow:
    """A point of a sweep under one policy: `values` as written, and as `overrides`."""

    point: int
    values: dict[str, Any]
    policy: str | None
    overrides: dict[str, Any]

    @property
    def label(self) -> str:
        parts = [f"{key}={shown_value(value)}" for key, value in self.values.items()]
        return f"point {self.point} ({', '.join([*parts, *([self.policy] if self.policy else [])])})"


class PointValues:
    """The values of a sweep's points: one mapping of keys to values for each point."""

    def __init__(self, points: Sequence[dict[str, Any]]):
        self.points = points

    def __len__(self) -> int:
        return len(self.points)

    def at(self, point: int) -> dict[str, Any]:
        return self.points[point]

    def column(self, key: str, convert: Callable[[list[Any]], list[Any]]) -> list[Any]:
        """Return the values of one key at all points, converted as a list by `convert`."""
        return convert([self.at(point)[key] for point in range(len(self))])


class GridValues(PointValues):
    """Points of a grid: all combinations of values; the last key varies fastest."""

    def __init__(self, lists: Mapping[str, list[Any]]):
        self.lists = lists
        self.count = math.prod(len(values) for values in lists.values())

    def __len__(self) -> int:
        return self.count

    def at(self, point: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key in reversed(list(self.lists)):
            point, at = divmod(point, len(self.lists[key]))
            values[key] = self.lists[key][at]
        return {key: values[key] for key in self.lists}

    def column(self, key: str, convert: Callable[[list[Any]], list[Any]]) -> list[Any]:
        keys = list(self.lists)
        each = math.prod(len(self.lists[later]) for later in keys[keys.index(key) + 1 :])
        values = [value for value in convert(self.lists[key]) for _ in range(each)]
        return values * (self.count // len(values))


class SampledValues(PointValues):
    """Sampled points: numbers from 0 to 1 for each key, mapped to the key's range."""

    def __init__(self, axes: Mapping[str, Axis], shares: np.ndarray):
        self.axes, self.shares = axes, shares

    def __len__(self) -> int:
        return len(self.shares)

    def at(self, point: int) -> dict[str, Any]:
        shares = self.shares[point].tolist()
        return {key: axis.at(share) if isinstance(axis, Range) else axis[min(int(share * len(axis)), len(axis) - 1)]
                for (key, axis), share in zip(self.axes.items(), shares, strict=True)}  # fmt: skip


class PointRows(Sequence[PointRow]):
    """The rows of a sweep: each point under every policy, built when accessed."""

    def __init__(self, points: PointValues, policies: Mapping[str | None, Any]):
        self.points, self.policies = points, list(policies.items())

    def __len__(self) -> int:
        return len(self.points) * len(self.policies)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        point, which = divmod(number % len(self), len(self.policies))
        label, policy = self.policies[which]
        values = self.points.at(point)
        return PointRow(point, values, label, {**({} if label is None else {"policy": policy}), **values})


def shown_value(value: Any) -> Any:
    """Format a value for tables and messages; a mapping or list as a short text."""
    if isinstance(value, Mapping) and ("name" in value or "scheduler" in value):
        return named_policy(value)[0]
    if isinstance(value, Mapping | list | tuple):
        return " ".join(documents.dump(documents.from_mapping(value).data).split())
    return value


# What is swept ----------------------------------------------------------------------------------------------------


def parse_over(text: str) -> tuple[str, Any]:
    """Read `key=a,b,c`, `key=[a, b]` or `key=1..8 log` as (key, list or range)."""
    key, sign, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not sign or not all(part.strip() for part in key.split(".")):
        raise UsageError(f'--over must be key.path=values, such as cluster.nodes.0.count=8,16,32; got "{text}"')
    if not value:
        raise UsageError(f'--over must have at least one value to try; got "{text}"')
    try:
        parsed = documents.parse_value(value)
    except ScenarioError:
        parsed = None  # `[0, 1], [2, 3]`, for instance
    if isinstance(parsed, list) or is_range(parsed):
        return key, parsed
    try:
        return key, documents.parse_value(f"[{value}]")
    except ScenarioError as error:
        raise UsageError(f"--over {text}: the values {error.problems[0].message}") from None


def read_points(path: str | Path) -> list[dict[str, Any]]:
    """Read points from a CSV file with keys as header; UsageError names the line."""
    point_list: list[dict[str, Any]] = []
    lines: dict[str, int] = {}
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            header = next(reader, [])
            if not header or not all(name.strip() for name in header):
                raise UsageError(f"{path}: the first line must name a key for each column")
            if len(set(header)) < len(header):
                raise UsageError(f"{path}: each key must be named once in the first line")
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise UsageError(f"{path}:{reader.line_num}: a row must have {len(header)} values; got {len(row)}")
                values = zip(header, row, strict=True)
                point_list.append({key.strip(): documents.parse_value(text.strip()) for key, text in values})
                first = lines.setdefault(_same(point_list[-1]), reader.line_num)
                if first != reader.line_num:
                    raise UsageError(f"{path}:{reader.line_num}: the row repeats the point of line {first}")
                if len(point_list) > MAX_ROWS:
                    raise UsageError(f"{path}: a sweep must have at most {MAX_ROWS:,} points; the file has more")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text") from None
    except csv.Error as error:
        raise UsageError(f"{path} is not CSV: {error}") from None
    except ScenarioError as error:
        raise UsageError(f"{path}:{reader.line_num}: a value {error.problems[0].message}") from None
    return point_list


def _same(point: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal points, in whatever units they are."""
    return repr(
        [
            (key, named_policy(value)[0] if key == "policy" else _as_number(value))
            for key, value in sorted(point.items())
        ]
    )


def _as_number(value: Any) -> Any:
    if not isinstance(value, str):
        return int(value) if isinstance(value, float) and value.is_integer() else value
    try:
        number = quantity(value)
    except ValueError:
        return value
    return value if number is None else (float(f"{number[0]:.12g}"), number[1])


def rows(
    base: Scenario,
    *,
    over: Mapping[str, Any] | None = None,
    points: Points | None = None,
    policies: Iterable[PolicyLike] | Mapping[str, PolicyLike] | None = None,
    sample: str = "grid",
    n: int | None = None,
    sample_seed: int = 0,
) -> tuple[list[str], Sequence[PointRow]]:
    """Return the swept keys (without `policy`), and one row for each point and policy.

    Without `over` and `points`, the scenario's `sweep` is used.  In both, the values of the key `policy` are policies.
    """
    if points is not None:
        if over or sample != "grid" or n is not None:
            raise UsageError("with points, over, sample and n must be left out (--over, --sample, --n)")
        keys, given = _listed(points)
        if "policy" in keys:
            if policies is not None:
                raise UsageError("policies must be given once: in the points, or as policies (--policy)")
            return _with_own_policies(base, keys, given)
        values = PointValues(given)
    else:
        axes = dict(base.raw.get("sweep") or {}) if over is None else dict(over)
        own = axes.pop("policy", None)
        if own is not None and policies is None:
            if is_range(own) or not isinstance(own, list | tuple | dict):
                raise UsageError("policy must be a list of policies")
            policies = own
        elif own is not None and over is not None:
            raise UsageError("policies must be given once: as the key policy, or as policies (--policy)")
        if not axes and policies is None:
            raise UsageError(
                "there is nothing to sweep: the scenario has no `sweep:`; give keys and values "
                "(--over cluster.nodes.0.count=8,16,32), points or policies"
            )
        keys = list(axes)
        values = _made({key: _axis(key, value) for key, value in axes.items()}, sample, n, sample_seed)
    _check_keys(base, keys)
    labeled: dict[str | None, Any] = {None: None}
    if policies is not None and not (labeled := dict(named_policies(policies).items())):
        raise UsageError("policies must have at least one policy")
    _check_count(len(values) * len(labeled))
    return keys, PointRows(values, labeled)


def _with_own_policies(
    base: Scenario, keys: list[str], found: list[dict[str, Any]]
) -> tuple[list[str], list[PointRow]]:
    keys = [key for key in keys if key != "policy"]
    _check_keys(base, keys)
    numbers: dict[str, int] = {}
    made = []
    for values in found:
        label, policy = named_policy(values.pop("policy"))
        number = numbers.setdefault(_same(values), len(numbers))
        made.append(PointRow(number, values, label, {"policy": policy, **values}))
    return keys, made


def is_sampled(over: Mapping[str, Any]) -> bool:
    """Return True if some range states no number of steps: its values must be sampled."""
    axes = [_axis(key, value) for key, value in over.items()]
    return any(isinstance(axis, Range) and axis.steps is None for axis in axes)


def _axis(key: str, value: Any) -> Axis:
    try:
        if isinstance(value, Range):
            return value
        if is_range(value):
            return read_range(value)
    except ValueError as error:
        raise UsageError(f"{key}: {error}") from None
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise UsageError(f"{key} must be a list of values, or a range such as 1..8; got {shown_value(value)!r}")
    if not (values := list(documents.from_mapping(list(value)).data)):
        raise UsageError(f"{key} must have at least one value to try")
    return values


def _listed(points: Points) -> tuple[list[str], list[dict[str, Any]]]:
    point_list: list[dict[str, Any]] = []
    numbers: dict[str, int] = {}
    for number, point in enumerate(several(points, "points", "a list of mappings")):
        if not isinstance(point, Mapping) or not point:
            raise UsageError(f"point {number} must be a mapping of keys to values; got {point!r}")
        point_list.append(documents.from_mapping(dict(point)).data)
        # Without policies a point may come again, as in a sample: it is another row of the same runs.
        first = numbers.setdefault(_same(point_list[-1]), number) if "policy" in point_list[-1] else number
        if first != number:
            raise UsageError(f"point {number} is the same as point {first}; give it once")
        if missing := sorted(set(point_list[0]) ^ set(point_list[-1])):
            raise UsageError(f"point {number} and point 0 have different keys: {', '.join(missing)}")
        _check_count(len(point_list))
    if not point_list:
        raise UsageError("points must have at least one point")
    keys = list(point_list[0])
    return keys, [{key: point[key] for key in keys} for point in point_list]


def _made(axes: dict[str, Axis], sample: str, n: int | None, seed: int) -> PointValues:
    if sample not in SAMPLES:
        raise UsageError(f'unknown sample "{sample}"{suggestion(sample, SAMPLES) or "; " + ", ".join(SAMPLES)}')
    if sample == "grid":
        if n is not None:
            raise UsageError("n (--n) is for samples: the values of a grid define the number of points")
        grid = GridValues({key: _steps(key, axis) for key, axis in axes.items()})
        _check_count(len(grid))
        return grid
    if n is None or n < 1:
        raise UsageError("a sample needs n (--n), its number of points, which must be at least 1")
    if not axes:
        raise UsageError("a sample needs keys with ranges: over (--over)")
    _check_count(n)
    return SampledValues(axes, _shares(sample, n, len(axes), seed))


def _steps(key: str, axis: Axis) -> list[Any]:
    if not isinstance(axis, Range):
        there: set[str] = set()
        for value in axis:
            same = _same({key: value})
            if same in there:
                raise UsageError(f"{key}: the value {shown_value(value)} is given twice; give each value once")
            there.add(same)
        return axis
    if axis.steps is None:
        raise UsageError(f"{key}: a range in a grid needs a step count, such as `1..8 integer 4`; or list the values")
    return axis.grid()


def _shares(sample: str, n: int, dimensions: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(np.random.SeedSequence(seed))
    if sample == "random":
        return random.random((n, dimensions))
    from scipy.stats import qmc

    if sample == "latin_hypercube":
        return qmc.LatinHypercube(dimensions, seed=random).random(n)
    # Of the next power of two, for which the sequence is balanced (and scipy says nothing): its beginning.
    return qmc.Sobol(dimensions, seed=random).random_base2(max(0, math.ceil(math.log2(n))))[:n]


def _check_count(count: int) -> None:
    if count > MAX_ROWS:
        raise UsageError(
            f"the sweep must have at most {MAX_ROWS:,} points (with policies); got {count:,}: give fewer "
            "values, or a sample (--sample sobol --n 500)"
        )


def _check_keys(base: Scenario, keys: Sequence[str]) -> None:
    problems: list[Problem | str] = []
    for key in keys:
        top = key.partition(".")[0]
        try:
            if key in _UNSWEPT:
                raise LookupError(f"cannot be swept: {_UNSWEPT[key]}")
            setting.check_path(base.raw, key)
            if top not in ScenarioModel.model_fields:
                near = suggested_key(top, ScenarioModel.model_fields)
                raise LookupError(f'there is no key "{top}" in a scenario{near}')
        except LookupError as error:
            problems.append(Problem(str(error.args[0]), key))
    if problems:
        raise ScenarioError(problems)


# Checking all of them -----------------------------------------------------------------------------------------------


def check_all(
    base: Scenario, given: Sequence[PointRow], facts: Callable[[Scenario], Any],
    each: Callable[[PointRow, int, Any], None],
) -> None:
    """Validate all rows; call `each(row, seed, facts(scenario))` for each of them.

    facts: function of the scenario whose result does not depend on the seed, so that it is called only once for rows
    that differ only in their seed.  ScenarioError lists all invalid points.
    """
    wrong: dict[tuple[str, str], list[PointRow]] = {}
    parts: dict[tuple, Scenario | list[Problem] | None] = {}
    max_parts = min(MAX_PARTS, PARTS_TEXT // len(str(base.raw)))
    cases: dict[tuple, Any] = {}
    for row in given:
        changes, seed = row.overrides, base.model.seed
        with suppress(ValidationError):
            seed = _SEED.validate_python(changes.get("seed", seed))
            changes = {key: value for key, value in changes.items() if key != "seed"}
        case = _identical(changes)
        if case not in cases:
            checked = _changed(base, changes, parts, max_parts)
            if len(cases) >= MAX_CASES:
                cases.clear()
            cases[case] = checked if isinstance(checked, list) else None if wrong else facts(checked)
        values = cases[case]
        if isinstance(values, list):
            for problem in values:
                wrong.setdefault((problem.key, problem.message), []).append(row)
        elif not wrong:
            each(row, seed, values)
    if wrong:
        raise ScenarioError(
            [Problem(message, key, file=_whose(which, len(given))) for (key, message), which in wrong.items()]
        )


def _changed(
    base: Scenario, changes: Mapping[str, Any], parts: dict[tuple, Scenario | list[Problem] | None], max_parts: int
) -> Scenario | list[Problem]:
    """Apply changes to the scenario; return the scenario, or the list of problems.

    The changes of each top-level key form a part.  If a part occurs for the first time, all changes are validated
    together, and `parts` gets None for each new part.  Otherwise each part is validated alone, once (the result is
    cached in `parts`), and the parts are joined to the scenario.  The cache is cleared above `max_parts`.
    """
    alone: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        top = key.partition(".")[0]
        alone.setdefault("horizon" if top == "warmup" else top, {})[key] = value
    if len(alone) < 2 or base.inputs != InputFiles():
        return _tried(base, changes) if changes else base
    if len(parts) + len(alone) > max_parts:
        parts.clear()
    keys = {_identical(one): one for one in alone.values()}
    new = [key for key in keys if key not in parts]
    parts.update(dict.fromkeys(new))
    if new:
        return _tried(base, changes)
    changed: dict[str, Scenario] = {}
    for same, one in keys.items():
        if (part := parts[same]) is None:
            part = parts[same] = _tried(base, one)
        if isinstance(part, list) or part.inputs != InputFiles():
            return _tried(base, changes)  # which names all that is wrong, and all files
        changed.update((key.partition(".")[0], part) for key in one)
    return base.joined(changed)


def _tried(base: Scenario, changes: Mapping[str, Any]) -> Scenario | list[Problem]:
    try:
        return base.with_overrides(changes)
    except ScenarioError as error:
        return error.problems


def _identical(changes: Mapping[str, Any]) -> tuple:
    """Return a cache key that is equal for the same changes (objects by their id)."""
    return *changes, *(
        (type(value), repr(value) if type(value) is float else value) if type(value) in _SCALARS else id(value)
        for value in changes.values()
    )


def _whose(which: list[PointRow], count: int) -> str:
    if len(which) == count and count > 1:
        return f"every point, such as {which[0].label}"
    others = f" and {len(which) - 1:,} more" if len(which) > 1 else ""
    return which[0].label + others


def column_of(values: Sequence[Any]) -> list[Any]:
    """Return a key's values as a column: numbers in base units, or else all as texts."""
    if all(isinstance(value, bool) for value in values):
        return list(values)
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        fits = all(-(1 << 63) <= value < 1 << 63 for value in values)  # a seed may have 128 bits
        return list(values) if fits else [str(value) for value in values]
    quantities = [quantity(value) for value in values]
    kinds = {one[1] for one in quantities if one is not None and one[0] != 0}
    if None not in quantities and len(kinds) <= 1:
        return [one[0] for one in quantities if one is not None]
    return [_text(value) for value in values]


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(shown_value(value))
