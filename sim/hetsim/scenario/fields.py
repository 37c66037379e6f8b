"""Base classes and field types of scenario models; schemas made from dataclasses."""

import dataclasses
import math
import sys
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    create_model,
)
from pydantic_core import core_schema

from hetsim.errors import UnknownName, suggestion
from hetsim.model import units
from hetsim.model.described import Described
from hetsim.model.units import Name


class Model(Described):
    """Base of all parts of a scenario: unknown keys are errors, instances are frozen."""

    # Compiled with the scenario as a whole (`defer_build`): most are a part or a base of others.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self  # a default is copied at each validation


def unknown(error: UnknownName) -> str:
    """Return the message for an unknown name; it lists all names if none is similar."""
    near = suggestion(error.name, error.known)
    return str(error) if near else f"{error}; one of {', '.join(error.known)}"


def looked_up(find: Callable[[str], Any], name: str) -> Any:
    """Return `find(name)`; raise ValueError with a suggestion if it is unknown."""
    try:
        return find(name)
    except UnknownName as error:
        raise ValueError(unknown(error)) from None


class Short:
    """Annotation: a field that also accepts a short form, which `expand` converts.

    `schema`: the JSON Schema of the short form.  None: the field is a list, and its short form is a single item.
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
# Discriminator of a union of a value and a mapping that have these tags.
VALUE_OR_MAPPING = Discriminator(lambda value: "<mapping>" if isinstance(value, dict | BaseModel) else "<value>")
ONE_NAME = Short(lambda value: [value] if isinstance(value, str | int) else value, {"type": "string"})
Names = Annotated[tuple[Name, ...], ONE_NAME]
SomeNames = Annotated[tuple[Name, ...], Field(min_length=1), ONE_NAME]  # Several names, or one of them alone.
# One mapping where a list of mappings is allowed.
OneOrMany = Short(lambda value: [value] if isinstance(value, dict) else value)


# Schema of the plain classes of `hetsim.model`, which declare everything once.
#
# A dataclass names the types of its fields by those of `hetsim.model.units`.  Metadata of a field: `required` (a
# scenario has to give it, Python does not), `optional` (null in a scenario by default; so is a default of
# infinity), `alias` (its key in a scenario), `key` False (none: a scenario does not give it, or gives it in another
# form).  The method `check` raises KeyProblem for what contradicts itself; the class method `given` makes an instance
# of what a scenario gives, where that takes more than the defaults.


M = TypeVar("M", bound=BaseModel)
PLAIN: dict[Any, Any] = {bool: units.Flag}  # Replacements for types without unit and bound.


class Mirror(Model):
    """Base of schemas whose keys are the fields of a dataclass (`SOURCE`)."""

    SOURCE: ClassVar[Any] = None
    KEYS: ClassVar[tuple[str, ...]]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def given(self) -> dict[str, Any]:
        """Values of the keys that are not None, as arguments of the mirrored dataclass."""
        return {name: value for name in self.KEYS if (value := getattr(self, name)) is not None}

    def made(self, **more: Any) -> Any:
        """Create the dataclass instance; `more`: values of its fields that no key sets."""
        return getattr(self.SOURCE, "given", self.SOURCE)(**{**self.given, **more})

    def _check_keys(self) -> None:
        if hasattr(self.SOURCE, "given") or hasattr(self.SOURCE, "check"):
            made = self.made()
            if hasattr(made, "check"):
                made.check()


class Keys:
    """Annotation: a mapping whose keys are a dataclass's fields; becomes an instance."""

    def __init__(self, source: type, name: str = "", **types: Any):
        self.source = source
        self.model = _model_of(source, name or f"{source.__name__}Spec", types)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            lambda value, inner: value if isinstance(value, self.source) else inner(value).made(),
            handler.generate_schema(self.model),
            serialization=core_schema.plain_serializer_function_ser_schema(self._keys),
        )

    def _keys(self, made: Any) -> dict[str, Any]:
        keys = {info.alias or name: getattr(made, name) for name, info in self.model.model_fields.items()}
        return {name: None if value == math.inf else value for name, value in keys.items()}


def keys_of(source: type, *only: str, **types: Any) -> Callable[[type[M]], type[M]]:
    """Decorator: give a schema the fields of a dataclass (or `only` some) as keys."""

    return lambda model: _based(model, _model_of(source, source.__name__, types, only))


def inline_of(other: type[BaseModel], *but: str) -> Callable[[type[M]], type[M]]:
    """Decorator: add the keys of schema `other` (except `but`), all of them optional."""
    keys: dict[str, Any] = {  # None stands where a type has nothing else to be annotated with
        name: (typing.Annotated[(info.annotation, *info.metadata, None)] | None, None)
        for name, info in other.model_fields.items()
        if name not in but
    }
    base = create_model(other.__name__, __base__=Mirror, __module__=other.__module__, **keys)
    base.INLINED = other
    return lambda model: _based(model, base)


def _based(model: type[M], base: type[BaseModel]) -> type[M]:
    names = {name: getattr(model, name) for name in ("__module__", "__qualname__", "__doc__", "model_config")}
    meta: Any = type(model)
    return meta(model.__name__, (model, base), names)


def _model_of(source: Any, name: str, types: dict[str, Any], only: Sequence[str] = ()) -> type[Mirror]:
    hints = typing.get_type_hints(source, vars(units) | vars(sys.modules[source.__module__]), include_extras=True)
    keys: dict[str, Any] = {}
    used: dict[str, Any] = {}
    for field in dataclasses.fields(source):
        if not field.metadata.get("key", True) or (only and field.name not in only):
            continue
        kind = types.get(field.name, PLAIN.get(hints[field.name], hints[field.name]))
        made = field.default_factory
        default: Any = field.default if made is dataclasses.MISSING else made()
        if field.metadata.get("optional") or default == math.inf:
            used[field.name] = default
            kind, default = kind | None, None
        if field.metadata.get("required") or default is dataclasses.MISSING:
            default = ...
        alias = field.metadata.get("alias")
        keys[field.name] = (kind, default if alias is None else Field(default, alias=alias))
    about = (source.__doc__ or "").partition("\n\n")[0]
    model = create_model(name, __base__=Mirror, __module__=source.__module__, __doc__=about, **keys)
    model.SOURCE, model.KEYS, model.USED = source, tuple(keys), used
    model.__qualname__ = source.__qualname__  # where its sentences stand (`hetsim.model.described`)
    return model
