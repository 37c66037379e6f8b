"""Names of columns of job logs, and words in them, from `column_names.yaml`."""

import re
from dataclasses import dataclass

from hetsim.model.files import package_table

_TABLES = package_table(__file__, "column_names.yaml")

NAMES: dict[str, tuple[str, ...]] = {target: tuple(names.split()) for target, names in _TABLES["names"].items()}
"""Names that columns of logs have, without signs between words; the first is the surest."""

WIDTHS: tuple[str, ...] = tuple(_TABLES["widths"].split())
"""Names of columns with how many nodes or instances a job has."""


@dataclass(frozen=True)
class Words:
    """Words that identify a column: one of each set, and none of the last."""

    sets: tuple[frozenset[str], ...]
    none: frozenset[str] = frozenset()

    def match(self, words: frozenset[str]) -> bool:
        return not words & self.none and all(words & one for one in self.sets)


def _words(text: str) -> frozenset[str]:
    """The words of a text, in which `@asked` stands for those of a group."""
    return frozenset(re.sub(r"@(\w+)", lambda match: _TABLES["groups"][match[1]], text).split())


WORDS: dict[str, tuple[Words, ...]] = {
    target: tuple(Words(tuple(map(_words, one["sets"])), _words(one.get("none", ""))) for one in ways)
    for target, ways in _TABLES["words"].items()
}
"""By what words in their names columns may be known that have none of the names above."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PLURALS = re.compile(r"\b(?:n|num)?([GC])PUs?(?![a-z])|(?<=[a-z])([GC])PUs?(?![a-z])")


def words_of(name: str) -> frozenset[str]:
    """The words of a name: `jobSubmitTime` and `Job submit-time` have the same."""
    plain = _PLURALS.sub(lambda match: f"_{(match[1] or match[2]).lower()}pus_", name)
    return frozenset(word.casefold() for word in _WORD.findall(plain))


def by_words(target: str, name: str) -> bool:
    """Return True if the words of a name indicate this target."""
    words = words_of(name)
    return any(one.match(words) for one in WORDS.get(target, ()))
