"""`export.main` to a SavedModel on a finished run."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from keras_vit.exporting import warmup
from keras_vit.inference.opening import open_artifact
from tests import tiny
from tests.programs import call


@pytest.mark.slow
def test_a_second_export_takes_the_next_version(run, saved_model):
    assert call("export.main", f"--model={run}", f"--output={saved_model}", "--version=1") == 1
    assert os.listdir(saved_model) == ["1"]


@pytest.mark.slow
def test_the_server_finds_its_warm_up_requests(saved_model):
    artifact = open_artifact(str(saved_model))
    path = saved_model / "1" / "assets.extra" / warmup.FILE_NAME
    count = sum(1 for _ in tf.data.TFRecordDataset(str(path)))
    assert count == 2 * len(artifact.signatures)  # for batches of one and two images


@pytest.mark.slow
def test_a_sequential_model_of_one_logit(tmp_path):
    """Its last layer is not called head, so that it has no features."""
    model = keras.Sequential([tiny.model(num_layers=1, include_top=False), keras.layers.Dense(1)])
    tiny.randomize(model).save(tmp_path / "model.keras")
    (tmp_path / "a.png").write_bytes(tiny.images(1).contents[0])
    paths = (f"--model={tmp_path / 'model.keras'}", f"--images={tmp_path / 'a.png'}", f"--output={tmp_path / 'served'}")
    assert call("export.main", *paths, "--preprocess=value_range(-1, 1)", "--batch_sizes=1") == 0
    artifact = open_artifact(str(tmp_path / "served"))
    assert set(artifact.signatures) == {"serving_default", "serve_images", "serve_tensor"}
    images = artifact.preprocess(tiny.images(2).contents)
    np.testing.assert_allclose(artifact.predict(images), special.expit(np.asarray(model(images))), atol=1e-6)


def test_an_artifact_cannot_be_exported_again(tmp_path):
    (tmp_path / "digits.tflite").write_bytes(b"")
    with pytest.raises(ValueError, match="--model must be a run"):
        call("export.main", f"--model={tmp_path / 'digits.tflite'}", f"--output={tmp_path / 'served'}")


@pytest.mark.slow
def test_the_card_names_the_origin_of_the_artifact(saved_model):
    card = open_artifact(str(saved_model)).card
    assert card.class_names == tuple(str(i) for i in range(10))
    assert card.metrics["eval_accuracy"] == 0.5
    assert card.data["num_train"] == 1437
    assert card.recipe["data"]["source"] == "digits"
    assert len(card.model_sha256) == 64
