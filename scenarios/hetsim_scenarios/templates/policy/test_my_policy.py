"""pytest runs this: the policy keeps the rules, and does what it promises."""

from my_policy import PatientSjf

import hetsim as hs
from hetsim.testing import check_policy


def test_the_policy_keeps_all_rules():
    check_policy(PatientSjf)


def test_without_patience_tasks_start_in_order_of_arrival():
    hs.register("impatient", PatientSjf)
    tasks = hs.run("scenario.yaml", policy={"name": "impatient", "patience": 0.0}).tasks
    assert tasks.sort_values("arrival")["start"].is_monotonic_increasing
