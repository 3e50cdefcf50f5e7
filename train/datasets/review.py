"""Review of a data set by features of its images: labels that may be wrong, near duplicates, outliers."""

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import evaluators, outputs
from keras_vit.data.sources import Source
from keras_vit.evaluators.knn import nearest_neighbors
from keras_vit.inference import Predictor
from keras_vit.inference.feature_store import Arrays, FeatureStore
from keras_vit.util.values import shortest

from . import labels
from .audit import ImageReport

# Columns of the list of images. `near_duplicate` is the path of one image, in another split if possible.
COLUMNS = {
    **dict.fromkeys(("path", "label", "split"), str),
    **{"label_quality": float, "predicted": str, "probability": float, "suspicious": str},
    **{"near_duplicate": str, "near_split": str, "near_label": str, "cosine": float},
    **{"distance": float, "outlier": str},
}
Row = dict[str, Any]
Reports = dict[str, list[ImageReport]]  # of each split
NEIGHBORS = 10  # nearest neighbors of an image
NEAR = 0.1  # largest distance of near duplicates, relative to the distance between neighbors
_SIDE = 8  # of the small images that are compared in addition to the features


@dataclasses.dataclass(frozen=True)
class Review:
    """Findings about the images of a data set.

    Attributes:
        rows: Row of each readable image with the entries `COLUMNS`, the most suspicious label first. `label_quality` is
            the out-of-fold probability of the label, and `distance` the mean cosine distance to the nearest neighbors.
        class_names: Names of the classes. Empty if the labels are not classes.
        confusion: Number of images by label and out-of-fold prediction, `[C, C]`.
    """

    rows: list[Row]
    class_names: tuple[str, ...]
    confusion: np.ndarray

    @property
    def findings(self) -> dict[str, list[Row]]:
        """The rows of suspicious labels, near duplicates (a row of each pair) and outliers, most notable first."""
        key = lambda row, near="": (row[f"{near}split"], row["near_duplicate" if near else "path"])  # noqa: E731
        near = [row for row in self.rows if row["near_duplicate"]]
        pairs = list({frozenset([key(row), key(row, "near_")]): row for row in near}.values())
        outliers = [row for row in self.rows if row["outlier"]]
        return {
            "suspicious_labels": [row for row in self.rows if row["suspicious"]],
            "near_duplicates": sorted(pairs, key=lambda row: (row["split"] == row["near_split"], -row["cosine"])),
            "outliers": sorted(outliers, key=lambda row: -row["distance"]),
        }


def review(
    predictor: Predictor, given: str, sources: Mapping[str, Source], reports: Reports, folder: str | None = None
) -> Review:
    """Compute the features of all images once, and return the findings.

    Args:
        predictor: Predictor with features.
        given: Name of the data set.
        sources: Source of each split.
        reports: Reports of `audit.audit` for each split.
        folder: Folder that keeps the features for another call, or None.
    """
    context = evaluators.Context(predictor, evaluators.split_opener(32, "skip"), given)
    context.require_features()
    predictor.prepare_for_many()
    store = FeatureStore(folder, {"model": predictor.card.sha256, "preprocess": context.preprocess})
    images, columns = [], []
    for number, (split, found) in enumerate(reports.items()):
        digest = hashlib.sha256(repr([report.digest for report in found]).encode()).hexdigest()
        arrays = store.part(number, lambda split=split: _arrays(context, given, split), digest)  # type: ignore[misc]
        kept = [index for index, report in enumerate(found) if arrays["readable"][index] and not report.problem]
        images += [(split, found[index]) for index in kept]
        columns.append([arrays[name][kept] for name in ("features", "pixels")])
    first = next(iter(sources.values()))
    class_names = first.class_names if first.kind.is_exclusive else ()
    features, pixels = map(np.concatenate, zip(*columns, strict=True))
    return of_features(images, features, pixels, class_names)


def _arrays(context: evaluators.Context, given: str, split: str) -> Arrays:
    """Return whether each image of a split can be read, its features, and its pixels at a low resolution."""
    rows: dict[str, list[np.ndarray]] = {"readable": [], "features": [], "pixels": []}
    for batch in context.open_fitting(given, split, context.preprocess, outputs.LABEL_KINDS).batches:
        small = tf.image.resize(batch["image"], (_SIDE, _SIDE), "area").numpy()
        rows["readable"].append(batch["valid"] > 0)
        rows["features"].append(np.asarray(context.predictor.features(batch["image"]), np.float32))
        rows["pixels"].append(small.reshape(len(small), -1))
    return {name: np.concatenate(parts) for name, parts in rows.items()}


