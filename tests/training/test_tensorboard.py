"""TensorBoard events: what TensorBoard finds in them, read with TensorFlow."""

import pytest
import tensorflow as tf

from keras_vit.runs import errors
from keras_vit.training import metrics


def values(directory):
    """The values of all events in a directory by tag: lists of (step, plugin, content, value)."""
    found = {}
    for path in sorted(directory.glob("events*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                plugin = value.metadata.plugin_data
                entry = event.step, plugin.plugin_name, plugin.content, tf.make_ndarray(value.tensor)
                found.setdefault(value.tag, []).append(entry)
    return found


def test_training_and_evaluation_share_their_tags(tmp_path):
    writer = metrics.MetricsWriter(str(tmp_path), step=0)
    writer.write(2, {"loss": 0.5, "accuracy": 0.25, "grad_norm": 1.0})
    writer.write(2, {"split": "test", "eval_accuracy": 0.75, "eval_loss": 0.125, "examples": 8})
    writer.write(2, {"knn/k1": 0.5})
    writer.close()
    train, evaluation = (values(tmp_path / "tensorboard" / kind) for kind in ("train", "eval"))
    assert {"loss", "accuracy"} <= set(train) & set(evaluation)
    assert train["loss"] == [(2, "scalars", b"", 0.5)] and evaluation["loss"] == [(2, "scalars", b"", 0.125)]
    assert evaluation["knn/k1"] == [(2, "scalars", b"", 0.5)]
    assert not values(tmp_path / "tensorboard")


def test_a_resumed_run_lets_tensorboard_drop_the_events_after_its_checkpoint(tmp_path):
    """TensorBoard drops events whose step is not below that of the record of a start."""
    for step, steps in ((0, (2, 4, 6)), (4, (6, 8))):
        writer = metrics.MetricsWriter(str(tmp_path), step)
        for each in steps:
            writer.write(each, {"loss": 0.5})
        writer.close()
    kept = []
    for path in sorted((tmp_path / "tensorboard" / "train").glob("events*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            if event.session_log.status == tf.compat.v1.SessionLog.START:
                kept = [step for step in kept if step < event.step]
            kept += [event.step for _ in event.summary.value]
    assert kept == [2, 4, 6, 8]


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(errors.StorageError, match="tensorboard"):
        metrics.MetricsWriter(str(tmp_path), step=0).write(1, {"loss": 0.5})
