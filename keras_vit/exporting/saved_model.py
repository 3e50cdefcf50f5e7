"""SavedModels for TF Serving, verified before they become visible."""

import dataclasses
import os
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_vit import _io
from keras_vit.exporting import representations, safe_decode, signatures, verify, versions
from keras_vit.exporting.inference_model import inference_model
from keras_vit.inference import model_card
from keras_vit.inference.keras_model import KerasClassifier
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.probabilities import TOP_K
from keras_vit.inference.sample_images import SampleImages, prepare
from keras_vit.inference.saved_model import FEATURES_TENSOR, SavedModelClassifier

LABELS = "labels.txt"


def export_saved_model(
    model: keras.Model,
    base: str,
    *,
    card: ModelCard,
    images: SampleImages,
    preprocess: Callable[[tf.Tensor], tf.Tensor] | None = None,
    version: int | None = None,
    precision: str = "float32",
    top_k: int = TOP_K,
    max_pixels: int = safe_decode.MAX_PIXELS,
    extra_signatures: Sequence[str] = (),
    finish: Callable[[SavedModelClassifier], None] | None = None,
) -> tuple[str, verify.Comparison]:
    """Export a classifier as a new version, after checking that it answers like the model.

    Args:
        model: The trained model.
        base: Directory that holds the versions.
        card: Description of the model.
        images: Real images to verify with.
        preprocess: Function from an encoded image (scalar string) to the model's input; None for that of the card.
        version: The version number; None for the next free one.
        precision: Precision of the computation: a dtype or the name of a Keras policy.
        top_k: Number of labels in an answer.
        max_pixels: Images with more pixels are refused.
        extra_signatures: `"features"` (input of the head, as `features` and `features_tensor`) and `"attention"`
            (attention map of each block).
        finish: Called with the verified SavedModel before it becomes visible, to add files to its directory.

    Returns:
        The version directory, and the comparison with the model.

    Raises:
        FileExistsError: If the version exists.
        VerificationError: If the artifact answers differently; nothing is left behind then.

    Example:
    >>> classifier = keras_vit.inference.open_classifier("runs/digits")
    >>> examples = keras_vit.inference.sample_images.from_files(["images/*.png"], limit=16)
    >>> path, comparison = export_saved_model(classifier.model, "served", card=classifier.card, images=examples)
    >>> path
    'served/1'
    """
    preprocess = preprocess or card.preprocess_function()
    reference = inference_model(model, precision)
    tolerance = verify.tolerance_of(precision)
    with versions.new_version(base, version) as draft:
        module = signatures.ServingModule(
            reference,
            preprocess,
            card.image_shape,
            card.class_names,
            card.output,
            top_k,
            max_pixels,
            extra_signatures,
        )
        signatures.write(module, draft.path, module.signatures())
        extra = os.path.join(draft.path, "assets.extra")  # copied and kept by the server, never read by it
        _io.write_text(os.path.join(extra, LABELS), model_card.labels_text(card.class_names))
        card = dataclasses.replace(card, precision=precision)
        card = model_card.write(model_card.path_of(draft.path), card, model_card.parts_of(draft.path))
        _io.write_text(os.path.join(extra, model_card.MARKDOWN_NAME), card.to_markdown())
        artifact = SavedModelClassifier(draft.path)
        try:
            comparison = verify_saved_model(artifact, reference, preprocess, images, tolerance)
            if finish:
                finish(artifact)
        finally:
            artifact.close()
    return draft.path, comparison


