import math

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import parse, preprocess
from tests.data import example_images


def run(pp, image, position=0, seed=0):
    return preprocess.host_function(pp)({"image": tf.constant(image)}, seed, position)["image"].numpy()


def draws(pp, image, count):
    """The results at the first positions, in a graph that is traced once."""
    function = preprocess.host_function(pp)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
    def at(position):
        return function({"image": tf.constant(image)}, 0, position)["image"]

    return [at(tf.constant(position, tf.int64)).numpy() for position in range(count)]


@pytest.fixture(scope="module")
def image():
    return example_images.smooth(20, 30)


def test_value_range_scales_and_clips(image):
    floats = image.astype(np.float32)
    apply = preprocess.device_function
    np.testing.assert_allclose(apply("value_range(0, 1)")(image), floats / 255, atol=1e-6)
    np.testing.assert_allclose(apply("value_range(-1, 1)")(image), (floats - 127.5) / 127.5, atol=1e-6)
    clipped = apply("value_range(-1, 1, in_min=50, in_max=100, clip_values=True)")(image)
    assert clipped.numpy().min() == -1 and clipped.numpy().max() == 1
    norm = apply("value_norm((0.5, 0.4, 0.3), (0.2, 0.2, 0.1))")(image)
    np.testing.assert_allclose(norm, (floats / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.2, 0.1], rtol=1e-5, atol=1e-5)
    # The same by big_vision's name, whose numbers are in 0..255.
    np.testing.assert_allclose(apply("vgg_value_range()")(image), apply("value_norm()")(image), atol=1e-5)


def test_crops_are_windows_of_the_image(image):
    np.testing.assert_array_equal(run("central_crop((10, 12))", image), image[5:15, 9:21])
    np.testing.assert_array_equal(run("central_crop()", image), image[:, 5:25])
    crop = run("random_crop(8)", image)
    windows = [image[y : y + 8, x : x + 8] for y in range(13) for x in range(23)]
    assert any((crop == window).all() for window in windows)


def test_pad_adds_borders(image):
    padded = run("pad((1, 2), value=7)", image)
    assert padded.shape == (22, 34, 3)
    np.testing.assert_array_equal(padded[1:-1, 2:-2], image)
    assert (padded[0] == 7).all() and (padded[:, :2] == 7).all()
    np.testing.assert_array_equal(run("pad(2, 'reflect')", image)[:2, 2:-2], image[2:0:-1])


def test_flip_lr_flips_with_the_given_probability(image):
    np.testing.assert_array_equal(run("flip_lr(1.0)", image), image[:, ::-1])
    np.testing.assert_array_equal(run("flip_lr(0.0)", image), image)
    flips = [(flipped != image).any() for flipped in draws("flip_lr", image, 200)]
    assert 70 < sum(flips) < 130  # more than 4 standard deviations of 200 fair coins on either side


@pytest.mark.parametrize("shape", [(20, 30), (30, 20), (7, 7), (1, 100)])
def test_resize_small_and_long_keep_the_aspect_ratio(shape):
    image = np.zeros((*shape, 3), np.uint8)
    assert min(run("resize_small(14)", image).shape[:2]) == 14
    assert max(run("resize_long(14)", image).shape[:2]) == 14
    small = run("resize_small(14)", image).shape
    assert abs(small[0] / small[1] - shape[0] / shape[1]) <= 0.5 * max(shape) / min(shape)


def test_bicubic_resizing_does_not_overflow_bytes():
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, 4:] = 255  # beside a step, bicubic interpolation goes below 0 and above 255
    for size in (9, 10, 16):  # TensorFlow's cast wraps around only in what is left over from whole vectors
        result = run(f"resize({size}, 'bicubic')", image).astype(int)
        assert (np.diff(result, axis=1) >= -20).all()  # a wrapped value would jump by more than 200


