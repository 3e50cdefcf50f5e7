"""Training step of a recipe, as the program of a replica of `tf.distribute.Strategy` or as a JAX program.

The program includes the complete step: preprocessing on the device, mixup, forward and backward pass, the sum over all
replicas, clipping, the update and the moving averages.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.data import preprocess
from keras_vit.training import device_preprocessing as inputs
from keras_vit.training import teacher
from keras_vit.training.tf.state import TrainState
from keras_vit.training.tf.step import TrainStep
from tools.compile_plan.compiler import Compiled, Compiler, DoesNotFit


class Replica(tf.distribute.ReplicaContext):
    """Replica context without the devices of a strategy. `index` is an int32 scalar tensor."""

    def __init__(self, strategy: tf.distribute.Strategy, index: tf.Tensor, replicas: int):
        super().__init__(strategy, index)
        self._replicas = replicas

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Sum over the replicas with XLA's operation for all-reduce."""
        if reduce_op != tf.distribute.ReduceOp.SUM:
            raise ValueError(f"Only sums over the replicas are supported. Received: {reduce_op}.")
        group = tf.constant([list(range(self._replicas))])
        return tf.nest.map_structure(lambda x: gen_xla_ops.xla_all_reduce(x, group, "Add", "CrossReplica"), value)


def described(recipe: recipes.Recipe, classes: int, channels: int) -> keras.Model:
    """Return the model of a recipe. To save memory, variables of the same shape share an array of zeros."""
    model = recipes.describe_model(recipe, classes, channels)
    for variable in model.variables:
        variable._initialize(zeros(tuple(variable.shape), variable.dtype))  # no public function sets the value
    return model


@functools.cache
def zeros(shape: tuple[int, ...], dtype: str) -> tf.Tensor:
    """Return zeros. The same tensor is returned for each call with the same arguments."""
    return tf.zeros(shape, dtype)


class Programs:
    """Training steps of a TensorFlow replica, compiled by XLA. See `batch_spec` for `batch`."""

    def __init__(self, recipe: recipes.Recipe, classes: int, batch: dict[str, tf.TensorSpec], compiler: Compiler):
        self.classes, self.batch, self.compiler = classes, batch, compiler
        self._states: dict[str, TrainState] = {}

    def compile(self, recipe: recipes.Recipe, fsdp: int = 1) -> Compiled | DoesNotFit:
        """Compile the training step of a recipe that differs in its `step_plan.Setting`."""
        return self.compiler.compile_hlo(self.train_step(recipe), self.compiler.target.devices)

    def train_step(self, recipe: recipes.Recipe) -> bytes:
        """Return the training step of one replica as a serialized HLO module."""
        replicas, batch_size = self.compiler.target.devices, recipe.data.batch_size
        step = TrainStep(self.state(recipe), recipe, inputs.training_inputs(self.state(recipe).task), batch_size)
        strategy = tf.distribute.get_strategy()

        def run(batch, index, replica):
            with Replica(strategy, replica, replicas):
                return step(batch, index)

        size = batch_size // replicas
        specs = {name: tf.TensorSpec([size, *spec.shape[1:]], spec.dtype) for name, spec in self.batch.items()}
        return lower(run, specs, tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int32))

    def state(self, recipe: recipes.Recipe) -> TrainState:
        """Return the state of the recipe's model, which is reused while only the batch size changes."""
        key = repr((recipe.model, recipe.precision, recipe.task))
        if key not in self._states:
            channels = self.batch["image"].shape[-1]
            model, task = described(recipe, self.classes, channels), tasks.bind(recipe, outputs=self.classes)
            teacher.load(task, channels)
            self._states = {key: TrainState(model, recipe, task, zeros)}
        return self._states[key]


class JaxPrograms:
    """Training steps of `keras-vit train` with `KERAS_BACKEND=jax`: one program for all devices."""

    def __init__(self, recipe: recipes.Recipe, classes: int, batch: dict, compiler: Compiler):
        self.classes, self.batch, self.compiler = classes, batch, compiler

    def compile(self, recipe: recipes.Recipe, fsdp: int) -> Compiled | DoesNotFit:
        """Compile the training step of a recipe that differs in its `step_plan.Setting`."""
        from keras_vit.training.jax.devices import Devices
        from keras_vit.training.jax.step import program

        step, arguments = program(recipe, self.classes, self.batch, Devices(self.compiler.devices, fsdp))
        return self.compiler.compile(step, *arguments)


def lower(function: Callable[..., Any], *specs: Any) -> bytes:
    """Return a function of tensors or dictionaries of tensors as a serialized HLO module."""

    @tf.function(jit_compile=True)
    def flat(*tensors):
        return function(*tf.nest.pack_sequence_as(specs, tensors))

    return flat.experimental_get_compiler_ir(*tf.nest.flatten(specs))(stage="hlo_serialized")


def batch_spec(recipe: recipes.Recipe, example: dict[str, tf.TensorSpec] | None = None) -> dict[str, tf.TensorSpec]:
    """Return the specification of a training batch.

    `example` is the specification of a batch of the source. None means preprocessed color images with one label each.
    """
    if example is None:
        host = preprocess.host_function(recipe.data.pp_train)
        encoded = recipe.data.pp_train.startswith("decode")
        image = tf.TensorSpec([], tf.string) if encoded else tf.TensorSpec([None, None, 3], tf.uint8)
        fields = {"image": image, "label": tf.TensorSpec([], tf.int32)}
        outputs = tf.function(host, autograph=False).get_concrete_function(fields).structured_outputs
        example = {name: tf.TensorSpec([None, *value.shape], value.dtype) for name, value in outputs.items()}
    example = {name: example[name] for name in ("image", "label")}
    if recipe.data.mixup or recipe.data.cutmix:
        example["mix"] = tf.TensorSpec([None], tf.float32)
    draw = tasks.bind(recipe).draw
    if draw is not None:
        drawn = tf.function(lambda: draw(0, tf.constant(0), 1)).get_concrete_function().structured_outputs
        example |= {name: tf.TensorSpec([None, *value.shape[1:]], value.dtype) for name, value in drawn.items()}
    return example
