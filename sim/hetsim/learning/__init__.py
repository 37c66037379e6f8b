"""Scheduling and admission as Gymnasium environments, on the engine of every run.

    import gymnasium
    name = "hetsim.learning:hetsim/Scheduling-v0"
    env = gymnasium.make(name, scenario="learned-affinity", window=16, reward="slowdown")

Gymnasium imports the module before the colon.  The import registers the names if Gymnasium is installed (extra
`learning`); an environment is loaded when it is created.  Without Gymnasium, `hetsim.learning.environment.episode`
still runs scenarios step by step.
"""

from importlib.util import find_spec

ENVIRONMENTS = {
    "hetsim/Scheduling-v0": "hetsim.learning.environment.gym:SchedulingEnv",
    "hetsim/Admission-v0": "hetsim.learning.environment.gym:AdmissionEnv",
}


def register() -> None:
    """Register the environments with Gymnasium, unless they are registered."""
    from gymnasium.envs.registration import register, registry

    for name, where in ENVIRONMENTS.items():
        if name not in registry:
            register(id=name, entry_point=where, vector_entry_point=where.replace("Env", "VectorEnv"))


if find_spec("gymnasium") is not None:
    register()
