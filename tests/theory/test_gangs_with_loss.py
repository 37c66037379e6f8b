"""`theory.kaufman_roberts` against the product form over all states, the issue's figures, and Erlang's B."""

import math
from itertools import product

import pytest

from hetsim import theory
from hetsim.errors import UsageError

GANGS = [(2.0, 1.0, 1), (0.5, 2.0, 2), (5.0, 0.1, 4)]


def test_gangs_by_the_product_form():
    found = theory.kaufman_roberts(8, GANGS)
    weights = {}
    for state in product(range(9), range(5), range(3)):
        if sum(n * width for n, (_, _, width) in zip(state, GANGS, strict=True)) <= 8:
            parts = zip(state, GANGS, strict=True)
            weights[state] = math.prod((rate * mean) ** n / math.factorial(n) for n, (rate, mean, _) in parts)
    total = sum(weights.values())
    busy = {state: sum(n * width for n, (_, _, width) in zip(state, GANGS, strict=True)) for state in weights}
    for lost, (_, _, width) in zip(found.loss, GANGS, strict=True):
        assert lost == pytest.approx(sum(w for s, w in weights.items() if busy[s] + width > 8) / total, rel=1e-12)
    assert found.loss == pytest.approx((0.09853, 0.21459, 0.49005), abs=5e-6)
    carried = sum(rate * mean * width * (1 - lost) for lost, (rate, mean, width) in zip(found.loss, GANGS, strict=True))
    assert found.utilization == pytest.approx(carried / 8, rel=1e-12)


def test_gangs_of_one_are_erlangs_and_bad_input_is_refused():
    many = theory.kaufman_roberts(5000, [(2000, 1.0, 1), (1500, 2.0, 1)])
    assert many.loss[0] == pytest.approx(theory.erlang_b(5000, 5000), rel=1e-9)
    for classes in ([], [(1, 1, 9)]):
        with pytest.raises(UsageError, match="none wider than 8"):
            theory.kaufman_roberts(8, classes)
