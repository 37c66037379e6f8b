"""Replicas of a language model without jumps: every step is taken, everything is recounted.

Written for the tests from the rules in the guide, without the engine and its policies: orders, phases, reservations,
clients that abort, prefixes, swapping, prefill apart from decode, devices that fail or slow down, results that are
seen a step later, replicas that look for requests after several steps, and prompts that wait for others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

F, S, P, C = 0.010, 0.001, 0.0001, 0.00001
"""Seconds of a step, for each sequence that decodes, each prompt token, and each token of context."""
LINK = 1e9
"""Bytes per second of each device's link, in each direction."""


@dataclass
class Steps:
    """What came out, a value for each request, and for each step or token."""

    first: list[float]
    finish: list[float]
    stops: list[int]
    aborted: list[bool]
    gaps: list[float] = field(default_factory=list)
    """Seconds between two tokens of an answer."""
    rows: list[tuple[float, float, int, int, int]] = field(default_factory=list)
    """Of each step: start, end, tokens, blocks in use, members."""
    seen: list[tuple[Any, ...]] = field(default_factory=list)
    """What the router finds at each of the replicas that it chooses from."""


@dataclass(eq=False)
class Replica:
    number: int
    device: int
    reads_only: bool
    loaded: bool = True
    members: list[int] = field(default_factory=list)
    loading: list[int] = field(default_factory=list)
    here: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    """Requests that it has read, and that no other replica has fetched yet."""
    waiting: list[int] = field(default_factory=list)
    coming: list[int] = field(default_factory=list)
    names: dict[int, list[Any]] = field(default_factory=dict)
    """Prefixes that each request uses."""
    idle: list[Any] = field(default_factory=list)
    """Prefixes that are kept for later, the least recently used first."""
    counter: dict[str, float] = field(default_factory=dict)
    since_read: float = math.inf
    unseen: list[tuple[int, bool]] = field(default_factory=list)
    """Requests with a first token, or (true) with their last one, that their clients do not see yet."""
    deaf: int = 0
    """Decoding steps since it last read prompts, or was idle."""
    waited: int = 0
    """Steps for which its prompts have waited for others."""
    step: dict[str, Any] | None = None
    steps: int = 0


@dataclass(eq=False)
class Flow:
    pipes: tuple[tuple[str, int], ...]
    left: float
    done: Any
    rate: float = 0.0


