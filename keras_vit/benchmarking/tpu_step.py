"""The training step of a recipe as the program that each replica of `tf.distribute.TPUStrategy` runs.

Everything that `strategy.run` would do is in it: preprocessing on the device, mixing, forward and backward pass,
the sum over all replicas, clipping, update and averages.
"""

import dataclasses

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from keras_vit import recipe as recipes
from keras_vit.data import preprocess
from keras_vit.training import inputs, network
from keras_vit.training.state import TrainState
from keras_vit.training.step import EvalStep, TrainStep


class Replica(tf.distribute.ReplicaContext):
    """What a step sees inside of a replica of TPUStrategy, without a TPU.

    Args:
        strategy: The strategy that the variables were made under.
        index: Number of this replica, an int32 scalar tensor.
        replicas: Number of all.
    """

    def __init__(self, strategy: tf.distribute.Strategy, index: tf.Tensor, replicas: int):
        super().__init__(strategy, index)
        self._replicas = replicas

    def all_reduce(self, reduce_op, value, options=None):
        """Sums over the replicas, by the operation that XLA makes of what TPUStrategy uses for it."""
        if reduce_op != tf.distribute.ReduceOp.SUM:
            raise ValueError(f"Only sums are taken over the replicas. Received: {reduce_op}.")
        group = tf.constant([list(range(self._replicas))])
        return tf.nest.map_structure(lambda x: gen_xla_ops.xla_all_reduce(x, group, "Add", "CrossReplica"), value)


class Network:
    """The model of a recipe and what a run keeps beside it, without values.

    Args:
        recipe: The recipe.
        classes: Number of classes of its data.
        batch: Specification of a batch of any size, as the input pipeline has it; see `batch_spec`.
    """

    def __init__(self, recipe: recipes.Recipe, classes: int, batch: dict[str, tf.TensorSpec]):
        self.recipe, self.classes, self.batch = recipe, classes, batch
        model = network.create_network(recipe, classes, batch["image"].shape[-1])
        self.state = TrainState(model, recipe)

    def train_step(self, batch_size: int, replicas: int, accumulation_steps: int | None = None) -> bytes:
        """Returns the training step of one replica as a serialised HLO module.

        Args:
            batch_size: Of all replicas together.
            replicas: Their number.
            accumulation_steps: Micro-batches; None takes the recipe's.
        """
        optim = self.recipe.optim
        optim = dataclasses.replace(optim, accumulation_steps=accumulation_steps or optim.accumulation_steps)
        recipe = dataclasses.replace(self.recipe, optim=optim)
        step = TrainStep(self.state, recipe, inputs.training_inputs(recipe, self.classes), batch_size)
        strategy = tf.distribute.get_strategy()

        def run(batch, index, replica):
            with Replica(strategy, replica, replicas):
                return step(batch, index)

        specs = {name: _with_size(spec, batch_size // replicas) for name, spec in self.batch.items()}
        return lower(run, specs, tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int32))

    def eval_step(self, batch_size: int, replicas: int, confusion: bool = False) -> bytes:
        """Returns the evaluation step of one replica as a serialised HLO module."""
        step = EvalStep(self.state, self.recipe, inputs.evaluation_inputs(self.recipe, self.classes), confusion)
        size = batch_size // replicas
        specs = {name: _with_size(spec, size) for name, spec in self.batch.items() if name != "mix"}
        return lower(step, {**specs, "mask": tf.TensorSpec([size], tf.float32)})


def lower(function, *specs) -> bytes:
    """Returns the program of a function of tensors, or dictionaries of them, as a serialised HLO module."""

    @tf.function(jit_compile=True)
    def flat(*tensors):
        return function(*tf.nest.pack_sequence_as(specs, tensors))

    return flat.experimental_get_compiler_ir(*tf.nest.flatten(specs))(stage="hlo_serialized")


def batch_spec(recipe: recipes.Recipe, example: dict[str, tf.TensorSpec] | None = None) -> dict[str, tf.TensorSpec]:
    """Returns what a training batch consists of, in the recipe's own pipeline.

    Args:
        recipe: The recipe.
        example: Specification of a batch of the recipe's source; None follows the preprocessing of a colour picture
            with one label.
    """
    if example is None:
        host = preprocess.host_function(recipe.data.pp_train)
        encoded = recipe.data.pp_train.startswith("decode")
        picture = tf.TensorSpec([], tf.string) if encoded else tf.TensorSpec([None, None, 3], tf.uint8)
        fields = {"image": picture, "label": tf.TensorSpec([], tf.int32)}
        outputs = tf.function(host, autograph=False).get_concrete_function(fields).structured_outputs
        example = {name: tf.TensorSpec([None, *value.shape], value.dtype) for name, value in outputs.items()}
    example = {name: example[name] for name in ("image", "label")}
    if recipe.data.mixup or recipe.data.cutmix:
        example["mix"] = tf.TensorSpec([None], tf.float32)
    return example


def _with_size(spec: tf.TensorSpec, size: int) -> tf.TensorSpec:
    return tf.TensorSpec([size, *spec.shape[1:]], spec.dtype)
