"""Segmentation against formulas in NumPy: loss and accuracy of pixels, confusion, and mIoU as mmsegmentation counts."""

import types

import numpy as np
import pytest
from keras import ops

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.util.metrics import segmentation_scores

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(3, 2, 3, 4)).astype(np.float32)  # [b, height, width, classes]
MASKS = RNG.integers(0, 4, (3, 8, 6)).astype(np.int32)
MASKS[0, :3] = MASKS[1] = 255
MASKS[2, 0, 0] = 65_535


def task(text="segmentation", outputs=4):
    return tasks.bind(recipes.Recipe(task=text), outputs=outputs)


def run(created, masks=MASKS, logits=LOGITS):
    values = created.values(None, {"mask": ops.convert_to_tensor(masks)})
    found, predictions = created(lambda images, training: ops.convert_to_tensor(logits), values, training=True)
    return {name: np.asarray(value) for name, value in found.items()}, values, predictions


def bilinear(array, height, width):
    """`[b, h, w, c]` at another size, with half-pixel centers: each value from its two neighbors along each axis."""
    for axis, size in ((1, height), (2, width)):
        old = array.shape[axis]
        places = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
        low = np.floor(places).astype(int)
        high, share = np.minimum(low + 1, old - 1), places - low
        share = share.reshape([-1 if a == axis else 1 for a in range(4)])
        array = np.take(array, low, axis) * (1 - share) + np.take(array, high, axis) * share
    return array


def log_softmax(x):
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def test_loss_and_accuracy_match_hand_computation():
    weights = (1.0, 2.0, 0.5, 3.0)
    found, _, predictions = run(task(f"segmentation(ignore=2, class_weights={weights})"))
    logits = bilinear(LOGITS, 8, 6)
    counted = (MASKS < 4) & (MASKS != 2)
    true = np.where(counted, MASKS, 0)
    losses = -np.take_along_axis(log_softmax(logits), true[..., None], -1)[..., 0] * np.take(weights, true) * counted
    np.testing.assert_allclose(found["loss"], losses.mean(axis=(1, 2)), rtol=1e-5)  # over all pixels, of an image
    assert found["loss"][1] == 0  # nothing counts
    right = (logits.argmax(-1) == MASKS) & counted
    expected = right.sum(axis=(1, 2)) / np.maximum(counted.sum(axis=(1, 2)), 1)
    np.testing.assert_allclose(found["pixel_accuracy"], expected, rtol=1e-6)
    np.testing.assert_array_equal(predictions, LOGITS)


def intersect_and_union(predicted, mask, classes):
    """Counting as in mmsegmentation: histograms of the right, predicted and true classes of counted pixels."""
    kept = mask < classes
    predicted, mask = predicted[kept], mask[kept]
    right, of_predicted, of_true = (
        np.bincount(values, minlength=classes) for values in (predicted[predicted == mask], predicted, mask)
    )
    return right, of_predicted + of_true - right, of_true


def test_counts_and_scores_match_mmsegmentation():
    created = task(outputs=6)  # classes 4 and 5 are never true, and class 5 is never predicted
    logits = np.concatenate([LOGITS, LOGITS[..., :1] + 0.1, np.full_like(LOGITS[..., :1], -9)], axis=-1)
    _, values, predictions = run(created, logits=logits)
    tally = sum(np.asarray(created.tally(values, predictions, ops.convert_to_tensor(np.float32(v)))) for v in np.eye(3))
    predicted = bilinear(logits, 8, 6).argmax(axis=-1)
    right, union, true = intersect_and_union(predicted, MASKS, 6)
    assert tally.sum() == (MASKS < 6).sum()
    found, iou = created.of_tally(tally), right[:5] / union[:5]
    assert found["miou"] == pytest.approx(iou.mean(), rel=1e-12)  # without class 5, with class 4, which is wrong
    assert iou[4] == 0
    assert found["pixel_accuracy"] == pytest.approx(right.sum() / true.sum(), rel=1e-12)
    assert found["mean_accuracy"] == pytest.approx((right[:4] / true[:4]).mean(), rel=1e-12)
    scores = segmentation_scores(tally)
    np.testing.assert_allclose(scores["iou"], [*iou, np.nan], rtol=1e-12)
    np.testing.assert_allclose(scores["accuracy"], [*(right[:4] / true[:4]), np.nan, np.nan], rtol=1e-12)


