"""A toy problem for the loop: a few weights, batches computed from the step, every kind of randomness."""

import keras
import numpy as np
import tensorflow as tf

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.runs.checkpoints import CheckpointStore
from keras_vit.training import distribute
from keras_vit.training.loop import Loop
from keras_vit.training.tf.backend import TensorFlowBackend
from keras_vit.training.tf.state import TrainState
from keras_vit.training.tf.step import TrainStep, evaluate, run_steps
from keras_vit.training.validation import Validation

CLASSES, FEATURES, BATCH = 3, 5, 8


def recipe(total_steps=10, **fields):
    optim = {"learning_rate": 0.05, "schedule": recipes.Schedule(warmup_steps=2), "ema_momentum": 0.8}
    optim |= fields.pop("optim", {})
    fields = {"log_every": 2, "eval_every": 4, "checkpoint_every": 3, "seed": 1, **fields}
    return recipes.Recipe(
        total_steps=total_steps,
        data=recipes.Data(batch_size=BATCH, eval_split="toy"),
        optim=recipes.Optim(**optim),
        **fields,
    )


def network(dropout=0.3, seed=0):
    keras.utils.set_random_seed(seed)
    images = keras.Input((FEATURES,), name="images")
    x = keras.layers.Dense(6, activation="tanh", name="hidden")(images)
    x = keras.layers.Dropout(dropout, name="dropout")(x)
    return keras.Model(images, keras.layers.Dense(CLASSES, name="head")(x))


def batch_of(step):
    """Images and labels that are a function of the step, as real training data are."""
    numbers = tf.random.stateless_uniform([BATCH, FEATURES], [7, tf.cast(step, tf.int32)], -1.0, 1.0)
    return {"image": numbers, "label": tf.cast(tf.argmax(numbers[:, :CLASSES], axis=-1), tf.int32)}


def batches(strategy, first):
    def of_worker(shard, shards):
        return tf.data.Dataset.range(first, 10**6).map(batch_of)

    return distribute.distribute_batches(strategy, of_worker)


def one_hot(batch, *_):
    return batch["image"], tf.one_hot(batch["label"], CLASSES)


class Trainer:
    """Everything that a run needs, as `train.main` makes it; `run()` starts or resumes in `directory`.

    Checkpoints are written in the background, as with an accelerator; complete runs on this CPU write them at once.
    """

    def __init__(self, directory, recipe, bad_step=None, strategy=None, background=True):
        self.directory, self.recipe = str(directory), recipe
        self.strategy = strategy or distribute.create_strategy("one_device")
        self.backend = TensorFlowBackend(self.strategy)
        with self.strategy.scope():
            self.model = network()
            self.state = TrainState(self.model, recipe)
        self.store = CheckpointStore(f"{directory}/checkpoints", recipe.keep_checkpoints, background=background)
        self.restored = restore(self.store, self.state)

        def inputs(batch, step, replica):
            images, labels = one_hot(batch)
            if bad_step is not None:
                images = tf.where(tf.equal(step, bad_step), np.nan, images)
            return images, labels

        self.step = TrainStep(self.state, recipe, inputs, BATCH)
        examples = batch_of(-1)
        mask = tf.constant([1.0] * 5 + [0.0] * 3)
        dataset = tf.data.Dataset.from_tensors({**examples, "valid": mask})
        task = tasks.bind(recipe, outputs=CLASSES)
        step = tasks.evaluation(task, self.state.model, one_hot)
        self.validation = Validation(
            self.backend,
            task,
            evaluate(self.strategy, lambda batch: step(self.state.evaluated(), batch)),
            self.strategy.experimental_distribute_dataset(dataset),
        )
        self.loop = Loop(
            recipe,
            self.backend,
            self.state,
            run_steps(self.strategy, self.step),
            lambda first: batches(self.strategy, first),
            self.store,
            [self.validation],
            self.directory,
        )

    def run(self):
        return self.loop.run()

    def everything(self):
        """All arrays of the state by name."""
        return dict(self.state.values())


def restore(store, state):
    """Restores a state as `train.main` does; returns its step, or None."""
    values = store.restore(state.specs())
    if values is None:
        return None
    state.assign(values)
    return state.progress.step


def assert_same(first, second):
    """Two states agree in every bit."""
    assert set(first) == set(second)
    for name in first:
        assert np.asarray(first[name]).tobytes() == np.asarray(second[name]).tobytes(), name
