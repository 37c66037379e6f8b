"""How much wider forecasts have to be, by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from hetsim.twin.widening import ENOUGH_STARTS, SHARES, Past, Widening, widening


def past(count: int, known_at: float = 0.0, shift: float = 0.0) -> Past:
    """Starts that were 1, 2, ... s after each of their five quantiles, and `shift`."""
    told = np.full((count, 5), 100.0)
    return Past(known_at, told, 100.0 + shift + np.arange(1, count + 1))


def apart(one: Past) -> list[Past]:
    """Each start as a snapshot of its own."""
    return [Past(one.known_at, told[None], came[None]) for told, came in zip(one.forecast, one.actual, strict=True)]


def test_starts_of_few_snapshots_count_as_few():
    """39 starts of one snapshot are four, so that the next is one in five: 90 % of 48.75 are all, half of them 25."""
    found = widening([past(39)], 0.0)
    assert found is not None and found.moves == (-39.0, -25.0, 0.0, 25.0, 39.0) == found.by_group[""]
    five = widening([past(8) for _ in range(5)], 0.0)  # forty starts are twenty: half of 42 of 1, 1, 1, 1, 1, 2, ...
    assert five is not None and five.moves[3] == 5.0


def test_quantiles_are_moved_by_the_errors_of_earlier_ones():
    """Of 39 errors of 1 to 39 s: 90 % of 40 are the 36th, half of them the 20th, whichever end was missed."""
    found = widening(apart(past(39)), 0.0)
    moves = (-36.0, -20.0, 0.0, 20.0, 36.0)
    assert found == Widening(moves, 39, 39, by_group={"": moves})
    early = widening(apart(past(39, shift=-40.0)), 5.0)  # 39 to 1 s too early
    assert early is not None and early.moves == moves
    wide = past(39)
    wide.forecast += np.array([-90.0, -50.0, 0.0, 50.0, 90.0])  # from 10 to 190, and starts from 101 to 139
    inward = widening(apart(wide), 0.0)
    assert inward is not None and inward.moves == (90.0 - 36, 50.0 - 20, 0.0, 20.0 - 50, 36.0 - 90)
    both_ends = Past(0.0, np.full((40, 5), 100.0), 100.0 + np.repeat([10.0, -30.0], [36, 4]))
    late = widening(apart(both_ends), 0.0)  # the 37th of 40 missed the lower end
    assert late is not None and late.moves == (-30.0, -10.0, 0.0, 10.0, 30.0)
    assert widening([past(ENOUGH_STARTS - 1)], 0.0) is None and widening([past(39, 3.0)], 2.9) is None
    both = widening([past(15, 1.0), past(0), past(15, 2.0), past(40, 9.0)], 2.0)
    assert both is not None and (both.starts, both.snapshots) == (30, 2)
    assert both.moves[4] == 15.0 == -both.moves[0]  # 90 % of 33.75 are all thirty
    assert SHARES == (0.05, 0.25, 0.5, 0.75, 0.95)


@examples(60)
@given(st.lists(st.floats(-50, 250), min_size=5, max_size=5), st.lists(st.floats(-90, 90), min_size=5, max_size=5))
def test_moved_quantiles_stay_in_order(told: list[float], moves: list[float]):
    """The median stays, the others move away from or towards it, and no further."""
    told.sort()
    found = Widening(tuple(moves), 30, 1).moved([told, told], 100.0)
    assert found.shape == (2, 5) and (found[0] == found[1]).all()
    capped = [min(one, 100.0) for one in told]
    at = [min(max(one + move, 0.0), 100.0) for one, move in zip(capped, moves, strict=True)]
    lower, upper = min(at[1], capped[2]), max(at[3], capped[2])
    assert found[0].tolist() == [min(at[0], lower), lower, capped[2], upper, max(at[4], upper)]
