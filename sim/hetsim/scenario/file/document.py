"""Scenario files as plain data with positions: bounded YAML reading and writing.

The reader builds data from the parser's events, without recursion, so that depth, size and aliases are bounded before
anything large exists.  It resolves only `true`, `false`, `null` and plain decimal numbers; every other plain scalar is
a string.  (Standard YAML would read `1e6` as a string, `1:30` as 90, `no` as false, and `012` as 10.)  Keys of mappings
are always strings.
"""

import math
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from hetsim.errors import Problem, ScenarioError
from hetsim.model.files import open_input
from hetsim.policy.external import ExternalProgram

MAX_BYTES = 4_000_000  # Maximum size of scenario files; larger data belong into tables in files of their own.
MAX_NODES = 200_000  # Maximum number of values in a document; values repeated by aliases count each time.
MAX_DEPTH = 64

Path_ = tuple[str | int, ...]  # Path of a value: keys and list indexes.


def key_of(path: Path_) -> str:
    """Return a path as dotted text: `workload.0.arrivals.rate`."""
    return ".".join(str(part) for part in path)


_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")
_WORDS = {"true": True, "false": False, "null": None, "": None}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def resolve(text: str) -> Any:
    """Return the value of a scalar: true, false, null, a finite number, or text."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) < 400 and _NUMBER.match(text):
        if text.lstrip("+-").isdigit():
            return int(text)
        number = float(text)
        return number if math.isfinite(number) else text
    return text


@dataclass
class Document:
    """Plain data, with the position of each value in the file.

    `positions` maps a path to (line, column), counted from 1, of the key (in a list: of the item); `set_by` names the
    command-line override that set a path; `program` is an external scheduler, given by an option or in Python.
    """

    data: Any
    file: str | None = None
    positions: dict[Path_, tuple[int, int]] = field(default_factory=dict)
    set_by: dict[Path_, str] = field(default_factory=dict)
    program: ExternalProgram | None = None

    def problem(self, path: Path_, message: str) -> Problem:
        """Return a problem at the position of `path`, or of its nearest existing parent."""
        key, path = key_of(path), self._written(path)
        for end in range(len(path), -1, -1):
            if path[:end] in self.set_by:  # also what the file has below it is no longer there
                return Problem(message, key, file=self.set_by[path[:end]])
        for end in range(len(path), -1, -1):
            prefix = path[:end]
            if prefix in self.positions:
                line, column = self.positions[prefix]
                return Problem(message, key, self.file, line=line, column=column)
            # Not in the file: an override below it made it.
            made = [source for path_set, source in self.set_by.items() if path_set[:end] == prefix] if end else []
            if made:
                return Problem(message, key, file=made[0])
        return Problem(message, key, self.file)

    def in_entries(self, *keys: str) -> Iterator[tuple[int, Path_, Any]]:
        """Yield entry number, path and value of nested keys, for all workload entries."""
        entries = self.data.get("workload")
        for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            value = entry
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                yield number, ("workload", *((number,) if isinstance(entries, list) else ()), *keys), value

    def _written(self, path: Path_) -> Path_:
        """Remove index 0 from a path where the file has one mapping in place of a list."""
        here, written = self.data, []
        for part in path:
            if part == 0 and isinstance(here, dict):
                continue
            written.append(part)
            inside = isinstance(here, list) and isinstance(part, int) and part < len(here)
            here = here[part] if inside else here.get(part) if isinstance(here, dict) else None
        return tuple(written)

    def addressed(self, problem: Problem) -> Problem:
        """Return the problem with file, line and column of its key, if it has none yet."""
        if problem.file is not None or problem.line is not None:
            return problem
        here, path = self.data, []
        for part in problem.key.split(".") if problem.key else ():
            path.append(int(part) if isinstance(here, list) and part.isdigit() else part)
            inside = isinstance(here, list) and isinstance(path[-1], int) and path[-1] < len(here)
            here = here[path[-1]] if inside else here.get(part) if isinstance(here, dict) else None
        return replace(self.problem(tuple(path), problem.message), key=problem.key)

    def copy(self) -> "Document":
        return Document(_copied(self.data), self.file, self.positions, set_by=dict(self.set_by), program=self.program)


_PLAIN = {str, int, float, bool, type(None)}


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copied(inner) for key, inner in value.items()}
    if type(value) is list:
        return [_copied(inner) for inner in value]
    return value if type(value) in _PLAIN else deepcopy(value)


def read(path: Path, what: str = "a scenario") -> Document:
    """Read one YAML mapping; else ScenarioError with position, which calls it `what`."""
    shown = str(path)
    try:
        if not path.exists():
            raise ScenarioError(Problem("the file does not exist", file=shown))
        if path.is_dir():
            raise ScenarioError(Problem(f"must be {what} file; got a folder", file=shown))
        if not path.is_file():
            raise ScenarioError(Problem(f"must be {what} file; got a device or a pipe", file=shown))
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ScenarioError(Problem(_too_large(size, what), file=shown))
        with open_input(path) as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ScenarioError(Problem(f"cannot be read: {error.strerror}", file=shown)) from None
    except ValueError:  # a NUL in its name
        raise ScenarioError(Problem("the file does not exist", file=shown)) from None
    return parse(content, shown, what)


def parse(content: str | bytes, file: str | None = None, what: str = "a scenario") -> Document:
    """Parse the text of a scenario file, or of another file (`what`, for messages)."""
    if len(content) > MAX_BYTES:
        raise ScenarioError(Problem(_too_large(len(content), what), file=file))
    if isinstance(content, bytes):
        content = _decode(content, file)
    document = _Builder(file).document(content)
    if not isinstance(document.data, dict):
        got = "empty" if document.data is None else "a list" if isinstance(document.data, list) else "a single value"
        text = f"{what} must be a mapping of keys to values; got {got}"
        raise ScenarioError(Problem(text, file=file, line=1, column=1))
    return document


def parse_value(text: str) -> Any:
    """Parse one value as in scenario files (used for the right side of `--set`)."""
    return _Builder(None).document(text).data


def from_mapping(data: Any) -> Document:
    """Return a document of copied Python data; keys become strings, tuples lists."""
    return Document(_plain(data, 0))


def dump(data: Any) -> str:
    """Write YAML text that `parse` reads back to the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)


