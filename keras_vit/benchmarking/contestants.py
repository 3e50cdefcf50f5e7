"""One contestant of a race, in a process of its own: `python contestants.py SYSTEM WORK`, with WORK as JSON.

Stands alone, because it also runs in environments that hold a peer and not this package. It builds the model with
random weights, prints one JSON line (`{"ready": true, ...}`), and then for each line on standard input runs one
step and prints the seconds it took. Each peer is used as its own documentation shows for this work: a compiled
function under TensorFlow, `torch.inference_mode` and scaled-dot-product attention under PyTorch.

WORK has the fields of `Work`, such as `{"task": "training", "model": "ViT-B/16", "batch": 8}`.
"""

import dataclasses
import importlib
import importlib.metadata
import json
import resource
import sys
import time

CLASSES = 1000
LEARNING_RATE, MOMENTUM, CLIP = 0.01, 0.9, 1.0
PACKAGES = (
    *("keras", "tensorflow", "tensorflow-cpu", "jax", "numpy", "ai-edge-litert"),
    *("keras-hub", "vit-keras", "torch", "timm", "transformers"),
)

# What a system loads before it does anything, so that its memory can be told from that of the libraries.
IMPORTS = {
    "keras_vit": ("tensorflow", "keras_vit"),
    "keras_hub": ("tensorflow", "keras_hub"),
    "vit_keras": ("tensorflow", "vit_keras"),
    "timm": ("timm",),
    "timm_compiled": ("timm",),
    "transformers": ("torch", "transformers"),
}

# name here: (keras_hub's sizes, timm's name)
MODELS = {
    "ViT-Ti/16": ((16, 192, 12, 3, 768), "vit_tiny_patch16_224"),
    "ViT-S/16": ((16, 384, 12, 6, 1536), "vit_small_patch16_224"),
    "ViT-B/32": ((32, 768, 12, 12, 3072), "vit_base_patch32_224"),
    "ViT-B/16": ((16, 768, 12, 12, 3072), "vit_base_patch16_224"),
    "ViT-L/16": ((16, 1024, 24, 16, 4096), "vit_large_patch16_224"),
    "R50+ViT-B/16": (None, "vit_base_r50_s16_224"),
    "BiT-R50x1": (None, "resnetv2_50x1_bit"),
}


@dataclasses.dataclass(frozen=True)
class Work:
    """What a step is.

    Attributes:
        task: `"inference"` or `"training"`.
        model: A key of `MODELS`.
        batch: Images a step.
        precision: `"float32"` or `"bfloat16"`.
        image_size: Height and width of the images.
        arguments: Further arguments of this package's model.
    """

    task: str = "inference"
    model: str = "ViT-B/16"
    batch: int = 1
    precision: str = "float32"
    image_size: int = 224
    arguments: dict = dataclasses.field(default_factory=dict)


def keras_vit(work):
    """This package: the model in a compiled function, or the training loop's own step."""
    import numpy as np
    import tensorflow as tf

    from keras_vit import models, recipe
    from keras_vit.training.tf.state import TrainState
    from keras_vit.training.tf.step import TrainStep

    policy = _keras_policy(work)
    network = models.create_model(
        work.model, classes=CLASSES, image_size=work.image_size, dtype=policy, **work.arguments
    )
    images, labels = _examples(np, work)
    if work.task == "inference":
        return _keras_inference(network, images)
    run = recipe.Recipe(total_steps=1_000_000, precision=policy)
    run.optim = recipe.Optim(name="sgd", learning_rate=LEARNING_RATE, momentum=MOMENTUM, clip_norm=CLIP)
    run.optim.schedule.name = "constant"
    step = TrainStep(
        TrainState(network, run), run, lambda batch, step, replica: (batch["image"], batch["label"]), work.batch
    )
    strategy = tf.distribute.get_strategy()
    example = {"image": tf.constant(images), "label": tf.one_hot(labels, CLASSES)}
    train = tf.function(lambda: strategy.run(step, args=(example, tf.constant(0, tf.int64))))
    return lambda: train().numpy()


def keras_hub_network(work):
    """keras-hub's ViTImageClassifier of the same sizes, with random weights."""
    import keras_hub

    patch, hidden, layers, heads, mlp = MODELS[work.model][0]
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(work.image_size, work.image_size, 3),
        patch_size=patch,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=hidden,
        mlp_dim=mlp,
        dtype=_keras_policy(work),
    )
    return keras_hub.models.ViTImageClassifier(
        backbone, num_classes=CLASSES, preprocessor=None, dtype=_keras_policy(work)
    )


