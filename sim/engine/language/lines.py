"""Requests that wait for a replica: in one line in the order of a key, or in a line for each client."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from sim.engine.language.generation import QUEUED, Generation

Entry = tuple[Any, int, Generation]


class Line:
    """One line.  Requests that have gone stay in it until they come up."""

    def __init__(self, replica: Any):
        self.replica = replica
        self.heap: list[Entry] = []

    def push(self, key: Any, request: Generation) -> None:
        heappush(self.heap, (key, request.row, request))

    def head(self) -> Generation | None:
        """The request that is next to join; None if none waits."""
        heap, replica = self.heap, self.replica
        while heap:
            request = heap[0][2]
            if request.state == QUEUED and request.replica is replica:
                return request
            heappop(heap)
        return None

    def pop(self) -> None:
        """The head joins."""
        heappop(self.heap)

    def everyone(self) -> list[Generation]:
        """All that wait, in order."""
        return [
            request
            for _, _, request in sorted(self.heap, key=lambda entry: entry[:2])
            if request.state == QUEUED and request.replica is self.replica
        ]

    def clear(self) -> None:
        self.heap = []


class Lines(Line):
    """A line for each client; the policy chooses the next client.  Cost: O(waiting clients) a look at the head."""

    def __init__(self, replica: Any):
        super().__init__(replica)
        self.of: dict[str, Line] = {}
        self.chosen: Line | None = None

    def push(self, key: Any, request: Generation) -> None:
        replica = self.replica
        line = self.of.get(request.client)
        if line is None or line.head() is None:
            waiting = [client for client, other in self.of.items() if other.head() is not None]
            replica.fleet.call(replica.policy.queued, replica, request, waiting)
            line = self.of[request.client] = Line(replica)
        else:
            replica.fleet.call(replica.policy.queued, replica, request, [request.client])
        line.push(key, request)

    def heads(self) -> dict[str, Generation]:
        """The first request of each client that has any."""
        found = {}
        for client in list(self.of):
            head = self.of[client].head()
            if head is None:
                del self.of[client]
            else:
                found[client] = head
        return found

    def head(self) -> Generation | None:
        heads = self.heads()
        if not heads:
            self.chosen = None
            return None
        client = next(iter(heads))
        if len(heads) > 1:
            fleet = self.replica.fleet
            client = fleet.call(self.replica.policy.turn, self.replica, heads)
            if client not in heads:
                raise fleet.illegal(f"says that it is the turn of {client!r}, a client without waiting requests")
        self.chosen = self.of[client]
        return heads[client]

    def pop(self) -> None:
        assert self.chosen is not None
        self.chosen.pop()

    def everyone(self) -> list[Generation]:
        return [request for line in self.of.values() for request in line.everyone()]

    def clear(self) -> None:
        self.of = {}
