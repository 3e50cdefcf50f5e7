"""Measures what the loop costs beyond the bare compiled step.

    python -m tests.training.overhead --variant=ViT-S/16 --image_size=224 --batch_size=8 --steps=10 --rounds=5

Alternates the two on the same model, batch and machine, and prints the median of the rounds' ratios.
"""

import argparse
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf

from keras_vit import distribute
from keras_vit import recipe as recipes
from keras_vit.training.checkpoints import CheckpointStore
from keras_vit.training.loop import Loop
from keras_vit.training.tf.backend import TensorFlowBackend
from keras_vit.training.tf.state import TrainState
from keras_vit.training.tf.step import TrainStep

CLASSES = 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="ViT-S/16")
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    steps = options.steps
    recipe = recipes.Recipe(
        total_steps=steps * (options.rounds + 1),
        log_every=steps,
        model=recipes.Model(variant=options.variant, image_size=options.image_size),
        data=recipes.Data(batch_size=options.batch_size),
    )
    strategy = distribute.create_strategy("one_device")
    backend = TensorFlowBackend(strategy)
    state = TrainState(recipes.create_model(recipe, CLASSES), recipe)
    images = np.random.default_rng(0).normal(size=(options.batch_size, options.image_size, options.image_size, 3))
    batch = {"image": tf.constant(images, tf.float32), "label": tf.range(options.batch_size)}

    def inputs(batch, step, replica):
        return batch["image"], tf.one_hot(batch["label"], CLASSES)

    step = TrainStep(state, recipe, inputs, options.batch_size)
    bare = tf.function(lambda index: strategy.run(step, args=(batch, index)))

    def run_bare():
        for index in range(steps):
            bare(tf.constant(index, tf.int64)).numpy()

    def batches(first):
        repeated = tf.data.Dataset.from_tensors(batch).repeat()
        return distribute.distribute_batches(strategy, lambda shard, shards: repeated)

    with tempfile.TemporaryDirectory() as directory:
        run_steps = backend.run_steps(step)
        loop = Loop(recipe, backend, state, run_steps, batches, CheckpointStore(directory), directory=directory)
        iterator = iter(batches(0))
        run_steps(iterator, 0, steps, False)  # compile
        run_bare()
        ratios = []
        for round_ in range(options.rounds):
            started = time.perf_counter()
            run_bare()
            middle = time.perf_counter()
            history, _ = run_steps(iterator, 0, steps, False)
            loop._check_finite(history, 0)
            loop._add_to_window(history)
            ratios.append((time.perf_counter() - middle) / (middle - started))
            print(f"round {round_}: bare {middle - started:.3f} s, loop over bare {ratios[-1]:.4f}")
    print(f"loop over bare step, median of {options.rounds} rounds: {statistics.median(ratios):.4f}")


if __name__ == "__main__":
    main()
