"""Check of an exported artifact: every signature, its labels and its files, on real images."""

import os
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_vit import inspection
from keras_vit.exporting import verify
from keras_vit.inference import model_card, sample_images
from keras_vit.inference.classifier import Classifier
from keras_vit.inference.keras_model import KerasClassifier
from keras_vit.inference.probabilities import CLASSIFICATION
from keras_vit.inference.sample_images import SampleImages
from keras_vit.inference.saved_model import FEATURES_TENSOR, SavedModelClassifier
from keras_vit.inference.tflite import TFLiteClassifier

BATCH_SIZE = 16

# Precision -> largest error of the features, relative to their length: float32 sums in another order; 8 or 11 bits of
# each number; 8 bits of each weight and of the inputs of the matrix products.
FEATURE_TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1, "float16": 1e-2, "dynamic_int8": 0.1}


def check(
    artifact: Classifier, reference: KerasClassifier, images: SampleImages, tolerance: verify.Tolerance
) -> tuple[verify.Comparison, list[str]]:
    """Run every signature of an artifact on real images and compare the outputs with the model's.

    Each classifier prepares the images itself.
    """
    if isinstance(artifact, SavedModelClassifier):
        return _check_saved_model(artifact, reference, images, tolerance)
    pairs = [
        (reference.predict(reference.preprocess(batch)), artifact.predict(artifact.preprocess(batch)))
        for batch in _batches(images)
    ]
    expected, outputs = map(np.concatenate, zip(*pairs, strict=True))
    comparison = _compare(reference, expected, outputs, images.labels)
    problems = verify.failures(comparison, tolerance)
    if artifact.features_unavailable is None and artifact.card.output != "features":
        batch = images.contents[:BATCH_SIZE]
        features = reference.features(reference.preprocess(batch))
        problems += _different_features("features", artifact, features, artifact.features(artifact.preprocess(batch)))
    labels = {model_card.labels_path_of(artifact.path): _lines(model_card.labels_path_of(artifact.path))}
    if isinstance(artifact, TFLiteClassifier):
        labels["the file"] = list(artifact.stored_labels)
    return comparison, problems + _wrong_labels(labels, reference.class_names)


def require(result: tuple[verify.Comparison, list[str]], what: str) -> verify.Comparison:
    """Return the comparison of `check`, or raise an error if there are problems."""
    comparison, problems = result
    if problems:
        message = f"{what} does not answer as its model: {'; '.join(problems)}. ({comparison.summary()})"
        raise verify.VerificationError(message, comparison)
    return comparison


def _check_saved_model(
    artifact: SavedModelClassifier, reference: KerasClassifier, images: SampleImages, tolerance: verify.Tolerance
) -> tuple[verify.Comparison, list[str]]:
    """Check a SavedModel through the server's own loader; the comparison is that of `serving_default`."""
    images, name = sample_images.within(images, artifact.card.max_pixels), reference.card.output_name
    expected, encoded, prepared, problems = [], [], [], []
    for batch in _batches(images):
        expected.append(reference.predict(reference.preprocess(batch)))
        of_files = artifact.run("serving_default", {"image_bytes": np.array(batch, object)})
        of_tensors = artifact.run("serve_tensor", {"images": artifact.preprocess(batch)})
        refused = [images.names[images.contents.index(batch[i])] for i in np.flatnonzero(~of_files["valid"])]
        problems += [f"serving_default refuses the image {image}, which the model takes" for image in refused]
        problems += [] if refused else _wrong_top_k("serving_default", of_files, reference.class_names)
        problems += _wrong_top_k("serve_tensor", of_tensors, reference.class_names)
        encoded.append(of_files[name])
        prepared.append(of_tensors[name])
    outputs = np.concatenate(expected)
    comparison = _compare(reference, outputs, np.concatenate(encoded), images.labels)
    others = {"serve_tensor": _compare(reference, outputs, np.concatenate(prepared), images.labels)}
    # For a decoded image as for a file of the same pixels.
    channels = artifact.card.image_shape[-1]
    image = tf.io.decode_image(images.contents[0], channels=channels, expand_animations=False)
    of_pixels = artifact.run("serve_images", {"images": image.numpy()[None]})
    file = tf.io.encode_png(image).numpy()
    others["serve_images"] = _compare(reference, reference.predict(reference.preprocess([file])), of_pixels[name])
    problems += _wrong_top_k("serve_images", of_pixels, reference.class_names)
    for signature, found in {"serving_default": comparison, **others}.items():
        problems += [f"{signature}: {problem}" for problem in verify.failures(found, tolerance)]
    problems += _check_extra_signatures(artifact, reference, images.contents[:1])
    path = os.path.join(artifact.path, "assets.extra", model_card.LABELS)
    return comparison, problems + _wrong_labels({path: _lines(path)}, reference.class_names)


