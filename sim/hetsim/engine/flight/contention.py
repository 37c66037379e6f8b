"""Links that jobs on several nodes share: load, slowdown and bytes of each job.

While a job computes, it uses the links that its training step crosses (`hetsim.model.exchange`).  When the set of jobs
on a link changes, new step times are computed in closed form (`hetsim.engine.flight.link_delays`) for the jobs on that
link and on the other links of those jobs.  One capacity for both directions of a link is an approximation.  Steps are
not events.
"""

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetsim.engine.flight.launch import INF, Launch
from hetsim.engine.flight.link_delays import ContendingJobs, Stake, delay_ratios, enter, reached
from hetsim.engine.kernel.clock import FINISH, Clock
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import WHOLE
from hetsim.model.exchange import Exchange, TrafficProfile
from hetsim.model.plan import Placement

JOB = (
    "launch", "task", "seconds", "contention", "communication", "bubble", "steps", "bytes", "across", "nominal", "here",
    "peak",
)  # fmt: skip
"""Columns of a row that describes one launch, from the begin to the end of its use of the network.
`seconds`: length of this time, which includes `contention` (delay by other jobs), `communication` (time on idle links)
and `bubble` (pipeline bubble).  `bytes`: bytes sent to other nodes; `across`: the part of them that crosses racks.
`nominal`, `here`, `peak`: seconds that the same steps would take at the best placement, on this placement with idle
links, and at the GPUs' peak rate.
"""
LINK = ("time", "link", "busy", "jobs")
"""Columns of a row for one period of a link.  From `time` to the next row of the same link, `jobs` jobs use the link,
on average the fraction `busy` of its rate."""


@dataclass(slots=True, eq=False)
class Member:
    """A launch that uses the shared network."""

    launch: Launch
    exchange: Exchange
    profile: TrafficProfile = field(init=False)
    # nominal seconds of its step (every link idle and healthy), over the seconds that the step takes now
    factor: float = 1.0
    simple: bool = False  # True if it ends when it has computed, and no other launch waits for its devices
    here: bool = False  # True while it is on the network
    stakes: list[Stake] = field(default_factory=list)
    # its links, and the seconds at full rate that one step occupies each
    carried: list[tuple[ContendingJobs, float]] = field(default_factory=list)
    ratio: float = 1.0  # its step time with other jobs on its links, over the step time with idle links
    alone: float = 0.0  # seconds of its step if it had all links, at their present speed, to itself
    longest: float = 0.0  # first-pass delay (s) of its sending over all its links
    since: float = 0.0
    begun: float = 0.0
    steps: float = 0.0
    flushed: float = 0.0
    contention: float = 0.0  # seconds lost to other jobs; `degraded`: seconds lost to slow or failed links
    degraded: float = 0.0

    def __post_init__(self) -> None:
        self.profile = self.exchange.profile_of(self.launch.placement.devices)


