"""Run directories: opened, rejected, and never without the record of a run."""

import dataclasses
import errno
import fcntl
import json
import logging
import os
import pathlib
import platform
import queue
import shutil
import socket
import sys
import threading
import time
import types

import keras
import numpy as np
import pytest

from keras_vit import recipe as recipes
from keras_vit.runs import data_record, load_run, run_directory, run_fields
from keras_vit.runs.run_directory import read_metrics
from keras_vit.training.metrics import MetricsWriter
from keras_vit.training.run import TrainingRun
from keras_vit.util import locks as lock
from keras_vit.util import storage
from tests import forked

STORED = pathlib.Path(__file__).parent / "data" / "run"
DATA = {
    "name": "toy",
    "class_names": ["a", "b"],
    "num_classes": 2,
    "num_train": 10,
    "num_eval": 5,
    "label_kind": "class",
}


@pytest.fixture
def run(tmp_path):
    """A copy of a stored run directory."""
    return shutil.copytree(STORED, tmp_path / "run")


@pytest.mark.slow
def test_a_stored_run_opens(run):
    opened = load_run(run)
    assert opened.class_names == tuple(str(digit) for digit in range(10))
    assert opened.preprocess == "value_range(-1, 1)"
    assert opened.model(np.zeros((1, 8, 8, 1), np.float32)).shape == (1, 10)
    recipe = recipes.from_dict(opened.config["recipe"])
    assert (recipe.total_steps, recipe.optim.ema_momentum, opened.config["data"]["channels"]) == (4, 0.99, 1)
    assert not run_fields.differences(opened.config, recipe, opened.config["data"])


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [cut, flip, lambda path: path.write_bytes(bytes(path.stat().st_size))])
def test_a_damaged_model_is_reported(run, harm):
    """For a truncated file, Keras reported that there was no file."""
    harm(run / "model.keras")
    with pytest.raises(ValueError, match="model.keras cannot be loaded"):
        load_run(run)


def with_changes(config, **changes):
    return json.dumps({**config, **changes})


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (lambda config: "[]", "list"),
        (lambda config: '{"a"', "JSON"),
        (lambda config: "{}", "'recipe'"),
        (lambda config: with_changes(config, data=[]), "'data'"),
        (lambda config: with_changes(config, data={}), "class_names"),
        (lambda config: with_changes(config, data={"class_names": [1]}), "class_names"),
        (lambda config: with_changes(config, preprocess=None), "'preprocess'"),
    ],
)
def test_a_wrong_config_is_reported(run, content, named):
    """A list, or data without class names, ended in a traceback."""
    path = run / "config.json"
    path.write_text(content(json.loads(path.read_text())))
    with pytest.raises(ValueError, match=f"config.json.*{named}"):
        load_run(run)


# The record


def recipe(**optim):
    return recipes.Recipe(total_steps=10, optim=recipes.Optim(**optim))


@pytest.fixture
def trained(tmp_path):
    """A run directory with a record and a file in place of the weights."""
    run_directory.write_config(str(tmp_path), recipe(), DATA)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ckpt-5.json").write_text("{}")
    return str(tmp_path)


def test_the_versions_that_made_a_run_are_kept(trained):
    names = ("keras_vit", "keras", "tensorflow", "numpy")
    versions = run_directory.read_config(trained)["versions"]
    assert {name: versions[name] for name in names} == {name: sys.modules[name].__version__ for name in names}
    assert versions["python"] == platform.python_version() and versions["keras_backend"] == keras.backend.backend()


