"""Classifiers of any format behind the development server."""

import dataclasses

import numpy as np
import pytest

import keras_vit
from keras_vit import inference
from keras_vit.tf_serving import served_model
from tests import programs, tiny


@pytest.fixture(scope="module")
def images():
    """Three images, the second of which is unreadable."""
    first, last = (tiny.encode(image, "PNG") for image in tiny.arrays(2, seed=3))
    return [first, b"bad", last]


def test_answers_are_those_of_the_saved_model(served, served_artifact, images):
    classifier = inference.KerasClassifier(served[0], tiny.card())
    model = served_model.ServedModel("pets", "", classifier)
    expected = served_artifact.run("serving_default", {"image_bytes": images})
    with model.use("pets") as (version, servable):
        assert version == 1 and not model.reload()
        answer = servable.run("serving_default", {"image_bytes": np.array(images, object)})
        specification = servable.signatures["serving_default"]
    assert answer.keys() == expected.keys() == specification.outputs.keys()
    for name, value in expected.items():
        if value.dtype == object:
            np.testing.assert_array_equal(answer[name], value)
        else:
            np.testing.assert_allclose(answer[name], value, atol=1e-5)
    assert answer["valid"].tolist() == [True, False, True]
    status = model.status("pets", None)["model_version_status"]
    assert [(one["version"], one["state"]) for one in status] == [("1", "AVAILABLE")]
    assert "serving_default" in model.metadata("pets", 1)["metadata"]["signature_def"]["signature_def"]


def test_a_model_without_a_head(images):
    model = tiny.model(include_top=False)
    classifier = inference.KerasClassifier(model, dataclasses.replace(tiny.card(), class_names=()))
    with pytest.raises(ValueError, match="classification head"):
        served_model.ServedModel("pets", "", classifier)


def test_the_program_opens_what_it_is_given(served, tmp_path):
    program = programs.load("export.serve")
    program.flags.FLAGS(["serve", f"--model={served[1]}"])
    assert not program.open_model("pets").reload()  # the newest version of a SavedModel
    keras_vit.save_checkpoint(served[0], tmp_path / "pets.npz", format="google")
    (tmp_path / "labels.txt").write_text("".join(f"{name}!\n" for name in tiny.CLASS_NAMES), encoding="utf-8")
    arguments = ["--preprocess=value_range(-1, 1)", f"--labels={tmp_path / 'labels.txt'}"]
    program.flags.FLAGS(["serve", f"--model={tmp_path / 'pets.npz'}", *arguments])
    with program.open_model("pets").use("pets") as (_, servable):
        answer = servable.run("serving_default", {"image_bytes": [tiny.encode(tiny.arrays(1)[0], "PNG")]})
    assert answer["top_k_classes"].shape == (1, 5)
    assert all(label.decode().endswith("!") for label in answer["top_k_classes"][0])
