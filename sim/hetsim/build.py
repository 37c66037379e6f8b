"""Whether the engine runs compiled or from source."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path


def _verified() -> str:
    """Return `compiled` or `source`; ImportError if a file changed after compiling."""
    try:
        sources = import_module("hetsim._compiled").SOURCES
    except ModuleNotFoundError as missing:
        if missing.name != "hetsim._compiled":
            raise
        return "source"
    from hashlib import sha256

    for name, digest in sources.items():
        path = Path(__file__).parent / name
        if not path.is_file() or sha256(path.read_bytes()).hexdigest() != digest:
            text = f"{path} is not what was compiled, and the compiled code would run in its place; install hetsim anew"
            raise ImportError(f"{text} (HETSIM_COMPILE=1 pip install . compiles it, pip install . does not)")
    return "compiled"


BUILD = _verified()
