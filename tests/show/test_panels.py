"""Pictures as data: limits, ticks, and what becomes of ends that have no limit; each by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hetsim.results.panels import (
    Axis,
    Band,
    Boxes,
    Line,
    Panel,
    Picture,
    Points,
    Texts,
    round_values,
    settled,
    time_axis,
)


def test_round_values_are_about_as_many_as_asked():
    assert round_values(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert round_values(0.1, 0.32, 4) == [0.1, 0.2, 0.3]
    assert round_values(4.6, -0.6, 6) == [0, 1, 2, 3, 4], "an axis from above to below"
    assert round_values(0, 9, 4, True) == [0, 3, 6, 9]
    assert round_values(0, 1, 6, True) == [0, 1]
    assert round_values(3, 3, 5) == [3]


def test_times_are_in_the_unit_that_suits_their_range():
    axis = time_axis(0.0, 7200.0, means=np.array([0.0, 60.0]))
    assert axis.label == "time (h) · mean over 60 s"
    assert [text for _, text in axis.ticks or ()] == ["0", "0.3", "0.6", "0.9", "1.2", "1.5", "1.8"]
    assert [round(at) for at, _ in axis.ticks or ()] == [0, 1080, 2160, 3240, 4320, 5400, 6480]


def test_limits_hold_all_marks_with_their_errors():
    points = Points(np.array([1.0, 3.0]), np.array([5.0, 5.0]), up=[np.array([1.0, 4.0]), np.array([2.0, 0.0])])
    panel = settled(Panel([points, Band(np.array([1.0, 2.0]), 0.5, np.array([np.nan, 3.0]))]), 500)
    assert (panel.x.low, panel.x.high) == pytest.approx((0.9, 3.1))
    assert (panel.y.low, panel.y.high) == pytest.approx((0.5 - 0.325, 7 + 0.325))
    given = settled(Panel([points], y=Axis(low=0)), 500)
    assert (given.y.low, given.y.high) == pytest.approx((0, 7.35)), "a limit that is given has no room"


def test_a_logarithmic_axis_leaves_out_what_it_cannot_show():
    line = Line(np.array([0.0, 1.0, 2.0]), np.array([0.0, 10.0, 1000.0]))
    panel = settled(Panel([line], y=Axis(log=True)), 500)
    assert (panel.y.low, panel.y.high) == pytest.approx((10 / 100**0.05, 1000 * 100**0.05))
    assert [text for _, text in panel.y.ticks or ()] == ["10", "100", "1,000"]
    named = settled(Panel([line], y=Axis(log=True, ticks=[(1, "a"), (20, "b")])), 500)
    assert named.y.ticks == [(20, "b")], "no tick outside"


def test_ends_without_limit_are_those_of_the_panel():
    marks = [Line([2, 2], [-math.inf, math.inf]), Boxes([-math.inf], [3], [0], [math.inf])]
    panel = settled(Panel(list(marks), Axis(low=0, high=4), Axis(low=5, high=-1)), 500)
    line, box = panel.marks
    assert line.y.tolist() == [-1, 5]
    assert [value.tolist() for value in (box.x0, box.x1, box.y0, box.y1)] == [[0], [3], [0], [5]]


def test_texts_that_have_no_room_are_left_out():
    texts = Texts([1, 3], [0, 0], ["wide name", "7"], align="center", room=[0.1, 0.5])
    (ax,) = Picture([[Panel([texts], Axis(low=0, high=4), Axis(low=-1, high=1))]]).figure().axes
    assert [text.get_text() for text in ax.texts] == ["7"]


def test_a_picture_is_named_by_its_panels():
    assert repr(Picture([[Panel(title="a"), None], [Panel(y=Axis("b"))]])) == "<Picture: a, b>"
