"""SavedModels for TF Serving: exported, verified, and only then made visible."""

import os

import keras
import numpy as np
import tensorflow as tf

from keras_vit import _io
from keras_vit.serving import (
    artefacts,
    card,
    clone,
    decoding,
    outputs,
    pictures,
    representations,
    signatures,
    verify,
    versions,
    warmup,
)

LABELS = "labels.txt"


def export_saved_model(
    model: keras.Model,
    base: str,
    *,
    preprocess,
    description: dict,
    examples: pictures.Pictures,
    version: int | None = None,
    dtype: str = "float32",
    top_k: int = outputs.TOP_K,
    max_pixels: int = decoding.MAX_PIXELS,
    extra_signatures: tuple[str, ...] = (),
    name: str = "",
    batch_sizes: tuple[int, ...] = (),
) -> tuple[str, verify.Comparison]:
    """Exports a classifier as a new version, after checking that it answers as the model does.

    Args:
        model: The trained model.
        base: The directory that holds the versions.
        preprocess: Encoded picture (scalar string) -> model input, float32 `[H, W, C]`.
        description: The card (`card.make`); written beside the graph and read for labels, output function and image
            shape.
        examples: Real pictures to verify with.
        version: The version number; None for the next free one.
        dtype: Precision of the artefact: a dtype or the name of a Keras policy.
        top_k: Number of labels in an answer.
        max_pixels: Pictures with more pixels are refused.
        name: Name of the model on the server, for the warm-up requests.
        batch_sizes: Batch sizes to write warm-up requests for; none without.
        extra_signatures: "features" (what the head reads, as "features" and "features_tensor") and "attention" (where
            each block looks), if wanted.

    Returns:
        The version directory, and the comparison with the model.

    Raises:
        FileExistsError: If the version exists.
        VerificationError: If the artefact answers differently; nothing is left behind then.
    """
    reference = clone.inference_clone(model, dtype)
    tolerance = verify.tolerance_of(dtype)
    with versions.new_version(base, version) as draft:
        module = signatures.ServingModule(
            reference,
            preprocess,
            tuple(description["image_shape"]),
            tuple(description["class_names"]),
            description["output"],
            top_k,
            max_pixels,
            extra_signatures,
        )
        signatures.write(module, draft.path, module.signatures())
        extra = os.path.join(draft.path, "assets.extra")  # copied and kept by the server, never read by it
        _io.write_text(os.path.join(extra, LABELS), card.labels_text(description["class_names"]))
        content = card.write(
            os.path.join(extra, card.FILE_NAME), {**description, "precision": dtype}, card.parts_of(draft.path)
        )
        _io.write_text(os.path.join(extra, card.MARKDOWN_NAME), card.to_markdown(content))
        comparison = verify_saved_model(draft.path, reference, preprocess, examples, tolerance)
        if batch_sizes:
            artefact = artefacts.SavedModelArtefact(draft.path)
            warmup.write_warmup(artefact, name, examples.contents, batch_sizes)
            warmup.replay(artefact)
            artefact.close()
    return draft.path, comparison


def verify_saved_model(
    path: str,
    model: keras.Model,
    preprocess,
    examples: pictures.Pictures,
    tolerance: verify.Tolerance,
    batch_size: int = 16,
) -> verify.Comparison:
    """Runs every signature on real pictures through the server's own loader and compares with the model.

    Args:
        path: The version directory.
        model: The model, which returns logits.
        preprocess: Encoded picture (scalar string) -> model input.
        examples: Real pictures.
        tolerance: What the answers must keep to.
        batch_size: Pictures in one request.

    Returns:
        The comparison of `serving_default` with the model.

    Raises:
        VerificationError: If a signature answers differently, or refuses a picture that the model takes.
    """
    artefact = artefacts.SavedModelArtefact(path)
    keras_artefact = artefacts.KerasArtefact(model, artefact.card)
    expected, answers, tensor_answers = [], [], []
    try:
        for start in range(0, len(examples.contents), batch_size):
            contents = examples.contents[start : start + batch_size]
            images = pictures.prepare(contents, preprocess)
            expected.append(keras_artefact.predict(images))
            tensor_answers.append(artefact.predict(images))
            answer = artefact.run("serving_default", {"image_bytes": np.array(contents, object)})
            if not answer["valid"].all():
                refused = examples.names[start + int(np.argmin(answer["valid"]))]
                raise verify.VerificationError(f"The artefact refuses the picture {refused}, which the model takes.")
            _check_labels(answer, artefact.class_names)
            answers.append(answer["probabilities"])
        expected = np.concatenate(expected)
        tensors = verify.compare(expected, np.concatenate(tensor_answers), examples.labels)
        verify.check(tensors, tolerance, "The signature serve_tensor")
        comparison = verify.compare(expected, np.concatenate(answers), examples.labels)
        verify.check(comparison, tolerance, "The signature serving_default")
        _check_representations(artefact, model, preprocess, examples.contents[:1])
        _check_decoded(artefact, keras_artefact, preprocess, examples.contents[0], tolerance)
    finally:
        artefact.close()
    return comparison


def _check_labels(answer, class_names):
    """The labels in an answer must be those of the largest probabilities."""
    order = np.argsort(-answer["probabilities"], axis=-1, kind="stable")[:, : answer["top_k_classes"].shape[1]]
    named = np.array([[class_names[index].encode() for index in row] for row in order], object)
    if not (named == answer["top_k_classes"]).all():
        raise verify.VerificationError("top_k_classes does not name the classes of the largest probabilities.")


def _check_decoded(artefact, keras_artefact, preprocess, content, tolerance):
    """serve_images takes a decoded picture, and serves it as a file of the same pixels."""
    channels = artefact.card["image_shape"][-1]
    image = tf.io.decode_image(content, channels=channels, expand_animations=False)
    expected = keras_artefact.predict(pictures.prepare([tf.io.encode_png(image).numpy()], preprocess))
    answer = artefact.run("serve_images", {"images": image.numpy()[None]})
    verify.check(verify.compare(expected, answer["probabilities"]), tolerance, "The signature serve_images")


def _check_representations(artefact, model, preprocess, contents):
    """The extra signatures must give what the model computes, outside of the exported graph."""
    encoded, images = np.array(contents, object), pictures.prepare(contents, preprocess)
    # Output: what computes it, and the signatures that return it.
    outputs_of = {
        "features": (
            representations.features_function,
            {"features": {"image_bytes": encoded}, signatures.FEATURES_TENSOR: {"images": images}},
        ),
        "attention": (representations.attention_function, {"attention": {"image_bytes": encoded}}),
    }
    for output, (function, calls) in outputs_of.items():
        if output not in artefact.signatures:
            continue
        expected = function(model)(tf.constant(images)).numpy()
        scale = max(float(np.abs(expected).max()), 1e-6)
        for name, inputs in calls.items():
            difference = float(np.abs(artefact.run(name, inputs)[output] - expected).max()) / scale
            # Relative to the largest value; bfloat16 rounds each to 8 bits.
            limit = 1e-3 if model.dtype_policy.compute_dtype == "float32" else 0.1
            if not difference <= limit:
                raise verify.VerificationError(
                    f"The signature {name} differs from the model by {difference:.1e} of the largest value, "
                    f"expected at most {limit:.1e}."
                )
