"""What a task keeps from launches that were stopped: data only."""

from __future__ import annotations


class History:
    """What a task keeps from its former launches."""

    __slots__ = ("rows", "saved_at", "saved_by", "checkpoint", "last_device")

    def __init__(self) -> None:
        self.rows: list[int] = []
        """Rows (sim.engine.core.recorder) of stopped launches, as far as their work is kept."""
        self.saved_at: int | None = None
        """The location (sim.engine.flight.data_locations) of its saved state, if it has one."""
        self.saved_by = 0.0
        """The time from which that state is there."""
        self.last_device = -1
        """The (first) device on which it last computed."""
        self.checkpoint = 0.0
        """The finished fraction that is safe."""
