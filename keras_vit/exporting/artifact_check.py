"""Verification of every signature of an artifact on real images."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit import inspection
from keras_vit.data.images import decode
from keras_vit.exporting import verify
from keras_vit.inference import masks, sample_images
from keras_vit.inference.keras_model import KerasPredictor
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.predictor import Predictor
from keras_vit.inference.sample_images import SampleImages
from keras_vit.inference.saved_model import FEATURES_TENSOR, SavedModelPredictor
from keras_vit.util.progress import track

BATCH_SIZE = 16

# Precision -> largest error of the features, relative to their norm. Float32 differs in the order of sums. Bfloat16
# rounds each number to 8 bits, float16 to 11 bits. `dynamic_int8` rounds the weights and the inputs of the matrix
# products to 8 bits.
FEATURE_TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1, "float16": 1e-2, "dynamic_int8": 0.1}


def check(
    artifact: Predictor, reference: KerasPredictor, images: SampleImages, tolerance: verify.Tolerance
) -> tuple[verify.Comparison, list[str]]:
    """Run every signature of an artifact on real images and compare the outputs with the model's.

    The artifact and the model each do their own preprocessing. Returns the comparison for the first signature, and the
    problems of all signatures.
    """
    images, kind = sample_images.within(images, artifact.card.max_pixels), reference.card.kind
    batches = [images.contents[start : start + BATCH_SIZE] for start in range(0, len(images.contents), BATCH_SIZE)]
    shown = track(batches, "Predicting with the model", unit="batches")
    scores = np.concatenate([reference.scores(reference.preprocess(batch)) for batch in shown])
    predictions = reference.predictions(scores)
    comparisons: list[verify.Comparison] = []
    problems: list[str] = []
    are_logits = kind.is_exclusive and reference.scores_are == "logits" and scores.shape[-1] > 1
    if are_logits and (scores >= 0).all() and np.allclose(scores.sum(axis=-1), 1.0, atol=1e-5):
        problems.append("the outputs of the model are already probabilities; end the model in keras.layers.Softmax")
    for signature, run in _signatures(artifact).items():
        expected: Any
        given: Any
        results = [run(batch) for batch in track(batches, f"Verifying {signature or kind.output_name}", unit="batches")]
        found = {output: np.concatenate([result[output] for result in results]) for output in results[0]}
        if kind.output_name in found:
            expected, given = predictions, found[kind.output_name]
        else:  # masks in the sizes of their images; a rejected image has an empty mask
            expected = reference.card.at_image_sizes(predictions, images.contents)
            given = [masks.from_png(png) if png else np.zeros((0, 0)) for png in found[kind.served_entries]]
        comparisons.append(verify.compare_answers(reference.card, expected, given, images.labels))
        refused = [images.names[index] for index in np.flatnonzero(~found["valid"])] if "valid" in found else []
        wrong = [f"it rejects the image {image}, which the model accepts" for image in refused]
        wrong += verify.failures(comparisons[-1], tolerance)
        wrong += [] if refused else _wrong_names(found, reference.card)
        problems += [f"{signature}: {problem}" if signature else problem for problem in wrong]
    if isinstance(artifact, SavedModelPredictor):
        problems += _check_serve_images(artifact, reference, images.contents[0], tolerance)
        problems += _check_extra_signatures(artifact, reference, images.contents[:1])
    elif artifact.features_unavailable is None and not artifact.card.kind.has_features:
        batch = images.contents[:BATCH_SIZE]
        features = reference.features(reference.preprocess(batch))
        problems += _different_features("features", artifact, features, artifact.features(artifact.preprocess(batch)))
    for warning in [] if problems else verify.warnings(comparisons[0], tolerance):
        logging.warning("%s", warning)
    return dataclasses.replace(comparisons[0], precision=artifact.runtime_precision), problems


def require(result: tuple[verify.Comparison, list[str]], what: str, precision: str) -> verify.Comparison:
    """Return the comparison of `check`, or raise a `VerificationError` if there are problems."""
    comparison, problems = result
    if problems:
        message = f"{what} does not match its model: {'; '.join(problems)}. ({comparison.summary()})"
        if precision != "float32":
            message += " Export in float32, or in float16 (TFLite), or set other limits if your application accepts "
            message += "the differences (--min_agreement, --max_difference; `tolerance` in Python)."
        raise verify.VerificationError(message, comparison)
    return comparison


def _signatures(artifact: Predictor) -> dict[str, Callable[[list[bytes]], dict[str, np.ndarray]]]:
    """Return a function from encoded images to outputs for each signature. The only signature of a file is unnamed."""
    if not isinstance(artifact, SavedModelPredictor):
        return {"": lambda batch: {artifact.card.output_name: artifact.predict(artifact.preprocess(batch))}}
    return {
        "serving_default": lambda batch: artifact.run("serving_default", {"image_bytes": np.array(batch, object)}),
        "serve_tensor": lambda batch: artifact.run("serve_tensor", {"images": artifact.preprocess(batch)}),
    }


def _check_serve_images(
    artifact: SavedModelPredictor, reference: KerasPredictor, content: bytes, tolerance: verify.Tolerance
) -> list[str]:
    """Check that `serve_images` gives the model's outputs for the decoded pixels of an image."""
    channels = artifact.card.image_shape[-1]
    image = decode(tf.constant(content), channels)
    file = tf.io.encode_png(image).numpy()
    expected = reference.card.at_image_sizes(reference.predict(reference.preprocess([file])), [file])
    found = artifact.run("serve_images", {"images": image.numpy()[None]})
    comparison = verify.compare_answers(reference.card, expected, found[reference.card.output_name])
    problems = [*verify.failures(comparison, tolerance), *_wrong_names(found, reference.card)]
    return [f"serve_images: {problem}" for problem in problems]