def _check_extra_signatures(
    artifact: SavedModelClassifier, reference: KerasClassifier, contents: list[bytes]
) -> list[str]:
    """Compare the features and attention maps with those outside of the exported graph."""
    encoded = {"image_bytes": np.array(contents, object)}
    images, prepared = reference.preprocess(contents), {"images": artifact.preprocess(contents)}
    problems = []
    for name, inputs in {"features": encoded, FEATURES_TENSOR: prepared}.items():
        if name in artifact.signatures:
            found = artifact.run(name, inputs)["features"]
            problems += _different_features(name, artifact, reference.features(images), found)
    if "attention" in artifact.signatures:
        maps = inspection.attention_maps(reference.model, images)
        grids = maps.grids()
        expected = np.stack([np.mean(grids[name], axis=1) for name in maps.blocks()], axis=1)
        found = artifact.run("attention", encoded)["attention"]
        problems += _different_features("attention", artifact, expected, found)
    return problems


def _different_features(name: str, artifact: Classifier, expected: np.ndarray, found: np.ndarray) -> list[str]:
    """Compare features or maps, relative to their length."""
    expected = np.asarray(expected, np.float32)
    error = float(np.linalg.norm(found - expected)) / max(float(np.linalg.norm(expected)), 1e-6)
    limit = FEATURE_TOLERANCES[artifact.stored_precision]
    return [] if error <= limit else [f"{name}: the difference is {error:.1e} of the length, expected at most {limit}"]


def _compare(
    reference: KerasClassifier, expected: np.ndarray, found: np.ndarray, labels: np.ndarray | None = None
) -> verify.Comparison:
    """Compare probabilities, or outputs of another kind."""
    if reference.card.output in CLASSIFICATION:
        return verify.compare(expected, found, labels)
    return verify.compare_outputs(expected, found)


def _wrong_top_k(signature: str, outputs: dict[str, np.ndarray], class_names: Sequence[str]) -> list[str]:
    """Compare the labels with the names of the classes of the largest probabilities; other outputs have no labels."""
    if not class_names:
        return []
    order = np.argsort(-outputs["probabilities"], axis=-1, kind="stable")[:, : outputs["top_k_classes"].shape[1]]
    named = np.array([[class_names[index].encode() for index in row] for row in order], object)
    if (named == outputs["top_k_classes"]).all():
        return []
    return [f"{signature}: top_k_classes does not name the classes of the largest probabilities"]


def _wrong_labels(labels: dict[str, list[str] | None], class_names: Sequence[str]) -> list[str]:
    """Compare the labels of applications, by their place, with the names of the classes; None if there are none."""
    expected = model_card.labels_text(class_names).splitlines()
    return [
        f"the labels in {place} are not the model's" for place, lines in labels.items() if lines not in (None, expected)
    ]


def _lines(path: str) -> list[str] | None:
    """Return the lines of a file; None if there is none."""
    if not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()


def _batches(images: SampleImages) -> Iterator[list[bytes]]:
    for start in range(0, len(images.contents), BATCH_SIZE):
        yield images.contents[start : start + BATCH_SIZE]
