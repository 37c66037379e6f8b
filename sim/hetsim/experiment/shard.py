"""Shards: parts of a study's runs for several machines (`--shard 2/8`).

The machines share a folder.  The position of a run in the study alone determines its shard, so that shards need no
server and no communication.  A shard has only runs that are needed whatever the results of other runs: all of a fixed
number of replications, the minimum number for a precision, the first stage of a search.  The same command without a
shard executes the other runs and writes the tables.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from hetsim.errors import UsageError
from hetsim.experiment.options import StudyOptions
from hetsim.experiment.study import Replicates, Study

Item = TypeVar("Item")


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count` parts."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parse a text such as `2/8`; UsageError if it is not a shard."""
        match = re.fullmatch(r"\s*(\d{1,7})\s*/\s*(\d{1,7})\s*", text)
        index, count = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= index <= count:
            raise UsageError(f'a shard must be INDEX/COUNT, such as 2/8 (the first is 1/8); got "{text}"')
        return cls(index, count)

    def items_of(self, items: Iterable[Item]) -> Iterator[Item]:
        return islice(items, self.index - 1, None, self.count)


def part_of(options: StudyOptions) -> Shard | None:
    """Return the shard that the options ask for, or None."""
    return None if options.shard is None else Shard.parse(options.shard)


@dataclass(frozen=True)
class ShardReport:
    """Counts of a shard's runs: `made` now, stored before (`there`), and `failed`."""

    shard: Shard
    made: int
    there: int
    failed: int

    @property
    def sentence(self) -> str:
        runs = f"{self.made:,} run{'s' if self.made != 1 else ''} made"
        failed = f" ({self.failed:,} failed)" if self.failed else ""
        return (
            f"shard {self.shard.index}/{self.shard.count}: {runs}{failed}, {self.there:,} found; the same command "
            "without --shard makes the remaining runs and the tables"
        )

    def to_json(self) -> dict[str, object]:
        return {
            "shard": f"{self.shard.index}/{self.shard.count}", "made": self.made, "there": self.there,
            "failed": self.failed,
        }  # fmt: skip


class ShardOver(Exception):  # noqa: N818
    """Raised when the requested shard of a study is finished."""

    def __init__(self, report: ShardReport):
        super().__init__(report.sentence)
        self.report = report


def make_part(study: Study, series: Iterable[Replicates], shard: Shard) -> ShardReport:
    """Run the shard's part of the replications that are certain to be needed."""
    single = (
        Replicates(one.case, 1, begin=one.begin + number, warmup=one.warmup)
        for one in series for number in range(one.whole, one.goal)
    )  # fmt: skip
    return make_all(study, list(shard.items_of(single)), shard)


def make_all(study: Study, series: list[Replicates], shard: Shard) -> ShardReport:
    """Run these series of replications, which all belong to the shard, and report."""
    before = study.found
    study.make(series)
    there = study.found - before
    outcomes = [outcome for one in series for outcome in one.taken]
    return ShardReport(shard, len(outcomes) - there, there, sum(outcome.values is None for outcome in outcomes))
