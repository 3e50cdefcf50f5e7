"""Metadata inside TFLite files: labels and normalization where MediaPipe Tasks and Android Studio read them.

`tflite-support`, which used to write it, is no longer maintained, and `mediapipe` requires other versions of NumPy and
protobuf than TensorFlow. The metadata is a table of a published schema in the file's list of metadata, under the name
TFLITE_METADATA, and the labels are a text file in an uncompressed ZIP archive behind the model. The part of the schema
that an image predictor needs is declared below.

References:
    https://ai.google.dev/edge/litert/models/metadata
    https://github.com/google-ai-edge/mediapipe/blob/master/mediapipe/tasks/metadata/metadata_schema.fbs
"""

import io
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from keras_vit.data import preprocess as preprocessing
from keras_vit.inference.model_card import ModelCard, labels_text

NAME = "TFLITE_METADATA"
IDENTIFIER = b"M001"
LABELS = "labels.txt"
_PARSER_VERSION = "1.0.0"  # the version of the schema that had all of these fields
_ALIGNMENT = 16  # of the weights, by the schema of TFLite

# Numbers of the fields in their tables. A union has two: its type and its place.
_MODEL = {"name": 0, "description": 1, "version": 2, "subgraphs": 3, "license": 5, "min_parser_version": 7}
_SUBGRAPH = {"name": 0, "inputs": 2, "outputs": 3}
_TENSOR = {"name": 0, "description": 1, "content": 3, "process_units": 4, "stats": 5, "files": 6}
_UNION = {"kind": 0, "value": 1}  # Content and ProcessUnit
_IMAGE = {"color_space": 0, "size": 1}
_SIZE = {"width": 0, "height": 1}
_NORMALIZATION = {"mean": 0, "std": 1}
_STATS = {"max": 0, "min": 1}
_FILE = {"name": 0, "description": 1, "type": 2}
_FEATURE_CONTENT, _IMAGE_CONTENT = 1, 2
_NORMALIZATION_UNIT = 1
_AXIS_LABELS = 2
_RGB, _GRAYSCALE = 1, 2


def add(content: bytes, card: ModelCard) -> bytes:
    """Return the content of a TFLite file with metadata and labels. Its weights stay aligned to 16 bytes."""
    import flatbuffers
    from tensorflow.lite.python import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(table_bytes(describe(card)), np.uint8)
    model.buffers.append(buffer)
    entry = schema.MetadataT()
    entry.name, entry.buffer = NAME.encode(), len(model.buffers) - 1
    model.metadata = [*(model.metadata or []), entry]

    class Builder(flatbuffers.Builder):
        """Align bytes as the schema demands; the generated code does not."""

        def StartVector(self, elemSize, numElems, alignment):  # noqa: N802, N803  the name that is overridden
            alignment = _ALIGNMENT if elemSize == 1 else alignment
            return super().StartVector(elemSize, numElems, alignment)

    builder = Builder(len(content) + (1 << 16))
    builder.Finish(model.Pack(builder), b"TFL3")
    output = io.BytesIO()
    output.write(builder.Output())
    if card.class_names:
        with zipfile.ZipFile(output, "a", zipfile.ZIP_STORED) as archive:
            # A fixed time, so that the same model gives the same file.
            archive.writestr(zipfile.ZipInfo(LABELS), labels_text(card.class_names))
    return output.getvalue()


class Table(NamedTuple):
    """Table to write.

    Attributes:
        numbers: Numbers of the fields.
        values: Values by field: strings, tables, lists of tables, float32 arrays, or pairs of a number type and a
            number. Fields with None are left out.
    """

    numbers: Mapping[str, int]
    values: Mapping[str, Any]


def describe(card: ModelCard) -> Table:
    """Return the metadata of a predictor."""
    height, width, channels = card.image_shape
    color = {1: _GRAYSCALE, 3: _RGB}.get(channels, 0)
    size = Table(_SIZE, {"width": ("Uint32", width), "height": ("Uint32", height)})
    image = Table(_IMAGE, {"color_space": ("Int8", color), "size": size})
    labels = {"name": LABELS, "description": "The names of the classes.", "type": ("Int8", _AXIS_LABELS)}
    constants = normalization(card.preprocess, channels)
    units, limits = None, None
    if constants is not None:
        mean, std = constants
        units = [_union(_NORMALIZATION_UNIT, Table(_NORMALIZATION, {"mean": mean, "std": std}))]
        limits = Table(_STATS, {"max": (255 - mean) / std, "min": -mean / std})
    inputs = {"name": "images", "content": _union(_IMAGE_CONTENT, image), "process_units": units, "stats": limits}
    outputs: dict[str, Any] = {"name": card.output_name, "content": _union(_FEATURE_CONTENT, Table({}, {}))}
    if card.class_names:
        outputs["stats"] = Table(_STATS, {"max": np.ones(1, np.float32), "min": np.zeros(1, np.float32)})
        outputs["files"] = [Table(_FILE, labels)]
    subgraph = {"name": "classify", "inputs": [Table(_TENSOR, inputs)], "outputs": [Table(_TENSOR, outputs)]}
    model = {
        "name": card.architecture or "predictor",
        "subgraphs": [Table(_SUBGRAPH, subgraph)],
        "min_parser_version": _PARSER_VERSION,
    }
    return Table(_MODEL, model)


def normalization(pp: str, channels: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the mean and standard deviation of the normalization at the end of a preprocessing string.

    They are float32 `[channels]`, for pixels from 0 to 255 that become `(pixel - mean) / std`; None if the string ends
    in another way.
    """
    finish = preprocessing.device_function(pp)
    pixels = np.array([0, 100, 255], np.uint8)
    values = np.asarray(finish(np.broadcast_to(pixels[:, None, None, None], (3, 1, 1, channels))), np.float64)[:, 0, 0]
    scale, offset = (values[2] - values[0]) / 255, values[0]
    if not (scale > 0).all() or not np.allclose(values[1], offset + 100 * scale, rtol=1e-5, atol=1e-5):
        logging.warning("The metadata lacks the normalization: %r does not end in a mean and a deviation.", pp)
        return None
    return (-offset / scale).astype(np.float32), (1 / scale).astype(np.float32)


def table_bytes(table: Table) -> bytes:
    """Return the bytes of a table with the schema's identifier."""
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(_write(builder, table), IDENTIFIER)
    return bytes(builder.Output())


def _union(kind: int, value: Table) -> Table:
    return Table(_UNION, {"kind": ("Uint8", kind), "value": value})


def _write(builder: Any, value: Any) -> int:
    """Write a value after its parts and return its place."""
    if isinstance(value, str):
        return builder.CreateString(value)
    if isinstance(value, np.ndarray):
        return builder.CreateNumpyVector(value)
    if isinstance(value, list):
        items = [_write(builder, item) for item in value]
        builder.StartVector(4, len(items), 4)
        for place in reversed(items):
            builder.PrependUOffsetTRelative(place)
        return builder.EndVector()
    present = {value.numbers[name]: item for name, item in value.values.items() if item is not None}
    places = {n: _write(builder, item) for n, item in present.items() if not _is_number(item)}
    builder.StartObject(max(value.numbers.values(), default=-1) + 1)
    for number, item in present.items():
        if number in places:
            builder.PrependUOffsetTRelativeSlot(number, places[number], 0)
        else:
            getattr(builder, f"Prepend{item[0]}Slot")(number, item[1], 0)
    return builder.EndObject()


def _is_number(item: Any) -> bool:
    return isinstance(item, tuple) and not isinstance(item, Table)
