"""Hands tests to processes, group by group, in few messages; loaded where pytest-xdist is installed.

Of a short test, messages between processes take more time than all else that pytest does with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tiers
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

BATCH = 8
"""Short tests that a process is given at once, while there are many."""
MANY = 50
"""Groups for each process, below which it is given one at a time, so that all end at about the same time."""


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
        numbers, given = self._numbers[id(node)], []
        while self.workqueue:
            group, tests = self.workqueue.popitem(last=False)
            self.assigned_work.setdefault(node, {})[group] = tests
            given += [numbers[name] for name, done in tests.items() if not done]
            if len(given) >= BATCH or tiers.cost_of(group) or len(self.workqueue) < MANY * len(self.nodes):
                break
        node.send_runtest_some(given)


OF_A_TEST = ("logstart", "testreport", "logfinish", "warning_recorded")
"""Messages of pytest-xdist that wait for the end of the test."""


def send_by_test(config: pytest.Config) -> None:
    """In a process that runs tests: say all of a test in one message when it has ended, instead of six."""
    worker: Any = next(one for one in config.pluginmanager.get_plugins() if type(one).__name__ == "WorkerInteractor")
    send, waiting = worker.sendevent, list[tuple[str, dict[str, Any]]]()

    def send_or_wait(name: str, **of_it: Any) -> None:
        waiting.append((name, of_it))
        if name not in OF_A_TEST:
            messages = [*waiting]
            waiting.clear()
            if len(messages) > 1:
                send("of_a_test", messages=messages)
            else:
                send(name, **of_it)

    worker.sendevent = send_or_wait


def receive_by_test(node: WorkerController) -> None:
    """In the process that reports: understand what `send_by_test` sends."""
    receive = node.process_from_remote

    def receive_all(message: Any) -> None:
        if isinstance(message, tuple) and message[0] == "of_a_test":
            for one in message[1]["messages"]:
                receive(one)
        else:
            receive(message)

    node.process_from_remote = receive_all  # type: ignore[method-assign]
