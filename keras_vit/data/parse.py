"""Parser of preprocessing strings such as `"decode|resize(224)|value_range(-1, 1)"`."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from keras_vit.util import literal_calls

IMAGE, GEOMETRIC, VALUE, EXAMPLE = "image", "geometric", "value", "example"
# Value of the mask's pixels that preprocessing adds, for example by padding. Loss and metrics ignore these pixels.
IGNORED = 255

Factory = TypeVar("Factory", bound=Callable[..., Callable])
OPS: dict[str, "Op"] = {}  # `preprocess` imports the modules that register operations


def changed(**changes: Any) -> Callable[[Callable, dict], Callable]:
    """Return the argument `mask` for an operation whose arguments are different for masks."""
    return lambda factory, arguments: factory(**{**arguments, **changes})


UNCHANGED = changed()


@dataclasses.dataclass(frozen=True)
class Op:
    """An operation of preprocessing strings.

    `kind` is `"image"` for a function of the image, `"geometric"` for a function that moves pixels, `"value"` for an
    elementwise function, or `"example"` for a function of the dictionary. Elementwise functions may run on the device.

    Geometric operations also process the mask of an example, uint8 `[H, W, 1]`, with the same seed. `mask` builds the
    function for masks from the factory and its arguments. That function takes the nearest pixel and fills with
    `IGNORED`.
    """

    name: str
    factory: Callable[..., Callable]  # takes the arguments in the string, returns the function that processes images
    kind: str = IMAGE
    random: bool = False  # the function takes a seed as its second argument
    mask: Callable[[Callable, dict], Callable] = UNCHANGED


@dataclasses.dataclass(frozen=True)
class Call:
    """One operation of a preprocessing string, with its function and all arguments, including defaults, by name."""

    op: Op
    text: str
    function: Callable
    arguments: dict[str, Any]

    def mask_function(self) -> Callable:
        """Return the function for masks of a geometric operation."""
        return self.op.mask(self.op.factory, self.arguments)


def operation(
    kind: str = IMAGE, random: bool = False, name: str = "", mask: Callable[[Callable, dict], Callable] = UNCHANGED
) -> Callable[[Factory], Factory]:
    """Register a factory as an operation of preprocessing strings; `name` defaults to the name of the factory."""

    def register(factory: Factory) -> Factory:
        op = Op(name or factory.__name__, factory, kind, random, mask)
        OPS[op.name] = op
        return factory

    return register


def parse(pp: str) -> tuple[Call, ...]:
    """Parse a preprocessing string: operations joined by `|`, each `name` or `name(literals)`."""
    steps = []
    for call in literal_calls.parse(pp, "preprocessing string", "decode|resize(224)"):
        op = call.function(OPS)
        function, arguments = call.create(op.factory)
        steps.append(Call(op, call.text, function, arguments))
    return tuple(steps)
