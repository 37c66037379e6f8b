"""The mapping of a log with its own columns: job attributes, units, blank cells.

`columns:` maps the attributes of jobs (`TARGETS`) to columns of the file, or to one of the operations below.  Nothing
in it is evaluated as code.

    arrival: submit_time                        a column
    duration: {difference: [end, start]}        difference, sum or product of columns
    cpus: {constant: 8}                         the same for all rows
    class: {column: queue, values: {a: batch}}  replacements for values of the column; null: no value
    gpus: {column: tres, key: gres/gpu}         a part of a cell such as cpu=8,gres/gpu=2
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, get_args

from pydantic import PlainValidator

from hetsim.errors import suggestion
from hetsim.model.units import shown
from hetsim.workload.mapped import cells as read
from hetsim.workload.mapped.cells import COUNTS, SIZES, TIMES
from hetsim.workload.rows.rows_of_a_job import RULES, Fold, gang
from hetsim.workload.rows.text_rows import NUMBER

Kind = Literal["instant", "duration", "size", "count", "number", "text"]

# Possible targets of columns, in addition to `gpu_time.TYPE`
TARGETS: dict[str, Kind] = {
    "id": "text", "arrival": "instant", "start": "instant", "end": "instant",
    "duration": "duration", "gpu_time": "duration", "cpu_time": "duration", "estimate": "duration",
    "time_limit": "duration", "nodes": "count", "gpus": "count", "cpus": "count",
    "memory": "size", "gpu_memory": "size",
    "devices": "text", "slice": "text", "user": "text", "class": "text", "partition": "text", "vc": "text",
    "queue": "text", "group": "text", "account": "text", "qos": "text", "status": "text", "recorded_node": "text",
    "priority": "number", "weight": "number", "deadline": "instant", "patience": "duration",
    "bytes_in": "size", "bytes_out": "size", "upload": "duration", "download": "duration",
}  # fmt: skip
GPU_TIME = "gpu_time."
NO_DEFAULT = ("arrival", "duration", "start", "end")  # every job needs these; a blank cell has no default
# Words that mean no value, unless `missing_values` names others
BLANKS = (
    "", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "null", "NULL", "(null)", "\\N", "None", "none",
    "Unknown", "None assigned", "-", "--",
)  # fmt: skip
NO_LIMIT = ("UNLIMITED", "Partition_Limit", "INVALID")  # additional such words for time limits
UNITS: dict[str, Mapping[str, float]] = {"duration": TIMES, "size": SIZES, "count": COUNTS}
ACTIONS = ("drop", "error", "default")


class WrongKey(ValueError):
    def __init__(self, key: str, message: str):
        self.key = key
        super().__init__(message)


Operation = Literal["column", "constant", "difference", "sum", "product"]


@dataclass(frozen=True)
class CellSource:
    """Source of a job attribute's values: a column, an operation, or a constant."""

    operation: Operation
    columns: tuple[str, ...] = ()
    values: Mapping[str, str | None] | None = None
    key: str | None = None
    constant: str = ""


@dataclass(frozen=True)
class Missing:
    """Treatment of a blank cell: skip the row, error, no value, or a default value."""

    action: Literal["drop", "error", "default"]
    value: str | None = None


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"must be a text or a number; got {shown(value)}")
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _source(value: Any) -> CellSource:
    if isinstance(value, CellSource):
        return value
    if not isinstance(value, dict):
        return CellSource("column", (_named(value),))
    operation = _operation(value)
    if operation == "constant":
        return CellSource("constant", constant=_text(value["constant"]))
    if operation == "column":
        key = value.get("key")
        key = None if key is None else _text(key)
        return CellSource("column", (_named(value["column"]),), _values(value.get("values")), key)
    columns, difference = value[operation], operation == "difference"
    if not isinstance(columns, list) or len(columns) < 2 or (difference and len(columns) != 2):
        number = "two" if difference else "two or more"
        raise ValueError(f"{operation} needs a list of {number} columns, such as [end_time, start_time]")
    names = tuple(_named(one) for one in columns)
    if operation != "product" and len(set(names)) < len(names):
        raise ValueError(f"{operation} names {shown(names[0])} twice")
    return CellSource(operation, names)


def _operation(value: dict[str, Any]) -> Operation:
    operations = get_args(Operation)
    given = [key for key in operations if key in value]
    further = [key for key in value if key not in operations]
    if len(given) != 1:
        wrong = next((key for key in further if key not in ("values", "key")), None)
        hint = f', not "{wrong}"{suggestion(wrong, operations)}' if wrong else ""
        raise ValueError(f"must be a column, or one of {', '.join(operations)}{hint}")
    operation: Operation = given[0]
    allowed = ("values", "key") if operation == "column" else ()
    for key in further:
        if key not in allowed:
            why = f"; {', '.join(allowed)} may stand next to column" if allowed else f" next to {operation}"
            raise ValueError(f'unknown key "{key}"{suggestion(key, allowed)}{why}')
    return operation


