"""Parser of preprocessing strings such as `"decode|resize(224)|value_range(-1, 1)"`."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from keras_vit import _spec

IMAGE, GEOMETRIC, VALUE, EXAMPLE = "image", "geometric", "value", "example"
# Of pixels of a mask that no pixel of the given mask fills. Tasks leave them out.
IGNORED = 255

Factory = TypeVar("Factory", bound=Callable[..., Callable])
OPS: dict[str, "Op"] = {}  # those of the modules that `preprocess` imports


def changed(**changes: Any) -> Callable[[Callable, dict], Callable]:
    """Return the `mask` of an operation that acts on masks with some other arguments."""
    return lambda factory, arguments: factory(**{**arguments, **changes})


UNCHANGED = changed()


@dataclasses.dataclass(frozen=True)
class Op:
    """An operation of preprocessing strings.

    `kind` is `"image"` for a function of the image, `"geometric"` for one that moves pixels, `"value"` for an
    elementwise one that may run on the device, and `"example"` for a function of the whole dictionary.

    A geometric operation also acts on the mask of an example, uint8 `[H, W, 1]`, with the same seed. `mask` makes the
    function for masks from the factory and the arguments: it takes the nearest pixel and fills with `IGNORED`.
    """

    name: str
    factory: Callable[..., Callable]  # from the arguments in the string to the function that processes images
    kind: str = IMAGE
    random: bool = False  # the function takes a seed as its second argument
    mask: Callable[[Callable, dict], Callable] = UNCHANGED


@dataclasses.dataclass(frozen=True)
class Call:
    """One step of a preprocessing string, its function, and the arguments of it by name, with defaults."""

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
    """Register a factory as an operation of preprocessing strings, by default under the name of the factory."""

    def register(factory: Factory) -> Factory:
        op = Op(name or factory.__name__, factory, kind, random, mask)
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
