"""Small cases by hand, and properties, of results."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_output_statistics import queue
from tiers import examples

import hetsim as hs
from hetsim.errors import DamagedFile, PictureWarning, UsageError
from hetsim.results.formatting import PERCENT, one
from hetsim.results.many_runs.replications import Replications
from hetsim.results.many_runs.selection import Race
from hetsim.results.one_run.tables import batch_members
from hetsim.results.one_run.usage import overlap
from hetsim.results.panels import attempt, write_picture
from hetsim.results.stored_files import FORMAT, check_names, digests, sealed, unsealed, verify


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "100 %"), (0.9996, "99.96 %"), (0.99951, "99.951 %"), (0.999999, "99.9999 %"), (0.994, "99.4 %")],
)
def test_almost_all_is_not_all(value: float, text: str):
    assert one(value, PERCENT) == text


@pytest.mark.parametrize(("shift", "left"), [(3.0, ["a", "b"]), (4.7, ["a", "b"]), (5.0, ["a"])])
def test_a_policy_leaves_the_race_beyond_the_margin(shift: float, left: list[str]):
    """First stage of 3, probability 90 %: η = ((2 × 0.1)^(-1) - 1) / 2 = 2, h² = 2 × 2 × 2 = 8; δ = 10 % of 10.

    The differences have the variance 4: W(3) = (8 × 4 / 1² - 3) × 1 / 6 = 4.83.
    """
    race = Race(["a", "b"], "response_mean", 0.9, 0.1)
    for other in (-2.0, 0.0, 2.0):
        race.add("a", 10.0)
        race.add("b", 10.0 + shift + other)
    race.start()
    race.screen()
    assert race.left == left


@examples(100)
@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(0, 30)), min_size=1), st.lists(st.floats(-60, 90), min_size=2))
def test_windows_side_by_side_share_out_each_span(spans: list[tuple[float, float]], bounds: list[float]):
    begin = np.array([start for start, _ in spans])
    end = np.array([start + length for start, length in spans])
    bounds = sorted(bounds)
    parts = [overlap(begin, end, low, high) for low, high in zip(bounds, bounds[1:], strict=False)]
    assert all((part >= 0).all() for part in parts)
    assert sum(parts) == pytest.approx(overlap(begin, end, bounds[0], bounds[-1]), abs=1e-9)
    assert (overlap(begin, end, 200.0, 300.0) == 0).all() and (overlap(begin, np.nan * end, 0.0, 9.0) == 0).all()
    assert overlap(begin, end, -1e3, 1e3) == pytest.approx(end - begin)


@pytest.mark.slow
def test_members_of_a_batch_are_the_tasks_that_share_its_launch():
    found = hs.run("async-burst")
    batch = found.record.batch
    assert batch is not None and (batch >= 0).any()
    shared = np.array([(batch == number).sum() if number >= 0 else 1 for number in batch])
    members = batch_members(found.record)
    assert members is not None and members.tolist() == shared.tolist() and members.max() > 1


def test_replications_of_nothing_are_not_identical():
    assert Replications().identical is False


def test_a_run_is_saved_into_an_empty_folder_and_into_no_other(tmp_path: Path):
    found = hs.run(queue(5))
    (tmp_path / "empty").mkdir()
    found.save(tmp_path / "empty")
    assert len(hs.Result.load(tmp_path / "empty").tasks) == 5
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note.txt").write_text("mine")
    with pytest.raises(UsageError, match="not a run directory"):
        found.save(tmp_path / "other")


# What is refused, and what is said of it ------------------------------------------------------------------------------


@pytest.mark.parametrize(("policies", "more", "said"), [
    (["a", "b"], {"metric": "makespan_bound"}, "makespan_bound: neither more nor less is always better, so "
                                               "no policy can be"),
    (["a"], {}, "a selection needs at least two policies"),
    (["a", "b"], {"probability": 0.5}, r"above chance \(1/2, of 2 policies\) and below 1; got 0.5$"),
    (["a", "b", "c"], {"probability": 1.0}, r"above chance \(1/3, of 3 policies\) and below 1; got 1$"),
    (["a", "b"], {"delta": 0.0}, "delta must be a share of the mean above 0 and below 1, such as 1%; got 0$"),
    (["a", "b"], {"delta": 1.0}, "got 1$"),
])  # fmt: skip
def test_selections_that_are_not_begun(policies: list[str], more: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        Race(policies, **({"metric": "wait_mean"} | more))


def test_selections_that_are_not_gone_on_with():
    race = Race(["a", "b"], "wait_mean")
    race.add("b", 1.0)
    for value, what in ((math.nan, "undefined"), (math.inf, "infinite")):
        with pytest.raises(UsageError, match=f"wait_mean is {what} in replication 1 of b: select by another metric"):
            race.add("b", value)
    race.add("a", 2.0)
    for policy in ("a", "b"):
        race.add(policy, 2.0)
    with pytest.raises(UsageError, match="must have at least 3 replications; got 2$"):
        race.start()
    same = Race(["a", "b"], "wait_mean")
    nothing = Race(["a", "b", "c"], "wait_mean")
    nothing.withdraw("c")
    for number in range(3):
        for policy, value in (("a", 1.0), ("b", 2.0)):
            same.add(policy, value)
            nothing.add(policy, (number - 1.0) * value)
    with pytest.raises(UsageError, match="is the same in all 3 replications of each policy: the scenario is not"):
        same.start()
    with pytest.raises(UsageError, match="the best mean of wait_mean is 0, so delta is undefined: select by "
                                         "another metric"):
        nothing.start()
    assert nothing.left == ["a", "b"] and nothing.values.keys() == nothing.counts.keys() == {"a", "b"}


def test_pictures_that_fail_are_warnings(tmp_path: Path):
    def fails(error: Exception) -> Callable[[], Any]:
        def draw() -> None:
            raise error

        return draw

    for error, reason in ((ValueError("no\n  room"), "ValueError: no room"), (KeyError(), "KeyError: no message"),
                          (OSError(28, "No space left on device"), "No space left on device"),
                          (OSError("odd"), "OSError: odd")):  # fmt: skip
        with pytest.warns(PictureWarning, match=f"^the picture x.png could not be drawn: {reason}$") as warned:
            assert attempt("x.png", fails(error)) == f"the picture x.png could not be drawn: {reason}"
        assert warned[0].filename == __file__
    drawn: list[str] = []
    assert attempt("x.png", lambda: drawn.append("x")) is None and drawn == ["x"]
    figure = SimpleNamespace(save=lambda file: Path(file).write_bytes(b"picture"))
    assert write_picture(lambda: figure, tmp_path / "a.png") and (tmp_path / "a.png").read_bytes() == b"picture"
    with pytest.warns(PictureWarning):
        assert not write_picture(fails(ValueError("no")), tmp_path / "b.png")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize(("names", "said"), [
    (["a", "b/c", "b/d"], ""), (["../a"], 'the file "../a", which is not a valid path inside its folder'),
    (["/a"], "not a valid path inside"), (["a//b"], "not a valid path inside"), (["a/./b"], "not a valid path inside"),
    (["a\\b"], "not a valid path inside"), (["c:a"], "not a valid path inside"), ([""], "not a valid path inside"),
    ([3], "not a valid path inside"), (["b", "b/c"], "names the file .b/c., and one of its folders as a file too"),
    (["a/b/c", "a/b"], "one of its folders as a file too"), (["out/x"], "is a link out of the folder"), (["in/x"], ""),
])  # fmt: skip
def test_names_that_a_mark_may_have(names: list[Any], said: str, tmp_path: Path):
    """`out` is a link to a folder next to that of the mark, `in` one to a folder inside."""
    folder = tmp_path / "folder"
    (folder / "b").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (folder / "out").symlink_to(tmp_path / "other")
    (folder / "in").symlink_to(folder / "b")
    if not said:
        check_names(folder / "mark", names)
        return
    with pytest.raises(DamagedFile, match=said):
        check_names(folder / "mark", names)


def test_files_are_verified_by_their_digests(tmp_path: Path):
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    digest = hashlib.sha256(b"abc").hexdigest()
    assert digests(tmp_path, ["a"]) == {"a": digest} and verify(file, digest) == file == verify(file, None)
    with pytest.raises(DamagedFile, match="its checksum does not match"):
        verify(file, digest[::-1])
    with pytest.raises(DamagedFile, match="it is missing"):
        verify(tmp_path / "b", digest)
    for indent in (None, 1):
        text = sealed({"a": [1, {"é": None}]}, indent)
        file.write_text(text, encoding="utf-8")
        assert unsealed(file) == {"a": [1, {"é": None}]} and json.loads(text)["format"] == FORMAT
        content = {"format": FORMAT + 1, "a": 1}
        body = json.dumps(content, ensure_ascii=False)
        file.write_text(body[:-1] + f', "sha256": "{hashlib.sha256(body.encode()).hexdigest()}"}}\n')
        said = f"cannot be read: it has format {FORMAT + 1}, and this hetsim reads format {FORMAT}$"
        with pytest.raises(UsageError, match=said):
            unsealed(file)
        file.write_text(text.replace("[1", "[2") if indent is None else text.replace(" 1", " 2", 1))
        with pytest.raises(DamagedFile, match="its checksum does not match"):
            unsealed(file)
    file.write_text("[1]")
    with pytest.raises(DamagedFile, match="it is not a JSON object"):
        unsealed(file)