def _named(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(f"must be the name of a column; got {shown(value)}")
    return str(value)


def _values(value: Any) -> dict[str, str | None] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not value:
        raise ValueError("values must be a mapping of cells of the column to their meanings")
    return {str(key): None if one is None else _text(one) for key, one in value.items()}


def _missing(value: Any) -> Missing:
    if isinstance(value, Missing):
        return value
    if isinstance(value, str) and value in ACTIONS:
        return Missing(value)  # type: ignore[arg-type]
    if isinstance(value, dict) and set(value) == {"default"}:
        return Missing("default", _text(value["default"]))
    hint = suggestion(value, ACTIONS) if isinstance(value, str) else ""
    raise ValueError(f"must be drop, error, default or {{default: VALUE}}; got {shown(value)}{hint}")


def _target(name: str) -> str:
    if name not in TARGETS and not (name.startswith(GPU_TIME) and len(name) > len(GPU_TIME)):
        near = suggestion(name, TARGETS) or f"; known are {', '.join(TARGETS)} and gpu_time.TYPE"
        raise ValueError(f'"{name}" is not a property of jobs{near}')
    return name


def _checked(value: Any, check: Callable[[str], object]) -> str:
    text = _text(value)
    check(text)
    return text


def forms_of(value: Any) -> dict[str, str]:
    """Return the date format of each job attribute; the key "" is one format for all."""
    if isinstance(value, dict) and set(value) == {""}:
        return value
    if not isinstance(value, dict):
        return {"": _checked(value, read.check_form)}
    forms = {}
    instants = [one for one, kind in TARGETS.items() if kind == "instant"]
    for name, one in value.items():
        if name not in instants:
            near = suggestion(name, instants)
            raise WrongKey(str(name), f'"{name}" is not an instant{near}; instants are {", ".join(instants)}')
        try:
            forms[str(name)] = _checked(one, read.check_form)
        except ValueError as error:
            raise WrongKey(str(name), str(error)) from None
    return forms


def _unit(value: Any) -> str:
    text = _text(value)
    if text not in TIMES and text not in SIZES and text not in COUNTS:
        units = [*TIMES, *SIZES, *COUNTS]
        near = suggestion(text, units) or "; known are units of time and size, milli and percent"
        raise ValueError(f"{shown(text)} is not a unit{near}")
    return text


def _separator(value: Any) -> str:
    text = {"tab": "\t", "\\t": "\t", "space": " "}.get(value, value) if isinstance(value, str) else value
    if not isinstance(text, str) or len(text) != 1 or text in '"\r\n':
        raise ValueError(f'must be one character such as ";", or tab or space; got {shown(value)}')
    return text


def _blank_words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f'must be a list of texts such as ["", "-1"]; got {shown(value)}')
    return tuple("" if one is None else _text(one) for one in value)


def blanks_of(words: tuple[str, ...]) -> frozenset[str | float]:
    """Return the words that mean a blank cell; words such as -1 also as numbers."""
    return frozenset([*words, *(float(word) for word in words if NUMBER.fullmatch(word))])


def fold_of(value: Any) -> Fold:
    """Parse a rule to merge a job's rows, such as `{by: id, columns: {gpus: max}}`."""
    return value if isinstance(value, Fold) else Fold(*_by_and_rules(value, "fold"))


def gang_of(value: Any) -> Fold:
    """Return the rule of `gang: {by: LABEL}`: the rows of a gang become one row."""
    return value if isinstance(value, Fold) else gang(*_by_and_rules(value, "gang"))


def _by_and_rules(value: Any, word: str) -> tuple[str, dict[str, str]]:
    if not isinstance(value, dict) or "by" not in value:
        example = "{by: id, columns: {start: min, end: max, gpus: max}}" if word == "fold" else "{by: COLUMN}"
        raise ValueError(f"must be a mapping such as {example}; got {shown(value)}")
    for key in value:
        if key not in ("by", "columns"):
            raise ValueError(f'unknown key "{key}"{suggestion(key, ("by", "columns"))}; known are by and columns')
    rules = value.get("columns", {})
    if not isinstance(rules, dict):
        raise ValueError(f"columns must be a mapping such as {{start: min}}; got {shown(rules)}")
    for name, rule in rules.items():
        if rule not in RULES:
            near = suggestion(rule, RULES) if isinstance(rule, str) else ""
            raise ValueError(f"{name} must be one of {', '.join(RULES)}; got {shown(rule)}{near}")
    return _named(value["by"]), {str(name): rule for name, rule in rules.items()}


def _mapped(value: Any, of: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"must be a mapping such as {{arrival: submit_time}}; got {shown(value)}")
    mapped = {}
    for name, one in value.items():
        try:
            mapped[_target(str(name))] = of(one)
        except ValueError as error:
            raise WrongKey(str(name), str(error)) from None
    return mapped


columns_of = partial(_mapped, of=_source)
units_of = partial(_mapped, of=_unit)
missing_of = partial(_mapped, of=_missing)
Columns = Annotated[dict[str, CellSource], PlainValidator(columns_of)]
Units = Annotated[dict[str, str], PlainValidator(units_of)]
MissingOf = Annotated[dict[str, Missing], PlainValidator(missing_of)]
Forms = Annotated[dict[str, str], PlainValidator(forms_of)]
FoldOf = Annotated[Fold, PlainValidator(fold_of)]
GangOf = Annotated[Fold, PlainValidator(gang_of)]
Attempts = Literal["restarts", "separate"]
Zone = Annotated[str, PlainValidator(partial(_checked, check=read.zone_of))]
Separator = Annotated[str, PlainValidator(_separator)]
BlankWords = Annotated[tuple[str, ...], PlainValidator(_blank_words)]


def kind_of(target: str) -> Kind:
    return "duration" if target.startswith(GPU_TIME) else TARGETS[target]
