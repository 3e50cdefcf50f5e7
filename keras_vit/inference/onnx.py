"""ONNX files as predictors, run with ONNX Runtime."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.inference import model_card
from keras_vit.inference.predictor import Predictor, in_batches
from keras_vit.util import extras

INPUT = "images"


class SingleOutputPredictor(Predictor):
    """Base class of predictors whose files map `images` to one output, such as `probabilities` or `values`.

    Attributes:
        batch_size: Number of images per call; None for any number.
    """

    batch_size: int | None
    features_unavailable: str | None = (
        "files of this format return a single output; use the directory of the run, or a SavedModel exported from it"
    )

    def _predict(self, images: np.ndarray) -> np.ndarray:
        images = np.ascontiguousarray(images, np.float32)
        return in_batches(self._run, images, self.batch_size or len(images))

    def _run(self, batch: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class OnnxPredictor(SingleOutputPredictor):
    """ONNX file that runs on the CPU and maps `images` to one output."""

    kind = "onnx"

    def __init__(self, path: str, num_threads: int | None = None):
        super().__init__(path, model_card.read(path))
        self._session = _open_session(path, num_threads, self.card.output_name)
        batch_size = self._session.get_inputs()[0].shape[0]
        self.batch_size = batch_size if isinstance(batch_size, int) else None
        self._check_card(self._session.get_inputs()[0].shape, self._session.get_outputs()[0].shape)

    @property
    def stored_precision(self) -> str:
        """Precision according to the dtypes of the weights."""
        with extras.needed("onnx", "ONNX files need onnx"):
            import onnx
        types = {tensor.data_type for tensor in onnx.load(self.path, load_external_data=False).graph.initializer}
        return "dynamic_int8" if types & {onnx.TensorProto.INT8, onnx.TensorProto.UINT8} else "float32"

    def _run(self, batch: np.ndarray) -> np.ndarray:
        return self._session.run([self.card.output_name], {INPUT: batch})[0]


def _open_session(path: str, num_threads: int | None, output: str) -> Any:
    with extras.needed("onnx", "ONNX files need ONNX Runtime"):
        import onnxruntime
    onnxruntime.disable_telemetry_events()  # enabled by default on Windows
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads or os.cpu_count() or 1
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common class
        raise ValueError(f"{path!r} is not an ONNX file that can be run: {error}") from error
    inputs, outputs = ([node.name for node in nodes] for nodes in (session.get_inputs(), session.get_outputs()))
    check_names(path, inputs, outputs, output)
    return session


def check_names(path: str, inputs: Sequence[str], outputs: Sequence[str], output: str) -> None:
    """Raise an error unless the only input of a file is `images` and the only output is `output`."""
    if list(inputs) != [INPUT] or list(outputs) != [output]:
        raise ValueError(
            f"{path!r} must have the input {INPUT!r} and the output {output!r}. Received: {inputs} and {outputs}."
        )
