"""Reads preprocessing strings such as `"decode|resize(224)|value_range(-1, 1)"`, by `ast` and never by `eval`."""

import ast
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from keras_vit import _checks

IMAGE, EXAMPLE, VALUE = "image", "example", "value"


@dataclasses.dataclass(frozen=True)
class Op:
    """An operation that preprocessing strings may name.

    Attributes:
        name: as written in the string.
        factory: takes the arguments in the string and returns the function that does the work.
        kind: `"image"`, a function of the image; `"value"`, the same, elementwise and possible on the device;
            `"example"`, a function of the whole dictionary.
        random: whether the function takes a seed as its second argument.
    """

    name: str
    factory: Callable[..., Callable]
    kind: str = IMAGE
    random: bool = False


@dataclasses.dataclass(frozen=True)
class Call:
    """One step of a preprocessing string.

    Attributes:
        op: the operation.
        text: the step as written.
        function: what `op.factory` returned for the arguments in the string.
        arguments: the arguments by name, defaults included.
    """

    op: Op
    text: str
    function: Callable
    arguments: dict[str, Any]


def parse(pp: str, ops: dict[str, Op]) -> tuple[Call, ...]:
    """Turns a preprocessing string into its steps.

    Args:
        pp: operations joined by `|`, each `name` or `name(arguments)`; arguments are literals. May be empty.
        ops: the operations that exist.

    Returns:
        The steps, in order.

    Raises:
        ValueError: If the string cannot be read, or names an operation or an argument that does not exist; the message
            points at the place.
    """
    if not isinstance(pp, str):
        raise ValueError(f"A preprocessing string is expected, such as 'decode|resize(224)'. Received: {pp!r}.")
    if not pp.strip():
        return ()
    # In brackets, a string may run over several lines. Python's own grammar does the splitting at `|`.
    source = f"({pp})"
    try:
        tree = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise ValueError(_syntax_error(pp, error)) from None
    steps = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        steps.append(tree.right)
        tree = tree.left
    return tuple(_call(source, node, ops) for node in [tree, *reversed(steps)])


def _call(source: str, node: ast.AST, ops: dict[str, Op]) -> Call:
    target = node.func if isinstance(node, ast.Call) else node
    if not isinstance(target, ast.Name):
        raise ValueError(_at(source, node, "not an operation", "Expected: name or name(arguments)."))
    op = ops.get(target.id)
    if op is None:
        hint = f"{_checks.nearest(target.id, ops).strip()} There are: {', '.join(sorted(ops))}.".strip()
        raise ValueError(_at(source, target, f"unknown operation {target.id!r}", hint))
    usage = f"Usage: {op.name}{_signature(op)}."
    args, kwargs = [], {}
    if isinstance(node, ast.Call):
        for argument in node.args:
            args.append(_literal(source, argument, usage))
        for keyword in node.keywords:
            names = inspect.signature(op.factory).parameters
            if keyword.arg not in names:
                hint = f"{_checks.nearest(keyword.arg or '**', names).strip()} {usage}".strip()
                raise ValueError(_at(source, keyword, f"unknown argument {keyword.arg!r} of {op.name!r}", hint))
            kwargs[keyword.arg] = _literal(source, keyword.value, usage)
    try:
        bound = inspect.signature(op.factory).bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(_at(source, node, f"wrong arguments of {op.name!r} ({error})", usage)) from None
    try:
        function = op.factory(*args, **kwargs)
    except (ValueError, TypeError) as error:
        raise ValueError(_at(source, node, f"wrong arguments of {op.name!r}", str(error))) from error
    bound.apply_defaults()
    return Call(op, ast.get_source_segment(source, node), function, dict(bound.arguments))


def _signature(op: Op) -> str:
    parameters = inspect.signature(op.factory).parameters.values()
    return f"({', '.join(str(parameter.replace(annotation=inspect.Parameter.empty)) for parameter in parameters)})"


def _literal(source: str, node: ast.AST, usage: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        message = "not a literal (a number, a string in quotes, a tuple, True, False or None)"
        raise ValueError(_at(source, node, message, usage)) from None


def _syntax_error(pp: str, error: SyntaxError) -> str:
    source = f"({pp})"
    if "\n" not in pp:
        # Without the brackets, Python complains of the place that the user wrote.
        try:
            ast.parse(pp.strip(), mode="eval")
        except SyntaxError as bare:
            error, source = bare, pp.strip()
    hint = "Expected: operation|operation(arguments)|operation."
    if source == pp.strip():
        column = min(max((error.offset or 1) - 1, 0), len(source))
        return f"Error in a preprocessing string, {error.msg}:\n  {source}\n  {' ' * column}^\n{hint}"
    return _point(source, error.lineno, error.offset or 1, 1, error.msg, hint)


def _at(source: str, node: ast.AST, problem: str, hint: str) -> str:
    line = source.splitlines()[node.lineno - 1].encode()
    column = len(line[: node.col_offset].decode()) + 1
    width = node.end_col_offset - node.col_offset if node.end_lineno == node.lineno else 1
    return _point(source, node.lineno, column, width, problem, hint)


def _point(source: str, lineno: int, column: int, width: int, problem: str, hint: str) -> str:
    lines = source.splitlines()
    text = lines[min(lineno, len(lines)) - 1]
    # The bracket that was put in front is not part of what the user wrote; nor is the one behind.
    shift = 1 if lineno == 1 else 0
    text = text[shift:] if lineno < len(lines) else text[shift:-1]
    column = min(max(column - 1 - shift, 0), len(text))
    return f"Error in a preprocessing string, {problem}:\n  {text}\n  {' ' * column}{'^' * max(width, 1)}\n{hint}"