@pytest.mark.parametrize(("rounding", "rounded"), [("down", math.floor), ("even", round)])  # as in torchvision: even
def test_central_crop_rounds_its_offset_as_requested(rounding, rounded):
    for height, width in ((9, 10), (10, 9), (9, 9), (11, 11)):
        image = np.arange(height * width, dtype=np.uint8).reshape(height, width, 1)
        y, x = rounded((height - 6) / 2), rounded((width - 4) / 2)
        found = run(f"central_crop((6, 4), {rounding!r})", image)
        np.testing.assert_array_equal(found, image[y : y + 6, x : x + 4])


@pytest.mark.slow
def test_inception_crop_areas_are_within_their_bounds(image):
    """Areas are spread between the bounds; the result has the requested size."""
    ramp = np.broadcast_to(np.arange(200, dtype=np.uint8)[:, None, None], (200, 200, 3))
    crops = draws("inception_crop()", ramp, 200)
    for crop in crops:  # a window of the image
        np.testing.assert_array_equal(crop[:, 0, 0], np.arange(crop[0, 0, 0], crop[0, 0, 0] + len(crop)))
    areas = np.array([height * width for height, width, _ in (crop.shape for crop in crops)]) / 200**2
    # 5 to 100%: 200 draws of a uniform area come within 3% of both ends but for a chance of 0.2%.
    assert 0.049 <= areas.min() < 0.08 and 0.9 < areas.max() <= 1
    ratios = np.array([width / height for height, width, _ in (crop.shape for crop in crops)])
    assert 0.73 < ratios.min() < 0.8 and 1.25 < ratios.max() < 1.36  # of whole pixels
    small = [run("inception_crop(area_min=90, ratio_min=1, ratio_max=1)", ramp, p).shape for p in range(10)]
    assert all(h * w >= 0.85 * 200 * 200 for h, w, _ in small)
    assert run("inception_crop((6, 9))", image).shape == (6, 9, 3)


def test_decoding_only_the_crop_is_decoding_and_cropping():
    encoded = example_images.encode(example_images.smooth(64, 80), "JPEG", quality=95)
    for position in range(5):
        whole = run("decode|inception_crop(area_min=30)", encoded, position)
        # The position in the string is part of the seed, so the operation must be at the same position.
        part = run("keep('image')|decode_jpeg_and_inception_crop(area_min=30)", encoded, position)
        assert part.shape == whole.shape
        # Upsampled colors at the border of a crop lack their neighbors.
        np.testing.assert_array_equal(part[2:-2, 2:-2], whole[2:-2, 2:-2])


@pytest.mark.parametrize("format", ["PNG", "BMP", "WEBP"])
def test_decode_and_crop_of_other_formats_equals_decoding_then_cropping(format):
    encoded = example_images.encode(example_images.smooth(), format)
    # The position in the string is part of the seed, so the operation must be at the same position.
    expected = run("decode|inception_crop(16)", encoded)
    np.testing.assert_array_equal(run("keep('image')|decode_jpeg_and_inception_crop(16)", encoded), expected)


def test_decode_and_crop_of_an_array_equals_cropping(image):
    for pixels in (image, image[..., :1]):
        expected = run("decode|inception_crop(16)", pixels)
        assert expected.shape == (16, 16, 3)
        np.testing.assert_array_equal(run("keep('image')|decode_jpeg_and_inception_crop(16)", pixels), expected)


@pytest.mark.parametrize(
    "pp",
    [
        "resize(8)",
        "resize_small(8)",
        "inception_crop(8)",
        "pad(4)|random_crop(8)",
        "resize(8)|randaug(2, 10, 'corrected')",
    ],
)
def test_one_pixel_images_are_processed(pp):
    result = run(f"decode|{pp}", example_images.encode(np.full((1, 1, 3), 90, np.uint8)))
    assert result.shape == (8, 8, 3)
    if "pad" in pp:  # the pixel, in zeros
        assert set(np.unique(result)) <= {0, 90} and (result != 0).sum() <= 3
    elif "randaug" not in pp:
        assert (result == 90).all()


