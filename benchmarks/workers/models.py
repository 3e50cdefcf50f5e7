"""Inference and training steps of a model: `models.py SYSTEM WORK`.

Weights are random and images are noise. Each package is used according to its documentation: with a compiled function
under TensorFlow, `torch.inference_mode` and scaled-dot-product attention under PyTorch, and `train_on_batch` for Keras
models.
"""

import contextlib
from typing import Any

from worker import CLASSES, SIZES, Step, Work, keras_hub_model, keras_policy, serve

LEARNING_RATE, MOMENTUM, CLIP = 0.01, 0.9, 1.0
TIMM = {
    "ViT-Ti/16": "vit_tiny_patch16_224",
    "ViT-S/16": "vit_small_patch16_224",
    "ViT-B/16": "vit_base_patch16_224",
    "ViT-S/14": "vit_small_patch14_dinov2",
    "R50+ViT-B/16": "vit_base_r50_s16_224",
    "BiT-R50x1": "resnetv2_50x1_bit",
}


def keras_vit(work: Work) -> Step:
    """Return inference in a compiled function, or a step of this package's training loop."""
    import tensorflow as tf

    from keras_vit import create_model, recipe
    from keras_vit.training.tf.state import TrainState
    from keras_vit.training.tf.step import TrainStep

    policy = keras_policy(work)
    model = create_model(work.model, classes=CLASSES, image_size=work.image_size, dtype=policy, **work.arguments)
    images, labels = _examples(work)
    if work.task == "inference":
        return _keras_inference(model, images)
    run = recipe.Recipe(total_steps=1_000_000, precision=policy)
    run.optim = recipe.Optim(name="sgd", learning_rate=LEARNING_RATE, momentum=MOMENTUM, clip_norm=CLIP)
    run.optim.schedule.name = "constant"
    step = TrainStep(
        TrainState(model, run), run, lambda batch, step, replica: (batch["image"], batch["label"]), work.batch
    )
    strategy = tf.distribute.get_strategy()
    batch = {"image": tf.constant(images), "label": tf.one_hot(labels, CLASSES)}
    train = tf.function(lambda: strategy.run(step, args=(batch, tf.constant(0, tf.int64))), autograph=False)
    with _kernels(work.without):
        train()  # traces
    return lambda: [value.numpy() for value in tf.nest.flatten(train())]


def keras_vit_tasks(work: Work) -> Step:
    """Return a training step of this package for any task, measured by processor time.

    Other programs hardly affect the processor time. The note contains the operations per image that the planner counts.
    """
    import time

    import tensorflow as tf

    from keras_vit import recipe, tasks
    from keras_vit.training.planning import plan
    from keras_vit.training.tf.state import TrainState
    from keras_vit.training.tf.step import TrainStep

    run = recipe.Recipe(
        total_steps=1_000_000,
        precision=keras_policy(work),
        task=work.task,
        model=recipe.Model(work.model, work.image_size, arguments=work.arguments),
        optim=recipe.Optim("adamw", LEARNING_RATE),
    )
    images, labels = _examples(work)
    values: tuple = (tf.constant(images), tf.one_hot(labels, CLASSES))
    if work.task != "classification":
        task: Any = tasks.bind(run)
        values = task.values(values[0], {"image": images, **task.draw(0, 0, work.batch)})
    state = TrainState(recipe.build_model(run, CLASSES), run)
    step = TrainStep(state, run, lambda batch, step, replica: batch, work.batch)
    train = tf.function(
        lambda: tf.distribute.get_strategy().run(step, args=(values, tf.constant(0, tf.int64))), autograph=False
    )

    operations = plan.of_recipe(run, CLASSES).cost.training_flops

    def measured():
        start = time.process_time()
        tf.nest.map_structure(lambda value: value.numpy(), train())
        seconds = time.process_time() - start
        return {"seconds": seconds, "note": f"processor time; {operations / 1e9:.1f} GFLOP per image counted"}

    return measured


def _kernels(without):
    """Return a context in which all kernels except one are used."""
    if without is None:
        return contextlib.nullcontext()
    from keras_vit.layers import kernels

    return kernels.plain(without)


def keras_hub(work: Work) -> Step:
    """Return a step of keras-hub's classifier."""
    return _keras_step(work, keras_hub_model(work))


def vit_keras(work: Work) -> Step:
    """Return a step of vit-keras' model."""
    from vit_keras import vit

    if work.precision != "float32":
        raise ValueError("vit-keras has float32 models only.")
    build = getattr(vit, "vit_" + work.model[4:].replace("/", "").lower())
    untrained = {"activation": "linear", "pretrained": False, "pretrained_top": False}
    return _keras_step(work, build(image_size=work.image_size, classes=CLASSES, **untrained))


def timm(work: Work) -> Step:
    """Return a step of timm's model of the same size."""
    return _torch_step(work, _timm_model(work))


def timm_compiled(work: Work) -> Step:
    """Return a step of timm's model with `torch.compile`."""
    import torch

    return _torch_step(work, torch.compile(_timm_model(work)))


def transformers(work: Work) -> Step:
    """Return a step of Hugging Face's ViTForImageClassification of the same size."""
    from transformers import ViTConfig, ViTForImageClassification

    patch, hidden, layers, heads, mlp = SIZES[work.model]
    config = ViTConfig(
        image_size=work.image_size,
        patch_size=patch,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=mlp,
        num_labels=CLASSES,
    )
    return _torch_step(work, ViTForImageClassification(config), lambda output: output.logits)


def _examples(work):
    import numpy as np

    generator = np.random.default_rng(0)
    images = generator.uniform(-1, 1, (work.batch, work.image_size, work.image_size, 3)).astype("float32")
    return images, generator.integers(0, CLASSES, work.batch)


def _keras_inference(model, images):
    import tensorflow as tf

    images = tf.constant(images)
    forward = tf.function(lambda images: model(images, training=False), autograph=False)
    return lambda: forward(images).numpy()


def _keras_step(work, model):
    import keras

    images, labels = _examples(work)
    if work.task == "inference":
        return _keras_inference(model, images)
    model.compile(
        keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM, global_clipnorm=CLIP),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return lambda: model.train_on_batch(images, labels)


def _timm_model(work):
    import timm

    size = {"img_size": work.image_size} if work.model.startswith("ViT") else {}
    return timm.create_model(TIMM[work.model], num_classes=CLASSES, **size)


def _torch_step(work, model, logits=lambda output: output):
    import torch

    images, labels = _examples(work)
    images = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    labels = torch.from_numpy(labels)
    if work.task == "inference":
        model.eval()
        if work.precision == "bfloat16":
            model, images = model.bfloat16(), images.bfloat16()

        def infer():
            with torch.inference_mode():
                return logits(model(images)).float().numpy()

        return infer
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def train():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=work.precision == "bfloat16"):
            loss = torch.nn.functional.cross_entropy(logits(model(images)).float(), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.item()

    return train


if __name__ == "__main__":
    systems = (keras_vit, keras_vit_tasks, keras_hub, vit_keras, timm, timm_compiled, transformers)
    serve({system.__name__: system for system in systems})
