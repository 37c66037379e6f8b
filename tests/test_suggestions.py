"""Near names are proposed, never the name that was typed."""

from hypothesis import given
from hypothesis import strategies as st

from hetsim.errors import suggestion

NAMES = st.text("abcd", min_size=1, max_size=4)


@given(NAMES, st.lists(NAMES))
def test_the_typed_name_is_never_proposed(name: str, others: list[str]) -> None:
    assert f'"{name}"' not in suggestion(name, [name, *others])


def test_a_near_name_is_proposed_next_to_the_typed_one() -> None:
    assert suggestion("gpus", ["gpus", "gpu"]) == '; did you mean "gpu"?'