def with_full_paths(value: Any, named: Mapping[tuple[str, str], Path], keys: tuple[str, ...] = ()) -> Any:
    """Return data with absolute paths of files; `named`: the path by (key, file name)."""
    if isinstance(value, dict):
        return {key: with_full_paths(inner, named, (*keys, str(key))) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_full_paths(inner, named, keys) for inner in value]
    paths = [named[key, value] for key in keys if (key, value) in named]
    return str(paths[-1].resolve()) if paths else value


def _too_large(size: int, what: str) -> str:
    text = f"must be at most {MAX_BYTES / 1e6:g} MB; got {size / 1e6:,.1f} MB"
    advice = ". Put large data into a file of its own (trace: {format: tasks, path: ...})"
    return text + advice * (what == "a scenario")


def _decode(content: bytes, file: str | None) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        message = f"is not UTF-8 text (byte 0x{content[error.start]:02x}); save it as UTF-8"
        problem = Problem(message, "", file, line=line, column=column)
        raise ScenarioError(problem) from None


def _plain(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ScenarioError(f"the mapping is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return {_key_text(key): _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a NumPy scalar
        return value.item()
    return value


def _key_text(key: Any) -> str:
    words = {True: "true", False: "false", None: "null"}
    return words[key] if isinstance(key, bool) or key is None else str(key)


class _Open:
    __slots__ = ("value", "path", "key", "anchor", "first", "long", "keys")

    def __init__(self, value: dict | list, path: Path_, anchor: str | None, first: int, long: int):
        self.value = value
        self.path = path
        self.key: str | None = None
        self.anchor = anchor
        self.first = first  # number of its first node: what an alias to it costs
        self.long = long  # and hundreds of characters in texts before it
        self.keys: set[str] = set()


class _Builder:
    def __init__(self, file: str | None):
        self.file = file
        self.positions: dict[Path_, tuple[int, int]] = {}
        self.problems: list[Problem] = []
        self.nodes = 0
        self.long = 0
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.stack: list[_Open] = []
        self.root: Any = None

    def document(self, text: str) -> Document:
        documents = 0
        try:
            for event in self._events(text):
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        self._fail(event, "a second document starts here; a file must have one scenario")
                else:
                    self._take(event)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            words = [part for part in (error.context, error.problem) if part]
            line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
            # The scanner looks ahead, and may stop at a limit of its own before the first event.
            is_deep = "nesting depth" in str(error.problem)
            deep = f"is nested more than {MAX_DEPTH} levels deep"
            text = deep if is_deep else f"is not valid YAML: {', '.join(words)}"
            problem = Problem(text, "", self.file, line=line, column=column)
            raise ScenarioError([*self.problems, problem]) from None
        except yaml.YAMLError as error:  # characters that YAML does not allow carry no line
            message = " ".join(str(error).split())
            raise ScenarioError([*self.problems, Problem(f"is not valid YAML: {message}", "", self.file)]) from None
        if self.problems:
            raise ScenarioError(self.problems)
        return Document(self.root, self.file, self.positions)

    def _events(self, text: str) -> Iterator[Any]:
        try:
            yield from yaml.parse(text, Loader=_Loader)
        except UnicodeEncodeError:  # lone surrogates, from Python strings only
            raise ScenarioError(Problem("is not valid Unicode text", file=self.file)) from None

    def _take(self, event: Any) -> None:
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            done = self.stack.pop()
            if done.anchor:
                self.anchors[done.anchor] = (done.value, self.nodes - done.first + 1 + self.long - done.long)
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)

    def _open(self, event: Any) -> None:
        self._count(event, 1)
        if len(self.stack) >= MAX_DEPTH:
            self._fail(event, f"is nested more than {MAX_DEPTH} levels deep")
        if event.tag is not None:
            self._fail(event, f'tags such as "{event.tag}" are not allowed')
        value: dict | list = {} if isinstance(event, yaml.MappingStartEvent) else []
        path = self._place(event, value)
        self.stack.append(_Open(value, path, event.anchor, first=self.nodes, long=self.long))

    def _scalar(self, event: Any) -> None:
        self._count(event, 1)
        self.long += len(event.value) // 100
        if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
            self._fail(event, f'tags such as "{event.tag}" are not allowed')
        if self.stack and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None:
            self._key(event)
            return
        plain, _ = event.implicit  # not quoted, and no tag
        value = resolve(event.value) if plain else event.value
        self._place(event, value)
        if event.anchor:
            # A long text costs more each time, for it is written out each time.
            self.anchors[event.anchor] = (value, 1 + len(event.value) // 100)

    def _alias(self, event: Any) -> None:
        if event.anchor not in self.anchors:
            self._fail(event, f'the alias "*{event.anchor}" needs an anchor "&{event.anchor}" that ends before it')
        value, size = self.anchors[event.anchor]
        self._count(event, size)  # before copying: a bomb is refused while it is small
        self._place(event, deepcopy(value))

    def _key(self, event: Any) -> None:
        top = self.stack[-1]
        if event.value in top.keys:
            path = (*top.path, event.value)
            first = self.positions.get(path)
            where = f"; the first is at line {first[0]}" if first else ""
            line, column = event.start_mark.line + 1, event.start_mark.column + 1
            key = key_of(path)
            self.problems.append(Problem(f"this key is given twice{where}", key, self.file, line=line, column=column))
        top.keys.add(event.value)
        top.key = event.value
        self.positions.setdefault((*top.path, event.value), (event.start_mark.line + 1, event.start_mark.column + 1))

    def _place(self, event: Any, value: Any) -> Path_:
        if not self.stack:
            self.root = value
            return ()
        top = self.stack[-1]
        if isinstance(top.value, list):
            path = (*top.path, len(top.value))
            self.positions[path] = (event.start_mark.line + 1, event.start_mark.column + 1)
            top.value.append(value)
            return path
        if top.key is None:
            self._fail(event, "a key must be text; got a list or a mapping")
        assert top.key is not None
        top.value[top.key] = value
        path = (*top.path, top.key)
        top.key = None
        return path

    def _count(self, event: Any, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            self._fail(event, f"has more than {MAX_NODES:,} values (aliases counted each time)")

    def _fail(self, event: Any, message: str) -> None:
        mark = event.start_mark
        raise ScenarioError(
            [*self.problems, Problem(message, "", self.file, line=mark.line + 1, column=mark.column + 1)]
        )


class _Dumper(yaml.SafeDumper):
    """YAML writer that quotes each text which `resolve` would read as another type."""

    yaml_implicit_resolvers: dict = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_number(self, data: float) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:float", repr(data))

    def represent_text(self, data: str) -> yaml.ScalarNode:
        lines = data.strip().split("\n")
        style = "|" if len(lines) > 1 and all(line.isprintable() for line in lines) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def represent_key_or_other(self, data: Any) -> yaml.Node:
        return self.represent_text(str(data))


_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false)\Z"), list("tf"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:null)?\Z"), ["n", ""])
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789."))
_Dumper.add_representer(int, _Dumper.represent_number)
_Dumper.add_representer(float, _Dumper.represent_number)
_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_multi_representer(object, _Dumper.represent_key_or_other)