class SharedNetwork:
    """All shared links of a run, and the launches on them."""

    def __init__(self, clock: Clock, cluster: Cluster, paced: Callable[[Launch], None]):
        self.clock = clock
        self.rule = cluster.fabric.contention
        self.paced = paced  # called with a launch whose network speed has changed: sets its rate and its times again
        self.groups: dict[int, ContendingJobs] = {}
        self.slow: dict[int, float] = {}  # slowdown factor of degraded links; inf: down
        self.jobs = array("d")
        self.links = array("d")

    def join(self, member: Member, complex_: bool) -> None:
        """Add a computing launch; `complex_`: it does more than compute, or shares GPUs."""
        now = self.clock._now
        mode = member.launch.placement.mode
        alone = mode.type.streams == 1 and mode.type.sharing.kind == "exclusive" and mode.share in (0, WHOLE)
        member.simple = alone and not complex_
        member.here = True
        member.since = member.begun = now
        member.carried = [(self._group(link), busy) for link, busy in member.profile.busy.items()]
        self._weigh(member)
        for group, _ in member.carried:
            self._next_row(group, now, 1)  # before the jobs on the link change
            group.members.append(member)
        self._rerate(enter(member.stakes), [member])

    def leave(self, member: Member, end: float = math.nan) -> None:
        """Remove a launch that stops computing; `end`: end of the run, NaN if it goes on."""
        if not member.here:
            return
        over = end == end
        now = end if over else self.clock._now
        self._settle(member, now)  # at the old ratio, before any of it changes
        for group, _ in member.carried:
            self._next_row(group, now, -1)
            group.members.remove(member)
        groups = enter(member.stakes, leave=True)
        member.here = False
        self._write(member, now)  # its row, with the steps that `_settle` has counted
        if not over:
            self._rerate(groups, [])

    def slow_down(self, link: int, factor: float) -> None:
        """Set the slowdown of a link from now on: 1 is full speed, inf is down."""
        if factor == 1.0:
            self.slow.pop(link, None)
        else:
            self.slow[link] = factor
        if (group := self.groups.get(link)) is None:  # no job has used it so far
            return
        touched: list[ContendingJobs] = []
        for member in group.members:
            self._settle(member, self.clock._now)
            touched += enter(member.stakes, leave=True)  # include links that the job no longer uses
            self._weigh(member)
            touched += enter(member.stakes)
        self._rerate(touched, group.members)

    def foresee(self, placement: Placement) -> tuple[float, float]:
        """Return a job's slowdown if placed here, and its cost to others (see `crowding`)."""
        exchange = placement.mode.exchange
        assert exchange is not None
        guest = Member(Launch(None, 0, (), placement, 0.0), exchange)  # a placeholder launch without a clock entry
        self._weigh(guest)
        if guest.alone == INF:
            return INF, 0.0
        near = reached(stake.group for stake in guest.stakes)
        # The links are changed for the trial and restored below.
        kept = [(group, group.first, group.kept, group.joint) for group in near]
        ratios = delay_ratios(enter(guest.stakes))
        own = ratios.pop(guest, 1.0)
        enter(guest.stakes, leave=True)
        for group, first, second, joint in kept:
            group.first, group.kept, group.joint = first, second, joint
        lost = sum(m.launch.placement.mode.width * (1.0 - m.ratio / ratio) for m, ratio in ratios.items())
        return guest.alone * own / exchange.nominal, lost

    # ----------------------------------------------------------------------------------------------------------

    def _group(self, link: int) -> ContendingJobs:
        return self.groups.setdefault(link, ContendingJobs(link, self.rule))

    def _weigh(self, member: Member) -> None:
        communication, bubble, spent = member.profile.step(self.slow)
        member.alone = alone = member.profile.compute + communication + bubble
        there = spent.items() if alone < INF else ()  # A job that waits for a link that is down delays no other job.
        member.stakes = [Stake(member, self._group(link), phases) for link, phases in there]

    def _rerate(self, groups: list[ContendingJobs], fresh: list[Member]) -> None:
        """Update step times of `fresh` jobs and of jobs affected through `groups` (links)."""
        now = self.clock._now
        ratios = dict.fromkeys(fresh, 1.0) | delay_ratios(groups)
        for member, ratio in ratios.items():
            if ratio != member.ratio or member in fresh:
                if member.since != now:
                    self._settle(member, now)  # up to now at the previous ratio
                member.ratio = ratio  # after `_settle`, which uses the previous ratio
                launch, before = member.launch, member.factor
                table: Any = launch.table
                member.factor = factor = member.profile.seconds / (member.alone * ratio)
                if factor == before:  # equal floats: its times do not change
                    continue
                if not member.simple or before == 0.0:
                    self.paced(launch)  # other launches may depend on it, or the old rate was 0
                    continue
                table.settle(now)
                table.rate = rate = table.rate * factor / before
                table.compute_end = table.finish_at = table.end = end = now + table.left / rate if rate > 0.0 else INF
                if end < table.armed:  # an entry that is too early is moved when it fires, which is cheaper
                    table.armed = end
                    self.clock.again(end, FINISH, launch)

    def _settle(self, member: Member, now: float) -> None:
        """Update a job's finished training steps and its delays (s) up to now."""
        if (elapsed := now - member.since) > 0.0:
            own = elapsed / member.ratio
            member.contention += elapsed - own
            if member.alone != member.profile.seconds:
                member.degraded += own * (1.0 - member.profile.seconds / member.alone)
            table: Any = member.launch.table
            member.steps = (table.done + table.rate * (now - table.updated)) / member.exchange.nominal
            member.since = now

    def _next_row(self, group: ContendingJobs, now: float, more: int) -> None:
        """End a row in the table of links and begin the next; more: change in job count."""
        for member in group.members:
            if member.since != now:
                self._settle(member, now)
            if (steps := member.steps - member.flushed):
                member.flushed = member.steps  # counted for all of its links, and only once
                for other, busy in member.carried:
                    other.busy += busy * steps  # bytes follow from the number of steps, which are not events
        if group.row >= 0 and group.since == now:  # several changes at one instant are one row
            self.links[group.row + 1] += more
            return
        if group.row >= 0:
            self.links[group.row] = group.busy / (now - group.since)
        group.busy, group.since, group.row = 0.0, now, len(self.links) + 2
        self.links.extend((now, group.link, 0.0, len(group.members) + more))

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
        """Return the rows of jobs and of links as columns of the record."""
        tables = []
        for names, rows in ((JOB, self.jobs), (LINK, self.links)):
            table = np.frombuffer(rows).reshape(-1, len(names)).T if len(rows) else np.empty((len(names), 0))
            tables.append({name: column.copy() for name, column in zip(names, table, strict=True)})
        return tables[0], tables[1]
