"""Parsing of calls with literal arguments, such as `"decode|resize(224)"`, with `ast` and without `eval`."""

import ast
import dataclasses
import inspect
from collections.abc import Callable, Collection
from typing import Any

from keras_vit.util import checks

Node = ast.expr | ast.keyword


def parse(text: str, kind: str = "call", example: str = "name(argument=1)") -> tuple["Call", ...]:
    """Parse calls separated by `|`. Each call is `name` or `name(arguments)`, and the text may have several lines.

    An empty text has no calls. `kind` and `example` describe the text in error messages, which point to the position of
    the error.
    """
    if not isinstance(text, str):
        raise ValueError(f"The {kind} must be a string, such as {example!r}. Received: {text!r}.")
    if not text.strip():
        return ()
    source = " ".join(text.splitlines()).strip()  # in one line, `|` is Python's operator
    try:
        tree = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        hint = "Expected: name|name(arguments)|name."
        raise ValueError(_point(source, (error.offset or 1) - 1, 1, kind, error.msg, hint)) from None
    except (RecursionError, MemoryError):
        raise ValueError(f"Error in the {kind}: it is nested too deeply. Received: {text[:100]!r}.") from None
    nodes = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        nodes.append(tree.right)
        tree = tree.left
    return tuple(_call(node, source, kind) for node in [tree, *reversed(nodes)])


@dataclasses.dataclass(frozen=True)
class Call:
    """A name with arguments, and its original text."""

    name: str
    text: str
    _node: ast.expr = dataclasses.field(repr=False)
    _source: str = dataclasses.field(repr=False)
    _kind: str = dataclasses.field(repr=False)

    def function(self, functions: dict[str, Any], kind: str = "operation") -> Any:
        """Return the function of the call. An error for an unknown name lists the names of `functions`."""
        if self.name not in functions:
            hint = f"{checks.nearest(self.name, functions).strip()} Available: {', '.join(sorted(functions))}."
            target = self._node.func if isinstance(self._node, ast.Call) else self._node
            raise self._error(f"unknown {kind} {self.name!r}", hint.strip(), target)
        return functions[self.name]

    def bind(self, function: Callable, extra: Collection[str] = ()) -> tuple[inspect.BoundArguments, dict[str, Any]]:
        """Bind the call's arguments to a function, with its defaults. Arguments in `extra` are returned separately."""
        signature = inspect.signature(function)
        usage = f"Usage: {self.name}{_without_types(signature)}."
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for argument in getattr(self._node, "args", ()):
            args.append(self._literal(argument, usage))
        for keyword in getattr(self._node, "keywords", ()):
            if keyword.arg not in signature.parameters and keyword.arg not in extra:
                names = [*signature.parameters, *extra]
                hint = f"{checks.nearest(keyword.arg or '**', names).strip()} {usage}".strip()
                raise self._error(f"unknown argument {keyword.arg!r} of {self.name!r}", hint, keyword)
            (others if keyword.arg in extra else kwargs)[str(keyword.arg)] = self._literal(keyword.value, usage)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._error(f"wrong arguments of {self.name!r} ({error})", usage) from None
        bound.apply_defaults()
        return bound, others

    def create(self, function: Callable, extra: Collection[str] = ()) -> tuple[Any, dict[str, Any]]:
        """Call a function. Return its result and all arguments by name, including defaults and those in `extra`."""
        bound, others = self.bind(function, extra)
        try:
            return function(*bound.args, **bound.kwargs), {**bound.arguments, **others}
        except (ValueError, TypeError) as error:
            raise self._error(f"wrong arguments of {self.name!r}", str(error)) from error

    def _literal(self, node: ast.expr, usage: str) -> Any:
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, MemoryError, RecursionError):
            problem = "not a literal (a number, a string in quotes, a tuple, True, False or None)"
            raise self._error(problem, usage, node) from None

    def _error(self, problem: str, hint: str, node: Node | None = None) -> ValueError:
        return _error_at(node or self._node, self._source, self._kind, problem, hint)


def _call(node: ast.expr, source: str, kind: str) -> Call:
    target = node.func if isinstance(node, ast.Call) else node
    if not isinstance(target, ast.Name):
        raise _error_at(node, source, kind, "not a name", "Expected: name or name(arguments).")
    return Call(target.id, ast.get_source_segment(source, node) or target.id, node, source, kind)


def _without_types(signature: inspect.Signature) -> str:
    parameters = signature.parameters.values()
    return f"({', '.join(str(parameter.replace(annotation=inspect.Parameter.empty)) for parameter in parameters)})"


def _error_at(node: Node, source: str, kind: str, problem: str, hint: str) -> ValueError:
    offsets = node.col_offset, node.end_col_offset or node.col_offset
    start, end = (len(source.encode()[:offset].decode()) for offset in offsets)  # `ast` counts bytes
    return ValueError(_point(source, start, end - start, kind, problem, hint))


def _point(source: str, column: int, width: int, kind: str, problem: str, hint: str) -> str:
    column = min(max(column, 0), len(source))
    return f"Error in the {kind}, {problem}:\n  {source}\n  {' ' * column}{'^' * max(width, 1)}\n{hint}"
