"""Find the images that are most similar to an image, in a file of features.

    keras-vit embed --model=hf:facebook/dinov2-small photos --output=features.npz
    keras-vit similar --model=hf:facebook/dinov2-small --features=features.npz photo.jpg --output=similar.html

The program compares the features of the image with the features of all images in the file, which `keras-vit embed`
wrote, by their cosine similarity. The model must be the model of the file. --output writes a page with the images.
"""

import json
import sys
from collections.abc import Sequence

from absl import flags

from keras_vit import cli
from keras_vit.cli import common_flags

flags.DEFINE_string("features", None, "File of features that keras-vit embed wrote, .npz or .parquet.")
common_flags.define_model_flags(class_names=False)
flags.DEFINE_integer("count", 12, "Number of similar images.", 1)
common_flags.define_output_flag("Page to write, .html.")
common_flags.define_json_flag()

with cli.imports(__name__):
    import numpy as np
    from absl import logging

    from keras_vit import data
    from keras_vit.data.readers import npz
    from keras_vit.evaluators.knn import nearest_neighbors
    from keras_vit.inference import Predictor, feature_store, open_predictor, preparation
    from keras_vit.inspection.headings import stamp
    from keras_vit.util import file_io, image_files
    from keras_vit.util.progress import track

    from .datasets.review_files import thumbnail
    from .report._images import Gallery, ImageCard
    from .report.render import Page, render


@cli.published("output")
def main(argv: Sequence[str]) -> None:
    options, queries = flags.FLAGS, image_files.find(argv[1:])
    if not options.features or not queries:
        raise ValueError("Name a file and an image: keras-vit similar --model=DIR --features=features.npz photo.jpg")
    names, features, origin = read(options.features)
    predictor = open_predictor(options.model, **common_flags.model_options())
    check_origin(origin, predictor)
    rows = []
    for found in predictor.features_each(queries):
        if found.output is None:
            raise data.UnreadableImageError(found.name, found.error.rstrip("."))
        rows.append(found.output)
    own = np.stack(rows)
    if own.shape[1:] != features.shape[1:]:
        raise ValueError(
            f"{options.features} must have {own.shape[1]} features per image. Received: {features.shape[1:]}."
        )
    blocks = nearest_neighbors(own, features, min(options.count, len(names)))
    galleries = []
    for query, nearest, cosines in zip(queries, *map(np.concatenate, zip(*blocks, strict=True)), strict=True):
        similar = [(names[index], float(cosine)) for index, cosine in zip(nearest, cosines, strict=True)]
        if options.output:
            cards = [card(name, f"cosine {cosine:.4f}") for name, cosine in track(similar, "Reading the images")]
            galleries.append(Gallery(query, "", [card(query, "query"), *cards]))
        as_json = {"query": query, "similar": [{"image": name, "cosine": cosine} for name, cosine in similar]}
        lines = [f"{query}:", *(f"  {cosine:.4f}  {name}" for name, cosine in similar)]
        sys.stdout.write((json.dumps(as_json) if options.json else "\n".join(lines)) + "\n")
    if options.output:
        file_io.write_text(
            options.output,
            render(Page("Similar images", stamp(), [(f"{len(names):,}", "images compared")], galleries=galleries)),
        )


def read(path: str) -> tuple[list[str], np.ndarray, str]:
    """Return the names and the features of all images in a file, and their origin, if the file contains it."""
    try:
        if path.endswith(".parquet"):
            table = file_io.import_pyarrow().parquet.read_table(path).select(["names", "features"]).drop_null()
            origin = (table.schema.metadata or {}).get(feature_store.ORIGIN.encode(), b"").decode()
            names, features = table["names"].to_pylist(), np.stack(table["features"].to_numpy())
        else:
            found = npz.arrays(path)
            names, features = found["names"].tolist(), found["features"]
            origin = str(found.get(feature_store.ORIGIN, ""))
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} must be a file that keras-vit embed wrote. Received: {error}.") from error
    if not 0 < len(names) == len(features):
        raise ValueError(f"{path} must have a name for each row. Received: {len(names)} and {len(features)}.")
    return names, features, origin


def check_origin(origin: str, predictor: Predictor) -> None:
    """Warn of features that another model or preprocessing has computed, whose similarities mean little."""
    own = json.loads(feature_store.origin(predictor))
    stored = json.loads(origin) if origin else own
    changes = [f"{name}: {stored.get(name)} -> {value}" for name, value in own.items() if stored.get(name) != value]
    if changes:
        logging.warning(
            "The similarities mean little: %s was written with other values. Then -> now: %s. Pass the --model, "
            "--preprocess and --image_size of keras-vit embed.",
            *(flags.FLAGS.features, "; ".join(changes)),
        )


def card(path: str, note: str) -> ImageCard:
    """Return an image of the page. It is a gray square if the file was moved or damaged since `keras-vit embed`."""
    content = b""
    try:
        with open(path, "rb") as file:
            content = file.read()
        return ImageCard(path, thumbnail(content), note=note)
    except Exception as error:
        reason = preparation.unreadable(error, content)
        if reason is None:
            raise
        logging.warning("The page lacks %s: %s", path, reason)
        return ImageCard(path, np.full((64, 64, 3), 128, np.uint8), note=f"{note}; not readable")


if __name__ == "__main__":
    cli.run(main)
