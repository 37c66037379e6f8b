"""Agents in NumPy, their files, and the episodes they learn from.

An agent is a dataclass of settings with `train(practice, steps, random) -> ScoreNetwork`; `practice.Practice` has its
episodes.  An optional `check()` reports missing packages.  See docs/learning.md.
"""

# Import path of each agent by name, loaded on use
AGENTS = {
    "dqn": "hetsim.learning.agents.learners:Dqn",
    "reinforce": "hetsim.learning.agents.learners:Reinforce",
    "ppo": "hetsim.learning.agents.learners:Ppo",
}
