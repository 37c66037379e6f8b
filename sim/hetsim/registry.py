"""Registries of policies, readers and arrival processes, by name.

A registry maps `name -> "module:attribute"` and imports on first use.  The names of hetsim are in tables next to the
code (`hetsim_policies.CATALOGUE`, `BUILTIN` of a module); other packages add names through entry-point groups.  Only
registered names are ever imported: a scenario file cannot name code.
"""

import ast
import importlib
import inspect
import pickle
import sys
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any, TypeVar, get_type_hints

from hetsim.build import package_data
from hetsim.errors import RunError, UnknownName

Item = TypeVar("Item")
# kinds of policies that are keys of `policy:` in a scenario
POLICY_PARTS = ("scheduler", "placement", "admission", "batching", "routing", "eviction")
POLICY_KINDS = (*POLICY_PARTS, "scale", "predictor")
# other kinds of `register`: parts of learning environments, and metrics (`hetsim.metric`)
OTHER_KINDS = ("reward", "observation", "metric")
POLICY_GROUP = "hetsim.policies"
_TABLES = {
    "arrivals": ("hetsim.arrivals", "hetsim.workload.arrivals"),
    "clusters": ("hetsim.clusters", "hetsim.workload.node_lists"),
    "traces": ("hetsim.traces", "hetsim.workload.traces"),
}


def load_object(reference: str) -> Any:
    """Import and return the object that "module:attribute" names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def policies(kind: str) -> dict[str, str]:
    """Return the names and references of all policies of a kind, sorted.

    Third-party entry points of the group `hetsim.policies` are named `kind.name` or, for schedulers, `name`.
    """
    if kind not in POLICY_KINDS:
        raise UnknownName("policy kind", kind, POLICY_KINDS)
    references = dict(importlib.import_module("hetsim_policies").CATALOGUE.get(kind, {}))
    for name, reference in of_packages(POLICY_GROUP).items():
        prefix, dot, rest = name.partition(".")
        its_kind, its_name = (prefix, rest) if dot else ("scheduler", name)
        if its_kind == kind:
            references.setdefault(its_name, reference)
    references.update(_registered.get(kind, {}))
    return dict(sorted(references.items()))


def reference(kind: str, name: str) -> Any:
    """Return a policy's registered object or "module:attribute"; else UnknownName."""
    for here in (_registered.get(kind, {}), importlib.import_module("hetsim_policies").CATALOGUE.get(kind, {})):
        if name in here:
            return here[name]
    references = policies(kind)
    if name not in references:
        check_loaded(kind, name)
        plural = {"scheduler": "policies"}.get(kind, f"policies --kind {kind}")
        raise UnknownName(kind, name, references, f" (hetsim list {plural})")
    return references[name]


def policy(kind: str, name: str) -> Any:
    """Return the class or function of a policy; raise UnknownName if there is none."""
    ref = reference(kind, name)
    return load_object(ref) if isinstance(ref, str) else ref


_registered: dict[str, dict[str, Any]] = {}
_not_here: dict[tuple[str, str], str] = {}  # registrations of another process that cannot be loaded here: reasons


def register(name: str, item: Item, kind: str = "scheduler") -> Item:
    """Register a policy of your own under a name in this process.

    A package registers its policies for every process with an entry point instead.

    Parameters:
        name: how scenarios call it.
        item: a class, or the function of an order, a placement rule, a reward or an observation.
        kind: scheduler, placement, admission, batching, routing, eviction, scale or predictor; or, for an environment,
            reward or observation.
    Returns: the item.
    Raises: UnknownName: there is no such kind.
    """
    if kind not in POLICY_KINDS + OTHER_KINDS:
        raise UnknownName("kind", kind, POLICY_KINDS + OTHER_KINDS)
    _registered.setdefault(kind, {})[name] = item
    return item


def registered(kind: str) -> dict[str, Any]:
    """Return the objects of a kind that were registered in this process, by name."""
    return dict(_registered.get(kind, {}))


def to_send() -> tuple[tuple[str, str, bytes], ...]:
    """Return this process's registrations as (kind, name, pickle) for another process.

    Each is pickled separately, because the other process may lack the module of a registration that its scenario does
    not use.  Raises what `pickle` raises if an object cannot be pickled.
    """
    return tuple(
        (kind, name, pickle.dumps(item)) for kind, items in _registered.items() for name, item in items.items()
    )


def receive(sent: tuple[tuple[str, str, bytes], ...]) -> None:
    """Register objects sent by a process; those that fail to load raise on first use."""
    for kind, name, packed in sent:
        try:
            register(name, pickle.loads(packed), kind)
        except (ImportError, AttributeError) as problem:
            _not_here[kind, name] = str(problem)


def check_loaded(kind: str, name: str) -> None:
    """Raise RunError if a registered object could not be loaded in this process."""
    if (kind, name) in _not_here:
        raise RunError(f'the {kind} "{name}" cannot be loaded in the worker process: {_not_here[kind, name]}')


def table(kind: str) -> dict[str, str]:
    """Return the "module:attribute" of each name; kind: arrivals, clusters or traces."""
    group, module = _TABLES[kind]
    names = dict(importlib.import_module(module).BUILTIN)
    for name, reference in of_packages(group).items():
        names.setdefault(name, reference)
    return dict(sorted(names.items()))


def third_party(kind: str) -> list[str]:
    """Return the names that other packages add to "arrivals", "clusters" or "traces"."""
    group, module = _TABLES[kind]
    points = of_packages(group)
    return [name for name in points if name not in importlib.import_module(module).BUILTIN] if points else []


def entry(kind: str, name: str) -> Any:
    """Return the arrival process, node list reader or trace reader of that name."""
    names = table(kind)
    if name not in names:
        one = {"arrivals": "arrival process", "clusters": "format of node lists", "traces": "trace format"}[kind]
        raise UnknownName(one, name, names, f" (hetsim list {kind})")
    return load_object(names[name])


def parameters(item: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a policy class (of `__init__`); none for a function."""
    loaded: Any = item
    return dict(_parameters(loaded)) if inspect.isclass(item) else {}


def _stated(item: type) -> Callable[..., Any]:
    """Return a callable with a class's signature, which a mypyc-compiled class lacks."""
    maker = next(one for one in item.__mro__ if "__init__" in vars(one))
    if not hasattr(maker, "__mypyc_attrs__") or inspect.isfunction(vars(maker)["__init__"]):
        return item
    module = sys.modules[maker.__module__]
    source = ast.parse(package_data(str(module.__file__), f"{maker.__module__.rpartition('.')[2]}.py"))
    inside = next(one for one in source.body if isinstance(one, ast.ClassDef) and one.name == maker.__name__)
    made = next(one for one in inside.body if isinstance(one, ast.FunctionDef) and one.name == "__init__")
    names = dict(vars(module))
    exec(compile(ast.Module([made], []), str(module.__file__), "exec"), names)
    return partial(names["__init__"], None)


@lru_cache(500)
def _parameters(item: Any) -> dict[str, inspect.Parameter]:
    signature = inspect.signature(_stated(item), eval_str=True)
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    own = {name: p for name, p in signature.parameters.items() if p.kind not in kinds}
    names = getattr(item, "COMMON", ())  # what its kind has besides, as attributes of the class
    hints = get_type_hints(item, include_extras=True) if names else {}
    keyword = inspect.Parameter.KEYWORD_ONLY
    return own | {n: inspect.Parameter(n, keyword, default=getattr(item, n), annotation=hints[n]) for n in names}


@cache
def of_packages(group: str) -> dict[str, str]:
    """Return name -> reference of the entry points in a group, over all packages."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=group)}
