"""Predict the classes, the values or the masks of images.

    keras-vit predict --model=runs/digits image.jpg 'more/*.png'
    keras-vit predict --model=runs/digits photos --output=predictions.csv --order=uncertain
    keras-vit predict --model=runs/digits photos --sort=photos_by_class
    find photos -newer yesterday | keras-vit predict --model=runs/digits --json -
    keras-vit predict --model=ViT-B_16.npz --preprocess='value_range(-1, 1)' image.jpg
    keras-vit predict --model=runs/shapes photos --output=masks

The model is the directory of a run, a `.keras` file, a checkpoint, or an artifact: a SavedModel, or a TFLite, ONNX or
OpenVINO file. Images are files, glob patterns, folders including their subfolders, text files (.txt) with a path per
line, or `-` to read paths from the lines of standard input.

Without --output, the program prints the predictions. An --output that ends in .csv, .jsonl or .parquet is a table with
a row for each image, or two rows if a list names an image twice. The same command continues the table: images that have
a row are not predicted again. A table of another model is an error. The first column is path, and the last columns are
error and model, a key that identifies the weights, the preprocessing and the names. The other columns are label and
probability, label_2 and probability_2 and so on (--top_k), and uncertainty; or the values; or the share of each class
in the mask. The uncertainty is 1 minus the margin between the two most probable classes. If an image may have several
classes, the uncertainty is 1 - |2p - 1|, where p is the probability closest to 0.5. In a .csv file, names that a
spreadsheet would run as formulas begin with an apostrophe. Parquet files need
pip install 'keras-vision-transformers[parquet]'.

For a model that predicts masks, any other --output is a folder. The program writes NAME.png, the class of each pixel in
the colors of a palette, and NAME_overlay.png, the image overlaid with these colors. Both files have the size of the
image. If two images have the same name, the folder also contains the folders of the images.

--sort copies each image to the folder of its most probable class and does not overwrite files. If an image may have
several classes or none, it is copied to `none` if no probability reaches 0.5.

Several machines share the images: --shard=0/4 to --shard=3/4 are four disjoint parts, each with a separate --output.
--engine=ray works on a Ray cluster and writes a folder of Parquet files; see docs/how_to/many_images.md.

Unreadable images are listed at the end and do not prevent the other predictions. If an image is unreadable, the exit
code is 1, or 0 with --on_bad_image=skip.
"""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags

MANY = 1600  # number of images from which some seconds of preparation pay off
NONE = "none"  # folder of --sort for images without a class
LISTED = 20  # maximum number of unreadable images in the log
USAGE = "Name at least one image or folder: keras-vit predict --model=DIR photos"

common_flags.define_model_flags()
common_flags.define_scale_flags("--engine=ray: images per file.")
flags.DEFINE_integer("top_k", 5, "Number of labels per image, for a model with classes.", 1)
common_flags.define_output_flag("Table (.csv, .jsonl, .parquet), or folder for masks and overlays.")
flags.DEFINE_enum("order", "given", ["given", "uncertain"], "Order of the images; uncertain: most uncertain first.")
common_flags.define_written_flag("sort", "Folder to copy the images to, by class.", schemes=())
common_flags.define_on_bad_image_flag("error")
common_flags.define_json_flag()

with cli.imports(__name__):
    from keras_vit import outputs
    from keras_vit.inference import (
        ModelCard,
        Prediction,
        Predictor,
        image_inputs,
        masks,
        open_predictor,
        opening,
        tables,
    )
    from keras_vit.util import file_io, image_files, storage
    from keras_vit.util.progress import Progress

    from . import sorted_copies

Write = Callable[[Prediction], None]
Copy = Callable[[str, str, float], None]


def main(argv: Sequence[str]) -> int | None:
    return cli.run_on_ray(argv[1:], features=False) if flags.FLAGS.engine else predict(argv)