@pytest.mark.parametrize("operation", ["AutoContrast", "Equalize", "Sharpness", "Contrast", "Rotate", "Cutout"])
def test_randaugment_processes_one_pixel_images(operation):
    from keras_vit.data import randaugment

    for mode in ("reference", "corrected"):
        pixel = tf.constant(np.full((1, 1, 3), 90, np.uint8))
        assert randaugment.operations_of(10, mode)[operation](pixel, tf.constant([0.6, 0.6])).shape == (1, 1, 3)


@pytest.mark.slow
def test_color_jitter_factors_are_within_their_range(image):
    def factors(pp):
        return [run(pp, image, position).astype(float).mean() / image.mean() for position in range(50)]

    brightness = factors("color_jitter(brightness=0.3)")  # of 0.7 to 1.3
    assert 0.69 < min(brightness) < 0.8 and 1.1 < max(brightness) < 1.31
    np.testing.assert_array_equal(run("color_jitter()", image), image)
    flat = run("color_jitter(contrast=1.0, saturation=1.0)", np.full((4, 4, 3), 60, np.uint8))
    assert np.ptp(flat) == 0  # a gray image has neither contrast nor color to change
    hue = run("color_jitter(hue=0.5)", image)
    np.testing.assert_allclose(hue.max(-1), image.max(-1), atol=2)  # the value of a color stays when its hue changes
    assert (hue != image).any()
    assert run("color_jitter(0.4, 0.4, 0.4, 0.1)", image[..., :1]).shape == (20, 30, 1)


@pytest.mark.slow
def test_random_erasing_areas_are_within_their_range(image):
    np.testing.assert_array_equal(run("random_erasing(0.0)", image), image)
    shares = []
    for result in draws("random_erasing(1.0, value=0)", np.full((50, 50, 3), 9, np.uint8), 100):
        erased = (result == 0).all(-1)
        rows, columns = np.flatnonzero(erased.any(1)), np.flatnonzero(erased.any(0))
        assert erased[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()  # one full rectangle
        shares.append(erased.mean())
    # From 2% to a third, of whole pixels, and less where a long rectangle is cut.
    assert 0.015 < min(shares) < 0.06 and 0.25 < max(shares) < 0.345
    noise = run("random_erasing(1.0, value='noise')", np.full((50, 50, 3), 9, np.uint8))
    assert len(np.unique(noise)) > 30


# Several positions are compared, because half of the flips agree. The noise covers the whole image of 20 x 30 pixels.
RANDOM = {
    "inception_crop": "inception_crop(8)",
    "decode_jpeg_and_inception_crop": "decode_jpeg_and_inception_crop(8)",
    "scaled_crop": "scaled_crop(8)",
    "random_crop": "random_crop(8)",
    "flip_lr": "flip_lr",
    "randaug": "randaug(2, 10)",
    "color_jitter": "color_jitter(0.4)",
    "random_erasing": "random_erasing(1.0, 100, 100, 0.6667, 0.6667, value='noise')",
}


def test_every_random_operation_is_compared():
    assert {name for name, op in parse.OPS.items() if op.random} == set(RANDOM)


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM)
def test_random_operations_depend_on_the_seed_and_the_position(name, image):
    content = example_images.encode(image, "JPEG") if name.startswith("decode") else image
    function = preprocess.host_function(RANDOM[name])

    def results(seed, positions):
        return [function({"image": tf.constant(content)}, seed, tf.constant(p, tf.int64))["image"] for p in positions]

    def equal(first, second):
        return all(a.shape == b.shape and np.array_equal(a, b) for a, b in zip(first, second, strict=True))

    at = results(0, range(8))
    assert equal(at, results(0, range(8)))
    assert not equal(at, results(1, range(8))) and not equal(at[:7], at[1:])


@pytest.mark.parametrize("pp", ["randaug(2, 10)", "color_jitter(0.4)"])
def test_color_operations_require_uint8(pp, image):
    with pytest.raises(ValueError, match="uint8"):
        run(f"value_range(0, 1)|{pp}|resize(4)", image)


