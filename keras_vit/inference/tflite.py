"""TFLite files as classifiers, run with LiteRT or with TensorFlow's interpreter."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.inference import model_card
from keras_vit.inference.classifier import BaseClassifier, in_batches

CLASSIFY, FEATURES = "classify", "features"  # names of the signatures; not all files have the second


class TFLiteClassifier(BaseClassifier):
    """TFLite file from `images` to `probabilities`, with a fixed batch size.

    Args:
        path: The file.
        num_threads: Threads of the kernels; None for all cores.

    Raises:
        FileNotFoundError: If there is no file or no model card.
        ValueError: If the card does not belong to the file.
    """

    kind = "tflite"

    def __init__(self, path: str, num_threads: int | None = None):
        super().__init__(path, model_card.read(model_card.path_of(path), model_card.parts_of(path)))
        interpreter = make_interpreter(path, num_threads)
        has_features = FEATURES in interpreter.get_signature_list()
        self._classify = interpreter.get_signature_runner(CLASSIFY if has_features else None)
        self._features = interpreter.get_signature_runner(FEATURES) if has_features else None
        self.input_details = self._classify.get_input_details()["images"]
        num_classes = self._classify.get_output_details()["probabilities"]["shape"][-1]
        dtype = np.dtype(self.input_details["dtype"]).name
        model_card.check_signature(path, self.card, self.input_details["shape"], dtype, num_classes)
        if not has_features:
            self.features_unavailable = (
                "this TFLite file returns probabilities only; export it again with --features (float32, float16 and "
                "dynamic_int8), or use the directory of the run"
            )

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return the probabilities `[B, classes]` of preprocessed images `[B, H, W, C]`."""
        return self._run(self._classify, "probabilities", images)

    def features(self, images: np.ndarray) -> np.ndarray:
        """Return the input of the classification head, float32 `[B, D]`."""
        if self._features is None:
            return super().features(images)
        return self._run(self._features, "features", images)

    def _run(self, runner: Any, output: str, images: np.ndarray) -> np.ndarray:
        images = np.asarray(images, self.input_details["dtype"])
        return in_batches(lambda batch: runner(images=batch)[output], images, self.input_details["shape"][0])


def make_interpreter(path: str, num_threads: int | None = None, keep_all: bool = False) -> Any:
    """Open a TFLite file with built-in operators only.

    Args:
        path: The file.
        num_threads: Threads of the kernels; None for all cores.
        keep_all: Whether intermediate results can be read after a call; slow.

    Returns:
        LiteRT's interpreter (`ai-edge-litert`) if it is installed, else TensorFlow's, which has the same interface.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If it is not a TFLite file.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"No TFLite file {path!r}.")
    with open(path, "rb") as file:
        if file.read(8)[4:] != b"TFL3":
            raise ValueError(f"{path!r} is not a TFLite file: it lacks the identifier TFL3.")
    try:
        from ai_edge_litert import interpreter as package
    except ImportError:
        Interpreter, resolvers = tf.lite.Interpreter, tf.lite.experimental.OpResolverType
    else:
        Interpreter, resolvers = package.Interpreter, package.OpResolverType
    options = {}
    if keep_all:
        # XNNPACK does not give intermediate results.
        options["experimental_op_resolver_type"] = resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        options["experimental_preserve_all_tensors"] = True
    with without_deprecation():
        return Interpreter(model_path=path, num_threads=num_threads or os.cpu_count(), **options)


@contextlib.contextmanager
def without_deprecation() -> Iterator[None]:
    """Hide that TensorFlow's interpreter is deprecated: a user of a file cannot act on it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*tf.lite.Interpreter is deprecated.*", category=UserWarning)
        yield
