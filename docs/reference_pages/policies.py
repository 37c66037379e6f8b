"""The pages of policies: the text at the head of each file, and the parameters of each policy."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from reference_pages.markdown import code, generated, prose, row, table

from hetsim import registry
from hetsim.cli.listing import parameters, summary

KINDS = {
    "scheduler": "Schedulers", "placement": "Placements", "admission": "Admission", "batching": "Batching",
    "routing": "Routing", "scale": "Scaling", "eviction": "Eviction", "predictor": "Predictors",
}  # fmt: skip
LABEL = re.compile(
    r"(?:^|(?<=[.;:)] )|(?<=\n))(References?|Weakness(?:es)?|Cost(?: of all)?|Proven|Limits):", re.MULTILINE
)
PROMISE = re.compile(
    r"^Ratio |[Nn]o (constant )?ratio|^Proven:|[Nn]othing is proven|(times|twice) the (least|optim|fewest|minimum)|"
    r"times its optimum|same bound|at most \d/\d|competitive|^No guarantee|[Ll]east mean wait among|"
    r"optimal mean response|is optimal|never above that|longest queue is about|has the least greatest|"
    r"never needs more energy|[Ll]east makespan of all|envy|starts after the shadow|never later than|"
    r"no planned task starts later|makespan is at most"
)
"""Sentences that state a guarantee of a policy, or that there is none."""
OF_PROOFS = (
    "Weakness", "Cost", "So ", "A type ", "Let ", "Decides", "Long and medium", "What makes", "W ≤", "The cheapest",
    "A job may", "The program", "YES", "The least T", "On the CPUs",
)  # fmt: skip
"""Beginnings of sentences that are part of a proof, or state no guarantee."""


FOLDERS = {
    "orders": "Orders of a queue", "dynamic": "Dynamic schedulers, which decide during the run",
    "static": "Static schedulers, which plan before the run", "hybrid": "Hybrid schedulers, which plan and decide",
    "learning": "Learned policies",
    "placements": "Placements", "placement_rules": "Placements by a score", "admission": "Admission",
    "batching": "Batching", "routing": "Routing", "scaling": "Scaling", "prediction": "Predictors",
}  # fmt: skip
"""Folders (or files) of `hetsim_policies`, each with a page."""


def folder_of(place: str) -> str:
    """Return the folder or file of `hetsim_policies` that has a policy."""
    return "orders" if place.startswith("hetsim.") else place.partition(":")[0].split(".")[1]


def policies_pages() -> dict[str, list[str]]:
    """Return file names and lines of the overview of all policies and of the page of each folder."""
    shipped = importlib.import_module("hetsim_policies").CATALOGUE
    pages = {"policies.md": list(_overview(shipped))}
    for folder, title in FOLDERS.items():
        pages[f"policies/{folder}.md"] = list(_folder(shipped, folder, title))
    return pages


def _overview(shipped: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    yield "# Policies"
    yield from generated("the registry and the text at the head of each policy's file")
    yield "`hetsim list policies` prints the names, first sentences and parameters of all policies, including those"
    yield "of installed packages. The column *guarantee* states what is proven of a policy, with the conditions; it"
    yield "is empty if the policy's text states no guarantee. Under `policy:` a parameter is written next to the"
    yield "name of its policy: `policy: {scheduler: {name: sjf, discipline: skip}}`."
    for kind, heading in KINDS.items():
        yield f"\n## {heading}\n"
        yield from table("name", "what it is", "guarantee", "reference")
        for name in sorted(shipped[kind]):
            item = registry.policy(kind, name)
            promise = " ".join(guarantee(head(item)))
            source = reference(head(item))
            link = f"policies/{folder_of(shipped[kind][name])}.md#{kind}-{name}"
            yield row(f"[`{name}`]({link})", prose(summary(item)), prose(promise), prose(source))


def _folder(shipped: Mapping[str, Mapping[str, str]], folder: str, title: str) -> Iterator[str]:
    """Write the page of a folder: its policies, by the families that the folder's docstring names."""
    yield f"# {title}"
    yield from generated("the registry and the text at the head of each policy's file")
    there = [(kind, name, place) for kind in KINDS for name, place in sorted(shipped[kind].items())
             if folder_of(place) == folder]  # fmt: skip
    yield "[All policies](../policies.md) lists the policies of all pages in one table."
    text = importlib.import_module(f"hetsim_policies.{folder}").__doc__ or ""
    for family, listed in re.findall(r"^(\S[^\n]*):\n((?:    .*\n?)+)", text, re.MULTILINE) or [("", "")]:
        if family:
            yield f"\n## {family}"
        files = re.findall(r"^    (\w+)  ", listed, re.MULTILINE)
        for file in files or [""]:
            for kind, name, place in there:
                if not file or place.partition(":")[0].endswith(f".{file}"):
                    yield from _policy(kind, name)


