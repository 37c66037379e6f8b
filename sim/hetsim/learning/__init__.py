"""Scheduling and admission as Gymnasium environments, over the same engine as every run.

    import gymnasium, sim.learning
    env = gymnasium.make("hetsim/Scheduling-v0", scenario="learned-affinity", window=16, reward="slowdown")
    env = gymnasium.make("sim.learning:hetsim/Admission-v0", scenario="overload")      # without the import

Importing this registers the names where Gymnasium is installed (extra `learning`); the environments themselves are
loaded when one is made.  Without Gymnasium `sim.learning.environment.episode` still runs scenarios step by step.
"""

from __future__ import annotations

from importlib.util import find_spec

ENVIRONMENTS = {
    "hetsim/Scheduling-v0": "sim.learning.environment.gym:SchedulingEnv",
    "hetsim/Admission-v0": "sim.learning.environment.gym:AdmissionEnv",
}


def register() -> None:
    """Make the names known to Gymnasium; harmless if they are."""
    from gymnasium.envs.registration import register, registry

    for name, where in ENVIRONMENTS.items():
        if name not in registry:
            register(id=name, entry_point=where)


if find_spec("gymnasium") is not None:
    register()
