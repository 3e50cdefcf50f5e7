"""Synthetic data and predictors for tests of evaluators: arrays, and functions of them."""

import types

import numpy as np

from keras_vit import evaluators, outputs


def batches_of(images, labels, size=8):
    """Full batches; the last is filled with rows of valid 0, as the pipeline does it."""
    for start in range(0, len(images), size):
        image, label = images[start : start + size], labels[start : start + size]
        missing = size - len(image)
        yield {
            "image": np.pad(image, ((0, missing), (0, 0))),
            "label": np.pad(label, ((0, missing),) + ((0, 0),) * (label.ndim - 1)),
            "valid": np.repeat([1.0, 0.0], [len(image), missing]),
        }


class Data:
    """An `open_split` of synthetic data that records its calls."""

    def __init__(self, num_classes=3, count=45, **splits):
        rng = np.random.default_rng(0)
        labels = np.arange(count) % num_classes
        images = np.eye(num_classes)[labels] + 0.3 * rng.normal(size=(count, num_classes))
        self.content = {"train": (images, labels), "test": (images[:20], labels[:20]), **splits}
        self.num_classes, self.asked = num_classes, []

    def __call__(self, source, split, pp):
        self.asked.append((source, split, pp))
        if source.startswith("missing"):
            raise FileNotFoundError(f"{source} is not here.")
        images, labels = self.content[split]
        return evaluators.EvaluationData(list(batches_of(images, labels)), self.num_classes)


def predictor(**changes):
    """A predictor whose images are its features."""
    card = {"output": "softmax", "preprocess": "value_range", "image_shape": (3,), "data": {}, "values": {}}
    card |= {name: changes.pop(name) for name in card if name in changes}
    card["kind"] = outputs.of(card["output"])
    arguments = {
        "scores": lambda images: 5.0 * images,
        "predict": lambda images: images,
        "features": lambda images: images,
        "scores_are": "logits",
        "features_unavailable": None,
        "class_names": (),
        **changes,
    }
    return types.SimpleNamespace(card=types.SimpleNamespace(**card), **arguments)


def context(open_split, **changes):
    """The predictor with its data."""
    return evaluators.Context(predictor(**changes), open_split, "made-up", "train", "test")


def of_values(predicted, true, names=("age",), known=None, size=8, **changes):
    """A model of the values `known`, whose images are its predictions, with data of the values `names`, `[N, k]`."""
    batches = list(batches_of(np.asarray(predicted), np.asarray(true), size))
    split = evaluators.EvaluationData(batches, 0, "values", value_names=names)
    shape = {"image_shape": np.shape(predicted)[1:], "output": "values"}
    return context(lambda *_: split, **{**shape, "values": {"names": list(known or names)}, **changes})
