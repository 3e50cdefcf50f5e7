"""ONNX files as classifiers, run with ONNX Runtime."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.inference import model_card
from keras_vit.inference.classifier import BaseClassifier, in_batches

INPUT, OUTPUT = "images", "probabilities"


class SingleOutputClassifier(BaseClassifier):
    """Common part of the classifiers whose files map `images` to `probabilities` and nothing else.

    Attributes:
        batch_size: Number of images per call; None if the file takes any number.
    """

    batch_size: int | None
    features_unavailable: str | None = (
        "files of this format return probabilities only; use the directory of the run, or a SavedModel exported from it"
    )

    def predict(self, images: np.ndarray) -> np.ndarray:
        images = np.ascontiguousarray(images, np.float32)
        return in_batches(self._run, images, self.batch_size or len(images))

    def _run(self, batch: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class OnnxClassifier(SingleOutputClassifier):
    """ONNX file on the CPU.

    Args:
        path: The file, with the input `images` and the output `probabilities`.
        num_threads: Threads of the kernels; None for all cores.

    Raises:
        ImportError: If ONNX Runtime is not installed.
        FileNotFoundError: If there is no file or no model card.
        ValueError: If the file cannot be opened, or the card does not belong to it.
    """

    kind = "onnx"

    def __init__(self, path: str, num_threads: int | None = None):
        super().__init__(path, model_card.read(model_card.path_of(path), model_card.parts_of(path)))
        self._session = _open_session(path, num_threads)
        (images,), (probabilities,) = self._session.get_inputs(), self._session.get_outputs()
        self.batch_size = images.shape[0] if isinstance(images.shape[0], int) else None
        model_card.check_signature(path, self.card, images.shape, "float32", probabilities.shape[-1])

    def _run(self, batch: np.ndarray) -> np.ndarray:
        return self._session.run([OUTPUT], {INPUT: batch})[0]


def _open_session(path: str, num_threads: int | None) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("ONNX files need ONNX Runtime: pip install 'keras-vision-transformers[onnx]'") from error
    onnxruntime.disable_telemetry_events()  # on in the builds for Windows
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads or os.cpu_count() or 1
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common class
        raise ValueError(f"{path!r} is not an ONNX file that can be run: {error}") from error
    check_names(path, [node.name for node in session.get_inputs()], [node.name for node in session.get_outputs()])
    return session


def check_names(path: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Refuse a file with other inputs or outputs than ours.

    Raises:
        ValueError: If it has other ones.
    """
    if list(inputs) != [INPUT] or list(outputs) != [OUTPUT]:
        raise ValueError(
            f"{path!r} must have the input {INPUT!r} and the output {OUTPUT!r}. Received: {inputs} and {outputs}."
        )
