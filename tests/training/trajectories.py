"""The golden trajectories, followed on one and on several devices. `virtual_devices.py` has a process with devices."""

import functools

import numpy as np
import tensorflow as tf

from keras_vit.training.tf.state import TrainState
from keras_vit.training.tf.step import TrainStep
from tests.training import reference

NAMES = ("traj_sgd_float32", "traj_sgd_bfloat16", "traj_adamw")
WAYS = {  # name: devices of the process, replicas, micro-batches, XLA
    "one device": (2, 1, 1),
    "accumulation 2": (2, 1, 2),
    "2 mirrored": (2, 2, 1),
    "2 mirrored, accumulation 2": (2, 2, 2),
    "2 mirrored, accumulation 2, XLA": (2, 2, 2, True),
    "4 mirrored": (4, 4, 1),
}
CASES = [  # each optimizer on several devices, and each way at least once
    ("traj_sgd_float32", "one device"),
    ("traj_sgd_float32", "2 mirrored, accumulation 2"),
    ("traj_sgd_float32", "2 mirrored, accumulation 2, XLA"),
    ("traj_sgd_bfloat16", "2 mirrored"),
    ("traj_adamw", "accumulation 2"),
    ("traj_adamw", "2 mirrored"),
    *((name, "4 mirrored") for name in NAMES),  # `make test-all`
]
BATCH = 8


@functools.cache
def strategy_on(devices):
    """One for the whole process: each would number its collective operations from the same number on."""
    names = [f"CPU:{index}" for index in range(devices)]
    return tf.distribute.MirroredStrategy(names) if devices > 1 else tf.distribute.OneDeviceStrategy("CPU:0")


def follow(name, devices, micro_batches, xla=False):
    """Trains as the reference did and returns the relative errors, and how often the step was traced."""
    data, start, end, averages = reference.load(name)
    recipe = reference.recipe(data["meta"], accumulation_steps=micro_batches)
    strategy = strategy_on(devices)
    with strategy.scope():
        model = reference.create_model(data["meta"])
        reference.assign(model, start)
        state = TrainState(model, recipe)

    def inputs(batch, step, replica):
        return batch["image"], tf.one_hot(batch["label"], data["meta"]["classes"])

    step = TrainStep(state, recipe, inputs, BATCH, xla)

    @tf.function(autograph=False)
    def run(batch, index):
        values = strategy.run(step, args=(batch, index))
        return {name: strategy.experimental_local_results(value)[0] for name, value in values.items()}

    def share(context, index):
        rows = np.split(np.arange(BATCH), devices)[context.replica_id_in_sync_group]
        return {"image": tf.constant(data["images"][index][rows]), "label": tf.constant(data["labels"][index][rows])}

    history = []
    for index in range(len(data["losses"])):
        batch = strategy.experimental_distribute_values_from_function(lambda c, i=index: share(c, i))
        history.append({name: value.numpy() for name, value in run(batch, tf.constant(index, tf.int64)).items()})
    history = {name: np.array([values[name] for values in history]) for name in history[0]}
    errors = {"loss": error(history["loss"], data["losses"]), "rate": error(history["learning_rate"], data["lrs"])}
    if "grad_norms" in data:
        errors["norm"] = error(history["grad_norm"], data["grad_norms"])
    errors["weights"] = {weight.path: error(weight.numpy(), end[weight.path]) for weight in state.trained}
    errors["averages"] = {
        weight.path: error(average.numpy(), averages[weight.path]) for weight, average in state.averaged()
    }
    errors["traces"] = run.experimental_get_tracing_count()
    return errors


def error(got, expected):
    """Largest error in units of rtol: |got - expected| / (|expected| + 1e-2), the second term as atol = 1e-2 * rtol."""
    expected = np.reshape(expected, np.shape(got))
    return float(np.max(np.abs(got - expected) / (np.abs(expected) + 1e-2)))
