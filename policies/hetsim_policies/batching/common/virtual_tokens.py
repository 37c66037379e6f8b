"""Virtual token counters: what each client of a language model has been served, in weighted tokens.

The next request is that of the waiting client with the least counter.  A counter grows by `input_weight` for each token
of a prompt when its request joins, and by `output_weight` for each token that a step decodes (the first token of an
answer comes with its prompt), divided by the weight of the request.  A client that had nothing waiting is lifted to the
least counter of those that have, so no client saves up service while away.
Reference: Sheng, Cao, Li, Zhu, Li, Zhuo, Gonzalez and Stoica, Fairness in Serving Large Language Models (OSDI 2024):
of two clients that both wait all the time, the services differ by at most
2 max(input_weight × longest prompt, output_weight × tokens in a batch), whatever they send.
Weakness: fairness between clients only: the longest requests of a client wait no longer than its others.
Counters are of one replica; several replicas are fair each by itself.
Cost: O(log waiting clients) for each client with requests in the replica or that has come or gone since the last look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from heapq import heappop, heappush, heapreplace
from typing import Any

Bound = tuple[float, float, str]
"""Counter and arrival of the first request of a client, or less, and the client."""


class TokenAccount:
    """One client: its counter is a linear function of the steps in which the replica has decoded."""

    __slots__ = ("charged", "decoding")

    def __init__(self) -> None:
        self.charged = 0.0
        """Tokens of requests that left, and of the prompts of those in the replica."""
        self.decoding: dict[float, list[int]] = {}
        """By weight: the number of its requests that decode, and the sum of the steps at which they began to."""


class Accounts(dict[str, TokenAccount]):
    """By client."""

    def __missing__(self, client: str) -> TokenAccount:
        self[client] = new = TokenAccount()
        return new


class VirtualTokens:
    """The counters of one replica.

    steps: everywhere the steps in which the replica has decoded so far.
    heads: everywhere the first waiting request of each client that has any.
    """

    def __init__(self, input_weight: float, output_weight: float):
        self.input_weight = input_weight
        self.output_weight = output_weight
        self.accounts = Accounts()
        self.begun: dict[Any, int] = {}
        """Requests that decode, and the step at which they began to."""
        self.heap: list[Bound] = []
        """Lower bounds of the counters of clients that wait: counters grow with every step, so a bound is corrected
        when it comes up.  One of them is valid for each client, that in `bounds`; it stays one while nothing waits."""
        self.bounds: dict[str, Bound] = {}

    def counter(self, client: str, steps: int) -> float:
        account = self.accounts[client]
        total = account.charged
        for weight, (count, begun) in account.decoding.items():
            total += self.output_weight * (count * steps - begun) / weight
        return total

    def _pace(self, client: str) -> float:
        """What a step adds to the counter."""
        decoding = self.accounts[client].decoding
        return sum([self.output_weight * count / weight for weight, (count, _) in decoding.items()])

    def queued(self, request: Any, heads: Mapping[str, Any], steps: int) -> None:
        """A client sends a request: lift it to the least of those that wait if it has none that does."""
        client, bounds = request.client, self.bounds
        bound = bounds.get(client)
        if bound is not None and request.arrival < bound[1]:
            self._bound(client, bound[0], request.arrival)
        if not heads:
            return  # a client that waits alone needs no bound
        if len(heads) == 1:
            only = next(iter(heads))
            if only not in bounds:
                self._bound(only, self.counter(only, steps), heads[only].arrival)
        if client not in heads:
            account = self.accounts[client]
            least = self.counter(self.turn(heads, steps), steps)
            account.charged += max(0.0, least - self.counter(client, steps))
            if client not in bounds:
                self._bound(client, self.counter(client, steps), request.arrival)

    def joined(self, request: Any) -> None:
        if not request.produced:
            self.accounts[request.client].charged += self._prompt(request)

    def decodes(self, request: Any, steps: int) -> None:
        """It takes part in each step from now on."""
        self.begun[request] = steps
        group = self.accounts[request.client].decoding.setdefault(request.weight, [0, 0])
        group[0] += 1
        group[1] += steps

    def left(self, request: Any, over: bool, steps: int) -> None:
        """It leaves the replica.

        If preempted before its first token, it pays for its prompt when it joins again.
        """
        client, weight = request.client, request.weight
        account = self.accounts[client]
        begun = self.begun.pop(request, None)
        if begun is not None:
            account.charged += self.output_weight * (steps - begun) / weight
            group = account.decoding[weight]
            group[0] -= 1
            group[1] -= begun
            if not group[0]:
                del account.decoding[weight]
        if not over and not request.produced:
            account.charged -= self._prompt(request)
            if client in self.bounds:
                self._bound(client, self.counter(client, steps), self.bounds[client][1])

    def _prompt(self, request: Any) -> float:
        return self.input_weight * float(request.prompt) / float(request.weight)

    def _bound(self, client: str, counter: float, arrival: float) -> None:
        self.bounds[client] = bound = (counter, arrival, client)
        heappush(self.heap, bound)

    def turn(self, heads: Mapping[str, Any], steps: int) -> str:
        """The client with the least counter; ties go to the one with the oldest request."""
        heap, bounds = self.heap, self.bounds
        while True:
            bound = heap[0]
            client = bound[2]
            if bounds.get(client) is not bound:
                heappop(heap)
                continue
            head = heads.get(client)
            if head is None:
                heappop(heap)
                del bounds[client]
                continue
            now = (self.counter(client, steps), head.arrival, client)
            if now == bound:
                return client
            bounds[client] = now
            heapreplace(heap, now)

    def steps_until_turn(self, client: str, heads: Mapping[str, Any], steps: int, most: int) -> int:
        """After how many steps that only decode, `most` at most, it may be another's turn than this client's."""
        own, pace = self.counter(client, steps), self._pace(client)
        if not pace:
            return most
        soonest: float = most
        heap, bounds = self.heap, self.bounds
        places = [0]
        while places and soonest > 1:
            place = places.pop()
            if place >= len(heap):
                continue
            bound = heap[place]
            if bound[0] - own >= soonest * pace:  # nor does any that stands below it in the heap
                continue
            places += (2 * place + 1, 2 * place + 2)
            other = bound[2]
            if other == client or bounds.get(other) is not bound or other not in heads:
                continue
            faster = pace - self._pace(other)
            if faster > 0:
                soonest = min(soonest, (self.counter(other, steps) - own) / faster)
        return max(1, math.ceil(soonest - 1e-9))


class Counters(dict[int, VirtualTokens]):
    """Those of each replica, by its number."""

    def __init__(self, input_weight: float, output_weight: float):
        super().__init__()
        self.weights = (input_weight, output_weight)

    def __missing__(self, number: int) -> VirtualTokens:
        self[number] = new = VirtualTokens(*self.weights)
        return new
