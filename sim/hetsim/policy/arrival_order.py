"""The order of arrival, and a decorator that states an order's queueing model.

The functions have attributes, so this module is not compiled.  Cost: O(log n) per task, O(1) if tasks arrive in order.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from hetsim.model.task import Task

F = TypeVar("F", bound=Callable[..., Any])


def queueing(model: str) -> Callable[[F], F]:
    """Decorator: state an order's or placement's queueing model, for `hetsim theory`."""

    def declared(function: F) -> F:
        function.queueing = model  # type: ignore[attr-defined]
        return function

    return declared


@queueing("order of arrival")
def arrival_order(task: Task) -> float:
    """First come, first served: the order of arrival.

    Reference: the standard order of queueing theory; e.g. Kleinrock, Queueing Systems I (1975).  No task starves, and
    among orders that ignore sizes its response times vary least.  Weakness: short tasks wait behind long ones (the mean
    wait grows with the square of the sizes' coefficient of variation), and a wide head leaves devices empty.
    """
    return task.arrival