@pytest.mark.parametrize(
    ("changed", "data", "field"),
    [
        (recipe(learning_rate=0.5), DATA, "optim.learning_rate"),
        (dataclasses.replace(recipe(), seed=9), DATA, "seed"),
        (dataclasses.replace(recipe(), total_steps=9), DATA, "total_steps"),
        (dataclasses.replace(recipe(), data=recipes.Data(train_split="train[:10%]")), DATA, "data.train_split"),
        (recipe(), {**DATA, "class_names": ["b", "a"]}, "data set.class_names"),
        (recipe(), {**DATA, "num_train": 9}, "data set.num_train"),
    ],
)
def test_another_recipe_is_refused_unless_requested(trained, changed, data, field):
    with pytest.raises(ValueError, match=field):
        run_fields.check(trained, changed, data)
    run_fields.check(trained, changed, data, change_recipe=True)
    before = run_directory.read_config(trained)
    run_directory.write_config(trained, changed, data, step=5)
    after = run_directory.read_config(trained)
    assert after["recipe"] == json.loads(json.dumps(recipes.to_dict(changed)))
    (entry,) = after["history"]
    assert entry == {"until_step": 5, **{part: before[part] for part in ("recipe", "data", "versions")}}
    run_directory.write_config(trained, recipe(), DATA, step=7)
    assert [entry["until_step"] for entry in run_directory.read_config(trained)["history"]] == [5, 7]


@pytest.mark.parametrize(
    "changed",
    [
        dataclasses.replace(recipe(), log_every=1, eval_every=3, keep_checkpoints=9, evaluators=("knn",)),
        dataclasses.replace(recipe(), total_steps=20),
        dataclasses.replace(recipe(), data=recipes.Data(on_bad_image="skip")),
        recipe(accumulation_steps=2),
    ],
)
def test_fields_that_do_not_affect_the_weights_may_change(trained, changed):
    run_fields.check(trained, changed, DATA)
    before = run_directory.read_config(trained)["recipe"]
    run_directory.write_config(trained, changed, DATA, step=5)
    after = run_directory.read_config(trained)
    assert [entry["recipe"] for entry in after["history"]] == [before]
    assert recipes.from_dict(after["recipe"]) == changed


def test_the_same_recipe_does_not_change_the_record(trained):
    path = pathlib.Path(trained) / "config.json"
    before = path.read_bytes()
    run_fields.check(trained, recipe(), DATA)
    run_directory.write_config(trained, recipe(), DATA, step=5)
    assert path.read_bytes() == before


def test_another_spelling_of_the_task_is_the_same_recipe(trained):
    path = pathlib.Path(trained) / "config.json"
    path.write_text(path.read_text().replace('"classification"', '"classification()"'))
    test_the_same_recipe_does_not_change_the_record(trained)


def test_a_directory_without_weights_accepts_any_recipe(tmp_path):
    run_directory.write_config(str(tmp_path), recipe(), DATA)
    run_fields.check(str(tmp_path), recipe(learning_rate=0.5), DATA)
    run_directory.write_config(str(tmp_path), recipe(learning_rate=0.5), DATA)
    assert "history" not in run_directory.read_config(str(tmp_path))


# The lock


def test_run_directory_is_locked_for_one_process(tmp_path):
    directory = str(tmp_path / "new")
    for _ in range(2):
        with lock.locked(directory), pytest.raises(ValueError, match=r"process \d+ on "):
            lock.locked(directory).__enter__()


def hold_and_end(directory, flock):
    """In a separate process: take the lock, and end as if killed."""
    if not flock:
        fcntl.flock = refuse
    with lock.locked(directory):
        os._exit(9)


def refuse(handle, operation):
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.slow
@pytest.mark.parametrize("flock", [True, False])
def test_the_lock_of_a_killed_process_is_free(tmp_path, monkeypatch, flock):
    process = forked.start(hold_and_end, str(tmp_path), flock)
    process.join(300)
    assert process.exitcode == 9
    if not flock:
        without_flock(monkeypatch)
        assert (tmp_path / ".lock-owner").exists()
    with lock.locked(str(tmp_path)):
        pass


def without_flock(monkeypatch):
    monkeypatch.setattr("fcntl.flock", refuse)


@pytest.mark.slow
def test_lock_without_flock_excludes_other_processes(tmp_path, monkeypatch):
    without_flock(monkeypatch)
    in_a_second(monkeypatch)
    with lock.locked(str(tmp_path)), pytest.raises(ValueError, match=r"process \d+ on "), lock.locked(str(tmp_path)):
        pass
    with lock.locked(str(tmp_path)):
        pass
    assert not (tmp_path / ".lock-owner").exists()


