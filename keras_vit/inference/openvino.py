"""OpenVINO models as predictors."""

import logging
import os
import sys
from typing import Any

import numpy as np
from absl import logging as absl_logging

from keras_vit.inference import model_card
from keras_vit.inference.onnx import INPUT, SingleOutputPredictor, check_names
from keras_vit.util import extras

BFLOAT16 = "mixed_bfloat16"  # weights in float32, computation in bfloat16


class OpenVinoPredictor(SingleOutputPredictor):
    """OpenVINO model on the CPU: an `.xml` file, with the weights in a `.bin` file of the same name.

    The model computes in bfloat16 if the precision in its card is `mixed_bfloat16` and the processor has bfloat16
    instructions (AVX512-BF16, AMX), else in float32. See `runtime_precision`.
    """

    kind = "openvino"

    def __init__(self, path: str, num_threads: int | None = None):
        super().__init__(path, model_card.read(path))
        self._is_half = self.card.precision == BFLOAT16
        compiled = _compile(path, num_threads, self.card.output_name, self._is_half)
        if self._is_half and compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name() == "f32":
            self.runtime_precision = "float32"
            absl_logging.warning(
                "This processor does not compute in bfloat16: %s runs in float32.", os.path.basename(path)
            )
        ports = (*compiled.inputs, *compiled.outputs)
        images, output = ([None if n.is_dynamic else n.get_length() for n in port.partial_shape] for port in ports)
        self._check_card(images, output)
        self.batch_size = images[0]
        self._request = compiled.create_infer_request()

    @property
    def stored_precision(self) -> str:
        """Precision according to the dtypes of the weights and the card, which sets the runtime's precision."""
        nodes = import_openvino().Core().read_model(self.path).get_ops()
        types = {node.get_element_type().get_type_name() for node in nodes if node.get_type_name() == "Constant"}
        return "dynamic_int8" if types & {"i8", "u8"} else "bfloat16" if self._is_half else "float32"

    def _run(self, batch: np.ndarray) -> np.ndarray:
        return self._request.infer({INPUT: batch})[self.card.output_name]


def _compile(path: str, num_threads: int | None, output: str, is_half: bool) -> Any:
    openvino = import_openvino()
    # Without a hint, OpenVINO computes in bfloat16 on CPUs with bfloat16 instructions.
    hint = "bf16" if is_half else "f32"
    config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "LATENCY"}
    if num_threads:
        config["INFERENCE_NUM_THREADS"] = num_threads
    try:
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(path), "CPU", config)
    except RuntimeError as error:
        raise ValueError(f"{path!r} is not an OpenVINO model that can be run: {error}") from error
    inputs, outputs = ([next(iter(port.names), "") for port in ports] for ports in (compiled.inputs, compiled.outputs))
    check_names(path, inputs, outputs, output)
    return compiled


def import_openvino() -> Any:
    """Import OpenVINO without its telemetry, and restore the log handlers that its converter removes."""
    root, telemetry = logging.getLogger(), "openvino_telemetry"
    handlers, imported_before = list(root.handlers), telemetry in sys.modules
    if not imported_before:
        sys.modules[telemetry] = None  # type: ignore[assignment]  # documented: None makes the import fail
    try:
        with extras.needed("openvino", "OpenVINO files need OpenVINO"):
            import openvino
    finally:
        if not imported_before:
            del sys.modules[telemetry]
        for handler in handlers:
            root.addHandler(handler)  # no effect if the handler was not removed
    return openvino
