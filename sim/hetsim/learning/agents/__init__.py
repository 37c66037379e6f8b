"""Agents in NumPy, the files they are kept in, and their practice.

An agent is a dataclass of settings with `train(practice, steps, random) -> ScoreNetwork` (`practice.Practice` is what
it learns from); `check()`, where it has one, says what is missing on this machine.  See docs/learning.md.
"""

AGENTS = {
    "dqn": "hetsim.learning.agents.learners:Dqn",
    "reinforce": "hetsim.learning.agents.learners:Reinforce",
    "ppo": "hetsim.learning.agents.learners:Ppo",
}
"""Name of each agent and where it is; loaded when asked for."""
