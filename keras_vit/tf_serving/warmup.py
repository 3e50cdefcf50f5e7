"""Warm-up requests, which a server runs before it takes traffic, so that no user waits for a first call."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.inference.saved_model import SavedModelClassifier
from keras_vit.tf_serving import messages, tensors

FILE_NAME = "tf_serving_warmup_requests"
MAX_RECORDS = 1000  # the server refuses files with more


def write_warmup(
    artifact: SavedModelClassifier, model_name: str, contents: Sequence[bytes], batch_sizes: Sequence[int]
) -> str:
    """Write one request for each signature and batch size into a SavedModel.

    Args:
        artifact: The SavedModel.
        model_name: Its name on the server.
        contents: Encoded images to fill batches with.
        batch_sizes: Batch sizes that the server will run (`allowed_batch_sizes`).

    Returns:
        The path of the file.

    Raises:
        ValueError: If there would be more records than a server takes.
    """
    requests = list(warmup_requests(artifact, model_name, contents, batch_sizes))
    if len(requests) > MAX_RECORDS:
        raise ValueError(f"A warm-up file holds at most {MAX_RECORDS} requests. Received: {len(requests)}.")
    path = os.path.join(artifact.path, "assets.extra", FILE_NAME)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tf.io.TFRecordWriter(path) as writer:
        for request in requests:
            log = messages.messages().PredictionLog()
            log.predict_log.request.CopyFrom(request)
            writer.write(log.SerializeToString())
    return path


def warmup_requests(
    artifact: SavedModelClassifier, model_name: str, contents: Sequence[bytes], batch_sizes: Sequence[int]
) -> Iterator[Any]:
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
            request = {name: values[info.dtype] for name, info in inputs.items()}
            yield messages.predict_request(model_name, signature, request)


def replay(artifact: SavedModelClassifier) -> list[tuple[str, int]]:
    """Run the warm-up file of a SavedModel record by record, as the server does.

    Args:
        artifact: The SavedModel.

    Returns:
        The signature and batch size of each record.

    Raises:
        ValueError: If a record is no prediction, or does not fit the SavedModel.
    """
    done = []
    path = os.path.join(artifact.path, "assets.extra", FILE_NAME)
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        log = messages.messages().PredictionLog.FromString(record)
        if not log.HasField("predict_log"):
            raise ValueError(f"{path} must hold prediction requests. Received a record of another kind.")
        request = log.predict_log.request
        inputs = {name: tensors.decode(value) for name, value in request.inputs.items()}
        artifact.run(request.model_spec.signature_name, inputs)
        done.append((request.model_spec.signature_name, len(next(iter(inputs.values())))))
    return done
