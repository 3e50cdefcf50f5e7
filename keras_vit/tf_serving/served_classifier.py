"""Classifiers of any format behind the signature of an exported SavedModel."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.exporting import safe_decode
from keras_vit.inference import Classifier
from keras_vit.inference.probabilities import TOP_K


class ServedClassifier:
    """Classifier with the signature `serving_default`: encoded images in, labels and probabilities out."""

    def __init__(self, classifier: Classifier, top_k: int = TOP_K):
        if not classifier.class_names:
            raise ValueError(f"The model must have a classification head. Received: {classifier.path!r}.")
        self._classifier = classifier
        self._labels = np.array([name.encode() for name in classifier.class_names], object)
        self._top_k = min(top_k, len(self._labels))
        self._lock = threading.Lock()  # an interpreter runs one batch at a time
        self.signatures = {"serving_default": self._signature()}

    def run(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Classify encoded images. An unreadable one gets zeros and `valid` = False.

        Args:
            signature: `"serving_default"`.
            inputs: `image_bytes`, an array of bytes `[B]`.
        """
        del signature
        images = [self._read(contents) for contents in inputs["image_bytes"]]
        valid = np.array([image is not None for image in images], bool)
        probabilities = np.zeros((len(images), len(self._labels)), np.float32)
        if valid.any():
            with self._lock:
                probabilities[valid] = self._classifier.predict(np.stack([i for i in images if i is not None]))
        order = np.argsort(-probabilities, axis=-1, kind="stable")[:, : self._top_k]
        return {
            "probabilities": probabilities,
            "top_k_classes": np.where(valid[:, None], self._labels[order], np.array(b"", object)),
            "top_k_scores": np.take_along_axis(probabilities, order, axis=-1),
            "valid": valid,
        }

    def close(self) -> None:
        """Free what the classifier holds."""
        self._classifier.close()

    def _read(self, contents: bytes) -> np.ndarray | None:
        """Preprocess an encoded image; None if it is unreadable or too large."""
        try:
            safe_decode.check_size(tf.constant(contents))
            return self._classifier.preprocess([contents])[0]
        except tf.errors.OpError:
            return None

    def _signature(self) -> Any:
        """Return the description of the signature for metadata requests."""
        with tf.Graph().as_default():
            placeholder = tf.compat.v1.placeholder
            inputs = {"image_bytes": placeholder(tf.string, [None])}
            outputs = {
                "probabilities": placeholder(tf.float32, [None, len(self._labels)]),
                "top_k_classes": placeholder(tf.string, [None, self._top_k]),
                "top_k_scores": placeholder(tf.float32, [None, self._top_k]),
                "valid": placeholder(tf.bool, [None]),
            }
            return tf.compat.v1.saved_model.predict_signature_def(inputs=inputs, outputs=outputs)
