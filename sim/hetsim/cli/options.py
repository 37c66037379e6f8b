"""Options that several verbs share."""

import os
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Any

import click

from hetsim.cli.program import VERBOSE
from hetsim.experiment.options import StudyKeywords, declared_options

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def together(*decorators: Decorator) -> Decorator:
    """Combine several decorators into one, the first outermost."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)

SCENARIO = click.argument("scenario", metavar="FILE|NAME")

BY = click.option("--by", multiple=True, metavar="class|gpus|user",
                  help="Also print figures by class, by requested number of GPUs, or by user (repeatable).")

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")

QUIET = click.option("-q", "--quiet", is_flag=True, help="Print only errors on stderr.")

VERBOSITY = click.option("-v", "--verbose", is_flag=True,
                         callback=lambda context, _, value: context.meta.update({VERBOSE: value}), expose_value=False,
                         help="Print more on stderr; show tracebacks.")  # fmt: skip


TELLING = together(JSON, QUIET, VERBOSITY)  # output options of verbs that compute something


class Whole(click.IntRange):
    """An integer within bounds."""

    name = "whole number"


class Share(click.ParamType):
    """A share above 0 and below 1, written 5% or 0.05."""

    name = "share"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        from hetsim.model.units import parse_fraction

        try:
            share = parse_fraction(value if isinstance(value, float) or value.strip().endswith("%") else float(value))
        except ValueError:
            share = 0.0
        if not 0 < share < 1:
            self.fail(f"must be a share above 0 and below 1, such as 5% or 0.05; got {value!r}", parameter, context)
        return share


class Folder(click.Path):
    """A folder to write; a name with the suffix of a file is an error."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        path = Path(value)
        if os.path.isfile(path) or (path.name.lower().endswith(KNOWN_SUFFIXES) and not os.path.isdir(path)):
            text = f"must be a folder; got {value}, a file{_file_instead(path, context)}"
            self.fail(text, parameter, context)
        return path


def _file_instead(path: Path, context: click.Context | None) -> str:
    for option in context.command.params if context is not None else ():
        if isinstance(option.type, OutputFile) and path.name.lower().endswith(option.type.suffixes):
            return f"; {option.type.what} is written by {option.opts[0]} {path}"
    if path.suffix.lower() in PAGE.suffixes:
        return f"; `hetsim report FOLDER --page {path}` makes a page of what is written there"
    return ""


class OutputFile(click.Path):
    """A file to write; its suffix, which is checked first, determines the format."""

    def __init__(self, what: str, *suffixes: str):
        super().__init__(path_type=Path, dir_okay=False)
        self.what, self.suffixes = what, suffixes

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        path = Path(value)
        if os.path.isdir(path):
            file = path / f"name{self.suffixes[0]}"
            self.fail(f"{self.what} must be a file, such as {file}; got {value}, a folder", parameter, context)
        if not path.name.lower().endswith(self.suffixes):
            listed = ", ".join(self.suffixes[:-1]) + " or " * (len(self.suffixes) > 1) + self.suffixes[-1]
            self.fail(f"{self.what} must be a file name ending in {listed}; got {value}", parameter, context)
        if not os.path.isdir(path.parent):
            self.fail(f'{value} cannot be written: the folder "{path.parent}" does not exist', parameter, context)
        return path


FOLDER = Folder()
PAGE = OutputFile("a page", ".html", ".htm")
PICTURE = OutputFile("a picture", ".png", ".pdf", ".svg")
YAML = OutputFile("a scenario", ".yaml", ".yml")
TABLE = OutputFile("a table", ".csv", ".parquet", ".pq")
SCHEMA = OutputFile("a schema", ".json")
LEARNED = OutputFile("a learned policy", ".npz")
TIMELINE = OutputFile("a timeline", ".json", ".json.gz")
KNOWN_SUFFIXES = tuple(
    suffix for one in (PAGE, PICTURE, YAML, TABLE, SCHEMA, LEARNED, TIMELINE) for suffix in one.suffixes
)


def study_options(keywords: type | None = None, **changes: dict[str, Any]) -> Decorator:
    """Return a decorator with the study options named in `keywords` and `changes`.

    keywords: class with a field per option.  changes: properties of an option that the verb overrides, {"help": ...}.
    """
    names = [*(keywords.__annotations__ if keywords else ()), *changes]
    declared = [one for one in declared_options(names).values() if "flag" in one.metadata]
    return together(*(_option(one, changes.get(one.name, {})) for one in declared))


def _option(one: Field[Any], changes: dict[str, Any]) -> Decorator:
    about: dict[str, Any] = {name: one.metadata[name] for name in ("help", "metavar") if name in one.metadata}
    if "low" in one.metadata:
        about["type"] = Whole(min=one.metadata["low"], max=one.metadata.get("high"))
    elif "Path" in str(one.type):
        about["type"] = FOLDER
    about |= {"is_flag": isinstance(one.default, bool), "multiple": one.default == ()}
    return click.option(one.metadata["flag"], one.name, **about | changes)


SET, SEED, WORKERS = study_options(overrides={}), study_options(seed={}), study_options(workers={})
RUNNING = together(study_options(StudyKeywords), TELLING)  # options of verbs that run something
