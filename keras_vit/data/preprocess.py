"""Preprocessing strings: `"decode|resize_small(256)|central_crop(224)|value_range(-1, 1)"`.

A string defines the whole transformation from the image file to the input of the model. Training, evaluation and
exported models use the same strings.
"""

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_vit.data import augment, crops, images, randaugment, scaling, seeds  # noqa: F401 (some register operations)
from keras_vit.data.parse import EXAMPLE, GEOMETRIC, VALUE, Call, operation, parse
from keras_vit.util import checks

__all__ = [
    "complete",
    "device_function",
    "host_function",
    "is_random",
    "keep",
    "onehot",
    "output_size",
    "single_image",
    "split",
]


@operation(EXAMPLE)
def onehot(
    depth: int, key: str = "label", key_result: str | None = None, on: float = 1.0, off: float = 0.0
) -> Callable[[dict], dict]:
    """Turn class numbers into a float32 vector of length `depth`. Several labels are merged into one vector.

    Args:
        depth: Number of classes.
        key: Name of the label. `"labels"`, the name in big_vision, is a synonym of `"label"`.
        key_result: Name of the result. None replaces the label.
        on: Value of the labeled classes.
        off: Value of the other classes.

    Example:
    >>> onehot(3)({"label": tf.constant(1)})["label"].numpy().tolist()
    [0.0, 1.0, 0.0]
    """
    checks.positive_int("depth", depth)

    def apply(example):
        label = example[_label_key(key)]
        if label.dtype.is_floating:  # already a vector
            return {**example, _label_key(key_result or key): label}
        vector = tf.one_hot(label, depth, on_value=on, off_value=off)
        if vector.shape.rank == 2:
            vector = tf.reduce_max(vector, axis=0) if on > off else tf.reduce_min(vector, axis=0)
        return {**example, _label_key(key_result or key): vector}

    return apply


@operation(EXAMPLE)
def keep(*keys: str) -> Callable[[dict], dict]:
    """Drop all features except the given features.

    Example:
    >>> keep("image")({"image": images, "name": "cat.png"}).keys()
    dict_keys(['image'])
    """
    wanted = {_label_key(key) for key in keys}
    return lambda example: {key: value for key, value in example.items() if key in wanted}


def _label_key(key: str) -> str:
    return "label" if key == "labels" else key


def split(pp: str) -> tuple[str, str]:
    """Split a preprocessing string into a part for the host and a part for the device.

    The value operations at the end (`value_range`, `value_norm`) run on the device. Images are therefore transferred as
    uint8, which takes a quarter of the bytes of float32.

    Args:
        pp: Preprocessing string.

    Returns:
        Two preprocessing strings, which may be empty. Operations on labels stay on the host.

    Example:
        >>> split("decode|resize(224)|value_range(-1, 1)")
        ('decode|resize(224)', 'value_range(-1, 1)')
    """
    host, device = _split(parse(pp))
    return "|".join(call.text for call in host), "|".join(call.text for call in device)


def _split(calls: tuple[Call, ...]) -> tuple[list[Call], list[Call]]:
    host, device, trailing = [], [], True
    for call in reversed(calls):
        if call.op.kind == VALUE and trailing:
            device.append(call)
        else:
            trailing = trailing and call.op.kind == EXAMPLE
            host.append(call)
    return host[::-1], device[::-1]


def host_function(pp: str) -> Callable[..., dict]:
    """Return the operations of a preprocessing string that run on the host, as a function of one example.

    Args:
        pp: Preprocessing string.

    Returns:
        `function(example, seed=0, position=0)`. `example` is a dictionary with "image" (encoded bytes or an array) and
        usually "label". `example` may have a "mask" with one integer per pixel of the upright image, uint8 or int32
        `[H, W]` or `[H, W, 1]`. The mask is cropped, resized, rotated and flipped like the image. Random operations
        depend only on `seed`, on `position`, an int64 scalar, and on the position of the operation in the string.

    Example:
    >>> function = host_function("resize(16)|flip_lr|value_range(-1, 1)")
    >>> example = function({"image": np.zeros((20, 30, 3), np.uint8), "label": 1}, seed=0, position=0)
    >>> example["image"].shape, example["image"].dtype.name
    (TensorShape([16, 16, 3]), 'uint8')
    """
    host, _ = _split(parse(pp))

    @tf.autograph.experimental.do_not_convert
    def apply(example: dict, seed: int = 0, position: tf.Tensor | int = 0) -> dict:
        for index, call in enumerate(host):
            with tf.name_scope(call.op.name):
                if call.op.kind == EXAMPLE:
                    example = call.function(example)
                    continue
                image = _array(example["image"], call)
                drawn = (seeds.pair(seeds.key(seed, "augment", index), position),) if call.op.random else ()
                if call.op.kind == GEOMETRIC and "mask" in example:
                    image, mask = _with_mask(image, example["mask"], call)
                    example = {**example, "mask": _on_mask(call.mask_function(), mask, drawn)}
                example = {**example, "image": call.function(image, *drawn)}
        return example

    return apply


