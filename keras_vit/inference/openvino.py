"""OpenVINO models as classifiers."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_vit.inference import model_card
from keras_vit.inference.classifier import Classifier
from keras_vit.inference.onnx import INPUT, SingleOutputClassifier, check_names


class OpenVinoClassifier(SingleOutputClassifier):
    """OpenVINO model on the CPU: an `.xml` file, with its weights in a `.bin` file beside it."""

    kind = "openvino"

    def __init__(self, path: str, num_threads: int | None = None):
        super().__init__(path, model_card.read(path))
        compiled = _compile(path, num_threads, self.card.output_name)
        shape = [None if size.is_dynamic else size.get_length() for size in compiled.inputs[0].partial_shape]
        self.batch_size = shape[0]
        num_classes = compiled.outputs[0].partial_shape[1].get_length()
        model_card.check_signature(path, self.card, shape, "float32", num_classes)
        self._request = compiled.create_infer_request()

    def _run(self, batch: np.ndarray) -> np.ndarray:
        return np.array(
            self._request.infer({INPUT: batch})[self.card.output_name]
        )  # a copy: the next call writes into this memory


def open_artifact(path: str, num_threads: int | None = None) -> Classifier:
    """Open an artifact of this format."""
    return OpenVinoClassifier(path, num_threads)


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
    """Import OpenVINO with its telemetry disabled; its converter would also take the handler of log lines away."""
    with _hidden("openvino_telemetry"), _kept_handlers():
        try:
            import openvino
        except ImportError as error:
            extra = "keras-vision-transformers[openvino]"
            raise ImportError(f"OpenVINO files need OpenVINO: pip install '{extra}'") from error
    return openvino


@contextlib.contextmanager
def _kept_handlers() -> Iterator[None]:
    """Give handlers back to the root logger that were removed inside the block."""
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        yield
    finally:
        for handler in before:
            root.addHandler(handler)  # nothing happens to those that are still there


@contextlib.contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Let imports of a module fail inside the block, unless it was imported before."""
    present = name in sys.modules
    if not present:
        sys.modules[name] = None  # type: ignore[assignment]  # what Python documents for this
    try:
        yield
    finally:
        if not present:
            del sys.modules[name]
