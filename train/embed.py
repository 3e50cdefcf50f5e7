"""Write the features of images, before the classification head, to a file.

    keras-vit embed --model=runs/digits 'images/**/*.png' --output=features.npz
    keras-vit embed --model=ViT-B_16.npz --preprocess='value_range(-1, 1)' '*.jpg' --output=features.parquet

The file has a row for each image: `names` and `features`, `[N, D]` in float32. It is a NumPy archive, or a Parquet
file, which needs pip install 'keras-vision-transformers[parquet]'. The model is anything that returns features: a run,
a .keras file, a checkpoint, a SavedModel, or a TFLite file that was exported with --features.

The program can be stopped and started again: finished parts are kept in OUTPUT.parts until the file is complete. An
image that cannot be read is reported and left out, and the exit code is 1, or 0 with --on_bad_image=skip.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from keras_vit import program
from keras_vit.program import common_flags

common_flags.define_model_flags()
common_flags.define_output_flag("File to write, .npz or .parquet.")
flags.DEFINE_integer("batch_size", 16, "Images per call of the model.", 1)
flags.DEFINE_integer("part_size", 1024, "Images per part, after which an interruption loses nothing.", 1)
common_flags.define_on_bad_image_flag("error")

with program.imports(__name__):
    import numpy as np

    from keras_vit import _io
    from keras_vit._progress import Progress
    from keras_vit.inference import Classifier, open_classifier, preparation

DESCRIPTION = "parts.json"


def main(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    if not options.model:
        raise ValueError("--model is missing: the directory of a run, a .keras file, a checkpoint or an artifact.")
    output = options.output or ""
    if not output.endswith((".npz", ".parquet")):
        raise ValueError(f"--output must end in .npz or .parquet. Received: --output={output}.")
    if output.endswith(".parquet"):
        import_pyarrow()  # its error comes before the work
    paths = _io.find_files(argv[1:])
    if not paths:
        raise ValueError("Name at least one image: keras-vit embed --model=DIR --output=FILE '*.jpg'")
    classifier = open_classifier(
        options.model, preprocess=options.preprocess, labels=options.labels, checkpoint=options.checkpoint
    )
    if classifier.features_unavailable:
        raise ValueError(f"--model must return features: {classifier.features_unavailable}.")
    if len(paths) > 100 * options.batch_size:
        classifier.prepare_for_many()
    folder = f"{output}.parts"
    begin(folder, classifier, paths)
    parts = [embed(folder, start, classifier, paths) for start in range(0, len(paths), options.part_size)]
    names, features = (np.concatenate(column) for column in zip(*parts, strict=True))
    failed = len(paths) - len(names)
    if not len(names):
        raise ValueError("None of the images can be read.")
    write(output, names, features)
    shutil.rmtree(folder)
    logging.info("%d images, %d features each", *features.shape)
    sys.stdout.write(f"{output}\n")
    if failed:
        logging.warning("%d of %d images could not be read", failed, len(paths))
    return 1 if failed and options.on_bad_image == "error" else 0


def begin(folder: str, classifier: Classifier, paths: Sequence[str]) -> None:
    """Describe the parts of a file, or refuse those of another model or of other images."""
    card = classifier.card
    about: dict[str, Any] = {
        "model": classifier.path,
        "weights": card.model_sha256 or card.files or file_state(classifier.path),
        "checkpoint": flags.FLAGS.checkpoint,
        "preprocess": card.preprocess,
        "images": hashlib.sha256("\n".join(paths).encode()).hexdigest(),
        "part_size": flags.FLAGS.part_size,
    }
    path = os.path.join(folder, DESCRIPTION)
    if not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        _io.write_json(path, about)
        return
    before = _io.read_json(path)
    different = [name for name, value in about.items() if before.get(name) != value]
    if different:
        raise ValueError(
            f"{folder!r} has the features of an interrupted call with other values of: {', '.join(different)}. Remove "
            "it to start again, or give another --output."
        )
    logging.info("Resuming from %s", folder)


def file_state(path: str) -> list[int]:
    """Return what changes when a file is written again."""
    info = os.stat(path)
    return [info.st_size, info.st_mtime_ns]


def embed(folder: str, start: int, classifier: Classifier, paths: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return names and features of the readable images of a part, from its file if it is finished."""
    file = os.path.join(folder, f"{start:09d}.npz")
    if os.path.exists(file):
        with np.load(file, allow_pickle=False) as part:
            return part["names"], part["features"]
    names: list[str] = []
    features: list[np.ndarray] = []
    chosen = paths[start : start + flags.FLAGS.part_size]
    progress = Progress(f"Features from image {start + 1:,} on", len(chosen))
    prepare = preparation.image_function(classifier.card.preprocess)
    for begin in range(0, len(chosen), flags.FLAGS.batch_size):
        batch = {}
        for path in chosen[begin : begin + flags.FLAGS.batch_size]:
            try:
                with open(path, "rb") as image:
                    batch[path] = prepare(image.read())
            except Exception as error:
                reason = error.strerror if isinstance(error, OSError) else preparation.unreadable(error)
                if reason is None:
                    raise
                logging.error("%s: %s", path, reason)
        if batch:
            names += batch
            features.append(np.asarray(classifier.features(np.stack(list(batch.values()))), np.float32))
        progress.update(begin + len(batch))
    progress.close()
    width = features[0].shape[1] if features else 0
    rows = np.array(names, np.str_), np.concatenate([*features, np.zeros((0, width), np.float32)])
    write(file, *rows)
    return rows


def write(path: str, names: np.ndarray, features: np.ndarray) -> None:
    """Write names and features in one step, in the format of the extension."""
    with _io.atomic_file(path) as temporary:
        if path.endswith(".parquet"):
            pyarrow = import_pyarrow()
            values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features.ravel()), features.shape[1])
            pyarrow.parquet.write_table(pyarrow.table({"name": names.tolist(), "features": values}), temporary)
        else:
            with open(temporary, "wb") as file:
                np.savez(file, names=names, features=features)


def import_pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        extra = "keras-vision-transformers[parquet]"
        raise ImportError(f"Parquet files need PyArrow: pip install '{extra}'") from error
    return pyarrow


if __name__ == "__main__":
    program.run(main)
