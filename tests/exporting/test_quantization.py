"""Images that calibrate a precision, and what a precision needs."""

import types

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.exporting import quantization
from keras_vit.inference import formats
from tests import tiny


@pytest.mark.parametrize(
    ("images", "batches"), [(4, [[0, 1, 2, 3]]), (6, [[0, 1, 2, 3], [4, 5, 0, 1]]), (1, [[0, 0, 0, 0]])]
)
def test_every_image_calibrates_and_the_last_batch_is_full(images, batches, monkeypatch):
    shown = []
    monkeypatch.setattr(
        quantization, "track", lambda items, text, unit: shown.append((len(items), text, unit)) or items
    )
    spec = tf.TensorSpec((4, 2, 3, 1), tf.uint8, "images")
    numbered = np.arange(images, dtype=np.float32)[:, None, None, None] * np.ones((2, 3, 1), np.float32)
    found = list(quantization._batches(spec, numbered))
    assert [batch[:, 1, 2, 0].tolist() for batch in found] == batches
    assert shown == [(len(batches), "Calibrating", "batches")]
    assert {(batch.shape, batch.dtype) for batch in found} == {((4, 2, 3, 1), np.dtype(np.uint8))}


@pytest.mark.parametrize("precision", formats.TFLITE.precisions)
def test_infinity_is_not_an_integer(precision):
    """Only the padding with minus infinity is replaced, and only where activations are integers."""
    for padding, is_replaced in (("infinity", precision in ("int8", "int16x8")), ("zeros", False), (None, False)):
        model = types.SimpleNamespace(get_config=lambda padding=padding: {"pool_padding": padding})
        expected = {"pool_padding": "edge"} if is_replaced else {}
        assert quantization.model_arguments(model, precision) == expected


@pytest.mark.parametrize("precision", formats.TFLITE.precisions)
def test_only_integer_activations_need_calibration(precision):
    quantization.check(precision, tiny.images(1))
    if precision in ("int8", "int16x8"):
        with pytest.raises(ValueError, match=f"{precision}.*calibration"):
            quantization.check(precision, None)
    else:
        quantization.check(precision, None)
