import pathlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from keras_vit.data import preprocess, randaugment
from tests import half_precision
from tests.data import example_images

# What big_vision's pp/archive/autoaugment.py computes (TensorFlow 2.21, in graphs), with the three functions that it
# takes from tensorflow-addons written with ImageProjectiveTransformV3. Keys: operation/magnitude/sign, or
# Cutout/magnitude/row,column of the center.
PUBLISHED = np.load(pathlib.Path(__file__).parent / "randaugment.npz", allow_pickle=False)
OPERATIONS = list(randaugment.operations_of(10, "reference"))


def apply(name, magnitude, image, draws, mode="reference"):
    operation = randaugment.operations_of(magnitude, mode)[name]
    return operation(tf.constant(image), tf.constant(draws, tf.float32)).numpy()


def smooths_to_a_whole_number(image):
    """Pixels whose exact mean is whole: the processor's order of sums decides whether float32 is just below it."""
    values, kernel = image.astype(int), np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]])
    whole = np.zeros(image.shape, bool)
    height, width = image.shape[0] - 2, image.shape[1] - 2
    sums = sum(kernel[i, j] * values[i : i + height, j : j + width] for i in range(3) for j in range(3))
    whole[1:-1, 1:-1] = sums % 13 == 0
    return whole


@pytest.mark.parametrize("name", OPERATIONS)
def test_reference_mode_matches_the_published_code_bit_for_bit(name):
    image = PUBLISHED["image"]
    keys = [key for key in PUBLISHED.files if key.split("/")[0] == name]
    assert len(keys) >= 8
    for key in keys:
        _, magnitude, argument = key.split("/")
        if name == "Cutout":
            row, column = (int(number) for number in argument.split(","))
            draws = [(row + 0.5) / image.shape[0], (column + 0.5) / image.shape[1]]
        else:
            draws = [0.7 if argument == "1" else 0.2, 0.0]
        same = apply(name, int(magnitude), image, draws) == PUBLISHED[key]
        if name == "Sharpness" and not half_precision.sums_are_exact():  # without AVX-512
            same |= smooths_to_a_whole_number(image)
        # At 45 degrees (magnitude 15) many coordinates lie between two pixels, and the last bit of a sine decides.
        assert same.mean() > 0.97 if name == "Rotate" else same.all(), key


def test_reference_mode_keeps_the_bugs_of_the_published_code():
    image = example_images.smooth()
    invert = 255 - image
    np.testing.assert_array_equal(apply("Solarize", 10, image, [0, 0]), invert)  # 256 became 0
    np.testing.assert_array_equal(apply("Solarize", 15, image, [0, 0]), np.where(image < 128, image, invert))
    np.testing.assert_array_equal(apply("Posterize", 0, image, [0, 0]), image & 0x80)
    assert apply("Brightness", 0, image, [0, 0]).max() <= 25
    assert (apply("TranslateX", 10, image, [0, 0]) == 128).all()  # 100 pixels, wider than the image


CORRECTED_AT_0 = [name for name in OPERATIONS if name not in ("AutoContrast", "Equalize", "Invert")]


@pytest.mark.parametrize("name", CORRECTED_AT_0)
def test_corrected_mode_is_the_identity_at_magnitude_0_and_grows(name):
    image = example_images.smooth()

    def change(magnitude):
        results = [apply(name, magnitude, image, draws, "corrected") for draws in ([0.7, 0.5], [0.3, 0.5])]
        return sum(np.abs(result.astype(int) - image).mean() for result in results)

    assert change(0) == 0
    changes = [change(magnitude) for magnitude in (3, 6, 10)]
    assert changes[0] > 0
    if not name.startswith(("Translate", "Rotate", "Shear")):  # how much these change depends on the image
        assert changes[0] <= changes[1] <= changes[2]


def test_color_operations_match_pillow():
    """`corrected` differs from PIL by the rounding of greys and cut fractions only: 1 or, for a blurred image, 2."""
    image = example_images.smooth()
    pil = Image.fromarray(image)
    stronger = 1 + 0.9 * 0.5
    for name, enhance in (
        ("Color", ImageEnhance.Color),
        ("Contrast", ImageEnhance.Contrast),
        ("Brightness", ImageEnhance.Brightness),
    ):
        expected = np.asarray(enhance(pil).enhance(stronger)).astype(int)
        assert np.abs(apply(name, 5, image, [0.9, 0], "corrected") - expected).max() <= 1, name
    np.testing.assert_array_equal(apply("Equalize", 5, image, [0, 0]), ImageOps.equalize(pil))
    assert (
        np.abs(apply("AutoContrast", 5, image, [0, 0]).astype(int) - np.asarray(ImageOps.autocontrast(pil))).max() <= 1
    )
    np.testing.assert_array_equal(apply("Posterize", 10, image, [0, 0]), ImageOps.posterize(pil, 4))
    np.testing.assert_array_equal(apply("Solarize", 5, image, [0, 0], "corrected"), ImageOps.solarize(pil, 128))
    turned = pil.rotate(-15, Image.Resampling.BILINEAR, fillcolor=(128,) * 3)
    difference = np.abs(apply("Rotate", 5, image, [0.3, 0], "corrected").astype(int) - np.asarray(turned))
    assert np.median(difference) <= 2


def test_gray_images_stay_gray():
    flat = np.full((6, 7, 3), 77, np.uint8)
    for name in ("AutoContrast", "Equalize"):
        np.testing.assert_array_equal(apply(name, 10, flat, [0, 0]), flat)


@pytest.mark.slow
def test_randaug_chooses_operations_uniformly_by_its_seed():
    image = example_images.smooth(48, 48)
    host = preprocess.host_function("randaug(1, 3)")

    @tf.function(autograph=False)
    def run(position):
        return host({"image": tf.constant(image)}, 0, position)["image"]

    known = {}
    for name in OPERATIONS:
        for draws in ([0.7, 0.5], [0.2, 0.5]):
            known[apply(name, 3, image, draws).tobytes()] = name
    counts = dict.fromkeys(OPERATIONS, 0)
    for position in range(320):
        result = run(tf.constant(position, tf.int64)).numpy()
        counts[known.get(result.tobytes(), "Cutout")] += (
            1  # Cutout has many positions, and the others have at most two results
        )
    for name, count in counts.items():
        assert 20 - 16 <= count <= 20 + 20, (name, counts)  # about 4 standard deviations
    again = run(tf.constant(319, tf.int64)).numpy()
    np.testing.assert_array_equal(again, result)


@pytest.mark.slow
def test_number_of_operations_is_configurable():
    image = tf.constant(example_images.smooth())
    nothing = preprocess.host_function("randaug(0, 10)")({"image": image})["image"]
    np.testing.assert_array_equal(nothing, image)
    assert preprocess.host_function("randaug(3, 15, 'corrected')")({"image": image})["image"].shape == image.shape


def test_images_without_three_channels_are_refused():
    with pytest.raises(ValueError, match="3 channels"):
        preprocess.host_function("randaug(2, 10)")({"image": tf.zeros([4, 4, 1], tf.uint8)})
