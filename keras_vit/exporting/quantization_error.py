"""Quantization error per layer: intermediate results of an integer TFLite file against those of the float32 file."""

import re
from typing import Any

import numpy as np

from keras_vit.inference.tflite import make_interpreter

# Names of the model's layers. The copy for export appends numbers to them ("block1_1/unit01_1").
_LAYERS = r"encoderblock_\d+|block\d+_?\d*/unit\d+|MAPHead_\d+|conv_root|embedding|encoder_norm|pre_logits|head"


def per_layer(reference: str, candidate: str, images: np.ndarray, num_images: int = 8) -> list[tuple[str, float]]:
    """Measure how much each layer adds to the error of an integer file."""
    files = [make_interpreter(path, keep_all=True) for path in (reference, candidate)]
    for file in files:
        file.allocate_tensors()
    shared = _shared_results(*files)
    sums = {layer: np.zeros(2) for layer in shared}
    batch_size = files[0].get_input_details()[0]["shape"][0]
    for start in range(0, min(num_images, len(images)), batch_size):
        batch = images[np.arange(start, start + batch_size) % len(images)]
        for file in files:
            entry = file.get_input_details()[0]
            file.set_tensor(entry["index"], batch.astype(entry["dtype"]))
            file.invoke()
        for layer, (expected, found) in shared.items():
            a, b = _value(files[0], expected), _value(files[1], found)
            finite = np.isfinite(a)  # padding of infinity
            sums[layer] += np.sum(np.square(a - b)[finite]), np.sum(np.square(a)[finite])
    errors = {layer: float(np.sqrt(wrong / max(size, 1e-30))) for layer, (wrong, size) in sums.items()}
    growth, before = [], 0.0
    for layer, error in errors.items():
        growth.append((layer, error - before))
        before = error
    return sorted(growth, key=lambda item: -item[1])


def _shared_results(reference: Any, candidate: Any) -> dict[str, tuple[dict, dict]]:
    """Return the last result of each layer that both files have, as tensor details, in the order of the graph."""
    found = {detail["name"]: detail for detail in candidate.get_tensor_details() if _is_real(detail)}
    shared: dict[str, tuple[dict, dict]] = {}
    for detail in reference.get_tensor_details():
        other, layer = found.get(detail["name"]), layer_of(detail["name"])
        if layer and other is not None and _is_real(detail) and np.array_equal(detail["shape"], other["shape"]):
            shared.pop(layer, None)  # the position of its last result counts
            shared[layer] = (detail, other)
    return shared


def _is_real(detail: dict) -> bool:
    """Return whether a tensor holds real numbers, as floats or with one scale for all."""
    return detail["dtype"] == np.float32 or len(detail["quantization_parameters"]["scales"]) == 1


def _value(file: Any, detail: dict) -> np.ndarray:
    """Return a tensor as real numbers."""
    value = file.get_tensor(detail["index"])
    if value.dtype == np.float32:
        return value.astype(np.float64)
    scales = detail["quantization_parameters"]["scales"]
    return (value.astype(np.float64) - detail["quantization_parameters"]["zero_points"][0]) * scales[0]


def layer_of(tensor_name: str) -> str | None:
    """Return the layer in a tensor's name, such as `encoderblock_3` or `head`; None if there is none."""
    match = re.search(rf"/({_LAYERS})(?=[_/;]|$)", tensor_name)
    return re.sub(r"(?<=^block)(\d+)_\d+/", r"\1/", match[1]) if match else None
