"""The base of policies that are compiled and that users extend."""

from typing import Any


class Policy:
    """Base of policies: copies and pickles keep all fields, compiled or not."""

    def __getstate__(self) -> dict[str, Any]:
        kind = type(self)
        compiled = [name for name in getattr(kind, "__mypyc_attrs__", ()) if hasattr(self, name)]
        fields = {name: getattr(self, name) for name in compiled if not isinstance(getattr(kind, name), property)}
        return {**getattr(self, "__dict__", {}), **fields}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
