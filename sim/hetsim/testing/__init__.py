"""Tests for authors of policies: check that a policy keeps the contract.

In a test file::

    class TestMine(PolicyTestCase):
        def make(self):
            return MyScheduler()

or anywhere: `check_policy(MyScheduler)`, which raises AssertionError with a sentence for every rule broken.
Both run the policy on small systems with the engine's invariant checks on, and recount the results.
`check_predictor(MyPredictor)` does the same for predictors.
`random_system(seed)` and the hypothesis strategy `systems()` create systems for property tests.
"""

from hetsim.testing.audit import audit
from hetsim.testing.conformance import ContractBreach, PolicyTestCase, check_policy, examine, other_hash_seed
from hetsim.testing.generate import FEATURES, random_system, systems
from hetsim.testing.predictors import check_predictor
from hetsim.testing.systems import System, small_systems, workload

__all__ = [
    "FEATURES", "ContractBreach", "PolicyTestCase", "System", "audit", "check_policy", "check_predictor",
    "examine", "other_hash_seed", "random_system", "small_systems", "systems", "workload",
]  # fmt: skip
