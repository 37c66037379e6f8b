"""Translate pydantic's errors to sentences that name file, line and key."""

import typing
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, Tag, ValidationError

from hetsim.errors import Problem, suggested_key, suggestion
from hetsim.model.units import MAX_NUMBER, shown
from hetsim.scenario.fields import Keys
from hetsim.scenario.file.document import Document, Path_

MISSING = "this key is missing"
LIMITS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}
MAX_PLACES = 3  # Maximum number of mappings named as the possible place of an unknown key.


def translate(
    error: ValidationError, document: Document, model: type[BaseModel], prefix: Path_ = (),
    holder: type[BaseModel] | None = None,
) -> list[Problem]:  # fmt: skip
    """Return the errors of a validation at `prefix` as problems with positions.

    holder: model of the mapping around the validated value, to find keys that belong there.
    """
    by_place: dict[tuple, Problem] = {}
    data = value_at(document.data, prefix)
    details = error.errors(include_url=False)
    words = {detail["loc"][:-1]: detail for detail in details if _is_word(detail)}
    for detail in details:
        path = _in_data(detail["loc"], data, detail["type"])
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, ValueError) and hasattr(cause, "key"):  # KeyProblem, or its like of other rooms
            path = _with_key(path, data, cause)
        of_a_file = getattr(cause, "problems", ())
        if any(problem.line for problem in of_a_file):
            by_place.update({(problem.file, problem.line, problem.message): problem for problem in of_a_file})
            continue
        if _is_word(detail) and any(_is_beside(other, detail) for other in details):
            continue  # told with the other forms
        word = words.get(detail["loc"][:-1])
        message = sentence(detail, model) if word is None else _or_word(detail, word, model)
        if detail["type"] == "extra_forbidden":
            place = _place_of(str(detail["loc"][-1]), detail["loc"], model, data=data, prefix=prefix, holder=holder)
            message = f'unknown key "{detail["loc"][-1]}"{place}' if place else message
        by_place.setdefault((path, message), document.problem((*prefix, *path), message))
    return list(by_place.values())


def _with_key(path: Path_, data: Any, cause: Any) -> Path_:
    inside = getattr(cause, "inside", None)
    steps = inside if isinstance(inside, tuple) else (inside,)
    here = value_at(data, path)
    if inside is None or not isinstance(here, dict):
        return (*path, cause.key)
    if cause.key not in here:
        return (*path, *steps)
    return (*path, cause.key, *steps)


def _is_word(detail: Any) -> bool:
    return detail["type"] == "literal_error" and str(detail["loc"][-1]).startswith("literal[")


def _is_beside(other: Any, word: Any) -> bool:
    before = word["loc"][:-1]
    return not _is_word(other) and other["loc"][: len(before)] == before


def _or_word(detail: Any, word: Any, model: type[BaseModel]) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    allowed = _words(word.get("ctx", {}))
    hint = suggestion(value, allowed) if isinstance(value, str) else ""
    text = sentence(detail, model)
    if kind in LIMITS:
        limit = f"a number that is {LIMITS[kind][0]} {_count(context[LIMITS[kind][1]])}"
        return f"must be {', '.join(allowed)} or {limit}; got {_count(value)}"
    if text.startswith("must be ") and text.endswith(f"; got {shown(value)}"):
        return f"must be {', '.join(allowed)} or {text.removeprefix('must be ')}{hint}"
    return f"{text}; or give {' or '.join(allowed)}{hint}"


def _words(context: dict[str, Any]) -> list[str]:
    expected = str(context.get("expected_tags", context.get("expected", "")))
    return [word.strip().strip("'") for word in expected.replace(" or ", ", ").split(",")]


def value_at(data: Any, path: Path_) -> Any:
    for part in path:
        data = data[part]
    return data


