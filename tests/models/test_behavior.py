"""Behavior of the models: shapes, initial values, gradients, sizes, errors."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_vit
from keras_vit import BiTResNet, VisionTransformer
from keras_vit.layers import EncoderBlock, MlpBlock, SelfAttention
from tests import selection
from tests.models import variants


def run(model, images, **arguments):
    return ops.convert_to_numpy(ops.cast(model(images, **arguments), "float32"))


def gradients(model, images):
    with tf.GradientTape() as tape:
        outputs = ops.cast(model(images, training=True), "float32")
        loss = tf.reduce_sum(outputs * tf.reshape(tf.range(tf.size(outputs), dtype=tf.float32), tf.shape(outputs)))
    return tape.gradient(loss, [v.value for v in model.trainable_variables])


@pytest.mark.slow
@pytest.mark.parametrize("name", selection.cases(["token", "dropout", "remat", "any_size", "bit"], ["token"]))
def test_a_second_step_does_not_retrace(name):
    model, traces = variants.shared(name), []

    @tf.function
    def step(images):
        traces.append(1)
        return gradients(model, images)

    images = variants.images(model)
    for first, second in zip(step(images), step(images[::-1].copy()), strict=True):
        assert first.shape == second.shape
    assert len(traces) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "policy"), variants.cases_under(["float32", "mixed_bfloat16"]))
def test_a_gradient_reaches_every_variable(name, policy):
    model = variants.shared(name, policy)
    for variable, gradient in zip(model.trainable_variables, gradients(model, variants.images(model)), strict=True):
        assert gradient is not None, variable.path
        assert np.isfinite(gradient.numpy().astype("float32")).all(), variable.path
        # A constant added to all of a query's logits changes no softmax: the key's bias has no gradient, by algebra.
        if not variable.path.endswith("key/bias"):
            assert np.abs(gradient.numpy().astype("float32")).max() > 0, variable.path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dropout", "remat"])
def test_training_is_random_and_inference_is_not(name):
    model = variants.make(name)
    images = variants.images(model)
    np.testing.assert_array_equal(run(model, images), run(model, images))
    assert np.abs(run(model, images, training=True) - run(model, images, training=True)).max() > 0


def gradients_with_given_seeds(model, images):
    seeds = [variable for variable in model.non_trainable_variables if "seed_generator" in variable.path]
    assert len(seeds) == 11  # input, 2 x (attention, after attention, 2 in the MLP), 2 of the last block's paths
    mapping = [(seed, ops.convert_to_tensor([7, i], dtype=seed.dtype)) for i, seed in enumerate(seeds)]
    with tf.GradientTape() as tape, keras.StatelessScope(state_mapping=mapping):
        loss = tf.reduce_sum(model(images, training=True) ** 2)
    return loss, tape.gradient(loss, [variable.value for variable in model.trainable_variables])


@pytest.mark.slow
@pytest.mark.parametrize("compiled", selection.cases([False, True], [False], selection.EXHAUSTIVE))
def test_rematerialization_changes_no_gradient(compiled):
    """Recomputed activations see the same dropout: gradients agree to the rounding of another order of sums."""
    arguments = {"dropout_rate": 0.3, "attention_dropout_rate": 0.3, "drop_path_rate": 0.3}
    results = []
    for remat in ("none", "blocks"):
        model = variants.make("token", remat=remat, **arguments)
        step = tf.function(lambda images, model=model: gradients_with_given_seeds(model, images), jit_compile=compiled)
        results.append(step(tf.constant(variants.images(model, batch=4))))
    (loss, gradients), (remat_loss, remat_gradients) = results
    np.testing.assert_allclose(loss, remat_loss, rtol=1e-5)
    for gradient, remat_gradient in zip(gradients, remat_gradients, strict=True):
        np.testing.assert_allclose(gradient, remat_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("remat", "training", "expected"), [("blocks", True, 2), ("none", True, 1), ("blocks", False, 1)]
)
def test_rematerialized_blocks_run_twice(remat, training, expected, monkeypatch):
    model = variants.make("token", remat=remat)
    block, runs = model.get_layer("encoderblock_0"), []
    run = block.mlp.call
    monkeypatch.setattr(block.mlp, "call", lambda x, **arguments: runs.append(x) or run(x, **arguments))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(variants.images(model), training=training))
    tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    assert len(runs) == expected


@pytest.mark.slow
def test_dropout_is_repeated_in_a_remat_scope_of_keras():
    """Other values in the second run would give the derivative of another function."""
    gradients = []
    for scope in (contextlib.nullcontext(), keras.RematScope("list_of_layers", layer_names=["block"])):
        keras.utils.set_random_seed(0)
        with scope:
            attention = SelfAttention(2, dropout_rate=0.5)
            block = EncoderBlock(attention, MlpBlock(8, 0.5), dropout_rate=0.5, drop_path_rate=0.5, name="block")
        x = tf.constant(np.random.default_rng(0).normal(size=(4, 5, 8)), tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(block(x[:, :2], context=x, training=True) ** 2)
        gradients.append(tape.gradient(loss, x))
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_initial_values_match_the_reference():
    model = VisionTransformer(
        patch_size=8, hidden_size=256, num_layers=1, num_heads=4, mlp_dim=512, image_size=64, classes=10,
        representation_size=128, resnet_blocks=(1,), head_bias=-10.0, channels=3,
    )  # fmt: skip
    values = {v.path: v.numpy() for v in model.weights}

    def spread(path):
        return values[path].std()

    def bound(path):
        return np.abs(values[path]).max()

    attention = "encoderblock_0/MultiHeadDotProductAttention_0"
    limit = np.sqrt(6 / (256 + 256))  # xavier uniform of the flattened [D, H*K] matrix
    for path in (f"{attention}/{part}/kernel" for part in ("query", "key", "value", "out")):
        assert 0.98 * limit < bound(path) <= limit
        # 65,536 values: the sample's standard deviation is within 1% of limit / sqrt(3) with overwhelming probability.
        assert spread(path) == pytest.approx(limit / np.sqrt(3), rel=0.01)
    limit = np.sqrt(6 / (256 + 512))
    assert 0.98 * limit < bound("encoderblock_0/MlpBlock_0/Dense_0/kernel") <= limit
    # lecun normal, truncated at two standard deviations and corrected for it
    for path, fan_in in (
        ("embedding/kernel", 8 * 8 * 256),
        ("pre_logits/kernel", 256),
        ("conv_root/kernel", 7 * 7 * 3),
    ):
        sigma = np.sqrt(1 / fan_in)
        assert spread(path) == pytest.approx(sigma, rel=0.03)
        assert bound(path) <= 2 * sigma / 0.87962566 * 1.0001
    assert spread("posembed_input/pos_embedding") == pytest.approx(0.02, rel=0.1)
    assert 0 < bound("encoderblock_0/MlpBlock_0/Dense_0/bias") < 1e-5
    zeros = ["cls/cls", "head/kernel", "block1/unit1/gn3/scale", "embedding/bias", f"{attention}/query/bias"]
    assert all(bound(path) == 0 for path in zeros)
    assert (values["head/bias"] == -10).all()
    ones = ["encoder_norm/scale", "gn_root/scale", "block1/unit1/gn1/scale", "encoderblock_0/LayerNorm_1/scale"]
    assert all((values[path] == 1).all() for path in ones)


@pytest.mark.slow
def test_images_of_any_size_get_resized_positions():
    model = variants.shared("any_size")
    grid = model.get_layer("posembed_input").pos_embedding.shape[1] - 1
    assert grid == (224 // 4) ** 2
    for height, width in ((8, 8), (16, 24), (20, 4)):
        assert run(model, np.zeros((1, height, width, 3), "float32")).shape == (1, 3)


@pytest.mark.slow
def test_images_of_the_size_of_the_table_get_its_positions():
    model = variants.make("any_size", position_grid=8)
    fixed = VisionTransformer(**{**variants.SMALL, "image_size": 32})
    fixed.set_weights(model.get_weights())
    images = np.random.default_rng(0).uniform(-1, 1, (1, 32, 32, 3)).astype("float32")
    # The same computation in shapes known at another time: float32 rounding.
    np.testing.assert_allclose(run(model, images), run(fixed, images), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_sincos2d_is_evaluated_at_any_size():
    model = variants.shared("any_size_sincos2d")
    fixed = VisionTransformer(**{**variants.SMALL, "position_embedding": "sincos2d", "image_size": (12, 20)})
    fixed.set_weights(model.get_weights())
    images = np.random.default_rng(0).uniform(-1, 1, (2, 12, 20, 3)).astype("float32")
    np.testing.assert_allclose(run(model, images), run(fixed, images), rtol=1e-5, atol=1e-5)
    compiled = tf.function(lambda x: model(x), input_signature=[tf.TensorSpec((None, None, None, 3))])
    np.testing.assert_allclose(compiled(images), run(fixed, images), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_model_of_any_size_compiles_once_for_all_sizes():
    model = variants.shared("any_size")
    compiled = tf.function(lambda x: model(x), input_signature=[tf.TensorSpec((None, None, None, 3))])
    for height, width in ((16, 8), (8, 24)):
        images = np.random.default_rng(height).uniform(-1, 1, (2, height, width, 3)).astype("float32")
        np.testing.assert_allclose(compiled(images), run(model, images), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_stochastic_depth_rises_linearly():
    model = VisionTransformer(**{**variants.SMALL, "num_layers": 3, "drop_path_rate": 0.3})
    assert [model.get_layer(f"encoderblock_{i}").drop_path_rate for i in range(3)] == pytest.approx([0, 0.15, 0.3])


@pytest.mark.slow
def test_simple_vit_has_no_learned_positions_and_no_class_token():
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.create_model("ViT-S/16", position_embedding="sincos2d", pooling="gap")
    # Ti to G learn 197 positions and a class token; SimpleViT neither.
    assert model.count_params() == 22_050_664 - 198 * 384


@pytest.mark.slow
def test_softmax_is_float32_under_mixed_precision():
    model = variants.make("softmax", "mixed_bfloat16")
    probabilities = model(variants.images(model))
    assert probabilities.dtype == "float32"
    np.testing.assert_allclose(ops.sum(probabilities, axis=-1), 1.0, atol=1e-6)


WRONG = {
    "image": (dict(image_size=(224, 230)), "multiple of patch_size=16.*224, 230"),
    "heads": (dict(hidden_size=100, num_heads=12), "`hidden_size` must be a multiple of `num_heads`=12.*96 or 108"),
    "pooling": (dict(pooling="tokens"), "`pooling` must be one of.*Did you mean 'token'"),
    "positions": (dict(position_embedding="sincos"), "Did you mean 'sincos2d'"),
    "positions_at": (dict(position_embedding="none", position_embedding_at="every_layer"), "leave it at 'input'"),
    "relative": (dict(position_embedding="relative", image_size=None), "cannot be resized"),
    "rate": (dict(dropout_rate=1.0), r"must be a number in \[0, 1\)"),
    "activation": (dict(activation="gelu_tan"), "Did you mean 'gelu_tanh'"),
    "sincos_width": (dict(position_embedding="sincos2d", hidden_size=6, num_heads=2), "at least 8"),
    "token": (dict(class_token=False), "needs the class token"),
    "deit": (dict(distillation_token=True, pooling="gap"), "DeiT reads both tokens"),
    "norm": (dict(norm_after_pooling=True), "needs pooling='gap'"),
    "classes": (dict(classes=0), "`classes` must be an integer of at least 1"),
    "hybrid": (dict(resnet_blocks=(3, 4, 9), patch_size=2, image_size=(224, 208)), "multiple of the stride=32"),
    "remat": (dict(remat="all"), "`remat` must be one of"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_wrong_arguments_are_reported(case):
    arguments, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        VisionTransformer(**{"num_layers": 1, **arguments})


@pytest.mark.parametrize("name", ["token", "bit"])
def test_wrong_images_get_the_expected_shape(name):
    model = variants.make(name)
    with pytest.raises(ValueError, match=r"takes images of shape \(None, 16, 8, 3\).*Received: \(2, 16, 8, 4\)"):
        model(np.zeros((2, 16, 8, 4), "float32"))
    with pytest.raises(ValueError, match="image_size"):
        model(np.zeros((2, 32, 32, 3), "float32"))


def test_unknown_names_and_arguments_are_errors():
    with pytest.raises(ValueError, match="Did you mean 'ViT-B/16'"):
        keras_vit.create_model("ViT-B-16")
    with pytest.raises(ValueError, match="`dropout_rate`"):
        keras_vit.create_model("ViT-Ti/16", dropout=0.1)
    with pytest.raises(ValueError, match="width_factor"):
        BiTResNet(width_factor=0)


def test_four_channels_are_possible():
    model = VisionTransformer(**{**variants.SMALL, "channels": 4})
    assert model.get_layer("embedding").kernel.shape == (4, 4, 4, 16)


@pytest.mark.slow
def test_fit_reduces_the_loss():
    model = variants.make("token")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    images = variants.images(model, batch=16)
    labels = (images.mean((1, 2, 3)) > 0).astype("int32")
    history = model.fit(images, labels, batch_size=8, epochs=8, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
