"""The works behind a scenario, as its policies, readers and models name them in their docstrings.

A docstring says `Reference: Gu et al., Tiresias: A GPU Cluster Manager (NSDI 2019), and ...; ...`.  Of its first
sentence every work with authors, a title and a year becomes an entry of BibTeX; what names none becomes a comment.
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

Use = tuple[str, str]
"""A kind, such as scheduler, traces or model, and a name."""

MODELS = {
    "engine": ("hetsim.silicon.engines", "constants of the serving engine, fitted to measured servers"),
    "training": ("hetsim.formulas.training", "the share of peak in training steps, fitted to published steps on A100"),
    "profile": ("", "times from a profile of measurements"),
}
"""Keys of scenarios -> the module with the reference, and what of the model was fitted."""

_PASSAGE = re.compile(r"References?: (.*?)(?=\n\s*\n|\Z)", re.DOTALL)
_SENTENCE = re.compile(r"(?<!\bal)(?<!e\.g)\.(?=\s+[^\s(]|$)")
_YEAR = re.compile(r"\(([^()]*\b[12]\d{3}\b[^()]*)\)")
_WORD = r"(?:[A-Z][\w'’-]* )?(?:(?:de|da|van|von|der) )*[^\W\d_a-z][\w'’-]+"
_AUTHORS = re.compile(rf"(?:^|(?<= )){_WORD}(?: and {_WORD})*(?: et al\.)?$|^et al\.$")


_BEFORE = frozenset("abcdefghijklmnopqrstuvwxyz\"'`")
"""How the word before the first author begins: the packing of Weng et al."""
SMALL = frozenset(("a", "an", "the", "on", "of", "in", "for", "and"))


class Work(NamedTuple):
    """A published work."""

    authors: tuple[str, ...]
    title: str
    year: str
    venue: str

    @property
    def key(self) -> str:
        """The key of its entry, such as `gu2019tiresiasgpu`."""
        words = [word for word in re.findall(r"\w+", self.title) if word.lower() not in SMALL]
        plain = unicodedata.normalize("NFKD", f"{self.authors[0].split()[-1]}{self.year}{''.join(words[:2])}")
        return re.sub(r"[^a-z0-9]", "", plain.encode("ascii", "ignore").decode().lower())


def works_in(docstring: str) -> tuple[list[Work], str]:
    """The works of the first sentences after `Reference:`, and these sentences."""
    sentences = [_SENTENCE.split(" ".join(match[1].split()))[0] for match in _PASSAGE.finditer(docstring)]
    return [work for text in sentences for work in _works(text)], "; ".join(sentences)


def _works(text: str) -> Iterator[Work]:
    end = 0
    for match in _YEAR.finditer(text):
        before, end = text[end : match.start()].rpartition("; ")[2].strip(" ,:"), match.end()
        for inner in match[1].split("; "):
            year = re.search(r"\b[12]\d{3}\b", inner)
            if year is None:
                continue
            venue = inner[: year.start()].strip(" ,")
            authors, title = _split(before)
            if authors:
                yield Work(authors, title, year[0], venue)
                break
            authors, rest = _split(venue)  # Gavel (Narayanan et al., OSDI 2020); (Cohen, Single Server Queue, 1968)
            name = re.search(r"[A-Z][\w-]*$", before)
            title, _, venue = rest.partition(", ") if " " in rest or name is None else (name[0], "", rest)
            if authors:
                yield Work(authors, title, year[0], venue)


def _split(text: str) -> tuple[tuple[str, ...], str]:
    """Authors and title of `Gu, Shin et al., Tiresias: A Manager`; none if it has not both."""
    parts = text.split(", ")
    authors: list[str] = []
    complete = False  # after "and" or "et al."
    for at, part in enumerate(parts):
        match = _AUTHORS.search(part)
        names = "" if match is None else match[0]
        goes_on = match is not None and not match.start() and not complete
        closes = " and " in names or names.endswith("et al.")
        if authors and not (goes_on and (at + 1 < len(parts) or closes)):
            if part[0].isupper() or part[0].isdigit():
                return tuple(authors), ", ".join(parts[at:])
            authors, complete = [], False
        if match is None or (match.start() and part[: match.start()].split()[-1][0] not in _BEFORE):
            continue
        authors += [name for name in names.removesuffix("et al.").strip().split(" and ") if name]
        authors += ["others"] * names.endswith("et al.")
        complete = closes
    return (), ""


def used_in(scenario: Any, key: str = "", in_policy: bool = False) -> Iterator[Use]:
    """The policies, arrivals, readers and models that a scenario names, repeated ones too."""
    if isinstance(scenario, Mapping):
        for inner, value in scenario.items():
            if inner in MODELS and not isinstance(value, bool):
                yield "model", inner
            name = key if inner == "name" else str(inner)
            yield from used_in(value, name, in_policy or inner == "policy" or inner in registry.POLICY_KINDS)
    elif isinstance(scenario, list):
        for value in scenario:
            yield from used_in(value, key, in_policy)
    elif isinstance(scenario, str):
        kinds = ("arrivals",) if key == "process" else ("traces", "clusters") if key == "format" else ()
        yield from ((kind, scenario) for kind in kinds if scenario in registry.table(kind))
        if in_policy:
            known = [kind for kind in registry.POLICY_KINDS if scenario in registry.policies(kind)]
            yield from ((kind, scenario) for kind in ([key] if key in known else known[:1]))


def bibliography(uses: Iterable[Use], own: str) -> tuple[str, dict[Use, list[str]]]:
    """The text of `refs.bib`, and the keys of the works that each use names.

    own: the entry of hetsim itself.
    """
    works: dict[str, Work] = {}
    keys: dict[Use, list[str]] = {}
    missing = []
    for use in dict.fromkeys(uses):
        cited, sentences = works_in(_docstring(*use))
        keys[use] = list(dict.fromkeys(work.key for work in cited))
        for work in cited:
            works[work.key] = max(works.get(work.key, work), work, key=lambda one: len(one.authors) + len(one.title))
        if not cited:
            said = visible_lines(sentences or "no reference is stated").replace("@", "(at)")
            missing.append(f"% {' '.join(use)}: {said}\n")
    return "".join([own, *map(_entry, works.values()), *missing]), keys


def _docstring(kind: str, name: str) -> str:
    """The docstring with the reference: its own, or that of its file."""
    if kind == "model":
        return (MODELS[name][0] and import_module(MODELS[name][0]).__doc__) or ""
    try:
        item = registry.policy(kind, name) if kind in registry.POLICY_KINDS else registry.entry(kind, name)
    except (HetsimError, ImportError, AttributeError):  # of a package that is not here
        return ""
    own = item.__doc__ or ""
    return own if _PASSAGE.search(own) else getattr(inspect.getmodule(item), "__doc__", None) or ""


def _entry(work: Work) -> str:
    """An entry of BibTeX; `hetsim.page.latex` has the escapes."""
    from hetsim.page.latex import escape

    fields = {"author": " and ".join(f"{{{escape(name)}}}" if " " in name else escape(name) for name in work.authors),
              "title": f"{{{escape(work.title)}}}", "howpublished": escape(work.venue), "year": work.year}  # fmt: skip
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items() if value)
    return f"@misc{{{work.key},\n{lines}}}\n\n"
