import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import inspection
from keras_vit.inspection import attention, relevance
from tests import half_precision
from tests.inspection import small


def offsets_like_maps(model, images):
    offsets = []
    attention.run(model, images, lambda layer, weights, recorder: offsets.append(ops.zeros_like(weights)))
    return offsets


@pytest.mark.slow
@pytest.mark.parametrize("name", ["token", "gap", "map", "hybrid", "bfloat16"])
def test_relevance_has_the_shape_of_the_grid_and_is_not_negative(name):
    model, images = small.shared(name), small.images()
    found = inspection.gradient_attention(model, images, batch_size=2)
    assert found.shape == (3, *small.GRID)
    assert found.min() >= 0
    assert found.max() > 0
    if name == "bfloat16":  # the model of "token" with 8 bits
        assert np.corrcoef(found.ravel(), inspection.gradient_attention(small.shared(), images).ravel())[0, 1] > 0.99


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["token", "map", "deit", "relative", "layer_scale", "bfloat16", "remat", "chunks", "vit_pytorch", "no_output"],
)
def test_zero_offsets_leave_the_outputs_unchanged(name):
    model, images = small.shared(name), small.images()
    found = relevance._run_with_offsets(model, images, offsets_like_maps(model, images))
    found, expected = ops.cast(found, "float32"), ops.cast(model(images), "float32")
    if name == "bfloat16" and not half_precision.sums_are_exact():
        half_precision.assert_same_function(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["token", "map", "layer_scale", "deit"])
def test_gradients_match_finite_differences(name):
    model, images = small.model(dtype="float64", **small.VARIANTS[name]), small.images(1).astype("float64")
    offsets = offsets_like_maps(model, images)

    def score(offsets):
        return ops.sum(relevance._run_with_offsets(model, images, offsets)[:, 2])

    slopes = relevance.gradients(score, offsets)
    rng = np.random.default_rng(0)
    direction = [rng.normal(size=offset.shape) for offset in offsets]
    step = 1e-5
    ahead, behind = (score([ops.convert_to_tensor(sign * step * d) for d in direction]) for sign in (1, -1))
    expected = float(ahead - behind) / (2 * step)
    found = sum(float(np.sum(np.asarray(slope) * d)) for slope, d in zip(slopes, direction, strict=True))
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_relevance_of_one_layer_matches_hand_computation():
    # With one layer the class token's relevance is its row of the positive part of weight times gradient.
    model, images = small.model(num_layers=1), small.images()
    (weights,) = inspection.attention_maps(model, images).values()

    def score(offsets):
        return ops.sum(relevance._run_with_offsets(model, images, offsets)[:, 3])

    (slope,) = relevance.gradients(score, offsets_like_maps(model, images))
    expected = np.maximum(weights * np.asarray(slope), 0).mean(axis=1)[:, 0, 1:].reshape(3, *small.GRID)
    np.testing.assert_allclose(inspection.gradient_attention(model, images, 3), expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["token", "gap", "map"])
