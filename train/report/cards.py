"""Images of a report with their predictions, attention maps, relevance and occlusion maps."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_vit import outputs
from keras_vit.evaluators import segmentation
from keras_vit.inference.masks import overlay, palette
from keras_vit.inspection.attention import attention_maps, rollout_step
from keras_vit.inspection.examples import Example
from keras_vit.inspection.occlusion import occlusion_sensitivity
from keras_vit.inspection.relevance import gradient_attention
from keras_vit.util.formatting import percent
from keras_vit.util.metrics import is_correct, segmentation_scores
from keras_vit.util.progress import track

from ._images import ImageCard, View

_TOP = 5
_OCCLUSION_GRID = 8
_BY_LAYER = "Attention of the token that the output reads, in this layer."


def image_cards(
    examples: Sequence[Example],
    predict: Callable[[np.ndarray], np.ndarray] | None,
    class_names: Sequence[str],
    model: keras.Model | None,
) -> tuple[list[ImageCard], list[View]]:
    """Return the images with predictions and maps, and the kinds of maps.

    Pass `model=None` for a model without attention.
    """
    cards: list[ImageCard] = []
    views: list[View] = []
    for example in track(examples, "Maps of images"):
        predictions: list[tuple[str, float]] = []
        best: int | None = None
        if predict is not None:
            probabilities = np.asarray(predict(example.image[None]))[0]
            order = np.argsort(-probabilities, kind="stable")[:_TOP].tolist()
            predictions = [(str(class_names[index]), float(probabilities[index])) for index in order]
            best = order[0]
        maps: dict[str, np.ndarray] = {}
        if model is not None:
            maps, views = _attention_maps(model, example, best)
        elif predict is not None and best is not None:
            maps, views = _prediction_maps(predict, example, best)
        truth, correct = _truth(example.label, best, class_names)
        card = ImageCard(example.name, example.pixels, predictions, maps, truth, correct, values=example.values)
        cards.append(dataclasses.replace(card, **_mask_fields(example, class_names)))
    return cards, views


def _mask_fields(example: Example, class_names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of an `ImageCard` that show masks, or an empty dictionary if no mask was predicted."""
    found = [mask for mask in (example.predicted, example.mask) if mask is not None]
    if example.predicted is None:
        return {}
    shown = outputs.Masks().parts(example.predicted, class_names)
    colors = dict(zip(class_names, palette(len(class_names)).tolist(), strict=True))
    fields = {"predictions": shown, "colors": [colors[name] for name, _ in shown]}
    fields["overlays"] = list(
        zip(("predicted", "true"), (overlay(example.pixels, mask) for mask in found), strict=False)
    )
    if example.mask is not None:
        confusion = segmentation.count(example.mask, example.predicted, len(class_names))
        scores = segmentation_scores(confusion, example.ignore)
        fields["note"] = f"mIoU {percent(scores['miou'])}"
    return fields


def _truth(label: Any, best: int | None, class_names: Sequence[str]) -> tuple[str | None, bool | None]:
    """Return the name or names of the true classes, and whether the prediction is correct."""
    if label is None:
        return None, None
    correct = None if best is None else bool(is_correct(np.array([best]), np.asarray(label)[None])[0])
    if np.ndim(label) == 0:
        return str(class_names[int(label)]), correct
    names = ", ".join(str(class_names[index]) for index in np.flatnonzero(label).tolist())
    return names or "none", correct


def _attention_maps(
    model: keras.Model, example: Example, class_index: int | None
) -> tuple[dict[str, np.ndarray], list[View]]:
    """Return maps of rollout, relevance, and attention by layer and head."""
    found = attention_maps(model, example.image[None])
    names = tuple(f"{number}: {name}" for number, name in enumerate(found, start=1))
    rollouts: list[np.ndarray] = []
    rollout: Any = None  # float64 [1, N, N] after the first block
    for name, weights in found.items():
        if name == found.pooling:
            rollouts.append(found.output_grid(rollout)[0])
            continue
        rollout = rollout_step(rollout, weights)  # [1, N, N]
        rollouts.append(found.layout.to_grid(found.layout.output_row(rollout))[0])
    layers = [grids[0] for grids in found.grids().values()]  # [H, h, w] each
    means = [grids.mean(axis=0, keepdims=True) for grids in layers]
    if len({len(grids) for grids in layers}) == 1:  # show each head only if all layers have the same number of heads
        means = [np.concatenate(pair) for pair in zip(means, layers, strict=True)]
    maps = {"rollout": np.stack(rollouts)[:, None], "layers": np.stack(means)}
    views = [
        View(
            "rollout",
            "Attention rollout",
            "Share of each patch in the output, following attention from the first layer to this layer.",
            tuple(f"1 to {name}" for name in names),
        ),
        View("layers", "Attention by layer", _BY_LAYER, names, maps["layers"].shape[1] - 1),
    ]
    if class_index is None:
        return maps, views
    try:
        maps["relevance"] = gradient_attention(model, example.image[None], class_index)[:, None]
    except NotImplementedError as error:  # a backend without gradients of functions
        logging.info("No class-specific relevance: %s", error)
        return maps, views
    help_text = "Patches that raise the score of the predicted class."
    views.insert(1, View("relevance", "Relevance for the prediction", help_text, ("all layers",)))
    return maps, views


def _prediction_maps(
    predict: Callable[[np.ndarray], np.ndarray], example: Example, class_index: int
) -> tuple[dict[str, np.ndarray], list[View]]:
    """Return occlusion maps, and attention maps if the model was exported with attention."""
    maps = {"occlusion": occlusion_sensitivity(predict, example.image, class_index, grid=_OCCLUSION_GRID)[None, None]}
    help_text = "How much the probability of the predicted class drops when this part of the image is covered."
    views = [View("occlusion", "Occlusion", help_text, ("whole model",))]
    if example.attention is not None:
        maps["layers"] = example.attention[:, None]
        names = tuple(f"block {number}" for number in range(1, len(example.attention) + 1))
        views.append(View("layers", "Attention by layer", _BY_LAYER, names))
    return maps, views
