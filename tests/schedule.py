"""Hands tests to processes, group by group; loaded where pytest-xdist is installed."""

from __future__ import annotations

from collections.abc import Sequence

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class Groups(LoadGroupScheduling):
    """`--dist loadgroup` in constant time a test.

    That of pytest-xdist counts after each test what is to be done in all groups that the process ever had, and looks
    for each test's number in a list: with 12,000 tests 10 s of processor time.
    """

    def __init__(self, config: object, log: object = None) -> None:
        super().__init__(config, log)  # type: ignore[arg-type]
        self._numbers: dict[int, dict[str, int]] = {}

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        self._numbers[id(node)] = {name: number for number, name in enumerate(collection)}

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        name = self.registered_collections[node][item_index]
        group = self._split_scope(name)
        work = self.assigned_work[node]
        work[group][name] = True
        if all(work[group].values()):
            del work[group]
        self._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        group, tests = self.workqueue.popitem(last=False)
        self.assigned_work.setdefault(node, {})[group] = tests
        numbers = self._numbers[id(node)]
        node.send_runtest_some([numbers[name] for name, done in tests.items() if not done])
