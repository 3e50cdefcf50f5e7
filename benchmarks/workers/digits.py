"""Seconds until a small model reaches 97% accuracy on the test digits: `digits.py SYSTEM WORK`. A step is one run.

All systems train the model of the demo: 8 x 8 pixels, patches of 2 pixels, 3 blocks of width 64, mean of the patches.
They share the demo's batch size of 128, weight decay, clipping, dropout and label smoothing, but use no augmentation.
The model is evaluated after each pass over the training images. The systems differ in the initial values, the order of
the images, and the optimizer, rate and warm-up, which are the best settings in docs/benchmarks.md. This package trains
matrices with Muon; for keras-hub, AdamW is better than `keras.optimizers.Muon`. This package evaluates moving averages
of the weights, as in the demo; `fit` does not evaluate averages. The time includes building and compiling the model.
"""

import os
import tempfile
import time
from pathlib import Path

from worker import Step, Work, serve

GOAL = 0.97
BATCH, PASSES, STEPS_A_PASS = 128, 150, 12  # 1,437 images
DECAY, CLIP, DROPOUT, SMOOTHING = 0.05, 1.0, 0.1, 0.1
RATE, WARM_UP, AVERAGE = 16e-3, 12, 0.9  # settings of this package
HUB_RATE, HUB_WARM_UP = 4e-3, 12


class Reached(Exception):
    """Raised when the target accuracy is reached."""


def keras_vit(work: Work) -> Step:
    """Return a training run with this package's loop, as in `train.main`."""
    seeds = iter(range(1_000))

    def step():
        from keras_vit import recipe as recipes
        from keras_vit.runs.checkpoints import CheckpointStore
        from keras_vit.training import create, validation
        from keras_vit.training.loop import Loop
        from keras_vit.training.run_data import RunData

        start = time.perf_counter()
        scaled = "value_range(-1, 1)"
        recipe = recipes.Recipe(
            seed=next(seeds),
            total_steps=PASSES * STEPS_A_PASS,
            log_every=STEPS_A_PASS,
            eval_every=STEPS_A_PASS,
            checkpoint_every=0,
            deterministic=False,
            label_smoothing=SMOOTHING,
            model=recipes.Model(
                "ViT-Ti/16",
                image_size=8,
                arguments={
                    "patch_size": 2,
                    "hidden_size": 64,
                    "num_layers": 3,
                    "num_heads": 4,
                    "mlp_dim": 128,
                    "pooling": "gap",
                    "dropout_rate": DROPOUT,
                },
            ),
            data=recipes.Data("digits", pp_train=scaled, pp_eval=scaled, batch_size=BATCH),
            optim=recipes.Optim(
                "muon",
                RATE,
                recipes.Schedule("cosine", warmup_steps=WARM_UP),
                momentum=0.95,
                nesterov=True,
                weight_decay=DECAY,
                weight_decay_mask=".*",
                clip_norm=CLIP,
                ema_momentum=AVERAGE,
            ),
        )
        backend = create.create(recipe, "one_device")
        data = RunData(recipe, backend)
        state = backend.create_state(recipe, data.task, 1)
        evaluate = backend.compile_evaluation(state)
        counted = []

        class Validation(validation.Validation):
            def __call__(self, step, last=False):
                for line in super().__call__(step):
                    counted.append(line["eval_accuracy"])
                    if line["eval_accuracy"] >= GOAL:
                        raise Reached
                    yield line

        class NoCheckpoints(CheckpointStore):
            def save(self, values, best=False):  # `fit` does not write checkpoints either
                pass

        with tempfile.TemporaryDirectory() as folder:
            store = NoCheckpoints(os.path.join(folder, "checkpoints"))
            evaluators = [Validation(backend, data.task, evaluate, data.eval_batches(data.eval))]
            run_steps = backend.compile_steps(state, recipe)
            try:
                Loop(recipe, backend, state, run_steps, data.train_batches, store, evaluators, folder).run()
            except Reached:
                return _answer(start, len(counted))
        raise RuntimeError(f"{GOAL:.0%} were not reached in {PASSES} passes, but {max(counted):.2%}.")

    return step


def keras_hub(work: Work) -> Step:
    """Return a training run of keras-hub's classifier with `fit`."""
    import keras
    import keras_hub
    import numpy as np

    path = Path(__file__).parents[2] / "keras_vit" / "data" / "assets" / "digits.npz"
    with np.load(path) as file:
        images, labels, is_test = file["images"], file["labels"], file["is_test"]
    images = (images.astype("float32") / 8 - 1)[..., None]  # pixel values in the file are from 0 to 16
    labels = np.eye(10, dtype="float32")[labels]
    train, test = (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])
    seeds = iter(range(1_000))

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.passes = epoch + 1
            self.model.stop_training = logs["val_accuracy"] >= GOAL

    def step():
        start = time.perf_counter()
        keras.utils.set_random_seed(next(seeds))
        backbone = keras_hub.models.ViTBackbone(
            image_shape=(8, 8, 1),
            patch_size=2,
            num_layers=3,
            num_heads=4,
            hidden_dim=64,
            mlp_dim=128,
            dropout_rate=DROPOUT,
        )
        model = keras_hub.models.ViTImageClassifier(backbone, num_classes=10, preprocessor=None, pooling="gap")
        steps = PASSES * STEPS_A_PASS
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, steps - HUB_WARM_UP, warmup_target=HUB_RATE, warmup_steps=HUB_WARM_UP
        )
        model.compile(
            keras.optimizers.AdamW(rate, weight_decay=DECAY, global_clipnorm=CLIP),
            keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=SMOOTHING),
            metrics=["accuracy"],
        )
        stop = Stop()
        history = model.fit(
            *train,
            batch_size=BATCH,
            epochs=PASSES,
            validation_data=test,
            callbacks=[stop],
            verbose=0,
        )
        if max(history.history["val_accuracy"]) < GOAL:
            raise RuntimeError(f"{GOAL:.0%} were not reached in {PASSES} passes.")
        return _answer(start, stop.passes)

    return step


def _answer(start, passes):
    return {"seconds": time.perf_counter() - start, "note": f"{passes} passes"}


if __name__ == "__main__":
    serve({"keras_vit": keras_vit, "keras_hub": keras_hub}, warm_up=0)
