"""Every kind of exported classifier behind one interface: images in, probabilities out."""

import functools
import os

import keras
import numpy as np
import tensorflow as tf

from keras_vit import models
from keras_vit.serving import card, interpreter, outputs, runtimes, signatures, versions

CLASSIFY, FEATURES = "classify", "features"  # signatures of TFLite files; not all have the second


class Artefact:
    """A classifier of any format.

    Attributes:
        kind: "keras", "saved_model", "tflite", "onnx" or "openvino".
        path: Where it came from.
        card: What describes it (see `keras_vit.serving.card`): class names, preprocessing, output function.
        scores_are: "logits" or "probabilities": what `predict_scores` returns.
        without_features: Why `predict_features` does not work, and what to do; None where it does.
    """

    kind = ""
    scores_are = "probabilities"
    without_features: str | None = None

    def __init__(self, path: str, description: dict):
        self.path = path
        self.card = description

    @property
    def class_names(self) -> tuple[str, ...]:
        """One label for each class."""
        return tuple(self.card["class_names"])

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Probabilities `[B, classes]` of preprocessed images, float32 `[B, H, W, C]`."""
        raise NotImplementedError

    def predict_scores(self, images: np.ndarray) -> np.ndarray:
        """Logits `[B, classes]` where the artefact has them, else probabilities; `scores_are` tells."""
        return self.predict(images)

    def predict_features(self, images: np.ndarray) -> np.ndarray:
        """What the head reads, float32 `[B, D]`, of preprocessed images.

        Raises:
            ValueError: If the artefact does not hold it; see `without_features`.
        """
        raise ValueError(f"{self.without_features}.")


class KerasArtefact(Artefact):
    """A Keras model with its head.

    Args:
        model: The model.
        description: Its card.
        path: Where it came from.
    """

    kind = "keras"

    def __init__(self, model: keras.Model, description: dict, path: str = ""):
        super().__init__(path, description)
        self.model = model
        if not model.get_config().get("classifier_activation"):
            self.scores_are = "logits"

        self._scores = self._compiled(model)

    def _compiled(self, network):
        if keras.backend.backend() != "tensorflow":
            return network.predict_on_batch
        # The batch size stays open, so that a smaller last batch is not traced anew.
        spec = tf.TensorSpec((None, *self.model.input_shape[1:]), tf.float32)
        return tf.function(lambda images: network(images, training=False), input_signature=[spec], autograph=False)

    @functools.cached_property
    def _features_and_scores(self):
        return self._compiled(models.representation(self.model))

    def predict_features(self, images):
        return np.asarray(self._features_and_scores(np.asarray(images, np.float32))[0], np.float32)

    def predict_scores(self, images):
        return np.asarray(self._scores(np.asarray(images, np.float32)), np.float32)

    def predict(self, images):
        scores = self.predict_scores(images)
        return (
            scores
            if self.scores_are == "probabilities"
            else outputs.to_probabilities(scores, self.card["output"]).numpy()
        )


class SavedModelArtefact(Artefact):
    """A SavedModel, loaded and run as the server does it: a TF1 session, the tag `serve`, tensors by name.

    Args:
        path: The version directory.
        num_threads: Threads of the kernels; None for all cores.
    """

    kind = "saved_model"

    def __init__(self, path: str, num_threads: int | None = None):
        super().__init__(path, card.read(os.path.join(path, "assets.extra", card.FILE_NAME), card.parts_of(path)))
        self._graph = tf.Graph()
        # A pool of its own: the pool that sessions share has the size that the first of them asked for.
        config = tf.compat.v1.ConfigProto(use_per_session_threads=True, intra_op_parallelism_threads=num_threads or 0)
        self._session = tf.compat.v1.Session(graph=self._graph, config=config)
        try:
            with self._graph.as_default(), _quiet_deprecations():
                loaded = tf.compat.v1.saved_model.loader.load(self._session, [tf.saved_model.SERVING], path)
            self.signatures = {name: sig for name, sig in loaded.signature_def.items() if not name.startswith("__")}
            self._check_card()
        except BaseException:
            self._session.close()
            raise
        if signatures.FEATURES_TENSOR not in self.signatures:
            self.without_features = (
                f"this SavedModel has no signature {signatures.FEATURES_TENSOR!r}: export it again, with "
                "--signature=features, or evaluate the directory of the run"
            )

    def _check_card(self):
        definition = self.signatures["serve_tensor"]
        images, probabilities = definition.inputs["images"], definition.outputs["probabilities"]
        shape = [dimension.size for dimension in images.tensor_shape.dim]
        num_classes = probabilities.tensor_shape.dim[1].size
        card.check_signature(self.path, self.card, shape, tf.as_dtype(images.dtype).name, num_classes)

    def run(self, signature: str, inputs: dict) -> dict[str, np.ndarray]:
        """Runs a signature.

        Args:
            signature: Its name.
            inputs: Values by input name.

        Returns:
            Values by output name.

        Raises:
            ValueError: If the signature or an input is unknown.
        """
        if signature not in self.signatures:
            raise ValueError(f"Expected a signature out of {sorted(self.signatures)}. Received: {signature!r}.")
        definition = self.signatures[signature]
        if inputs.keys() != definition.inputs.keys():
            raise ValueError(
                f"The signature {signature!r} takes the inputs {sorted(definition.inputs)}. Received: {sorted(inputs)}."
            )
        fetches = {name: info.name for name, info in definition.outputs.items()}
        return self._session.run(fetches, {definition.inputs[name].name: value for name, value in inputs.items()})

    def predict(self, images):
        return self.run("serve_tensor", {"images": images})["probabilities"]

    def predict_features(self, images):
        return self.run(signatures.FEATURES_TENSOR, {"images": images})["features"]

    def close(self):
        """Frees the session."""
        self._session.close()


class TFLiteArtefact(Artefact):
    """A TFLite file that takes `images` and gives `probabilities`, and perhaps features, with a fixed batch size.

    Args:
        path: The file.
        num_threads: Threads of the kernels; None for all cores.
    """

    kind = "tflite"

    def __init__(self, path: str, num_threads: int | None = None):
        super().__init__(path, card.read(card.beside(path), card.parts_of(path)))
        opened = interpreter.make_interpreter(path, num_threads)
        several = FEATURES in opened.get_signature_list()
        self._runner = opened.get_signature_runner(CLASSIFY if several else None)
        self._features_runner = opened.get_signature_runner(FEATURES) if several else None
        self.input_details = self._runner.get_input_details()["images"]
        num_classes = self._runner.get_output_details()["probabilities"]["shape"][-1]
        dtype = np.dtype(self.input_details["dtype"]).name
        card.check_signature(path, self.card, self.input_details["shape"], dtype, num_classes)
        if not several:
            self.without_features = (
                "this TFLite file gives probabilities only, not the features before the head: export it again with "
                "--features (float32, float16 and dynamic_int8), or evaluate the directory of the run"
            )

    def predict(self, images):
        return self._run(self._runner, "probabilities", images)

    def predict_features(self, images):
        if self._features_runner is None:
            return super().predict_features(images)
        return self._run(self._features_runner, "features", images)

    def _run(self, runner, output, images):
        images = np.asarray(images, self.input_details["dtype"])
        return in_batches(lambda batch: runner(images=batch)[output], images, self.input_details["shape"][0])


class RuntimeArtefact(Artefact):
    """A file that ONNX Runtime or OpenVINO runs.

    Args:
        path: The file, `.onnx` or `.xml`.
        num_threads: Threads of the kernels; None for all cores.
    """

    def __init__(self, path: str, num_threads: int | None = None):
        super().__init__(path, card.read(card.beside(path), card.parts_of(path)))
        self.kind = "onnx" if path.endswith(".onnx") else "openvino"
        self.without_features = (
            f"{'an ONNX' if self.kind == 'onnx' else 'an OpenVINO'} file gives probabilities only, not the features "
            "before the head: evaluate the directory of the run, or a SavedModel exported from it"
        )
        opener = runtimes.open_onnx if self.kind == "onnx" else runtimes.open_openvino
        self._predict, shape, num_classes = opener(path, num_threads)
        self.batch_size = shape[0]
        card.check_signature(path, self.card, shape, "float32", num_classes)

    def predict(self, images):
        return in_batches(self._predict, np.ascontiguousarray(images, np.float32), self.batch_size or len(images))


def in_batches(function, images: np.ndarray, batch_size: int) -> np.ndarray:
    """Applies a function to batches of one size, of which the last is padded with zeros.

    Args:
        function: From images `[batch_size, H, W, C]` to `[batch_size, classes]`.
        images: `[N, H, W, C]`.
        batch_size: The size.

    Returns:
        `[N, classes]`.
    """
    answers = []
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        missing = batch_size - len(batch)
        padded = np.pad(batch, [(0, missing), (0, 0), (0, 0), (0, 0)]) if missing else batch
        answers.append(function(padded)[: len(batch)])
    return np.concatenate(answers)


_OPENERS = {".tflite": TFLiteArtefact, ".onnx": RuntimeArtefact, ".xml": RuntimeArtefact}


def open_artefact(path: str, num_threads: int | None = None) -> Artefact:
    """Opens an exported classifier by what is at the path.

    Args:
        path: A SavedModel's version directory, a directory of versions (the largest is taken), a `.tflite`, `.onnx` or
            OpenVINO `.xml` file, or a directory with just one such file.
        num_threads: Threads of the kernels; None for all cores.

    Returns:
        The artefact.

    Raises:
        FileNotFoundError: If there is nothing.
        ValueError: If it is nothing that can be opened.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"No artefact {path!r}.")
    if _extension(path) in _OPENERS:
        return _OPENERS[_extension(path)](path, num_threads)
    if os.path.exists(os.path.join(path, "saved_model.pb")):
        return SavedModelArtefact(path, num_threads)
    found = versions.list_versions(path)
    if found:
        return SavedModelArtefact(os.path.join(path, str(found[-1])), num_threads)
    files = [name for name in (os.listdir(path) if os.path.isdir(path) else ()) if _extension(name) in _OPENERS]
    if len(files) == 1:
        return open_artefact(os.path.join(path, files[0]), num_threads)
    raise ValueError(
        "Expected a SavedModel (a directory with saved_model.pb, or numbered versions of one) or a file that ends in "
        f"{', '.join(_OPENERS)}. Received: {path!r}."
    )


def is_exported(path: str) -> bool:
    """Whether a path looks like an exported artefact rather than a run or a `.keras` file."""
    if _extension(path) in _OPENERS or os.path.exists(os.path.join(path, "saved_model.pb")):
        return True
    return bool(versions.list_versions(path)) and not os.path.exists(os.path.join(path, "model.keras"))


def _extension(path):
    return os.path.splitext(path)[1]


class _quiet_deprecations:
    """The session loader is deprecated for users of TF2, yet it is what the server runs: no warning about it."""

    def __enter__(self):
        self._logger = tf.get_logger()
        self._level = self._logger.level
        self._logger.setLevel("ERROR")

    def __exit__(self, *_):
        self._logger.setLevel(self._level)