def _policy(kind: str, name: str) -> Iterator[str]:
    item = registry.policy(kind, name)
    given = parameters(kind, item)
    yield f'\n<h3 id="{kind}-{name}">{name}</h3>\n'
    for paragraph in labeled(head(item), given):
        yield paragraph + "\n"
    if given:
        says = said_of_parameters(item if inspect.isclass(item) or kind != "scheduler" else _lists(), given)
        yield from table("parameter", "default", "meaning")
        for key, default in given.items():
            shown = "required" if default is None else code(default)
            yield row(code(key), shown, prose(says.get(key, "see the text above")))
        yield ""
    yield f"Source: `{inspect.getmodule(item).__name__.replace('.', '/')}.py`."  # type: ignore[union-attr]


def _lists() -> Any:
    from hetsim.policy.lists import ListScheduler

    return ListScheduler


def head(item: Any) -> str:
    """Return the text at the head of a policy's file; in a file of several policies, its own text and the cost."""
    module = inspect.getmodule(item)
    of_all = inspect.cleandoc(module.__doc__ or "")  # type: ignore[union-attr]
    own = inspect.cleandoc(item.__doc__ or "")
    if re.search(r"Reference", of_all) or not re.search(r"Reference", own):
        return of_all
    shared = "" if "Cost:" in own else cost_of_all(inspect.getmodule(item), of_all)
    return f"{own}\n\n{shared}" if shared else own


def cost_of_all(module: Any, of_all: str) -> str:
    """Return the sentence on the cost of all policies in a file; orders in other files have that of the list."""
    if module.__name__ == "hetsim.policy.lists":
        of_all = inspect.cleandoc(importlib.import_module("hetsim_policies.orders").__doc__ or "")
    found = re.search(r"Cost(?: of all)?:.*?(?=\n\n|\Z)", of_all, re.DOTALL)
    return found[0].replace("Cost of all:", "Cost:") if found else ""


def labeled(text: str, names: Mapping[str, Any]) -> Iterator[str]:
    """Split a head into paragraphs; a label (Reference, Weakness, Cost) begins a paragraph.

    Lines about parameters are omitted, since a table lists the parameters.
    """
    line_of_one = rf"(?m)^({'|'.join(map(re.escape, names)) or '(?!)'}): .*(?:\n {{4,}}.*)*"
    for block in re.sub(line_of_one, "", text).split("\n\n"):
        line = " ".join(block.split())
        places = [match.start() for match in LABEL.finditer(line)]
        for start, end in zip([0, *places], [*places, len(line)], strict=True):
            part = line[start:end].strip()
            if part:
                yield LABEL.sub(lambda found: f"**{found[1]}:**", prose(part), count=1)


def sentences(text: str) -> Iterator[str]:
    for block in text.split("\n\n"):
        yield from re.split(r"(?<=[.])\s+(?=[A-ZΑ-Ω`\"*])", " ".join(block.split()))


def guarantee(text: str) -> list[str]:
    """Return the sentences of a head that state a guarantee, at most three, also from its reference."""
    found = []
    for one in sentences(text):
        if one.startswith(OF_PROOFS):
            continue
        if re.match("References?:", one):
            said = re.search(r"\(\d{4}[^)]*\)[^:.,;]*[:.,;] (.*)", one) or re.search(r"\d{4}\)[:.,;] (.*)", one)
            one = said[1] if said else ""
        if PROMISE.search(one):
            found.append(one[0].upper() + one[1:])
    return found[:3]


def reference(text: str) -> str:
    """Return the first work that a head refers to, up to its year; empty if the head names none."""
    line = " ".join(text.split())
    found = re.search(r"References?: (.*?\d{4}[^()]*\)|[^.]*)", line)
    return found[1] if found else ""


def said_of_parameters(item: Any, names: Mapping[str, Any]) -> dict[str, str]:
    """Return the meanings of parameters from docstring lines of the form `name: meaning`."""
    texts = [inspect.getdoc(one) or "" for one in (item.__mro__ if inspect.isclass(item) else [item])]
    module = inspect.getmodule(item)
    texts.append(inspect.cleandoc((module.__doc__ if module else "") or ""))
    texts.append(inspect.getdoc(_lists()) or "")
    found: dict[str, str] = {}
    several = rf"[.;?] +(?=(?:{'|'.join(map(re.escape, names))}): )"
    for text in texts:
        text = re.sub(several, "\n", text)  # several on a line
        for match in re.finditer(r"(?m)^(\w+(?:, \w+)*)(?::|  +) *(.*(?:\n {4,}.*)*)", text):
            for name in re.split(r", ", match[1]):
                if name in names:
                    found.setdefault(name, " ".join(match[2].split()))
    return found
