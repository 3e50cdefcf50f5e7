"""SavedModels as predictors, loaded and run as in TF Serving."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import outputs
from keras_vit.inference import model_card
from keras_vit.inference.predictor import Predictor
from keras_vit.util import onednn

_PRODUCTS = ("MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D")
FEATURES_TENSOR = "features_tensor"  # signature from preprocessed images to features


class SavedModelPredictor(Predictor):
    """SavedModel with the tag `serve`, which runs in a TF1 session and selects tensors by name, like TF Serving."""

    kind = "saved_model"

    def __init__(self, path: str, num_threads: int | None = None):
        onednn.advise()
        super().__init__(path, model_card.read(path))
        self._graph = tf.Graph()
        # Use a separate thread pool: the first session in a process sets the size of the shared pool.
        config = tf.compat.v1.ConfigProto(use_per_session_threads=True, intra_op_parallelism_threads=num_threads or 0)
        self._session = tf.compat.v1.Session(graph=self._graph, config=config)
        try:
            with self._graph.as_default(), _without_deprecation_warnings():
                loaded = tf.compat.v1.saved_model.loader.load(self._session, [tf.saved_model.SERVING], path)
            self.signatures = {name: sig for name, sig in loaded.signature_def.items() if not name.startswith("__")}
            tensors = self.signatures["serve_tensor"]
            output_name = next(kind.output_name for kind in outputs.KINDS if kind.output_name in tensors.outputs)
            infos = (tensors.inputs["images"], tensors.outputs[output_name])
            images, output = ([size.size for size in info.tensor_shape.dim] for info in infos)
            self._check_card(images, output, output_name=output_name)
        except BaseException:
            self._session.close()
            raise
        if FEATURES_TENSOR not in self.signatures and not self.card.kind.has_features:
            self.features_unavailable = (
                f"this SavedModel has no signature {FEATURES_TENSOR!r}; export it again with --signature=features, or "
                "use the directory of the run"
            )

    @property
    def stored_precision(self) -> str:
        """Precision of the matrix products and convolutions in the graph."""
        graph = self._graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        types = {tf.as_dtype(node.attr["T"].type).name for node in nodes if node.op in _PRODUCTS}
        # The name of `tf.half` is float16.
        return next((name for name in ("bfloat16", "float16") if name in types), "float32")

    def run(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run a signature. Inputs and outputs are dictionaries by name.

        Raises:
            ValueError: If the signature or the name of an input is unknown, or an input is missing.
        """
        if signature not in self.signatures:
            raise ValueError(f"Unknown signature {signature!r}. Available: {', '.join(sorted(self.signatures))}.")
        definition = self.signatures[signature]
        if inputs.keys() != definition.inputs.keys():
            raise ValueError(
                f"The signature {signature!r} takes the inputs {sorted(definition.inputs)}. Received: {sorted(inputs)}."
            )
        fetches = {name: info.name for name, info in definition.outputs.items()}
        return self._session.run(fetches, {definition.inputs[name].name: value for name, value in inputs.items()})

    def _predict(self, images: np.ndarray) -> np.ndarray:
        return self.run("serve_tensor", {"images": images})[self.card.output_name]

    def features(self, images: np.ndarray) -> np.ndarray:
        """Return the input of the classification head, float32 `[B, D]`."""
        if FEATURES_TENSOR not in self.signatures:
            return super().features(images)
        return self.run(FEATURES_TENSOR, {"images": self.prepared(images)})["features"]

    def close(self) -> None:
        """Free the session."""
        self._session.close()


@contextlib.contextmanager
def _without_deprecation_warnings() -> Iterator[None]:
    """Hide the deprecation warning of the session loader, which is also the loader of TF Serving."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)
