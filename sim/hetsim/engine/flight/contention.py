"""Links that jobs over several nodes share: which jobs are on each, how much they slow down, what they carried.

A job is on the links that its step crosses (`sim.model.exchange`) while it computes.  When the set of jobs on a link
changes, only the jobs on that link get new step times, from the closed forms of `sim.theory.contention`; for a job on
several links the slowest counts.  That maximum is an approximation, and so is one capacity for both directions.
No step is an event.  Cost of a change: O(N) for N jobs on the link.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from sim.engine.flight.launch import INF, Launch
from sim.engine.kernel.clock import FINISH, Clock
from sim.model.cluster import WHOLE, Cluster
from sim.model.exchange import Exchange, TrafficProfile
from sim.model.plan import Placement
from sim.theory.contention import EXACT, NODES, random_of_many, random_of_terms, terms

JOB = (
    "launch", "task", "seconds", "contention", "communication", "bubble", "steps", "bytes", "across", "nominal", "here",
    "peak",
)  # fmt: skip
"""A row of a stay on the network: its seconds, and of these the ones that others on its links took, those of
communication with the links to itself, and those of the bubble; bytes sent to other nodes, and those across racks;
seconds of as many steps in the best place, here with all links to itself, and of their operations at the GPUs' peak."""
LINK = ("time", "link", "busy", "jobs")
"""A row of a link: from this time on so many jobs are on it, and on average `busy` of its rate is used until the
link's next row."""


class ContendingJobs:
    """The jobs on one link."""

    __slots__ = ("link", "members", "stakes", "factors", "inverse", "busy", "since", "row")

    def __init__(self, link: int):
        self.link = link
        self.members: list[Member] = []
        """All jobs with a step that crosses it."""
        self.stakes: list[Stake] = []
        """Stakes of the members that others can delay on this link."""
        self.factors = np.empty((0, NODES))
        """For each stake its factor of the integrand (`sim.theory.contention.terms`), and below its inverse."""
        self.inverse = np.empty((0, NODES))
        self.busy = 0.0
        """Seconds of its full rate that were used since the last row."""
        self.since = 0.0
        self.row = -1
        """Where its last row stands."""

    def add(self, stake: Stake) -> None:
        """Add a stake that others can delay."""
        count = len(self.stakes)
        if count == len(self.factors):
            more = np.empty((max(8, count), NODES))
            self.factors, self.inverse = np.vstack([self.factors, more]), np.vstack([self.inverse, more])
        self.stakes.append(stake)
        self.factors[count] = row = terms(max(0.0, stake.member.alone - stake.seconds), stake.seconds)
        self.inverse[count] = 1.0 / row

    def drop(self, stake: Stake) -> None:
        """Remove a stake; the last one takes its row."""
        at, last = self.stakes.index(stake), self.stakes.pop()
        if last is not stake:
            self.stakes[at] = last
            count = len(self.stakes)
            self.factors[at], self.inverse[at] = self.factors[count], self.inverse[count]

    def ratios(self, rule: str) -> list[float]:
        """How many times as long as alone the step of each takes."""
        found = self._ratios(rule)
        for at, stake in enumerate(self.stakes):
            if stake.hidden:
                alone = stake.member.alone
                delay = alone * (found[at] - 1.0)
                found[at] = 1.0 + sum([max(0.0, delay * share - slack) for share, slack in stake.hidden]) / alone
        return found

    def _ratios(self, rule: str) -> list[float]:
        """The same if nothing passed behind computing."""
        stakes = self.stakes
        count = len(stakes)
        if rule == "random" and 1 < count <= EXACT:
            found: list[float] = random_of_terms(self.factors[:count], self.inverse[:count]).tolist()
            return found
        if count < 2 or rule == "none":
            return [1.0] * count
        spent = [stake.seconds for stake in stakes]
        if rule == "random":
            own = np.maximum(0.0, [stake.member.alone - stake.seconds for stake in stakes])
            return random_of_many(own, np.array(spent)).tolist()
        if rule == "aligned":
            return [1.0 + stake.seconds * (count - 1) / stake.member.alone for stake in stakes]
        whole = sum(spent)
        return [max(1.0, whole / stake.member.alone) for stake in stakes]


class Stake:
    """What a launch has on a link where others can delay it: seconds of its step there."""

    __slots__ = ("member", "group", "seconds", "hidden", "ratio")

    def __init__(self, member: Member, group: ContendingJobs, phases: list[tuple[float, float]]):
        self.member = member
        self.group = group
        self.seconds = sum(seconds for seconds, _ in phases)
        slack = any(slack for _, slack in phases)
        self.hidden = [(seconds / self.seconds, slack) for seconds, slack in phases] if slack else []
        """For each phase its share of these seconds, and by how many it may grow before the step does; empty if every
        delay counts in full."""
        self.ratio = 1.0
        """How many times as long as alone its step takes for the others on this link."""


