"""Pydantic models whose JSON Schema describes the meaning of each key.

The description is the string below a field, as with pydantic's option `use_attribute_docstrings`; the schema adds the
default.  The option reads the sources when the classes are created, which doubles the import time of the scenario
models; here the sources are read only when a schema is requested.
"""

import ast
import inspect
import math
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator

from hetsim.model.files import package_table
from hetsim.model.units import in_units

Kind = TypeVar("Kind", bound=BaseModel)


class Described(BaseModel):
    """A model whose fields are described in its JSON Schema by their docstrings."""

    FIRST: ClassVar[tuple[str, ...]] = ()  # keys that come first in the schema, before those of base classes
    INLINED: ClassVar[type[BaseModel] | None] = None  # the model that describes its fields, if it is not a base class
    USED: ClassVar[Mapping[str, Any]] = {}  # values used for keys that are not given and have the default null

    @model_validator(mode="after")
    def _check_each(self) -> Self:
        """Call `_check_keys` of each class, bases first, to find contradictory keys."""
        for kind in reversed(type(self).__mro__):
            if check := vars(kind).get("_check_keys"):
                check(self)
        return self

    def used(self, key: str) -> Any:
        """Return the value of a key, or the value used in its place if it is not given."""
        value = getattr(self, key)
        return used_without(type(self))[key] if value is None else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        reference = handler(core)
        schema = handler.resolve_ref_schema(reference)
        properties = schema.get("properties", {})
        if cls.FIRST:
            schema["properties"] = properties = {**{key: properties[key] for key in cls.FIRST}, **properties}
        used = used_without(cls)
        for field, text in descriptions(cls).items():
            info = cls.model_fields[field]
            key = info.alias or field
            if key in properties:
                default = used.get(field) if info.default is None else info.default
                parts = (part for one in get_args(info.annotation) for part in getattr(one, "__metadata__", ()))
                text = with_default(text, default, [*info.metadata, *parts])
                properties[key] = {**properties[key], "description": text}
        return reference


class Frozen(Described):
    """Base of validated models: unknown keys are errors, and values cannot change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def shipped(kind: type[Kind], module: str, table: str) -> dict[str, Kind]:
    """Load models by name from a YAML table, except anchors (names such as `.part`)."""
    rows = package_table(module, table)
    return {name: kind.model_validate(figures) for name, figures in rows.items() if name[0] != "."}


@cache
def used_without(model: type[Described]) -> dict[str, Any]:
    """Return, by key, the value used if the key is not given; includes base classes."""
    used: dict[str, Any] = {}
    for base in reversed(model.__mro__):
        used |= vars(base).get("USED", {})
        if other := vars(base).get("INLINED"):
            used |= {name: info.default for name, info in other.model_fields.items()} | used_without(other)
    return used


def with_default(sentence: str, default: Any, metadata: Iterable[Any] = ()) -> str:
    """Add the default to a key's description, unless it is stated already."""
    default = getattr(default, "kind", default)  # of a part with keys of its own: its kind
    if isinstance(default, Mapping):  # defaults that depend on other keys
        text = ", ".join(f"{in_units(value, metadata)} {where}" for where, value in default.items())
    elif default == math.inf:
        text = "no limit"
    elif isinstance(default, bool) or not isinstance(default, int | float):
        words = [default] if isinstance(default, bool | str) else default if isinstance(default, list) else []
        text = ", ".join(str(word).lower() if isinstance(word, bool) else str(word) for word in words)
    else:
        text = in_units(default, metadata)
    if not text or re.search(r"unless given|left out|\b[Dd]efault\b", sentence):
        return sentence
    return f"{sentence} Default: {text}."


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a model's fields, including fields of base classes.

    A field with only one possible value, the kind of the model, is described by that value unless it has a docstring.
    """
    texts: dict[str, str] = {}
    kinds = {name: get_args(info.annotation) for name, info in model.model_fields.items()
             if get_origin(info.annotation) is Literal}  # fmt: skip
    for base in reversed(model.__mro__):
        here = getattr(base, "__annotations__", {})
        texts |= {name: f"{words[0]}." for name, words in kinds.items() if name in here and len(words) == 1}
        other = vars(base).get("INLINED")
        said = descriptions(other) if other else _of_module(base.__module__).get(base.__qualname__, {})
        texts |= {name: text for name, text in said.items() if name in model.model_fields}
    return texts


@cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    """Return the attribute docstrings of a module, by class and attribute."""
    module = sys.modules.get(name)
    try:
        source = inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):  # built in, or typed at a prompt
        return {}
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_strings(node)) for node in classes}


def _strings(node: ast.ClassDef) -> list[tuple[str, str]]:
    pairs = []
    for field, below in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            pairs.append((field.target.id, " ".join(below.value.value.split())))
    return pairs
