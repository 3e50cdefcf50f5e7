"""Selection of the cases of a matrix: in `make test`, in `make test-slow`, or in `make test-all` only."""

import pytest

EXHAUSTIVE = pytest.mark.exhaustive


def cases(values, quick, others=pytest.mark.slow):
    """Values for `parametrize`. The quick cases always run, and the other cases get a mark.

    Args:
        values: The cases; a tuple is a case of several arguments.
        quick: A container of cases, or a function of a case's arguments.
        others: The mark of the other cases, or a function of their arguments that returns it.
    """
    marked = []
    for value in values:
        arguments = value if isinstance(value, tuple) else (value,)
        is_quick = quick(*arguments) if callable(quick) else value in quick
        mark = others if isinstance(others, pytest.MarkDecorator) else others(*arguments)
        marked.append(value if is_quick else pytest.param(*arguments, marks=mark))
    return marked
