import keras
import numpy as np
import pytest

from keras_vit import inspection, models
from tests.inspection import small


@pytest.mark.parametrize("arguments", [{}, {"position_embedding": "learned2d"}, {"position_embedding": "sincos2d"}])
def test_similarity_is_symmetric_with_unit_diagonal(arguments):
    found = inspection.position_similarity(small.model(num_registers=2, **arguments))
    assert found.shape == (4, 3, 4, 3)
    square = found.reshape(12, 12)
    np.testing.assert_allclose(square, square.T, rtol=1e-6)
    np.testing.assert_allclose(np.diag(square), 1, rtol=1e-6)
    assert np.abs(square).max() <= 1 + 1e-6


def test_similarity_compares_only_patch_positions():
    model = small.shared()
    table = np.array(model.get_layer("posembed_input").pos_embedding)  # the class token's comes first
    first, last = table[0, 1], table[0, -1]
    expected = first @ last / np.linalg.norm(first) / np.linalg.norm(last)
    assert inspection.position_similarity(model)[0, 0, 3, 2] == pytest.approx(expected, rel=1e-5)


def test_similarity_of_per_layer_position_embeddings_is_computed_per_layer():
    model = small.shared("every_layer")
    first, second = (inspection.position_similarity(model, layer) for layer in (0, 1))
    assert not np.allclose(first, second)
    for layer in (2, -1):
        with pytest.raises(ValueError, match=rf"`layer` must be in 0..1.*Received: layer={layer}"):
            inspection.position_similarity(model, layer)


@pytest.mark.parametrize("kind", ["relative", "none"])
def test_models_without_position_embeddings_are_refused(kind):
    with pytest.raises(ValueError, match="adds no position embeddings"):
        inspection.position_similarity(small.model(position_embedding=kind))


@pytest.mark.slow
def test_filters_are_principal_components():
    model = small.model(hidden_size=64)
    found = inspection.embedding_filters(model, k=28)
    assert found.shape == (28, 8, 8, 3)
    flat = found.reshape(28, -1)
    np.testing.assert_allclose(flat @ flat.T, np.eye(28), atol=1e-5)  # float32 results
    filters = np.array(model.get_layer("embedding").kernel, np.float64).reshape(-1, 64).T
    variance = ((filters - filters.mean(0)) @ flat.T).var(axis=0)
    assert (np.diff(variance) < 0).all()
    covariance = np.cov(filters.T, bias=True)
    np.testing.assert_allclose(np.linalg.eigvalsh(covariance)[::-1][:28], variance, rtol=1e-4)


def test_embedding_filters_recover_a_known_filter():
    model = small.model(hidden_size=32)
    pattern = np.random.default_rng(0).normal(size=(8, 8, 3))
    pattern *= np.sign(pattern.ravel()[np.abs(pattern).argmax()]) / np.linalg.norm(pattern)
    noise = 1e-3 * np.random.default_rng(1).normal(size=(8, 8, 3, 32))
    model.get_layer("embedding").kernel.assign(pattern[..., None] * np.linspace(-1, 1, 32) + noise)
    np.testing.assert_allclose(inspection.embedding_filters(model, 1)[0], pattern, atol=5e-3)


def test_filters_are_limited_to_the_available_components():
    assert inspection.embedding_filters(small.model(patch_size=1, image_size=4, channels=1), 28).shape == (1, 1, 1, 1)


@pytest.mark.slow
def test_filters_of_resnets_are_taken_from_the_root_convolution():
    hybrid = small.shared("hybrid")
    bit = models.BiTResNet((1,), image_size=32, classes=2)
    for model in (hybrid, bit, keras.Sequential([hybrid])):
        assert inspection.embedding_filters(model, 5).shape == (5, 7, 7, 3)
    with pytest.raises(ValueError, match="No patch embedding"):
        inspection.embedding_filters(keras.Sequential([keras.layers.Dense(2)]))
