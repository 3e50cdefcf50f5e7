"""One call for every format."""

import os

import numpy as np
import pytest

from keras_vit import exporting, inference, save_checkpoint
from keras_vit.training.errors import UnreadableInput
from tests import tiny


@pytest.mark.slow
def test_a_model_is_exported_to_the_format_of_the_extension(tmp_path):
    model = tiny.model()
    (tmp_path / "a.png").write_bytes(tiny.images(1).contents[0])
    comparison = exporting.export(
        model,
        tmp_path / "model.tflite",
        preprocess="value_range(-1, 1)",
        images=[tiny.images(2).contents[1], f"{tmp_path}/*.png"],
        class_names=tiny.CLASS_NAMES,
        precision="float16",
    )
    assert comparison.examples == 2
    artifact = inference.open_classifier(tmp_path / "model.tflite")
    assert (artifact.kind, artifact.card.precision) == ("tflite", "float16")
    assert artifact.class_names == tiny.CLASS_NAMES
    assert artifact.card.preprocess == "decode(3)|resize((16, 16), method='bilinear')|value_range(-1, 1)"


@pytest.mark.slow
def test_a_checkpoint_is_exported(tmp_path):
    model = tiny.model()
    save_checkpoint(model, tmp_path / "model.npz")
    arguments = {"preprocess": "value_range(-1, 1)", "images": tiny.images().contents}
    exporting.export(tmp_path / "model.npz", tmp_path / "served", **arguments)
    artifact = inference.open_classifier(tmp_path / "served")
    original = inference.open_classifier(tmp_path / "model.npz", preprocess="value_range(-1, 1)")
    images = original.preprocess(tiny.images().contents)
    np.testing.assert_allclose(artifact.predict(images), original.predict(images), atol=1e-5)
    assert artifact.class_names == tuple("0123456")


def test_wrong_arguments(tmp_path):
    model, images = tiny.model(), tiny.images(1).contents
    with pytest.raises(ValueError, match="preprocess"):
        exporting.export(model, tmp_path / "a.tflite", images=images)
    with pytest.raises(ValueError, match="format"):
        exporting.export(model, tmp_path / "a", "coreml", images=images, preprocess="value_range(-1, 1)")
    with pytest.raises(ValueError, match="class_names"):
        exporting.export(model, tmp_path / "a", images=images, preprocess="value_range(-1, 1)", class_names=["a"])
    with pytest.raises(UnreadableInput, match="image 1"):
        exporting.export(model, tmp_path / "a", images=[*images, b"bad"], preprocess="value_range(-1, 1)")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        exporting.export(model, tmp_path / "a", images=["nowhere.png"], preprocess="value_range(-1, 1)")
    assert os.listdir(tmp_path) == []
