"""Plain language: a task, job, node, policy or request is "it" in what the sources say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("policies", "sim", "docs", "notebooks", "benchmarks", "scenarios")
"""Where these words are not used, in code, docstrings, comments, messages and pages."""
WORDS = re.compile(r"\b(?:who|whom|whoever|whomever|nobody|everybody|somebody|he|him|his|himself)\b", re.IGNORECASE)
PERSONS = re.compile(r"[Uu]sers? who|, He, |\(He[ ,]|it is you who|people, many of whom|Trystram, who prove"
                     r"|Customers who think|owner who sells|clients? who"
                     r"|who may send what|or \"nobody\"|\"usr\", \"who\"|cards;who;kind|row\[\"who\"\]")  # fmt: skip
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
