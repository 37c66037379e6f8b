"""Plain language: a task, job, node, policy or request is "it" in what the sources say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("policies", "sim/policy")
"""Folders that are free of these words, in code, docstrings, comments and messages; one more with every clean-up."""
WORDS = re.compile(
    r"\b(?:who|whom|whose|whoever|whomever|nobody|everybody|somebody|anybody|he|him|his|himself)\b", re.IGNORECASE
)
EXCEPT = {
    "policies/orders.py": {"He, Bao, Xie": 2},  # an author
    "policies/dynamic/slurm_multifactor.py": {'or "nobody"': 1},  # the Unix user of a task without one
    # Names of variables and of a parameter:
    "policies/hybrid/semi_static.py": {"seconds, everybody =": 1, "mean < everybody": 1},
    "policies/prediction/durations.py": {"everybody": 8},
    "sim/policy/contract.py": {"who: Task | str": 1},
}
"""By file: quotations and names that may contain such a word, and how often each stands there."""


def found(text: str, quoted: dict[str, int]) -> list[str]:
    """Lines with such a word outside of what is quoted."""
    for quotation in quoted:
        text = text.replace(quotation, "·" * len(quotation))
    return [f"{number}: {line.strip()}" for number, line in enumerate(text.splitlines(), 1) if WORDS.search(line)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_tasks_and_nodes_are_not_persons(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    bad = []
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        bad += [f"{name}:{line}" for line in found(path.read_text(encoding="utf-8"), EXCEPT.get(name, {}))]
    assert not bad, 'say "it" or "they", or name the thing (a task that ...):\n' + "\n".join(bad)


def test_exceptions_are_as_many_as_listed() -> None:
    for name, quoted in EXCEPT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert {quotation: text.count(quotation) for quotation in quoted} == quoted, name


@pytest.mark.parametrize("line", [
    '"""Whom a limit keeps blocks nobody."""', "# who waits", 'raise ValueError("a task whose mode")', "Whoever",
])  # fmt: skip
def test_such_words_are_found(line: str) -> None:
    assert found(f"x = 1\n{line}\n", {"somebody else": 1}) == [f"2: {line}"]


def test_parts_of_words_are_not_meant() -> None:
    assert not found("the whole, this one, where, help, whose_turn = 1", {})
