"""The backends that can train."""

import keras


def of_backend():
    """Returns the module with what a training program needs of the backend that runs.

    Raises:
        ValueError: if it cannot train.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        from keras_vit.training.jax import engine
    elif backend == "tensorflow":
        from keras_vit.training import tf_engine as engine
    else:
        raise ValueError(f"Training needs the backend tensorflow or jax. Received: KERAS_BACKEND={backend}.")
    return engine
