"""One way to open everything that predicts."""

import os
from collections.abc import Callable, Sequence

from keras_vit.inference import keras_model
from keras_vit.inference.classifier import Classifier
from keras_vit.inference.onnx import OnnxClassifier
from keras_vit.inference.openvino import OpenVinoClassifier
from keras_vit.inference.saved_model import SavedModelClassifier, list_versions
from keras_vit.inference.tflite import TFLiteClassifier

_FILES: dict[str, Callable[[str, int | None], Classifier]] = {
    ".tflite": TFLiteClassifier,
    ".onnx": OnnxClassifier,
    ".xml": OpenVinoClassifier,
}


def open_classifier(
    path: str | os.PathLike,
    *,
    preprocess: str | None = None,
    labels: Sequence[str] | str | os.PathLike | None = None,
    num_threads: int | None = None,
    checkpoint: str | int = "last",
) -> Classifier:
    """Open anything that predicts.

    Args:
        path: A run directory, a `.keras` file, a checkpoint that `keras_vit.model_from_checkpoint` reads, or an
            artifact: a SavedModel's version directory, a directory of versions (the largest is taken), a `.tflite`,
            `.onnx` or OpenVINO `.xml` file, or a directory with just one such file.
        preprocess: Preprocessing string, needed for `.keras` files and checkpoints that are not part of a run. Decoding
            and resizing are added where they are missing.
        labels: Class names, or a file with one name per line. None for those of the run, artifact or checkpoint.
        num_threads: Threads of an artifact's kernels; None for all cores.
        checkpoint: Weights of a run: `"last"`, `"best"` or the step of a checkpoint, see `keras_vit.training.load_run`.

    Returns:
        The classifier.

    Raises:
        FileNotFoundError: If there is nothing at `path`, or a part of it is missing.
        ValueError: If it cannot be opened, or `preprocess`, `labels` or `checkpoint` do not fit.

    Example:
    >>> classifier = open_classifier("runs/digits")
    >>> with open("images/cat.png", "rb") as file:
    ...     images = classifier.preprocess([file.read()])
    >>> classifier.predict(images).shape
    (1, 10)
    """
    path = os.fspath(path)
    if not is_artifact(path):
        return keras_model.open_model(path, preprocess, labels, checkpoint)
    if preprocess is not None or labels is not None:
        raise ValueError(
            f"The artifact {path!r} holds its own preprocessing and labels. Leave out preprocess and labels."
        )
    if checkpoint != "last":
        raise ValueError(
            f"checkpoint chooses the weights of a run, and {path!r} is an exported artifact. Export the run again with "
            f"that checkpoint. Received: checkpoint={checkpoint!r}."
        )
    return open_artifact(path, num_threads)


def open_artifact(path: str | os.PathLike, num_threads: int | None = None) -> Classifier:
    """Open an exported classifier; arguments as of `open_classifier`.

    Raises:
        FileNotFoundError: If there is nothing, or the model card is missing.
        ValueError: If it cannot be opened, or the model card does not belong to it.
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"No artifact {path!r}.")
    if _extension(path) in _FILES:
        return _FILES[_extension(path)](path, num_threads)
    if os.path.exists(os.path.join(path, "saved_model.pb")):
        return SavedModelClassifier(path, num_threads)
    versions = list_versions(path)
    if versions:
        return SavedModelClassifier(os.path.join(path, str(versions[-1])), num_threads)
    files = [name for name in (os.listdir(path) if os.path.isdir(path) else ()) if _extension(name) in _FILES]
    if len(files) == 1:
        return open_artifact(os.path.join(path, files[0]), num_threads)
    raise ValueError(
        "Expected a SavedModel (a directory with saved_model.pb, or numbered versions of one) or a file that ends in "
        f"{', '.join(_FILES)}. Received: {path!r}."
    )


def is_artifact(path: str) -> bool:
    """Return whether a path looks like an exported artifact rather than a run, a `.keras` file or a checkpoint."""
    if _extension(path) in _FILES or os.path.exists(os.path.join(path, "saved_model.pb")):
        return True
    if not os.path.isdir(path) or keras_model.is_run(path):
        return False
    return bool(list_versions(path)) or any(_extension(name) in _FILES for name in os.listdir(path))


def _extension(path: str) -> str:
    return os.path.splitext(path)[1]
