"""Parser of preprocessing strings such as `"decode|resize(224)|value_range(-1, 1)"`."""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_vit import _spec

IMAGE, EXAMPLE, VALUE = "image", "example", "value"


@dataclasses.dataclass(frozen=True)
class Op:
    """An operation of preprocessing strings.

    Attributes:
        name: Name in the string.
        factory: Function of the arguments in the string. It returns the function that processes images.
        kind: `"image"` for a function of the image, `"value"` for an elementwise one that may run on the device,
            `"example"` for a function of the whole dictionary.
        random: Whether the function takes a seed as its second argument.
    """

    name: str
    factory: Callable[..., Callable]
    kind: str = IMAGE
    random: bool = False


@dataclasses.dataclass(frozen=True)
class Call:
    """One step of a preprocessing string.

    Attributes:
        op: Operation.
        text: Text of the step.
        function: Result of `op.factory` for the arguments in the string.
        arguments: Arguments by name, defaults included.
    """

    op: Op
    text: str
    function: Callable
    arguments: dict[str, Any]


def parse(pp: str, ops: dict[str, Op]) -> tuple[Call, ...]:
    """Read a preprocessing string: operations joined by `|`, each `name` or `name(literals)`."""
    steps = []
    for call in _spec.parse(pp, "preprocessing string", "decode|resize(224)"):
        op = call.function(ops)
        function, arguments = call.create(op.factory)
        steps.append(Call(op, call.text, function, arguments))
    return tuple(steps)
