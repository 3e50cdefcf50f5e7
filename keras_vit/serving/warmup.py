"""Warm-up requests: a server runs them before it takes traffic, so that no user waits for a first call."""

import os

import numpy as np
import tensorflow as tf

from keras_vit.serving import artefacts, protocol

FILE_NAME = "tf_serving_warmup_requests"
MOST_RECORDS = 1000  # the server refuses files with more


def write_warmup(
    artefact: artefacts.SavedModelArtefact, model_name: str, contents: list[bytes], batch_sizes: list[int]
) -> str:
    """Writes one request for each signature and batch size into an artefact.

    Args:
        artefact: The SavedModel.
        model_name: Its name on the server.
        contents: Some encoded pictures to fill batches with.
        batch_sizes: The batch sizes that the server will run (`allowed_batch_sizes`).

    Returns:
        The path of the file.

    Raises:
        ValueError: If there would be more records than a server takes.
    """
    requests = list(warmup_requests(artefact, model_name, contents, batch_sizes))
    if len(requests) > MOST_RECORDS:
        raise ValueError(f"A warm-up file holds at most {MOST_RECORDS} requests. Received: {len(requests)}.")
    path = os.path.join(artefact.path, "assets.extra", FILE_NAME)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tf.io.TFRecordWriter(path) as writer:
        for request in requests:
            log = protocol.messages().PredictionLog()
            log.predict_log.request.CopyFrom(request)
            writer.write(log.SerializeToString())
    return path


def warmup_requests(
    artefact: artefacts.SavedModelArtefact, model_name: str, contents: list[bytes], batch_sizes: list[int]
):
    """The requests, one for each signature and batch size, smallest batches first."""
    height, width, channels = artefact.card["image_shape"]
    for batch_size in sorted(batch_sizes):
        batch = [contents[index % len(contents)] for index in range(batch_size)]
        values = {
            tf.string.as_datatype_enum: np.array(batch, object),
            tf.uint8.as_datatype_enum: np.zeros((batch_size, height, width, channels), np.uint8),
            tf.float32.as_datatype_enum: np.zeros((batch_size, height, width, channels), np.float32),
        }
        for signature in sorted(artefact.signatures):
            inputs = artefact.signatures[signature].inputs
            request = {name: values[info.dtype] for name, info in inputs.items()}
            yield protocol.predict_request(model_name, signature, request)


def replay(artefact: artefacts.SavedModelArtefact) -> list[tuple[str, int]]:
    """Runs the warm-up file of an artefact record by record, as the server does.

    Args:
        artefact: The SavedModel.

    Returns:
        The signature and batch size of each record.

    Raises:
        ValueError: If a record is no prediction, or does not fit the artefact.
    """
    done = []
    path = os.path.join(artefact.path, "assets.extra", FILE_NAME)
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        log = protocol.messages().PredictionLog.FromString(record)
        if not log.HasField("predict_log"):
            raise ValueError(f"{path} must hold prediction requests. Received a record of another kind.")
        request = log.predict_log.request
        inputs = {name: protocol.decode_tensor(value) for name, value in request.inputs.items()}
        artefact.run(request.model_spec.signature_name, inputs)
        done.append((request.model_spec.signature_name, len(next(iter(inputs.values())))))
    return done
