"""A run in a bucket: killed, resumed on another machine, and read from there."""

import json

import numpy as np
import pytest

from keras_vit import _lock, data, inference, recipe, training
from keras_vit.tuning import train
from tests.object_store import Killed, store  # noqa: F401  a fixture
from tests.programs import run as run_program
from tests.recipe import toy

RUN = "s3://bucket/runs/digits"


def start(directory):
    small = toy.shrink(toy.load("digits", None))
    small.deterministic = False
    small = recipe.replace(small, {"total_steps": 4, "checkpoint_every": 2, "eval_every": 2, "log_every": 1})
    return train.train(small, str(directory), distribute="one_device", show=lambda text: None)


@pytest.mark.slow
def test_a_run_in_a_bucket_is_killed_and_resumed_elsewhere(store, tmp_path, monkeypatch):  # noqa: F811
    """The weights are bit for bit those of a run on the disk without an interruption."""
    monkeypatch.setattr(train, "draw_figure", lambda *_: None)
    monkeypatch.setattr(_lock, "SILENCE", 0.2)
    start(tmp_path / "whole")
    store.ends = staticmethod(lambda name: name == "ckpt-4.json")
    with pytest.raises(Killed):
        start(RUN)
    store.ends, store.is_dead = staticmethod(lambda name: False), False
    assert run_program("train.runs", "s3://bucket/runs")[1].count("step 4 of 4") == 1
    store.machine("second")
    store.log.clear()
    start(RUN)
    assert "get bucket/runs/digits/checkpoints/ckpt-2.json" in store.log
    checkpoints = sorted(path.name for path in (store.root / "bucket/runs/digits/checkpoints").glob("*.json"))
    assert checkpoints == ["ckpt-2.json", "ckpt-4.json"]
    lines = (store.root / "bucket/runs/digits/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 2, 3, 4, 4]

    store.machine("third")
    store.log.clear()
    expected, found = training.load_run(str(tmp_path / "whole")), training.load_run(RUN)
    assert not [line for line in store.log if "ckpt" in line or "events" in line]
    for one, other in zip(expected.model.get_weights(), found.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert training.load_run(RUN, 4).step == 4
    assert inference.open_predictor(RUN).card.model_sha256 == found.sha256


@pytest.mark.slow
def test_data_in_a_bucket(store):  # noqa: F811
    """TensorFlow does not read this store: folders, lists and record files are copied."""
    assert run_program("train.sample_data", "--output=s3://bucket/images", "--count=20")[0] == 0
    assert run_program("train.sample_data", "--output=s3://bucket/images")[0] == 2  # never overwritten
    folder = data.open_source("folder:s3://bucket/images", "test")
    listed = data.open_source("manifest:s3://bucket/images/list.csv", "test")
    assert folder.num_examples == listed.num_examples == 20
    for _ in range(2):  # complete files are kept
        arguments = ("folder:s3://bucket/images", "--splits=test", "--output=s3://bucket/records", "--shards=2")
        assert run_program("train.make_tfrecords", *arguments)[0] == 0
    assert sum(line.startswith("put bucket/records/test-0") for line in store.log) == 2
    for spec in ("tfrecord:s3://bucket/records", "tfrecord:s3://bucket/records/test-*"):
        assert len(list(data.open_source(spec, "test").examples())) == 20
