"""Models that predict numbers, opened and shown: from a run, a file, or a function."""

import dataclasses
import json

import numpy as np
import pytest

from export import latency
from keras_vit import inference, outputs
from keras_vit.inference import keras_card
from keras_vit.util import file_io, formatting
from keras_vit.util.values import Values
from tests import tiny
from tests.programs import call

VALUES = Values(("age", "height"), mean=(40.0, 1.7), deviation=(10.0, 0.1))
PREPROCESS = "value_range(-1, 1)"


def network(**arguments):
    return tiny.regression(VALUES, **arguments)


def restored(model, images):
    return np.float64(model.predict(images, verbose=0)) * VALUES.deviation + VALUES.mean


@pytest.mark.slow
def test_file_of_a_regression_model_predicts_values(tmp_path):
    model = network()
    model.save(tmp_path / "model.keras")
    predictor = inference.open_predictor(tmp_path / "model.keras", preprocess=PREPROCESS)
    card = predictor.card
    assert (card.output, card.output_name, card.names, card.class_names) == ("values", "values", VALUES.names, ())
    assert Values.from_dict(card.values) == VALUES and "values" not in card.arguments
    assert predictor.scores_are == "standardized"
    images = predictor.preprocess(tiny.images(3).contents)
    found = predictor.predict(images)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, restored(model, images), rtol=1e-5)
    np.testing.assert_allclose(predictor.scores(images), model.predict(images, verbose=0), atol=1e-5)
    assert latency.measure(predictor, 2, 1, 1)["batch_size"] == 2
    with pytest.raises(ValueError, match="no classes. Received: labels"):
        inference.open_predictor(tmp_path / "model.keras", preprocess=PREPROCESS, class_names=["a", "b"])
    resized = inference.open_predictor(tmp_path / "model.keras", preprocess=PREPROCESS, image_size=32)
    assert Values.from_dict(resized.card.values) == VALUES


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *(
            (99_999.4, "99999"),
            (99_999.5, "100000"),
            (-128_250.4, "-128250"),
            (0.03125, "0.03125"),
            (1953.44, "1953.4"),
        ),
        *((999_999_999_999_999.0, "999999999999999"), (1e15, "1e+15"), (-2.5e20, "-2.5e+20")),
    ],
)
def test_numbers_have_five_digits_but_all_of_their_integer_part(value, text):
    assert formatting.as_number(value) == text


def test_the_first_of_equal_classes_is_first():
    """NumPy's default order of more than 16 numbers is not stable."""
    found = outputs.of("softmax").parts(np.arange(40) % 2 / 20, [f"class {index}" for index in range(40)], top_k=3)
    assert found == [("class 1", 0.05), ("class 3", 0.05), ("class 5", 0.05)]


@pytest.mark.slow
def test_labels_of_a_model_without_a_head_are_refused():
    with pytest.raises(ValueError, match="classification head"):
        keras_card.card_of_model(tiny.model(include_top=False), "a.keras", PREPROCESS, ["a"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a regression on the digits."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    model = tiny.write_digits_run(directory, classes=2)
    model.values = VALUES
    model.save(directory / "model.keras")
    config = file_io.read_json(directory / "config.json")
    config["data"] |= {"class_names": [], "num_classes": 0, "label_kind": "values", "values": VALUES.to_dict()}
    file_io.write_json(directory / "config.json", config)
    return directory


@pytest.mark.slow
def test_run_of_a_regression_predicts_values(run):
    predictor = inference.open_predictor(run)
    images = np.random.default_rng(0).uniform(-1, 1, (3, 8, 8, 1)).astype(np.float32)
    assert (predictor.card.output, predictor.card.names) == ("values", VALUES.names)
    np.testing.assert_allclose(predictor.predict(images), restored(predictor.model, images), rtol=1e-5)


@pytest.mark.slow
def test_predict_prints_values(run, tmp_path, capsys):
    predictor = inference.open_predictor(run)
    paths = [tmp_path / "a.png", tmp_path / "bad.png"]
    paths[0].write_bytes(tiny.images(1).contents[0])
    paths[1].write_bytes(b"bad")
    expected = predictor.predict(predictor.preprocess([paths[0].read_bytes()]))[0].tolist()
    assert call("train.predict", f"--model={run}", "--json", *paths) == 1
    good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    assert good["path"] == str(paths[0]) and list(good["values"]) == ["age", "height"]
    np.testing.assert_allclose(list(good["values"].values()), expected, rtol=1e-6)
    assert "values" not in bad and "error" in bad
    assert call("train.predict", f"--model={run}", paths[0]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert first == str(paths[0]) and [row.split()[0] for row in rows] == ["age", "height"]
    np.testing.assert_allclose([float(row.split()[1]) for row in rows], expected, rtol=1e-4)
    with pytest.raises(ValueError, match="--top_k.*predicts values"):
        call("train.predict", f"--model={run}", "--top_k=3", paths[0])


def test_function_predictor_returns_values_in_their_unit():
    card = dataclasses.replace(tiny.card("values", values=VALUES.to_dict()), class_names=())
    predictor = inference.FunctionPredictor(card, lambda images: (images, np.float32([[0.0, 1.0]])))
    np.testing.assert_allclose(predictor.predict(np.zeros((1, 2))), [[40.0, 1.8]], rtol=1e-6)
    with pytest.raises(ValueError, match="Values need names"):
        outputs.Numbers().predictions(np.zeros((1, 2)))


def test_values_are_printed_with_five_significant_digits():
    kind, numbers = outputs.of("values"), [1953.42, 128249.6, 19.99, 0.03125, -3, 99999.7, 99999.4, -128249.6]
    lines = kind.as_text(kind.parts(np.float32(numbers), list("abcdefgh"))).splitlines()
    assert [line.split()[1] for line in lines] == [
        *("1953.4", "128250", "19.99", "0.03125", "-3", "100000", "99999", "-128250"),
    ]
    assert len({len(line) for line in lines}) == 1
    assert kind.as_json(kind.parts(np.float32([41.2]), ["age"])) == {"values": {"age": 41.2}}
    with pytest.raises(ValueError, match="each of the 2 outputs"):
        kind.parts(np.zeros(2), ["age"])
