"""Schedulers whose actions a trained model chooses."""

from hetsim.errors import ScenarioError, UsageError
from hetsim.learning.environment.acting import Acting, Actions, Choice
from hetsim.learning.environment.episode import Episodes
from hetsim.learning.observation.window import SCHEDULING, Layout
from hetsim.policy.contract import PlanProblem


def scheduler_of(episodes: Episodes, choice: Choice, name: str = "trained") -> type[Acting]:
    """Create a scheduler class with this name, whose actions `choice` chooses."""
    if episodes.decides != SCHEDULING:
        raise UsageError("as_scheduler needs an environment whose actions schedule; this environment decides admission")
    if not callable(choice):
        raise UsageError(f"a trained model must be a function of observation and mask; got {choice!r}")
    layout, count = episodes.layout, episodes.actions

    class Trained(Acting):
        def __init__(self) -> None:
            super().__init__(
                episodes.window, episodes.scale, episodes.switches, observation=episodes.observer, choice=choice,
                order=episodes.order
            )

        def check(self, problem: PlanProblem) -> None:
            here = Layout.for_cluster(problem.cluster, self.window)
            actions = Actions(problem, here.types, self.window, self.switches)
            if (here.types, actions.count) != (layout.types, count):
                raise ScenarioError(
                    f"the model was trained for the device types {', '.join(layout.types)} and {count} actions; here "
                    f"there are {', '.join(here.types)} and {actions.count}"
                )
            super().check(problem)

    Trained.__name__ = Trained.__qualname__ = name
    # A class of this name at the top of the module of `choice` can be sent to worker processes.
    Trained.__module__ = getattr(choice, "__module__", None) or __name__
    return Trained