def gray(image):
    """The perceived brightness, as of ITU-R BT.601."""
    return image.astype(float) @ [0.2989, 0.587, 0.114]


def test_contrast_changes_around_the_mean_of_the_perceived_brightness():
    image = np.full((4, 6, 3), [60, 140, 40], np.uint8)
    image[:, 3:] = [100, 180, 80]
    mean, factors = gray(image).mean(), []  # 124.6; the mean of the values is 100
    for position in range(20):
        result = run("color_jitter(contrast=0.4)", image, position).astype(float)
        factor = (result[0, 5] - result[0, 0]).mean() / 40
        # Rounding to whole values moves a factor by at most 1/40, and so values by at most 85/40 + 1/2.
        np.testing.assert_allclose(result, mean + (image - mean) * factor, atol=2.7)
        factors.append(factor)
    assert 0.58 <= min(factors) < 0.75 and 1.25 < max(factors) <= 1.42


def test_saturation_changes_around_the_gray_image():
    image = np.full((4, 6, 3), [80, 120, 100], np.uint8)
    image[:, 3:] = [140, 90, 130]
    factors = []
    for position in range(20):
        result = run("color_jitter(saturation=0.4)", image, position).astype(float)
        factor = np.ptp(result[0, 5]) / 50
        expected = gray(image)[..., None] + (image - gray(image)[..., None]) * factor
        np.testing.assert_allclose(result, expected, atol=1.2)  # whole values, of which the factor is made, too
        factors.append(factor)
    assert 0.58 <= min(factors) < 0.75 and 1.25 < max(factors) <= 1.42


@pytest.mark.slow
def test_erased_rectangles_are_as_often_tall_as_wide():
    """The ratio of their sides is uniform in its logarithm: from 0.3 to 1 as often as from 1 to 1 / 0.3."""
    image, taller = np.full((60, 60, 3), 9, np.uint8), []
    for result in draws("random_erasing(1.0, 10, 20, value=0)", image, 200):
        erased = (result == 0).all(-1)
        height, width = erased.any(1).sum(), erased.any(0).sum()
        taller += [height > width] if height != width else []
    assert 0.38 < np.mean(taller) < 0.62  # 3.4 standard deviations; with a ratio that is uniform, 0.77


def test_hues_are_rotated_in_both_directions():
    """Red becomes a little green (towards yellow) or a little blue (towards magenta), about as often."""
    image = np.zeros((2, 2, 3), np.uint8) + np.array([200, 0, 0], np.uint8)
    greener = []
    for result in draws("color_jitter(hue=0.1)", image, 60):
        red, green, blue = result[0, 0].astype(int)
        assert (
            red == 200 and min(green, blue) == 0 and max(green, blue) <= 122
        )  # 0.1 of 360 degrees: 200 * 0.6, rounded
        greener += [green > blue] if green != blue else []
    assert 0.3 < np.mean(greener) < 0.7  # 3 standard deviations


@pytest.mark.slow
def test_erased_rectangles_are_anywhere():
    """Uniform in both directions, and independent of each other."""
    places = []
    pp = "random_erasing(1.0, value=0, area_min=25, area_max=25, ratio_min=1, ratio_max=1)"
    for result in draws(pp, np.full((40, 60, 1), 9, np.uint8), 100):
        erased = (result == 0)[..., 0]
        assert erased.sum() == 24 * 24  # a quarter of 2,400 pixels is 24.5 squared
        places.append((erased.any(1).argmax(), erased.any(0).argmax()))
    top, left = np.array(places).T
    assert abs(np.corrcoef(top, left)[0, 1]) < 0.4  # 4 standard deviations of 100 independent pairs
    for place, last in ((top, 16), (left, 36)):
        assert place.min() <= 2 and last - 2 <= place.max() <= last
        assert abs(place.mean() - last / 2) < 4 * last / 12**0.5 / 10
