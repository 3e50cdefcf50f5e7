"""One contestant of a race, in a process of its own: `python contestants.py SYSTEM TASK MODEL BATCH PRECISION`.

Stands alone, because it also runs in environments that hold a peer and not this package. It builds the model with
random weights, prints one JSON line (`{"ready": true, ...}`), and then for each line on standard input runs one
step and prints the seconds it took. Each peer is used as its own documentation shows for this work: a compiled
function under TensorFlow, `torch.inference_mode` and scaled-dot-product attention under PyTorch.
"""

import json
import resource
import sys
import time

CLASSES = 1000
SIZE = 224
LEARNING_RATE, MOMENTUM, CLIP = 0.01, 0.9, 1.0

# name here: (keras_hub's sizes, timm's name, transformers' sizes)
MODELS = {
    "ViT-Ti/16": ((16, 192, 12, 3, 768), "vit_tiny_patch16_224"),
    "ViT-S/16": ((16, 384, 12, 6, 1536), "vit_small_patch16_224"),
    "ViT-B/32": ((32, 768, 12, 12, 3072), "vit_base_patch32_224"),
    "ViT-B/16": ((16, 768, 12, 12, 3072), "vit_base_patch16_224"),
    "ViT-L/16": ((16, 1024, 24, 16, 4096), "vit_large_patch16_224"),
    "R50+ViT-B/16": (None, "vit_base_r50_s16_224"),
    "BiT-R50x1": (None, "resnetv2_50x1_bit"),
}


def keras_vit(task, model, batch, precision):
    """This package: the model in a compiled function, or the training loop's own step."""
    import numpy as np
    import tensorflow as tf

    from keras_vit import models, recipe
    from keras_vit.training.state import TrainState
    from keras_vit.training.step import TrainStep

    network = models.create_model(model, classes=CLASSES, dtype=_keras_policy(precision))
    images, labels = _examples(np, batch)
    if task == "inference":
        return _keras_inference(network, images)
    run = recipe.Recipe(total_steps=1_000_000, precision=_keras_policy(precision))
    run.optim = recipe.Optim(name="sgd", learning_rate=LEARNING_RATE, momentum=MOMENTUM, clip_norm=CLIP)
    run.optim.schedule.name = "constant"
    step = TrainStep(
        TrainState(network, run), run, lambda batch, step, replica: (batch["image"], batch["label"]), batch
    )
    strategy = tf.distribute.get_strategy()
    example = {"image": tf.constant(images), "label": tf.one_hot(labels, CLASSES)}
    train = tf.function(lambda: strategy.run(step, args=(example, tf.constant(0, tf.int64))))
    return lambda: train().numpy()


def keras_hub(task, model, batch, precision):
    """keras-hub's ViTImageClassifier, with a compiled forward pass or `train_on_batch`."""
    import keras_hub
    import numpy as np

    patch, hidden, layers, heads, mlp = MODELS[model][0]
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(SIZE, SIZE, 3),
        patch_size=patch,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=hidden,
        mlp_dim=mlp,
        dtype=_keras_policy(precision),
    )
    network = keras_hub.models.ViTImageClassifier(
        backbone, num_classes=CLASSES, preprocessor=None, dtype=_keras_policy(precision)
    )
    return _keras_task(np, task, network, batch)


def vit_keras(task, model, batch, precision):
    """vit-keras' model, through its own constructor."""
    import numpy as np
    from vit_keras import vit

    if precision != "float32" or model not in ("ViT-B/16", "ViT-B/32", "ViT-L/16"):
        raise ValueError(f"vit-keras has no {model} in {precision}.")
    build = getattr(vit, "vit_" + model[4:].replace("/", "").lower())
    network = build(image_size=SIZE, classes=CLASSES, activation="linear", pretrained=False, pretrained_top=False)
    return _keras_task(np, task, network, batch)


def _keras_policy(precision):
    return {"float32": "float32", "bfloat16": "mixed_bfloat16"}[precision]


def _examples(np, batch):
    generator = np.random.default_rng(0)
    images = generator.uniform(-1, 1, (batch, SIZE, SIZE, 3)).astype("float32")
    return images, generator.integers(0, CLASSES, batch)


def _keras_inference(network, images):
    import tensorflow as tf

    images = tf.constant(images)
    forward = tf.function(lambda images: network(images, training=False))
    return lambda: forward(images).numpy()


def _keras_task(np, task, network, batch):
    import keras

    images, labels = _examples(np, batch)
    if task == "inference":
        return _keras_inference(network, images)
    network.compile(
        keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM, global_clipnorm=CLIP),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return lambda: network.train_on_batch(images, labels)


def timm(task, model, batch, precision):
    """The model of the same sizes that timm has."""
    import timm as library

    return _torch_task(task, library.create_model(MODELS[model][1], num_classes=CLASSES), batch, precision, lambda y: y)


def timm_compiled(task, model, batch, precision):
    """The same through `torch.compile`."""
    import timm as library
    import torch

    network = torch.compile(library.create_model(MODELS[model][1], num_classes=CLASSES))
    return _torch_task(task, network, batch, precision, lambda y: y)


def transformers(task, model, batch, precision):
    """Hugging Face's ViTForImageClassification of the same sizes."""
    from transformers import ViTConfig, ViTForImageClassification

    patch, hidden, layers, heads, mlp = MODELS[model][0]
    network = ViTForImageClassification(
        ViTConfig(
            patch_size=patch,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=mlp,
            num_labels=CLASSES,
        )
    )
    return _torch_task(task, network, batch, precision, lambda y: y.logits)


def _torch_task(task, network, batch, precision, logits_of):
    import numpy as np
    import torch

    images, labels = _examples(np, batch)
    images = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    labels = torch.from_numpy(labels)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16")
    if task == "inference":
        network.eval()
        if precision == "bfloat16":
            network, images = network.bfloat16(), images.bfloat16()

        def infer():
            with torch.inference_mode():
                return logits_of(network(images)).float().numpy()

        return infer
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def train():
        optimizer.zero_grad(set_to_none=True)
        with autocast:
            loss = torch.nn.functional.cross_entropy(logits_of(network(images)).float(), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimizer.step()
        return loss.item()

    return train


SYSTEMS = {
    function.__name__: function for function in (keras_vit, keras_hub, vit_keras, timm, timm_compiled, transformers)
}


def serve(system, task, model, batch, precision):
    """Builds the contestant and answers one line a step until standard input ends."""

    def say(**values):
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()

    try:
        step = SYSTEMS[system](task, model, int(batch), precision)
        step()  # compiles
        step()
    except Exception as error:  # whatever a peer raises is told to the race, which goes on without it
        say(ready=False, error=f"{type(error).__name__}: {error}")
        return
    say(ready=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        say(seconds=seconds, peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    serve(*sys.argv[1:])
