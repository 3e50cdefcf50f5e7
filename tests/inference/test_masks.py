"""Masks of classes: predictions, sizes, colors, files and run lengths."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import outputs
from keras_vit.inference import masks, open_predictor
from keras_vit.inference.keras_card import card_of_model
from tests import tiny
from tests.models.dense_head import DenseHead

MASK = np.array([[0, 0, 1, 1], [0, 2, 2, 1], [2, 2, 2, 2]], np.uint8)


@pytest.mark.parametrize("size", [(3, 4), (7, 5), (2, 9), (1, 1), (64, 100)])
def test_resizing_matches_tensorflow(size):
    expected = tf.image.resize(MASK[..., None], size, "nearest")[..., 0]
    np.testing.assert_array_equal(masks.resized(MASK, size), expected)


def test_mask_of_resized_logits_matches_hand_computation():
    """Halfway between the centers of two patches their logits are equal, and the classes change."""
    raw = np.array([[[[3.0, 1.0], [1.0, 3.0]]]], np.float32)  # [1, 1, 2, 2]
    prediction = keras.ops.convert_to_numpy(outputs.Masks().predictions(raw, size=(2, 6)))
    assert prediction.dtype == np.uint8
    np.testing.assert_array_equal(prediction, [[[0, 0, 0, 1, 1, 1]] * 2])


def test_masks_are_the_argmax_of_the_resized_logits():
    raw = np.random.default_rng(0).normal(size=(2, 3, 4, 300)).astype(np.float32)
    expected = np.argmax(tf.image.resize(raw, (9, 8), "bilinear"), axis=-1)
    prediction = keras.ops.convert_to_numpy(outputs.Masks().predictions(raw, size=(9, 8)))
    assert prediction.dtype == np.int32 and prediction.max() > 255
    for classes, dtype in ((255, "uint8"), (256, "int32")):  # 255 marks ignored pixels, or is a class
        assert keras.ops.dtype(outputs.Masks().predictions(raw[..., :classes], size=(9, 8))) == dtype
    np.testing.assert_array_equal(prediction, expected)


@pytest.mark.parametrize("values", [MASK, MASK + 253, MASK.astype(np.int32) + 300])
def test_mask_files_match_pillow(values):
    opened = Image.open(io.BytesIO(masks.to_png(values)))
    np.testing.assert_array_equal(np.asarray(opened), values)
    np.testing.assert_array_equal(masks.from_png(masks.to_png(values)), values)
    if values.max() < 256:
        np.testing.assert_array_equal(np.asarray(opened.convert("RGB"))[0, 0], masks.palette(256)[values[0, 0]])


def test_images_are_written_as_png():
    pixels = tiny.arrays(1, 20, 30)[0]
    for channels, mode in (([0], "L"), ([0, 1, 2], "RGB"), ([0, 1, 2, 0], "RGBA")):
        opened = Image.open(io.BytesIO(masks.to_png(pixels[..., channels])))
        assert opened.mode == mode
        np.testing.assert_array_equal(np.asarray(opened).reshape(20, 30, -1), pixels[..., channels])
    with pytest.raises(ValueError, match="colors"):
        masks.from_png(masks.to_png(pixels))


def test_damaged_mask_files_are_refused():
    good = masks.to_png(MASK)
    large = good[:16] + (30_000).to_bytes(4, "big") * 2 + good[24:]
    for content in (b"", good[:-40], b"GIF" + good, large):
        with pytest.raises(ValueError, match="PNG file of class numbers"):
            masks.from_png(content)


def test_run_lengths_round_trip():
    runs = masks.to_runs(MASK)
    assert runs.tolist() == [[0, 2], [1, 2], [0, 1], [2, 2], [1, 1], [2, 4]]
    np.testing.assert_array_equal(masks.from_runs(runs, MASK.shape), MASK)
    filled = np.concatenate([runs, [[0, 0]]])
    np.testing.assert_array_equal(masks.from_runs(filled, MASK.shape), MASK)
    for wrong in (runs, [[0, 17], [1, -1]]):
        with pytest.raises(ValueError, match="add up to the 4 x 4"):
            masks.from_runs(np.array(wrong), (4, 4))


def test_colors_of_all_classes_differ():
    """Each class has its color, next to its neighbors too; the overlay has half of it."""
    colors = masks.palette(256).astype(int)
    assert len(np.unique(colors, axis=0)) == 256
    assert np.abs(colors[1:] - colors[:-1]).max(axis=1).min() > 40
    np.testing.assert_array_equal(masks.palette(300)[256:], colors[:44])
    image = np.full((3, 4, 1), 100, np.uint8)
    np.testing.assert_array_equal(masks.overlay(image, MASK), (100 + colors[MASK]) // 2)


def test_mask_file_names_are_unique(tmp_path):
    assert masks.file_names("out", ["a/x.jpg", "b/y.png"])[1] == ("out/y.png", "out/y_overlay.png")
    same = masks.file_names("out", ["in/a/x.jpg", "in/b/c/x.png", "in/y.png"])
    assert [mask for mask, _ in same] == ["out/a/x.png", "out/b/c/x.png", "out/y.png"]
    for paths in (["a/x.jpg", "a/x.png"], ["x.jpg", "x_overlay.jpg"], ["out/x.png"]):
        with pytest.raises(ValueError, match="--output=out"):
            masks.file_names("out", paths)


class MeanHead(keras.layers.Layer):
    """A head of a user whose outputs are one row per image, `[B, 16]`."""

    def call(self, tokens, grid):
        return keras.ops.mean(tokens, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "names", "output"),
    [
        (DenseHead(3), ("sky", "sea", "sand"), "mask"),
        (DenseHead(3), None, "mask"),
        (DenseHead(1), None, "scores"),  # a number per patch
        (MeanHead(name="head"), None, "scores"),
        (MeanHead(name="head"), tuple("abcdefghijklmnop"), "softmax"),
    ],
)
def test_output_kind_of_a_custom_head_is_determined(head, names, output):
    """Outputs of a user's head are those of classes where there are logits of patches, or names."""
    model = tiny.model(head=head)
    model.class_names = names
    card = card_of_model(model, "model", tiny.PREPROCESS)
    assert card.output == output
    assert card.class_names == (names or (("0", "1", "2") if output == "mask" else ()))


@pytest.mark.slow
def test_masks_have_the_size_of_the_image(tmp_path):
    """A preprocessing that cuts the image is refused."""
    model = tiny.model(head=DenseHead(3))
    model.save(tmp_path / "model.keras")
    predictor = open_predictor(tmp_path / "model.keras", preprocess=tiny.PREPROCESS)
    content = tiny.encode(tiny.arrays(1, 20, 24)[0], "PNG")
    predictions = predictor.predict(predictor.preprocess([content]))
    assert predictions.shape == (1, 16, 16)
    (mask,) = predictor.card.at_image_sizes(predictions, [content])
    np.testing.assert_array_equal(mask, masks.resized(predictions[0], (20, 24)))
    cut = open_predictor(tmp_path / "model.keras", preprocess="resize_small(20)|central_crop(16)|value_range(-1, 1)")
    with pytest.raises(ValueError, match=r"preprocess=.*central_crop\(16\)"):
        cut.card.at_image_sizes(predictions, [content])
    with pytest.raises(ValueError, match=r"with pad\(2\)"):
        masks.check_preprocess("decode|resize(12)|pad(2)|value_range(-1, 1)")
