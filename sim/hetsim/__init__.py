"""hetsim compares scheduling policies of a CPU+GPU cluster under a load.

    import hetsim as hs

    result = hs.run("deep-learning-mix", policy="sjf")     # one run: result.tasks, result.summary
    several = hs.replicate("deep-learning-mix", replications=10)     # means with confidence intervals
    found = hs.compare("deep-learning-mix", ["fcfs", "sjf"], replications=10)
    scenario = hs.load("deep-learning-mix")                # to inspect, change and run; a file or a mapping works, too
    again = hs.Result.load("runs/mix")                     # what `hetsim run --out runs/mix` wrote

Names are loaded when they are first used, so that `import hetsim` costs next to nothing.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hetsim.build import BUILD

__version__ = "0.1.0"
__build__ = BUILD

_WHERE = {
    "run": "hetsim.experiment.run:run",
    "replicate": "hetsim.experiment.run:replicate",
    "compare": "hetsim.experiment.compare:compare",
    "sweep": "hetsim.experiment.sweep:sweep",
    "tune": "hetsim.search.tune:tune",
    "plan": "hetsim.planning.static_plan:plan",
    "plan_precision": "hetsim.experiment.precision:plan_precision",
    "size": "hetsim.search.size:size",
    "train": "hetsim.learning.training.train:train",
    "load": "hetsim.experiment.directory:load",
    "difference": "hetsim.results.many_runs.difference:difference",
    "register": "hetsim.registry:register",
    "metric": "hetsim.results.declared:metric",
    "Scenario": "hetsim.scenario.scenario:Scenario",
    "Result": "hetsim.results.one_run.result:Result",
    "Replications": "hetsim.results.many_runs.replications:Replications",
    "Comparison": "hetsim.results.many_runs.compare:Comparison",
    "Sweep": "hetsim.results.many_runs.sweep:Sweep",
    "plots": "hetsim.plots",
    "errors": "hetsim.errors",
    "theory": "hetsim.theory",
}

__all__ = [  # noqa: PLE0604
    "Comparison", "Replications", "Result", "Scenario", "Sweep", "compare", "difference", "errors", "load",
    "metric", "plan", "plan_precision", "plots", "register", "replicate", "run", "size", "sweep", "theory", "train",
    "tune",
]  # fmt: skip

if TYPE_CHECKING:
    from hetsim import errors, plots, theory
    from hetsim.experiment.compare import compare
    from hetsim.experiment.directory import load
    from hetsim.experiment.precision import plan_precision
    from hetsim.experiment.run import replicate, run
    from hetsim.experiment.sweep import sweep
    from hetsim.learning.training.train import train
    from hetsim.planning.static_plan import plan
    from hetsim.registry import register
    from hetsim.results.declared import metric
    from hetsim.results.many_runs.compare import Comparison
    from hetsim.results.many_runs.difference import difference
    from hetsim.results.many_runs.replications import Replications
    from hetsim.results.many_runs.sweep import Sweep
    from hetsim.results.one_run.result import Result
    from hetsim.scenario.scenario import Scenario
    from hetsim.search.size import size
    from hetsim.search.tune import tune


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'hetsim' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    loaded = import_module(module)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


if "gymnasium" in sys.modules:  # a program that uses Gymnasium may name the environments without their module
    import hetsim.learning  # noqa: F401
