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
Cost: O(members + clients that wait) a look at the head of the queue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


class VirtualTokens:
    """The counters of one replica."""

    def __init__(self, input_weight: float, output_weight: float):
        self.input_weight = input_weight
        self.output_weight = output_weight
        self.charged: dict[str, float] = {}
        """Tokens of requests that left, and of the prompts of those in the replica."""
        self.inside: dict[str, list[tuple[Any, int]]] = {}
        """Requests in the replica, and how many of their tokens no step decodes."""

    def counter(self, client: str) -> float:
        running = sum(self._decoded(request, free) for request, free in self.inside.get(client, ()))
        return self.charged.get(client, 0.0) + running

    def _decoded(self, request: Any, free: int) -> float:
        return self.output_weight * max(0, request.produced - free) / request.weight

    def queued(self, client: str, waiting: Iterable[str]) -> None:
        """A client sends a request while these have some that wait: lift it if it has none."""
        others = list(waiting)
        if others and client not in others:
            least = min(self.counter(other) for other in others)
            self.charged[client] = self.charged.get(client, 0.0) + max(0.0, least - self.counter(client))

    def joined(self, request: Any) -> None:
        client = request.client
        if not request.produced:
            self.charged[client] = self.charged.get(client, 0.0) + self._prompt(request)
        self.inside.setdefault(client, []).append((request, request.produced + bool(request.left)))

    def left(self, request: Any, over: bool) -> None:
        """It leaves the replica.

        If preempted before its first token, it pays for its prompt when it joins again.
        """
        client = request.client
        for place, (other, free) in enumerate(self.inside[client]):
            if other is request:
                del self.inside[client][place]
                self.charged[client] += self._decoded(request, free)
                break
        if not over and not request.produced:
            self.charged[client] -= self._prompt(request)

    def _prompt(self, request: Any) -> float:
        return self.input_weight * float(request.prompt) / float(request.weight)

    def turn(self, heads: Mapping[str, Any]) -> str:
        """The client with the least counter; ties go to the one with the oldest request."""
        return min(heads, key=lambda client: (self.counter(client), heads[client].arrival, client))

    def steps_until_turn(self, client: str, waiting: Iterable[str]) -> float:
        """After how many steps that only decode it may be another's turn than this client's."""
        own, pace = self.counter(client), self._pace(client)
        soonest = math.inf
        for other in waiting:
            faster = pace - self._pace(other)
            if other != client and faster > 0:
                soonest = min(soonest, (self.counter(other) - own) / faster)
        return soonest if math.isinf(soonest) else max(1, math.ceil(soonest - 1e-9))

    def _pace(self, client: str) -> float:
        return sum(self.output_weight / request.weight for request, _ in self.inside.get(client, ()))
