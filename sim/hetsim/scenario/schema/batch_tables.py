"""Stage times measured by batch size: a mapping, or a table in a file.

compute: {1: 6.1 ms, 2: 7.0 ms, 4: 9.2 ms, 8: 13 ms}
compute: {table: latencies.csv, batch: size, time: p50_ms, where: {model: resnet50}}
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, model_validator

from hetsim.errors import KeyProblem, ScenarioError
from hetsim.model.batch_times import StageTable, TimeSpread
from hetsim.model.files import record_input
from hetsim.model.units import TIME, Flag, Name, TimeUnit, parse, shown
from hetsim.scenario.fields import Model
from hetsim.workload import measurements

MAX_SIZE = 1_000_000
MAX_MEASURED = 4096  # Maximum number of sizes in a table.
FALL = 0.05  # Times that fall by more than this share from one size to a larger one are more than noise.
ABOUT = ("batch", "time", "unit", "where", "between", "extrapolate", "quantiles", "samples")
# Keys next to a table (ABOUT), and those among them that apply to tables in files.
OF_FILES = ("batch", "time", "unit", "where", "quantiles", "samples")


# Keys of a stage that is not a mapping of sizes to times.
KEYS = frozenset({"table", "per_item", "fixed", "per_prompt_token", "per_output_token", *ABOUT})


# JSON Schema of a table that is written as a mapping of sizes to times.
INLINE = {"type": "object", "patternProperties": {"^[0-9]+$": {}}, "additionalProperties": False, "minProperties": 1}


def short(value: Any) -> Any:
    """Expand a short form: `5 ms` to {fixed: 5 ms}, `{1: 5 ms, 2: 6 ms}` to a table."""
    if isinstance(value, str):
        return {"fixed": value}
    if isinstance(value, dict) and any(_is_size(key) for key in value) and not KEYS & set(value):
        return {"table": value}
    return value


def _is_size(key: Any) -> bool:
    return isinstance(key, str | int) and not isinstance(key, bool) and str(key).lstrip("-").replace(".", "").isdigit()


def _ranks(value: Any) -> Any:
    if not isinstance(value, dict) or not value:
        raise ValueError("must be columns by percentile, such as {p50: p50_ms, p99: p99_ms}")
    return {_rank(key): name for key, name in value.items()}


def _rank(key: Any) -> float:
    text = {"min": "0", "max": "100"}.get(str(key), str(key)).removeprefix("p")
    try:
        percent = float(text)
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 100:
        raise ValueError(f"{shown(key)} is not a percentile such as p50, p99, min or max")
    return percent / 100


class MeasuredSpec(Model):
    """Keys of a stage whose times were measured at several batch sizes."""

    USED: ClassVar = {"batch": "batch", "time": "time"}

    table: "Annotated[Any, Field(json_schema_extra={'anyOf': [{'type': 'string'}, {'type': 'object'}]})]" = None
    """Measured times by batch size: a mapping such as {1: 6.1 ms, 2: 7 ms}, or a CSV or Parquet file."""
    batch: Name | None = None
    """Column of the file with the batch size."""
    time: Name | None = None
    """Column of the file with the expected time, which policies see. Default: the mean that `quantiles` give."""
    unit: TimeUnit | None = None
    """Unit of the times in the file, if the names of its columns do not end with one."""
    where: dict[str, str | float | bool] | None = None
    """Values by column of the file: only rows with these values are used. Default: all rows."""
    between: Literal["linear", "step", "power"] = "linear"
    """Interpolation between two measured sizes: linear; step (the time of the next larger size); or power (the fixed
    time of a step plus c × size^a, with a = 1 above the largest size).
    """
    extrapolate: Flag = False
    """Allow batches larger than the largest measured size."""
    quantiles: Annotated[dict[float, str], BeforeValidator(_ranks)] | None = None
    """Columns of the file with percentiles, such as {p50: p50_ms, p99: p99_ms}; times are drawn from these."""
    samples: Flag = False
    """Use several rows of one size as samples of the time, from which times are drawn."""

    _built: StageTable | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _with_table(self, info: ValidationInfo) -> "MeasuredSpec":
        if self.table is None:
            for key in ABOUT:
                if key in self.model_fields_set:
                    raise KeyProblem(key, "the key needs a table of measured times")
            return self
        if isinstance(self.table, dict):
            for key in OF_FILES:
                if key in self.model_fields_set:
                    raise KeyProblem(key, "the key needs a table in a file; this table is in the scenario")
            self._built = _inline(self.table, self.between)
        elif isinstance(self.table, str) and self.table:
            self._built = self._file(Path((info.context or {}).get("base", ".")))
        else:
            raise KeyProblem("table", f"must be sizes with their times, or a file; got {shown(self.table)}")
        return self

    @property
    def measured(self) -> StageTable | None:
        return self._built

    def _file(self, base: Path) -> StageTable:
        path = base / str(self.table)
        if not path.is_file():
            raise KeyProblem(
                "table", f"there is no file {shown(self.table)}" + ("" if base == Path() else f" (looked for {path})")
            )
        record_input(path, "table", self.table)
        if self.quantiles and self.samples:
            raise KeyProblem("samples", "quantiles and samples exclude each other; leave one out")
        time = self.time if self.quantiles else self.used("time")
        try:
            sizes, seconds, spread = measurements.reader("latencies")(
                path, self.used("batch"), time, self.unit, self.where or {}, self.quantiles or {}, self.samples
            )
        except ScenarioError as error:
            raise KeyProblem("table", str(error), problems=error.problems) from None
        return StageTable(sizes, seconds, self.between, spread)


def _inline(table: Mapping[Any, Any], between: Literal["linear", "step", "power"]) -> StageTable:
    sizes = [_size(key) for key in table]
    keys = list(table)
    for place in range(1, len(sizes)):
        if sizes[place] <= sizes[place - 1]:
            text = f"batch sizes must increase; {sizes[place]} follows {sizes[place - 1]}"
            raise KeyProblem("table", text, keys[place])
    if len(sizes) > MAX_MEASURED:
        raise KeyProblem(
            "table", f"must have at most {MAX_MEASURED:,} sizes; got {len(sizes):,}: put the table in a file"
        )
    spreads: list[TimeSpread | None] = []
    seconds = []
    for size, (key, value) in zip(sizes, table.items(), strict=True):
        try:
            spread = _spread(value)
            seconds.append(spread.mean if spread is not None else _seconds(value))
        except ValueError as error:
            raise KeyProblem("table", f"batches of {size}: {error}", key) from None
        spreads.append(spread)
    scattered = tuple(one for one in spreads if one is not None)
    if scattered and len(scattered) < len(spreads):
        one = sizes[spreads.index(None)]
        raise KeyProblem(
            "table",
            f"batches of {one} have one time, but others have samples or percentiles; use one form for all",
            keys[spreads.index(None)],
        )
    return StageTable(tuple(sizes), tuple(seconds), between, scattered)


def _size(key: Any) -> int:
    text = str(key)
    if not text.isdecimal() or not 1 <= int(text) <= MAX_SIZE:
        raise KeyProblem("table", f"{shown(key)} is not a batch size: a whole number from 1 to {MAX_SIZE:,}", key)
    return int(text)


def _seconds(value: Any) -> float:
    seconds = parse(value, TIME, "5 ms")
    if seconds <= 0:
        raise ValueError(f"the time of a batch must be above 0; got {shown(value)}")
    return seconds


def _spread(value: Any) -> TimeSpread | None:
    if value in ([], {}):
        raise ValueError("must have at least one sample")
    if isinstance(value, list):
        return TimeSpread(tuple(sorted(_seconds(one) for one in value)))
    if not isinstance(value, dict):
        return None
    pairs = sorted((_rank(key), _seconds(one)) for key, one in value.items())
    for (low, before), (high, after) in pairwise(pairs):
        if after < before:
            raise ValueError(f"the time of p{100 * high:g} must not be below that of p{100 * low:g}")
    return TimeSpread(tuple(seconds for _, seconds in pairs), tuple(rank for rank, _ in pairs))


def remarks(table: StageTable, what: str, extrapolated: bool, sizes: str = "batches of") -> list[str]:
    """Return warnings about a table; `sizes`: words for a size, such as "batches of"."""
    texts = []
    if (fallen := table.falls(FALL)) is not None:
        size, slower = fallen
        one = "a batch of" if sizes == "batches of" else sizes
        first, second = (f"{1e3 * table.seconds_for(count):.4g} ms" for count in fallen)
        pair = f"{first}, and one of {slower} takes {second}"
        texts.append(f"{what}: {one} {size} takes {pair}: times fall by more than {FALL:.0%}")
    if extrapolated:
        largest = table.sizes[-1]
        texts.append(f"{what}: {sizes} more than {largest}, the largest measured size, are extrapolated")
    return texts
