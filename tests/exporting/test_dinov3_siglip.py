"""Options of DINOv2, DINOv3 and SigLIP models in every format. The exporters compare each file with its model."""

import importlib.util

import numpy as np
import pytest

from keras_vit import exporting, inference
from tests import selection, tiny

MODELS = {
    "dinov3": {
        "position_embedding": "rope2d",
        "rope_shift": 0.1,
        "rope_jitter": 1.2,
        "rope_rescale": 2.0,
        "mlp": "swiglu",
        "num_registers": 2,
        "qkv_bias": (True, False, True),
        "layer_scale": 0.5,
    },
    "dinov2": {"pooling": "token+gap", "num_registers": 2, "layer_scale": 0.5, "activation": "gelu"},
    "clip": {
        "norm": "rms",
        "qk_norm": True,
        "norm_before_blocks": True,
        "final_norm": False,
        "activation": "quick_gelu",
    },
    "any_size": {"position_embedding": "rope2d", "image_size": None, "pooling": "gap", "mlp": "swiglu"},
    "resized": {"image_size": None, "position_grid": 3, "position_resizing": "antialiased"},
}
FILES = {"saved_model": "model", "tflite": "model.tflite", "onnx": "model.onnx"}
WITH_ATTENTION = ("dinov3", "any_size")  # maps of a fixed grid, and of one that the image decides


def options_of(name, kind):
    options = {"preprocess": tiny.PREPROCESS, "class_names": tiny.CLASS_NAMES}
    if kind == "saved_model":
        options["extra_signatures"] = ("attention",) if name in WITH_ATTENTION else ("features",)
    return {**options, "features": True} if kind == "tflite" else options


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    selection.cases(
        [(name, kind) for name in MODELS for kind in FILES],
        lambda name, kind: kind == ("saved_model" if name in WITH_ATTENTION else "tflite") or name == "dinov3",
        selection.EXHAUSTIVE,
    ),
)
def test_models_of_other_projects_are_exported(name, kind, tmp_path):
    if kind == "onnx" and importlib.util.find_spec("tf2onnx") is None:
        pytest.skip("tf2onnx is not installed: pip install 'keras-vision-transformers[onnx]'")
    model, path = tiny.model(num_layers=1, **MODELS[name]), tmp_path / FILES[kind]
    comparison = exporting.export(model, path, images=tiny.images().contents, **options_of(name, kind))
    assert comparison.top1_agreement == 1.0
    artifact = inference.open_predictor(path)
    images = artifact.preprocess(tiny.images().contents)
    expected = inference.KerasPredictor(model, tiny.card())
    # Float32 sums in another order.
    np.testing.assert_allclose(artifact.predict(images), expected.predict(images), atol=1e-5)
    if artifact.features_unavailable is None:
        np.testing.assert_allclose(artifact.features(images), expected.features(images), rtol=1e-4, atol=1e-5)
