"""Export to SavedModels for TensorFlow Serving, which are verified before they are published."""

import dataclasses
import os
from collections.abc import Sequence

import keras

from keras_vit.exporting import artifact_check, graph_ops, signatures, verify, warmup
from keras_vit.exporting.inference_model import inference_model, reference
from keras_vit.inference import formats, model_card
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.sample_images import SampleImages
from keras_vit.inference.saved_model import SavedModelPredictor
from keras_vit.outputs import TOP_K
from keras_vit.util import checks, file_io
from keras_vit.util.progress import Progress


def write(
    model: keras.Model,
    path: str,
    *,
    card: ModelCard,
    images: SampleImages,
    version: int | None = None,
    precision: str = "float32",
    top_k: int = TOP_K,
    max_pixels: int = graph_ops.MAX_PIXELS,
    extra_signatures: Sequence[str] = (),
    warm_up: Sequence[int] = (),
    tolerance: verify.Tolerance | None = None,
) -> tuple[str, verify.Comparison]:
    """Export a predictor as a new version in the directory `path`. See `export`.

    Args:
        model: The trained model.
        path: Directory of the versions.
        card: Model card of the model.
        images: Real images to verify with.
        version: Version number; None for the next free number.
        precision: Precision of the computation, one of `formats.SAVED_MODEL.precisions`.
        top_k: Number of labels in a response, for models with classes.
        max_pixels: The artifact rejects images with more pixels, and the verification skips them.
        extra_signatures: `"features"` adds the signatures `features` and `features_tensor`, which return the input of
            the head; `"attention"` adds a signature that returns the attention map of each block.
        warm_up: Batch sizes of the requests that a server runs before it receives traffic.
        tolerance: Limits of the verification; None for the limits of the precision.
    """
    checks.choice("precision", precision, formats.SAVED_MODEL.precisions)
    copy = inference_model(model, precision)
    card = dataclasses.replace(card, precision=precision, max_pixels=max_pixels)
    target = os.path.join(path, str(version_number(path, version)))
    with file_io.atomic_directory(target) as draft:
        with Progress("Writing the SavedModel"):
            module = signatures.ServingModule(copy, card, top_k, extra_signatures)
            signatures.write(module, draft, module.signatures())
        os.makedirs(os.path.join(draft, "assets.extra"), exist_ok=True)  # copied and kept by the server
        with Progress("Opening the SavedModel"):
            card = model_card.write(draft, card)
            artifact = SavedModelPredictor(draft)
        try:
            limits = tolerance or verify.tolerance_of(precision, card.output)
            result = artifact_check.check(artifact, reference(model, copy, card), images, limits)
            comparison = artifact_check.require(result, "The SavedModel", precision)
            if warm_up:
                warmup.write(artifact, os.path.basename(os.path.abspath(path)), images.contents, warm_up)
            # The final card also has the hash of the warm-up requests.
            model_card.write(draft, dataclasses.replace(card, verification=dataclasses.asdict(comparison)))
        finally:
            artifact.close()
    return target, comparison


def version_number(base: str, version: int | None = None) -> int:
    """Return `version` if that version does not exist yet; for None, the number after the largest version."""
    if version is None:
        return max(formats.list_versions(base), default=0) + 1
    if version < 1:
        raise ValueError(f"version must be at least 1. Received: version={version}.")
    if os.path.lexists(os.path.join(base, str(version))):
        raise FileExistsError(
            f"Version {version} exists in {base!r} and is never overwritten. "
            "Leave out the version to use the next free number."
        )
    return version
