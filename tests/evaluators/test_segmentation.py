"""The evaluator of segmentations against mmsegmentation's counting and sliding windows, written in NumPy."""

import types

import numpy as np
import pytest
from keras import ops

from keras_vit import data
from keras_vit.data import sources
from keras_vit.evaluators import Context, NotMeasurable, Suite, split_opener
from keras_vit.evaluators.segmentation import count, slide, starts, to_classes
from keras_vit.inference import FunctionPredictor, ModelCard
from keras_vit.layers.interpolation import resize_logits

NAMES = ("ground", "sea", "sky")
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (5, 8, 8, 3), np.uint8)
MASKS = RNG.integers(0, 3, (5, 8, 8)).astype(np.int32)
MASKS[0, 0], MASKS[1] = 255, 1


def logits(images):
    """Logits at half the size: the channels of every other pixel."""
    return None, np.asarray(images)[:, ::2, ::2]


def context(names=NAMES, function=logits, masks=MASKS, **card):
    """The predictor on images in memory; no file is read."""
    source = sources.ArraySource("memory", "test", IMAGES, masks, names, "mask")
    card = ModelCard(**{"class_names": NAMES, "preprocess": "resize(8)|value_range(0, 1)", "output": "mask"} | card,
                     image_shape=(8, 8, 3))  # fmt: skip
    found = Context(FunctionPredictor(card, function), None, "memory")
    open_split = split_opener(batch_size=2)

    def open_memory(name, split, pp):
        opened = data.open_source
        data.open_source = lambda *_, **__: source
        try:
            return open_split(name, split, pp)
        finally:
            data.open_source = opened

    found.open_split = open_memory
    return found


def measure(text="segmentation", **options):
    (result,) = Suite([text]).run(context(**options))
    return result


def confusion(true, predicted, classes=3):
    counts = np.zeros((classes, classes), int)
    for t, p in zip(true.ravel(), predicted.ravel(), strict=True):
        if t < classes:
            counts[t, p] += 1
    return counts


PREDICTED = np.asarray(ops.image.resize(IMAGES[:, ::2, ::2] / np.float32(255), (8, 8), data_format="channels_last"))
PREDICTED = PREDICTED.argmax(-1)


@pytest.mark.slow
def test_every_pixel_counts_once():
    result = measure()
    expected = confusion(MASKS, PREDICTED)
    np.testing.assert_array_equal(result.details["confusion"], expected)
    right, union = np.diag(expected), expected.sum(0) + expected.sum(1) - np.diag(expected)
    assert result.metrics["miou"] == pytest.approx((right / union).mean(), rel=1e-12)
    assert result.metrics["pixel_accuracy"] == pytest.approx(right.sum() / expected.sum(), rel=1e-12)
    assert result.metrics["mean_accuracy"] == pytest.approx((right / expected.sum(1)).mean(), rel=1e-12)
    assert result.metrics["examples"] == 5 and expected.sum() == MASKS.size - 8
    assert result.text("miou").endswith("%")


def test_absent_class_is_excluded_from_the_mean(caplog):
    few = measure(masks=np.zeros_like(MASKS), function=lambda images: (None, logits(images)[1] * [1, 0, 0] + [1, 0, 0]))
    assert few.metrics["miou"] == few.metrics["pixel_accuracy"] == few.metrics["mean_accuracy"] == 1
    np.testing.assert_array_equal(few.details["per_class"]["iou"], [1, np.nan, np.nan])
    assert "no pixels of" in caplog.text


@pytest.mark.slow
def test_classes_are_matched_by_name():
    result = measure(names=("sky", "cloud", "ground"))  # a class that the model does not have is left out
    true = np.array([2, 255, 0])[np.minimum(MASKS, 2)]
    true[MASKS == 255] = 255
    np.testing.assert_array_equal(result.details["confusion"], confusion(true, PREDICTED))
    windows = measure("segmentation(stride=8)", names=("sky", "cloud", "ground"))  # reads the masks in another way
    np.testing.assert_array_equal(windows.details["confusion"], result.details["confusion"])


@pytest.mark.parametrize(
    ("text", "ignored", "card"),
    [
        ("segmentation(ignore=1)", 1, {}),
        ("segmentation", 1, {"recipe": {"task": "segmentation(ignore=1)"}}),
        ("segmentation(ignore=0)", 0, {"recipe": {"task": "segmentation(ignore=1)"}}),
    ],
)
def test_ignored_class_is_excluded(text, ignored, card):
    expected = confusion(np.where(ignored == MASKS, 255, MASKS), PREDICTED)
    result = measure(text, **card)
    np.testing.assert_array_equal(result.details["confusion"], expected)
    union = expected.sum(0) + expected.sum(1) - np.diag(expected)
    # Other than in mmsegmentation, the ignored class is not in the mean: no prediction of the class could be right.
    assert result.metrics["miou"] == pytest.approx(np.delete(np.diag(expected) / union, ignored).mean(), rel=1e-12)
    assert np.isnan(result.details["per_class"]["iou"][ignored])


def test_masks_predicted_by_artifacts_are_evaluated():
    def masks(images):
        return None, np.argmax(images, axis=-1)

    found = context(function=masks)
    found.predictor.scores_are = "mask"
    (result,) = Suite(["segmentation"]).run(found)
    np.testing.assert_array_equal(result.details["confusion"], confusion(MASKS, IMAGES.argmax(-1)))
    with pytest.raises(NotMeasurable, match="logits"):
        Suite(["segmentation(stride=3)"]).evaluators["segmentation"].check(found)


