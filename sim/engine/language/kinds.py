"""The types of device on which the replicas of a service may be, as the engine needs them."""

from __future__ import annotations

from sim.model.service import LanguageService


class ReplicaType:
    """A replica on one type of device."""

    __slots__ = ("position", "mode", "steps", "blocks", "weights", "replicas", "prefillers", "width", "watts")

    def __init__(self, service: LanguageService, position: int):
        self.position = position
        """Of its mode, in the shape of the service's requests."""
        self.mode = mode = service.shape.modes[position]
        given = service.kinds[position]
        self.steps = given.step
        self.blocks = given.blocks
        self.weights = given.weights
        self.replicas, self.prefillers = given.replicas, given.prefillers
        self.width = mode.width
        self.watts = mode.type.power.busy - mode.type.power.idle
        """Of one device, above idle."""
