"""The page of a review with images, and its list of all images."""

import os
from collections.abc import Mapping, Sequence

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
from .review import COLUMNS, Review, Row, path_of

PAGE, LIST = "review.html", "images.csv"
SHOWN = 48  # images or pairs per section of the page
_SIDE = 160  # smaller side of a thumbnail
_HELP = {
    "suspicious_labels": "Classifiers that did not learn from these images prefer another class.",
    "near_duplicates": "Pairs with nearly the same features and pixels, such as resized images.",
    "outliers": "Images whose features differ most from the features of their nearest neighbors.",
}


def thumbnail(content: bytes) -> np.ndarray:
    """Decode an image for a page, uint8 `[h, w, c]`. Large images are resized."""
    image = preparation.image_function("decode")(content)
    if min(image.shape[:2]) > _SIDE:
        image = preparation.image_function(f"decode|resize_small({_SIDE})")(content)
    return image.astype(np.uint8)


def write_list(path: str, review: Review) -> None:
    """Write all images as CSV. If the images are files with classes, the list is also a data set."""
    with file_io.atomic_file(path) as temporary:
        tables.write_rows(temporary, ".csv", COLUMNS, ([row[name] for name in COLUMNS] for row in review.rows))


def write_page(path: str, review: Review, sources: Mapping[str, Source], model: str) -> None:
    """Write a page with the most notable findings and the confusion matrix."""
    found = review.findings
    thumbnails = _thumbnails(sources, [row for rows in found.values() for row in rows[:SHOWN]])
    galleries = [
        Gallery(_title(key), _HELP[key], [_card(row, thumbnails, key == "near_duplicates") for row in rows[:SHOWN]])
        for key, rows in found.items()
    ]
    counts = review.confusion.sum(axis=1)
    shares = review.confusion.diagonal() / np.where(counts, counts, np.nan)
    page = Page(
        f"Review of {source_title(next(iter(sources.values())).name)}",
        f"Features of {os.path.basename(os.path.normpath(model))} · {stamp()}",
        [(f"{len(rows):,}", _title(key)) for key, rows in {**found, "images": review.rows}.items()],
        [f"The findings are estimates, and at most {SHOWN} of each kind are shown. {LIST} lists all images."],
        galleries=galleries,
        classes=Classes(review.class_names, shares, counts, review.confusion) if counts.any() else None,
        footer=f"Written by {stamp()}. This file contains all its images and needs no network.",
    )
    file_io.write_text(path, render(page))


def _title(key: str) -> str:
    return key.replace("_", " ").capitalize()


def _card(row: Row, thumbnails: Mapping[tuple[str, str], np.ndarray], is_pair: bool) -> ImageCard:
    name, pixels = formatting.without_folders(row["path"]), thumbnails[row["split"], row["path"]]
    if is_pair:
        other = formatting.without_folders(row["near_duplicate"])
        overlays = [(other, thumbnails[row["near_split"], row["near_duplicate"]])]
        labels = [(row["split"], row["label"] or ""), (row["near_split"], row["near_label"] or "")]
        note = f"cosine {row['cosine']:.4f}"
        return ImageCard(f"{name} · {other}", pixels, overlays=overlays, note=note, values=labels)
    predictions = [(row["predicted"], row["probability"])] if row["predicted"] else []
    return ImageCard(name, pixels, predictions, note=f"label: {row['label']}" if row["label"] else "")


def _thumbnails(sources: Mapping[str, Source], rows: Sequence[Row]) -> dict[tuple[str, str], np.ndarray]:
    """Read the images of rows and their near duplicates, by split and path."""
    wanted = {(row["split"], row["path"]) for row in rows} | {
        (row["near_split"], row["near_duplicate"]) for row in rows
    }
    found = {}
    for split, source in sources.items():
        for origin, item in track(source.items(), "Reading the images of the page", source.num_examples):
            key = split, path_of(origin)
            if key in wanted and key not in found:
                image = source.load(item)["image"]
                found[key] = thumbnail((image if image.dtype == tf.string else tf.io.encode_png(image)).numpy())
    return found
