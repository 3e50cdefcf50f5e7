"""OpenVINO models as predictors."""

import logging
import sys
from typing import Any

import numpy as np

from keras_vit.inference import model_card
from keras_vit.inference.onnx import INPUT, SingleOutputPredictor, check_names
from keras_vit.inference.predictor import Predictor


class OpenVinoPredictor(SingleOutputPredictor):
    """OpenVINO model on the CPU: an `.xml` file, with its weights in a `.bin` file beside it."""

    kind = "openvino"

    def __init__(self, path: str, num_threads: int | None = None):
        super().__init__(path, model_card.read(path))
        compiled = _compile(path, num_threads, self.card.output_name)
        ports = (*compiled.inputs, *compiled.outputs)
        images, output = ([None if n.is_dynamic else n.get_length() for n in port.partial_shape] for port in ports)
        self._check_card(images, output)
        self.batch_size = images[0]
        self._request = compiled.create_infer_request()

    def _run(self, batch: np.ndarray) -> np.ndarray:
        return np.array(
            self._request.infer({INPUT: batch})[self.card.output_name]
        )  # a copy: the next call writes into this memory


def open_artifact(path: str, num_threads: int | None = None) -> Predictor:
    """Open an artifact of this format."""
    return OpenVinoPredictor(path, num_threads)


def _compile(path: str, num_threads: int | None, output: str) -> Any:
    openvino = import_openvino()
    # OpenVINO computes in bfloat16 on CPUs that have it, unless told otherwise.
    config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    if num_threads:
        config["INFERENCE_NUM_THREADS"] = num_threads
    try:
        compiled = openvino.Core().compile_model(path, "CPU", config)
    except RuntimeError as error:
        raise ValueError(f"{path!r} is not an OpenVINO model that can be run: {error}") from error
    inputs, outputs = ([next(iter(port.names), "") for port in ports] for ports in (compiled.inputs, compiled.outputs))
    check_names(path, inputs, outputs, output)
    return compiled


def import_openvino() -> Any:
    """Import OpenVINO without its telemetry, and without the loss of log handlers that its converter causes."""
    root, telemetry = logging.getLogger(), "openvino_telemetry"
    handlers, imported_before = list(root.handlers), telemetry in sys.modules
    if not imported_before:
        sys.modules[telemetry] = None  # type: ignore[assignment]  # its import fails, as Python documents
    try:
        import openvino
    except ImportError as error:
        extra = "keras-vision-transformers[openvino]"
        raise ImportError(f"OpenVINO files need OpenVINO: pip install '{extra}'") from error
    finally:
        if not imported_before:
            del sys.modules[telemetry]
        for handler in handlers:
            root.addHandler(handler)  # nothing happens to those that are still there
    return openvino
