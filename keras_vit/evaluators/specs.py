"""Reads `"fewshot(shots=(1, 10), l2=1024.0)"` by `ast`, never by `eval`."""

import ast
import inspect
from collections.abc import Callable

from keras_vit import _checks


def parse(text: str) -> tuple[str, dict]:
    """Splits a call into its name and its arguments.

    Args:
        text: A name, or a name and arguments in brackets, each `name=literal`.

    Returns:
        The name and the arguments.

    Raises:
        ValueError: If the text is something else.
    """
    usage = f"An evaluator is written name or name(argument=value, ...), values being literals. Received: {text!r}"
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{usage} ({error.msg}).") from None
    if isinstance(node, ast.Name):
        return node.id, {}
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise ValueError(f"{usage}.")
    arguments = {}
    for keyword in node.keywords:
        try:
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError):
            raise ValueError(f"{usage}, in which {keyword.arg} is not a literal.") from None
    return node.func.id, arguments


def create(kind: Callable, arguments: dict, text: str):
    """Calls `kind` with arguments that it has.

    Raises:
        ValueError: If it has no such argument, naming the nearest one, lacks one, or one has a wrong value.
    """
    parameters = inspect.signature(kind).parameters
    known = list(parameters)
    for name in arguments:
        if name not in known:
            raise ValueError(
                f"There is no argument {name!r} in {text!r}.{_checks.nearest(name, known)} "
                f"There are: {', '.join([*known, 'name', 'every'])}."
            )
    required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    lacking = [name for name in required if name not in arguments]
    if lacking:
        raise ValueError(
            f"{text!r} lacks {' and '.join(f'{name}=' for name in lacking)}. It needs: {', '.join(required)}."
        )
    try:
        return kind(**arguments)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error
