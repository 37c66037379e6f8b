"""Base class and field types of the models of scenario files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, Tag
from pydantic_core import core_schema

from hetsim.errors import UnknownName, suggestion
from hetsim.model.described import Described
from hetsim.model.units import Name


class Model(Described):
    """Base of all parts of a scenario: strict keys, frozen after validation."""

    # Compiled with the scenario as a whole (`defer_build`): most are a part or a base of others.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self  # a default is copied at each validation


def unknown(error: UnknownName) -> str:
    """The sentence of an unknown name, with all that are known where none is near."""
    near = suggestion(error.name, error.known)
    return str(error) if near else f"{error}; one of {', '.join(error.known)}"


class Short:
    """Annotation: a field that also accepts a short form, expanded by `expand`.

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


VALUE, MAPPING = Tag("<value>"), Tag("<mapping>")
VALUE_OR_MAPPING = Discriminator(lambda value: "<mapping>" if isinstance(value, dict | BaseModel) else "<value>")
"""Of a union of a value and of a mapping, which are annotated with these tags: which of the two is given."""
_ONE_NAME = Short(lambda value: [value] if isinstance(value, str | int) else value, {"type": "string"})
Names = Annotated[tuple[Name, ...], _ONE_NAME]
SomeNames = Annotated[tuple[Name, ...], Field(min_length=1), _ONE_NAME]
"""Several names, or one of them alone."""
OneOrMany = Short(lambda value: [value] if isinstance(value, dict) else value)
"""One mapping where a list of them may stand."""