def of_features(
    images: Sequence[tuple[str, ImageReport]], features: np.ndarray, pixels: np.ndarray, class_names: Sequence[str]
) -> Review:
    """Return the findings about images, with split, report, features `[N, D]` and pixels `[N, P]`.

    Without class names, the labels are not reviewed. There must be at least two images, and finite features.
    """
    finite = int(np.isfinite(features).all(axis=1).sum())
    if not 2 <= finite == len(images):
        raise ValueError(f"Expected two or more images with finite features. Received: {finite} of {len(images)}.")
    pairs, distances = near_duplicates(features, pixels)
    low, high = np.quantile(distances, (0.25, 0.75))
    rows = []
    for (split, report), distance in zip(images, distances.tolist(), strict=True):
        row: Row = {**dict.fromkeys(COLUMNS), "path": path_of(report.origin), "split": split}
        row["distance"] = shortest(distance)
        row["label"] = class_names[int(report.label[0])] if class_names else None
        row["outlier"] = "yes" if distance > high + 3 * (high - low) else None  # "far out", in the words of Tukey
        rows.append(row)
    for one, other, cosine in sorted(pairs, key=lambda pair: rows[pair[0]]["split"] == rows[pair[1]]["split"]):
        for row, near in ((rows[one], rows[other]), (rows[other], rows[one])):
            if row["near_duplicate"] is None:
                row |= {"near_duplicate": near["path"], "near_split": near["split"], "near_label": near["label"]}
                row["cosine"] = shortest(cosine)
    confusion = np.zeros((len(class_names), len(class_names)), int)
    if class_names:
        numbers = np.array([int(report.label[0]) for _, report in images])
        probabilities = labels.out_of_fold(features, numbers, len(class_names))
        known = np.flatnonzero(np.isfinite(probabilities[:, 0]))
        quality = probabilities[np.arange(len(images)), numbers]  # "self-confidence"; NaN is sorted to the end
        for index, best in zip(known.tolist(), probabilities[known].argmax(axis=1).tolist(), strict=True):
            confusion[numbers[index], best] += 1
            rows[index] |= {"label_quality": shortest(quality[index]), "predicted": class_names[best]}
            rows[index]["probability"] = shortest(probabilities[index, best])
        order = np.argsort(quality, kind="stable").tolist()
        for index in order[: labels.count_wrong(probabilities[known], numbers[known])]:
            rows[index]["suspicious"] = "yes"
        rows = [rows[index] for index in order]
    return Review(rows, tuple(class_names), confusion)


def path_of(origin: str) -> str:
    """Return the absolute path of an image file, or the name of an image that is not a local file."""
    return os.path.abspath(origin) if os.path.isfile(origin) else origin


def near_duplicates(features: np.ndarray, pixels: np.ndarray) -> tuple[list[tuple[int, int, float]], np.ndarray]:
    """Find near duplicates, and measure the distance of each image to its nearest neighbors.

    The distance of a pair is the geometric mean of the cosine distances of features and of pixels, each relative to the
    median distance between neighbors, because all images of a data set may be similar in one of the two.

    Args:
        features: Features, `[N, D]`.
        pixels: Pixels of small images, `[N, P]`.

    Returns:
        Pairs of indices with the cosine similarity of the features, the most similar first; and the mean cosine
        distance of the features to the nearest neighbors, `[N]`.
    """
    count = min(NEIGHBORS, len(features) - 1)
    nearest, cosines = map(np.concatenate, zip(*nearest_neighbors(features, features, count + 1), strict=True))
    own = nearest == np.arange(len(features))[:, None]
    own[:, -1] |= ~own.any(axis=1)  # more than `count` vectors are equal
    nearest, distances = nearest[~own].reshape(-1, count), 1 - cosines[~own].reshape(-1, count).clip(max=1)
    pixels = pixels - pixels.mean(axis=1, keepdims=True)
    pixels /= np.maximum(np.linalg.norm(pixels, axis=1, keepdims=True), 1e-12)
    similar = np.stack([np.einsum("np,np->n", pixels, pixels[other]) for other in nearest.T], axis=1)  # [N, k]
    differ = 1 - similar.clip(max=1)
    scale = max(float(np.median(distances.mean(axis=1)) * np.median(differ.mean(axis=1))), 1e-12)
    found = {}
    for one, column in np.argwhere(distances * differ <= NEAR**2 * scale).tolist():
        other = int(nearest[one, column])
        found[min(one, other), max(one, other)] = 1 - float(distances[one, column])
    return sorted(((*pair, cosine) for pair, cosine in found.items()), key=lambda pair: -pair[2]), distances.mean(
        axis=1
    )
