"""Options of DINOv2, DINOv3 and SigLIP models: exclusions, training, rematerialization, exports."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.models import MAEConfig, MaskedPatchConfig, ViTConfig
from keras_vit.models.variables import seed_states
from keras_vit.training.planning import cost
from keras_vit.training.seeds import SeedScope
from tests.models import variants

NAMES = ["dinov3", "any_size_rope", "rms", "no_final_norm"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"position_embedding": "rope2d", "position_embedding_at": "every_layer"}, "position_embedding_at"),
        ({"position_embedding": "rope2d", "hidden_size": 12, "num_heads": 2}, "rope2d.*hidden_size"),
        ({"position_embedding": "rope2d", "rope_base": 0}, "rope_base"),
        ({"position_embedding": "rope2d", "rope_shift": -0.1}, "rope_shift"),
        ({"position_embedding": "rope2d", "rope_jitter": 0.5}, "rope_jitter"),
        ({"position_embedding": "rope2d", "rope_rescale": True}, "rope_rescale"),
        ({"rope_base": 10.0}, "rope_base.*rope2d"),
        ({"position_embedding": "relative", "rope_rescale": 2.0}, "rope_rescale.*rope2d"),
        ({"mlp": "swiglu", "activation": "gelu"}, "activation"),
        ({"mlp": "glu"}, "mlp"),
        ({"norm": "batch"}, "norm"),
        ({"qkv_bias": (True, False)}, "qkv_bias"),
        ({"qkv_bias": 1}, "qkv_bias"),
        ({"qkv_bias": (True, False, None)}, "qkv_bias"),
        ({"final_norm": False, "norm_after_pooling": True, "pooling": "gap"}, "final_norm"),
        ({"pooling": "token+gap", "class_token": False}, "class_token"),
        ({"pooling": "token+gap", "distillation_token": True}, "distillation_token"),
        ({"pooling": "token+gap", "norm_after_pooling": True}, "norm_after_pooling"),
        ({"pooling": "token+gap", "pool_prefix_tokens": True}, "pool_prefix_tokens"),
        ({"head_dim": 6, "output_projection": "none"}, "output_projection"),
        ({"head_norm": True, "pooling": None}, "head_norm"),
        ({"head_norm": True, "distillation_token": "unused"}, "head_norm"),
        ({"distillation_token": "unused", "pooling": "gap"}, "distillation_token"),
        ({"position_embedding": "none", "position_embedding_at": "every_layer"}, "position_embedding_at"),
        ({"position_embedding": "relative", "image_size": None}, "image_size"),
        ({"position_embedding": "relative", "attention_chunk_size": 4}, "attention_chunk_size"),
        ({"attention_dropout_rate": 0.1, "attention_chunk_size": 4}, "attention_chunk_size"),
        ({"pooling": "map", "head_dim": 4, "num_heads": 5}, "hidden_size.*num_heads"),
        ({"num_layers": -1}, "num_layers"),
        ({"num_registers": -1}, "num_registers"),
        ({"representation_size": 0}, "representation_size"),
        ({"layer_norm_epsilon": 1.0}, "layer_norm_epsilon"),
        ({"layer_scale": -1e-9}, "layer_scale"),
    ],
)
def test_mutually_exclusive_arguments_are_refused(arguments, named):
    with pytest.raises(ValueError, match=named):
        ViTConfig(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"head_dim": 64, "output_projection": "none"},  # twelve heads of 64 are as wide as the model
        {"num_layers": 0, "num_registers": 0, "layer_norm_epsilon": 0.0, "layer_scale": 0.0},
        {"head_dim": 4, "num_heads": 5},
        {"head_norm": True, "include_top": False, "pooling": None},
        {"attention_dropout_rate": 0.0, "attention_chunk_size": 1},
        {"position_embedding": "none", "image_size": None},
    ],
)
def test_compatible_arguments_are_accepted(arguments):
    config = ViTConfig(**arguments)
    assert config.head_dim == (None if arguments.get("head_dim") == 64 else arguments.get("head_dim"))
    assert not (config.head_norm and not config.include_top)


@pytest.mark.parametrize(("ratio", "hidden"), [(0.0, None), (0.24, 1), (0.25, 1), (0.26, 2), (0.75, 3), (0.76, None)])
def test_at_least_one_patch_is_masked_and_one_is_visible(ratio, hidden):
    """The authors of MAE keep `int(L * (1 - mask_ratio))` of L patches."""
    sizes = {"patch_size": 8, "image_size": 16}
    for config_class in (MAEConfig, MaskedPatchConfig):
        if hidden is None:
            with pytest.raises(ValueError, match=f"at least one of the 4 patches, but not all.*mask_ratio={ratio}"):
                config_class(**sizes, mask_ratio=ratio)
        else:
            assert config_class(**sizes, mask_ratio=ratio).num_masked == hidden
    assert MAEConfig(patch_size=4, image_size=28).num_visible == 12  # of 49, a quarter is 12.25


@pytest.mark.parametrize("config_class", [MAEConfig, MaskedPatchConfig])
@pytest.mark.parametrize("arguments", [{"position_embedding": "rope2d"}, {"final_norm": False}])
def test_pretraining_models_refuse_unsupported_arguments(config_class, arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        config_class(**arguments)


@pytest.mark.slow
@pytest.mark.parametrize("build", [keras_vit.MaskedAutoencoder, keras_vit.MaskedPatchPredictor])
def test_pretraining_models_accept_the_other_options(build):
    decoder = {"decoder_hidden_size": 8, "decoder_num_layers": 1, "decoder_num_heads": 2}
    decoder = decoder if build is keras_vit.MaskedAutoencoder else {}
    options = {
        "mlp": "swiglu",
        "norm": "rms",
        "qk_norm": True,
        "norm_before_blocks": True,
        "qkv_bias": (True, False, True),
    }
    model = build(4, 16, 1, 2, 24, image_size=16, **decoder, **options)
    assert cost.of_config(model.config).parameters == model.count_params()
    assert model.encoder().config.mlp == "swiglu"


def test_equal_models_have_equal_configurations():
    assert ViTConfig(qkv_bias=(False, False, False)) == ViTConfig(qkv_bias=False)
    assert ViTConfig(qkv_bias=[True, False, True]).qkv_bias == (True, False, True)
    assert ViTConfig(mlp="swiglu") == ViTConfig(mlp="swiglu", activation="silu")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arguments", [{}, {"dropout_rate": 0.1}])
def test_costs_count_every_weight(name, arguments):
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.VisionTransformer(**variants.SMALL | variants.VARIANTS[name] | arguments)
    assert cost.of_config(model.config).parameters == model.count_params()


def gradients_of(model, images, seeds):
    with SeedScope(seed_states(model), seeds), tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(images, training=True) ** 2)
        return loss, tape.gradient(loss, [weight.value for weight in model.trainable_variables])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_reaches_every_weight(name):
    model = variants.shared(name)
    images = variants.images(model)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(images, training=True) ** 2)
    weights = model.trainable_variables
    for weight, gradient in zip(weights, tape.gradient(loss, [weight.value for weight in weights]), strict=True):
        # The softmax does not depend on a number that is added to all keys.
        assert weight.path.endswith(("key/bias", "key_norm/bias")) or np.abs(gradient).max() > 1e-6, weight.path


@pytest.mark.slow
def test_rotary_augmentation_is_a_function_of_the_step_and_the_same_under_remat():
    options = {"rope_shift": 0.1, "rope_jitter": 1.2, "rope_rescale": 2.0, "dropout_rate": 0.1}
    model, recomputed = (variants.make("dinov3", remat=remat, **options) for remat in ("none", "blocks"))
    images = variants.images(model)
    count = len(seed_states(model))
    found = [gradients_of(model, images, np.full((count, 2), step, "uint32")) for step in (1, 1, 2)]
    again = gradients_of(recomputed, images, np.full((count, 2), 1, "uint32"))
    assert found[0][0] == found[1][0] != found[2][0]
    np.testing.assert_allclose(again[0], found[0][0], rtol=1e-5)
    for got, expected in zip(again[1], found[0][1], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    np.testing.assert_array_equal(model(images), model(images))  # outside of training nothing is drawn


@pytest.mark.slow
def test_rope_augmentation_is_drawn_once_per_batch():
    model = variants.make("dinov3", rope_shift=0.5)
    images = np.repeat(variants.images(model, batch=1), 3, axis=0)
    outputs = keras.ops.convert_to_numpy(model(images, training=True))
    np.testing.assert_allclose(outputs, np.repeat(outputs[:1], 3, axis=0), rtol=1e-5, atol=1e-6)
    assert np.abs(outputs - keras.ops.convert_to_numpy(model(images))).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("size", [(16, 8), (12, 20)])
def test_rotary_positions_work_for_any_image_size(size):
    """A model for images of any size is the model of each size."""
    anysize, fixed = (variants.make("any_size_rope", image_size=image_size) for image_size in (None, size))
    images = variants.images(fixed)
    np.testing.assert_allclose(anysize(images), fixed(images), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dinov3", "rms"])
def test_chunked_attention_equals_whole_attention(name):
    whole, chunked = (variants.make(name, attention_chunk_size=size) for size in (None, 3))
    images = variants.images(whole)
    np.testing.assert_allclose(chunked(images), whole(images), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dinov3", "rms"])
def test_models_with_new_options_are_exported(name, tmp_path):
    model = variants.make(name)
    images = variants.images(model)
    expected = keras.ops.convert_to_numpy(model(images))
    model.export(tmp_path / "saved_model", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "saved_model"))
    np.testing.assert_allclose(loaded.serve(images), expected, rtol=1e-4, atol=1e-5)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "saved_model"))
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    (given,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], images)
    interpreter.invoke()
    np.testing.assert_allclose(interpreter.get_tensor(result["index"]), expected, rtol=1e-4, atol=1e-5)
