"""Delays of jobs that share links, computed from each job's use of each link.

A `Stake` is a job's use of one link.  The delay of a job on one link follows `hetsim.formulas.contention`.  A job that
sends over several links at once is delayed by the slowest of them, and then uses the other links less.  Delays are
computed in two passes: first for each link by itself, then again with the first pass's delays of its jobs on their
other links.  A change on a link affects only the jobs on it and the jobs on the other links of those jobs.

If shared links connect at most `JOINT` jobs, these are solved jointly instead (`hetsim.formulas.contention`); a change
then affects all of them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from hetsim.formulas.contention import ALIKE, Contention, LinkDelays, delays, longest_delay, stretches
from hetsim.model.exchange import Use

JOINT = 10  # maximum number of connected jobs that are solved jointly: 2^10 states take 2 to 4 ms


class Stake:
    """A job's use of a shared link, in each communication phase of its training step."""

    __slots__ = ("member", "group", "spent", "share", "hidden")

    def __init__(self, member: Any, group: "ContendingJobs", phases: list[Use]):
        self.member = member  # its job, a `hetsim.engine.flight.contention.Member`: `alone`, `stakes` and `longest`
        self.group = group
        self.spent = sum(spent for _, spent, _ in phases)  # seconds of its step in which it uses the undelayed link
        # share of the link that it can use, a mean over its phases
        self.share = min(1.0, sum(seconds for seconds, _, _ in phases) / self.spent)
        # by phase: its fraction of `spent`, and the delay (s) that other work hides
        self.hidden = [(spent / self.spent, slack) for _, spent, slack in phases]

    def exposed(self, delay: float) -> float:
        """Return the seconds of a link's delay that the job's other work does not hide."""
        return sum([max(0.0, delay * share - slack) for share, slack in self.hidden])

    def met(self, second: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return probabilities, and delays (s) by other jobs; second: of the second pass."""
        row, table = self.group.first.rows[self.member], self.group.second if second else self.group.first.met
        return table.seen[row], table.delays[row]


@dataclass(slots=True, eq=False)
class ContendingJobs:
    """The jobs that contend for one link."""

    link: int
    rule: Contention
    members: list[Any] = field(default_factory=list)  # all jobs whose step crosses the link
    stakes: list[Stake] = field(default_factory=list)  # stakes of the members that other jobs can delay on this link
    first: "FirstPass" = None  # type: ignore[assignment]  # set for all links that a change affects
    # result of the second pass, cached until the jobs on a link of one of its jobs change
    kept: LinkDelays | None = None
    joint: bool = False  # True if its jobs were solved jointly with all jobs connected to them
    busy: float = 0.0  # seconds at full rate used since the last row
    since: float = 0.0
    row: int = -1  # position of its last row

    @property
    def second(self) -> LinkDelays:
        """Result of the second pass, which includes the jobs' delays on other links."""
        first, second = self.first, self.kept
        if second is None:
            elsewhere = [[one for one in _slow(stake.member) if one is not stake] for stake in self.stakes]
            second = first.met  # if no job is slowed on other links, the first pass is final
            if self.rule == "random" and (any(elsewhere) or np.ptp(first.share) > ALIKE):
                more = np.array([stake.member.longest for stake in self.stakes])
                caps = _caps(first, elsewhere) if any(elsewhere) else None
                second = delays(
                    first.own, first.spent, first.share, rule=self.rule, before=first.met, more=more, caps=caps
                )
            self.kept = second
        return second


class FirstPass:
    """First pass: delays of the jobs on one link, as if they used no other link."""

    def __init__(self, group: ContendingJobs):
        stakes = group.stakes
        parts = [(max(0.0, stake.member.alone - stake.spent), stake.spent, stake.share) for stake in stakes]
        self.own, self.spent, self.share = np.array(parts).T
        self.rows = {stake.member: row for row, stake in enumerate(stakes)}
        self.met = delays(self.own, self.spent, self.share, group.rule)
        self.slow = bool(self.met.delays[:, -1].max() > 0.0)  # True if any job delays another one on the link
        longer = self.spent + (self.met.seen * self.met.delays).sum(axis=1)
        self.sending: list[float] = (longer / (self.own + longer)).tolist()  # share of its time that each job sends
        self.deviation = [math.sqrt(sending * (1.0 - sending)) for sending in self.sending]
        self.variance = sum([one**2 for one in self.deviation])


def enter(stakes: Sequence[Stake], leave: bool = False) -> list[ContendingJobs]:
    """Add stakes (jobs' uses of links) to links, or remove them; return the links."""
    for stake in stakes:
        group = stake.group
        group.first = None  # type: ignore[assignment]
        if leave:
            group.stakes.remove(stake)
        else:
            group.stakes.append(stake)
    return [stake.group for stake in stakes]


def reached(groups: Iterable[ContendingJobs]) -> list[ContendingJobs]:
    """Return these links, and all links whose delays depend on jobs on these links."""
    given = dict.fromkeys(groups)
    near = dict(given)  # only links that share a job with these are affected
    for group in given:
        near.update(dict.fromkeys([other.group for stake in group.stakes for other in stake.member.stakes]))
    for group in list(near):  # a list, since `near` grows in the loop
        if group not in given and (group.joint or _connected(group) is not None):
            near.update(dict.fromkeys(_walk(group, joint=group.joint)))
    return list(near)


def _walk(start: ContendingJobs, joint: bool) -> list[ContendingJobs]:
    reached_groups, rest = {start: None}, [start]
    jobs: set[Any] = set()
    while rest and (joint or len(jobs) <= JOINT):  # with more than JOINT jobs they are not solved jointly
        group = rest.pop()
        for stake in group.stakes if group.joint or not joint else ():
            jobs.add(stake.member)
            new = [other.group for other in stake.member.stakes if other.group not in reached_groups]
            reached_groups.update(dict.fromkeys(new))
            rest += new
    return list(reached_groups)


def _connected(start: ContendingJobs) -> list[Any] | None:
    """Return the jobs of connected links if they are solved jointly; None: separately."""
    if start.rule != "random" or len(start.stakes) > JOINT:
        return None
    members = list(dict.fromkeys([stake.member for group in _walk(start, joint=False) for stake in group.stakes]))
    return members if len(members) <= JOINT else None


def delay_ratios(groups: Iterable[ContendingJobs]) -> dict[Any, float]:
    """Return each affected job with the slowdown of its step by other jobs."""
    links = reached(groups)
    for group in links:
        group.kept, group.joint = None, False  # set again by what follows, if it still holds
        if group.first is None and group.stakes:
            group.first = FirstPass(group)
    members = dict.fromkeys([stake.member for group in links for stake in group.stakes])
    ratios: dict[Any, float] = {}
    for member in members:
        alone = member in ratios or len(_slow(member)) < 2
        if not alone and (together := _connected(member.stakes[0].group)) is not None:
            ratios.update(_jointly(together))
    apart = [member for member in members if member not in ratios]
    for member in apart:
        member.longest = _longest(_slow(member), second=False)
    ratios.update((member, _ratio(member)) for member in apart)
    return {member: ratios[member] for member in members}


def _jointly(members: list[Any]) -> dict[Any, float]:
    links = list(dict.fromkeys([stake.group for member in members for stake in member.stakes]))
    column = {group: at for at, group in enumerate(links)}
    spent = np.array([max(stake.spent for stake in member.stakes) for member in members])
    own = np.array([member.alone for member in members]) - spent
    share = np.zeros((len(members), len(links)))
    for row, member in enumerate(members):
        for stake in member.stakes:
            share[row, column[stake.group]] = stake.share * stake.spent / spent[row]
    for group in links:
        group.joint = True  # a later change on any of these links affects all of them
    longer = stretches(np.maximum(own, 1e-3 * spent), spent, share)
    return {
        member: 1.0 + float(max([stake.exposed((more - 1.0) * stake.spent) for stake in member.stakes])) / member.alone
        for member, more in zip(members, longer, strict=True)
    }


def _ratio(member: Any) -> float:
    if not (stakes := _slow(member)):
        return 1.0
    expected = [float(seen @ delay) for seen, delay in (stake.met(second=True) for stake in stakes)]
    longest = _longest(stakes, second=True)
    more = longest / max(expected) if longest > 0.0 else 1.0
    return 1.0 + max(stake.exposed(one * more) for stake, one in zip(stakes, expected, strict=True)) / member.alone


def _slow(member: Any) -> list[Stake]:
    """Return the job's stakes (uses of a link) on links where other jobs can delay it."""
    return [one for one in member.stakes if len(one.group.stakes) > 1 and one.group.first.slow]


def _longest(stakes: list[Stake], second: bool) -> float:
    """Return a job's delay (s) on several links; second: its links affect each other."""
    pairs = [_together(one, other) for one, other in combinations(stakes, 2)]
    return longest_delay([stake.met(second) for stake in stakes], sum(pairs) / len(pairs) if pairs else 1.0)


def _together(stake: Stake, other: Stake) -> float:
    """Return the correlation between two links' numbers of other jobs that send."""
    first, second, there = stake.group.first, other.group.first, other.group.first.rows
    mine, theirs = first.deviation[first.rows[stake.member]], second.deviation[there[stake.member]]
    both = sum([first.deviation[row] * second.deviation[there[job]] for job, row in first.rows.items() if job in there])
    apart = (first.variance - mine**2) * (second.variance - theirs**2)
    return min(1.0, max(0.0, both - mine * theirs) / math.sqrt(apart)) if apart > 0.0 else 1.0


def _caps(here: FirstPass, elsewhere: list[list[Stake]]) -> np.ndarray:
    """Return the share of a link that each job can use, as its other links limit it.

    Row: the job.  Column n: n other jobs send on this link.  The number of senders on another link of the job is then
    estimated as n × f + m.  Here f is the share of jobs on both links in the other jobs' sending on this link, and m
    the mean number of senders on the other link that do not use this link.
    """
    others = np.arange(len(here.rows))
    caps: np.ndarray = np.repeat(here.share[:, None], len(others), axis=1)
    for row, stakes in enumerate(elsewhere):
        for stake in stakes:
            there = stake.group.first
            common = sum([here.sending[at] for job, at in here.rows.items() if job in there.rows])
            foreign = sum([there.sending[at] for job, at in there.rows.items() if job not in here.rows])
            part = (common - here.sending[row]) / (sum(here.sending) - here.sending[row])
            level = np.interp(others * part + foreign, np.arange(len(there.rows)), there.met.fair)
            caps[row] = np.minimum(caps[row], here.share[row] * np.minimum(1.0, level / stake.share))
    return caps
