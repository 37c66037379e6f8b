"""Plain language: a task, job, node, policy or request is "it" in what the sources say; names say what a thing is.

    python tests/test_language.py       writes tests/language.csv where names and docstrings have become plainer
"""

import ast
import csv
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import syntax

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("policies", "sim", "docs", "notebooks", "benchmarks", "scenarios")
"""Where these words are not used, in code, docstrings, comments, messages and pages."""
WORDS = re.compile(r"\b(?:who|whom|whoever|whomever|nobody|everybody|somebody|he|him|his|himself)\b", re.IGNORECASE)
PERSONS = re.compile(r"[Uu]sers? who|, He, |\(He[ ,]|it is you who|people, many of whom|Trystram, who prove"
                     r"|Customers who think|owner who sells|clients? who"
                     r"|who may send what|or \"nobody\"|usr who uname|cards;who;kind|row\[\"who\"\]")  # fmt: skip
"""Persons: users, owners, customers of a shop, authors; columns of logs that name users."""


def found(text: str) -> list[str]:
    """Lines with such a word of anything but persons."""
    text = PERSONS.sub(lambda person: "·" * len(person[0]), text)
    return [f"{number}: {line.strip()}" for number, line in enumerate(text.splitlines(), 1) if WORDS.search(line)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_tasks_and_nodes_are_not_persons(folder: str) -> None:
    files = [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".md", ".yaml")]
    assert files
    bad = [f"{path.relative_to(ROOT).as_posix()}:{line}" for path in files
           for line in found(path.read_text(encoding="utf-8"))]  # fmt: skip
    assert not bad, 'say "it" or "they", or name the thing (a task that ...):\n' + "\n".join(bad)


@pytest.mark.parametrize("line", [
    '"""Whom a limit keeps blocks nobody."""', "# who waits", 'raise ValueError("a task who")', "Whoever",
])  # fmt: skip
def test_such_words_are_found(line: str) -> None:
    assert found(f"x = 1\n{line}\n") == [f"2: {line}"]


def test_parts_of_words_are_not_meant() -> None:
    assert not found("the whole, this one, where, help, whose_turn = 1; users who wait")


# Pages ----------------------------------------------------------------------------------------------------------

ODD = re.compile(r"\b(?:beside|anew|so many)\b|(?<!there )\b(?:is|are) no (?!longer\b|more\b|less\b)", re.IGNORECASE)
"""Better: next to; again; the number of; is not a."""
BLOCKS = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def odd(text: str) -> list[str]:
    """Lines of a page with a word of `ODD` outside its code."""
    text = BLOCKS.sub(lambda code: "\n" * code[0].count("\n") or "·", text)
    return [f"{number}: {line.strip()}" for number, line in enumerate(text.splitlines(), 1) if ODD.search(line)]


def test_pages_are_in_plain_words() -> None:
    """Pages of the reference are counted with the docstrings that they are made from."""
    pages = [path for path in WRITTEN if "reference" not in path.parts]
    assert len(pages) > 30
    bad = [f"{path.relative_to(ROOT)}:{line}" for path in pages for line in odd(path.read_text(encoding="utf-8"))]
    assert not bad, "say: next to, again, the number of, is not a ...\n" + "\n".join(bad)


def test_odd_words_are_seen() -> None:
    lines = ["It lies beside it.", "It runs anew.", "Of so many tasks", "That is no number."]
    assert odd("\n".join(lines)) == [f"{number}: {line}" for number, line in enumerate(lines, 1)]
    assert not odd("There is no bound, it is no longer, where there are no jobs; `is no number`\n```\nbeside\n```\n")


# Names and docstrings, counted by file ------------------------------------------------------------------------------

