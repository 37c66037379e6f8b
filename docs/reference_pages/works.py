"""The works that docstrings refer to, as entries of BibTeX: sim/hetsim/page/works.bib, of which papers take theirs.

A docstring says `Reference: Gu et al., Tiresias: A GPU Cluster Manager (NSDI 2019), and ...; ...`.  Of that sentence
every work with authors, a title and a year becomes an entry; what names none becomes a comment.
"""

from __future__ import annotations

import inspect
import re
import unicodedata
from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

import hetsim_policies
from hetsim import registry
from hetsim.page.latex import escape

MODULES = {
    "engine": "hetsim.silicon.engines", "training": "hetsim.formulas.training",
    "profile": "hetsim.workload.costs.profiles",
}  # fmt: skip
"""The modules that name the references of models (`hetsim.page.paper.MODELS`)."""

_SENTENCE = re.compile(r"References?: (.*?)(?:(?<!\bal)(?<!e\.g)\.(?=\s+[^\s(]|$)|\n\s*\n|\Z)", re.DOTALL)
_YEAR = re.compile(r"\(([^()]*\b[12]\d{3}\b[^()]*)\)")
_NAME = r"(?:[A-Z]\w+ (?=d[ae] ))?(?:(?:de|da|van|von) )*[^\W\d_a-z][\w'’-]+"
_WORK = re.compile(
    rf"(?:^|(?<=[a-z.:\"'`,] ))({_NAME}(?:, {_NAME})*(?: and {_NAME})?(,? et al\.)?), "
    rf"((?!{_NAME} and {_NAME}$)[A-Z\d].*)$"
)
"""Authors and title: the rule of `Gu, Shin et al., Tiresias: A GPU Cluster Manager`."""


_PRINTED_IN = re.compile(r"(.+), ([A-Z][^,]* \d+(?:\(\d+\))?)$")
"""A title with where it was printed: `Fail at Scale, ACM Queue 13(8)`."""


class Work(NamedTuple):
    """A published work."""

    authors: tuple[str, ...]
    title: str
    year: str
    venue: str
    system: str = ""

    @property
    def same(self) -> tuple[str, str, str]:
        """Equal for works that are cited by their whole title and by the name of their system alone."""
        name, colon, _ = self.title.partition(":")
        alone = self.system or (name if colon or " " not in name else self.title)
        return self.authors[0], self.year, alone.lower()

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
            if (printed := _PRINTED_IN.match(title)) is not None and not venue:
                title, venue = printed.groups()
            system, _, place = venue.rpartition(", ")  # (Gavel, OSDI 2020)
            system, venue = (system, place) if system.isalnum() else ("", venue)
            yield Work(tuple(authors), title, stated[2], venue, system)
            if work.string is before:
                break


def works_bib() -> Iterator[str]:
    """A block for each work: the names that cite it, and its entry; then names without."""
    works: dict[str, Work] = {}
    names: dict[str, list[str]] = {}
    missing = []
    found = [(name, *works_in(docstring)) for name, docstring in docstrings()]
    keys: dict[tuple[str, str, str], str] = {}
    for work in (work for _, cited, _ in found for work in cited if " " in work.title):
        keys.setdefault(work.same, work.key)
    for name, cited, words in found:
        for work in cited:
            key = keys.get(work.same, work.key)
            names.setdefault(key, []).append(name)
            works[key] = max(works.get(key, work), work, key=_told)
        if not cited:
            missing.append(f"% {name}: {words.replace('@', '(at)') or 'no reference is stated'}")
    for key, work in works.items():
        yield f"% {', '.join(dict.fromkeys(names[key]))}\n{entry(work)}"
    yield from missing


def _told(work: Work) -> tuple[bool, int]:
    """How much a work is told of: all its authors, and how much in all."""
    return work.authors[-1] != "others", len(work.authors) + len(work.title)


def docstrings() -> Iterator[tuple[str, str]]:
    """What ships, as `scheduler fcfs`, and the docstring with its reference: its own, or that of its file."""
    kinds = {kind: registry.table(kind) for kind in ("arrivals", "traces", "clusters")}
    for kind, table in {**hetsim_policies.CATALOGUE, **kinds}.items():
        for name, place in sorted(table.items()):
            if place.startswith("hetsim"):
                item = registry.load_object(place)
                own = item.__doc__ or ""
                module = inspect.getmodule(item)
                yield f"{kind} {name}", own if _SENTENCE.search(own) else module.__doc__ or ""  # type: ignore[union-attr]
    for name, place in MODULES.items():
        yield f"model {name}", import_module(place).__doc__ or ""


def entry(work: Work) -> str:
    """An entry of BibTeX."""
    # BibTeX reads `van Stee` as particle and name; of two names, `Ferreira da Silva`, the first is none of their own.
    compound = [name[0].isupper() and " " in name for name in work.authors]
    authors = " and ".join(f"{{{escape(name)}}}" if is_one else escape(name)
                           for name, is_one in zip(work.authors, compound, strict=True))  # fmt: skip
    fields = {"author": authors, "title": f"{{{escape(work.title)}}}", "howpublished": escape(work.venue)}
    lines = "".join(f"  {name} = {{{text}}},\n" for name, text in {**fields, "year": work.year}.items() if text)
    return f"@misc{{{work.key},\n{lines}}}"
