"""What a training program needs of TensorFlow; the same names as in `keras_vit.training.jax.engine`."""

from collections.abc import Callable

import keras
import tensorflow as tf

from keras_vit import distribute
from keras_vit import recipe as recipes
from keras_vit.layers.bit import BiTRoot
from keras_vit.training import inputs, network
from keras_vit.training.checkpoints import CheckpointStore
from keras_vit.training.evaluation import Evaluation
from keras_vit.training.forward import Forward
from keras_vit.training.loop import Loop
from keras_vit.training.state import TrainState
from keras_vit.training.step import TrainStep

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

is_chief, describe, batches = distribute.is_chief, distribute.describe, distribute.distribute_batches
make_deterministic = distribute.make_deterministic


def create_strategy(
    recipe: recipes.Recipe, name: str, tpu: str, virtual_devices: int, several_hosts: bool
) -> tf.distribute.Strategy:
    """Returns the strategy that flags ask for; see `distribute.create_strategy`.

    Raises:
        ValueError: for flags that mean something under JAX only.
    """
    if several_hosts:
        raise ValueError("--several_hosts is for KERAS_BACKEND=jax. Under TensorFlow, give each machine its TF_CONFIG.")
    return distribute.create_strategy(name, tpu, virtual_devices)


def create_state(recipe: recipes.Recipe, classes: int, channels: int, strategy: tf.distribute.Strategy) -> TrainState:
    """Builds the model of a recipe, and everything else that a checkpoint holds."""
    with strategy.scope():
        return TrainState(network.create_network(recipe, classes, channels), recipe)


def create_step(state: TrainState, recipe: recipes.Recipe, classes: int, strategy: tf.distribute.Strategy) -> Callable:
    """Returns the training step."""
    return TrainStep(
        state,
        recipe,
        inputs.training_inputs(recipe, classes),
        recipe.data.batch_size,
        xla=distribute.use_xla(
            recipe.jit, strategy, exact_max_pool=recipe.deterministic and _has_max_pool(state.model)
        ),
    )


def _has_max_pool(model) -> bool:
    return any(isinstance(layer, (keras.layers.MaxPooling2D, BiTRoot)) for layer in model.layers)
