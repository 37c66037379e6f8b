"""Near names are proposed, never the name that was typed."""

from hypothesis import given
from hypothesis import strategies as st

from hetsim.errors import suggested_key, suggestion

NAMES = st.text("abcd", min_size=1, max_size=4)


@given(NAMES, st.lists(NAMES))
def test_the_typed_name_is_never_proposed(name: str, others: list[str]) -> None:
    assert f'"{name}"' not in suggestion(name, [name, *others])


def test_a_near_name_is_proposed_next_to_the_typed_one() -> None:
    assert suggestion("gpus", ["gpus", "gpu"]) == '; did you mean "gpu"?'


def test_an_entry_in_brackets_is_written_behind_a_dot() -> None:
    assert suggested_key("workload[0]", iter(["workload"])) == '; write an entry of a list after a dot: "workload.0"'
    assert suggested_key("work[0]", ["workload"]) == suggestion("work[0]", ["workload"])