class Service:
    """All replicas of one service; `run` takes it from event to event."""

    def __init__(
        self, arrival, prompt, output, budget=None, most=256, blocks=1 << 40, block=16, phases="mixed", order="fcfs",
        reserve="none", longest=None, pause=0, timeout=math.inf, client=None, weights=(1.0, 2.0), watermark=0.01,
        priority=None, names=None, prefix=0, swap=False, token_bytes=0, replicas=1, apart=None, devices=None, faults=(),
        model=0.0, routing="least_outstanding", times=(F, S, P, C), late=False, every=1, waits=(0.0, 0),
    ):  # fmt: skip
        count, self.times = len(arrival), times
        self.arrival, self.prompt, self.output, self.longest = arrival, prompt, output, longest or output
        self.budget, self.most, self.blocks, self.block, self.phases = budget, most, blocks, block, phases
        self.order, self.reserve, self.pause, self.weights = order, reserve, pause, weights
        self.late, self.every, self.waits = late, every, waits
        self.watermark = 0.0 if reserve != "none" else watermark
        self.client, self.priority = client or [""] * count, priority or [0] * count
        self.hashes, self.prefix, self.each = names or [()] * count, prefix, prefix // block
        self.swap, self.token_bytes, self.model, self.routing = swap, token_bytes, model, routing
        self.due = [at + timeout for at in arrival]
        self.made, self.left, self.last = [0] * count, list(prompt), [0.0] * count
        self.swapped, self.source, self.at = [False] * count, [None] * count, [None] * count
        self.over = [False] * count
        self.out = Steps([0.0] * count, [0.0] * count, [0] * count, [False] * count)
        self.now, self.lobby, self.flows, self.turn = 0.0, [], [], -1
        self.coming, self.faults = list(range(count)), list(faults)
        self.apart, readers, others = apart is not None, *(apart or (0, replicas))
        self.all = [Replica(number, number, number < readers) for number in range(readers + others)]
        self.numbered, self.missing = len(self.all), []
        self.up, self.pace = [True] * (devices or len(self.all)), [1.0] * (devices or len(self.all))

    # Memory

    def blocks_of(self, tokens):
        return -(-tokens // self.block)

    def stored(self, r):
        """Tokens of keys and values: of an answer all but the last one."""
        return self.prompt[r] + max(0, self.made[r] - 1)

    def next_block(self, r):
        return self.blocks_of(self.prompt[r] + self.made[r]) - self.blocks_of(self.stored(r))

    def used_names(self, replica):
        return {name for names in replica.names.values() for name in names}

    def free(self, replica):
        own = 0
        for r in replica.members + replica.loading + replica.kept:
            reads = r in replica.members and self.left[r] > 0
            tokens = self.prompt[r] + self.made[r] if reads else self.stored(r)
            own += self.blocks_of(tokens) - self.each * len(replica.names.get(r, ()))
        return self.blocks - own - self.each * len(self.used_names(replica))

    def evict(self, replica):
        while replica.idle and len(replica.idle) * self.each > self.free(replica):
            replica.idle.pop(0)

    def hits(self, replica, r):
        names, used = [], self.used_names(replica)
        for name in self.hashes[r][: self.prompt[r] // self.prefix] if self.prefix else ():
            if name not in used and name not in replica.idle:
                break
            names.append(name)
        return names

    def to_read(self, replica, r):
        return max(1, self.left[r] - self.prefix * len(self.hits(replica, r))) if self.left[r] else 0

    def blocks_for(self, replica, r):
        """Free blocks that are so no longer once it has joined, with that for its next token if it decodes at once."""
        blocks = self.blocks_of(self.prompt[r] + self.made[r])
        used = self.used_names(replica)
        return blocks - self.each * (sum(name in used for name in self.hits(replica, r)) if self.left[r] else 0)

    def let_go(self, replica, r):
        names = replica.names.pop(r, [])
        used = self.used_names(replica)
        replica.idle += [name for name in reversed(names) if name not in used]

    # Requests on their way

    def end(self, r, aborted, time=None):
        self.out.finish[r], self.out.aborted[r] = self.now if time is None else time, aborted
        self.over[r] = True

    def anew(self, r):
        self.left[r], self.swapped[r], self.source[r], self.at[r] = self.prompt[r] + self.made[r], False, None, None

    def send(self, r):
        reads = self.apart and self.source[r] is None
        able = [one for one in self.all if one.loaded and one.reads_only == reads]
        if not able:
            self.lobby.append(r)
            return
        chosen = able[0]
        if len(able) > 1:
            sent = [len(one.waiting + one.coming + one.members + one.loading) for one in able]
            if self.routing == "round_robin":
                chosen = next((one for one in sorted(able, key=lambda one: one.number) if one.number > self.turn), None)
                chosen = chosen or min(able, key=lambda one: one.number)
                self.turn = chosen.number
            else:
                cached = [0] * len(able)
                if self.routing == "prefix_affinity":
                    pairs = zip(able, sent, strict=True)
                    cached = [len(self.hits(one, r)) if n < min(sent) + 8 else -1 for one, n in pairs]
                chosen = able[min(range(len(able)), key=lambda k: (-cached[k], sent[k]))]
            for one, n in zip(able, sent, strict=True):
                produced = sum(self.made[m] for m in one.members)
                looks = (self.prefix * len(self.hits(one, r)), self.blocks_for(one, r), self.free(one))
                self.out.seen.append((r, one.number, *looks, one.steps, n, produced))
        self.put(chosen, r)

    def put(self, replica, r):
        self.at[r] = replica
        if replica.step is None:
            self.queue(replica, r)
        else:
            replica.coming.append(r)

    def queue(self, replica, r):
        counter, mine = replica.counter, self.client[r]
        others = [self.client[w] for w in replica.waiting]
        if others and mine not in others:
            counter[mine] = max(counter.get(mine, 0.0), min(counter.get(c, 0.0) for c in others))
        replica.waiting.append(r)

    def head(self, replica):
        keys = {
            "shortest_prompt": lambda r: (self.left[r], r),
            "priority": lambda r: (-self.priority[r], self.arrival[r], r),
        }
        by_arrival = lambda r: (self.arrival[r], r)  # noqa: E731
        ordered = sorted(replica.waiting, key=keys.get(self.order, by_arrival))
        if self.order != "vtc":
            return ordered[0]
        firsts = {self.client[w]: w for w in reversed(ordered)}
        served = lambda c: (replica.counter.get(c, 0.0), self.arrival[firsts[c]], c)  # noqa: E731
        return firsts[min(firsts, key=served)]

    def need(self, replica, r):
        """Tokens that the members and this one may come to hold, if each answer becomes as long as it may."""
        inside, block, longest = [*replica.members, *replica.loading, r], self.block, self.longest
        if self.reserve == "whole":
            return sum(self.prompt[m] + longest[m] + block - 2 for m in inside)
        there = {m: self.made[m] + (self.left[m] > 0) for m in inside}  # once prompts are read they have a token more
        ends = {m: max(0, longest[m] - there[m] - 1) for m in inside}
        return max(
            sum(self.prompt[m] + min(there[m] + t, longest[m] - 1) + block - 1 for m in inside if ends[m] >= t)
            for t in ends.values()
        )

    def decoding(self, replica):
        return [r for r in replica.members if not self.left[r]]

    def may_join(self, replica, r):
        decoding, budget = self.decoding(replica), self.budget
        reading = sum(self.left[m] for m in replica.members)
        after = self.free(replica) - self.blocks_for(replica, r)
        if after < sum(map(self.next_block, decoding)) or len(replica.members + replica.loading) >= self.most:
            return False
        if self.phases == "decode_first" and decoding:
            return False
        if not replica.members + replica.loading:
            return True
        if decoding and replica.since_read < self.pause:
            return False
        if budget is not None and self.phases == "mixed" and len(decoding) + reading >= budget:
            return False
        if budget is not None and self.phases != "mixed" and reading and reading + self.to_read(replica, r) > budget:
            return False
        if self.reserve != "none" and self.need(replica, r) > self.blocks * self.block:
            return False
        return after >= self.watermark * self.blocks

    def enter(self, replica, r):
        """Seconds of copying."""
        replica.waiting.remove(r)
        replica.counter.setdefault(self.client[r], 0.0)
        replica.counter[self.client[r]] += 0 if self.made[r] else self.weights[0] * self.prompt[r]
        if self.source[r] is not None:
            replica.loading.append(r)
            pipes = (("down", self.source[r].device), ("up", replica.device))
            self.flows.append(Flow(pipes, self.stored(r) * self.token_bytes, ("keys", r)))
        elif self.swapped[r]:
            replica.members.append(r)
            self.swapped[r] = False
            self.evict(replica)
            return self.blocks_of(self.stored(r)) * self.block * self.token_bytes / LINK
        else:
            names, self.left[r] = self.hits(replica, r), self.to_read(replica, r)
            replica.members.append(r)
            replica.names[r] = names
            replica.idle = [name for name in replica.idle if name not in names]
        self.evict(replica)
        return 0.0

    def preempt(self, replica):
        """Seconds of copying."""
        candidates = replica.members
        if self.order == "priority":
            least = min(self.priority[m] for m in candidates)
            candidates = [m for m in candidates if self.priority[m] == least]
        r, seconds = candidates[-1], 0.0
        replica.members.remove(r)
        if not self.made[r]:
            replica.counter[self.client[r]] -= self.weights[0] * self.prompt[r]
        if self.swap and not self.left[r]:
            self.swapped[r] = True
            seconds = self.blocks_of(self.stored(r)) * self.block * self.token_bytes / LINK
        else:
            self.left[r] = self.prompt[r] + self.made[r]
        self.let_go(replica, r)
        self.out.stops[r] += 1
        self.queue(replica, r)
        return seconds

    # Steps

    def boundary(self, replica):
        for r in [r for r in replica.members if self.due[r] <= self.now]:
            replica.members.remove(r)
            self.let_go(replica, r)
            self.end(r, True)
        for r in replica.coming:
            self.queue(replica, r)
        replica.coming = []
        for r in replica.here:
            replica.loading.remove(r)
            replica.members.append(r)
        replica.here = []
        lag, stopped = 0.0, False
        while self.decoding(replica) and sum(map(self.next_block, self.decoding(replica))) > self.free(replica):
            lag, stopped = lag + self.preempt(replica), True
        replica.deaf = replica.deaf if replica.members else 0
        stopped = stopped or replica.deaf % self.every > 0
        while replica.waiting and not (stopped and replica.members) and self.may_join(replica, self.head(replica)):
            lag += self.enter(replica, self.head(replica))
        if replica.members:
            self.begin(replica, lag)
        else:
            self.see(replica)

    def see(self, replica):
        unseen, replica.unseen = replica.unseen, []
        for r, last in unseen:
            if not self.over[r]:
                self.out.first[r] = self.out.first[r] or self.now
                if last:
                    self.end(r, self.due[r] < self.now)

    def begin(self, replica, lag):
        decoding, mixed, prefill = self.decoding(replica), self.phases == "mixed", []
        room = math.inf if self.budget is None else self.budget - (len(decoding) if mixed else 0)
        (share, most), tokens = self.waits, sum(self.left[r] for r in replica.members)
        if decoding and tokens and replica.waited < most and tokens + len(decoding) < share * (self.budget or 0):
            room, replica.waited = 0, replica.waited + 1
        else:
            replica.waited = 0
        for r in replica.members:
            take = min(self.left[r], room)
            if not mixed and prefill and take < self.left[r]:
                break
            room -= take
            if take:
                prefill.append((r, take))
        if not mixed and prefill:
            decoding = []
        fixed, sequence, token, context = self.times
        seconds = fixed + token * sum(n for _, n in prefill)
        seconds += sum(sequence + context * (self.prompt[r] + self.made[r]) for r in decoding)
        begun = self.now + lag
        ends = begun + seconds * self.pace[replica.device]
        replica.step = {"began": self.now, "begun": begun, "ends": ends, "prefill": prefill, "decoding": decoding}

    def settle(self, replica):
        step, now, out = replica.step, self.now, self.out
        prefill, decoding, replica.step = step["prefill"], step["decoding"], None
        replica.since_read = (0 if prefill else replica.since_read) + bool(decoding)
        replica.steps += bool(decoding)
        replica.deaf = 0 if prefill else replica.deaf + 1
        self.see(replica)
        row = (step["began"], now, sum(n for _, n in prefill) + len(decoding))
        for r in sorted(decoding):
            replica.counter[self.client[r]] = replica.counter.get(self.client[r], 0.0) + self.weights[1]
            self.token(replica, r)
        out.rows.append((*row, self.blocks - self.free(replica), len(replica.members)))
        self.evict(replica)
        for r in sorted(decoding):
            if self.made[r] == self.output[r]:
                self.leave(replica, r)
        for r, n in prefill:
            if self.left[r] == n and self.due[r] < now:
                continue  # it leaves before its prompt counts as read
            self.left[r] -= n
            if self.left[r]:
                continue
            self.share(replica, r)
            self.token(replica, r)
            if self.made[r] == self.output[r]:
                self.leave(replica, r)
            elif replica.reads_only:
                replica.members.remove(r)
                replica.kept.append(r)
                self.source[r] = replica
                self.send(r)

    def token(self, replica, r):
        self.made[r] += 1
        if self.made[r] > 1:
            self.out.gaps.append(self.now - self.last[r])
        self.last[r] = self.now
        if self.made[r] == 1:
            self.shown(replica, r, False)

    def shown(self, replica, r, last):
        replica.unseen.append((r, last))
        if not self.late:
            self.see(replica)

    def leave(self, replica, r):
        replica.members.remove(r)
        self.let_go(replica, r)
        if self.due[r] < self.now:
            self.end(r, True)
        else:
            self.at[r] = None
            self.shown(replica, r, True)

    def share(self, replica, r):
        """The whole blocks of its prompt that are not here already are for others too."""
        if not self.prefix:
            return
        names, used = replica.names[r], self.used_names(replica)
        further = self.hashes[r][len(names) : self.prompt[r] // self.prefix]
        new = [name for name in dict.fromkeys(further) if name not in used]
        replica.idle = [name for name in replica.idle if name not in new]
        replica.names[r] = names + new

    # What happens

    def fail(self, device):
        self.up[device] = False
        lost = next((one for one in self.all if one.device == device), None)
        if lost is None:
            return
        self.all.remove(lost)
        self.missing.append(lost.reads_only)
        self.see(lost)
        self.flows = [flow for flow in self.flows if flow.done != ("model", lost)]
        inside = lost.members + lost.loading
        for r in lost.members:
            self.out.stops[r] += 1
        for r in lost.loading:
            self.forget_flow(r)
            self.release_source(r)
        for r in inside + [r for r in lost.waiting + lost.coming if self.source[r] is None]:
            self.anew(r)
        orphans, self.lobby = sorted({*self.lobby, *inside, *lost.waiting, *lost.coming}), []
        for r in lost.kept:
            if r in orphans:
                self.anew(r)
                continue
            other = self.at[r]
            self.forget_flow(r)
            self.anew(r)
            self.at[r] = other
            if r in other.loading:
                other.loading.remove(r)
                other.here = [one for one in other.here if one != r]
                self.put(other, r)
        self.replace()
        for r in orphans:
            if self.due[r] <= self.now:
                self.end(r, True)
            else:
                self.send(r)

    def replace(self):
        taken = {one.device for one in self.all}
        for device in [d for d, up in enumerate(self.up) if up and d not in taken]:
            if not self.missing:
                return
            new = Replica(self.numbered, device, self.missing.pop(0), loaded=False)
            self.numbered += 1
            self.all.append(new)
            self.flows.append(Flow((("up", device),), self.model, ("model", new)))

    def slow(self, device, factor):
        ratio, self.pace[device] = factor / self.pace[device], factor
        for one in self.all:
            if one.device == device and one.step is not None:
                since = max(self.now, one.step["begun"])
                one.step["ends"] = since + (one.step["ends"] - since) * ratio

    def forget_flow(self, r):
        self.flows = [flow for flow in self.flows if flow.done != ("keys", r)]

    def release_source(self, r):
        source, self.source[r] = self.source[r], None
        if source is not None and r in source.kept:
            source.kept.remove(r)
            self.let_go(source, r)

    def arrived(self, flow):
        kind, what = flow.done
        if kind == "keys":
            self.release_source(what)
            self.at[what].here.append(what)
            return
        what.loaded = True
        lobby, self.lobby = self.lobby, []
        for r in lobby:
            self.send(r)

    def abort(self, r):
        replica = self.at[r]
        self.forget_flow(r)
        self.release_source(r)
        at = (replica.waiting, replica.coming, replica.loading, replica.here) if replica else ()
        for line in (self.lobby, *at):
            if r in line:
                line.remove(r)
        self.end(r, True, self.due[r])

    def outside(self):
        """Requests that are in no step and have not ended."""
        inside = {r for one in self.all for r in one.members}
        return [r for r, over in enumerate(self.over) if not over and r not in inside and r not in self.coming]

    def share_links(self):
        """Max-min: the flows of the narrowest pipe get its equal parts, and so on with what is left."""
        rates, room = {}, {}
        for flow in self.flows:
            room.update(dict.fromkeys(flow.pipes, LINK))
        while len(rates) < len(self.flows):
            unset = [flow for flow in self.flows if flow not in rates]
            parts = {p: room[p] / n for p in room if (n := sum(p in flow.pipes for flow in unset))}
            pipe = min(parts, key=parts.__getitem__)
            for flow in unset:
                if pipe in flow.pipes:
                    rates[flow] = parts[pipe]
                    for p in flow.pipes:
                        room[p] -= parts[pipe]
        for flow, rate in rates.items():
            flow.rate = rate

    def run(self):
        while not all(self.over):
            self.share_links()
            ends = [self.now + flow.left / flow.rate for flow in self.flows]
            dues = [self.due[r] for r in self.outside() if self.due[r] < math.inf]
            times = [one.step["ends"] for one in self.all if one.step] + ends + dues
            times += [self.arrival[r] for r in self.coming[:1]] + [event[0] for event in self.faults[:1]]
            before, self.now = self.now, min(times)
            due = [flow for flow, end in zip(self.flows, ends, strict=True) if end == self.now]
            for flow in self.flows:
                flow.left -= flow.rate * (self.now - before)
            for one in [one for one in self.all if one.step and one.step["ends"] == self.now]:
                self.settle(one)
            for flow in due:
                self.flows.remove(flow)
                self.arrived(flow)
            while self.faults and self.faults[0][0] == self.now:
                _, device, kind, *factor = self.faults.pop(0)
                if kind == "down":
                    self.fail(device)
                elif kind == "slow":
                    self.slow(device, *factor)
                else:
                    self.up[device] = True
                    self.replace()
            for r in [r for r in self.outside() if self.due[r] <= self.now]:
                self.abort(r)
            while self.coming and self.arrival[self.coming[0]] == self.now:
                self.send(self.coming.pop(0))
            for one in self.all:
                if one.loaded and one.step is None:
                    self.boundary(one)
        return self.out


def step_by_step(*requests, **rules) -> Steps:
    return Service(*requests, **rules).run()
