"""Replications of a sweep's rows until a precision is reached, as `hetsim run` makes them for one scenario.

A row's replications count in their order, and whether they are enough is decided by those that count alone: so how many
a row has depends neither on who makes them nor on which are ready first.  Idle workers make further ones ahead, as far
as the spread seen so far makes them likely; those that turn out not to be needed are forgotten.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from sim.experiment.cache import Store
from sim.experiment.jobs import Amount, Outcome, Watch
from sim.experiment.sweep_runs import Job, Queue
from sim.results.replications import Replications
from sim.scenario.schema import LEAST_FOR_PRECISION


class Course:
    """The replications of one row.  `taken`: the outcomes that count, in order; of a row that is `done`, all.

    The first ten are made in any case; after one that failed there are no more.
    """

    def __init__(self, amount: Amount, job: Callable[[int], Job]):
        """job: of a replication."""
        self.amount, self.job = amount, job
        self.taken: list[Outcome] = []
        self.done = False
        self.early: dict[int, Outcome] = {}  # whose turn has not come
        self.stored: set[int] = set()  # those that need not be made
        self.sent = 0  # replications below are made, or somebody is at them
        self.likely = LEAST_FOR_PRECISION  # so many will do if the spread stays as it is
        self._runs = Replications()

    @property
    def certain(self) -> int:
        """So many are needed, whatever they give."""
        return len(self.taken) if self.done else max(LEAST_FOR_PRECISION, len(self.taken) + 1)

    def take(self) -> list[int]:
        """Count the outcomes whose turn has come; their numbers."""
        before = len(self.taken)
        while not self.done and len(self.taken) in self.early:
            outcome = self.early.pop(len(self.taken))
            self.taken.append(outcome)
            if outcome.values is not None:
                self._runs.add_values(outcome.values)
            if len(self.taken) >= LEAST_FOR_PRECISION:
                self._look()
        return list(range(before, len(self.taken)))

    def _look(self) -> None:
        """Are they enough, and if not, how many might be?"""
        assert self.amount.precision is not None
        count = len(self.taken)
        self.done = count == self.amount.most or self.failed or self.amount.enough(self._runs)
        if not self.done:
            found = self._runs.relative_half_width(self.amount.metric, self.amount.confidence)
            wanted = count * (found / self.amount.precision) ** 2
            self.likely = min(math.ceil(wanted), 2 * count, self.amount.most) if math.isfinite(wanted) else count + 1

    @property
    def failed(self) -> bool:
        return any(outcome.values is None for outcome in self.taken)

    @property
    def warnings(self) -> list[str]:
        """That the precision was not reached."""
        if self.failed:
            return []
        text, warns = self.amount.remark(self._runs)
        return [text] if warns else []


class Rounds(Queue):
    """The runs that courses need, one course after the other as long as there is one with a run to hand out.

    What the store has is not made again.  `there`: runs that it had; `going`: courses that were not done with these.
    """

    def __init__(self, courses: Iterable[Course], store: Store, watch: Watch | None = None):
        super().__init__(())
        self.store, self.watch = store, watch
        self.there = 0
        self.going: list[Course] = []
        for course in courses:
            self._look_up(course)
            self.there += len(course.stored)
            if not course.done:
                self.going.append(course)
        self._left = len(self.going)
        self._ready = deque(self.going)
        self._under_way: dict[str, tuple[Course, int]] = {}

    def _look_up(self, course: Course) -> None:
        """Take from the store what is needed for certain."""
        looked = 0
        while looked < course.certain:
            begin, looked = looked, course.certain
            for number in range(begin, looked):
                self._there(course, number)
            self._took(course)

    def _there(self, course: Course, number: int) -> bool:
        """Does the store have this replication?"""
        if number not in course.stored:
            found = self.store.get(course.job(number).run)
            if found is None:
                return False
            course.early[number] = found
            course.stored.add(number)
        return True

    def _took(self, course: Course) -> list[int]:
        """Count what can be counted; the replications that count from now on."""
        numbers = course.take()
        if self.watch is not None:
            for number in numbers:
                if number in course.stored:
                    self.watch.skipped(1)
                else:
                    self.watch.finished()
            if numbers and course.done:
                self.watch.skipped(course.amount.most - len(course.taken))
        return numbers

    def needed(self) -> Iterator[Job]:
        """Those that are to be made at least, before any was."""
        for course in self.going:
            numbers = range(len(course.taken), course.certain)
            yield from (course.job(number) for number in numbers if number not in course.stored)

    def next(self) -> Job | None:
        while self._ready:
            course = self._ready[0]
            if course.done or course.sent >= course.certain:
                self._ready.popleft()
            elif (job := self._hand_out(course)) is not None:
                return job
        return None

    def ahead(self) -> Job | None:
        going = [course for course, _ in self._under_way.values() if not course.done]
        while going := [course for course in going if course.sent < course.likely]:
            course = min(going, key=lambda one: one.sent - len(one.taken))
            if (job := self._hand_out(course)) is not None:
                return job
        return None

    def _hand_out(self, course: Course) -> Job | None:
        """The next replication of a course; None if the store has it."""
        number = course.sent
        course.sent += 1
        if self._there(course, number):
            self._took(course)
            self._left -= course.done
            return None
        job = course.job(number)
        self._under_way[job.run] = (course, number)
        return job

    def landed(self, job: Job, outcome: Outcome) -> list[tuple[Job, Outcome]]:
        course, number = self._under_way.pop(job.run)
        if course.done:
            return []  # it was made ahead for nothing
        course.early[number] = outcome
        counted = [(job, outcome)] if number < LEAST_FOR_PRECISION else []  # these are needed, whatever comes
        new = [one for one in self._took(course) if one >= LEAST_FOR_PRECISION and one not in course.stored]
        counted += [(course.job(one), course.taken[one]) for one in new]
        if course.done:
            self._left -= 1
        else:
            self._ready.appendleft(course)
        return counted
