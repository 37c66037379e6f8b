"""Data files of the package, and whether its engine is compiled (`BUILD`)."""

from importlib import import_module
from pathlib import Path


def _verified() -> str:
    """Return `compiled` or `interpreted`; ImportError if a compiled source changed."""
    try:
        sources = import_module("hetsim._compiled").SOURCES
    except ModuleNotFoundError as missing:
        if missing.name != "hetsim._compiled":
            raise
        return "interpreted"
    from hashlib import sha256

    for name, digest in sources.items():
        path = Path(__file__).parent / name
        if not path.is_file() or sha256(path.read_bytes()).hexdigest() != digest:
            text = f"{path} has changed since hetsim was compiled, so other code would run; install hetsim again"
            raise ImportError(f"{text} (HETSIM_COMPILE=1 pip install . compiles it, pip install . does not)")
    return "compiled"


def package_data(module: str, name: str) -> bytes:
    """Return the bytes of a program file next to a module; not recorded as an input."""
    return Path(module).with_name(name).read_bytes()


BUILD = _verified()
