"""Runs that train a part of the weights: resumed, on two devices, exported."""

import json
import pathlib
import shutil

import keras
import numpy as np
import pytest

from keras_vit.adaptation.adapt import lora_layers
from tests import programs
from tests.training import small_runs

FLAG = "--adapt=lora(rank=2, alpha=6, layers='query|Dense_0')"
LORA = {
    "optim__name": "muon",
    "optim__weight_decay": 0.1,
    "optim__layer_decay": 0.9,
    "optim__accumulation_steps": 2,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("adapted") / "run"
    small_runs.train(directory, FLAG, **LORA, keep_checkpoints=4)
    return directory


@pytest.mark.slow
def test_resumed_run_equals_an_uninterrupted_run_bit_for_bit(run, tmp_path):
    resumed = pathlib.Path(shutil.copytree(run, tmp_path / "resumed"))
    (resumed / "model.keras").unlink()
    for path in (resumed / "checkpoints").iterdir():
        if path.name.startswith(("ckpt-8.", "ckpt-9.", "ckpt-12.")):
            path.unlink()
    assert "Resuming from the checkpoint of step 6" in small_runs.train(resumed, FLAG, **LORA, keep_checkpoints=4)
    small_runs.assert_same_bits(small_runs.final_weights(run), small_runs.final_weights(resumed))
    assert small_runs.metrics(run) == small_runs.metrics(resumed)


@pytest.mark.slow
def test_only_factors_and_head_change_and_have_slots(run):
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(run / "checkpoints" / "ckpt-6"))
    kept = [name.partition("/")[2] for name in reader.get_variable_to_shape_map() if name.startswith("average")]
    assert len(kept) == 10 and all("/lora_kernel_" in path or path.startswith("head/") for path in kept)
    model = keras.models.load_model(run / "model.keras", compile=False)
    assert sorted(weight.path for weight in model.trainable_weights) == sorted(kept)
    assert [layer.lora_alpha for layer in lora_layers(model)] == [6] * 4
    for layer in lora_layers(model):
        assert np.abs(keras.ops.convert_to_numpy(layer.lora_kernel_b)).max() > 0
    for weight in model.weights:
        if weight.path not in kept:
            np.testing.assert_array_equal(reader.get_tensor(f"model/{weight.path}"), weight, err_msg=weight.path)


@pytest.mark.slow
def test_an_export_is_merged_and_verified(run, tmp_path):
    code, output = programs.run("export.main", f"--model={run}", f"--output={tmp_path}/model.tflite", "--json")
    assert code == 0, output
    assert json.loads(output.splitlines()[-1])["bytes"] < (run / "model.keras").stat().st_size


@pytest.mark.slow
def test_mutually_exclusive_fields_are_refused(tmp_path):
    output = small_runs.train(tmp_path / "run", "--adapt=lora(rank=0)", expect=2)
    assert "rank" in output
    output = small_runs.train(tmp_path / "run", task="mae(decoder_hidden_size=16)", adapt="head", expect=2)
    assert "adapt='head' needs a model with a head" in output
