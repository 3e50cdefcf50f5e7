"""Preprocessing strings: `"decode|resize_small(256)|central_crop(224)|value_range(-1, 1)"`.

A string says all of what happens to an image between the file and the model. Training, evaluation and the exported
model read the same string, so that they cannot drift apart.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_vit.data import augment, ops, randaugment, seeds
from keras_vit.data.parse import EXAMPLE, VALUE, Call, Op, parse

OPS: dict[str, Op] = {**ops.OPS, **augment.OPS, **randaugment.OPS}


def split(pp: str) -> tuple[str, str]:
    """Parts a preprocessing string into what the host does and what the device does.

    The value operations at the end (`value_range`, `value_norm`) go to the device: images travel as uint8, a quarter of
    the bytes.

    Args:
        pp: a preprocessing string.

    Returns:
        Two preprocessing strings, either of them possibly empty. Operations on labels stay on the host.
    """
    host, device = _split(parse(pp, OPS))
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
    """The host's part of a preprocessing string, as a function of one example.

    Args:
        pp: a preprocessing string.

    Returns:
        `function(example, seed=0, position=0)`: `example` is a dictionary with "image" (encoded bytes, or an array) and
        most often "label"; random operations draw numbers that depend on `seed`, on their place in the string and on
        `position`, an int64 scalar, and on nothing else.
    """
    host, _ = _split(parse(pp, OPS))

    @tf.autograph.experimental.do_not_convert
    def apply(example: dict, seed: int = 0, position: tf.Tensor | int = 0) -> dict:
        for place, call in enumerate(host):
            with tf.name_scope(call.op.name):
                if call.op.kind == EXAMPLE:
                    example = call.function(example)
                    continue
                image = _array(example["image"], call)
                if call.op.random:
                    image = call.function(image, seeds.pair(seeds.key(seed, "augment", place), position))
                else:
                    image = call.function(image)
                example = {**example, "image": image}
        return example

    return apply


def _array(image: tf.Tensor, call: Call) -> tf.Tensor:
    if image.dtype == tf.string and not call.op.name.startswith("decode"):
        raise ValueError(
            f"The images are encoded files: 'decode|' must come before {call.text!r} in the preprocessing."
        )
    return image


def device_function(pp: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """The device's part of a preprocessing string, for use inside the training step of any backend.

    Args:
        pp: a preprocessing string, whole or only the device's part.

    Returns:
        A function of images [B, H, W, C] of any type that returns float32 in the range that the model expects. Static
        shapes, compilable by XLA.
    """
    _, device = _split(parse(pp, OPS))

    @tf.autograph.experimental.do_not_convert
    def apply(images: tf.Tensor) -> tf.Tensor:
        for call in device:
            images = call.function(images)
        return ops.as_float32(images)

    return apply


def is_random(pp: str) -> bool:
    """Whether a preprocessing string holds an operation that draws random numbers."""
    return any(call.op.random for call in parse(pp, OPS))


def single_image(pp: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """From the bytes of one file to what the model takes: the function that an exported model carries.

    Args:
        pp: a preprocessing string for evaluation; without "decode" in front, for sources of arrays, it is put there.

    Returns:
        A function of a string scalar that returns float32 [H, W, C].

    Raises:
        ValueError: If `pp` holds random operations, or does not determine the size of the result.
    """
    calls = parse(pp, OPS)
    random = [call.text for call in calls if call.op.random]
    if random:
        raise ValueError(
            f"Preprocessing for single images must not be random. Received: {pp!r}, of which {', '.join(random)} is; "
            "give the preprocessing string of the evaluation."
        )
    if not calls or calls[0].op.name != "decode":
        pp = "|".join(["decode", pp] if pp.strip() else ["decode"])
    host, device = host_function(pp), device_function(pp)

    @tf.autograph.experimental.do_not_convert
    def apply(encoded: tf.Tensor) -> tf.Tensor:
        return device(host({"image": encoded})["image"])

    return apply


def output_size(pp: str) -> tuple[int, int]:
    """Height and width of the images that a preprocessing string ends with.

    Args:
        pp: a preprocessing string, with or without random operations.

    Raises:
        ValueError: If the size is not fixed, as it is after `resize(224)` or `central_crop(224)`.
    """
    calls = parse(pp, OPS)
    encoded = bool(calls) and calls[0].op.name.startswith("decode")
    spec = tf.TensorSpec([], tf.string) if encoded else tf.TensorSpec([None, None, 3], tf.uint8)
    host = host_function("|".join(call.text for call in calls if call.op.kind != EXAMPLE))
    shape = tf.function(lambda image: host({"image": image})["image"], autograph=False).get_concrete_function(spec)
    shape = shape.structured_outputs.shape
    if shape.rank != 3 or None in shape[:2]:
        raise ValueError(
            f"The size of the images after {pp!r} is not fixed. Add an operation that fixes it, such as resize(224) or "
            "central_crop(224)."
        )
    return int(shape[0]), int(shape[1])
