"""Runs the golden training of a masked autoencoder on virtual devices, and writes how far off it is, as JSON.

python -m tests.training.mae_trajectory
"""

import json
import sys

import numpy as np
import tensorflow as tf

from keras_vit.training.backend import METRICS
from keras_vit.training.tf.state import TrainState
from keras_vit.training.tf.step import TrainStep
from tests.training import masked
from tests.training.trajectories import error

WAYS = {"one device": (1, 1), "two replicas, accumulation 2": (2, 2)}  # replicas, micro-batches


def follow(devices, micro_batches):
    """Trains as the reference did and returns the relative errors."""
    data = masked.load()
    recipe = masked.recipe(data["meta"], accumulation_steps=micro_batches)
    names = [f"CPU:{index}" for index in range(devices)]
    strategy = tf.distribute.MirroredStrategy(names) if devices > 1 else tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        state = TrainState(masked.create_model(data["meta"]), recipe)
    orders = np.stack([masked.to_order(noise) for noise in data["traj/noise"]])
    steps, batch_size = data["traj/images"].shape[:2]
    step = TrainStep(state, recipe, lambda batch, step, replica: (batch["image"], batch["order"]), batch_size)

    @tf.function
    def run(batch, index):
        return strategy.experimental_local_results(strategy.run(step, args=(batch, index)))[0]

    def share(context, index):
        rows = np.split(np.arange(batch_size), devices)[context.replica_id_in_sync_group]
        return {"image": tf.constant(data["traj/images"][index][rows]), "order": tf.constant(orders[index][rows])}

    history = []
    for index in range(steps):
        batch = strategy.experimental_distribute_values_from_function(lambda c, i=index: share(c, i))
        history.append(run(batch, tf.constant(index, tf.int64)).numpy())
    history = dict(zip(METRICS, np.transpose(history), strict=True))
    final = {name.removeprefix("traj/final/"): value for name, value in data.items() if name.startswith("traj/final/")}
    end = masked.to_variables(final, data["meta"])
    return {
        "loss": error(history["loss"], data["traj/losses"]),
        "rate": error(history["learning_rate"], data["traj/rates"]),
        "weights": {weight.path: error(weight.numpy(), end[weight.path]) for weight in state.model.variables},
    }


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    json.dump({way: follow(*arguments) for way, arguments in WAYS.items()}, sys.stdout)


if __name__ == "__main__":
    main()