class Pod:
    """A lease of a process in another container, which may have the same host name and process number."""

    def __init__(self, directory, host="pod-1", process=1):
        self.path = directory / ".lock-owner"
        record = f"pid={process}\nhost={host}\nmode=lease\ntoken=abc\nduration={lock.SILENCE}\nstart=1\n"
        self.path.write_text(f"filelock/2\n{record}")


def in_a_second(monkeypatch):
    monkeypatch.setattr(lock, "SILENCE", 1)
    monkeypatch.setattr(lock, "REFRESH", 0.2)


@pytest.mark.slow
def test_without_flock_a_lease_that_is_not_refreshed_is_taken_over(tmp_path, monkeypatch, caplog):
    without_flock(monkeypatch)
    in_a_second(monkeypatch)
    pod, started = Pod(tmp_path), time.monotonic()
    with lock.locked(str(tmp_path)):
        assert time.monotonic() - started >= lock.SILENCE
        assert f"pid={os.getpid()}\n" in pod.path.read_text()
    assert "process 1 on pod-1 holds the lease" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("host", ["pod-1", f"{socket.gethostname()}?pidns-7"])
def test_without_flock_the_lease_of_a_running_process_is_respected(tmp_path, monkeypatch, host):
    """Another container may have the same host name and process number."""
    without_flock(monkeypatch)
    in_a_second(monkeypatch)
    pod, stopped = Pod(tmp_path, host, os.getpid()), threading.Event()

    def refresh():
        while not stopped.wait(0.2):
            os.utime(pod.path)

    other = threading.Thread(target=refresh)
    other.start()
    try:
        owner = f"process {os.getpid()} on {host.split('?')[0]} writes to"
        with pytest.raises(ValueError, match=owner), lock.locked(str(tmp_path)):
            pass
    finally:
        stopped.set()
        other.join()
    assert host in pod.path.read_text()


@pytest.mark.parametrize(
    ("kind", "options", "leased"),
    [
        ("ext4", "rw", False),
        ("nfs4", "rw,vers=4.2,local_lock=none", False),
        ("nfs", "rw,nolock", True),
        ("nfs", "rw,local_lock=flock", True),
        ("nfs", "rw,local_lock=all", True),
        ("lustre", "rw,localflock", True),
        ("fuse.gcsfuse", "rw", True),
    ],
)
def test_a_lease_replaces_locks_that_other_hosts_do_not_see(tmp_path, monkeypatch, kind, options, leased):
    mounts, runs = tmp_path / "mounts", tmp_path / "my runs"
    point, hidden = f"{tmp_path}/my\\040runs", ("ext4", "rw") if leased else ("9p", "rw")  # the last mount counts
    lines = [("/", "9p", "rw"), (point, *hidden), (point, kind, options), (f"{point}/other", *hidden)]
    mounts.write_text("".join(f"a {place} {kind} {options} 0 0\n" for place, kind, options in lines))
    monkeypatch.setattr(lock, "_MOUNTS", str(mounts))
    with lock.locked(str(runs / "run")):
        assert (runs / "run" / ".lock-owner").exists() == leased


@pytest.mark.slow
def test_without_flock_a_process_ends_if_its_lease_was_taken_over(tmp_path, monkeypatch, caplog):
    without_flock(monkeypatch)
    in_a_second(monkeypatch)
    ended = queue.Queue()
    monkeypatch.setattr("os._exit", ended.put)
    with lock.locked(str(tmp_path)):
        written = os.stat(tmp_path / ".lock-owner").st_mtime
        time.sleep(3 * lock.REFRESH)
        assert os.stat(tmp_path / ".lock-owner").st_mtime > written and ended.empty()
        os.remove(tmp_path / ".lock-owner")
        pod = Pod(tmp_path)
        assert ended.get(timeout=60) == 75
    assert "owner-changed" in caplog.text
    assert "pod-1" in pod.path.read_text()


def test_file_at_the_path_of_the_run_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError), lock.locked(str(tmp_path / "file")):
        pass


# Metrics


