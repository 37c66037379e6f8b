"""Requests that wait for a replica: in one line in the order of a key, or in a line for each client."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Any

from hetsim.engine.language.generation import QUEUED, Generation

Entry = tuple[Any, int, Generation]


class Line:
    """One line.  Requests that have gone stay in it until they come up."""

    heads: Mapping[str, Generation] = MappingProxyType({})
    """The first request of each client that has any, where there is a line for each."""

    def __init__(self, replica: Any):
        self.replica = replica
        self.heap: list[Entry] = []

    def push(self, key: Any, request: Generation) -> None:
        heappush(self.heap, (key, request.row, request))

    def move(self, key: Any, request: Generation) -> None:
        """A request that waits has another key."""
        self._move(self.heap, key, request)

    @staticmethod
    def _move(heap: list[Entry], key: Any, request: Generation) -> None:
        heap[:] = [entry for entry in heap if entry[2] is not request]
        heap.append((key, request.row, request))
        heapify(heap)

    def head(self) -> Generation | None:
        """The request that is next to join; None if none waits."""
        return self._first(self.heap)

    def _first(self, heap: list[Entry]) -> Generation | None:
        """The first of a line; those before it that have gone are thrown out."""
        replica = self.replica
        while heap:
            request = heap[0][2]
            if request.state == QUEUED and request.replica is replica:
                return request
            heappop(heap)
        return None

    def pop(self) -> None:
        """The head joins."""
        heappop(self.heap)

    def gone(self, request: Generation) -> None:
        """A request waits no longer; its state says so."""

    def everyone(self) -> list[Generation]:
        """All that wait, in order."""
        return self._waiting(self.heap)

    def _waiting(self, line: list[Entry]) -> list[Generation]:
        return [
            request
            for _, _, request in sorted(line, key=lambda entry: entry[:2])
            if request.state == QUEUED and request.replica is self.replica
        ]

    def clear(self) -> None:
        self.heap = []


class Lines(Line):
    """A line for each client; the policy chooses the next client.  Cost: O(log waiting) a request, and the policy's."""

    def __init__(self, replica: Any):
        super().__init__(replica)
        self.of: dict[str, list[Entry]] = {}
        """The line of each client; one that is empty stays for its next request."""
        self.heads: dict[str, Generation] = {}
        self.chosen = ""

    def push(self, key: Any, request: Generation) -> None:
        replica, client, heads = self.replica, request.client, self.heads
        replica.fleet.call(replica.policy.queued, replica, request)
        line = self.of.get(client)
        if line is None:
            line = self.of[client] = []
        heappush(line, (key, request.row, request))
        if client not in heads or line[0][2] is request:
            heads[client] = request

    def move(self, key: Any, request: Generation) -> None:
        line = self.of[request.client]
        self._move(line, key, request)
        self.heads[request.client] = line[0][2]

    def gone(self, request: Generation) -> None:
        if self.heads.get(request.client) is request:
            self.pop_of(request.client)

    def pop_of(self, client: str) -> None:
        """The head of a client waits no longer; those behind it that do not either go with it."""
        line = self.of[client]
        heappop(line)
        request = self._first(line)
        if request is None:
            del self.heads[client]
        else:
            self.heads[client] = request

    def head(self) -> Generation | None:
        heads = self.heads
        if not heads:
            return None
        if len(heads) == 1:
            self.chosen = next(iter(heads))
        else:
            fleet = self.replica.fleet
            self.chosen = client = fleet.call(self.replica.policy.turn, self.replica)
            if client not in heads:
                raise fleet.illegal(f"says that it is the turn of {client!r}, a client without waiting requests")
        return heads[self.chosen]

    def pop(self) -> None:
        self.pop_of(self.chosen)

    def everyone(self) -> list[Generation]:
        return [request for line in self.of.values() for request in self._waiting(line)]

    def clear(self) -> None:
        self.of = {}
        self.heads = {}
