"""Write the features of images, before the classification head, to a file.

    keras-vit embed --model=runs/digits images --output=features.npz
    keras-vit embed --model=hf:facebook/dinov2-small '*.jpg' --output=features.parquet

The file contains `names` and `features`, float32 `[N, D]`, with a row for each image. The format is a NumPy archive or
Parquet, which needs pip install 'keras-vision-transformers[parquet]'. The model must return features: a run, a .keras
file, a checkpoint, a SavedModel, or a TFLite file that was exported with --features. With --dense, each row contains
the features of the patches, `[h, w, D]`, after the last block and the final norm. This needs a run, a .keras file or a
checkpoint, and writes a NumPy archive. A row of DINOv2 S/14 at 518 pixels takes 2 MB of memory and disk.

You can stop the program and start it again. Finished parts are kept in OUTPUT.parts until the file is complete, and are
reused if the model, the preprocessing and the images are unchanged. Existing files are not overwritten. Unreadable
images are reported and skipped, and the exit code is 1, or 0 with --on_bad_image=skip.
"""

import contextlib
import glob
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags

common_flags.define_model_flags()
common_flags.define_output_flag("File to write, .npz or .parquet.")
flags.DEFINE_boolean("dense", False, "Whether to write the features of each patch.")
flags.DEFINE_integer("batch_size", 16, "Images per call of the model.", 1)
flags.DEFINE_integer("part_size", 1024, "Images per part. An interruption keeps all finished parts.", 1)
common_flags.define_on_bad_image_flag("error")

with cli.imports(__name__):
    import numpy as np

    from keras_vit.inference import Predictor, open_predictor, preparation, tables
    from keras_vit.util import file_io, image_files, locks, storage
    from keras_vit.util.progress import track
    from keras_vit.version import __version__

DESCRIPTION = "parts.json"
Rows = tuple[np.ndarray, np.ndarray]  # names [N] and features [N, D] or [N, h, w, D]


