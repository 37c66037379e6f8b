"""Detection of code that depends on the order of a set's members.

The order of texts in a set differs between processes.  Only sets that the code builds in place are detected: displays,
comprehensions, calls of set() and frozenset(), and results of |, &, - and ^ on these; not sets that have a name or are
returned by other functions.
"""

import ast
import contextlib
import linecache
import types
from collections.abc import Mapping
from functools import cache

# Calls whose result is independent of the order; with `key=` it is not, as keys may be equal.
FREE = frozenset({"sorted", "any", "all", "len", "min", "max", "set", "frozenset"})
# Calls whose result has the order of their argument.
TAKING = frozenset({
    "list", "tuple", "iter", "join", "enumerate", "map", "filter", "zip", "fromkeys", "deque", "array", "chain",
})  # fmt: skip

_Above = Mapping[ast.AST, ast.AST]


def takes_order(function: types.FunctionType) -> bool:
    """Return True if code builds a set and uses its order; False if it has no source."""
    code = function.__code__
    with contextlib.suppress(SyntaxError):
        above, definitions = _above("".join(linecache.getlines(code.co_filename, function.__globals__)))
        inside = {node for top in definitions if _is_of(top, code) for node in ast.walk(top)}
        return any(_is_set(node) and _taken(node, above) for node in inside)
    return False


@cache
def _above(text: str) -> tuple[_Above, list[ast.AST]]:
    above = {child: node for node in ast.walk(ast.parse(text)) for child in ast.iter_child_nodes(node)}
    return above, [one for one in above if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]


def _is_of(node: ast.AST, code: types.CodeType) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        return node.name == code.co_name and first == code.co_firstlineno
    return isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno


def _is_set(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor) and (
            _is_set(node.left) or _is_set(node.right)
        )
    return isinstance(node, ast.Set | ast.SetComp) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    )


def _taken(node: ast.AST, above: _Above) -> bool:
    around = above.get(node)
    match around:
        case ast.For() | ast.AsyncFor():
            return around.iter is node
        case ast.comprehension():
            made = above[around]
            return around.iter is node and not isinstance(made, ast.SetComp) and _counts(made, above)
        case ast.Call():
            takes = _name(around) in TAKING | FREE and not _frees(around)
            return takes and node in around.args and _counts(around, above)
        case ast.Starred():
            made = above[around]
            return not isinstance(made, ast.Set) and not _frees(made) and _counts(made, above)
        case ast.Assign():
            return any(isinstance(target, ast.Tuple | ast.List) for target in around.targets)
    return isinstance(around, ast.YieldFrom) or (isinstance(around, ast.Attribute) and around.attr == "pop")


def _counts(node: ast.AST, above: _Above) -> bool:
    around = above.get(node)
    if isinstance(around, ast.comprehension) and around.iter is node:
        made = above[around]
        return not isinstance(made, ast.SetComp) and _counts(made, above)
    return not (around is not None and _frees(around))


def _frees(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node) in FREE and not any(word.arg == "key" for word in node.keywords)


def _name(call: ast.Call) -> str:
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))
