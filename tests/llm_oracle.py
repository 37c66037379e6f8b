"""One replica of a language model without jumps: every step is taken, everything is recounted.

Written for the tests from the rules in the guide, without the engine and its policies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

F, S, P, C = 0.010, 0.001, 0.0001, 0.00001
"""Seconds of a step, for each sequence that decodes, each prompt token, and each token of context."""


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


def step_by_step(
    arrival, prompt, output, *, budget=None, most=256, blocks=1 << 40, block=16, phases="mixed", order="fcfs",
    reserve="none", longest=None, pause=0, timeout=math.inf, client=None, weights=(1.0, 2.0),
):  # fmt: skip
    count, now, waiting, members, coming = len(arrival), 0.0, [], [], list(range(len(arrival)))
    made, left, last = [0] * count, list(prompt), [0.0] * count
    done = Steps([0.0] * count, [0.0] * count, [0] * count, [False] * count)
    longest, client = longest or output, client or [""] * count
    due = [at + timeout for at in arrival]
    counter, since_read = dict.fromkeys(client, 0.0), math.inf
    decodes = lambda r: left[r] == 0  # noqa: E731
    held = lambda r: -(-(prompt[r] + made[r] - (made[r] > 0 and decodes(r))) // block)  # noqa: E731
    following = lambda r: -(-(prompt[r] + made[r]) // block)  # noqa: E731

    def queue(r):
        if client[r] not in [client[w] for w in waiting] and waiting:
            counter[client[r]] = max(counter[client[r]], min(counter[client[w]] for w in waiting))
        waiting.append(r)
        waiting.sort(key=lambda r: (arrival[r], r))

    def head():
        if order != "vtc":
            return waiting[0]
        firsts = {client[w]: w for w in reversed(waiting)}
        return firsts[min(firsts, key=lambda c: (counter[c], arrival[firsts[c]], c))]

    def need(r):
        """Tokens that the members and this one may come to hold, if each answer becomes as long as it may."""
        inside = [*members, r]
        if reserve == "whole":
            return sum(prompt[m] + longest[m] + block - 2 for m in inside)
        read = [made[m] + (left[m] > 0) for m in inside]  # once their prompts are read they have a token more
        ends = [max(0, longest[m] - now_ - 1) for m, now_ in zip(inside, read, strict=True)]
        return max(
            sum(prompt[m] + min(now_ + t, longest[m] - 1) + block - 1
                for m, now_, end in zip(inside, read, ends, strict=True) if end >= t)
            for t in ends
        )  # fmt: skip

    def may_join(r):
        used = sum(map(following, members))
        if len(members) >= most or used + following(r) > blocks:
            return False
        if not members:
            return True
        decoding, reading = sum(map(decodes, members)), sum(left[m] for m in members)
        if phases == "decode_first" and decoding:
            return False
        if decoding and since_read < pause:
            return False
        if budget is not None and phases == "mixed" and decoding + reading >= budget:
            return False
        if budget is not None and phases != "mixed" and reading and reading + left[r] > budget:
            return False
        if reserve != "none":
            return need(r) <= blocks * block
        return blocks - sum(map(held, members)) - following(r) >= 0.01 * blocks

    while coming or waiting or members:
        if not waiting and not members:
            now = max(now, arrival[coming[0]])
        for r in [r for r in waiting if due[r] <= now]:
            waiting.remove(r)
            done.finish[r], done.aborted[r] = due[r], True
        while coming and arrival[coming[0]] <= now:
            r = coming.pop(0)
            if due[r] <= now:
                done.finish[r], done.aborted[r] = due[r], True
            else:
                queue(r)
        stopped = False
        while sum(following(r) if decodes(r) else held(r) for r in members) > blocks and any(map(decodes, members)):
            r = members.pop()
            if not made[r]:
                counter[client[r]] -= weights[0] * prompt[r]
            left[r], done.stops[r], stopped = prompt[r] + made[r], done.stops[r] + 1, True
            queue(r)
        while waiting and not (stopped and members) and may_join(head()):
            r = head()
            waiting.remove(r)
            members.append(r)
            counter[client[r]] += 0 if made[r] else weights[0] * prompt[r]
        if not members:
            continue
        decoding = list(filter(decodes, members))
        room, prefill = math.inf if budget is None else budget - (len(decoding) if phases == "mixed" else 0), []
        for r in members:
            take = min(left[r], room)
            if phases != "mixed" and prefill and take < left[r]:
                break
            room -= take
            if take:
                prefill.append((r, take))
        if phases != "mixed" and prefill:
            decoding = []
        began, using = now, len(members)
        now += F + P * sum(n for _, n in prefill) + sum(S + C * (prompt[r] + made[r]) for r in decoding)
        since_read = (0 if prefill else since_read) + bool(decoding)
        for r, n in prefill:
            left[r] -= n
        tokens, used = sum(n for _, n in prefill) + len(decoding), 0
        for r in decoding + [r for r, _ in prefill if not left[r]]:
            if due[r] < now and r not in decoding:
                left[r] = 1  # it leaves before its prompt counts as read
                continue
            if r in decoding:
                counter[client[r]] += weights[1]
            made[r] += 1
            if made[r] > 1:
                done.gaps.append(now - last[r])
            last[r] = now
            done.first[r] = done.first[r] or now
        used = sum(map(held, members))
        done.rows.append((began, now, tokens, used, using))
        for r in list(members):
            if due[r] < now or made[r] == output[r]:
                members.remove(r)
                done.finish[r], done.aborted[r] = now, due[r] < now
        for r in [r for r in members if due[r] == now]:
            members.remove(r)
            done.finish[r], done.aborted[r] = now, True
    return done
