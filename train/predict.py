"""Predict the classes, the values or the masks of images.

    keras-vit predict --model=runs/digits image.jpg more/*.png
    keras-vit predict --model=runs/digits --json image.jpg
    keras-vit predict --model=ViT-B_16.npz --preprocess='value_range(-1, 1)' image.jpg
    keras-vit predict --model=runs/shapes --output=masks image.jpg more/*.png

The model is the directory of a run, a `.keras` file, a checkpoint, or an artifact: a SavedModel, or a TFLite, ONNX or
OpenVINO file. Of a model that predicts masks, --output gets NAME.png, the class of each pixel in the colors of a
palette, and NAME_overlay.png, the image under these colors, both in the size of the image.

An image that cannot be read is reported, the others get their predictions, and the exit code is 1, or 0 with
--on_bad_image=skip.
"""

import json
import sys
from collections.abc import Callable, Sequence

from absl import flags, logging

from keras_vit import program
from keras_vit.program import common_flags

BATCH_SIZE = 16

common_flags.define_model_flags()
flags.DEFINE_integer("top_k", 5, "Number of labels per image, of a model with classes.", 1)
common_flags.define_output_flag("Folder for masks and overlays, of a model that predicts masks.")
common_flags.define_on_bad_image_flag("error")
common_flags.define_json_flag()

with program.imports(__name__):
    import numpy as np

    from keras_vit import _io
    from keras_vit.inference import ModelCard, masks, open_predictor, outputs, preparation


def main(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    if not options.model:
        raise ValueError("--model is missing: the directory of a run, a .keras file, or an exported artifact.")
    paths = _io.find_files(argv[1:])
    if not paths:
        raise ValueError("Name at least one image: keras-vit predict --model=DIR image.jpg ...")
    predictor = open_predictor(options.model, **common_flags.model_options())
    card, kind = predictor.card, predictor.card.output_name
    if not card.names:
        raise ValueError(f"--model must have classes or values. Received: --model={options.model}, which has none.")
    if options["top_k"].present and kind != "probabilities":
        raise ValueError(
            f"--top_k is a number of classes. Received: --top_k, and a model of {kind}: {', '.join(card.names)}. Leave "
            "it out."
        )
    files = mask_files(card, paths) if options.output else {}
    prepare = preparation.image_function(card.preprocess)
    write = write_json if options.json else write_table

    failed = 0
    for start in range(0, len(paths), BATCH_SIZE):
        batch = paths[start : start + BATCH_SIZE]
        images, errors = read_all(batch, prepare)
        answers = iter(predictor.predict(np.stack(images)) if images else ())
        for path, error in zip(batch, errors, strict=True):
            answer = None if error else next(answers)
            parts = () if answer is None else outputs.parts(answer, card.names, kind, options.top_k)
            if files and answer is not None:
                write_masks(path, answer, card.preprocess, files[path])
            write(path, parts, kind, error)
        failed += sum(error is not None for error in errors)
    if failed:
        logging.warning("%d of %d images could not be read", failed, len(paths))
    return 1 if failed and flags.FLAGS.on_bad_image == "error" else 0


def mask_files(card: ModelCard, paths: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the names of mask and overlay of each image, after making their folder."""
    folder = flags.FLAGS.output
    if card.output != "mask":
        raise ValueError(f"--output is for a model that predicts masks. Received: a model of {card.output_name}.")
    masks.check_preprocess(card.preprocess)
    names = masks.file_names(folder, paths)
    _io.make_directory(folder)
    return dict(zip(paths, names, strict=True))


def write_masks(path: str, mask: np.ndarray, pp: str, names: tuple[str, str]) -> None:
    """Write the mask of an image at its own size, and the overlay."""
    with open(path, "rb") as file:
        pixels = masks.read_pixels(file.read(), pp)
    masks.write_files(names, masks.resized(mask, pixels.shape[:2]), pixels)


def read_all(paths: Sequence[str], prepare: Callable[[bytes], np.ndarray]) -> tuple[list[np.ndarray], list[str | None]]:
    """Return the preprocessed images of the readable files, and per file its error or None."""
    images: list[np.ndarray] = []
    errors: list[str | None] = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                images.append(prepare(file.read()))
            errors.append(None)
        except OSError as error:
            errors.append(error.strerror or str(error))
        except Exception as error:
            reason = preparation.unreadable(error)
            if reason is None:
                raise
            errors.append(reason)
    return images, errors


def write_table(path: str, parts: outputs.Parts, kind: str, error: str | None) -> None:
    if error:
        logging.error("%s: %s", path, error)
        return
    sys.stdout.write(f"{path}\n{outputs.as_text(parts, kind)}")
    sys.stdout.flush()


def write_json(path: str, parts: outputs.Parts, kind: str, error: str | None) -> None:
    if error:
        logging.error("%s: %s", path, error)
    answer = {"error": error} if error else outputs.as_json(parts, kind)
    sys.stdout.write(json.dumps({"path": path, **answer}, ensure_ascii=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    program.run(main)