def test_the_ignored_class_is_not_in_the_mean():
    tally = np.array([[0, 0, 0, 0], [4, 6, 0, 0], [5, 0, 5, 0], [0, 0, 0, 3]])
    found = task("segmentation(ignore=0)")
    assert found.of_tally(tally)["miou"] == pytest.approx((0.6 + 0.5 + 1) / 3)
    assert not any(line.startswith("  0 ") for line in found.lines(tally))


def test_padding_examples_are_not_counted():
    created = task()
    _, values, predictions = run(created)
    assert np.asarray(created.tally(values, predictions, ops.zeros(3))).sum() == 0


def test_scores_without_pixels_are_nan():
    assert np.isnan(segmentation_scores(np.zeros((2, 2)))["miou"])


def test_up_to_4096_classes_are_supported():
    assert task(outputs=4_096).outputs == 4_096


@pytest.mark.slow
def test_pixels_beyond_float32_precision_are_counted_exactly():
    """One more pixel than float32 can count."""
    tally = task(outputs=1).tally((None, ops.zeros((1, 4097, 4097), "int32")), ops.zeros((1, 1, 1, 1)), ops.ones(1))
    assert int(tally[0, 0]) == 4097**2


def test_class_scores_and_example_images_are_reported():
    created = task()
    created.class_names = ("sky", "sea", "sand", "sun")
    lines = created.lines(np.array([[3, 0, 3, 0], [0] * 4, [0, 0, 5, 0], [0] * 4]))
    assert [line.split() for line in lines[1:]] == [
        *(["sky", "50.00%"], ["sand", "62.50%"], ["(without", "pixels", "in", "the", "masks:", "sea,", "sun)"]),
    ]
    for classes in (20, 21):  # the report has twenty lines
        created.class_names = tuple(f"c{number}" for number in range(classes + 1))
        lines = created.lines(np.diag([*range(1, classes + 1), 0]))
        assert len(lines) == 2 + classes and lines[20].split() == ["c19", "100.00%"]
        assert lines[-2].strip() == ("(the 20 lowest of 21)" if classes == 21 else lines[20].strip())
    created.class_names = ("sky", "sea", "sand", "sun")
    images = np.full((3, 8, 6, 1), 100, np.uint8)
    shown = created.show({"image": images, "mask": MASKS, "predictions": LOGITS}, None)
    np.testing.assert_array_equal(shown.images["image"], images)
    np.testing.assert_array_equal(shown.masks["mask"], np.where(MASKS < 4, MASKS, -1))
    np.testing.assert_array_equal(shown.masks["prediction"], bilinear(LOGITS, 8, 6).argmax(-1))


@pytest.mark.parametrize(
    ("text", "outputs", "named"),
    [
        ("segmentation(classes=3)", 4, "needs masks of 3 classes.*with 4 classes"),
        ("segmentation(class_weights=(1, 2))", 3, "class_weights must have a number for each of the 3"),
        ("segmentation", 4_097, "at most 4,096 classes.*with 4,097 classes"),
    ],
)
def test_data_with_other_classes_are_refused(text, outputs, named):
    source = types.SimpleNamespace(label_kind="mask", num_outputs=outputs, class_names=tuple(map(str, range(outputs))))
    with pytest.raises(ValueError, match=named):
        tasks.bind(recipes.Recipe(task=text), source)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("segmentation(head='mlp')", "`head` must be one of 'linear', 'upsample'"),
        ("segmentation(blocks=4)", "blocks"),
        ("segmentation(dropout_rate=1.0)", "dropout_rate"),
    ],
)
def test_wrong_arguments_are_refused(text, named):
    with pytest.raises(ValueError, match=named):
        recipes.parse_task(text)


def test_recipes_with_unsupported_fields_are_refused():
    for changes in ({"loss": "sigmoid"}, {"label_smoothing": 0.1}, {"data.mixup": 0.2}):
        with pytest.raises(ValueError, match=next(iter(changes)).partition(".")[2] or next(iter(changes))):
            recipes.check(recipes.replace(recipes.Recipe(), {"task": "segmentation", **changes}))
    recipe = recipes.Recipe(task="segmentation", model=recipes.Model("BiT-S-R50x1"))
    with pytest.raises(ValueError, match="needs a Vision Transformer"):
        recipes.build_model(recipe, classes=2)
