"""Images in every form that users have, predicted by one predictor."""

import contextlib
import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from keras_vit import inference, outputs
from keras_vit.inference import image_inputs
from keras_vit.inference.predictor import in_batches
from tests import tiny

CARD = tiny.card()


class Means(inference.Predictor):
    """A predictor whose probabilities are those of the mean pixel, and that records the sizes of its batches."""

    def __init__(self, card=CARD):
        super().__init__("", card)
        self.batches = []

    def _predict(self, images):
        self.batches.append(len(images))
        means = np.concatenate([images.mean((1, 2)), images.std((1, 2)), images.max((1, 2))[:, :1]], -1)
        return np.exp(means) / np.exp(means).sum(-1, keepdims=True)


@pytest.fixture
def folder(tmp_path):
    for number, content in enumerate(tiny.images(5).contents):
        (tmp_path / f"{number}.png").write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    "form",
    [
        lambda folder: folder,
        lambda folder: str(folder),
        lambda folder: f"{folder}/*.png",
        lambda folder: sorted(folder.iterdir()),
        lambda folder: tiny.images(5).contents,
        lambda folder: tiny.arrays(5),
        lambda folder: list(tiny.arrays(5)),
        lambda folder: [Image.fromarray(array) for array in tiny.arrays(5)],
        lambda folder: [folder / "0.png", tiny.images(5).contents[1], *tiny.arrays(5)[2:4], str(folder / "4.png")],
    ],
)
def test_images_are_accepted_in_every_form(form, folder):
    predictor = Means()
    images = predictor.preprocess(tiny.images(5).contents)
    expected = predictor.predict(images)
    np.testing.assert_array_equal(predictor.predict(form(folder)), expected)
    np.testing.assert_array_equal(predictor.prepared(form(folder)), images)
    for each, row in zip(predictor.predict_each(form(folder), top_k=2), expected, strict=True):
        best = np.argsort(-row)[:2]
        assert each.top == [(tiny.CLASS_NAMES[index], row[index]) for index in best]
        assert each.uncertainty == pytest.approx(1 - (row[best[0]] - row[best[1]]))
        assert not each.error


def test_single_image_is_accepted_in_every_form(folder):
    predictor = Means()
    expected = predictor.predict(folder)[:1]
    for image in (folder / "0.png", tiny.images(1).contents[0], tiny.arrays(1)[0], Image.open(folder / "0.png")):
        np.testing.assert_array_equal(predictor.predict(image), expected)


def test_uint8_input_of_the_model_size_is_not_preprocessed():
    """Those of its size are its input, and not prepared again."""
    predictor = Means(tiny.card(input_dtype="uint8"))
    pixels = tiny.arrays(2, tiny.SIZE, tiny.SIZE)
    assert predictor.prepared(pixels) is pixels
    assert predictor.prepared(tiny.arrays(2)).dtype == np.float32


def test_unreadable_image_is_reported_with_its_name(folder):
    (folder / "2.png").write_bytes(b"no image")
    (folder / "3.png").unlink()
    paths = [str(folder / f"{number}.png") for number in range(5)]
    predictor = Means()
    found = list(predictor.predict_each(paths, batch_size=2))
    assert [each.name for each in found] == paths
    assert [bool(each.error) for each in found] == [False, False, True, True, False]
    assert predictor.batches == [2, 1]
    assert "not a readable image" in found[2].error and "No such file" in found[3].error
    with pytest.raises(ValueError, match=r"2\.png.*not a readable image"):
        predictor.predict(paths)
    with pytest.raises(FileNotFoundError, match=r"3\.png"):
        predictor.predict(folder / "3.png")


@pytest.mark.parametrize("images", [[b"", None], [tiny.arrays(1)[0], 5.0]])
def test_other_types_are_refused(images):
    with pytest.raises(TypeError, match="images"):
        Means().predict(images)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pixels_are_encoded_losslessly(channels):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, channels), np.uint8)
    for image, expected in zip(image_inputs.of_any(pixels), pixels, strict=True):
        found = np.asarray(Image.open(io.BytesIO(image.read())))
        np.testing.assert_array_equal(found.reshape(expected.shape), expected)


def test_float_pixels_are_rounded():
    (image,) = image_inputs.of_any(np.array([[[0.4], [0.6], [254.6]]]))
    assert np.asarray(Image.open(io.BytesIO(image.read()))).tolist() == [[0, 1, 255]]


@pytest.mark.parametrize(
    ("numbers", "are_pixels"),
    [([0, 255.0], True), ([0, 1.01], True), ([0, 1.0], False), ([-0.01, 9], False), ([0, 255.01], False)],
)
def test_floats_outside_0_to_255_are_refused(numbers, are_pixels):
    """Numbers from 0 to 1 would be nearly black. Bytes of 0 and 1 may be."""
    pixels = np.array(numbers).reshape(1, 2, 1)
    with contextlib.nullcontext() if are_pixels else pytest.raises(ValueError, match="pixels from 0 to 255"):
        image_inputs.of_any(pixels)
    assert len(image_inputs.of_any(np.array([0, 1], np.uint8).reshape(1, 2, 1))) == 1


def test_images_without_a_path_are_numbered(folder):
    contents, arrays = tiny.images(2).contents, tiny.arrays(3)
    found = image_inputs.of_any([folder / "3.png", *contents, arrays, str(folder / "1.png"), arrays[0]])
    expected = [f"{folder}/3.png", *(f"image {number}" for number in range(1, 6)), f"{folder}/1.png", "image 7"]
    assert [image.name for image in found] == expected


