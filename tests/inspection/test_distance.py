import itertools
import tracemalloc

import numpy as np
import pytest

from keras_vit import inspection
from keras_vit.inspection import distance
from tests.inspection import small


def uniform(**arguments):
    """A model whose attention is uniform: all queries are zero."""
    model = small.model(**arguments)
    for weight in model.trainable_variables:
        if "/query/" in weight.path or "relative" in weight.path:
            weight.assign(np.zeros(weight.shape))
    return model


def mean_distance(rows, columns, height, width):
    """The mean distance of two positions drawn independently from a grid, by hand."""
    places = list(itertools.product(range(rows), range(columns)))
    return np.mean(
        [np.hypot((a - c) * height, (b - d) * width) for (a, b), (c, d) in itertools.product(places, places)]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["token", "gap", "map", "registers", "deit", "hybrid", "any_size"])
def test_distance_of_uniform_attention_is_the_mean_distance(name):
    model = uniform(**small.VARIANTS[name])
    found = inspection.attention_distance(model, small.images())
    assert found.shape == (2, 2)
    np.testing.assert_allclose(found, mean_distance(4, 3, 8, 8), rtol=1e-5)


@pytest.mark.slow
def test_distance_of_two_patches_matches_hand_computation():
    # Of two patches 8 pixels apart, uniform attention reaches 0 half of the time and 8 the other half.
    model = uniform(image_size=(8, 16), pooling="gap")
    np.testing.assert_allclose(inspection.attention_distance(model, small.images(size=(8, 16))), 4.0, rtol=1e-6)


@pytest.mark.slow
def test_distance_of_rectangular_patches_uses_both_sides():
    found = inspection.attention_distance(uniform(patch_size=(16, 8)), small.images())
    np.testing.assert_allclose(found, mean_distance(2, 3, 16, 8), rtol=1e-5)


@pytest.mark.slow
def test_without_normalization_other_tokens_count_as_near():
    model = uniform(num_registers=3)  # 4 of 16 tokens have no position
    found = inspection.attention_distance(model, small.images(), normalize=False)
    np.testing.assert_allclose(found, mean_distance(4, 3, 8, 8) * 12 / 16, rtol=1e-5)


@pytest.mark.slow
def test_distance_matches_the_definition():
    model, images = small.shared(), small.images()
    table = distance.patch_distances((4, 3), (8, 8))
    expected = []
    for weights in small.maps().values():
        weights = weights[:, :, 1:, 1:] / weights[:, :, 1:, 1:].sum(-1, keepdims=True)
        expected.append((weights * table).sum(-1).mean(axis=(0, 2)))
    np.testing.assert_allclose(inspection.attention_distance(model, images), expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [2, 7])
def test_distance_is_the_same_for_arrays_lists_and_generators(batch_size):
    model, images = small.shared(), small.images(5)
    expected = inspection.attention_distance(model, images)
    for source in (list(images), (images[i : i + 2] for i in (0, 2, 4))):
        found = inspection.attention_distance(model, source, batch_size=batch_size)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_distance_is_averaged_over_images_of_several_sizes():
    model = uniform(image_size=None)
    images = [small.images(1)[0], small.images(1, size=(16, 16))[0]]
    expected = (mean_distance(4, 3, 8, 8) + mean_distance(2, 2, 8, 8)) / 2
    np.testing.assert_allclose(inspection.attention_distance(model, images), expected, rtol=1e-5)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_images():
    model, held = small.model(image_size=64), []

    def stream(count):
        for index in range(count):
            yield small.images(4, size=(64, 64), seed=index)

    inspection.attention_distance(model, stream(1))
    for count in (2, 12):
        tracemalloc.start()
        inspection.attention_distance(model, stream(count))
        held.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # The 10 batches more would take 10 * 4 * 64 * 64 * 3 * 4 bytes = 2 MB, and their weights 2.7 MB.
    assert held[1] - held[0] < 0.5e6


def test_empty_images_are_refused():
    with pytest.raises(ValueError, match="at least one image"):
        inspection.attention_distance(small.shared(), [])


def test_progress_without_a_terminal_is_silent(capsys):
    inspection.attention_distance(small.shared(), small.images(), progress=True)
    assert capsys.readouterr().err == ""
