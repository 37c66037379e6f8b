"""Requests that wait for a replica, by a key: in one line, or one a client."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from hetsim.engine.language.generation import QUEUED, Generation

Entry = tuple[Any, int, Generation]


class Lines:
    """A line for each client; without `by_client` one for all.

    The policy chooses the next client.  Requests that have gone stay in their line until they come up.
    Cost: O(log waiting) a request, and the policy's.
    """

    def __init__(self, replica: Any, by_client: bool):
        self.replica = replica
        self.by_client = by_client
        self.of: dict[str, list[Entry]] = {}
        """The line of each client; one that is empty stays for its next request."""
        self.heads: dict[str, Generation] = {}
        """The first request of each client that has any."""
        self.chosen = ""

    def push(self, key: Any, request: Generation) -> None:
        client, heads = "", self.heads
        if self.by_client:
            client, replica = request.client, self.replica
            replica.fleet.call(replica.policy.queued, replica, request)
        line = self.of.get(client)
        if line is None:
            line = self.of[client] = []
        heappush(line, (key, request.row, request))
        if client not in heads or line[0][2] is request:
            heads[client] = request

    def move(self, key: Any, request: Generation) -> None:
        """A request that waits has another key."""
        client = request.client if self.by_client else ""
        line = self.of[client]
        line[:] = [entry for entry in line if entry[2] is not request]
        line.append((key, request.row, request))
        heapify(line)
        self._look(client)

    def gone(self, request: Generation) -> None:
        """A request waits no longer; its state says so."""
        client = request.client if self.by_client else ""
        if self.heads.get(client) is request:
            self._look(client)

    def _look(self, client: str) -> None:
        """Find the first of a line; those before it that have gone are thrown out."""
        replica, line = self.replica, self.of[client]
        while line:
            request = line[0][2]
            if request.state == QUEUED and request.replica is replica:
                self.heads[client] = request
                return
            heappop(line)
        self.heads.pop(client, None)

    def head(self) -> Generation | None:
        """The request that is next to join; None if none waits."""
        heads = self.heads
        if not self.by_client or not heads:
            return heads.get("")
        if len(heads) == 1:
            self.chosen = next(iter(heads))
        else:
            fleet = self.replica.fleet
            self.chosen = client = fleet.call(self.replica.policy.turn, self.replica)
            if client not in heads:
                raise fleet.illegal(f"says that it is the turn of {client!r}, a client without waiting requests")
        return heads[self.chosen]

    def pop(self) -> None:
        """The head joins."""
        heappop(self.of[self.chosen])
        self._look(self.chosen)

    def everyone(self) -> list[Generation]:
        """All that wait, each line in order."""
        return [
            request
            for line in self.of.values()
            for _, _, request in sorted(line, key=lambda entry: entry[:2])
            if request.state == QUEUED and request.replica is self.replica
        ]

    def clear(self) -> None:
        self.of = {}
        self.heads = {}