def test_uncertainty_of_independent_classes_is_the_uncertainty_of_the_least_certain_class():
    """The class whose probability is closest to one half decides, however certain the others are."""
    assert outputs.of("softmax").uncertainty(np.array([1.0, 0.0, 0.4]), independent=True) == pytest.approx(0.8)
    assert outputs.of("softmax").uncertainty(np.array([1.0, 0.0, 0.4]), independent=False) == pytest.approx(0.4)
    assert tiny.card(data={"label_kind": "classes"}).has_independent_classes
    assert not tiny.card(data={"label_kind": "class"}).has_independent_classes


def test_last_batch_is_padded_with_zeros():
    images, seen = np.arange(1.0, 6.0)[:, None, None, None] * np.ones((1, 2, 3, 1)), []

    def means(batch):
        seen.append(batch)
        return batch.mean((1, 2, 3))

    assert in_batches(means, images, 2).tolist() == [1, 2, 3, 4, 5]
    assert [len(batch) for batch in seen] == [2, 2, 2] and not seen[2][1].any()
    assert in_batches(means, images[:4], 2).tolist() == [1, 2, 3, 4] and len(seen) == 5


def test_equal_probabilities_are_in_the_order_of_the_classes():
    names = [f"class {number}" for number in range(40)]
    found = outputs.of("softmax").parts(np.arange(40) % 2, names, top_k=3)
    assert found == [("class 1", 1.0), ("class 3", 1.0), ("class 5", 1.0)]


def files_of(mode, **options):
    """Yield the file and the opened image in this mode, for each format that has the mode."""
    original = Image.fromarray(np.random.default_rng(0).integers(0, 256, (3, 4, 3), np.uint8)).resize((40, 30))
    original = Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50) if mode == "I;16" else original
    for kind in ("JPEG", "PNG"):
        with contextlib.suppress(OSError):  # the format does not have this mode
            file = io.BytesIO()
            (original if mode == "I;16" else original.convert(mode)).save(file, kind, **options)
            yield file.getvalue(), Image.open(file)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_pillow_image_gives_the_prediction_of_its_file(mode, orientation):
    """However its pixels are stored, and before and after Pillow has decoded them."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    for content, image in files_of(mode, exif=exif):
        predictor = Means(
            dataclasses.replace(CARD, preprocess=CARD.preprocess.replace("decode", "decode(precise=True)"))
        )
        expected = predictor.prepared(content)
        np.testing.assert_array_equal(predictor.prepared(image), expected)
        np.testing.assert_array_equal(predictor.prepared([image.copy()]), expected)


def test_pillow_modes_without_a_file_format_are_converted():
    """YCbCr, HSV and floats are converted without loss of the image; only the first frame of a file is encoded."""
    gray, colors = (np.full((9, 9, *more), 77, np.uint8) for more in ((), (3,)))
    for image in (
        Image.fromarray(colors).convert("YCbCr"),
        Image.fromarray(colors).convert("HSV"),
        *(Image.fromarray(gray).convert(mode) for mode in ("F", "PA", "LAB", "RGBX")),
    ):
        np.testing.assert_allclose(Means().prepared(image)[0], Means().prepared(colors)[0], atol=0.01)
    with pytest.raises(ValueError, match="0 to 255"):
        Means().prepared(Image.fromarray(gray).convert("F").point(lambda value: value / 255))
    deep = Image.fromarray(np.full((9, 9), 77 * 257, np.int32))
    np.testing.assert_array_equal(Means().prepared(deep), Means().prepared(colors))


def test_edited_pillow_image_is_not_read_from_its_file():
    (content, image), _ = files_of("RGB")
    image.paste((0, 0, 0), (0, 0, 40, 30))
    assert not np.array_equal(Means().prepared(image), Means().prepared(content))
    assert (Means().prepared(image) == Means().prepared(np.zeros((30, 40, 3), np.uint8))).all()


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint16, np.int32])
def test_integers_are_pixels(dtype):
    pixels = tiny.arrays(2) % 128
    for images in (pixels.astype(dtype), list(pixels.astype(dtype)), iter(pixels.astype(dtype))):
        np.testing.assert_array_equal(Means().prepared(images), Means().prepared(pixels))


def test_preprocessed_images_are_accepted_as_lists_and_iterators():
    images = np.random.default_rng(0).uniform(-1, 1, (2, tiny.SIZE, tiny.SIZE, 3)).astype(np.float32)
    expected = Means().predict(images)
    for form in (list(images), iter(images), [images]):
        np.testing.assert_array_equal(Means().predict(form), expected)
    np.testing.assert_array_equal(Means().predict(images[1]), expected[1:])
    assert len(Means().prepared(images[:0])) == 0


@pytest.mark.parametrize(
    "images", [[], (), iter([]), np.zeros((80, 100, 3), np.float32), np.float32(5), np.zeros((3, 3))]
)
def test_arrays_that_are_not_images_are_refused(images):
    for method in (Means().predict, Means().prepared):
        with pytest.raises(ValueError, match="images"):
            method(images)


def test_repeated_images_each_get_a_prediction(folder):
    paths = [f"{folder}/1.png", f"{folder}/0.png", f"{folder}/1.png"]
    assert len(Means().predict(paths)) == 3
    assert [each.name for each in Means().predict_each(path for path in paths)] == paths