def test_damaged_lines_of_metrics_are_skipped(tmp_path):
    """A binary tail ended the program with a codec's message, a line with a list with a traceback."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n[1]\n{"loss": 2}\n{"step": "x"}\n{"step": 2}\n\xff\xfe\x00')
    assert read_metrics(str(tmp_path)) == [{"step": 1}, {"step": 2}]
    MetricsWriter(str(tmp_path), step=1).close()
    assert path.read_text() == '{"step": 1}\n'


def test_list_of_fields_that_do_not_affect_the_weights_is_unchanged():
    """Only these may differ in a resumed run; a new field is assumed to affect the weights until it is listed here."""
    how_often = {"steps_per_loop", "log_every", "eval_every", "checkpoint_every", "keep_checkpoints", "evaluators"}
    how_long = {"patience"}
    how_computed = {"jit", "optim.accumulation_steps", "model.remat", "model.attention_chunk_size"}
    evaluation = {"data.eval_batch_size", "data.test_split", "data.on_bad_image", "data set.name", "data set.num_eval"}
    before_the_first_step = {"head_images"}
    assert set(run_fields.HARMLESS) == how_often | how_long | how_computed | evaluation | before_the_first_step


@pytest.mark.parametrize("is_chief", [True, False])
def test_chief_writes_the_record_of_a_run(is_chief, monkeypatch):
    """Before the first checkpoint, so that a run in a bucket is listed from its beginning."""
    done, run = [], object.__new__(TrainingRun)
    backend = types.SimpleNamespace(is_chief=is_chief, record=lambda: ONE)
    run.directory, run.given, run.recipe, run.files, run.step = "runs/a", recipe(), recipe(), {"source": "a"}, 5
    run.data = types.SimpleNamespace(describe=lambda: DATA, backend=backend)
    monkeypatch.setattr(run_directory, "write_config", lambda *content: done.append(content))
    monkeypatch.setattr(data_record, "write", lambda *content: done.append(content))
    monkeypatch.setattr(storage, "upload", done.append)
    run.record()
    expected = [("runs/a", recipe(), DATA, 5, recipe(), ONE), ("runs/a", {"source": "a"}), "runs/a"]
    assert done == (expected if is_chief else [])


# The devices

ONE = {"kind": "cpu", "replicas": 1, "processes": 1, "strategy": "OneDeviceStrategy, 1 replica", "onednn": True}
TWO = {**ONE, "replicas": 2, "strategy": "MirroredStrategy, 2 replicas", "onednn": False}


def test_other_devices_are_noted_and_logged(trained, caplog):
    """The bits of the results differ, and neither the log nor `config.json` had the reason."""
    for step, devices in ((5, ONE), (6, ONE), (7, TWO)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="absl"):
            run_directory.write_config(trained, recipe(), DATA, step=step, devices=devices)
        assert bool(caplog.records) == (devices is TWO)
    assert "replicas: 1 -> 2" in caplog.text and "processes" not in caplog.text
    assert "onednn: True -> False" in caplog.text
    config = run_directory.read_config(trained)
    assert config["devices"] == TWO
    assert [(entry["until_step"], entry.get("devices")) for entry in config["history"]] == [(5, None), (7, ONE)]


def test_other_versions_are_logged(trained, caplog):
    path = pathlib.Path(trained) / "config.json"
    path.write_text(path.read_text().replace(f'"numpy": "{np.__version__}"', '"numpy": "1.0"'))
    with caplog.at_level(logging.WARNING, logger="absl"):
        run_directory.write_config(trained, recipe(), DATA, step=5)
    assert f"numpy: 1.0 -> {np.__version__}" in caplog.text


@pytest.mark.parametrize(
    "manifest", ["ckpt-2.json", "best/ckpt-2.json", "ckpt_2/manifest.json", "best/ckpt_2/manifest.json"]
)
def test_every_checkpoint_protects_the_record_of_a_run(tmp_path, manifest):
    """The record of several hosts was replaced by that of another recipe."""
    shutil.copy(STORED / "config.json", tmp_path)
    assert run_directory.recorded(str(tmp_path)) == {}
    path = tmp_path / "checkpoints" / manifest
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert run_directory.recorded(str(tmp_path))["recipe"]