def _in_data(location: Iterable[Any], data: Any, kind: str) -> Path_:
    """Return pydantic's location as a path in the file, without the tags of unions."""
    path: list[Any] = []
    parts = list(location)
    for number, part in enumerate(parts):
        inside = (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if inside:
            path.append(part)
            data = data[part]
        elif kind == "missing" and number == len(parts) - 1:
            path.append(part)
    return tuple(path)


def sentence(detail: Any, model: type[BaseModel]) -> str:
    """Return what is wrong with a value, from a detail of pydantic's ValidationError."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        key = str(detail["loc"][-1])
        # Of another form of the same mapping it may be a key.
        possible = [other for other in _fields(_models_at(model, detail["loc"][:-1])) if other != key]
        return f'unknown key "{key}"{suggested_key(key, possible) or _listed(possible)}'
    if kind == "unexpected_keyword_argument":
        return f'unknown key "{detail["loc"][-1]}"'
    if kind == "missing":
        return MISSING
    if kind in ("value_error", "assertion_error"):
        return str(context.get("error", detail["msg"]))
    if kind in ("union_tag_invalid", "literal_error", "enum"):
        possible = _words(context)
        got = context.get("tag", value)
        if not isinstance(got, str):
            return f"must be one of {', '.join(possible)}; got {shown(got)}"
        hint = suggestion(got, possible) or _listed(possible, "one of")
        return f"unknown {_noun(detail, context)} {shown(got)}{hint}"
    if kind == "union_tag_not_found":
        key = str(context.get("discriminator", "")).strip("'")
        if isinstance(value, dict):
            return f'the key "{key}" is missing' if key.isidentifier() else "the mapping has none of the accepted forms"
        return f"must be a mapping; got {shown(value)}"
    return _type_sentence(kind, value, context) or f"{detail['msg'][:1].lower()}{detail['msg'][1:]}; got {shown(value)}"


def _place_of(
    key: str, location: tuple, model: type[BaseModel], data: Any, prefix: Path_, holder: type[BaseModel] | None
) -> str:  # fmt: skip
    for depth in range(len(location) - 2, -1, -1):
        above = _in_data(location[:depth], data, "")
        # The same mapping is left out: there it is a key of another form than the one that was chosen.
        if above != _in_data(location[:-1], data, "") and key in _fields(_models_at(model, location[:depth])):
            where = ".".join(map(str, (*prefix, *above)))
            return f"; it is a key of {where or 'the scenario as a whole'}"
    if holder is not None and key in _fields([holder]):
        return f"; it is a key of {'.'.join(map(str, prefix[:-1]))}, next to {prefix[-1]}"
    inner = [
        info.alias or name
        for one in _models_at(model, location[:-1])
        for name, info in one.model_fields.items()
        if key in _fields(there for there, _ in _models_in([info.annotation, *info.metadata]))
    ]
    return f"; it is a key of {' and of '.join(dict.fromkeys(inner))}" if 0 < len(inner) <= MAX_PLACES else ""


def _type_sentence(kind: str, value: Any, context: dict[str, Any]) -> str | None:
    if kind in LIMITS:
        word, name = LIMITS[kind]
        return f"must be {word} {_count(context[name])}; got {_count(value)}"
    expected = {"string": "a text", "int": "a whole number", "float": "a number", "bool": "true or false",
                "list": "a list", "tuple": "a list", "dict": "a mapping", "model": "a mapping",
                "finite": "a finite number", "mapping": "a mapping"}  # fmt: skip
    what = expected.get(kind.split("_")[0])
    if what and ("type" in kind or "parsing" in kind or "from" in kind or kind == "finite_number"):
        return f"must be {what}; got {shown(value)}"
    if kind == "too_short":
        min_length = context.get("min_length", 1)
        return f"needs at least {min_length} {'entry' if min_length == 1 else 'entries'}"
    if kind == "too_long":
        return f"has more than {context.get('max_length')} entries"
    if kind in ("string_too_short",):
        return "is empty"
    return None


def _count(value: Any) -> str:
    if isinstance(value, str) or abs(value) > MAX_NUMBER:  # a text has a unit
        return shown(value)
    return f"{int(value):,}" if abs(value) < 1e15 and value == int(value) else f"{value:g}"


def _noun(detail: Any, context: dict[str, Any]) -> str:
    named = str(context.get("discriminator", "")).strip("'")
    if named.isidentifier():
        return named
    last = detail["loc"][-1] if detail["loc"] else "value"
    return last.strip("[]") if isinstance(last, str) else "value"  # pydantic: "[key]"


def _listed(names: Iterable[str], word: str = "the keys here are") -> str:
    names = list(names)
    return f"; {word} {', '.join(names)}" if names else ""


def _fields(models: Iterable[type[BaseModel]]) -> list[str]:
    names: dict[str, None] = {}
    for model in models:
        for name, info in model.model_fields.items():
            names[info.alias or name] = None
    return list(names)


def _models_at(model: type[BaseModel], location: Iterable[Any]) -> list[type[BaseModel]]:
    here: list[tuple[type[BaseModel], Any]] = [(model, None)]
    for part in location:
        inner: list[tuple[type[BaseModel], Any]] = []
        for candidate, _ in here:
            for name, info in candidate.model_fields.items():
                if part in (name, info.alias):
                    inner += _models_in([info.annotation, *info.metadata])
        if inner:
            here = inner
            continue
        tagged = [(one, tag) for one, tag in here if part in (one.__name__, tag) or part in _tags(one)]
        here = tagged or here
    return [candidate for candidate, _ in here]


def _models_in(annotations: Iterable[Any]) -> Iterator[tuple[type[BaseModel], Any]]:
    annotations = tuple(annotations)
    tag = next((annotation.tag for annotation in annotations if isinstance(annotation, Tag)), None)
    for annotation in annotations:
        if isinstance(annotation, Keys):
            yield annotation.model, tag
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation, tag
        else:
            yield from _models_in(typing.get_args(annotation))


def _tags(model: type[BaseModel]) -> list[Any]:
    return [
        value
        for info in model.model_fields.values()
        if typing.get_origin(info.annotation) is typing.Literal
        for value in typing.get_args(info.annotation)
    ]