def _with_mask(image: tf.Tensor, mask: tf.Tensor, call: Call) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the decoded image and its mask; fail if their sizes differ."""
    if image.dtype == tf.string:  # decoding operations crop the stored image before they turn it upright
        image = images.decode(image, exif=call.arguments["exif"], max_pixels=call.arguments["max_pixels"])
    with tf.control_dependencies([images.check_size(image, mask)]):
        return image, tf.identity(mask)


def _on_mask(function: Callable, mask: tf.Tensor, drawn: tuple) -> tf.Tensor:
    return function(mask, *drawn) if mask.shape.rank == 3 else function(mask[..., None], *drawn)[..., 0]


def _array(image: tf.Tensor, call: Call) -> tf.Tensor:
    if image.dtype == tf.string and not call.op.name.startswith("decode"):
        raise ValueError(
            f"The images are encoded files: 'decode|' must come before {call.text!r} in the preprocessing."
        )
    return image


def device_function(pp: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return the device's part of a preprocessing string as a function, for the training step of any backend.

    Args:
        pp: Preprocessing string, whole or only the device's part.

    Returns:
        Function that takes images `[B, H, W, C]` of any type and returns float32 in the range that the model expects.
        XLA can compile it.

    Example:
    >>> function = device_function("decode|resize(16)|value_range(-1, 1)")
    >>> function(tf.constant([0, 255], tf.uint8)).numpy().tolist()
    [-1.0, 1.0]
    """
    _, device = _split(parse(pp))

    @tf.autograph.experimental.do_not_convert
    def apply(images: tf.Tensor) -> tf.Tensor:
        for call in device:
            images = call.function(images)
        return scaling.as_float32(images)

    return apply


def is_random(pp: str) -> bool:
    """Return whether a preprocessing string has a random operation.

    Example:
    >>> is_random("decode|flip_lr"), is_random("decode|resize(224)")
    (True, False)
    """
    return any(call.op.random for call in parse(pp))


def single_image(pp: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return the function that turns the bytes of one image file into an input of the model, as exported models do.

    Args:
        pp: Preprocessing string for evaluation. "decode" is prepended to strings without it, such as strings for
            sources of arrays.

    Returns:
        Function that takes a scalar string and returns float32 `[H, W, C]`.

    Raises:
        ValueError: If `pp` has random operations.

    Example:
    >>> function = single_image("resize(16)|value_range(-1, 1)")
    >>> function(tf.io.read_file("images/cat.png")).shape
    TensorShape([16, 16, 3])
    """
    calls = parse(pp)
    random = [call.text for call in calls if call.op.random]
    if random:
        raise ValueError(
            f"Preprocessing for single images must not be random. Received: {pp!r} with {', '.join(random)}. "
            "Pass the preprocessing string of the evaluation."
        )
    if not calls or calls[0].op.name != "decode":
        pp = "|".join(["decode", pp] if pp.strip() else ["decode"])
    host, device = host_function(pp), device_function(pp)

    @tf.autograph.experimental.do_not_convert
    def apply(encoded: tf.Tensor) -> tf.Tensor:
        return device(host({"image": encoded})["image"])

    return apply


def output_size(pp: str) -> tuple[int, int]:
    """Return the height and width of the images that a preprocessing string produces.

    Args:
        pp: Preprocessing string, with or without random operations.

    Raises:
        ValueError: If the size is not fixed.

    Example:
        >>> output_size("decode|resize_small(256)|central_crop(224)")
        (224, 224)
    """
    shape = _output_shape("|".join(call.text for call in parse(pp) if call.op.kind != EXAMPLE))
    if shape.rank != 3 or None in shape[:2]:
        raise ValueError(
            f"The size of the images after {pp!r} is not fixed. Add an operation that sets it, such as resize(224) or "
            "central_crop(224)."
        )
    return int(shape[0]), int(shape[1])


@functools.lru_cache(64)  # tracing the decoder takes most of the time of opening a model's preprocessing
def _output_shape(pp: str) -> tf.TensorShape:
    host = host_function(pp)
    spec = tf.TensorSpec([], tf.string) if pp.startswith("decode") else tf.TensorSpec([None, None, 3], tf.uint8)
    shape = tf.function(lambda image: host({"image": image})["image"], autograph=False).get_concrete_function(spec)
    return shape.structured_outputs.shape


def complete(pp: str, input_shape: Sequence[int | None], method: str = "area") -> str:
    """Add decoding and resizing to a preprocessing string that lacks them.

    Recipes for arrays of a single size omit both operations. For images of the model's size, the completed string gives
    the same result.

    Args:
        pp: Preprocessing string.
        input_shape: `(H, W, C)` of the model's input. Images are not resized if `H` or `W` is None.
        method: Method of resizing, see `resize`. `"area"` averages all pixels of a larger image.

    Example:
    >>> complete("value_range(-1, 1)", (32, 32, 3))
    "decode(3)|resize((32, 32), method='area')|value_range(-1, 1)"
    """
    height, width, channels = input_shape
    host, device = split(pp)
    parts = [host] if host.startswith("decode") else [f"decode({channels})", host]
    if height is not None and width is not None and not _fixes_size("|".join(filter(None, parts))):
        parts.append(f"resize(({height}, {width}), method={method!r})")
    return "|".join(filter(None, (*parts, device)))


def _fixes_size(pp: str) -> bool:
    if all(call.op.name == "decode" for call in parse(pp)):
        return False  # known without tracing the decoder
    try:
        output_size(pp)
    except ValueError:
        return False
    return True
