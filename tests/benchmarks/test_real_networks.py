"""The page about a trained model contains its results; the programs compute correctly on small inputs."""

import json

import numpy as np
import pytest

from benchmarks import real_figures, real_int8, real_networks
from tests.docs import pages


def test_tables_are_current():
    results = json.loads((pages.ROOT / real_networks.RESULTS).read_text(encoding="utf-8"))
    text = (pages.ROOT / real_networks.DOCUMENT).read_text(encoding="utf-8")
    assert real_networks.accuracy_table(results).strip() in text
    assert real_int8.table(results["int8"]).strip() in text


def test_patches_of_the_same_class_have_the_same_color():
    rng = np.random.default_rng(0)
    kinds = np.repeat([0, 1, 2], 8)
    tokens = rng.normal(size=(3, 32))[kinds] + 1e-3 * rng.normal(size=(24, 32))
    found = real_figures.colors(np.concatenate([rng.normal(size=(1, 32)), tokens]), (4, 6)).reshape(24, 3)
    assert found.min() == 0 and found.max() == 1
    centers = np.stack([found[kinds == kind].mean(axis=0) for kind in range(3)])
    distances = np.abs(found[:, None, :2] - centers[:, :2]).max(axis=2)  # the third component is noise
    assert (distances.argmin(axis=1) == kinds).all() and distances.min(axis=1).max() < 0.1


def test_the_figure_has_a_row_per_photograph():
    pytest.importorskip("matplotlib")
    rows = [(np.zeros((28, 42, 3), "uint8"), np.zeros((2, 3, 3)), np.ones((6, 2, 3)))] * 2
    assert len(real_figures.figure(rows).axes) == 2 * (2 + len(real_figures.HEADS))


def test_neighbors_are_compared_by_cosine():
    index = np.array([[1.0, 0.0], [0.0, 5.0]])
    np.testing.assert_array_equal(real_int8.nearest(index, np.array([[9.0, 1.0], [0.1, 0.2]])), [0, 1])


def test_pixels_are_those_before_the_normalization():
    pixels = np.arange(256, dtype="uint8").repeat(3).reshape(1, 16, 16, 3)
    mean, deviation = np.asarray(real_networks.keras_vit.models.normalization.IMAGENET)
    normalized = ((pixels / 255 - mean) / deviation).astype("float32")
    np.testing.assert_array_equal(real_int8.pixels(normalized), pixels)
