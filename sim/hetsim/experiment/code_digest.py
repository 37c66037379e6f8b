"""Digest of an object with all the code and data that it references.

The digest of a user's policy is part of the key under which its runs are stored.  It covers values in memory, not the
text of files: for a function, the byte code, constants, defaults, closure and the globals that the code names; for an
object, its state; for a class, its members and bases.  Modules of Python and of hetsim are covered by their names, and
packages by their versions; a package that is installed from a local folder, or not installed at all, is the user's
code.  Equal objects have equal digests in every process.

Other inputs (opened files, the environment, state in C) are reported as reasons why a digest may be incomplete.
"""

import builtins
import copyreg
import datetime
import decimal
import dis
import enum
import functools
import hashlib
import importlib
import importlib.util
import inspect
import io
import operator
import os
import random
import re
import sys
import sysconfig
import threading
import time
import types
import typing
import uuid
import weakref
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.errors import UsageError
from hetsim.experiment.set_order import takes_order

OURS = ("hetsim", "hetsim_policies", "hetsim_scenarios")
_MISSING = "no such name"
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
# A call whose result is only used as a key: `rows[id(x)]`, `id(x) in rows`.
_KEY = re.compile(r"\S+( (?!CALL)\S+)* CALL ((STORE|BINARY|DELETE)_SUBSCR|LOAD_\w+( LOAD_ATTR)* CONTAINS_OP)\b")
# Instructions after a dict that look up a key and do not iterate over it.
_LOOKED_UP = re.compile(r"(LOAD_\w+ )*((BINARY|STORE|DELETE)_SUBSCR|CONTAINS_OP)")
_SCALARS = (bool, float, complex, str, bytes, type(None), type(...), type(NotImplemented))
_CONTAINERS = (dict, list, tuple, set, frozenset, str, bytes, int, float)
_BUILT_IN = "built in"
_REACHES: dict[Any, str] = {
    open: "opens files", io.open_code: "opens files", os.open: "opens files", os.getenv: "reads the environment",
    os.listdir: "lists folders", os.scandir: "lists folders", os.walk: "lists folders", os.stat: "reads file status",
    os.popen: "starts processes", os.system: "starts processes", os.urandom: "reads system randomness",
    eval: "evaluates text", exec: "executes text", compile: "compiles text", input: "reads the terminal",
    __import__: "imports modules by computed names", importlib.import_module: "imports modules by computed names",
    uuid.uuid1: "reads system randomness", uuid.uuid4: "reads system randomness",
    importlib.util.find_spec: "searches for modules",
    os.path.expandvars: "reads the environment", os.path.expanduser: "reads the environment",
    decimal.getcontext: "has state in C code", id: "calls id(), whose result differs in another process",
    hash: "calls hash(), whose result for texts differs in another process unless PYTHONHASHSEED is a number",
    inspect.signature: "reads annotations", inspect.get_annotations: "reads annotations",
    typing.get_type_hints: "reads annotations", inspect.getdoc: "reads docstrings",
    sys.getrecursionlimit: "reads settings of the process", np.geterr: "reads settings of the process",
    np.get_printoptions: "reads settings of the process",
    set: "iterates over a set, whose order differs in another process unless PYTHONHASHSEED is a number",
}  # fmt: skip
_REACHES |= dict.fromkeys((
    time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic, time.monotonic_ns,
    time.process_time, time.process_time_ns, time.thread_time, time.localtime, time.gmtime,
), "reads the clock")  # fmt: skip
_REACHES |= {getattr(os, name): "starts processes" for name in dir(os) if name.startswith(("spawn", "exec", "posix_"))}
# Modules and packages that read something outside this process.
_OUTSIDE = frozenset((
    "socket", "_socket", "ssl", "http", "urllib", "ftplib", "smtplib", "subprocess", "ctypes", "sqlite3", "dbm",
    "shelve", "mmap", "secrets", "multiprocessing", "configparser", "linecache", "fileinput", "shutil", "tempfile",
    "glob", "zipfile", "tarfile", "runpy", "pkgutil", "platform", "locale", "xml", "resource", "requests",
    "httpx", "urllib3", "aiohttp", "h5py", "netCDF4", "duckdb", "psutil",
))  # fmt: skip
# Attributes that read files, of any object.
_READING = frozenset((
    "open", "read_text", "read_bytes", "loadtxt", "genfromtxt", "fromfile", "memmap", "urlopen", "iterdir", "glob",
    "rglob", "exists", "is_file", "is_dir", "isfile", "isdir", "stat", "getmtime", "getsize", "lexists", "get_data",
))  # fmt: skip
_READS = dict.fromkeys(_READING, "opens files") | dict.fromkeys(("__doc__", "__annotations__"), "reads descriptions")
_OF_PACKAGES = re.compile(r"load|read|open|fetch|download|scan|memory_map|(im|mm|wav)read$"
                          r"|(\w*File|netcdf_file|HDFStore)$|(Parquet|parquet_)?[dD]ataset$")  # fmt: skip
