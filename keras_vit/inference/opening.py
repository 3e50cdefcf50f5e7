"""Opening of predictors of any kind."""

import functools
import os
import threading
from collections.abc import Sequence
from typing import Any

from keras_vit import outputs
from keras_vit.inference import formats, model_card
from keras_vit.inference.predictor import Predictor
from keras_vit.util import file_io, storage
from keras_vit.util.progress import Progress

_lock = threading.Lock()  # while a pickled predictor is opened


def open_predictor(
    path: str | os.PathLike,
    *,
    preprocess: str | None = None,
    class_names: Sequence[str] | str | os.PathLike | None = None,
    num_threads: int | None = None,
    checkpoint: str | int | None = None,
    image_size: int | None = None,
) -> Predictor:
    """Open a run, a `.keras` file, a checkpoint or an artifact as a predictor.

    Args:
        path: One of:
            a run directory;
            a `.keras` file;
            a checkpoint that `keras_vit.model_from_checkpoint` reads, as a path or a name (`"hf:OWNER/NAME"`,
            `"ViT_B16:augreg"`);
            an artifact: a `.tflite`, `.onnx` or OpenVINO `.xml` file, a directory with a single such file, a version of
                a SavedModel, or a directory of versions. The largest version is opened.
        preprocess: Preprocessing string. By default, the string is read from the run, artifact or checkpoint. For a
            model of this package whose normalization is unknown, pixels are mapped to [-1, 1], with a warning. Other
            models require the string. Missing decoding and resizing are added.
        class_names: Class names, or a file with one name per line. By default, the names of the run, artifact or
            checkpoint.
        num_threads: Threads of an artifact's kernels; None for all cores.
        checkpoint: Weights of a run: `"best"`, `"last"` or the step of a checkpoint, see `keras_vit.runs.load_run`. By
            default, the weights in `model.keras`.
        image_size: Height and width of the images, to which position embeddings are adapted. By default, the size of
            the model, or of the preprocessing in the checkpoint's directory. The image size of an artifact is fixed.

    Returns:
        The predictor. It is pickled as its path and these arguments, and opened again in each process that reads it.

    Raises:
        FileNotFoundError: If `path` does not exist, or a part of it is missing.
        ValueError: If `path` cannot be opened, or `preprocess`, `class_names`, `checkpoint` or `image_size` do not fit.

    Example:
    >>> predictor = open_predictor("runs/digits")
    >>> probabilities = predictor.predict("images/cat.png")  # or a folder, a list of paths, pixels
    >>> probabilities.shape, predictor.class_names[probabilities[0].argmax()] in set("0123456789")
    ((1, 10), True)
    """
    given = os.path.abspath(path) if os.path.exists(path) else os.fspath(path)
    path = storage.fetched(path, checkpoint)
    if isinstance(class_names, (str, os.PathLike)):
        class_names = file_io.read_lines(storage.fetched(class_names))
    found = formats.find(path)
    predictor: Predictor
    if found and (preprocess, class_names, checkpoint, image_size) != (None, None, None, None):
        raise ValueError(
            f"The artifact {path!r} has its own preprocessing, class names and weights. Leave out preprocess and "
            "class_names (--preprocess, --class_names). For another checkpoint or image size, export the model again. "
            f"Received: preprocess={preprocess!r}, class_names={class_names!r}, checkpoint={checkpoint!r}, "
            f"image_size={image_size!r}."
        )
    if found:
        predictor = _opened(*found, num_threads)
    else:
        with Progress(f"Opening {path}"):
            from keras_vit.inference import keras_model  # imports Keras, which artifacts do not need
            from keras_vit.runs import load_run, run_directory

            if run_directory.is_run(path) or checkpoint is not None:
                predictor = keras_model.open_run(load_run(path, checkpoint), preprocess, class_names or (), image_size)
            else:
                predictor = keras_model.open_weights(path, preprocess, class_names or (), image_size)
    settings = {"preprocess": preprocess, "class_names": class_names and tuple(class_names), "num_threads": num_threads}
    settings |= {"checkpoint": checkpoint, "image_size": image_size}
    predictor.origin = reopened, (given, *settings.items())
    return predictor


def reopened(origin: tuple[Any, ...], sha256: str) -> Predictor:
    """Open a predictor that was pickled. Each process opens it once.

    Raises a ValueError if the model has changed.
    """
    with _lock:
        return _opened_once(sha256, *origin)


@functools.lru_cache(maxsize=8)
def _opened_once(sha256: str, path: str, *settings: tuple[str, Any]) -> Predictor:
    predictor = open_predictor(path, **dict(settings))
    if predictor.card.sha256 != sha256:
        raise ValueError(
            f"Expected the model that was pickled at {path!r}. Received: other weights. Open it again, and pickle the "
            "new predictor."
        )
    return predictor


def stated_output(path: str) -> outputs.Output | None:
    """Return the kind of output in the card of an artifact or in the config of a run; None without such a file."""
    found = formats.find(path)
    record = model_card.path_of(found[0]) if found else os.path.join(path, "config.json")
    output = file_io.read_json(record).get("output") if os.path.isfile(record) else None
    return outputs.of(output) if output in outputs.NAMES else None


def open_artifact(path: str, num_threads: int | None = None) -> Predictor:
    """Open an artifact at a local path. Arguments and errors are the same as for `open_predictor`."""
    found = formats.find(path)
    if found is None and not os.path.exists(path):
        raise FileNotFoundError(f"No artifact {path!r}.")
    if found is None:
        raise ValueError(
            "Expected a SavedModel (a directory with saved_model.pb, or a directory of numbered versions) or a file "
            f"that ends in {', '.join(formats.EXTENSIONS)}. Received: {path!r}."
        )
    return _opened(*found, num_threads)


def _opened(path: str, format: formats.Format, num_threads: int | None) -> Predictor:  # noqa: A002
    with Progress(f"Opening {path}"):
        return format.open(path, num_threads)
