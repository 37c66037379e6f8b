"""Policies to be run under another hash seed: apart from the tests, as the other process imports what they are in."""

from __future__ import annotations

from collections.abc import Sequence

from hetsim.policy import ListScheduler
from hetsim.testing import PolicyTestCase, System
from hetsim.testing.systems import people
from hetsim_policies.orders import FcfsSkip


class TrustsHashes(ListScheduler):
    """Orders tasks by the hash of their names, which differs from process to process."""

    def __init__(self) -> None:
        super().__init__(lambda task: hash(task.id))


class Sound(PolicyTestCase):
    """The suite of a policy that depends on no hash."""

    def make(self) -> FcfsSkip:
        return FcfsSkip()

    def systems(self) -> Sequence[System]:
        return [people()]