def verify_saved_model(
    artifact: SavedModelClassifier,
    model: keras.Model,
    preprocess: Callable[[tf.Tensor], tf.Tensor],
    images: SampleImages,
    tolerance: verify.Tolerance,
    batch_size: int = 16,
) -> verify.Comparison:
    """Run every signature on real images through the server's own loader and compare with the model.

    Args:
        artifact: The SavedModel.
        model: The model, which returns logits.
        preprocess: Function from an encoded image (scalar string) to the model's input.
        images: Real images.
        tolerance: Largest differences that are allowed.
        batch_size: Number of images per request.

    Returns:
        The comparison of `serving_default` with the model.

    Raises:
        VerificationError: If a signature answers differently, or refuses an image that the model takes.
    """
    reference = KerasClassifier(model, artifact.card)
    expected, answers, tensor_answers = [], [], []
    for start in range(0, len(images.contents), batch_size):
        contents = images.contents[start : start + batch_size]
        prepared = prepare(contents, preprocess)
        expected.append(reference.predict(prepared))
        tensor_answers.append(artifact.predict(prepared))
        answer = artifact.run("serving_default", {"image_bytes": np.array(contents, object)})
        if not answer["valid"].all():
            refused = images.names[start + int(np.argmin(answer["valid"]))]
            raise verify.VerificationError(f"The artifact refuses the image {refused}, which the model takes.")
        _check_labels(answer, artifact.class_names)
        answers.append(answer["probabilities"])
    probabilities = np.concatenate(expected)
    tensors = verify.compare(probabilities, np.concatenate(tensor_answers), images.labels)
    verify.check(tensors, tolerance, "The signature serve_tensor")
    comparison = verify.compare(probabilities, np.concatenate(answers), images.labels)
    verify.check(comparison, tolerance, "The signature serving_default")
    _check_representations(artifact, model, preprocess, images.contents[:1])
    _check_decoded(artifact, reference, preprocess, images.contents[0], tolerance)
    return comparison


def _check_labels(answer: dict[str, np.ndarray], class_names: Sequence[str]) -> None:
    """Require that the labels in an answer are those of the largest probabilities."""
    order = np.argsort(-answer["probabilities"], axis=-1, kind="stable")[:, : answer["top_k_classes"].shape[1]]
    named = np.array([[class_names[index].encode() for index in row] for row in order], object)
    if not (named == answer["top_k_classes"]).all():
        raise verify.VerificationError("top_k_classes does not name the classes of the largest probabilities.")


def _check_decoded(
    artifact: SavedModelClassifier,
    reference: KerasClassifier,
    preprocess: Callable[[tf.Tensor], tf.Tensor],
    content: bytes,
    tolerance: verify.Tolerance,
) -> None:
    """Require that serve_images answers for a decoded image as for a file of the same pixels."""
    channels = artifact.card.image_shape[-1]
    image = tf.io.decode_image(content, channels=channels, expand_animations=False)
    expected = reference.predict(prepare([tf.io.encode_png(image).numpy()], preprocess))
    answer = artifact.run("serve_images", {"images": image.numpy()[None]})
    verify.check(verify.compare(expected, answer["probabilities"]), tolerance, "The signature serve_images")


def _check_representations(
    artifact: SavedModelClassifier,
    model: keras.Model,
    preprocess: Callable[[tf.Tensor], tf.Tensor],
    contents: list[bytes],
) -> None:
    """Require that the extra signatures return what the model computes outside of the exported graph."""
    encoded, images = np.array(contents, object), prepare(contents, preprocess)
    # output -> function of the model that computes it, and inputs of the signatures that return it
    outputs_of = {
        "features": (
            representations.features_function,
            {"features": {"image_bytes": encoded}, FEATURES_TENSOR: {"images": images}},
        ),
        "attention": (representations.attention_function, {"attention": {"image_bytes": encoded}}),
    }
    for output, (function, calls) in outputs_of.items():
        if output not in artifact.signatures:
            continue
        expected = function(model)(tf.constant(images)).numpy()
        scale = max(float(np.abs(expected).max()), 1e-6)
        for name, inputs in calls.items():
            difference = float(np.abs(artifact.run(name, inputs)[output] - expected).max()) / scale
            # Relative to the largest value; bfloat16 rounds each to 8 bits.
            limit = 1e-3 if model.dtype_policy.compute_dtype == "float32" else 0.1
            if not difference <= limit:
                raise verify.VerificationError(
                    f"The signature {name} differs from the model by {difference:.1e} of the largest value, "
                    f"expected at most {limit:.1e}."
                )
