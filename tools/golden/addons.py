"""Golden file of the last release of TensorFlow Addons (TensorFlow 2.15 or older, with Keras 2)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tools.golden import remake

PACKAGES = ("tensorflow", "tensorflow-addons")
RATE, DECAY = 0.01, 0.001


def addons(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute activations, group normalization, four optimizers and two metrics."""
    import tensorflow as tf
    import tensorflow_addons as tfa

    stored, meta = remake.read(name)
    norm = tfa.layers.GroupNormalization(groups=32, epsilon=1e-3)
    norm.build(stored["gn_x"].shape)
    norm.set_weights([stored["gn_gamma"], stored["gn_beta"]])
    f1 = tfa.metrics.F1Score(num_classes=3, average="macro")
    kappa = tfa.metrics.CohenKappa(num_classes=3, sparse_labels=True)
    f1.update_state(tf.one_hot(stored["f1_y"], 3), stored["f1_p"])
    kappa.update_state(stored["f1_y"], tf.argmax(stored["f1_p"], -1))
    found = {
        "gelu_tanh": tfa.activations.gelu(stored["gelu_x"], approximate=True).numpy(),
        "gelu_erf": tfa.activations.gelu(stored["gelu_x"], approximate=False).numpy(),
        "gn_y": norm(stored["gn_x"]).numpy(),
        "adamw_w": _follow(stored, "adamw", lambda: tfa.optimizers.AdamW(DECAY, learning_rate=RATE)),
        "sgdw_w": _follow(stored, "sgdw", lambda: tfa.optimizers.SGDW(DECAY, learning_rate=RATE, momentum=0.9)),
        "lamb_w": _follow(stored, "lamb", lambda: tfa.optimizers.LAMB(RATE, weight_decay=0.01)),
        "ema_average": _averages(stored),
        "f1": f1.result().numpy(),
        "kappa": kappa.result().numpy(),
    }
    return {**stored, **found}, meta


def _follow(stored: remake.Arrays, name: str, create: Callable[[], Any]) -> np.ndarray:
    """Return the weight after each step."""
    import tensorflow as tf

    optimizer, weight, after = create(), tf.Variable(stored[f"{name}_w0"]), []
    for gradient in stored[f"{name}_grads"]:
        optimizer.apply_gradients([(tf.constant(gradient), weight)])
        after.append(weight.numpy())
    return np.stack(after)


def _averages(stored: remake.Arrays) -> np.ndarray:
    """Return the moving average of a weight after each step of gradient descent."""
    import tensorflow as tf
    import tensorflow_addons as tfa

    optimizer = tfa.optimizers.MovingAverage(tf.keras.optimizers.legacy.SGD(0.1), average_decay=0.9)
    weight, after = tf.Variable(stored["ema_w0"]), []
    for gradient in stored["ema_grads"]:
        optimizer.apply_gradients([(tf.constant(gradient), weight)])
        after.append(optimizer.get_slot(weight, "average").numpy())
    return np.stack(after)


FILES = {"addons": addons}

if __name__ == "__main__":
    remake.main(FILES, PACKAGES)
