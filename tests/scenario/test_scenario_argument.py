"""What is no scenario is refused in a sentence, by every function that takes one."""

import pytest

import hetsim as hs
from hetsim.errors import UnknownName, UsageError


@pytest.mark.parametrize("source", [None, 3, ["first-steps"]])
@pytest.mark.parametrize("function", [hs.run, hs.replicate, hs.load])
def test_what_is_no_scenario_is_refused(function, source):
    with pytest.raises(UsageError, match="scenario must be a file, the name of a shipped one, a mapping or a"):
        function(source)


def test_one_metric_may_be_a_text():
    found = [hs.replicate("first-steps", replications=2, metrics=given).column("jain")
             for given in ("jain", ["jain"])]  # fmt: skip
    assert list(found[0]) == list(found[1])
    with pytest.raises(UnknownName, match='unknown metric "nope"'):
        hs.replicate("first-steps", replications=2, metrics="nope")
