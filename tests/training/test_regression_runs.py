"""A regression from a CSV to a file that predicts in the unit of the data."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.inference import open_predictor
from keras_vit.runs.run_directory import read_metrics
from keras_vit.runs.trained_run import load_run
from tests import programs
from tests.training import small_runs

PP = "decode|resize(8)|value_range(-1, 1)"
FIELDS = {
    "task": "regression",
    "label_smoothing": 0.0,
    "model__arguments__dropout_rate": 0.0,
    "model__arguments__drop_path_rate": 0.0,
    "data__pp_train": PP,
    "data__pp_eval": PP,
    "data__eval_batch_size": 16,
    "optim__learning_rate": 0.01,
    "optim__ema_momentum": 0,
    "total_steps": 60,
    "eval_every": 20,
    "checkpoint_every": 20,
    "log_every": 20,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Gray images whose brightness is a year and a price."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    rows = ["path,year,price"]
    for index, year in enumerate(rng.uniform(1900, 2000, 120)):
        image = np.full((8, 8, 3), 2 * (year - 1900), np.uint8)
        (folder / f"{index}.png").write_bytes(tf.io.encode_png(image).numpy())
        rows.append(f"{index}.png,{year:.3f},{1000 + 5 * year:.3f}")
    (folder / "years.csv").write_text("\n".join(rows))
    return f"manifest:{folder / 'years.csv'}#values=('year','price')"


@pytest.fixture(scope="module")
def run(source, tmp_path_factory):
    directory = tmp_path_factory.mktemp("regression") / "run"
    return directory, small_runs.train(directory, data__source=source, **FIELDS)


@pytest.mark.slow
def test_regression_run_reports_errors_in_the_unit_of_the_data(run, source):
    directory, printed = run
    errors = [line["eval_mae"] for line in read_metrics(str(directory)) if "eval_mae" in line]
    assert errors[-1] < 0.5 * errors[0] and errors[-1] < 40  # of a price whose deviation is 144
    score = read_metrics(str(directory))[-1]["eval_standardized_mae"]
    last = printed.split(f"test standardized_mae {score:.4g} on")[-1]
    assert f"\nmae {errors[-1]:.4g}\n" in last and "%" not in last
    config = json.loads((directory / "config.json").read_text())
    expected = data.values_of(data.open_source(source, "train"))
    assert config["data"]["values"] == expected.to_dict() and config["output"] == "values"
    assert load_run(str(directory)).model.values == expected


@pytest.mark.slow
def test_evaluate_finds_the_same_error(run, source):
    directory, _ = run
    code, output = programs.run("train.evaluate", f"--model={directory}", "--json")
    found = json.loads(output[output.index("{") :])
    opened, labels, predicted = data.open_source(source, "test"), [], []
    predictor = open_predictor(str(directory))
    for example in opened.examples():
        labels.append(example["label"].numpy())
        predicted.append(predictor.predict(predictor.preprocess([example["image"].numpy()]))[0])
    mae = np.abs(np.float64(predicted) - np.float64(labels)).mean()
    assert code == 0 and found["mae"] == pytest.approx(mae, rel=1e-5)  # float32 values of 10,000
    line = read_metrics(str(directory))[-1]
    assert line["eval_mae"] == pytest.approx(mae, rel=1e-4)  # the loop sums in float32
    assert line["eval_standardized_mae"] == pytest.approx(found["standardized_mae"], rel=1e-4)


@pytest.mark.slow
def test_a_checkpoint_predicts_the_same(run, source):
    directory, _ = run
    image = next(iter(data.open_source(source, "test").examples()))["image"].numpy()
    final, of_step = (open_predictor(str(directory), checkpoint=checkpoint) for checkpoint in (None, "best"))
    prepared = final.preprocess([image])
    np.testing.assert_allclose(of_step.predict(prepared), final.predict(prepared), rtol=1e-5)
