"""TFLite files as predictors, run by LiteRT or by TensorFlow's interpreter."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_vit.inference import model_card
from keras_vit.inference.predictor import Predictor, in_batches

FEATURES = "features"  # the optional second signature


class TFLitePredictor(Predictor):
    """TFLite file that maps `images` to one output, with a fixed batch size."""

    kind = "tflite"

    def __init__(self, path: str, num_threads: int | None = None):
        super().__init__(path, model_card.read(path))
        interpreter = make_interpreter(path, num_threads)
        signatures, name = interpreter.get_signature_list(), self.card.kind.signature
        name = name if name in signatures else next(iter(signatures))  # `_check_card` raises an error
        self._answers = interpreter.get_signature_runner(name)
        has_features = FEATURES in signatures and name != FEATURES
        self._features = interpreter.get_signature_runner(FEATURES) if has_features else None
        self.input_details = self._answers.get_input_details()["images"]
        ((output_name, output),) = self._answers.get_output_details().items()
        shape, dtype = self.input_details["shape"].tolist(), np.dtype(self.input_details["dtype"]).name
        self._check_card(
            shape, output["shape"].tolist(), output_name=output_name, batch_size=shape[0], input_dtype=dtype
        )
        if self._features is None and not self.card.kind.has_features:
            self.features_unavailable = (
                f"this TFLite file returns {self.card.output_name} only; export it again with --features (not for "
                "int8 and int16x8), or use the directory of the run"
            )

    @property
    def stored_precision(self) -> str:
        """Precision according to the dtypes of the weights and of the operators' outputs."""
        with open(self.path, "rb") as file:
            stored, computed = tensor_types(file.read())
        if "INT16" in computed:
            return "int16x8"
        if "INT8" in computed:
            return "int8"
        if "INT8" in stored:
            return "dynamic_int8"
        return "float16" if "FLOAT16" in stored else "float32"

    def _predict(self, images: np.ndarray) -> np.ndarray:
        return self._run(self._answers, self.card.output_name, images)

    def features(self, images: np.ndarray) -> np.ndarray:
        """Return the input of the classification head, float32 `[B, D]`."""
        if self._features is None:
            return super().features(images)
        return self._run(self._features, "features", images)

    def _run(self, runner: Any, output: str, images: np.ndarray) -> np.ndarray:
        images = np.asarray(self.prepared(images), self.input_details["dtype"])
        return in_batches(lambda batch: runner(images=batch)[output], images, self.input_details["shape"][0])


def tensor_types(content: bytes) -> tuple[set[str], set[str]]:
    """Return the dtypes of a TFLite file's constants and inputs, and those of the outputs of its operators."""
    from tensorflow.lite.python import schema_py_generated as schema

    names = {code: name for name, code in vars(schema.TensorType).items() if isinstance(code, int)}
    model = schema.Model.GetRootAs(content, 0)
    stored: set[str] = set()
    computed: set[str] = set()
    for graph in map(model.Subgraphs, range(model.SubgraphsLength())):
        operators = map(graph.Operators, range(graph.OperatorsLength()))
        results = {int(index) for operator in operators for index in operator.OutputsAsNumpy()}
        for index in range(graph.TensorsLength()):
            (computed if index in results else stored).add(names[graph.Tensors(index).Type()])
    return stored, computed


def make_interpreter(path: str, num_threads: int | None = None) -> Any:
    """Open a TFLite file of built-in operators with LiteRT (`ai-edge-litert`) if installed, else with TensorFlow.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is not a TFLite file.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"No TFLite file {path!r}.")
    with open(path, "rb") as file:
        if file.read(8)[4:] != b"TFL3":
            raise ValueError(f"{path!r} is not a TFLite file: it lacks the identifier TFL3.")
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        import tensorflow as tf  # imported only if needed, because the import takes seconds

        Interpreter = tf.lite.Interpreter
    with without_deprecation():
        return Interpreter(model_path=path, num_threads=num_threads or os.cpu_count())


@contextlib.contextmanager
def without_deprecation() -> Iterator[None]:
    """Hide the deprecation warning of TensorFlow's interpreter, which the user of a file cannot avoid."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*tf.lite.Interpreter is deprecated.*", category=UserWarning)
        yield
