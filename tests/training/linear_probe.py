"""MAE's linear probe by hand: a batch norm without scale and offset, a linear layer and LARS, in NumPy."""

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit import models
from keras_vit import recipe as recipes
from tests import tiny

CLASSES, BATCH, STEPS, SIZE = 3, 8, 4, 8
PEAK = 2.0


def recipe(**optim):
    """As `train/configs/mae_linear_probe.py`, with fewer steps."""
    schedule = recipes.Schedule("cosine", warmup_steps=1)
    fields = {"learning_rate": PEAK, "schedule": schedule, "clip_norm": 0.0, **optim}
    return recipes.Recipe(total_steps=STEPS, data=recipes.Data(batch_size=BATCH), optim=recipes.Optim("lars", **fields))


def create_model(**arguments):
    sizes = {**tiny.SIZES, "num_layers": 2, "image_size": SIZE}
    model = models.VisionTransformer(**{**sizes, "classes": CLASSES, "head_norm": True, **arguments})
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(weight + rng.normal(scale=0.1, size=weight.shape))
    keras_vit.adapt(model, "head")
    return model


def batches():
    """Images `[steps, b, h, w, c]` and labels `[steps, b]`."""
    rng = np.random.default_rng(1)
    images = rng.normal(size=(STEPS, BATCH, SIZE, SIZE, 3)).astype("float32")
    return images, rng.integers(0, CLASSES, (STEPS, BATCH)).astype("int32")


def by_hand(features, labels, kernel, bias, parts=1):
    """Train on features `[steps, b, D]`, float64.

    Args:
        features: Output of the encoder.
        labels: `[steps, b]`.
        kernel: The linear layer's, `[D, classes]`.
        bias: `[classes]`.
        parts: Number of parts of a batch. Each part has its own statistics.

    Returns:
        Losses `[steps]`, kernel, bias, moving mean and moving variance.
    """
    kernel, bias, features = (np.asarray(value, np.float64) for value in (kernel, bias, features))
    width = features.shape[-1]
    mean, variance, losses = np.zeros(width), np.ones(width), []
    momentum = [np.zeros_like(kernel), np.zeros_like(bias)]
    for step, (x, y) in enumerate(zip(features, labels, strict=True)):
        x = x.reshape(parts, -1, width)
        means, variances = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
        x = ((x - means) / np.sqrt(variances + 1e-6)).reshape(-1, width)
        mean, variance = 0.9 * mean + 0.1 * means.mean(axis=(0, 1)), 0.9 * variance + 0.1 * variances.mean(axis=(0, 1))
        logits = x @ kernel + bias
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        losses.append(-np.log(shares[np.arange(len(y)), y]).mean())
        errors = (shares - np.eye(CLASSES)[y]) / len(y)
        gradients = [x.T @ errors, errors.sum(axis=0)]
        gradients[0] = gradients[0] * (1e-3 * np.linalg.norm(kernel) / np.linalg.norm(gradients[0]))
        momentum = [0.9 * old + new for old, new in zip(momentum, gradients, strict=True)]
        # One step of warm-up, at rate 0; then half a period of the cosine.
        rate = PEAK * 0.5 * (1 + np.cos(np.pi * (step - 1) / (STEPS - 1))) if step else 0.0
        kernel, bias = kernel - rate * momentum[0], bias - rate * momentum[1]
    return np.array(losses), kernel, bias, mean, variance


def check(model, losses, features, start, labels, parts=1):
    """Compare a trained model and its losses with the training by hand, in float32."""
    expected, kernel, bias, mean, variance = by_hand(features, labels, *start, parts)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert np.ptp(expected) > 0.01
    found = {weight.path: np.asarray(weight) for weight in model.variables}
    for path, value in (
        ("head/kernel", kernel),
        ("head/bias", bias),
        ("head_norm/moving_mean", mean),
        ("head_norm/moving_variance", variance),
    ):
        np.testing.assert_allclose(found[path], value, rtol=1e-3, atol=1e-5, err_msg=path)


def head_of(model):
    """Copies of kernel and bias of the head."""
    return [np.array(weight) for weight in model.get_layer("head").weights]


def features_of(model, images):
    """The encoder's output `[steps, b, D]`."""
    encoder = keras.Model(model.inputs, model.get_layer("head_norm").input)
    return np.stack([np.asarray(encoder(some, training=False)) for some in images])


def one_hot(batch, *_):
    """Images and labels as the task takes them."""
    return batch["image"], tf.one_hot(batch["label"], CLASSES)


def train(strategy, **optim):
    """Train on TensorFlow.

    Returns:
        The state, the losses, and features, start and labels for `check`.
    """
    from keras_vit.training.tf.state import TrainState
    from keras_vit.training.tf.step import TrainStep, run_steps

    run, (images, labels) = recipe(**optim), batches()
    with strategy.scope():
        state = TrainState(create_model(), run)
    start, features = head_of(state.model), features_of(state.model, images)
    data = tf.data.Dataset.from_tensor_slices({"image": images, "label": labels}).unbatch()
    data = strategy.experimental_distribute_dataset(data.batch(BATCH, drop_remainder=True))
    run = run_steps(strategy, TrainStep(state, run, one_hot, BATCH))
    history = run(iter(data), 0, STEPS)
    return state, history["loss"], (features, start, labels)
