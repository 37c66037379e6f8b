"""Links that jobs over several nodes share: who is on each, how much slower that makes them, and what they carried.

A job is on the links that its step crosses (`sim.model.exchange`) while it computes.  When the set of jobs on a link
changes, those on it get the times of a step that the closed forms of `sim.theory.contention` give, and nobody else; of
several links the slowest counts.  That maximum is an approximation, and so is one capacity for both directions.
No step is an event.  Cost of a change: O(N) for N jobs on the link.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from sim.engine.clock import FINISH, Clock
from sim.engine.launch import INF, Launch
from sim.model.cluster import WHOLE, Cluster
from sim.model.exchange import Exchange, Profile
from sim.model.plan import Placement
from sim.theory.contention import EXACT, random_of_terms, schweitzer, terms

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


def _never(_: Any) -> None:
    """Of a launch that is only imagined."""


class Group:
    """The jobs on one link."""

    __slots__ = ("link", "members", "busy", "since", "row", "carried")

    def __init__(self, link: int):
        self.link = link
        self.members: list[Member] = []
        self.busy = 0.0
        """Seconds of its full rate that were used since the last row."""
        self.since = 0.0
        self.row = -1
        """Where the `busy` of its last row stands."""


class Member:
    """A launch on the network."""

    __slots__ = (
        "launch", "exchange", "profile", "factor", "simple", "loads", "carried", "terms", "ratios", "ratio", "alone",
        "here", "since", "steps", "flushed", "contention", "degraded", "begun",
    )  # fmt: skip

    def __init__(self, launch: Launch, exchange: Exchange):
        self.launch = launch
        self.exchange = exchange
        self.profile: Profile = exchange.of(launch.placement.devices)
        self.factor = 1.0
        """Seconds of its step with every link to itself, over those that it takes now."""
        self.simple = False
        """Does it end when it has computed, with no other launch waiting for its devices?"""
        self.here = False
        """Is it on the network?"""
        self.loads: list[tuple[Group, float]] = []
        """Links that others may use too, and seconds that its step spends on each."""
        self.carried: list[tuple[Group, float]] = []
        """All its links, and the seconds of their full rate that its step takes."""
        self.terms: dict[int, np.ndarray] = {}
        """By link its terms in the closed form."""
        self.ratios: dict[int, float] = {}
        """By link how many times as long as alone its step takes."""
        self.ratio = 1.0
        """The greatest of them."""
        self.alone = 0.0
        """Seconds of its step with every link, as fast as it is now, to itself."""
        self.since = self.begun = self.steps = self.flushed = 0.0
        self.contention = self.degraded = 0.0
        """Seconds that others have taken, and those that faults of links have."""


class Network:
    """All links of a run, and the launches on them."""

    def __init__(self, clock: Clock, cluster: Cluster, paced: Callable[[Launch], None]):
        self.clock = clock
        self.rule = cluster.fabric.contention
        self.paced = paced
        """Gives a launch whose pace on the network has changed its rate, and works out the rest of it."""
        self.groups: dict[int, Group] = {}
        self.slow: dict[int, float] = {}
        """Links that are so many times slower than they should be; inf: down."""
        self.jobs = array("d")
        self.links = array("d")

    def join(self, member: Member, complex_: bool) -> None:
        """A launch begins to compute; `complex_`: it does more besides that, or shares its devices."""
        now = self.clock._now
        kind = member.launch.placement.mode.type
        whole = member.launch.placement.mode.share in (0, WHOLE)
        member.simple = not complex_ and kind.streams == 1 and kind.sharing.kind == "exclusive" and whole
        member.here = True
        member.since = member.begun = now
        member.carried = [(self._group(link), busy) for link, busy in member.profile.busy.items()]
        self._weigh(member)
        for group, _ in member.carried:
            self._close(group, now)
            group.members.append(member)
            self._open(group, now)
        self._rerate([group for group, _ in member.loads], member)

    def leave(self, member: Member, end: float = math.nan) -> None:
        """It computes no longer.  `end`: the end of the run, at which no rate changes any more."""
        if not member.here:
            return
        over = end == end
        now = end if over else self.clock._now
        self._settle(member, now)
        for group, _ in member.carried:
            self._close(group, now)
            group.members.remove(member)
            self._open(group, now)
        member.here = False
        self._write(member, now)
        if not over:
            self._rerate([group for group, _ in member.loads if group.members], None)

    def slow_down(self, link: int, factor: float) -> None:
        """From now on a link is so many times slower than it should be: 1 as it should, inf down."""
        if factor == 1.0:
            self.slow.pop(link, None)
        else:
            self.slow[link] = factor
        group = self.groups.get(link)
        if group is None:
            return
        touched: dict[int, Group] = {link: group}
        for member in group.members:
            self._settle(member, self.clock._now)
            self._weigh(member)
            touched |= {other.link: other for other, _ in member.loads}
        self._rerate(list(touched.values()), *group.members)

    def foresee(self, placement: Placement) -> tuple[float, float]:
        """See `View.crowding`."""
        exchange = placement.mode.exchange
        assert exchange is not None
        guest = Member(Launch(_never, 0, (), placement, 0.0), exchange)
        self._weigh(guest)
        if guest.alone == INF:
            return INF, 0.0
        own, later = 1.0, dict[int, tuple[Member, float]]()
        for group, _ in guest.loads:
            members = [member for member in group.members if group.link in member.ratios and member.alone < INF]
            if not members:
                continue
            *others, here = self._ratios(group.link, [*members, guest])
            own = max(own, here)
            for member, ratio in zip(members, others, strict=True):
                greatest = max(ratio, later.get(member.launch.number, (member, member.ratio))[1])
                later[member.launch.number] = member, greatest
        lost = sum(m.launch.placement.mode.width * (1.0 - m.ratio / ratio) for m, ratio in later.values())
        return guest.alone * own / exchange.nominal, lost

    # ----------------------------------------------------------------------------------------------------------

    def _group(self, link: int) -> Group:
        group = self.groups.get(link)
        if group is None:
            group = self.groups[link] = Group(link)
        return group

    def _weigh(self, member: Member) -> None:
        """What its step is with links as fast as they are now."""
        communication, bubble, spent = member.profile.step(self.slow)
        member.alone = alone = member.profile.compute + communication + bubble
        member.loads = [(self._group(link), seconds) for link, seconds in spent.items() if seconds]
        member.ratios = {group.link: 1.0 for group, _ in member.loads}
        if self.rule == "random" and alone < INF:
            member.terms = {group.link: terms(alone - seconds, seconds) for group, seconds in member.loads}

    def _rerate(self, groups: list[Group], *fresh: Member | None) -> None:
        """The set of jobs on these links has changed: new times of a step for all on them, and for `fresh` ones."""
        changed: dict[int, Member] = {}
        for group in groups:
            members = [member for member in group.members if group.link in member.ratios and member.alone < INF]
            for member, ratio in zip(members, self._ratios(group.link, members), strict=True):
                ratios = member.ratios
                if ratios[group.link] != ratio:
                    ratios[group.link] = ratio
                    if len(ratios) > 1:
                        ratio = max(ratios.values())
                    if ratio != member.ratio:
                        changed[member.launch.number] = member
        for one in fresh:
            if one is not None:
                changed[one.launch.number] = one
        now = self.clock._now
        for member in changed.values():
            self._settle(member, now)
            member.ratio = max(member.ratios.values(), default=1.0)
            self._apply(member, now)

    def _ratios(self, link: int, members: list[Member]) -> list[float]:
        """How many times as long as alone the step of each takes."""
        count = len(members)
        if count < 2 or self.rule == "none":
            return [1.0] * count
        if self.rule == "random" and count <= EXACT:
            found: list[float] = random_of_terms(np.array([member.terms[link] for member in members])).tolist()
            return found
        spent = [next(seconds for group, seconds in member.loads if group.link == link) for member in members]
        if self.rule == "random":
            own = np.array([member.alone for member in members]) - spent
            return [
                max(1.0, (rest + time) / member.alone)
                for rest, time, member in zip(own, schweitzer(own, np.array(spent)).tolist(), members, strict=True)
            ]
        if self.rule == "aligned":
            return [(m.alone + s * (count - 1)) / m.alone for m, s in zip(members, spent, strict=True)]
        return [max(1.0, sum(spent) / member.alone) for member in members]

    def _apply(self, member: Member, now: float) -> None:
        """Its launch computes at another rate from now on."""
        launch = member.launch
        table: Any = launch.table
        before, seconds = member.factor, member.alone * member.ratio
        member.factor = factor = member.profile.seconds / seconds
        if not member.simple or before == 0.0:
            self.paced(launch)  # others may have to hear of it, or the rate cannot be told from the one before
            return
        elapsed = now - table.updated
        rate = table.rate
        if elapsed > 0.0:
            done = rate * elapsed
            left = table.left - done
            table.left = left if left > 0.0 else 0.0
            table.done += done
            table.busy += table.busy_rate * elapsed
            table.energy += table.watts * elapsed
        table.updated = now
        table.rate = rate = rate * factor / before
        end = now + table.left / rate if rate > 0.0 else INF
        table.compute_end = table.finish_at = table.end = end
        if table.armed >= 0.0:  # else its launch is only being armed
            table.armed = end
            self.clock.cancel(launch)
            if end < INF:
                self.clock.at(end, FINISH, launch)

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

    def _close(self, group: Group, now: float) -> None:
        """The average use of a link since its last row."""
        for member in group.members:
            self._settle(member, now)
            steps = member.steps - member.flushed
            if steps:
                member.flushed = member.steps
                for other, busy in member.carried:
                    other.busy += busy * steps
        if group.row >= 0 and now > group.since:
            self.links[group.row] = group.busy / (now - group.since)

    def _open(self, group: Group, now: float) -> None:
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
