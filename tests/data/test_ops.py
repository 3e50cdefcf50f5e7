import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import preprocess
from tests.data import pictures


def run(pp, image, position=0, seed=0):
    return preprocess.host_function(pp)({"image": tf.constant(image)}, seed, position)["image"].numpy()


@pytest.fixture(scope="module")
def image():
    return pictures.smooth(20, 30)


def test_value_operations(image):
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


def test_crops(image):
    np.testing.assert_array_equal(run("central_crop((10, 12))", image), image[5:15, 9:21])
    np.testing.assert_array_equal(run("central_crop()", image), image[:, 5:25])
    crop = run("random_crop(8)", image)
    windows = [image[y : y + 8, x : x + 8] for y in range(13) for x in range(23)]
    assert any((crop == window).all() for window in windows)


def test_pad(image):
    padded = run("pad((1, 2), value=7)", image)
    assert padded.shape == (22, 34, 3)
    np.testing.assert_array_equal(padded[1:-1, 2:-2], image)
    assert (padded[0] == 7).all() and (padded[:, :2] == 7).all()
    np.testing.assert_array_equal(run("pad(2, 'reflect')", image)[:2, 2:-2], image[2:0:-1])


def test_flip(image):
    np.testing.assert_array_equal(run("flip_lr(1.0)", image), image[:, ::-1])
    np.testing.assert_array_equal(run("flip_lr(0.0)", image), image)
    flips = [(run("flip_lr", image, position) != image).any() for position in range(200)]
    assert 70 < sum(flips) < 130  # more than 4 standard deviations of 200 fair coins on either side


@pytest.mark.parametrize("shape", [(20, 30), (30, 20), (7, 7), (1, 100)])
def test_resize_small_and_long(shape):
    image = np.zeros((*shape, 3), np.uint8)
    assert min(run("resize_small(14)", image).shape[:2]) == 14
    assert max(run("resize_long(14)", image).shape[:2]) == 14
    small = run("resize_small(14)", image).shape
    assert abs(small[0] / small[1] - shape[0] / shape[1]) <= 0.5 * max(shape) / min(shape)


def test_bicubic_does_not_wrap_around():
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, 4:] = 255  # beside a step, bicubic interpolation goes below 0 and above 255
    assert set(np.unique(run("resize(8, 'bicubic')", image))) == {0, 255}
    result = run("resize(16, 'bicubic')", image).astype(int)
    assert (np.diff(result[0, :, 0]) >= -20).all()  # a wrapped value would jump by more than 200


def test_inception_crop_statistics(image):
    """Areas are spread between the bounds; the result has the asked-for size."""
    ramp = np.broadcast_to(np.arange(200, dtype=np.uint8)[:, None, None], (200, 200, 3))
    heights = [int(np.ptp(run("inception_crop()", ramp, p)[:, 0, 0])) + 1 for p in range(60)]
    assert min(heights) < 80 and max(heights) > 150
    small = [run("inception_crop(area_min=90, ratio_min=1, ratio_max=1)", ramp, p).shape for p in range(10)]
    assert all(h * w >= 0.85 * 200 * 200 for h, w, _ in small)
    assert run("inception_crop((6, 9))", image).shape == (6, 9, 3)


def test_decoding_only_the_crop_is_decoding_and_cropping():
    encoded = pictures.encode(pictures.smooth(64, 80), "JPEG", quality=95)
    for position in range(5):
        whole = run("decode|inception_crop(area_min=30)", encoded, position)
        # The place in the string is a part of the seed, so the operation has to stand at the same place.
        part = run("keep('image')|decode_jpeg_and_inception_crop(area_min=30)", encoded, position)
        assert part.shape == whole.shape
        # Upsampled colors at the border of a crop lack their neighbors.
        np.testing.assert_array_equal(part[2:-2, 2:-2], whole[2:-2, 2:-2])


@pytest.mark.parametrize("format", ["PNG", "GIF", "BMP", "WEBP"])
def test_crop_of_files_that_are_no_jpeg(format):
    encoded = pictures.encode(pictures.smooth(), format)
    assert run("decode_jpeg_and_inception_crop(16)", encoded).shape == (16, 16, 3)


def test_crop_of_an_array(image):
    assert run("decode_jpeg_and_inception_crop(16)", image).shape == (16, 16, 3)
    assert run("decode_jpeg_and_inception_crop(16)", image[..., :1]).shape == (16, 16, 3)


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
def test_a_picture_of_one_pixel(pp):
    assert run(f"decode|{pp}", pictures.encode(np.full((1, 1, 3), 90, np.uint8))).shape == (8, 8, 3)


@pytest.mark.parametrize("operation", ["AutoContrast", "Equalize", "Sharpness", "Contrast", "Rotate", "Cutout"])
def test_randaugment_on_one_pixel(operation):
    from keras_vit.data import randaugment

    for mode in ("reference", "corrected"):
        pixel = tf.constant(np.full((1, 1, 3), 90, np.uint8))
        assert randaugment.operations_of(10, mode)[operation](pixel, tf.constant([0.6, 0.6])).shape == (1, 1, 3)


def test_color_jitter(image):
    def factors(pp):
        return [run(pp, image, position).astype(float).mean() / image.mean() for position in range(50)]

    brightness = factors("color_jitter(brightness=0.3)")
    assert 0.69 < min(brightness) < 0.8 and 1.1 < max(brightness) < 1.31
    np.testing.assert_array_equal(run("color_jitter()", image), image)
    flat = run("color_jitter(contrast=1.0, saturation=1.0)", np.full((4, 4, 3), 60, np.uint8))
    assert np.ptp(flat) == 0  # a gray image has neither contrast nor color to change
    hue = run("color_jitter(hue=0.5)", image)
    np.testing.assert_allclose(hue.max(-1), image.max(-1), atol=2)  # the value of a color stays when its hue changes
    assert (hue != image).any()
    assert run("color_jitter(0.4, 0.4, 0.4, 0.1)", image[..., :1]).shape == (20, 30, 1)


def test_random_erasing(image):
    np.testing.assert_array_equal(run("random_erasing(0.0)", image), image)
    shares = []
    for position in range(100):
        result = run("random_erasing(1.0, value=0)", np.full((50, 50, 3), 9, np.uint8), position)
        erased = (result == 0).all(-1)
        rows, columns = np.flatnonzero(erased.any(1)), np.flatnonzero(erased.any(0))
        assert erased[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()  # one full rectangle
        shares.append(erased.mean())
    assert min(shares) > 0.01 and 0.25 < max(shares) < 0.36
    noise = run("random_erasing(1.0, value='noise')", np.full((50, 50, 3), 9, np.uint8))
    assert len(np.unique(noise)) > 30


@pytest.mark.parametrize("pp", ["randaug(2, 10)", "color_jitter(0.4)"])
def test_colour_operations_need_bytes(pp, image):
    with pytest.raises(ValueError, match="uint8"):
        run(f"value_range(0, 1)|{pp}|resize(4)", image)