# Names of functions and classes that open files: of packages, and of Python.
_OF_PYTHON = re.compile(rf"(Path\.)?({'|'.join(sorted(_READING))}|FileIO|[A-Z]\w*File|getsource\w*)$")
_NOW = ("now", "today", "utcnow")
# Generators that draw a seed from the operating system if none is given.
_SEEDED = (random.Random, np.random.default_rng, np.random.RandomState, np.random.SeedSequence,
           *np.random.BitGenerator.__subclasses__())  # fmt: skip
# Attributes of a function of `functools.singledispatch`.
_DISPATCH = ("registry", "dispatch", "register", "_clear_cache", "__wrapped__")
# Packages whose functions count with a policy's code where the user has replaced them.
_PATCHED = ("numpy", "scipy", "random", "math", "time", "simpy", *OURS)
# Attributes that make up objects of Python's own types.
_PARTS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"), staticmethod: ("__func__",), classmethod: ("__func__",),
    functools.cached_property: ("func",), functools._lru_cache_wrapper: ("__wrapped__",),
    types.MethodWrapperType: ("__name__", "__self__"), type(threading.Lock()): (), type(threading.RLock()): (),
} | dict.fromkeys((
    types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType,
), ("__name__", "__objclass__"))  # fmt: skip
# Attributes of a class that only describe it.
_DESCRIBING = frozenset((
    "_abc_impl", "__abstractmethods__", "__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__",
    "__doc__", "__firstlineno__", "__module__", "__orig_bases__", "__parameters__", "__static_attributes__",
    "__weakref__",
))  # fmt: skip


def stated_identity(item: Any) -> str | None:
    """Return an object's own `identity` text, or None if it has none."""
    said = vars(item if inspect.isclass(item) else type(item)).get("identity")
    said = getattr(item, "__dict__", {}).get("identity", said)
    return said if isinstance(said, str) and said is not _MISSING else None


def code_digest(item: Any, own: str = "") -> tuple[str, tuple[str, ...]]:
    """Compute the digest of an object and the code that it references.

    own: a package whose code counts as the user's, even if it is installed.  Returns the digest, and the reasons why it
    may be incomplete.  UsageError if the source file of a function has changed since the import.
    """
    if (said := stated_identity(item)) is not None:
        return hashlib.sha256(f"identity {said}".encode()).hexdigest(), ()
    walk = _Walk(own)
    try:
        walk.value(item)
        walk.value(_patched())
    except RecursionError:
        walk.unknown("has too deeply nested objects")
    return walk.hash.hexdigest(), tuple(walk.reasons)


def _patched() -> dict[str, Any]:
    """Monkey patches: the user's functions that replace library attributes, by name."""
    patched: dict[str, Any] = {}
    own: dict[int, bool] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _PATCHED:
            for attribute, value in list(vars(module).items()) if isinstance(module, types.ModuleType) else ():
                if type(value) is types.FunctionType:
                    if (key := id(value.__globals__)) not in own:  # once for each module that functions are of
                        package = str(value.__globals__.get("__name__")).partition(".")[0]
                        own[key] = package not in _PATCHED and not _origin(package, "")
                    if own[key]:
                        patched[f"{name}.{attribute}"] = value
    return patched


