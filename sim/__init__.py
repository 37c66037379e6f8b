"""hetsim: which scheduling policy should this CPU+GPU cluster use under this load, and what will it do?

    result = sim.run("deep-learning-mix", policy="sjf")     # one run: result.tasks, result.summary
    found = sim.compare("deep-learning-mix", ["fcfs", "sjf"], replications=10)
    scenario = sim.load("deep-learning-mix")                # to look at, change and run: a file, a name or a mapping
    again = sim.load("runs/mix")                            # what `hetsim run --out runs/mix` wrote

Names are loaded when they are first used, so that `import sim` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "run": "sim.experiment.run:run",
    "compare": "sim.experiment.compare:compare",
    "sweep": "sim.experiment.sweep:sweep",
    "tune": "sim.experiment.tune:tune",
    "plan": "sim.experiment.plan:plan",
    "plan_precision": "sim.experiment.precision:plan_precision",
    "size": "sim.experiment.size:size",
    "train": "sim.learning.training.train:train",
    "load": "sim.experiment.directory:load",
    "difference": "sim.results.many_runs.difference:difference",
    "register": "sim.registry:register",
    "Scenario": "sim.scenario.scenario:Scenario",
    "Result": "sim.results.one_run.result:Result",
    "Replications": "sim.results.many_runs.replications:Replications",
    "Comparison": "sim.results.many_runs.compare:Comparison",
    "Sweep": "sim.results.many_runs.sweep:Sweep",
    "plots": "sim.plots",
    "errors": "sim.errors",
    "theory": "sim.theory",
}

__all__ = [  # noqa: PLE0604
    "Comparison", "Replications", "Result", "Scenario", "Sweep", "compare", "difference", "errors", "load",
    "plan", "plan_precision", "plots", "register", "run", "size", "sweep", "theory", "train", "tune",
]  # fmt: skip

if TYPE_CHECKING:
    from sim import errors, plots, theory
    from sim.experiment.compare import compare
    from sim.experiment.directory import load
    from sim.experiment.plan import plan
    from sim.experiment.precision import plan_precision
    from sim.experiment.run import run
    from sim.experiment.size import size
    from sim.experiment.sweep import sweep
    from sim.experiment.tune import tune
    from sim.learning.training.train import train
    from sim.registry import register
    from sim.results.many_runs.compare import Comparison
    from sim.results.many_runs.difference import difference
    from sim.results.many_runs.replications import Replications
    from sim.results.many_runs.sweep import Sweep
    from sim.results.one_run.result import Result
    from sim.scenario.scenario import Scenario


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    from importlib import import_module

    module, _, attribute = _WHERE[name].partition(":")
    found = import_module(module)
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
