"""Masks stay aligned with their images in every operation of preprocessing strings."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import parse, preprocess
from tests.data import example_images

COLORS = (20 + 200 * np.array([*np.ndindex(2, 2, 2)])[:7]).astype(np.uint8)  # of seven labels
MASK = np.repeat(np.repeat(np.random.default_rng(0).integers(0, 7, (8, 10), np.uint8), 16, 0), 16, 1)
SIZE = 96  # for each argument without a default
OPERATIONS = [op for op in parse.OPS.values() if op.kind != parse.EXAMPLE]


def default(op):
    """Return an operation with as few arguments as it takes."""
    parameters = inspect.signature(op.factory).parameters.values()
    needed = [str(SIZE) for parameter in parameters if parameter.default is inspect.Parameter.empty]
    return f"{op.name}({', '.join(needed)})"


def agreement(image, mask):
    """Return the share of pixels that have about the most frequent color among those of their label."""
    assert image.shape[:2] == mask.shape[:2]
    levels = np.round((image - image.min()) / max(np.ptp(image), 1e-6) * 10)
    colors, labels = levels.reshape(-1, image.shape[-1]), mask.ravel()
    counts = [np.unique(colors[labels == label], axis=0, return_counts=True)[1] for label in np.unique(labels)]
    return sum(count.max() for count in counts) / labels.size


def check(pp, image=COLORS[MASK]):
    function = tf.function(preprocess.host_function(pp), autograph=False)
    alone = tf.function(preprocess.host_function(pp), autograph=False)
    for position in range(8):
        results = function({"image": image, "mask": MASK}, 3, tf.constant(position, tf.int64))
        image_alone = alone({"image": image}, 3, tf.constant(position, tf.int64))["image"]
        np.testing.assert_array_equal(results["image"], image_alone)
        mask = results["mask"].numpy()
        assert mask.dtype == np.uint8 and set(np.unique(mask)) <= {*range(7), parse.IGNORED}
        assert agreement(results["image"].numpy(), mask) > 0.6
        yield mask


def test_the_measure_detects_misalignment():
    assert agreement(COLORS[MASK], MASK) == 1
    for other in (MASK[:, ::-1], MASK[::-1], np.roll(MASK, 8, 0)):
        assert agreement(COLORS[MASK], other) < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.name)
def test_every_operation_moves_masks_with_images(op):
    masks = list(check(f"{default(op)}|resize(80)" if op.kind == parse.VALUE else default(op)))
    if op.kind == parse.IMAGE:
        assert all(np.array_equal(mask, MASK) for mask in masks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pp",
    [
        "randaug(3, 7, 'corrected')",
        "pad(9, 'reflect')|random_crop((100, 90))|flip_lr",
        "inception_crop((80, 90), method='bicubic', antialias=True, cast=False)",
        "decode_jpeg_and_inception_crop(80, scaled=True)|color_jitter(0.1, 0.1)|random_erasing(1)",
        "resize((70, 90), 'area')|value_range(-1, 1)",
        "scaled_crop((80, 96), 0.8, 1.2)|flip_lr",
    ],
)
def test_options_of_operations_move_masks_with_images(pp):
    assert len({mask.tobytes() for mask in check(pp)}) > 1 or not preprocess.is_random(pp)


def test_padded_pixels_of_masks_are_ignored():
    image, mask = np.zeros((2, 3, 3), np.uint8), np.ones((2, 3), np.uint8)
    for given in (mask, mask[..., None]):
        padded = preprocess.host_function("pad(1, value=7)")({"image": image, "mask": given})["mask"].numpy()
        assert padded.shape == (4, 5, *given.shape[2:]) and padded.sum() == 6 + 14 * parse.IGNORED
    with pytest.raises(tf.errors.InvalidArgumentError, match="a mask of the size of its image"):
        preprocess.host_function("flip_lr")({"image": image, "mask": mask.T})


@pytest.mark.slow
def test_scaled_crop_enlarges_smaller_images():
    image = np.full((20, 40, 1), 9, np.uint8)
    function = preprocess.host_function("scaled_crop((12, 8), 0.5, 2.0)")
    heights = []
    for position in range(40):
        found = function({"image": image, "mask": image[..., 0]}, 0, tf.constant(position, tf.int64))
        inside = found["image"].numpy()[..., 0] == 9
        np.testing.assert_array_equal(found["mask"], np.where(inside, 9, parse.IGNORED))
        heights.append(inside.any(axis=1).sum())
        assert (
            inside[: heights[-1]].all() and not inside[heights[-1] :].any()
        )  # twice as wide as high: never too narrow
    assert min(heights) == 4 and max(heights) == 12  # the smaller side has 8 pixels times 0.5 to 2
    exact = preprocess.host_function("scaled_crop(20, 1, 1)")
    columns = np.tile(np.arange(40, dtype=np.uint8), (20, 1))[..., None]
    cut = exact({"image": columns}, 0, tf.constant(1, tf.int64))["image"].numpy()[0, :, 0]
    np.testing.assert_array_equal(cut, np.arange(20) + cut[0])
    places = [exact({"image": columns[:, :22]}, 0, tf.constant(p, tf.int64))["image"][0, 0, 0] for p in range(10)]
    assert set(map(int, places)) == {0, 1, 2}


@pytest.mark.parametrize("orientation", [1, 6])
def test_masks_are_aligned_with_the_upright_image(orientation):
    """Otherwise, the crop of a JPEG would be decoded before the image is rotated."""
    stored = COLORS[MASK] if orientation == 1 else np.rot90(COLORS[MASK])
    encoded = example_images.encode(stored, "JPEG", quality=95, exif=example_images.exif_block(orientation))
    function = preprocess.host_function("decode_jpeg_and_inception_crop(90)")
    result = function({"image": tf.constant(encoded), "mask": MASK}, 0, 1)
    nearest = np.abs(result["image"].numpy()[:, :, None] - COLORS.astype(np.float32)).sum(-1).argmin(-1)
    assert (nearest == result["mask"].numpy()).mean() > 0.8
