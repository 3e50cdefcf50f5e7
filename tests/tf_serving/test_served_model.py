"""Models of the development server: SavedModels, and predictors of any other format."""

import dataclasses

import numpy as np
import pytest

import keras_vit
from export.serving.served_model import ServedModel, ServedPredictor
from keras_vit import inference, tf_serving
from keras_vit.exporting import saved_model
from keras_vit.inference import open_predictor
from keras_vit.inference.predictor import FunctionPredictor
from keras_vit.inference.saved_model import SavedModelPredictor
from tests import tiny
from tests.tf_serving import servers


@pytest.fixture(scope="module")
def images():
    """Three images, the second of which is unreadable."""
    first, last = (tiny.encode(image, "PNG") for image in tiny.arrays(2, seed=3))
    return [first, b"bad", last]


@pytest.mark.slow
def test_responses_match_the_saved_model(served, images):
    servable = ServedPredictor(inference.KerasPredictor(served[0], tiny.card()))
    expected = open_predictor(served[1]).run("serving_default", {"image_bytes": images})
    response = servable.run("serving_default", {"image_bytes": np.array(images, object)})
    assert response.keys() == expected.keys() == servable.signatures["serving_default"].outputs.keys()
    for name, value in expected.items():
        if value.dtype == object:
            np.testing.assert_array_equal(response[name], value)
        else:
            np.testing.assert_allclose(response[name], value, atol=1e-5)
    assert response["valid"].tolist() == [True, False, True]


def test_ties_are_in_class_order():
    """As in TensorFlow's `top_k`. NumPy's default order of more than 16 numbers is not stable."""
    card = dataclasses.replace(tiny.card(), class_names=tuple(f"class {number}" for number in range(40)))
    servable = ServedPredictor(FunctionPredictor(card, lambda images: (None, images)), top_k=3)
    found = servable._labeled(np.arange(40)[None] % 2 / np.float32(20), 1)
    assert found["top_k_classes"].tolist() == [[b"class 1", b"class 3", b"class 5"]]


@pytest.mark.slow
def test_status_and_metadata_match_the_rest_api(served):
    """A SavedModel has the number of its directory and its own signatures; other formats have one of each."""
    model = ServedModel("pets", open_predictor(served[1]))
    model.version = 12
    (status,) = model.status()["model_version_status"]
    assert (status["version"], status["state"]) == ("12", "AVAILABLE")
    assert model.metadata()["model_spec"] == {"name": "pets", "signature_name": "", "version": "12"}
    other = ServedModel("pets", inference.KerasPredictor(served[0], tiny.card(), "runs/7"))
    assert other.version == 1
    assert list(other.metadata()["metadata"]["signature_def"]["signature_def"]) == ["serving_default"]


@pytest.mark.parametrize(("path", "version"), [("a/pets/12", 12), ("a/pets/12/", 12), ("a/pets", 1), ("a/v12", 1)])
def test_the_version_is_the_name_of_the_directory(path, version):
    predictor = object.__new__(SavedModelPredictor)
    predictor.path, predictor.card = path, tiny.card()
    assert ServedModel("pets", predictor).version == version


@pytest.mark.slow
def test_small_images_of_a_request_count_as_a_quarter_of_a_million_pixels_each():
    """Preprocessing enlarges them. A request may have up to 400 images."""
    model = ServedModel("pets", inference.KerasPredictor(tiny.model(num_layers=1), tiny.card()))

    def pixels(*contents):
        return model._pixels({"image_bytes": np.array(contents, object)})

    large, small = tiny.encode(np.zeros((1_000, 600, 3), np.uint8), "PNG"), tiny.encode(tiny.arrays(1)[0], "PNG")
    assert (pixels(small), pixels(large), pixels(small, b"bad")) == (250_000, 600_000, 500_000)
    assert pixels(large, large, small) == 1_200_000 + 20 * 24
    assert pixels(*[b"bad"] * 400) == 100_000_000
    with pytest.raises(tf_serving.RequestError, match="at most 400 images.*Received: 401 images"):
        pixels(*[b"bad"] * 401)


@pytest.mark.slow
def test_model_without_a_head_is_refused():
    model = tiny.model(include_top=False)
    predictor = inference.KerasPredictor(model, dataclasses.replace(tiny.card(), class_names=()))
    with pytest.raises(ValueError, match="classification head"):
        ServedModel("pets", predictor)


@pytest.mark.slow
def test_class_names_given_for_a_checkpoint_are_served(served, tmp_path):
    keras_vit.save_checkpoint(served[0], tmp_path / "pets.npz", format="google")
    labels = [f"{name}!" for name in tiny.CLASS_NAMES]
    predictor = open_predictor(tmp_path / "pets.npz", preprocess="value_range(-1, 1)", class_names=labels)
    contents = [tiny.encode(tiny.arrays(1)[0], "PNG")]
    response = ServedPredictor(predictor).run("serving_default", {"image_bytes": contents})
    assert response["top_k_classes"].shape == (1, 5)
    assert all(label.decode().endswith("!") for label in response["top_k_classes"][0])


@pytest.mark.slow
def test_regression_values_are_served_with_their_names(images, tmp_path):
    """Of a file they are those of the SavedModel, and the client gets their names with them."""
    values = {"names": ["year"], "mean": [1950.0], "deviation": [10.0]}
    model = tiny.model(num_layers=1, classes=1)
    model.values = values
    card = dataclasses.replace(tiny.card("values", values=values), class_names=())
    path, _ = saved_model.write(model, str(tmp_path), card=card, images=tiny.images(2))
    expected = open_predictor(path).run("serving_default", {"image_bytes": images})
    for predictor in (open_predictor(path), inference.KerasPredictor(model, card)):
        served = ServedModel("years", predictor)
        with servers.serving_model(served) as url:
            found = tf_serving.Client(url, "years").predict(images)
        assert [(answer.labels, answer.valid, answer.kind) for answer in found] == [
            (["year"], True, "values"),
            ([], False, "values"),
            (["year"], True, "values"),
        ]
        np.testing.assert_allclose([found[0].scores, found[2].scores], expected["values"][[0, 2]], rtol=1e-6)
        outputs = served.metadata()["metadata"]["signature_def"]["signature_def"]["serving_default"]["outputs"]
        assert outputs.keys() == {"values", "value_names", "valid"}
