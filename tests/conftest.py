"""Shared by all tests."""

import copy
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def only_shipped_policies():
    """What a test registers is gone after it."""
    from sim import registry

    before = copy.deepcopy(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)
