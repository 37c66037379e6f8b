"""How much wider forecasts have to be, by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from hetsim.twin.forecast import TwinForecast
from hetsim.twin.widening import ENOUGH_STARTS, SHARES, Past, Widening, widening


def past(count: int, known_at: float = 0.0, shift: float = 0.0) -> Past:
    """Starts that were 1, 2, ... s after each of their five quantiles, and `shift`."""
    told = np.full((count, 5), 100.0)
    return Past(known_at, told, 100.0 + shift + np.arange(1, count + 1))


def test_quantiles_are_moved_by_the_errors_of_earlier_ones():
    """Of 39 errors of 1 to 39 s: 95 % of 40 are the 38th, 75 % the 30th; below, the least that were too late."""
    found = widening([past(39)], 0.0)
    moves = (1.0 + 1, 9.0 + 1, 0.0, 30.0, 38.0)
    assert found == Widening(moves, 39, 1, by_group={"": moves})
    early = widening([past(39, shift=-40.0)], 5.0)  # 39 to 1 s too early
    assert early is not None and early.moves == (-38.0, -30.0, 0.0, -10.0, -2.0)
    assert widening([past(ENOUGH_STARTS - 1)], 0.0) is None and widening([past(39, 3.0)], 2.9) is None
    both = widening([past(15, 1.0), past(0), past(15, 2.0), past(40, 9.0)], 2.0)
    assert both is not None and (both.starts, both.snapshots) == (30, 2)
    assert both.moves[4] == 15.0 and both.moves[0] == 1.0  # the 30th of 30: no more is known
    assert SHARES == (0.05, 0.25, 0.5, 0.75, 0.95)


def snapshot_with(inside_90: int, inside_50: int) -> Past:
    """Forty starts told within 0 to 100 s, half of them within 40 to 60 s, and how many came so."""
    told = np.tile([0.0, 40.0, 50.0, 60.0, 100.0], (40, 1))
    actual = [50.0] * inside_50 + [80.0] * (inside_90 - inside_50) + [130.0] * (40 - inside_90)
    return Past(0.0, told, np.array(actual))


def test_an_interval_that_held_its_share_of_the_starts_is_not_moved():
    """35 and 37 of 40 are 90 % with a standard error of 2.5 %; 20 and 24 are 55 % with one of 5 %."""
    found = widening([snapshot_with(35, 19), snapshot_with(37, 21)], 0.0)
    assert found is not None and found.moves == (0.0,) * 5
    one = widening([snapshot_with(35, 19)], 0.0)  # of one snapshot there is no standard error
    assert one is not None and one.moves[4] == 30.0
    found = widening([snapshot_with(20, 19), snapshot_with(24, 21)], 0.0)
    assert found is not None and found.moves[4] == 30.0 and found.moves[1] == found.moves[3] == 0.0
    wide = widening([snapshot_with(40, 40), snapshot_with(40, 40)], 0.0)  # too wide: drawn in
    assert wide is not None and wide.moves == (50.0, 10.0, 0.0, -10.0, -50.0)


def test_quantiles_of_few_samples_leave_room_for_the_start_that_comes():
    """Of 20 samples and one more, 19 of 21 lie from the first to the last of the 20: 90.5 %."""
    ranks = ((20, [1, 5, 10, 16, 20]), (100, [5, 25, 50, 76, 96]), (19, [1, 5, 10, 15, 19]), (1, [1] * 5))
    for count, expected in ranks:
        starts = np.arange(count, 0, -1.0)[:, None]
        nothing = np.zeros(0)
        told = TwinForecast([], 1e6, starts, nothing, nothing, np.zeros((0, 0)), 1.0, "GPUs", {}, nothing)
        assert told.drawn(0, SHARES) == expected


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