class Member:
    """A launch on the network."""

    __slots__ = (
        "launch", "exchange", "profile", "factor", "simple", "stakes", "carried", "ratio", "alone", "here", "since",
        "steps", "flushed", "contention", "degraded", "begun",
    )  # fmt: skip

    def __init__(self, launch: Launch, exchange: Exchange):
        self.launch = launch
        self.exchange = exchange
        self.profile: TrafficProfile = exchange.of(launch.placement.devices)
        self.factor = 1.0
        """Seconds of its step with every link to itself, over those that it takes now."""
        self.simple = False
        """Does it end when it has computed, with no other launch waiting for its devices?"""
        self.here = False
        """Is it on the network?"""
        self.stakes: list[Stake] = []
        self.carried: list[tuple[ContendingJobs, float]] = []
        """All its links, and the seconds of their full rate that its step takes."""
        self.ratio = 1.0
        """The greatest of those of its stakes."""
        self.alone = 0.0
        """Seconds of its step with every link, as fast as it is now, to itself."""
        self.since = self.begun = self.steps = self.flushed = 0.0
        self.contention = self.degraded = 0.0
        """Seconds that others have taken, and those that faults of links have."""


class SharedNetwork:
    """All links of a run, and the launches on them."""

    def __init__(self, clock: Clock, cluster: Cluster, paced: Callable[[Launch], None]):
        self.clock = clock
        self.rule = cluster.fabric.contention
        self.paced = paced
        """Called with a launch when its pace on the network has changed: sets its rate, and its times anew."""
        self.groups: dict[int, ContendingJobs] = {}
        self.slow: dict[int, float] = {}
        """Links slower than they should be, by how many times; inf: down."""
        self.jobs = array("d")
        self.links = array("d")

    def join(self, member: Member, complex_: bool) -> None:
        """A launch begins to compute; `complex_`: it does more besides that, or shares its devices."""
        now = self.clock._now
        mode = member.launch.placement.mode
        alone = mode.type.streams == 1 and mode.type.sharing.kind == "exclusive" and mode.share in (0, WHOLE)
        member.simple = alone and not complex_
        member.here = True
        member.since = member.begun = now
        member.carried = [(self._group(link), busy) for link, busy in member.profile.busy.items()]
        self._weigh(member)
        for group, _ in member.carried:
            self._close(group, now)
            group.members.append(member)
            self._open(group, now)
        for stake in member.stakes:
            stake.group.add(stake)
        self._rerate([stake.group for stake in member.stakes], [member])

    def leave(self, member: Member, end: float = math.nan) -> None:
        """Take out a launch that stops computing.  `end`: the end of the run, at which no rate changes any more."""
        if not member.here:
            return
        over = end == end
        now = end if over else self.clock._now
        self._settle(member, now)
        for group, _ in member.carried:
            self._close(group, now)
            group.members.remove(member)
            self._open(group, now)
        for stake in member.stakes:
            stake.group.drop(stake)
        member.here = False
        self._write(member, now)
        if not over:
            self._rerate([stake.group for stake in member.stakes], [])

    def slow_down(self, link: int, factor: float) -> None:
        """Slow a link down by a factor from now on: 1 is its own speed, inf is down."""
        if factor == 1.0:
            self.slow.pop(link, None)
        else:
            self.slow[link] = factor
        group = self.groups.get(link)
        if group is None:
            return
        touched: dict[int, ContendingJobs] = {}
        for member in group.members:
            self._settle(member, self.clock._now)
            for stake in member.stakes:
                stake.group.drop(stake)
            self._weigh(member)
            for stake in member.stakes:
                stake.group.add(stake)
                touched[stake.group.link] = stake.group
        self._rerate(list(touched.values()), group.members)

    def foresee(self, placement: Placement) -> tuple[float, float]:
        """See `View.crowding`."""
        exchange = placement.mode.exchange
        assert exchange is not None
        guest = Member(Launch(None, 0, (), placement, 0.0), exchange)  # without an event
        self._weigh(guest)
        if guest.alone == INF:
            return INF, 0.0
        own, later = 1.0, dict[int, tuple[Member, float]]()
        for stake in guest.stakes:
            group = stake.group
            if not group.stakes:
                continue
            group.add(stake)
            for other, ratio in zip(group.stakes, group.ratios(self.rule), strict=True):
                member = other.member
                if member is guest:
                    own = max(own, ratio)
                else:
                    greatest = max(ratio, later.get(member.launch.number, (member, member.ratio))[1])
                    later[member.launch.number] = member, greatest
            group.drop(stake)
        lost = sum(m.launch.placement.mode.width * (1.0 - m.ratio / ratio) for m, ratio in later.values())
        return guest.alone * own / exchange.nominal, lost

    # ----------------------------------------------------------------------------------------------------------

    def _group(self, link: int) -> ContendingJobs:
        group = self.groups.get(link)
        if group is None:
            group = self.groups[link] = ContendingJobs(link)
        return group

    def _weigh(self, member: Member) -> None:
        """What its step is with links as fast as they are now."""
        communication, bubble, spent = member.profile.step(self.slow)
        member.alone = alone = member.profile.compute + communication + bubble
        # A job that waits for a link that is down delays no other job.
        there = spent.items() if alone < INF else ()
        member.stakes = [Stake(member, self._group(link), phases) for link, phases in there]

    def _rerate(self, groups: list[ContendingJobs], fresh: list[Member]) -> None:
        """The set of jobs on these links has changed: new times of a step for all on them, and for `fresh` ones."""
        rule, now = self.rule, self.clock._now
        changed = {member.launch.number: member for member in fresh}
        for group in groups:
            for stake, ratio in zip(group.stakes, group.ratios(rule), strict=True):
                if stake.ratio != ratio:
                    stake.ratio = ratio
                    changed[stake.member.launch.number] = stake.member
        for member in changed.values():
            if member.since != now:
                self._settle(member, now)
            ratio = 1.0
            for stake in member.stakes:
                if stake.ratio > ratio:
                    ratio = stake.ratio
            member.ratio = ratio
            self._apply(member, now)

    def _apply(self, member: Member, now: float) -> None:
        """Its launch computes at another rate from now on."""
        launch = member.launch
        table: Any = launch.table
        before = member.factor
        member.factor = factor = member.profile.seconds / (member.alone * member.ratio)
        if factor == before:
            return
        if not member.simple or before == 0.0:
            self.paced(launch)  # others may depend on it, or the rate does not follow from the former one
            return
        table.settle(now)
        table.rate = rate = table.rate * factor / before
        table.compute_end = table.finish_at = table.end = end = now + table.left / rate if rate > 0.0 else INF
        if end < table.armed:  # an entry that comes too early finds that out (`Launches.boundary`), which is cheaper
            table.armed = end
            self.clock.again(end, FINISH, launch)

    def _settle(self, member: Member, now: float) -> None:
        """Bring its steps and its delay by others up to now."""
        elapsed = now - member.since
        if elapsed > 0.0:
            own = elapsed / member.ratio
            member.contention += elapsed - own
            if member.alone != member.profile.seconds:
                member.degraded += own * (1.0 - member.profile.seconds / member.alone)
            table: Any = member.launch.table
            member.steps = (table.done + table.rate * (now - table.updated)) / member.exchange.nominal
            member.since = now

    def _close(self, group: ContendingJobs, now: float) -> None:
        """The average use of a link since its last row."""
        for member in group.members:
            if member.since != now:
                self._settle(member, now)
            steps = member.steps - member.flushed
            if steps:
                member.flushed = member.steps
                for other, busy in member.carried:
                    other.busy += busy * steps
        if group.row >= 0 and now > group.since:
            self.links[group.row] = group.busy / (now - group.since)

    def _open(self, group: ContendingJobs, now: float) -> None:
        """A new row of a link."""
        if group.row >= 0 and group.since == now:  # several changes at one instant are one row
            self.links[group.row + 1] = len(group.members)
            return
        group.busy, group.since, group.row = 0.0, now, len(self.links) + 2
        self.links.extend((now, group.link, 0.0, len(group.members)))

    def _write(self, member: Member, now: float) -> None:
        profile, steps = member.profile, member.steps
        communication, bubble = profile.parts
        self.jobs.extend((
            member.launch.number, member.launch.task.index, now - member.begun, member.contention,
            communication * steps + member.degraded, bubble * steps, steps, profile.bytes * steps,
            profile.across * steps, member.exchange.nominal * steps, profile.seconds * steps + member.degraded,
            member.exchange.at_peak * steps,
        ))  # fmt: skip

    def columns(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """All stays and all links, as columns."""
        found = []
        for names, rows in ((JOB, self.jobs), (LINK, self.links)):
            table = np.frombuffer(rows).reshape(-1, len(names)).T if len(rows) else np.empty((len(names), 0))
            found.append({name: column.copy() for name, column in zip(names, table, strict=True)})
        return found[0], found[1]
