"""Where copies of items lie while the timetable of a plan is worked out: on hosts and accelerators, as the engine keeps
them but for memory, which is not limited.  A place is the index of an accelerator, or -1 - node for host memory."""

from __future__ import annotations

from collections.abc import Sequence

from hetsim.model.cluster import Device
from hetsim_policies.static.common.instance import Instance


class Copies:
    """Where copies of items lie, as the engine keeps them; memory is not limited."""

    def __init__(self, instance: Instance):
        self.tasks, self.cluster = instance.problem.tasks, instance.problem.cluster
        reads, writes = self.tasks.reads or (), self.tasks.writes or ()
        count = len(self.tasks.items)
        self.readers, self.writers = [0] * count, [0] * count
        for row in reads:
            for item in row:
                self.readers[item] += 1
        for row in writes:
            for item in row:
                self.writers[item] += 1
        self.made = [writers > 0 for writers in self.writers]
        hosts = {-1 - node.index: None for node in self.cluster.nodes}
        data = instance.problem.data
        self.where: list[dict[int, None]] = []
        for index, known in enumerate(self.tasks.items):
            if index in data:
                self.where.append({h.index if isinstance(h, Device) else -1 - h: None for h in data[index]})
            elif known.home is not None:
                self.where.append({-1 - known.home: None})
            else:
                self.where.append({} if self.made[index] else dict(hosts))

    def _row(self, rows: Sequence[tuple[int, ...]] | None, task: int) -> tuple[int, ...]:
        return rows[task] if rows is not None else ()

    def anything(self, task: int, place: int, device: Device) -> bool:
        """Must anything that the task reads be brought?"""
        return bool(self.sources(task, place, device))

    def sources(self, task: int, place: int, device: Device) -> dict[int, tuple[float, list[int]]]:
        """Bytes and items to bring, by where they come from; what lies on a core's own host is there."""
        found: dict[int, tuple[float, list[int]]] = {}
        for item in dict.fromkeys(self._row(self.tasks.reads, task)):
            if place in self.where[item]:
                continue
            source = self._source(item, device)
            if source is not None:
                total, items = found.get(source, (0.0, []))
                found[source] = total + self.tasks.items[item].size, [*items, item]
        return found

    def _source(self, item: int, device: Device) -> int | None:
        """This node's host, an accelerator of this node, another host, another node's accelerator; None: no copy."""
        best, best_rank = None, 4
        for place in self.where[item]:
            node = -1 - place if place < 0 else self.cluster.devices[place].node
            rank = (0 if node == device.node else 2) + (place >= 0)
            if rank < best_rank:
                best, best_rank = place, rank
        return best

    def arrived(self, items: Sequence[int], place: int) -> None:
        for item in items:
            if self.where[item]:
                self.where[item][place] = None

    def written(self, task: int, place: int) -> None:
        for item in self._row(self.tasks.writes, task):
            self.where[item] = {place: None}

    def final_bytes(self, task: int) -> float:
        """Bytes of what the task wrote and nothing that has not ended reads or writes."""
        return float(sum(self.tasks.items[item].size for item in self._row(self.tasks.writes, task)
                         if self._final(item, task)))  # fmt: skip

    def _final(self, item: int, task: int) -> bool:
        mine = item in self._row(self.tasks.reads, task), item in self._row(self.tasks.writes, task)
        return self.readers[item] <= mine[0] and self.writers[item] <= mine[1]

    def ended(self, task: int, node: int) -> None:
        for item in self._row(self.tasks.writes, task):
            if self._final(item, task):
                self.where[item] = {-1 - node: None}
        for item in self._row(self.tasks.writes, task):
            self.writers[item] -= 1
        for item in self._row(self.tasks.reads, task):
            self.readers[item] -= 1
            unused = not self.readers[item] and not self.writers[item] and self.made[item]
            if unused and item not in self._row(self.tasks.writes, task):
                self.where[item] = {}
