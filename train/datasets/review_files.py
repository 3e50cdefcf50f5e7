"""The files of a review: a page with pictures, and the list of all images."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.sources import Source
from keras_vit.inference import preparation, tables
from keras_vit.inspection.headings import source_title, stamp
from keras_vit.util import file_io, formatting
from keras_vit.util.progress import track

from ..report._classes import Classes
from ..report._images import Gallery, ImageCard
from ..report.render import Page, render
from .review import COLUMNS, Review, path_of

PAGE, LIST = "review.html", "images.csv"
SHOWN = 48  # images or pairs per section of the page
_SIDE = 160  # smaller side of a picture

Row = dict[str, Any]


def picture(content: bytes) -> np.ndarray:
    """Decode an image for a page, uint8 `[h, w, c]`. Large images are resized."""
    image = preparation.image_function("decode")(content)
    if min(image.shape[:2]) > _SIDE:
        image = preparation.image_function(f"decode|resize_small({_SIDE})")(content)
    return image.astype(np.uint8)


def write_list(path: str, review: Review) -> None:
    """Write all images as CSV in the order of suspicion. If the images are files, the list is also a data set."""
    with file_io.atomic_file(path) as temporary:
        tables.write_rows(temporary, ".csv", COLUMNS, review.rows)


def write_page(path: str, review: Review, sources: Mapping[str, Source], model: str) -> None:
    """Write the page with suspicious labels, near duplicates and outliers, and the confusion matrix."""
    outliers = sorted(review.having("outlier"), key=lambda row: -row["distance"])
    findings = [review.having("suspicious"), review.pairs, outliers]
    suspicious, pairs, far = (found[:SHOWN] for found in findings)
    partners = [{"split": row["near_split"], "path": row["near_duplicate"]} for row in pairs]
    pictures = _pictures(sources, [*suspicious, *pairs, *partners, *far])
    lines = {(row["split"], row["path"]): line for line, row in enumerate(review.rows, 2)}

    def name(row: Row) -> str:
        return f"{lines[row['split'], row['path']]}. {formatting.without_folders(row['path'])}"

    def card(row: Row, *values: tuple[str, str], **more: Any) -> ImageCard:
        return ImageCard(name(row), pictures[row["split"], row["path"]], values=values, **more)

    def pair_card(row: Row, partner: Row) -> ImageCard:
        texts = {
            key: f"{row[key]} · {row[f'near_{key}']}" for key in ("split", "label") if row[key] != row[f"near_{key}"]
        }
        shown = card(row, ("cosine", f"{row['cosine']:.4f}"), *texts.items())
        other = [(name(partner), pictures[partner["split"], partner["path"]])]
        return dataclasses.replace(shown, name=f"{shown.name} · {name(partner)}", overlays=other)

    def labeled(row: Row) -> dict[str, str]:
        return {"note": f"label: {row['label']}"} if row["label"] is not None else {}

    galleries = [
        Gallery(
            _title("Labels that may be wrong", suspicious, findings[0]),
            "Classifiers that did not learn from these images prefer another class. The most suspicious labels come first.",
            [card(row, predictions=[(row["predicted"], row["probability"])], **labeled(row)) for row in suspicious],
        ),
        Gallery(
            _title("Near duplicates", pairs, findings[1]),
            "Pairs of images with nearly the same features and pixels, such as copies that were resized, cropped or saved again.",
            list(map(pair_card, pairs, partners)),
        ),
        Gallery(
            _title("Outliers", far, outliers),
            "Images whose features differ most from the features of their nearest neighbors.",
            [card(row, ("distance", f"{row['distance']:.3f}"), **labeled(row)) for row in far],
        ),
    ]
    counts = review.confusion.sum(axis=1)
    shares = review.confusion.diagonal() / np.where(counts, counts, np.nan)
    texts = ("labels that may be wrong", "pairs of near duplicates", "outliers", "images")
    page = Page(
        f"Review of {source_title(next(iter(sources.values())).name)}",
        f"Features of {os.path.basename(os.path.normpath(model))} · {stamp()}",
        [(f"{len(found):,}", text) for found, text in zip([*findings, review.rows], texts, strict=True)],
        [f"These findings are estimates. The number before a name is the line of the image in {LIST}."],
        galleries=galleries,
        classes=Classes(review.class_names, shares, counts, review.confusion) if counts.any() else None,
        footer=f"Written by {stamp()}. This file contains all its images and needs no network.",
    )
    file_io.write_text(path, render(page))


def _title(text: str, shown: Sequence[Row], found: Sequence[Row]) -> str:
    return f"{text}: {len(shown)} of {len(found):,}" if len(shown) < len(found) else text


def _pictures(sources: Mapping[str, Source], rows: Iterable[Row]) -> dict[tuple[str, str], np.ndarray]:
    """Read the images of rows. Sources without names of files are read from their start."""
    wanted, found = {(row["split"], row["path"]) for row in rows}, {}
    for split, source in sources.items():
        for origin, item in track(source.items(), "Reading the pictures of the page", source.num_examples):
            key = split, path_of(origin)
            if key in wanted and key not in found:
                image = source.load(item)["image"]
                found[key] = picture((image if image.dtype == tf.string else tf.io.encode_png(image)).numpy())
    return found
