"""Schema of the plain classes of `hetsim.model`, which declare everything once.

A dataclass names the types of its fields by those of `hetsim.model.units`.  Metadata of a field: `required` (a scenario
has to give it, Python does not), `optional` (null in a scenario unless given; so is a default of infinity), `alias`
(its key in a scenario), `key` False (none: a scenario does not give it, or gives it in another form).  The method
`check` raises KeyProblem for what contradicts itself; the class method `given` makes an instance of what a scenario
gives, where that takes more than the defaults.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel, Field, GetCoreSchemaHandler, create_model, model_validator
from pydantic_core import core_schema

from hetsim.model import units
from hetsim.scenario.fields import Model

M = TypeVar("M", bound=BaseModel)
PLAIN: dict[Any, Any] = {bool: units.Flag}
"""What stands for a type that names no unit and no bound."""


class Mirror(Model):
    """Base of all schemas made from a dataclass."""

    SOURCE: ClassVar[Any] = None
    KEYS: ClassVar[tuple[str, ...]]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def given(self) -> dict[str, Any]:
        """The keys of the dataclass that the scenario gives, or whose default is not null."""
        return {name: value for name in self.KEYS if (value := getattr(self, name)) is not None}

    def made(self, **more: Any) -> Any:
        """The instance of the dataclass, with `more` for fields that are not keys."""
        return getattr(self.SOURCE, "given", self.SOURCE)(**{**self.given, **more})

    @model_validator(mode="after")
    def _checked(self) -> Mirror:
        if hasattr(self.SOURCE, "given") or hasattr(self.SOURCE, "check"):
            made = self.made()
            if hasattr(made, "check"):
                made.check()
        return self


class Keys:
    """Annotation: a mapping with the keys of a dataclass, which becomes one."""

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
        """The keys of a scenario for an instance."""
        keys = {info.alias or name: getattr(made, name) for name, info in self.model.model_fields.items()}
        return {name: None if value == math.inf else value for name, value in keys.items()}


def keys_of(source: type, *only: str, **types: Any) -> Callable[[type[M]], type[M]]:
    """Decorator of a schema: adds the keys of a dataclass, or `only` these, first."""

    return lambda model: _based(model, _model_of(source, source.__name__, types, only))


def inline_of(other: type[BaseModel], *but: str) -> Callable[[type[M]], type[M]]:
    """Decorator of a schema: adds the keys of another, `but` these, optional."""
    keys: dict[str, Any] = {  # None stands where a type has nothing else to be annotated with
        name: (typing.Annotated[(info.annotation, *info.metadata, None)] | None, None)
        for name, info in other.model_fields.items()
        if name not in but
    }
    base = create_model(other.__name__, __base__=Mirror, __module__=other.__module__, **keys)
    base.INLINED = other
    return lambda model: _based(model, base)


def _based(model: type[M], base: type[BaseModel]) -> type[M]:
    """The model with the fields of the base before its own."""
    names = {name: getattr(model, name) for name in ("__module__", "__qualname__", "__doc__")}
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
        default: Any = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
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
