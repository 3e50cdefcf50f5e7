"""Selection of the Keras backend and its devices."""

import contextlib
import os

import keras
from absl import logging

from keras_vit.recipe import Recipe
from keras_vit.training.backend import Backend
from keras_vit.training.joining import joining


def create(
    recipe: Recipe, distribute: str = "auto", tpu: str = "local", virtual_devices: int = 0, multi_host: bool = False
) -> Backend:
    """Return the training backend for the current Keras backend, on the requested devices.

    Args:
        recipe: The recipe.
        distribute: One of `distribute.STRATEGIES` or, on JAX, of `distribute.JAX_STRATEGIES`, or a mesh such as
            `"mesh(data=8, fsdp=4)"`.
        tpu: `"local"` or, on TensorFlow, the name or network address of a TPU.
        virtual_devices: Number of devices to split the CPU into; 0 does not split it.
        multi_host: Whether to join the other hosts of a TPU pod or cluster job. JAX only.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        from keras_vit.training.jax import backend as chosen
    elif backend == "tensorflow":
        from keras_vit.training.tf import backend as chosen  # type: ignore[no-redef]
    else:
        raise ValueError(f"Training needs the backend tensorflow or jax. Received: KERAS_BACKEND={backend}.")
    joins = "TF_CONFIG" in os.environ and (backend == "jax" or distribute in ("auto", "multi_worker"))
    with joining() if joins else contextlib.nullcontext():
        created = chosen.create_backend(recipe, distribute, tpu, virtual_devices, multi_host)
    if distribute not in ("auto", "one_device", "tpu") and created.num_replicas == 1:
        logging.warning(
            "--distribute=%s has no effect, because only one device was found (%s). For TPUs on JAX, install "
            "jax[tpu]; --virtual_devices=2 splits a CPU into two devices.",
            *(distribute, created.describe()),
        )
    return created
