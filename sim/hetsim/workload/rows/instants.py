"""Dates as instants, those in the hour that clocks show twice included."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo


class Twice(float):
    """A local time that the clocks of a zone showed twice, as the earlier instant."""

    later = 0.0


def instant_of(found: datetime, zone: tzinfo | None) -> float:
    """Seconds since 1970 of a date (UTC without a zone); `Twice` if ambiguous."""
    if found.tzinfo is not None:
        return found.timestamp()
    here = found.replace(tzinfo=zone or UTC)
    first, second = here.timestamp(), here.replace(fold=1).timestamp()
    if first >= second:
        return first
    twice = Twice(first)
    twice.later = second
    return twice