def keras_hub(work):
    """keras-hub's classifier, with a compiled forward pass or `train_on_batch`."""
    import numpy as np

    return _keras_task(np, work, keras_hub_network(work))


def vit_keras(work):
    """vit-keras' model, through its own constructor."""
    import numpy as np
    from vit_keras import vit

    if work.precision != "float32" or work.model not in ("ViT-B/16", "ViT-B/32", "ViT-L/16"):
        raise ValueError(f"vit-keras has no {work.model} in {work.precision}.")
    build = getattr(vit, "vit_" + work.model[4:].replace("/", "").lower())
    network = build(
        image_size=work.image_size, classes=CLASSES, activation="linear", pretrained=False, pretrained_top=False
    )
    return _keras_task(np, work, network)


def _keras_policy(work):
    """Inference has its weights in bfloat16, too; training keeps them in float32. The same holds under PyTorch."""
    if work.precision == "bfloat16" and work.task == "training":
        return "mixed_bfloat16"
    return work.precision


def _examples(np, work):
    generator = np.random.default_rng(0)
    images = generator.uniform(-1, 1, (work.batch, work.image_size, work.image_size, 3)).astype("float32")
    return images, generator.integers(0, CLASSES, work.batch)


def _keras_inference(network, images):
    import tensorflow as tf

    images = tf.constant(images)
    forward = tf.function(lambda images: network(images, training=False))
    return lambda: forward(images).numpy()


def _keras_task(np, work, network):
    import keras

    images, labels = _examples(np, work)
    if work.task == "inference":
        return _keras_inference(network, images)
    network.compile(
        keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM, global_clipnorm=CLIP),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return lambda: network.train_on_batch(images, labels)


def _timm_network(work):
    import timm as library

    size = {} if work.image_size == 224 or not work.model.startswith("ViT") else {"img_size": work.image_size}
    return library.create_model(MODELS[work.model][1], num_classes=CLASSES, **size)


def timm(work):
    """The model of the same sizes that timm has."""
    return _torch_task(work, _timm_network(work), lambda y: y)


def timm_compiled(work):
    """The same through `torch.compile`."""
    import torch

    return _torch_task(work, torch.compile(_timm_network(work)), lambda y: y)


def transformers(work):
    """Hugging Face's ViTForImageClassification of the same sizes."""
    from transformers import ViTConfig, ViTForImageClassification

    patch, hidden, layers, heads, mlp = MODELS[work.model][0]
    network = ViTForImageClassification(
        ViTConfig(
            image_size=work.image_size,
            patch_size=patch,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=mlp,
            num_labels=CLASSES,
        )
    )
    return _torch_task(work, network, lambda y: y.logits)


def _torch_task(work, network, logits_of):
    import numpy as np
    import torch

    images, labels = _examples(np, work)
    images = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    labels = torch.from_numpy(labels)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=work.precision == "bfloat16")
    if work.task == "inference":
        network.eval()
        if work.precision == "bfloat16":
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


def serve(systems, name, work):
    """Builds a contestant and answers one line a step until standard input ends.

    Args:
        systems: Dictionary from a name to a function of the work that returns a step: a function without arguments,
            whose seconds are taken unless it returns a dictionary that has them.
        name: Which of them to serve.
        work: What to do, as the functions take it.
    """

    def say(**values):
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()

    try:
        for library in IMPORTS.get(name, ()):
            importlib.import_module(library)
        libraries = _peak_bytes()
        step = systems[name](work)
    except Exception as error:  # whatever a peer raises is told to the race, which goes on without it
        say(error=f"{type(error).__name__}: {error}", versions=versions())
        return
    say(ready=True, versions=versions())
    for _ in sys.stdin:
        try:
            start = time.perf_counter()
            answer = step()
            seconds = time.perf_counter() - start
        except Exception as error:  # the same
            say(error=f"{type(error).__name__}: {error}")
            return
        memory = {"peak_bytes": _peak_bytes(), "library_bytes": libraries}
        say(**{"seconds": seconds, **memory, **(answer if isinstance(answer, dict) else {})})


def _peak_bytes():
    """The most memory this process has held so far."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # not Linux, whose ru_maxrss starts at what the process that started us held
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def versions():
    """Returns the versions of those of `PACKAGES` that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def warmed(function):
    """Returns `function`, whose step has run twice: it is compiled then, and its buffers are there."""

    def build(work):
        step = function(work)
        step()
        step()
        return step

    return build


if __name__ == "__main__":
    warm = {name: warmed(function) for name, function in SYSTEMS.items()}
    serve(warm, sys.argv[1], Work(**json.loads(sys.argv[2])))
