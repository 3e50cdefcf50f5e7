"""What a training program needs of JAX; the same names as in `keras_vit.training.tf_engine`."""

from collections.abc import Callable

import tensorflow as tf

from keras_vit import recipe as recipes
from keras_vit.training import network
from keras_vit.training.jax.checkpoints import CheckpointStore
from keras_vit.training.jax.devices import Batches, Devices, ask_for_determinism, create_devices
from keras_vit.training.jax.loop import Evaluation, Forward, Loop
from keras_vit.training.jax.state import TrainState
from keras_vit.training.jax.step import TrainStep, training_inputs

__all__ = [
    "CheckpointStore",
    "Evaluation",
    "Forward",
    "Loop",
    "batches",
    "create_state",
    "create_step",
    "create_strategy",
    "describe",
    "is_chief",
    "make_deterministic",
]


def create_strategy(recipe: recipes.Recipe, name: str, tpu: str, virtual_devices: int, several_hosts: bool) -> Devices:
    """Returns the devices that flags ask for; see `create_devices`.

    Raises:
        ValueError: for flags that mean something under TensorFlow only.
    """
    if tpu != "local":
        raise ValueError(
            f"Under KERAS_BACKEND=jax the TPU is that of this machine or pod. Received: --tpu={tpu}. Start the program "
            "on each of its hosts, with --several_hosts."
        )
    if recipe.deterministic:
        ask_for_determinism()
    return create_devices(name, virtual_devices, several_hosts)


def make_deterministic(devices: Devices) -> None:
    """Makes the pipelines on the host do the same in every run; JAX was asked in `create_strategy`."""
    del devices
    tf.config.experimental.enable_op_determinism()


def is_chief(devices: Devices) -> bool:
    """Tells whether this process is the one that writes shared files."""
    return devices.is_chief


def describe(devices: Devices) -> str:
    """Returns one line about the devices."""
    return devices.describe()


def batches(devices: Devices, per_worker_batches: Callable) -> Batches:
    """Returns global batches on the devices; see `Batches`."""
    return Batches(devices, per_worker_batches)


def create_state(recipe: recipes.Recipe, classes: int, channels: int, devices: Devices) -> TrainState:
    """Builds the model of a recipe, and everything else that a checkpoint holds."""
    return TrainState(network.create_network(recipe, classes, channels), recipe, devices)


def create_step(state: TrainState, recipe: recipes.Recipe, classes: int, devices: Devices) -> TrainStep:
    """Returns the training step."""
    return TrainStep(state, recipe, training_inputs(recipe, classes), recipe.data.batch_size)