@cli.published("output")
def main(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    output = options.output or ""
    if not output.endswith((".npz", ".parquet")):
        raise ValueError(f"--output must end in .npz or .parquet. Received: --output={output}.")
    paths = image_files.find(argv[1:])
    if not paths:
        raise ValueError("Name at least one image: keras-vit embed --model=DIR --output=FILE '*.jpg'")
    if output.endswith(".parquet"):
        if options.dense:
            raise ValueError(f"--dense needs an --output that ends in .npz. Received: --output={output}.")
        file_io.import_pyarrow()  # raises its error before the work starts
        tables.check_names(paths)
    folder, complete = f"{output}.parts", False
    with locks.locked(folder, "--output"):
        try:
            if os.path.exists(output):
                raise FileExistsError(f"--output={output} exists and is not overwritten. Choose another name.")
            names, features = collect(folder, paths)
            write(output, names, features)
            complete = True
        finally:
            if complete or not parts_in(folder):
                shutil.rmtree(folder, ignore_errors=True)  # the folder stays if another process locks it now
    failed = len(paths) - len(names)
    logging.info("%d images, %s features each", len(features), " x ".join(map(str, features.shape[1:])))
    sys.stdout.write(f"{output}\n")
    if failed:
        logging.warning("%d of %d images could not be read", failed, len(paths))
    return 1 if failed and options.on_bad_image == "error" else 0


def collect(folder: str, paths: Sequence[str]) -> Rows:
    """Return the names and features of all readable images. Finished parts are kept in the folder."""
    options = flags.FLAGS
    predictor = open_predictor(options.model, **common_flags.model_options())
    if predictor.features_unavailable:
        raise ValueError(f"--model must return features: {predictor.features_unavailable}.")
    if len(paths) > 100 * options.batch_size:
        predictor.prepare_for_many()
    key = begin(folder, predictor, paths)
    parts = [part(folder, key, start, predictor, paths) for start in range(0, len(paths), options.part_size)]
    parts = [(names, features) for names, features in parts if len(names)]
    if not parts:
        raise ValueError("None of the images can be read.")
    names, features = (np.concatenate(column) for column in zip(*parts, strict=True))
    return names, features


def begin(folder: str, predictor: Predictor, paths: Sequence[str]) -> str:
    """Write the description of the parts into their folder, and return the key of the description.

    Raises a ValueError if the folder contains finished parts of another model or of other images.
    """
    about: dict[str, Any] = {
        "model": predictor.card.sha256,
        "preprocess": predictor.card.preprocess,
        "images": digest([(path, *state(path)) for path in paths]),
        "part_size": flags.FLAGS.part_size,
        "dense": flags.FLAGS.dense,
        "keras_vit": __version__,
    }
    path, before = os.path.join(folder, DESCRIPTION), about
    if parts_in(folder):
        with contextlib.suppress(OSError, ValueError):  # without it, the key of each part is compared
            before = file_io.read_json(path)
    different = [name for name, value in about.items() if before.get(name) != value]
    if different:
        raise ValueError(
            f"{folder!r} contains the features of an interrupted call with other values of: {', '.join(different)}. "
            "Remove it to start again, or pass another --output."
        )
    if parts_in(folder):
        logging.info("Resuming from %s", folder)
    file_io.write_json(path, about)
    return digest(about)


def state(path: str) -> tuple[int, ...]:
    """Return the size and the modification time of a file; an empty tuple if the file is missing."""
    try:
        info = os.stat(path)
    except OSError:
        return ()
    return info.st_size, info.st_mtime_ns


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def parts_in(folder: str) -> list[str]:
    """Return the files of the finished parts."""
    return glob.glob(os.path.join(glob.escape(folder), "*.npz"))


def part(folder: str, key: str, start: int, predictor: Predictor, paths: Sequence[str]) -> Rows:
    """Return the names and features of the readable images of a part. A finished part is read from its file."""
    file, key = os.path.join(folder, f"{start:09d}.npz"), f"{key} {start}"
    finished = read(file, key) if os.path.exists(file) else None
    if finished is None:
        finished = embed(start, predictor, paths)
        if len(finished[0]):
            write(file, *finished, key=key)
            storage.publish(flags.FLAGS.output, growing=True)
    return finished


def read(file: str, key: str) -> Rows | None:
    """Return the rows of a part, or None if its file is damaged or was written for another key."""
    try:
        with np.load(file, allow_pickle=False) as content:
            if str(content["key"]) == key:
                return content["names"], content["features"]
    except Exception as error:  # NumPy and zipfile raise many kinds of errors for a damaged file
        logging.warning("%s is damaged: %s", file, error)
    logging.warning("The features of %s are computed again.", file)
    return None


def embed(start: int, predictor: Predictor, paths: Sequence[str]) -> Rows:
    """Compute the names and features of the readable images of a part."""
    names: list[str] = []
    features: list[np.ndarray] = []
    chosen = paths[start : start + flags.FLAGS.part_size]
    prepare = preparation.image_function(predictor.card.preprocess)
    compute = predictor.patch_features if flags.FLAGS.dense else predictor.features
    what = f"Features, starting with image {start + 1:,}"
    for begin in track(range(0, len(chosen), flags.FLAGS.batch_size), what, unit="batches"):
        batch: list[np.ndarray] = []
        for path in chosen[begin : begin + flags.FLAGS.batch_size]:
            content = b""
            try:
                with open(path, "rb") as image:
                    content = image.read()
                batch.append(prepare(content))
                names.append(path)
            except Exception as error:
                reason = error.strerror if isinstance(error, OSError) else preparation.unreadable(error, content)
                if reason is None:
                    raise
                logging.error("%s: %s", path, reason)
        if batch:
            features.append(np.asarray(compute(np.stack(batch)), np.float32))
    return np.array(names, np.str_), np.concatenate(features) if features else np.zeros((0, 0), np.float32)


def write(path: str, names: np.ndarray, features: np.ndarray, **more: Any) -> None:
    """Write names and features atomically, in the format of the file extension."""
    with file_io.atomic_file(path) as temporary:
        if path.endswith(".parquet"):
            pyarrow = file_io.import_pyarrow()
            values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features.ravel()), features.shape[1])
            pyarrow.parquet.write_table(pyarrow.table({"names": names.tolist(), "features": values}), temporary)
        else:
            with open(temporary, "wb") as file:
                np.savez(file, names=names, features=features, **more)


if __name__ == "__main__":
    cli.run(main)
