"""Runs the golden trajectories on virtual devices in a process of its own, and writes how far off each is, as JSON.

    python -m tests.training.trajectories 2

The number is that of virtual devices: TensorFlow's collective operations do not allow groups of two sizes in a process.
"""

import json
import sys

import numpy as np
import tensorflow as tf

from keras_vit.training.backend import METRICS
from keras_vit.training.tf.state import TrainState
from keras_vit.training.tf.step import TrainStep
from tests.training import reference

NAMES = ("traj_sgd_float32", "traj_sgd_bfloat16", "traj_adamw")
WAYS = {  # name: devices of the process, replicas, micro-batches
    "one device": (2, 1, 1),
    "accumulation 2": (2, 1, 2),
    "2 mirrored": (2, 2, 1),
    "2 mirrored, accumulation 2": (2, 2, 2),
    "4 mirrored": (4, 4, 1),
}
CASES = [  # bfloat16 and the combination of ways where they can tell something new
    (name, way)
    for name in NAMES
    for way in WAYS
    if name == "traj_sgd_float32"
    or (way != "2 mirrored, accumulation 2" and (name == "traj_adamw" or way in ("one device", "4 mirrored")))
]
BATCH = 8


def follow(name, devices, micro_batches):
    """Trains as the reference did and returns the relative errors, and how often the step was traced."""
    data, start, end, averages = reference.load(name)
    recipe = reference.recipe(data["meta"], accumulation_steps=micro_batches)
    names = [f"CPU:{index}" for index in range(devices)]
    strategy = tf.distribute.MirroredStrategy(names) if devices > 1 else tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = reference.create_model(data["meta"])
        reference.assign(model, start)
        state = TrainState(model, recipe)

    def inputs(batch, step, replica):
        return batch["image"], tf.one_hot(batch["label"], data["meta"]["classes"])

    step = TrainStep(state, recipe, inputs, BATCH)

    @tf.function
    def run(batch, index):
        return strategy.experimental_local_results(strategy.run(step, args=(batch, index)))[0]

    def share(context, index):
        rows = np.split(np.arange(BATCH), devices)[context.replica_id_in_sync_group]
        return {"image": tf.constant(data["images"][index][rows]), "label": tf.constant(data["labels"][index][rows])}

    history = []
    for index in range(len(data["losses"])):
        batch = strategy.experimental_distribute_values_from_function(lambda c, i=index: share(c, i))
        history.append(run(batch, tf.constant(index, tf.int64)).numpy())
    history = dict(zip(METRICS, np.transpose(history), strict=True))

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


def main():
    devices = int(sys.argv[1])
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    cases = [case for case in CASES if WAYS[case[1]][0] == devices]
    json.dump({f"{name}, {way}": follow(name, *WAYS[way][1:]) for name, way in cases}, sys.stdout)


if __name__ == "__main__":
    main()
