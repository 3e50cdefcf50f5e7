"""Checkpoints: complete or reported, the newest few and the best, and always an older checkpoint to fall back to."""

import os
import resource
import threading

import ml_dtypes
import numpy as np
import pytest

from keras_vit.runs import checkpoints
from keras_vit.runs.checkpoints import CheckpointStore
from keras_vit.runs.errors import CheckpointMismatch, StorageError
from keras_vit.util import file_io
from tests.faulty_disk import FaultyDisk


def arrays(step=0, size=1000):
    return {
        "model/a/kernel": np.full([size], step, np.float32),
        "model/b": np.zeros([3], ml_dtypes.bfloat16),
        "step": np.asarray(step, np.int64),
    }


def specs(**changes):
    return {name: (array.shape, array.dtype.name) for name, array in arrays(**changes).items()}


def saved(directory, steps, keep=3, best=()):
    store = CheckpointStore(str(directory), keep)
    for step in steps:
        store.save(arrays(step).items(), best=step in best)
    return store


def restored(directory):
    values = CheckpointStore(str(directory)).restore(specs())
    if values is None:
        return None
    step = int(values["step"])
    for name, array in arrays(step).items():
        assert values[name].tobytes() == array.tobytes()
    return step


def data_file(directory, step):
    return next(path for path in directory.iterdir() if path.name.startswith(f"ckpt-{step}.data"))


def test_restore_without_checkpoints_returns_none(tmp_path):
    assert restored(tmp_path / "missing") is None
    assert restored(tmp_path) is None


def test_incomplete_later_checkpoints_are_deleted(tmp_path):
    """The run resumed from step 20. If the incomplete checkpoint were kept, step 25 would be the only complete one."""
    saved(tmp_path, [10, 20, 30])
    data_file(tmp_path, 30).write_bytes(b"incomplete")
    assert restored(tmp_path) == 20
    saved(tmp_path, [25], keep=2)
    assert checkpoints.saved_steps(str(tmp_path)) == [20, 25]
    assert restored(tmp_path) == 25


def test_checkpoint_survives_a_power_failure(tmp_path, monkeypatch):
    disk = FaultyDisk(monkeypatch, tmp_path)
    saved(tmp_path, [10, 20], best=[20])
    disk.lose_power()
    assert restored(tmp_path) == restored(tmp_path / "best") == 20


def test_the_newest_few_and_the_best_are_kept(tmp_path):
    saved(tmp_path, [10, 20, 30, 40, 50], keep=2, best=[20, 30])
    assert checkpoints.saved_steps(str(tmp_path)) == [40, 50]
    assert checkpoints.saved_steps(str(tmp_path / "best")) == [30]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["ckpt-40.json", "ckpt-50.json"]
    assert restored(tmp_path) == 50


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def without_index(directory):
    """A manifest that matches the remaining files."""
    manifest = file_io.read_json(directory / "ckpt-30.json")
    del manifest["files"]["ckpt-30.index"]
    file_io.write_json(directory / "ckpt-30.json", manifest)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda directory: cut(data_file(directory, 30)), "bytes instead of"),
        (lambda directory: flip(data_file(directory, 30)), "has changed"),
        (lambda directory: data_file(directory, 30).unlink(), "is missing"),
        (lambda directory: (directory / "ckpt-30.json").unlink(), "not written to the end"),
        (lambda directory: (directory / "ckpt-30.json").write_text('{"fi'), "cannot be read"),
        (lambda directory: (directory / "ckpt-30.json").write_bytes(b"\xff\x00"), "cannot be read"),
        (lambda directory: (directory / "ckpt-30.json").write_text("[]"), "cannot be read"),
        (lambda directory: (directory / "ckpt-30.json").write_text('{"files": ["a"]}'), "cannot be read"),
        (lambda directory: (directory / "ckpt-30.json").write_text('{"files": {"a": 1}}'), "cannot be read"),
        (lambda directory: (directory / "ckpt-30.json").write_text('{"files": {}}'), "does not name its files"),
        (without_index, "does not name its files"),
    ],
)
def test_damaged_newest_checkpoint_is_reported_and_the_previous_is_restored(tmp_path, caplog, harm, said):
    saved(tmp_path, [10, 20, 30])
    harm(tmp_path)
    assert restored(tmp_path) == 20
    assert "ckpt-30 is not usable" in caplog.text
    assert said in caplog.text
    saved(tmp_path, [30, 40])  # the run resumes, and writes the damaged step again
    assert restored(tmp_path) == 40
    assert checkpoints.problem_with(str(tmp_path / "ckpt-30")) is None


def test_only_damaged_checkpoints_raise_an_error(tmp_path):
    saved(tmp_path, [10, 20])
    for step in (10, 20):
        cut(data_file(tmp_path, step))
    with pytest.raises(StorageError, match="None of the checkpoints .* is complete") as caught:
        restored(tmp_path)
    assert caught.value.exit_code == 74


def test_restore_ignores_files_of_an_interrupted_first_write(tmp_path):
    (tmp_path / "ckpt-10_temp").mkdir()
    (tmp_path / "ckpt-10_temp" / "part-00000-of-00001").write_bytes(b"half")
    (tmp_path / "ckpt-10.data-00000-of-00001.tempstate123").write_bytes(b"half")
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "ckpt-10.index.tempstate123").write_bytes(b"half")
    assert restored(tmp_path) is None
    assert [path.name for path in tmp_path.rglob("*")] == ["best"]


