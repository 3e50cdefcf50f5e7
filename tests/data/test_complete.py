"""Preprocessing of arrays, completed for encoded images."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import preprocess


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pp", "shape", "expected"),
    [
        ("value_range(-1, 1)", (8, 8, 1), "decode(1)|resize((8, 8), method='area')|value_range(-1, 1)"),
        ("decode|resize(8)|value_range(-1, 1)", (8, 8, 3), "decode|resize(8)|value_range(-1, 1)"),
        ("resize(8)|value_range(-1, 1)", (8, 8, 3), "decode(3)|resize(8)|value_range(-1, 1)"),
        ("value_range(-1, 1)", (8, 12, 3), "decode(3)|resize((8, 12), method='area')|value_range(-1, 1)"),
        ("value_range(-1, 1)", (None, None, 3), "decode(3)|value_range(-1, 1)"),
    ],
)
def test_preprocessing_of_arrays_is_completed(pp, shape, expected):
    assert preprocess.complete(pp, shape) == expected


@pytest.mark.slow
def test_completed_preprocessing_does_not_change_images_of_the_right_size():
    source = data.open_source("digits", "test")
    complete = preprocess.complete("value_range(-1, 1)", (8, 8, 1))
    prepare = preprocess.single_image(complete)
    for image in source.images[:20]:
        prepared = prepare(tf.io.encode_png(image)).numpy()
        np.testing.assert_array_equal(prepared, -1 + image.astype(np.float32) / np.float32(255) * 2)
