"""The works behind a scenario, as the docstrings of its policies, readers and models name them.

Of the sentence after `Reference:` every work with authors, a title and a year becomes an entry of BibTeX.
"""

from __future__ import annotations

import inspect
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from hetsim import registry
from hetsim.errors import HetsimError, visible_lines
from hetsim.page.latex import escape

Use = tuple[str, str]
"""A kind, such as scheduler, traces or model, and a name."""
MODELS = {
    "engine": ("hetsim.silicon.engines", "constants of the serving engine (to measured servers)"),
    "training": ("hetsim.formulas.training", "the share of peak in training steps (to published steps on A100)"),
    "profile": ("hetsim.workload.costs.profiles", "times of a profile (to measurements)"),
}
"""Keys of scenarios -> the module with the reference, and what of the model was fitted."""
_SENTENCE = re.compile(r"References?: (.*?)(?:(?<!\bal)(?<!e\.g)\.(?=\s+[^\s(]|$)|\n\s*\n|\Z)", re.DOTALL)
_YEAR = re.compile(r"\(([^()]*\b[12]\d{3}\b[^()]*)\)")
_NAME = r"(?:[A-Z]\w+ (?=d[ae] ))?(?:(?:de|da|van|von) )*[^\W\d_a-z][\w'’-]+"
_WORK = re.compile(
    rf"(?:^|(?<=[a-z.:\"'`,] ))({_NAME}(?:, {_NAME})*(?: and {_NAME})?(,? et al\.)?), "
    rf"((?!{_NAME} and {_NAME}$)[A-Z\d].*)$"
)
"""Authors and title: the rule of `Gu, Shin et al., Tiresias: A GPU Cluster Manager`."""


class Work(NamedTuple):
    """A published work."""

    authors: tuple[str, ...]
    title: str
    year: str
    venue: str

    @property
    def key(self) -> str:
        """The key of its entry, such as `gu2019tiresiasgpu`."""
        words = "".join(re.findall(r"\b(?!The\b)[A-Z]\w+", self.title)[:2])
        plain = unicodedata.normalize("NFKD", f"{self.authors[0].split()[-1]}{self.year}{words}")
        return re.sub(r"[^a-z0-9]", "", plain.lower())


def works_in(docstring: str) -> tuple[list[Work], str]:
    """The works that a docstring refers to, and its words."""
    sentences = [" ".join(text.split()) for text in _SENTENCE.findall(docstring)]
    return [work for text in sentences for work in _works(text)], "; ".join(sentences)


def _works(text: str) -> Iterator[Work]:
    end = 0
    for match in _YEAR.finditer(text):
        before, end = text[end : match.start()].rpartition("; ")[2].strip(" ,:"), match.end()
        for inner in match[1].split("; "):
            if (stated := re.match(r"(.*?),? ?\b([12]\d{3})\b", inner)) is None:
                continue
            venue, work = stated[1], _WORK.search(before)
            if work is None and (work := _WORK.search(venue)) is None:
                continue
            authors = re.split(", | and ", work[1].removesuffix(work[2] or "")) + ["others"] * bool(work[2])
            title, named = work[3], re.search(r"[A-Z][\w-]*$", before)
            if work.string is venue:  # Gavel (Narayanan et al., OSDI 2020); (Cohen, Single Server Queue, 1968)
                title, _, venue = title.partition(", ") if " " in title or named is None else (named[0], "", title)
            yield Work(tuple(authors), title, stated[2], venue)
            if work.string is before:
                break


def used_in(scenario: Any, key: str = "", in_policy: bool = False) -> Iterator[Use]:
    """The policies, arrivals, readers and models that a scenario names, repeated ones too."""
    if isinstance(scenario, Mapping):
        for inner, value in scenario.items():
            yield from [("model", inner)] if inner in MODELS and not isinstance(value, bool) else []
            is_policy = in_policy or inner == "policy" or inner in registry.POLICY_KINDS
            yield from used_in(value, key if inner == "name" else str(inner), is_policy)
    elif isinstance(scenario, list):
        for value in scenario:
            yield from used_in(value, key, in_policy)
    elif isinstance(scenario, str):
        kinds = ("arrivals",) if key == "process" else ("traces", "clusters") if key == "format" else ()
        yield from ((kind, scenario) for kind in kinds if scenario in registry.table(kind))
        known = [kind for kind in registry.POLICY_KINDS if in_policy and scenario in registry.policies(kind)]
        yield from ((kind, scenario) for kind in ([key] if key in known else known[:1]))


def bibliography(uses: Iterable[Use]) -> tuple[str, dict[Use, list[str]]]:
    """Entries of BibTeX, with comments on what is missing, and the keys by use."""
    works: dict[str, Work] = {}
    keys: dict[Use, list[str]] = {}
    missing = ""
    for use in dict.fromkeys(uses):
        cited, words = works_in(_docstring(*use))
        keys[use] = list(dict.fromkeys(work.key for work in cited))
        for work in cited:
            works[work.key] = max(works.get(work.key, work), work, key=lambda one: len(one.authors) + len(one.title))
        if not cited:
            missing += f"% {' '.join(use)}: {visible_lines(words or 'no reference is stated').replace('@', '(at)')}\n"
    return "".join(map(_entry, works.values())) + missing, keys


def _entry(work: Work) -> str:
    authors = " and ".join(f"{{{escape(name)}}}" if " " in name else escape(name) for name in work.authors)
    fields = {"author": authors, "title": f"{{{escape(work.title)}}}", "howpublished": escape(work.venue)}
    lines = "".join(f"  {name} = {{{text}}},\n" for name, text in {**fields, "year": work.year}.items() if text)
    return f"@misc{{{work.key},\n{lines}}}\n\n"


def _docstring(kind: str, name: str) -> str:
    """The docstring with the reference: its own, or that of its file."""
    if kind == "model":
        return import_module(MODELS[name][0]).__doc__ or ""
    try:
        item = registry.policy(kind, name) if kind in registry.POLICY_KINDS else registry.entry(kind, name)
    except (HetsimError, ImportError, AttributeError):  # of a package that is not here
        return ""
    own = item.__doc__ or ""
    return own if _SENTENCE.search(own) else getattr(inspect.getmodule(item), "__doc__", None) or ""