class _Walk:
    """A walk over all that an object references; `reasons` lists what has no digest."""

    def __init__(self, own: str = "", reasons: dict[str, None] | None = None, place: str = "") -> None:
        self.hash, self.own, self.place = hashlib.sha256(), own, place
        self.reasons: dict[str, None] = {} if reasons is None else reasons
        # The objects too: one that is gone would leave its number in memory to another.
        self._seen: dict[int, tuple[int, Any]] = {}

    def put(self, *tokens: Any) -> None:
        for token in tokens:
            data = token if isinstance(token, bytes) else str(token).encode(errors="backslashreplace")
            self.hash.update(len(data).to_bytes(8, "little") + data)

    def unknown(self, what: str) -> None:
        self.put("unknown")
        self.reasons[f"{self.place or 'it'} {what}"] = None

    def alone(self, value: Any) -> bytes:
        inner = _Walk(self.own, self.reasons, self.place)
        inner.value(value)
        return inner.hash.digest()

    def value(self, value: Any) -> None:
        kind = type(value)
        if kind is os._Environ or value is sys.modules:
            self.unknown(_REACHES[__import__ if value is sys.modules else os.getenv])
        elif kind in _SCALARS:
            self.put(kind.__name__, repr(value))
        elif kind is int:
            self.put("int", f"{value:x}")
        elif kind is tuple or kind is frozenset or kind is types.CodeType:
            # Equal ones may be one object or several, as a module comes from its source or from a cached file.
            self._object(value, kind)
        elif id(value) in self._seen:
            self.put("seen", self._seen[id(value)][0])
        else:
            self._seen[id(value)] = len(self._seen), value
            self._object(value, kind)

    def _object(self, value: Any, kind: type) -> None:
        self.put(kind.__name__)
        if isinstance(value, types.BuiltinFunctionType | types.FunctionType) and value in _REACHES:
            self._outside(value)
        elif kind is list or kind is tuple:
            self.put(len(value))
            for inner in value:
                self.value(inner)
        elif kind is set or kind is frozenset:
            self.put(*sorted(map(self.alone, value)))
        elif kind is dict or kind is types.MappingProxyType:
            self._mapping(value)
        elif isinstance(value, types.ModuleType):
            self._module(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, enum.Enum):
            self.value((kind, value.name, value.value))
        elif kind is types.FunctionType:
            self._function(value)
        elif kind is types.CodeType:
            self._code(value)
        elif kind is types.MethodType or kind is types.BuiltinFunctionType:
            self._method(value)
        elif kind is np.ndarray or isinstance(value, np.generic):
            self.put(repr(value.dtype), value.shape)
            self.value(value.ravel().tolist() if value.dtype.hasobject else value.tobytes())
        else:
            for name in _PARTS.get(kind, ()):
                self.value(getattr(value, name))
            if kind not in _PARTS:
                self._instance(value, kind)

    def _outside(self, function: Any) -> None:
        if function in (hash, set) and os.environ.get("PYTHONHASHSEED", "random") != "random":
            self.put(hash("equal under equal seeds"))
        else:
            self.unknown(_REACHES[function])

    def _mapping(self, value: Mapping[Any, Any]) -> None:
        self.put(len(value))
        in_order = all(type(key) is int for key in value)
        pairs = ((b"" if in_order else self.alone(key), key) for key in value)
        for _, key in sorted(pairs, key=lambda pair: pair[0]):
            self.value(key)
            self.value(value[key])

    # Code -------------------------------------------------------------------------------------------------------

    def _code(self, code: types.CodeType) -> None:
        self.put(code.co_code, code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self.put(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_exceptiontable)
        self.value(code.co_consts)

    def _function(self, function: types.FunctionType) -> None:
        code, names = function.__code__, function.__globals__
        # Where it was defined; `__module__` may be that of a function that it wraps.
        module = str(names.get("__name__", ""))
        if self._named(module, code.co_qualname):
            if code.co_qualname == "singledispatch.<locals>.wrapper":  # less what it keeps of earlier calls
                own = {name: value for name, value in vars(function).items() if name not in _DISPATCH}
                self.value((dict(vars(function)["registry"]), own))
            elif "<locals>" in code.co_qualname:
                self._closure(function)
            return
        before, self.place = self.place, f"{module.replace('__mp_main__', '__main__')}.{code.co_qualname}"
        _check_source(function, module)
        if takes_order(function):
            self._outside(set)
        self._code(code)
        self._closure(function)
        if function.__name__ == "__init__":  # which decide how a scenario's values are read
            self.value(function.__annotations__)
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        around = {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
        kinds = types.ModuleType | type
        self._names(code, names, {name: value for name, value in around.items() if isinstance(value, kinds)})
        self.place = before

    def _closure(self, function: types.FunctionType) -> None:
        empty = types.CellType()
        self.value([_MISSING if cell == empty else cell.cell_contents for cell in function.__closure__ or ()])
        self.value((function.__defaults__, function.__kwdefaults__, function.__dict__))

    def _names(self, code: types.CodeType, names: Mapping[str, Any], around: Mapping[str, Any] | None = None) -> None:
        """Hash what code refers to by name: globals, imports, and attributes of modules."""
        steps, bound, imported = list(dis.get_instructions(code)), dict(around or {}), None
        for at, step in enumerate(steps):
            if step.opname in _GLOBAL:
                value = names.get(step.argval, bound.get(step.argval, getattr(builtins, step.argval, _MISSING)))
                if value is globals or value is vars:
                    self._all(names)
                if not ((value is hash or value is id) and _is_key(code, steps[at:])):
                    self._attributes(value, steps, at + 1)
            elif step.opname == "IMPORT_NAME":
                imported = self._import(step.argval, steps[at - 2].argval or 0, steps[at - 1].argval, names)
            elif step.opname == "IMPORT_FROM" and imported is not None:  # import a.b as c
                imported = getattr(imported, step.argval)
            elif step.opname.startswith("STORE_") and imported is not None:
                if step.opname == "STORE_GLOBAL":  # other functions may name it
                    self.value(imported)
                bound[step.argval], imported = imported, None
            elif step.opname in _ATTRIBUTE and step.argval == "__hash__" and not _is_key(code, []):
                self.value(hash)
            elif step.opname in _ATTRIBUTE and step.argval in _READS:
                self.unknown(f"{_READS[step.argval]} ({step.argval})")
            elif step.opname.startswith("LOAD_") and isinstance(step.argval, str) and step.argval in bound:
                self._attributes(bound[step.argval], steps, at + 1)
            elif isinstance(step.argval, tuple):  # two names in one step
                self.value([bound[name] for name in step.argval if isinstance(name, str) and name in bound])
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self._names(inner, names, bound)

    def _attributes(self, value: Any, steps: list[dis.Instruction], at: int) -> None:
        asked = steps[at - 2].argval if at > 1 and steps[at - 2].opname in _GLOBAL else None
        while isinstance(value, types.ModuleType) and at < len(steps) and steps[at].opname in _ATTRIBUTE:
            self.put("attribute", steps[at].argval)
            if not self._named(value.__name__, "") and steps[at].argval == "__dict__":
                self._all(vars(value))
                return
            value, at = getattr(value, steps[at].argval, _MISSING), at + 1
        after, name = next(((one.opname, one.argval) for one in steps[at:] if one.opname != "PUSH_NULL"), ("", ""))
        origin = _origin(value.__name__, self.own) if isinstance(value, types.ModuleType) else ""
        named = name if after == "LOAD_CONST" else None
        if asked == "getattr" and origin:
            if named is None:
                self.unknown(f"reads a computed name of {value.__name__}")
            else:
                value = getattr(value, named, _MISSING)
        self._first_argument(value, named)
        if type(value) is dict and name not in ("get", "__getitem__") and not _LOOKED_UP.match(_words(steps[at:])):
            self.value(list(value))  # its order
        if after in _ATTRIBUTE and name in _NOW and isinstance(value, type) and issubclass(value, datetime.date):
            self.unknown("reads the clock")
        call = next((step for step in steps[at:] if step.opname not in ("PRECALL", "PUSH_NULL")), None)
        if call is not None and (call.opname, call.arg) == ("CALL", 0) and any(value is one for one in _SEEDED):
            self.unknown("draws from a random generator without a seed")
        if value is random.SystemRandom:
            self.unknown("reads system randomness")
        if origin and after in ("STORE_ATTR", "DELETE_ATTR"):
            self.unknown(f"changes {value.__name__}.{name}")
        self.value(value)

    def _first_argument(self, function: Any, text: Any) -> None:
        if function is operator.methodcaller or function is operator.attrgetter:
            if text is None:
                self.unknown("reads attributes by computed names")
            elif text in _READS:
                self.unknown(f"{_READS[text]} ({text})")
        elif text in _NOW and str(getattr(function, "__module__", "")).startswith(("numpy", "pandas")):
            self.unknown("reads the clock")

    def _import(self, name: str, level: int, wanted: Any, names: Mapping[str, Any]) -> types.ModuleType | None:
        try:
            full = importlib.util.resolve_name("." * level + name, names.get("__package__") or "") if level else name
            of_package = _origin(full, self.own) not in ("", "python", "hetsim")
            module = sys.modules.get(full) if of_package else importlib.import_module(full)
            for one in wanted or () if module is not None and not of_package and hasattr(module, "__path__") else ():
                if not hasattr(module, one) and importlib.util.find_spec(f"{full}.{one}"):
                    importlib.import_module(f"{full}.{one}")
        except Exception as problem:  # the code may expect it, and otherwise the run will say so
            self.put(_MISSING, type(problem).__name__)
            return None
        self._named(full, "")
        if module is None:
            return None
        for one in wanted or ():
            self.value(module if one == "*" else getattr(module, one, _MISSING))
        return None if wanted else sys.modules[full.partition(".")[0]]

    def _module(self, module: types.ModuleType) -> None:
        if not self._named(module.__name__, ""):
            before, self.place = self.place, module.__name__
            self._all(vars(module))
            self.place = before

    def _all(self, names: Mapping[str, Any]) -> None:
        kept = {name for name in names if not (name[:2] == name[-2:] == "__") or name == "__getattr__"}
        self._mapping({name: names[name] for name in kept})

    # Classes and objects ----------------------------------------------------------------------------------------

    def _class(self, kind: type) -> None:
        if self._named(kind.__module__, kind.__qualname__) and "<locals>" not in kind.__qualname__:
            return
        before, self.place = self.place, f"{kind.__module__.replace('__mp_main__', '__main__')}.{kind.__qualname__}"
        self.put(kind.__qualname__)
        self.value((type(kind), *kind.__bases__))
        for name, value in vars(kind).items():  # but for what only describes it
            if name not in _DESCRIBING:
                self.value((name, value))
        self.place = before

    def _instance(self, value: Any, kind: type) -> None:
        if kind is weakref.ReferenceType:
            self.value((value(), value.__callback__))
            return
        others = [one for one in kind.__mro__[:-1] if one not in _CONTAINERS
                  and _origin(one.__module__, self.own) not in ("", "hetsim")
                  and one.__module__ not in ("abc", "typing", "collections.abc")]  # fmt: skip
        if kind.__name__ == "cython_function_or_method" and self._named(value.__module__, value.__qualname__):
            return
        if others[:1] != [kind]:
            self.value((kind, dict(getattr(value, "__dict__", {}))))
            slots = ((f"{one.__qualname__}.{name}", name) for one in kind.__mro__ for name, member in vars(one).items()
                     if isinstance(member, types.MemberDescriptorType) and name[:2] != "__")  # fmt: skip
            self.value({full: getattr(value, name) for full, name in slots if hasattr(value, name)})
            self.value([base(value) for base in _CONTAINERS if isinstance(value, base)])  # type: ignore[arg-type]
        if others:  # it may have a state that Python does not show
            self._reduced(value, kind)

    def _reduced(self, value: Any, kind: type) -> None:
        try:
            made = copyreg.dispatch_table[kind](value) if kind in copyreg.dispatch_table else value.__reduce_ex__(4)
        except Exception:
            self.unknown(f"has an object of {kind.__module__}.{kind.__qualname__}, whose state cannot be read")
            return
        if isinstance(made, str) and not made.replace(".", "").isidentifier():  # a function of the user's as a ufunc
            self.unknown(f"has an object of {kind.__module__}.{kind.__qualname__}, whose state cannot be read")
        if kind is operator.methodcaller or kind is operator.attrgetter:
            for text in made[1][:1] if kind is operator.methodcaller else made[1]:
                self._first_argument(kind, text)
        made = (kind, made, None, None, None) if isinstance(made, str) else (*made, *(None,) * (5 - len(made)))
        self.value(made[:3])
        pairs = list(made[4] or ())
        self.value([list(made[3] or ()), pairs if kind.__name__ == "OrderedDict" else dict(pairs)])

    def _method(self, value: Any) -> None:
        owner = value.__self__
        self.put(value.__name__)
        if owner is random._inst or owner is np.random.mtrand._rand:
            self.unknown("draws from the global random generator")
        elif value.__name__ in _NOW and isinstance(owner, type) and issubclass(owner, datetime.date):
            self.unknown("reads the clock")
        elif value.__module__ in ("posix", "nt") and value is not os.fspath:
            self.unknown(f"queries the system (os.{value.__name__})")
        elif isinstance(owner, types.ModuleType | None):
            self._named(str(value.__module__), value.__qualname__)
        else:
            self.value(owner)
            self.value(getattr(value, "__func__", None))

    def _named(self, module: str, name: str) -> bool:
        """Hash a library's name and version; return False if the module is user code."""
        if origin := _origin(module, self.own):
            self.put("named", module, name, origin)
        if origin and module.partition(".")[0] in _OUTSIDE:
            self.unknown(f"uses {module}")
        elif origin not in ("", "hetsim") and (_OF_PYTHON if origin == "python" else _OF_PACKAGES).match(name):
            self.unknown(f"opens files ({name})")
        return bool(origin)


def _is_key(code: types.CodeType, steps: list[dis.Instruction]) -> bool:
    return "__hash__" in code.co_qualname.split(".") or _KEY.match(_words(steps)) is not None


def _words(steps: list[dis.Instruction]) -> str:
    return " ".join("BINARY_SUBSCR" if step.argrepr == "[]" else step.opname for step in steps[:20])


# Where code is from -----------------------------------------------------------------------------------------------


def _origin(module: Any, own: str) -> str:
    """Return `python`, `hetsim`, a package with version, or "" for the user's code."""
    if not isinstance(module, str):  # of some classes in C
        return "python"
    top = module.partition(".")[0]
    if top == own or top in ("__main__", "__mp_main__"):
        return ""
    return "hetsim" if top in OURS else _origin_of(top, _file(top))


def _file(top: str) -> str:
    """Return a module's file (`built in` if it has none); "" if it cannot be imported."""
    if (module := sys.modules.get(top)) is not None:
        return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), _BUILT_IN)
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    return "" if spec is None else str(spec.origin) if spec.has_location else _BUILT_IN