@cli.published("output", small=False)
def predict(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    check_flags(argv[1:])
    paths, total = image_files.listed(argv[1:], *conditions())
    if total == 0:
        logging.warning("No image is left to predict with --shard=%s and --sort=%s.", options.shard, options.sort)
        return 0
    model = storage.fetched(options.model, options.checkpoint)
    check_output(opening.stated_output(model))
    is_table = tables.is_table(options.output)
    with tables.opened(options.output) if is_table else contextlib.nullcontext() as table:
        predictor = open_predictor(model, **common_flags.model_options())
        card = predictor.card
        if not card.names:
            raise ValueError(
                f"--model must have classes or values. Received: --model={options.model} without names. "
                "--class_names=FILE names the classes."
            )
        check_output(card.kind)
        if table:
            table.begin(card, options.top_k, options.order == "uncertain")
        if total is None or total > MANY:
            predictor.prepare_for_many()

        # Outputs of each prediction
        writers: list[Write] = []
        printed_last: list[Prediction] = []
        if table:
            writers.append(table.add)
        elif options.order == "uncertain":
            writers.append(lambda found: printed_last.append(dataclasses.replace(found, output=None)))
        else:
            writers.append(lambda found: show(found, card.kind))
        if options.output and not table:
            listed = list(paths)  # the names of the files depend on all paths
            paths = iter(listed)
            writers.append(mask_writer(card, listed))
        copy = copier(card) if options.sort else None
        if copy:
            writers.append(lambda found: None if found.error else copy(found.name, *found.top[0]))

        left = without_rows(paths, table, copy) if table else paths
        unreadable = predict_images(predictor, left, total, writers)
    for found in sorted(printed_last, key=lambda found: (bool(found.error), -found.uncertainty)):
        show(found, card.kind)
    if table:
        sys.stdout.write(f"{options.output}\n")
    return report(*unreadable)


def without_rows(paths: Iterable[str], table: tables.PredictionTable, copy: Copy | None) -> Iterator[str]:
    """Yield the images without a row in the table, once. Copy the images with a row to the folders of --sort."""
    known = 0
    for path in paths:
        if table.needs(path):
            yield path
        elif row := table.known(path):
            known += 1
            if copy:
                copy(path, row["label"], row["probability"])
    if known:
        logging.info("%d images had a row in %s.", known, flags.FLAGS.output)


def predict_images(
    predictor: Predictor, paths: Iterable[str], total: int | None, writers: Sequence[Write]
) -> tuple[list[str], int, int]:
    """Predict images and pass each prediction to the writers.

    Returns the first unreadable images with their errors, and the numbers of unreadable images and of all images.
    """
    options, listed, failed = flags.FLAGS, [], 0
    is_read_along = not tables.is_table(options.output) and options.order == "given" and sys.stdout.isatty()
    images = image_inputs.of_files(paths)
    predictions = predictor.predict_each(images, batch_size=options.batch_size, top_k=options.top_k)
    with Progress("Predictions", total, enabled=not is_read_along) as progress, contextlib.closing(predictions):
        for found in predictions:
            for write in writers:
                write(found)
            if found.error:
                failed += 1
                listed += [f"{found.name}: {found.error}"] * (failed <= LISTED)
            progress.add(1)
    return listed, failed, progress.done


def conditions() -> list[Callable]:
    """Return the conditions for the images: in --shard, no copies in --sort, and names that fit into a table."""
    options = flags.FLAGS
    found: list[Callable] = [common_flags.in_shard, *([tables.check_name] if tables.is_table(options.output) else [])]
    if options.sort:
        own = os.path.join(os.path.realpath(options.sort), "")
        found.append(lambda path: not os.path.realpath(path).startswith(own))
    return found


def check_flags(images: Sequence[str]) -> None:
    """Raise a ValueError, before the model is opened, for flags that do not fit any model."""
    options = flags.FLAGS
    if not images:
        raise ValueError(USAGE)
    is_table, output, folder = tables.is_table(options.output), options.output or "", options.sort or ""
    if tables.is_table(folder) or os.path.isfile(folder):
        raise ValueError(f"--sort must be a folder. Received: --sort={folder}.")
    if os.path.isdir(output) if is_table else os.path.isfile(output):
        raise ValueError(
            f"--output must be a file that ends in {', '.join(tables.EXTENSIONS)}, or a folder for masks. Received: "
            f"--output={output}, a {'folder' if is_table else 'file'}."
        )
    if not is_table:
        return
    if options.json:
        raise ValueError(
            f"--json prints predictions. Leave out --json or --output. Received: --json --output={output}."
        )
    if output.endswith(".parquet"):
        file_io.import_pyarrow()


def check_output(kind: outputs.Output | None) -> None:
    """Raise a ValueError for flags that do not fit the output of the model, if the output is known."""
    options = flags.FLAGS
    given = [f"--{name}" for name in ("top_k", "order", "sort") if options[name].present]
    if given and kind and not kind.has_probabilities:
        raise ValueError(
            f"{', '.join(given)}: the model must predict probabilities of classes. "
            f"Received: --model={options.model}, which predicts {kind.output_name}."
        )
    if options.output and not tables.is_table(options.output) and kind and not kind.has_masks:
        raise ValueError(
            f"--output must end in {', '.join(tables.EXTENSIONS)}; only a model that predicts masks writes to a "
            f"folder. Received: --output={options.output} and a model of {kind.output_name}."
        )


def mask_writer(card: ModelCard, paths: Sequence[str]) -> Write:
    """Return a function that writes the mask of an image at the size of the image, and the overlay."""
    folder = flags.FLAGS.output
    masks.check_preprocess(card.preprocess)
    paths = list(dict.fromkeys(paths))
    names = dict(zip(paths, masks.file_names(folder, paths), strict=True))
    file_io.make_directory(folder)

    def write(found: Prediction) -> None:
        if found.output is None:
            return
        with open(found.name, "rb") as file:
            pixels = masks.read_pixels(file.read(), card.preprocess)
        masks.write_files(names[found.name], masks.resized(found.output, pixels.shape[:2]), pixels)
        storage.upload(folder, growing=True)

    return write


def copier(card: ModelCard) -> Copy:
    """Return a function that copies an image to the folder of its most probable class."""
    needs_half = card.has_independent_classes  # if no probability reaches 0.5, the image has no class
    names = sorted_copies.folder_names(card.class_names, reserved=NONE if needs_half else "")

    def copy(path: str, label: str, probability: float) -> None:
        name = NONE if needs_half and probability < 0.5 else names[label]
        sorted_copies.copy_to(path, os.path.join(flags.FLAGS.sort, name))

    return copy


def show(found: Prediction, kind: outputs.Output) -> None:
    """Print a prediction as a line of JSON or as a table."""
    if flags.FLAGS.json:
        prediction = {"error": found.error} if found.error else kind.as_json(found.top)
        sys.stdout.write(json.dumps({"path": found.name, **prediction}, ensure_ascii=False) + "\n")
    elif not found.error:
        sys.stdout.write(f"{found.name}\n{kind.as_text(found.top)}")
    sys.stdout.flush()


def report(listed: Sequence[str], failed: int, total: int) -> int:
    """Log the images that cannot be read, and return the exit code."""
    for line in listed:
        logging.error("%s", line)
    if failed:
        more = f", {failed - len(listed)} more than are listed" if failed > len(listed) else ""
        logging.warning("%d of %d images could not be read%s", failed, total, more)
    return 1 if failed and flags.FLAGS.on_bad_image == "error" else 0


if __name__ == "__main__":
    cli.run(main)
