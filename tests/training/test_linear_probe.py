"""MAE's linear probe: the trajectory, a frozen encoder whose gradients are not computed, checkpoints and exports."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import checkpoints, models
from keras_vit.exporting.inference_model import inference_model
from keras_vit.runs.checkpoints import CheckpointStore
from keras_vit.training.tf.state import TrainState
from keras_vit.training.tf.step import TrainStep
from tests import tiny
from tests.training import linear_probe as probe
from tests.training import virtual_devices


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_training_matches_numpy(micro_batches):
    """Every step against NumPy; each micro-batch has its own statistics."""
    state, losses, by_hand = probe.train(tf.distribute.get_strategy(), accumulation_steps=micro_batches)
    probe.check(state.model, losses, *by_hand, parts=micro_batches)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("way", virtual_devices.PROBES)
def test_training_on_two_replicas_matches_numpy(way, on_devices):
    assert on_devices(2)[way] is None


@pytest.mark.slow
def test_checkpoints_contain_the_moving_statistics(tmp_path):
    state, _, _ = probe.train(tf.distribute.get_strategy())
    store = CheckpointStore(tmp_path, keep=1)
    state.progress.step = probe.STEPS
    store.save(state.values(), best=False)
    again = TrainState(probe.create_model(), probe.recipe())
    again.assign(store.restore(again.specs()))
    for weight, expected in zip(again.model.variables, state.model.variables, strict=True):
        assert weight.numpy().tobytes() == expected.numpy().tobytes(), weight.path


@pytest.mark.slow
def test_gradients_of_the_frozen_encoder_are_not_computed():
    """The step has the matrix products of the forward pass and the two of the head's gradient, no others."""
    recipe = probe.recipe()
    state = TrainState(probe.create_model(), recipe)
    batch = {"image": tf.zeros([8, 8, 8, 3]), "label": tf.zeros([8], tf.int32)}
    step = tf.function(TrainStep(state, recipe, probe.one_hot, 8), autograph=False)
    step = step.get_concrete_function(batch, tf.constant(0, tf.int64))
    forward = tf.function(lambda x: state.model(x, training=True), autograph=False)
    forward = forward.get_concrete_function(batch["image"])
    assert products(step) == products(forward) + 1  # of the kernel; that of the input would be the encoder's


def products(function):
    """Number of matrix products and convolutions of a traced function and of those that it calls."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    return sum(node.op in ("MatMul", "BatchMatMulV2", "Einsum") or node.op.startswith("Conv2D") for node in nodes)


@pytest.mark.slow
def test_saved_and_exported_models_use_the_moving_statistics(tmp_path):
    """A `.keras` file, read in two ways, and the model that is exported, which normalizes by the moving statistics."""
    model = probe.create_model()
    norm = model.get_layer("head_norm")
    norm.moving_mean.assign(np.linspace(-1, 1, 16))
    norm.moving_variance.assign(np.linspace(0.5, 2, 16))
    images = probe.batches()[0][0]
    features, expected = probe.features_of(model, images[None])[0], model.predict(images, verbose=0)
    kernel, bias = probe.head_of(model)
    normalized = (features - np.linspace(-1, 1, 16)) / np.sqrt(np.linspace(0.5, 2, 16) + 1e-6)
    np.testing.assert_allclose(expected, normalized @ kernel + bias, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "model.keras")
    copies = [keras.saving.load_model(tmp_path / "model.keras"), inference_model(model)]
    for loaded in (*copies, checkpoints.model_from_checkpoint(tmp_path / "model.keras")):
        np.testing.assert_allclose(loaded.predict(images, verbose=0), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="head_norm"):
        checkpoints.save_checkpoint(model, tmp_path / "model.npz")


@pytest.mark.slow
@pytest.mark.parametrize("head", ["auto", "reset"])
def test_batch_norm_is_initialized_with_the_head(head, tmp_path):
    """From a masked autoencoder, whose file has neither."""
    sizes = {**tiny.SIZES, "num_layers": 2}
    source = models.MaskedAutoencoder(**sizes, decoder_hidden_size=8, decoder_num_layers=1, decoder_num_heads=2)
    source.save(tmp_path / "mae.keras")
    model = probe.create_model(activation="gelu")
    model.get_layer("head_norm").moving_mean.assign(np.ones(16))
    report = checkpoints.load_checkpoint(model, tmp_path / "mae.keras", head=head)
    assert set(report.reset) == {"head/kernel", "head/bias", "head_norm/moving_mean", "head_norm/moving_variance"}
    assert not np.any(model.get_layer("head_norm").moving_mean) and not np.any(model.get_layer("head").kernel)
    assert np.all(np.asarray(model.get_layer("head_norm").moving_variance) == 1)
