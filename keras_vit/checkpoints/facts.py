"""Facts of a model as files state them: sizes, grids, agreement with the tensors, and differences from a model."""

from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.models import ViTConfig
from keras_vit.models.config import Config

Arguments = Mapping[str, Any]
MAX_SIZE = 2**31  # of an image edge in pixels
NONE = "None"  # stands for a None that is stated
# Arguments that `match` compares, because a load may drop or adapt the weights that depend on them.
_ADAPTED = ("patch_size", "channels", "classes", "include_top", "representation_size")
_SYNONYMS = {"gelu_approximate": "gelu_tanh", "gelu_new": "gelu_tanh"}


class _Any(tuple[Any, ...]):
    """All values of an argument."""

    def __contains__(self, value: object) -> bool:
        return True


ANY: tuple[Any, ...] = _Any()


def plain_pair(pair: tuple[int, ...]) -> int | list[int]:
    """Return one number for two equal ones."""
    return pair[0] if len(set(pair)) == 1 else list(pair)


def pair(value: Any) -> tuple[int, int] | None:
    """Return (height, width) of an integer or a pair, None for anything else."""
    sizes = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    good = len(sizes) == 2 and all(type(size) is int and 0 < size <= MAX_SIZE for size in sizes)
    return sizes if good else None


def geometry(arguments: Arguments) -> ViTConfig:
    """Return a configuration with the arguments that patches depend on, and the defaults of all others."""
    names = ("patch_size", "resnet_blocks", "image_size")
    return ViTConfig(**{"image_size": None, **{name: arguments[name] for name in names if name in arguments}})


def grid_of(arguments: Arguments) -> tuple[int, int] | None:
    """Return the grid of a model's position table, None if its images are not a whole number of patches."""
    try:
        return geometry(arguments).grid
    except ValueError:
        return None


def num_slots(arguments: Arguments) -> int:
    """Return the number of prefix tokens with entries in the position table."""
    return int(bool(arguments.get("class_token"))) + int(bool(arguments.get("distillation_token")))


def check_stated(stated: Arguments, found: Arguments, where: str) -> None:
    """Refuse a file whose description disagrees with its tensors.

    Args:
        stated: Arguments as a configuration or note states them; None where it does not.
        found: Arguments that the tensors show; None where they do not.
        where: Name of the description, for the message.

    Raises:
        CheckpointError: Naming the first argument that differs, and both values.
    """
    for name, value in stated.items():
        if value is None or found.get(name) is None:
            continue
        mine, theirs = (list(v) if isinstance(v, tuple) else v for v in (value, found[name]))
        if mine != theirs or isinstance(mine, bool) != isinstance(theirs, bool):
            raise CheckpointError(
                f"{where} says {name}={str(value)[:60]}, the tensors say {name}={theirs!r}. The file lacks tensors, or "
                "belongs to another model. Fetch both again."
            )


def differences(
    found: Arguments, model: Config, alternatives: Mapping[str, tuple[Any, ...]]
) -> dict[str, tuple[Any, Any]]:
    """Return the arguments that change the weights or their effect, and have another value in the model.

    Args:
        found: Arguments of the file.
        model: Arguments of the model.
        alternatives: Values of an argument that the file suits as well.

    Returns:
        Argument to (file's value, model's value).
    """
    result, values = {}, model.to_dict()
    for name in [name for name in values if name in found and name not in (*model.FREE, *_ADAPTED)]:
        if name == "pooling" and values[name] is None and found[name] != "map":
            continue  # all tokens, unpooled: the same weights
        theirs, ours = (_comparable(name, side) for side in (found, values))
        if ours != theirs and values[name] not in alternatives.get(name, ()):
            result[name] = (found[name], values[name])
    return result


def _comparable(name: str, arguments: Arguments) -> Any:
    value = arguments[name]
    if name == "layer_scale":
        return value is not None
    if name == "resnet_numerics" and arguments.get("resnet_blocks") is None:
        return None
    if name == "activation":
        return _SYNONYMS.get(value, value)
    if name == "pool_padding" and value == "edge":
        return "infinity"  # the edge is in every window that its copy is in
    return tuple(value) if isinstance(value, list) else value