def test_masks_of_another_size_are_resized_to_the_true_mask():
    masks = np.arange(6).reshape(1, 2, 3)
    np.testing.assert_array_equal(to_classes(masks, (4, 3)), np.repeat(masks, 2, axis=1))


def test_values_that_are_not_finite_are_reported():
    def broken(images):
        return None, np.full_like(logits(images)[1], np.nan)

    found = measure(function=broken).metrics
    assert found["non_finite"] == 5 and np.isnan([found["miou"], found["pixel_accuracy"]]).all()


def test_class_numbers_out_of_range_are_not_counted():
    assert count(np.array([-1, 0, 2, 3, 255]), np.zeros(5, int), 3).tolist() == [[1, 0, 0], [0, 0, 0], [1, 0, 0]]


@pytest.mark.slow
def test_masks_with_only_ignored_pixels_are_refused():
    with pytest.raises(ValueError, match="no pixel"):
        measure(masks=np.full_like(MASKS, 255))


def slide_inference(function, image, crop, stride):
    """mmsegmentation's `slide_inference`, of one image `[H, W, C]`."""
    height, width, _ = image.shape
    total, times = 0, np.zeros((height, width, 1))
    for row in range(max(height - crop[0] + stride - 1, 0) // stride + 1):
        for column in range(max(width - crop[1] + stride - 1, 0) // stride + 1):
            y2, x2 = min(row * stride + crop[0], height), min(column * stride + crop[1], width)
            y1, x1 = max(y2 - crop[0], 0), max(x2 - crop[1], 0)
            part = np.asarray(
                resize_logits(ops.convert_to_tensor(function(image[None, y1:y2, x1:x2])), (y2 - y1, x2 - x1))
            )
            total = total + np.pad(part[0], [(y1, height - y2), (x1, width - x2), (0, 0)])
            times[y1:y2, x1:x2] += 1
    return total / times


@pytest.mark.parametrize(("shape", "stride"), [((20, 31), 5), ((8, 12), 3), ((9, 50), 8), ((16, 24), 8)])
def test_windows_match_mmsegmentation(shape, stride):
    image = RNG.normal(size=(*shape, 3)).astype(np.float32)
    function = lambda windows: logits(windows)[1] ** 2  # noqa: E731
    expected = slide_inference(function, image, (8, 12), stride)
    np.testing.assert_allclose(slide(function, image, (8, 12), stride), expected, rtol=1e-5, atol=1e-6)
    places = starts(shape[1], 12, stride)
    assert places[0] == 0 and places[-1] == shape[1] - 12


def test_images_smaller_than_a_window_are_padded():
    image = RNG.normal(size=(5, 12, 3)).astype(np.float32)
    padded = np.pad(image, [(0, 3), (0, 0), (0, 0)])
    same = slide(lambda windows: windows, image, (8, 8), 4)
    np.testing.assert_allclose(same, image, rtol=1e-6)
    expected = slide(lambda windows: windows.mean((1, 2), keepdims=True), padded, (8, 8), 4)[:5]
    np.testing.assert_allclose(slide(lambda w: w.mean((1, 2), keepdims=True), image, (8, 8), 4), expected, rtol=1e-6)


@pytest.mark.slow
def test_sliding_windows_are_scored_at_the_size_of_the_stored_mask():
    """The preprocessing of whole images enlarges, and the logits are resized to the mask."""
    result = measure("segmentation(stride=8, pp='resize(24, method=\\'nearest\\')|value_range(0, 1)')")
    large = np.repeat(np.repeat(IMAGES, 3, axis=1), 3, axis=2) / np.float32(255)
    found = [slide_inference(lambda windows: logits(windows)[1], image, (8, 8), 8) for image in large]
    predicted = to_classes(np.asarray(found, np.float32), (8, 8))
    np.testing.assert_array_equal(result.details["confusion"], confusion(MASKS, predicted))
    assert result.details["confusion"].sum() == MASKS.size - 8
    own = measure("segmentation(stride=4)")  # without what resizes
    np.testing.assert_array_equal(own.details["confusion"], measure().details["confusion"])


@pytest.mark.slow
def test_wrong_arguments_are_refused():
    for text in ("segmentation(stride=0)", "segmentation(crop=-1)"):
        with pytest.raises(ValueError, match="stride|crop"):
            Suite([text])
    found = context(output="softmax")
    with pytest.raises(ValueError, match="a model whose output is 'mask'"):
        Suite(["segmentation"]).check(found)
    with pytest.raises(ValueError, match="`stride` must be at most 8.*Received: stride=9"):
        Suite(["segmentation(stride=9)"]).check(context())
    found = context()
    found.predictor.model = types.SimpleNamespace(input_shape=(None, None, 8, 3))
    with pytest.raises(ValueError, match="`stride` must be at most 8.*Received: stride=9"):
        Suite(["segmentation(stride=9, crop=10)"]).check(found)
    found.predictor.model = types.SimpleNamespace(input_shape=(None, None, None, 3))
    with pytest.raises(ValueError, match="crop=512"):
        Suite(["segmentation(stride=4)"]).check(found)