@cache
def _origin_of(top: str, file: str) -> str:
    path = Path(file)
    if not {"site-packages", "dist-packages"} & set(path.parts):
        libraries = {Path(str(sysconfig.get_path(name))) for name in ("stdlib", "platstdlib")}
        of_python = top in sys.stdlib_module_names and (file == _BUILT_IN or libraries & set(path.parents))
        return "python" if of_python else ""  # a file of the user's may have such a name too
    packages = [metadata.distribution(name) for name in sorted(set(_distributions().get(top, ())))]
    # Of one that was installed from a folder equal versions do not mean equal code.
    installed = [one for one in packages if '"file:' not in (one.read_text("direct_url.json") or "").replace(" ", "")]
    return ", ".join(f"{one.name} {one.version}" for one in installed)


_distributions = cache(metadata.packages_distributions)


def _check_source(function: types.FunctionType, module: str) -> None:
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if file != function.__code__.co_filename or type(getattr(loaded, "__loader__", None)) is not SourceFileLoader:
        return
    try:
        digests = _codes_in(file, os.stat(file).st_size, os.stat(file).st_mtime_ns)
    except (OSError, SyntaxError, ValueError):
        digests = frozenset()
    if _Walk().alone(function.__code__) not in digests:
        raise UsageError(
            f"{Path(file).name} has changed since it was imported: {function.__qualname__} differs from its "
            "version; restart Python (or import the module again), then repeat the command"
        )


@cache
def _codes_in(file: str, size: int, changed: int) -> frozenset[bytes]:
    """Digests of all code objects in a file; `size` and `changed` are only cache keys."""
    todo, digests = [compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)], set()
    while todo:
        code = todo.pop()
        digests.add(_Walk().alone(code))
        todo += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return frozenset(digests)
