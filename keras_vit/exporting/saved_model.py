"""SavedModels for TF Serving, verified before they become visible."""

import dataclasses
import os
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from keras_vit import _checks, _io
from keras_vit.exporting import artifact_check, safe_decode, signatures, verify, versions, warmup
from keras_vit.exporting.inference_model import inference_model
from keras_vit.inference import model_card
from keras_vit.inference.keras_model import KerasClassifier
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.probabilities import TOP_K
from keras_vit.inference.sample_images import SampleImages
from keras_vit.inference.saved_model import SavedModelClassifier

PRECISIONS = ("float32", "bfloat16", "mixed_bfloat16", "float16", "mixed_float16")


def write(
    model: keras.Model,
    path: str,
    *,
    card: ModelCard,
    images: SampleImages,
    preprocess: Callable[[tf.Tensor], tf.Tensor] | None = None,
    version: int | None = None,
    precision: str = "float32",
    top_k: int = TOP_K,
    max_pixels: int = safe_decode.MAX_PIXELS,
    extra_signatures: Sequence[str] = (),
    warm_up: tuple[str, Sequence[int]] | None = None,
) -> tuple[str, verify.Comparison]:
    """Export a classifier as a new version in the directory `path`, as `export` does.

    Args:
        model: The trained model.
        path: Directory of the versions.
        card: Description of the model.
        images: Real images to verify with.
        preprocess: Function from an encoded image (scalar string) to the model's input; None for that of the card.
        version: The version number; None for the next free one.
        precision: Precision of the computation, one of `PRECISIONS`.
        top_k: Number of labels in an answer.
        max_pixels: Images with more pixels are refused by the artifact, and left out of the verification.
        extra_signatures: `"features"` (input of the head, as `features` and `features_tensor`) and `"attention"`
            (attention map of each block).
        warm_up: Name of the model on the server, and batch sizes of the requests that it runs before it takes traffic;
            None for no such requests.
    """
    _checks.choice("precision", precision, PRECISIONS)
    reference = inference_model(model, precision)
    card = dataclasses.replace(card, precision=precision, max_pixels=max_pixels)
    with versions.new_version(path, version) as draft:
        module = signatures.ServingModule(reference, card, preprocess, top_k, extra_signatures)
        signatures.write(module, draft.path, module.signatures())
        extra = os.path.join(draft.path, "assets.extra")  # copied and kept by the server, never read by it
        os.makedirs(extra, exist_ok=True)
        if card.class_names:
            _io.write_text(os.path.join(extra, model_card.LABELS), model_card.labels_text(card.class_names))
        card = model_card.write(draft.path, card)
        artifact = SavedModelClassifier(draft.path)
        try:
            result = artifact_check.check(
                artifact, KerasClassifier(reference, card), images, verify.tolerance_of(precision, card.output)
            )
            comparison = artifact_check.require(result, "The SavedModel")
            if warm_up:
                warmup.write_warmup(artifact, warm_up[0], images.contents, warm_up[1])
                warmup.replay(artifact)
                card = model_card.write(draft.path, card)  # with the requests
        finally:
            artifact.close()
        _io.write_text(os.path.join(extra, model_card.MARKDOWN_NAME), card.to_markdown())
    return draft.path, comparison
