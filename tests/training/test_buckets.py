"""A run in a bucket: killed, resumed on another machine, and read from there."""

import json
import os
import pathlib
import runpy
import subprocess
import sys

import fsspec
import numpy as np
import pytest

from keras_vit import data, inference, recipe, runs
from keras_vit.training import run_summary, train
from keras_vit.util import bucket_parts, locks, storage
from tests import on_jax
from tests.object_store import Killed, ObjectStore, store  # noqa: F401  a fixture
from tests.programs import run as run_program
from tests.recipe import toy
from tests.training import small_runs
from tools import crash_workers
from train.launching import local

RUN = "s3://bucket/runs/digits"


def start(directory):
    small = toy.shrink(toy.load("digits", None))
    small.deterministic = False
    small = recipe.replace(small, {"total_steps": 4, "checkpoint_every": 2, "eval_every": 2, "log_every": 1})
    return train.train(small, str(directory), distribute="one_device", show=lambda text: None)


@pytest.mark.slow
def test_killed_run_in_a_bucket_is_resumed_on_another_machine(store, tmp_path, monkeypatch):  # noqa: F811
    """The weights are bit for bit those of a run on the disk without an interruption."""
    monkeypatch.setattr(run_summary, "draw_figure", lambda *_: None)
    monkeypatch.setattr(locks, "SILENCE", 0.2)
    start(tmp_path / "whole")
    store.ends = staticmethod(lambda name: name == "ckpt-4.json")
    with pytest.raises(Killed):
        start(RUN)
    store.restart()
    assert run_program("train.runs", "s3://bucket/runs")[1].count("step 4 of 4") == 1
    store.machine("second")
    store.log.clear()
    start(RUN)
    assert "get bucket/runs/digits/checkpoints/ckpt-2.json" in store.log
    checkpoints = sorted(path.name for path in (store.root / "bucket/runs/digits/checkpoints").glob("*.json"))
    assert checkpoints == ["ckpt-2.json", "ckpt-4.json"]
    lines = (store.root / "bucket/runs/digits/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 2, 3, 4, 4, 2]  # the best is evaluated again

    store.machine("third")
    store.log.clear()
    expected, found = runs.load_run(str(tmp_path / "whole")), runs.load_run(RUN)
    assert not [line for line in store.log if "ckpt" in line or "events" in line]
    for one, other in zip(expected.model.get_weights(), found.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert runs.load_run(RUN, 4).step == 4
    reads, fetch = [], storage._Copy.fetch
    monkeypatch.setattr(storage._Copy, "fetch", lambda copy, needs: reads.append(copy.url) or fetch(copy, needs))
    assert inference.open_predictor(RUN).card.model_sha256 == found.sha256
    (tmp_path / "a.png").write_text("not read")
    code, output = run_program("train.predict", f"--model={RUN}", tmp_path / "a.png", f"--output={tmp_path / 'masks'}")
    assert code == 2 and "a model of probabilities" in output and reads == [RUN, RUN]  # each reads the run once


@pytest.mark.slow
def test_data_in_a_bucket_are_read(store):  # noqa: F811
    """TensorFlow does not read this store: folders, lists and record files are copied."""
    assert run_program("train.sample_data", "--output=s3://bucket/images", "--count=20")[0] == 0
    assert run_program("train.sample_data", "--output=s3://bucket/images")[0] == 2  # never overwritten
    folder = data.open_source("folder:s3://bucket/images", "test")
    listed = data.open_source("manifest:s3://bucket/images/list.csv", "test")
    assert folder.num_examples == listed.num_examples == 20
    for _ in range(2):  # complete files are kept
        arguments = ("folder:s3://bucket/images", "--splits=test", "--output=s3://bucket/records", "--shards=2")
        assert run_program("train.make_tfrecords", *arguments)[0] == 0
    for spec in ("records#index=False", "records/test-*#index=False", "records#shard_by=files"):
        assert len(list(data.open_source(f"tfrecord:s3://bucket/{spec}", "test").examples())) == 20
        store.machine(spec)


@pytest.mark.slow
def test_records_are_read_by_their_positions(store, monkeypatch):  # noqa: F811
    """With indices, no file is copied: a worker reads its own records."""
    fs = pytest.importorskip("pyarrow.fs", reason="pip install '.[parquet]'")
    monkeypatch.setattr(
        bucket_parts, "_bucket", lambda address: fs.SubTreeFileSystem(str(store.root), fs.LocalFileSystem())
    )
    reads, read = [], bucket_parts.read
    monkeypatch.setattr(bucket_parts, "read", lambda parts: reads.append(parts) or read(parts))
    arguments = ("digits", "--splits=test", "--output=s3://bucket/records", "--shards=2")
    assert run_program("train.make_tfrecords", *arguments)[0] == 0
    records = [f"bucket/records/test-0000{number}-of-00002" for number in range(2)]
    for machine in ("second", "third"):
        store.machine(machine)
        store.log.clear()
        for spec in ("tfrecord:s3://bucket/records", "tfrecord:s3://bucket/records/test-*"):
            assert len(list(data.open_source(spec, "test").examples())) == 360
            source = data.open_source(spec, "test[200:201]")
            reads.clear()
            next(source.examples())
            (((address, start, stop),),) = reads
            index = (store.root / f"{records[1]}.idx").read_text().splitlines()
            assert address == f"s3://{records[1]}" and [start, stop - start] == list(map(int, index[20].split()))
        assert not any(f"get {record}" in store.log for record in records)
        for record in records:  # the third machine reads indices that are written for existing files
            (store.root / f"{record}.idx").unlink()
        assert len(list(data.open_source(spec, "test").examples())) == 360
        store.machine("fourth")
        assert run_program("train.make_tfrecords", "--index_only", "--output=s3://bucket/records")[0] == 0


def run_on_store():
    """Run `train.main` in this process, where `s3://` is the store in the variable STORE."""
    ObjectStore.root = pathlib.Path(os.environ["STORE"])
    fsspec.register_implementation("s3", ObjectStore, clobber=True)
    locks.SILENCE = 1  # seconds that the lease of a killed worker lasts
    runpy.run_module("train.main", run_name="__main__", alter_sys=True)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_several_workers_resume_a_run_in_a_bucket(backend, store, tmp_path, monkeypatch):  # noqa: F811
    """Each worker has its own local copies. One worker is killed; the weights equal those of an uninterrupted run."""

    def start(arguments, variables, log):
        index = json.loads(variables["TF_CONFIG"])["task"]["index"]
        own = {"STORE": str(store.root), "KERAS_HOME": str(tmp_path / f"machine-{index}"), **variables}
        own |= on_jax.ON_JAX if backend == "jax" else {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
        code = "from tests.training.test_buckets import run_on_store; run_on_store()"
        command = [sys.executable, "-c", code, *(text.replace(f"{store.root}/", "s3://") for text in arguments)]
        with open(log, "ab") as file:
            return subprocess.Popen(command, cwd=small_runs.ROOT, env={**os.environ, **own}, stdout=file, stderr=file)

    monkeypatch.setattr(local, "start_worker", start)
    whole, killed, fields = tmp_path / "whole", store.root / "bucket/killed", {**small_runs.QUIET, "steps_per_loop": 1}
    crash_workers.train(whole, backend, 2, **fields)
    plan = [crash_workers.Kill(worker, step, 0) for worker, step in ((1, 4), (0, 8))]
    assert crash_workers.train_and_kill(plan, killed, backend, 2, **fields) == 2
    small_runs.assert_same_bits(small_runs.final_weights(whole), small_runs.final_weights(killed))
    assert "Run directory: s3://bucket/killed" in (killed / "logs/worker-1.log").read_text()