def _check_extra_signatures(
    artifact: SavedModelPredictor, reference: KerasPredictor, contents: list[bytes]
) -> list[str]:
    """Check features and attention maps against the model's, and run lengths against the mask of `serving_default`."""
    encoded = {"image_bytes": np.array(contents, object)}
    images, prepared = reference.preprocess(contents), {"images": artifact.preprocess(contents)}
    problems = []
    for name, inputs in {"features": encoded, FEATURES_TENSOR: prepared}.items():
        if name in artifact.signatures:
            found = artifact.run(name, inputs)["features"]
            problems += _different_features(name, artifact, reference.features(images), found)
    if "run_lengths" in artifact.signatures:
        runs, files = (artifact.run(name, encoded) for name in ("run_lengths", "serving_default"))
        mask = masks.from_png(files["mask_bytes"][0])
        same = np.array_equal(runs["run_lengths"][0], masks.to_runs(mask))
        if not same or tuple(runs["size"][0]) != mask.shape:
            problems.append("run_lengths: the mask differs from the mask of serving_default")
    if "attention" in artifact.signatures:
        maps = inspection.attention_maps(reference.model, images)
        grids = maps.grids()
        expected = np.stack([np.mean(grids[name], axis=1) for name in maps.blocks()], axis=1)
        found = artifact.run("attention", encoded)["attention"]
        problems += _different_features("attention", artifact, expected, found)
    return problems


def _different_features(name: str, artifact: Predictor, expected: np.ndarray, found: np.ndarray) -> list[str]:
    """Compare features or attention maps by the norm of their difference, relative to their norm."""
    expected = np.asarray(expected, np.float32)
    error = float(np.linalg.norm(found - expected)) / max(float(np.linalg.norm(expected)), 1e-6)
    limit = FEATURE_TOLERANCES[artifact.stored_precision]
    return [] if error <= limit else [f"{name}: the difference is {error:.1e} of the length, expected at most {limit}"]


def _wrong_names(outputs: dict[str, np.ndarray], card: ModelCard) -> list[str]:
    """Check the names of the outputs, or the labels of the largest probabilities, if the outputs contain any."""
    name = card.kind.served_names
    if name not in outputs:
        return []
    named = np.array([text.encode() for text in card.names], object)
    if card.kind.has_probabilities:
        named = named[[card.kind.order(row, outputs[name].shape[1]) for row in outputs[card.output_name]]]
    return [] if (named == outputs[name]).all() else [f"{name} does not name the outputs"]
