"""The fields of a class without dictionaries: slots, or attributes if compiled."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(None)
def all_slots(kind: type) -> tuple[str, ...]:
    """Fields of a class, and of those above it, that are in no dictionary."""
    return tuple(dict.fromkeys(name for base in kind.__mro__ for name in _slots(base)))


def _slots(kind: type) -> tuple[str, ...]:
    """Fields that a class declares itself; a compiled one names those of bases too."""
    named = vars(kind).get("__mypyc_attrs__") or vars(kind).get("__slots__", ())
    named = (named,) if isinstance(named, str) else tuple(named)
    return tuple(name for name in named if name not in ("__dict__", "__weakref__"))
