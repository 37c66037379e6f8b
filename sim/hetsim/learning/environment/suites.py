"""Fixed suites of loads to train on and to be judged by, by name.

    suite = hetsim.learning.environment.suites.suite("deeprm")
    env = suite.environment()                    # of its first training load; suite.environment(load) of another
    suite.judge(env.scheduler(choice)).table     # the test load, compared with BASELINES, with confidence intervals

Training loads are those that `reset` gives, or graphs of their own; test loads are replications of the scenario's own
seed, which no training meets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hetsim.errors import UnknownName
from hetsim.learning.environment.rewards import Makespan, Slowdown

if TYPE_CHECKING:
    from hetsim.learning.environment.gym import SchedulingEnv
    from hetsim.results.many_runs.compare import Comparison
    from hetsim.scenario.scenario import Scenario

BASELINES: dict[str, Any] = {
    **{name: name for name in ("fcfs", "fcfs_skip", "random", "sjf", "wfp3", "unicep", "f1", "saf")},
    "packer": {"scheduler": {"name": "tetris", "shortness": 0}},
}
"""What is compared with whatever was learned, here and at the end of `hetsim.train`."""


@dataclass(frozen=True)
class Suite:
    """A suite: loads to train on and to be judged by, what is seen, and the metric.

    train, test: names of loads.  replications: test runs of each.  options: of the environment.
    """

    name: str
    about: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    metric: str
    replications: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def scenario(self, load: str) -> Scenario:
        """The scenario of a load; UnknownName for another."""
        from hetsim.scenario.file.shipped import find
        from hetsim.scenario.scenario import load as read

        loads = dict.fromkeys((*self.train, *self.test))
        if load not in loads:
            raise UnknownName(f"load of the suite {self.name}", str(load), loads, f"; it has {', '.join(loads)}")
        if not load.startswith("cholesky-"):
            return read(load)
        graph = find("cholesky-8").parent / f"{load}.csv"
        return read("cholesky-8", {"workload.trace.path": str(graph), "name": load})

    def environment(self, load: str | None = None) -> SchedulingEnv:
        """The environment of a load, by default of the first training load."""
        from hetsim.learning.environment.gym import SchedulingEnv, space_of

        env = SchedulingEnv(self.scenario(self.train[0] if load is None else load), **self.options)
        largest = self.test[-1]
        if load != largest and len(self.train) > 1:
            other = SchedulingEnv(self.scenario(largest), **self.options).episodes
            env.episodes.first, env.episodes.scale = other.first, other.scale
            env.observation_space = space_of(env.episodes)
        return env

    def judge(self, policy: Any, load: str | None = None, **more: Any) -> Comparison:
        """Compare a policy on a test load, the first unless named, with `BASELINES`.

        A policy is a class, a name or a mapping; `more` as in `hetsim.compare`.
        """
        from hetsim.experiment.compare import compare

        name = self.test[0] if load is None else load
        if name not in self.test:
            raise UnknownName(f"test load of {self.name}", str(name), self.test, f"; it has {', '.join(self.test)}")
        more = {"metrics": [self.metric], "replications": self.replications, **more}
        policies: dict[str, Any] = {"mine": policy, **BASELINES}
        return compare(self.scenario(name), policies, **more)


SUITES = {suite.name: suite for suite in (
    Suite("deeprm", "The job sets of DeepRM (HotNets 2016): ten cores, 10 GB, a load of 130 %.",
          ("deeprm",), test=("deeprm",), metric=Slowdown.metric, replications=50, options={"window": 10}),
    Suite("affinity", "Jobs that lose different parts of their speed on old GPUs, with gangs among them.",
          ("learned-affinity",), test=("learned-affinity",), metric=Slowdown.metric, replications=20),
    Suite("cholesky", "Cholesky graphs of 4, 5 and 6 tiles to train on, of 8 to be judged by; the graph is observed.",
          ("cholesky-4", "cholesky-5", "cholesky-6"), test=("cholesky-8",), metric=Makespan.metric, replications=1,
          options={"observation": "graph", "reward": Makespan.name}),
)}  # fmt: skip


def suite(name: str) -> Suite:
    """The suite of that name; UnknownName otherwise."""
    if name not in SUITES:
        raise UnknownName("suite", str(name), SUITES, f"; the suites are {', '.join(SUITES)}")
    return SUITES[name]
