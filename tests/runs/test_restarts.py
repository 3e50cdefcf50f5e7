"""Consecutive restarts without a newer checkpoint are limited."""

import pytest

from keras_vit.runs import checkpoints, restarts
from keras_vit.runs.errors import NoProgress
from keras_vit.util import file_io, storage
from tests.object_store import store  # noqa: F401  a fixture


def starts(workdir, monkeypatch, *events, name=None):
    """Start a run once per event, and return the number of starts before one is refused.

    An event is the step of a checkpoint that the start writes, True if it begins to train, or False if it does not.
    The supervisor numbers the starts, or gives a name to all of them.
    """
    newest = 0
    for number, event in enumerate(events):
        monkeypatch.setenv(restarts.VARIABLE, name or str(number))
        try:
            restarts.check(str(workdir))
        except NoProgress as error:
            assert error.exit_code == 70 and f"step {newest}." in str(error)
            return number
        if event is not False:
            with storage.written(str(workdir)) as directory:
                restarts.record(directory, newest)
                if event is not True:
                    newest = event
                    file_io.make_directory(f"{directory}/checkpoints")
                    file_io.write_json(checkpoints.manifest_of(f"{directory}/checkpoints/ckpt-{newest}"), {})
                    file_io.write_text(f"{directory}/checkpoints/ckpt-{newest}.index", "")
    return len(events)


@pytest.mark.parametrize(
    ("events", "allowed"),
    [
        ([True] * 9, 4),  # three restarts after the first start
        ([False] * 9, 4),  # a worker is missing
        ([10, True, True, True, True, True], 5),  # the first restart resumes from a newer checkpoint
        ([10, False, False, False, False], 4),
        ([10, True, True, True, 20, True, 30, False, False, False, False], 10),
        ([10, 20, 30, 40, 50, 60], 6),
    ],
)
def test_restarts_without_a_newer_checkpoint_are_limited(events, allowed, tmp_path, monkeypatch):
    assert starts(tmp_path / "run", monkeypatch, *events) == allowed


def test_another_supervisor_resets_the_count_of_restarts(tmp_path, monkeypatch):
    for _ in range(2):
        assert starts(tmp_path, monkeypatch, *[True] * 9) == 4
    monkeypatch.delenv(restarts.VARIABLE)
    restarts.check(str(tmp_path))  # without a supervisor


@pytest.mark.parametrize(
    ("events", "allowed"),
    [([True] * 9, 4), ([False] * 9, 4), ([10, *[False] * 9], 5), ([10, True, True, True, 20, *[True] * 9], 9)],
)
def test_each_pod_of_a_job_counts_its_starts(events, allowed, tmp_path, monkeypatch):
    """Three restarts after the first start from a checkpoint."""
    assert starts(tmp_path, monkeypatch, *events, name="job1-0") == allowed


def test_pods_and_jobs_count_separately(tmp_path, monkeypatch):
    for name in ("job1-0", "job1-1", "job2-0"):
        assert starts(tmp_path, monkeypatch, *[False] * 9, name=name) == 4


@pytest.mark.parametrize("name", [None, "5f1c-0"])
def test_restarts_of_a_run_in_a_bucket_are_limited(name, store, monkeypatch):  # noqa: F811
    assert starts("s3://bucket/runs/a", monkeypatch, 10, *[True] * 9, name=name) == 5
