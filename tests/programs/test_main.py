"""The training program as users run it: its files, its exit codes, and resuming after a kill."""

import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import time

import keras
import numpy as np
import pytest

from keras_vit.evaluators import knn
from keras_vit.runs import load_run
from keras_vit.training import metrics
from keras_vit.util import locks
from tests import forked, programs
from tests.training import small_runs
from tools import crash

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of the tiny recipe in a separate process, and its output."""
    directory = tmp_path_factory.mktemp("whole")
    return directory, small_runs.train_alone(directory)


def test_train_writes_the_files_of_a_run(whole):
    directory, output = whole
    names = {path.name for path in directory.iterdir()}
    drawn = {"report.png"} if importlib.util.find_spec("matplotlib") else set()
    assert {"config.json", "metrics.jsonl", "tensorboard", "checkpoints", "model.keras", *drawn} <= names
    assert not [name for name in names if "tmp" in name]
    config = json.loads((directory / "config.json").read_text())
    assert config["recipe"]["model"]["arguments"]["hidden_size"] == 16
    assert config["data"]["class_names"] == [str(digit) for digit in range(10)]
    assert (config["data"]["num_train"], config["data"]["num_eval"]) == (1437, 360)
    assert "test accuracy" in output
    assert "Confusion (rows: true class, columns: predicted)" in output
    found = small_runs.metrics(directory)
    assert [line["step"] for line in found if "loss" in line] == [2, 4, 6, 8, 10, 12]
    assert {line["examples"] for line in found if "eval_accuracy" in line} == {360}


def test_load_run_returns_model_and_recipe(whole):
    """In another process than the one that wrote the run."""
    directory, _ = whole
    run = load_run(directory)
    assert run.model.input_shape == (None, 8, 8, 1)
    again = load_run(directory / "model.keras")
    assert run.class_names == again.class_names == tuple(str(digit) for digit in range(10))
    assert run.model.class_names == run.class_names  # the file has them, too
    assert (run.preprocess, run.path) == ("value_range(-1, 1)", str(directory))
    assert run.model(np.zeros((1, 8, 8, 1), np.float32)).shape == (1, 10)
    with pytest.raises(FileNotFoundError, match="Expected model.keras in the directory"):
        load_run(directory / "tensorboard")


def test_killed_run_resumes_bit_for_bit(whole, tmp_path, monkeypatch):
    """Killed while it writes a checkpoint, a run ends with the bits of the uninterrupted one."""
    command = [argument for argument in small_runs.arguments("unused") if not argument.startswith("--workdir")]

    def start(command, directory):
        return forked.Program(small_runs.ROOT, "train.main", [*command, f"--workdir={directory}"], ENVIRONMENT)

    monkeypatch.setattr(crash, "start", start)
    lines = []
    runs, dice = tmp_path / "runs", random.Random(1)
    assert crash.crash(runs, command, kills=1, dice=dice, say=lines.append, whole=whole[0]) >= 1
    assert len(lines) == 1


def test_stop_request_has_its_own_exit_code(whole, tmp_path):
    process = small_runs.start(tmp_path, total_steps=100_000, log_every=1)
    deadline = time.monotonic() + 120
    while not (tmp_path / "metrics.jsonl").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output[-3000:]
    assert "Stopped by SIGTERM at step" in output
    assert list((tmp_path / "checkpoints").glob("ckpt-*.json"))


def test_stop_request_before_the_first_step_exits_with_code_75(tmp_path):
    process = small_runs.start(tmp_path)
    while "to train on" not in (line := process.stdout.readline()) and line:
        pass
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output[-3000:]
    assert "Traceback" not in output


def test_used_run_directory_is_refused_for_another_recipe(whole):
    """Another recipe and another process, on a finished run. `test_run_directory.py` has the other fields."""
    directory, _ = whole
    config, model = (directory / "config.json").read_bytes(), (directory / "model.keras").read_bytes()
    output = small_runs.train(directory, expect=2, optim__learning_rate=1e-5)
    assert "optim.learning_rate" in output and "--change_recipe" in output
    with locks.locked(str(directory)):
        assert f"process {os.getpid()} on" in small_runs.train(directory, expect=2)
    assert (directory / "config.json").read_bytes() == config
    assert (directory / "model.keras").read_bytes() == model


def test_changed_recipe_keeps_the_record_of_the_first(whole, tmp_path):
    """Incomplete files of the first run are repaired."""
    directory = shutil.copytree(whole[0], tmp_path / "run")
    (directory / "checkpoints" / "checkpoint").write_bytes(b"\xff\xfe")
    with open(directory / "metrics.jsonl", "ab") as file:
        file.write(b"[1]\n\xff\xfe")
    small_runs.train(directory, "--change_recipe", total_steps=14, optim__learning_rate=1e-5)
    config = json.loads((directory / "config.json").read_text())
    assert config["recipe"]["optim"]["learning_rate"] == 1e-5
    assert [(entry["until_step"], entry["recipe"]["total_steps"]) for entry in config["history"]] == [(12, 12)]
    assert [line["step"] for line in small_runs.metrics(directory) if "loss" in line] == [2, 4, 6, 8, 10, 12, 14]


def test_full_disk_while_writing_metrics_is_reported(tmp_path, monkeypatch):
    write, limits = metrics.MetricsWriter.write, resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(self, *arguments):
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))  # from here on, no file can grow beyond 50 bytes
        write(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(metrics.MetricsWriter, "write", limited)
        try:
            output = small_runs.train(tmp_path, expect=74, checkpoint_every=100)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "Could not write" in output and "Traceback" not in output


def test_a_stored_run_resumes(tmp_path):
    directory = shutil.copytree(small_runs.ROOT / "tests/runs/data/run", tmp_path / "run")
    fields = {"patch_size": 4, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "mlp_dim": 8, "dropout_rate": 0.0}
    fields = {f"model__arguments__{name}": value for name, value in fields.items()} | {
        "model__arguments__drop_path_rate": None
    }
    output = small_runs.train(directory, total_steps=6, optim__ema_momentum=0.99, data__batch_size=16, **fields)
    assert "Resuming from the checkpoint of step 4" in output


def test_accumulation_is_enabled_if_memory_is_short(tmp_path):
    """TensorFlow takes 256 MB for the memory of a CPU and, near that, sums in temporary variables. See `TrainStep`."""
    pp, model = (
        "resize(192)|value_range(-1, 1)",
        {"model__image_size": 192, "model__arguments__patch_size": 4},
    )  # 2,304 tokens
    data = {"data__pp_train": pp, "data__pp_eval": pp, "data__eval_split": "test[:4]", "data__eval_batch_size": 4}
    small_runs.train(tmp_path, total_steps=2, data__batch_size=4, optim__accumulation_steps=2, **model, **data)
    assert [line["step"] for line in small_runs.metrics(tmp_path) if "loss" in line] == [2]


def test_the_test_split_is_read_once_at_the_end_and_reported(tmp_path):
    splits = {
        "data__train_split": "train[:800]",
        "data__eval_split": "train[800:980]",
        "data__test_split": "test[:180]",
    }
    output = small_runs.train(tmp_path, total_steps=8, patience=1, optim__learning_rate=0.0, **splits)  # ends at 8
    lines = [line for line in small_runs.metrics(tmp_path) if "loss" not in line]
    assert [(line["step"], line["split"], "test_loss" in line) for line in lines] == [
        (4, "train[800:980]", False),
        (8, "train[800:980]", False),
        (8, "test[:180]", True),
    ]
    assert "180 of 'train[800:980]' to choose the best checkpoint, 180 of 'test[:180]' to report" in output
    assert "model.keras has the weights of step 8, the best of 2 evaluations\n" in output
    shown = [f"\n{split} accuracy " for split in ("test[:180]", "train[800:980]")]
    assert output.index(shown[0]) < output.index(shown[1])
    run, before = load_run(str(tmp_path)), small_runs.metrics(tmp_path)
    assert run.results["test_accuracy"] == lines[2]["test_accuracy"] and run.results["split"] == "train[800:980]"
    output = small_runs.train(tmp_path, total_steps=8, patience=1, optim__learning_rate=0.0, **splits)
    assert shown[0] in output and small_runs.metrics(tmp_path) == before
    code, output = programs.run("train.evaluate", f"--model={tmp_path}", "--json")
    found = json.loads(output[output.index("{") :])
    assert (
        code == 0 and found["split"] == "test[:180]" and found["accuracy"] == pytest.approx(lines[2]["test_accuracy"])
    )


@pytest.mark.slow
def test_failed_evaluator_loses_no_results(tmp_path, monkeypatch):
    monkeypatch.setattr(knn.Knn, "measure", None)
    output = small_runs.train(tmp_path, expect=1, total_steps=2, evaluators="('knn',)")
    assert "the model is saved, but evaluators failed: knn" in output
    assert (tmp_path / "model.keras").exists()
    assert "TypeError" in small_runs.metrics(tmp_path)[-1]["not_measured"]


def test_unreadable_image_ends_the_run_with_its_path(tmp_path):
    for name in ("train/a", "train/b", "test/a", "test/b"):
        directory = tmp_path / "pictures" / name
        directory.mkdir(parents=True)
        for index in range(4):
            keras.utils.save_img(directory / f"{index}.jpg", np.full((9, 9, 3), 40 * index))
    whole = (tmp_path / "pictures/train/b/3.jpg").read_bytes()
    (tmp_path / "pictures/train/b/3.jpg").write_bytes(whole[: len(whole) // 2])
    pp = "decode|resize(8)|value_range(-1, 1)"
    output = small_runs.train(
        tmp_path / "run",
        expect=66,
        data__source=f"folder:{tmp_path}/pictures",
        data__pp_train=pp,
        data__pp_eval=pp,
        data__eval_batch_size=8,
    )
    assert f"unreadable image {tmp_path}/pictures/train/b/3.jpg" in output
    assert "Traceback" not in output