COUNTS = ROOT / "tests" / "language.csv"
"""What was there when counting began, by file and kind; `python tests/test_language.py` writes what has become less."""
PERSON_PARTS = frozenset(
    {"who", "whom", "whoever", "nobody", "everybody", "somebody", "anybody", "he", "him", "his", "himself"}
)
BOUND_PARTS = frozenset({"most", "least"})
BARE = frozenset({"found", "of", "told", "left", "known", "whole", "held"})
FIELD = re.compile(r"^(least_outstanding|least_contention|least_loaded|least_squares|least_slack|_?LeastOutstanding)$")
"""Names of policies and of the field."""


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def names_of(nodes: syntax.Nodes) -> Iterator[str]:
    """Names that a file gives: functions, classes and variables; keyword parameters are free."""
    for kind in DEFINITIONS:
        yield from (node.name for node in nodes.get(kind, ()))
    yield from (node.id for node in nodes.get(ast.Name, ()) if isinstance(node.ctx, ast.Store))


def docstrings(nodes: syntax.Nodes) -> list[str]:
    return [text for kind in (*DEFINITIONS, ast.Module) for node in nodes.get(kind, ())
            if (text := ast.get_docstring(node))]  # fmt: skip


def described(nodes: syntax.Nodes) -> list[str]:
    """Docstrings, and the strings below fields and keys."""
    values = [node.value for node in nodes.get(ast.Expr, ())]
    return [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]


@cache
def parts_of(name: str) -> frozenset[str]:
    """The words of a name, small."""
    return frozenset(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


def counted(nodes: syntax.Nodes) -> dict[str, int]:
    """How often a file has each kind of what is to go; kinds that it has not are left out."""
    names = [(name, parts_of(name)) for name in names_of(nodes)]
    texts = docstrings(nodes)
    lines = [text.splitlines()[0] for text in texts]
    kinds = {
        "bare name": sum(name in BARE for name, _ in names),
        "person in a name": sum(bool(parts & PERSON_PARTS) for _, parts in names),
        "most or least in a name": sum(bool(parts & BOUND_PARTS) and not FIELD.match(name) for name, parts in names),
        "docstring is a question": sum(bool(re.match(r".*\?\s*$", text, re.M)) for text in described(nodes)),
        "docstring begins with What": sum(line.startswith("What ") for line in lines),
        "first line above 80": sum(len(line) > 80 for line in lines),
        "odd word": sum(len(ODD.findall(text)) for text in texts),
    }
    return {kind: count for kind, count in kinds.items() if count}


syntax.look("language", counted)


def now_counted() -> dict[tuple[str, str], int]:
    rows = ((path.relative_to(ROOT).as_posix(), counts) for path, counts in syntax.seen("language").items())
    return {(name, kind): count for name, counts in rows for kind, count in counts.items()}


def allowed() -> dict[tuple[str, str], int]:
    with COUNTS.open(encoding="utf-8", newline="") as stream:
        return {(row["file"], row["kind"]): int(row["count"]) for row in csv.DictReader(stream)}


@pytest.mark.xdist_group("sources")
def test_names_and_docstrings_only_become_plainer() -> None:
    """No file has more of them than the table says; a file that is new has none."""
    most = allowed()
    more = {key: (most.get(key, 0), count) for key, count in now_counted().items() if count > most.get(key, 0)}
    assert not more, f"say what it is (CONTRIBUTING.md, Rules); file and kind, allowed and counted: {more}"


def test_what_is_counted() -> None:
    code = f'''"""Why?"""
def nobody_leaves(most_jobs, found):
    """What {"long " * 20}line beside it."""
    left = least_outstanding = 1
    """Is it known?"""
'''
    kinds = ("bare name", "person in a name", "docstring is a question", "docstring begins with What")
    counts = dict.fromkeys((*kinds, "first line above 80", "odd word"), 1)
    assert counted(syntax.by_class(ast.parse(code))) == {**counts, "docstring is a question": 2}


def write() -> None:
    """Write the table again; no count rises."""
    before, now = allowed() if COUNTS.exists() else {}, now_counted()
    with COUNTS.open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream, lineterminator="\n")
        rows.writerow(("file", "kind", "count"))
        for key, count in sorted(now.items()):
            rows.writerow((*key, min(count, before.get(key, count) if before else count)))


if __name__ == "__main__":
    write()
