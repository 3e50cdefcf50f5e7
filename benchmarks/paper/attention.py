"""Filters, position embeddings and attention of trained models: figures 6 and 7."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from benchmarks.paper import positions
from benchmarks.paper.panel import Panel, Rows
from benchmarks.paper.statements import Statement
from benchmarks.paper.study import Study, is_finished
from keras_vit import data, inspection
from keras_vit.inspection import plots
from keras_vit.models.config import pair
from keras_vit.runs import load_run

IMAGES, SHOWN = 64, 8


class Found(NamedTuple):
    """Measurements of a model.

    Attributes:
        filters: Principal components of the patch embedding.
        similarity: Cosine similarity of position embeddings, `[h, w, h, w]`.
        distances: Attention distance of each head in pixels, `[layers, heads]`.
        overlays: Attention rollout on the first images, `[n, h, w]`.
    """

    filters: np.ndarray
    similarity: np.ndarray
    distances: np.ndarray
    overlays: np.ndarray

    @property
    def near_and_far(self) -> tuple[float, float]:
        """Mean similarity of positions in the same row or column, and mean similarity of all other positions."""
        height, width = self.similarity.shape[:2]
        y, x = np.mgrid[:height, :width].reshape(2, -1)
        matrix = self.similarity.reshape(height * width, -1)
        same = (y[:, None] == y) | (x[:, None] == x)
        other = ~same
        np.fill_diagonal(same, False)
        return float(matrix[same].mean()), float(matrix[other].mean())


def examples(study: Study) -> tuple[np.ndarray, np.ndarray]:
    """Return test images, once as stored and once preprocessed for the models."""
    source: Any = data.open_source(study.source, split=f"test[:{IMAGES}]")
    return source.images, source.images.astype(np.float32) / 127.5 - 1


def measure(study: Study) -> list[Found]:
    """Measure the finished models, one per seed."""
    return [_measure(study, path) for path in study.runs(positions.train_1d(study)) if is_finished(path)]


@functools.cache
def _measure(study: Study, path: str) -> Found:
    images = examples(study)[1]
    model = load_run(path).model
    maps = inspection.attention_maps(model, images[:SHOWN])
    return Found(
        inspection.embedding_filters(model, k=min(14, math.prod(pair(model.config.patch_size)))),
        inspection.position_similarity(model),
        inspection.attention_distance(model, images),
        maps.output_grid(inspection.attention_rollout(maps)),
    )


def _table(study: Study) -> Rows:
    found = measure(study)
    layers = len(found[0].distances) if found else 0
    rows = [
        [
            str(seed),
            *(f"{layer.mean():.2f}" for layer in one.distances),
            *(f"{value:.2f}" for value in one.near_and_far),
        ]
        for seed, one in enumerate(found)
    ]
    blocks = [f"attention distance, block {index + 1}:" for index in range(layers)]
    return ["seed", *blocks, "similarity in row and column:", "elsewhere:"], rows


def _draw(study: Study) -> dict[str, Any]:
    found = measure(study)
    if not found:
        return {}
    first, (images, _) = found[0], examples(study)
    return {
        "filters": plots.embedding_filters(first.filters, ""),
        "similarity": plots.position_similarity(first.similarity, ""),
        "distance": plots.attention_distance(first.distances, "", num_images=IMAGES),
        "attention": plots.attention_overlays(list(images[:SHOWN]), {"rollout": list(first.overlays)}),
    }


def _statements(study: Study) -> list[Statement]:
    found = measure(study)
    near, far = (float(np.mean(values)) for values in zip(*(one.near_and_far for one in found), strict=True))
    means = np.mean([one.distances.mean(axis=1) for one in found], axis=0)  # [layers]
    widest = float(np.mean([one.distances[0].max() for one in found]))
    return [
        Statement(
            f"Position embeddings are more similar within a row or column than elsewhere: a cosine of {near:.2f} and "
            f"{far:.2f}",
            all(one.near_and_far[0] > one.near_and_far[1] for one in found),
        ),
        Statement(
            f"The last block attends farther than the first block: {means[-1]:.2f} and {means[0]:.2f} pixels",
            all(one.distances[-1].mean() > one.distances[0].mean() for one in found),
        ),
        Statement(
            f"One head of the first block attends at least as far as the mean head of the last block: {widest:.2f} and "
            f"{means[-1]:.2f} pixels",
            all(one.distances[0].max() >= one.distances[-1].mean() for one in found),
        ),
    ]


PANEL = Panel(
    name="attention",
    title="Filters, positions and attention (figures 6 and 7)",
    claim="Embeddings of near positions, and of the same row or column, are similar. The attention distance increases "
    "with depth, and some heads attend to most of the image already in the lowest layers.",
    setup="The inspected models are the ViTs with 1-D position embeddings from the panel on position embeddings."
    " A statement holds if it holds for each seed. The figures show the first seed.",
    stages=(positions.train_1d,),
    table=_table,
    draw=_draw,
    statements=_statements,
)
