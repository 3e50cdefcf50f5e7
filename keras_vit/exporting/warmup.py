"""Warm-up requests, which a server runs before it receives traffic, so that no user waits for a slow first call.

A record of the file is a `PredictionLog`. The package that defines it, `tensorflow-serving-api`, requires the
`tensorflow` distribution, which must not share an environment with `tensorflow-cpu` or `tensorflow-tpu`. Therefore this
module encodes the messages itself. All required fields are strings or messages, which have the same encoding: a field
number, a length, and the content.

References:
    https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
"""

import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from keras_vit.inference.saved_model import SavedModelPredictor
from keras_vit.util import file_io
from keras_vit.util.progress import Progress

FILE_NAME = "tf_serving_warmup_requests"
MAX_RECORDS = 1000  # the server rejects files with more records
# Field numbers of the model, the signature, and the inputs, which are a map from names to tensors.
_PREDICT_LOG, _REQUEST, _MODEL_SPEC, _MODEL, _SIGNATURE, _INPUTS, _KEY, _VALUE = 6, 1, 1, 1, 3, 2, 1, 2


def write(
    artifact: SavedModelPredictor, model_name: str, contents: Sequence[bytes], batch_sizes: Sequence[int]
) -> list[tuple[str, int]]:
    """Run one request for each signature and batch size, as the server will, and write the requests to the SavedModel.

    Returns the signature and the batch size of each request.
    """
    count = len(batch_sizes) * len(artifact.signatures)
    if count > MAX_RECORDS:
        raise ValueError(f"A warm-up file may contain at most {MAX_RECORDS} requests. Received: {count}.")
    path = os.path.join(artifact.path, "assets.extra", FILE_NAME)
    file_io.make_directory(os.path.dirname(path))
    done = []
    with (
        Progress("Running and writing requests for the warm-up", count, unit="requests") as progress,
        tf.io.TFRecordWriter(path) as writer,
    ):
        for signature, inputs in _requests(artifact, contents, batch_sizes):
            artifact.run(signature, inputs)
            writer.write(encode(model_name, signature, inputs))
            done.append((signature, len(next(iter(inputs.values())))))
            progress.add(1)
    return done


def encode(model: str, signature: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """Encode a request as a `PredictionLog`."""
    request = _field(_MODEL_SPEC, _field(_MODEL, model.encode()) + _field(_SIGNATURE, signature.encode()))
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        request += _field(_INPUTS, _field(_KEY, name.encode()) + _field(_VALUE, tensor))
    return _field(_PREDICT_LOG, _field(_REQUEST, request))


def _requests(
    artifact: SavedModelPredictor, contents: Sequence[bytes], batch_sizes: Sequence[int]
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield one request for each signature and batch size, smallest batches first."""
    height, width, channels = artifact.card.image_shape
    for batch_size in sorted(batch_sizes):
        batch = [contents[index % len(contents)] for index in range(batch_size)]
        values = {
            tf.string.as_datatype_enum: np.array(batch, object),
            tf.uint8.as_datatype_enum: np.zeros((batch_size, height, width, channels), np.uint8),
            tf.float32.as_datatype_enum: np.zeros((batch_size, height, width, channels), np.float32),
        }
        for signature in sorted(artifact.signatures):
            inputs = artifact.signatures[signature].inputs
            yield signature, {name: values[info.dtype] for name, info in inputs.items()}


def _field(number: int, content: bytes) -> bytes:
    """Encode a field of a message: its number, its length in groups of 7 bits, and its content."""
    size, length = len(content), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content
