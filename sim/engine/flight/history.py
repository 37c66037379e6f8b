"""What a task keeps from launches that were stopped: data only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class History:
    """What a task keeps from its former launches."""

    rows: list[int] = field(default_factory=list)
    """Rows (sim.engine.core.recorder) of stopped launches, as far as their work is kept."""
    saved_at: int | None = None
    """The location (sim.engine.flight.data_locations) of its saved state, if it has one."""
    saved_by: float = 0.0
    """The time from which that state is there."""
    last_device: int = -1
    """The (first) device on which it last computed."""
    checkpoint: float = 0.0
    """The finished fraction that is safe."""
