"""For authors of policies: does my policy keep the contract?

In a test file::

    class TestMine(PolicyTestCase):
        def make(self):
            return MyScheduler()

or anywhere: `check_policy(MyScheduler)`, which raises AssertionError with a sentence for every rule broken.
Both run the policy over small systems with the engine's own invariants on, and recount the results.
`check_trace(path)` checks a trace file of `hetsim run --trace-out`.
`random_system(seed)` and the hypothesis strategy `systems()` give systems for property tests.
"""

from sim.testing.audit import audit
from sim.testing.chrome_trace import check_trace
from sim.testing.conformance import ContractBreach, PolicyTestCase, check_policy, examine, other_hash_seed
from sim.testing.generate import FEATURES, random_system, systems
from sim.testing.systems import System, small_systems, workload

__all__ = [
    "FEATURES", "ContractBreach", "PolicyTestCase", "System", "audit", "check_policy", "check_trace", "examine",
    "other_hash_seed", "random_system", "small_systems", "systems", "workload",
]  # fmt: skip
