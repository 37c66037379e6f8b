"""What the models of a scenario file share: the strict base class and field types with readable refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from sim.errors import Problem, UnknownName, suggestion
from sim.model.described import Described
from sim.model.units import MOST, is_number, shown

LONGEST_NAME = 200


class Model(Described):
    """Base of all parts of a scenario: unknown keys are errors, nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def unknown(error: UnknownName) -> str:
    """The sentence of an unknown name, with all that are known where none is near."""
    near = suggestion(error.name, error.known)
    return str(error) if near else f"{error}; one of {', '.join(error.known)}"


class KeyProblem(ValueError):
    """Raised by the check of a whole mapping: what is wrong, and with which of its keys.

    `inside`: which key of what stands there, as far as it is one; a short form may leave `key` itself out.
    `problems`: those of a file that the key names, told in place of the message, at their lines.
    """

    def __init__(self, key: str, message: str, inside: Any = None, problems: Sequence[Problem] = ()):
        self.key = key
        self.inside = inside
        self.problems = problems
        super().__init__(message)


def _number(value: Any) -> Any:
    if not is_number(value):
        beyond = isinstance(value, int | float) and abs(value) > MOST
        hint = f"; the largest is {MOST:g}" if beyond else ""
        raise ValueError(f"expected a number, not {shown(value)}{hint}")
    return value


def _whole(value: Any) -> Any:
    _number(value)
    if value != int(value):
        raise ValueError(f"expected a whole number, not {shown(value)}")
    return int(value)


def _seed(value: Any) -> Any:
    return value if isinstance(value, int) and not isinstance(value, bool) else _whole(value)


def _name(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a name, not {shown(value)}")
    if len(value) > LONGEST_NAME:
        raise ValueError(f"a name has at most {LONGEST_NAME} characters; this has {len(value):,}")
    if not value.isprintable():
        raise ValueError("a name is one line of visible characters; this has others")
    return value


def _flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, not {shown(value)}")
    return value


Number = Annotated[float, BeforeValidator(_number)]
Positive = Annotated[float, Field(gt=0), BeforeValidator(_number)]
NotNegative = Annotated[float, Field(ge=0), BeforeValidator(_number)]
Whole = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
Count = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
Seed = Annotated[int, Field(ge=0), BeforeValidator(_seed)]
"""Any whole number: seeds of 128 bits are usual."""
Name = Annotated[str, Field(min_length=1), BeforeValidator(_name)]
Flag = Annotated[bool, BeforeValidator(_flag)]


class Short:
    """Annotation: the field also accepts a short form, which `expand` turns into the full one.

    `schema` is the JSON Schema of the short form; None: that of one item of the list.
    """

    def __init__(self, expand: Callable[[Any], Any], schema: dict[str, Any] | None = None):
        self.expand = expand
        self.schema = schema

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self.expand, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        full = handler(schema)
        return {"anyOf": [full, self.schema if self.schema is not None else full["items"]]}


OneOrMany = Short(lambda value: [value] if isinstance(value, dict) else value)
"""One mapping where a list of them may stand."""
