"""The training program as users run it: what it leaves behind, how it ends, and what a kill costs."""

import json
import random
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

from keras_vit.training import load_run
from tests.training import worlds
from tools import crash

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of the tiny recipe, and what it printed."""
    directory = tmp_path_factory.mktemp("whole")
    return directory, worlds.train(directory)


def test_what_a_run_leaves_behind(whole):
    directory, output = whole
    names = {path.name for path in directory.iterdir()}
    assert {"config.json", "metrics.jsonl", "tensorboard", "checkpoints", "model.keras", "report.png"} <= names
    assert not [name for name in names if "tmp" in name]
    config = json.loads((directory / "config.json").read_text())
    assert config["recipe"]["model"]["hidden_size"] == 16
    assert config["data"]["class_names"] == [str(digit) for digit in range(10)]
    assert (config["data"]["num_train"], config["data"]["num_eval"]) == (1437, 360)
    assert "test accuracy" in output
    assert "Confusion (rows: true class, columns: predicted)" in output
    found = worlds.metrics(directory)
    assert [line["step"] for line in found if "loss" in line] == [2, 4, 6, 8, 10, 12]
    assert {line["examples"] for line in found if "eval_accuracy" in line} == {360}


def test_the_model_opens_in_another_process(whole):
    directory, _ = whole
    program = "import keras, keras_vit, sys; print(keras.models.load_model(sys.argv[1]).input_shape)"
    command = [sys.executable, "-c", program, str(directory / "model.keras")]
    done = subprocess.run(command, cwd=worlds.ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "(None, 8, 8, 1)" in done.stdout


def test_load_run(whole):
    directory, _ = whole
    run = load_run(directory)
    again = load_run(directory / "model.keras")
    assert run.class_names == again.class_names == tuple(str(digit) for digit in range(10))
    assert (run.preprocess, run.output, run.path) == ("value_range(-1, 1)", "softmax", str(directory))
    assert run.model(np.zeros((1, 8, 8, 1), np.float32)).shape == (1, 10)
    with pytest.raises(FileNotFoundError, match="Expected model.keras in the directory"):
        load_run(directory / "tensorboard")


def test_short_crash_test(tmp_path):
    command = worlds.command("unused")
    command = [argument for argument in command if not argument.startswith("--workdir")]
    lines = []
    assert crash.crash(tmp_path / "runs", command, kills=3, dice=random.Random(1), say=lines.append) >= 1
    assert len(lines) == 3


def test_a_supervisor_can_tell_a_stop_request_apart(whole, tmp_path):
    process = worlds.start(tmp_path, total_steps=100_000, log_every=1)
    deadline = time.monotonic() + 120
    while not (tmp_path / "metrics.jsonl").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output[-3000:]
    assert "Stopped by SIGTERM at step" in output
    assert list((tmp_path / "checkpoints").glob("ckpt-*.json"))


def test_virtual_devices_with_accumulation_follow_one_device(tmp_path):
    """Without dropout, whose draws belong to a replica, two devices and micro-batches give the same metrics."""
    quiet = {"model__dropout_rate": 0.0, "model__drop_path_rate": 0.0}
    worlds.train(tmp_path / "one", **quiet)
    worlds.train(tmp_path / "two", "--distribute=mirrored", "--virtual_devices=2", optim__accumulation_steps=2, **quiet)
    one, two = worlds.metrics(tmp_path / "one"), worlds.metrics(tmp_path / "two")
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for first, second in zip(one, two, strict=True):
        for name in {"loss", "grad_norm", "eval_loss", "learning_rate"} & set(first):
            assert first[name] == pytest.approx(second[name], rel=1e-4)


def test_accumulation_goes_on_where_memory_is_short(tmp_path):
    """TensorFlow takes 256 MB for the memory of a CPU and, near that, sums in temporary variables. See `TrainStep`."""
    pp, model = "resize(192)|value_range(-1, 1)", {"model__image_size": 192, "model__patch_size": 4}  # 2,304 tokens
    data = {"data__pp_train": pp, "data__pp_eval": pp, "data__eval_split": "test[:4]", "data__eval_batch_size": 4}
    worlds.train(tmp_path, total_steps=2, data__batch_size=4, optim__accumulation_steps=2, **model, **data)
    assert [line["step"] for line in worlds.metrics(tmp_path) if "loss" in line] == [2]


def test_an_evaluator_that_fails_loses_nothing(tmp_path):
    broken = (
        "import runpy, sys; from keras_vit.evaluators import on_features; on_features.Knn.__call__ = None; "
        "sys.argv[0] = 'train/main.py'; runpy.run_module('train.main', run_name='__main__', alter_sys=True)"
    )
    command = worlds.command(tmp_path, total_steps=2, evaluators="('knn',)")
    command[1:3] = ["-c", broken]
    done = subprocess.run(command, cwd=worlds.ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "model saved, but evaluators failed: knn" in done.stderr
    assert (tmp_path / "model.keras").exists()
    assert "TypeError" in worlds.metrics(tmp_path)[-1]["not_measured"]


def test_an_unreadable_picture_ends_the_run_with_its_path(tmp_path):
    for name in ("train/a", "train/b", "test/a", "test/b"):
        directory = tmp_path / "pictures" / name
        directory.mkdir(parents=True)
        for index in range(4):
            keras.utils.save_img(directory / f"{index}.jpg", np.full((9, 9, 3), 40 * index))
    whole = (tmp_path / "pictures/train/b/3.jpg").read_bytes()
    (tmp_path / "pictures/train/b/3.jpg").write_bytes(whole[: len(whole) // 2])
    pp = "decode|resize(8)|value_range(-1, 1)"
    output = worlds.train(
        tmp_path / "run",
        expect=66,
        data__source=f"folder:{tmp_path}/pictures",
        data__pp_train=pp,
        data__pp_eval=pp,
        data__eval_batch_size=8,
    )
    assert f"unreadable image {tmp_path}/pictures/train/b/3.jpg" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--config.optim.learning_rat=1"], "no field optim.learning_rat. Did you mean optim.learning_rate"),
        (["--distribute=mirrored", "--virtual_devices=3"], "The nearest that works is 15"),
        (["--config.model.image_size=16"], "must give images of model.image_size=16 by 16. It gives 8 by 8"),
    ],
)
def test_wrong_usage_is_one_readable_line(tmp_path, flags, said):
    output = worlds.train(tmp_path, *flags, expect=2)
    assert said in output
    assert "Traceback" not in output