def test_relevance_of_two_layers_matches_hand_computation(name):
    """Equations 5, 6 and 8 of arXiv:2103.15679. Only without pooling attention, tokens do not count for themselves."""
    model, images, maps = small.shared(name), small.images(), list(small.maps(name).values())

    def score(offsets):
        return ops.sum(relevance._run_with_offsets(model, images, offsets)[:, 3])

    slopes = relevance.gradients(score, offsets_like_maps(model, images))
    first, second, *probe = (
        np.maximum(weights * np.asarray(slope), 0).mean(axis=1) for weights, slope in zip(maps, slopes, strict=True)
    )
    beyond = first + second + second @ first  # (1 + A2)(1 + A1) - 1
    if name == "token":
        expected = beyond[:, 0, 1:]
    elif name == "gap":
        expected = beyond.mean(axis=1)
    else:
        expected = probe[0][:, 0] + np.einsum("bn,bnm->bm", probe[0][:, 0], beyond)
    found = inspection.gradient_attention(model, images, 3)
    np.testing.assert_allclose(found, expected.reshape(3, *small.GRID), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_relevance_finds_the_decisive_patch():
    # Attention is uniform, values pass unchanged, and the head reads one feature, which only patch (2, 1) has.
    model = small.model(num_layers=1, hidden_size=8, num_heads=1, pooling="token", position_embedding="none")
    for weight in model.trainable_variables:
        weight.assign(np.zeros(weight.shape))
    for name in ("LayerNorm_0/scale", "encoder_norm/scale"):
        next(w for w in model.variables if w.path.endswith(name)).assign(np.ones(8))
    by_path = {w.path: w for w in model.variables}
    block = "encoderblock_0/MultiHeadDotProductAttention_0"
    by_path[f"{block}/value/kernel"].assign(np.eye(8)[:, None])
    by_path[f"{block}/out/kernel"].assign(np.eye(8)[None])
    kernel = np.zeros((8, 8, 3, 8))
    kernel[..., 0] = 1.0
    by_path["embedding/kernel"].assign(kernel)
    head = np.zeros((8, small.CLASSES))
    head[0, 4] = 1.0
    by_path["head/kernel"].assign(head)
    images = np.zeros((1, *small.SIZE, 3), "float32")
    images[:, 16:24, 8:16] = 1.0
    found = inspection.gradient_attention(model, images, 4)[0]
    assert np.unravel_index(found.argmax(), found.shape) == (2, 1)
    assert found[2, 1] > 0
    assert np.delete(found.ravel(), 2 * 3 + 1).max() == 0


@pytest.mark.slow
def test_relevance_is_of_the_requested_class():
    model, images = small.shared(), small.images()
    likeliest = np.asarray(model(images)).argmax(-1)
    best = inspection.gradient_attention(model, images)
    np.testing.assert_allclose(inspection.gradient_attention(model, images, likeliest), best, rtol=1e-5)
    other = inspection.gradient_attention(model, images, (likeliest + 1) % small.CLASSES)
    assert not np.allclose(best, other)


@pytest.mark.slow
def test_relevance_of_probabilities_uses_the_logits():
    logits, shares = small.shared(), small.shared("probabilities")
    np.testing.assert_array_equal(
        inspection.gradient_attention(logits, small.images(), 1),
        inspection.gradient_attention(shares, small.images(), 1),
    )


@pytest.mark.slow
@pytest.mark.parametrize("end", [keras.layers.Softmax(), keras.layers.Activation("softmax")])
def test_relevance_before_a_final_softmax_layer_uses_the_logits(end):
    logits = small.shared()
    shares = keras.Sequential([keras.Input(logits.input_shape[1:]), logits, end])
    # The images' scores, not their probabilities, whose gradients depend on the other classes.
    np.testing.assert_allclose(
        inspection.gradient_attention(shares, small.images(), 1),
        inspection.gradient_attention(logits, small.images(), 1),
        rtol=1e-5,
    )


def around(*layers):
    """A model of the shared model and further layers."""
    logits = small.shared()
    return keras.Sequential([keras.Input(logits.input_shape[1:]), logits, *layers])


def passing(activation):
    """A dense layer that changes nothing before its activation."""
    return keras.layers.Dense(small.CLASSES, activation, kernel_initializer="identity")


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_relevance_before_the_activation_of_the_last_dense_layer_uses_the_logits(activation):
    model = around(passing(activation))
    np.testing.assert_allclose(
        inspection.gradient_attention(model, small.images(), 1),
        inspection.gradient_attention(small.shared(), small.images(), 1),
        rtol=1e-5,
    )
    assert model.layers[-1].activation is keras.activations.get(activation)


@pytest.mark.slow
def test_activation_inside_a_model_is_kept():
    last = keras.layers.Dense(2, kernel_initializer=keras.initializers.RandomNormal(seed=0))
    kept = around(keras.layers.Activation("sigmoid"), last)
    expected = inspection.gradient_attention(around(passing("sigmoid"), last), small.images(), 1)
    np.testing.assert_allclose(inspection.gradient_attention(kept, small.images(), 1), expected, rtol=1e-5)


@pytest.mark.slow
def test_wrong_models_and_classes_are_refused():
    with pytest.raises(ValueError, match="class outputs"):
        inspection.gradient_attention(small.shared("all_tokens"), small.images())
    with pytest.raises(ValueError, match=r"`class_index` must be in 0..6. Received: class_index=\[7, 7, 7\]"):
        inspection.gradient_attention(small.shared(), small.images(), 7)
