"""The base class of compiled policies, which users can extend in Python."""

from typing import Any


class Policy:
    """Base of policies; their objects can be copied and pickled, even if compiled."""

    def __getstate__(self) -> dict[str, Any]:
        kind, state = type(self), object.__getstate__(self)
        compiled = [name for name in getattr(kind, "__mypyc_attrs__", ()) if hasattr(self, name)]
        fields = {name: getattr(self, name) for name in compiled if not isinstance(getattr(kind, name), property)}
        parts = state if isinstance(state, tuple) else (state,)  # the dictionary of a subclass, and its slots
        return {name: value for part in (*parts, fields) for name, value in (part or {}).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