def test_a_checkpoint_that_is_being_removed_has_no_manifest(tmp_path, monkeypatch):
    """Killed after the first file: the remaining files are incomplete, not damaged."""
    saved(tmp_path, [10])
    remove = os.remove
    removed = iter([remove])
    monkeypatch.setattr(os, "remove", lambda path: next(removed)(path))
    with pytest.raises(StopIteration):
        checkpoints.remove(str(tmp_path / "ckpt-10"))
    assert "has no manifest" in checkpoints.problem_with(str(tmp_path / "ckpt-10"))
    assert restored(tmp_path) is None


def test_saving_a_step_twice_writes_once(tmp_path):
    store = saved(tmp_path, [10])
    before = os.stat(data_file(tmp_path, 10)).st_mtime_ns
    store.save(arrays(10).items())
    assert os.stat(data_file(tmp_path, 10)).st_mtime_ns == before


def test_step_evaluated_after_a_resume_updates_its_best_score(tmp_path):
    """A signal interrupted its evaluation, which the resumed run repeats."""
    store = saved(tmp_path, [10])
    evaluated = arrays(10) | {"model/a/kernel": np.full([1000], 0.5, np.float32)}
    store.save(evaluated.items(), best=True)
    np.testing.assert_array_equal(store.restore(specs())["model/a/kernel"], evaluated["model/a/kernel"])


def test_workers_other_than_the_chief_do_not_write(tmp_path):
    asked = iter(arrays().items())
    CheckpointStore(str(tmp_path / "c"), writes=False).save(asked)
    assert not list(asked)  # every process takes part in gathering them
    assert not (tmp_path / "c").exists()


def test_checkpoint_of_another_recipe_is_refused(tmp_path):
    saved(tmp_path, [10])
    step = {"step": specs()["step"]}
    for wanted in (
        specs(size=999),
        {**specs(), "model/c": ((), "float32")},
        {**specs(), "model/b": ((3,), "int8")},
        step,
    ):
        with pytest.raises(CheckpointMismatch, match="ckpt-10") as caught:
            CheckpointStore(str(tmp_path)).restore(wanted)
        assert caught.value.exit_code == 2  # the code was 74, for which a supervisor restarts without end


def test_full_disk_keeps_the_previous_checkpoint(tmp_path):
    """A file that cannot be written to its end gives one clear error, and leaves the older checkpoint usable."""
    store = saved(tmp_path, [10])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # no file can grow beyond it; Python ignores SIGXFSZ
    try:
        with pytest.raises(StorageError, match="(?s)Could not write the checkpoint of step 20.*step 10 is intact"):
            store.save(arrays(20).items())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert restored(tmp_path) == 10


@pytest.fixture
def slow_disk(monkeypatch):
    """An event that ends the wait of all writes, and whether each write began."""
    free, began, write = threading.Event(), threading.Event(), checkpoints.write

    def blocked(*arguments):
        began.set()
        assert free.wait(60)
        write(*arguments)

    monkeypatch.setattr(checkpoints, "write", blocked)
    return free, began


def test_training_continues_while_a_checkpoint_is_written(tmp_path, slow_disk):
    """The values are those of the call. Until the checkpoint is complete, the one before is the newest."""
    free, began = slow_disk
    store = CheckpointStore(str(tmp_path), background=True)
    values = arrays(10)
    store.save(values.items(), best=True)
    values["model/a/kernel"][:] = -1  # the next step
    assert began.wait(60) and store.newest() is None
    free.set()
    store.save(arrays(20).items())  # waits for the write of step 10
    assert restored(tmp_path / "best") == 10 and checkpoints.problem_with(str(tmp_path / "ckpt-10")) is None
    store.wait()
    assert restored(tmp_path) == 20


@pytest.mark.parametrize("ending", ["wait", "save"])
def test_an_error_in_the_background_ends_the_run(tmp_path, monkeypatch, ending):
    saved(tmp_path, [10])
    store = CheckpointStore(str(tmp_path), background=True)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", lambda *_: (_ for _ in ()).throw(OSError("No space left on device")))
        store.save(arrays(20).items())
        with pytest.raises(StorageError, match="No space left.*step 10 is intact") as error:
            store.wait() if ending == "wait" else store.save(arrays(30).items())
    assert error.value.exit_code == 74 and restored(tmp_path) == 10
    store.wait()  # it is reported once


def test_failed_write_of_the_best_checkpoint_names_the_intact_one(tmp_path):
    store = saved(tmp_path, [5])
    (tmp_path / "best").write_text("")  # no directory can be created there
    with pytest.raises(StorageError, match=r"best.*The checkpoint of step 5 is intact"):
        store.save(arrays(10).items(), best=True)
    assert restored(tmp_path) == 5


def test_the_best_checkpoint_is_newer_than_the_others(tmp_path):
    """A kill after the write of the best checkpoint, or damage to the other checkpoint of its step."""
    saved(tmp_path, [10, 20], best=[20])
    cut(data_file(tmp_path, 20))
    assert restored(tmp_path) == 20
    for step in (10, 20):
        checkpoints.remove(str(tmp_path / f"ckpt-{step}"))
    assert restored(tmp_path) == 20


def test_checkpoint_that_cannot_be_uploaded_is_kept(tmp_path, monkeypatch):
    store = saved(tmp_path, [10])
    monkeypatch.setattr(checkpoints.storage, "upload", lambda _: (_ for _ in ()).throw(OSError("403 Forbidden")))
    with pytest.raises(OSError, match="403 Forbidden"):
        store.save(arrays(20).items())
    assert restored(tmp_path) == 20


def test_a_damaged_older_checkpoint_is_not_reported_as_intact(tmp_path, monkeypatch):
    store = saved(tmp_path, [10])
    cut(data_file(tmp_path, 10))
    monkeypatch.setattr(checkpoints, "write", lambda *_: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(StorageError, match="There is no older checkpoint"):
        store.save(arrays(20).items())
