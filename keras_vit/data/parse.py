"""Parser of preprocessing strings such as `"decode|resize(224)|value_range(-1, 1)"`."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from keras_vit import _spec

IMAGE, EXAMPLE, VALUE = "image", "example", "value"

Factory = TypeVar("Factory", bound=Callable[..., Callable])
OPS: dict[str, "Op"] = {}  # those of the modules that `preprocess` imports


@dataclasses.dataclass(frozen=True)
class Op:
    """An operation of preprocessing strings.

    `kind` is `"image"` for a function of the image, `"value"` for an elementwise one that may run on the device, and
    `"example"` for a function of the whole dictionary.
    """

    name: str
    factory: Callable[..., Callable]  # from the arguments in the string to the function that processes images
    kind: str = IMAGE
    random: bool = False  # the function takes a seed as its second argument


@dataclasses.dataclass(frozen=True)
class Call:
    """One step of a preprocessing string, its function, and the arguments of it by name, with defaults."""

    op: Op
    text: str
    function: Callable
    arguments: dict[str, Any]


def operation(kind: str = IMAGE, random: bool = False, name: str = "") -> Callable[[Factory], Factory]:
    """Register a factory as an operation of preprocessing strings, by default under the name of the factory."""

    def register(factory: Factory) -> Factory:
        op = Op(name or factory.__name__, factory, kind, random)
        OPS[op.name] = op
        return factory

    return register


def parse(pp: str) -> tuple[Call, ...]:
    """Read a preprocessing string: operations joined by `|`, each `name` or `name(literals)`."""
    steps = []
    for call in _spec.parse(pp, "preprocessing string", "decode|resize(224)"):
        op = call.function(OPS)
        function, arguments = call.create(op.factory)
        steps.append(Call(op, call.text, function, arguments))
    return tuple(steps)
