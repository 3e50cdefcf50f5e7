"""Errors of input pipelines: one type, with the file's name, and the process always ends."""

import types

import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import errors, python_ops
from tests import forked
from tests.data import example_images

TRAIN = "decode_jpeg_and_inception_crop(8)|flip_lr|value_range(-1, 1)"
EVAL = "decode|resize(8)|value_range(-1, 1)"


@pytest.fixture
def source(tmp_path):
    """33 images, 17 consecutive ones unreadable."""
    source = data.open_source(f"folder:{example_images.folder(tmp_path / 'p')}", "all")
    for path in source.paths[3:20]:
        with open(path, "wb"):
            pass
    return source


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda s: data.train_batches(s, TRAIN, 8),
        pytest.param(lambda s: data.eval_batches(s, EVAL, 8), marks=pytest.mark.slow),
    ],
)
def test_unreadable_image_error_names_the_file(source, make):
    batches = make(source)
    for _ in range(2):  # iterating again raises the same error
        with pytest.raises(data.UnreadableImageError) as error, data.image_errors():
            list(batches)
        assert error.value.origin in source.paths[3:20]
        assert "Input is empty" in error.value.reason
        assert error.value.origin in str(error.value) and "{{" not in str(error.value)


@pytest.mark.slow
def test_iterating_after_an_error_raises_the_same_error(source):
    iterator = iter(data.train_batches(source, TRAIN, 8))
    origins = set()
    for _ in range(12):
        with pytest.raises(data.UnreadableImageError) as error, data.image_errors():
            while True:
                next(iterator)
        origins.add(error.value.origin)
    assert len(origins) == 1


def test_other_errors_are_passed_on():
    with pytest.raises(tf.errors.NotFoundError), data.image_errors():
        tf.io.read_file("no such file")
    with pytest.raises(KeyError), data.image_errors():
        raise KeyError


def test_names_and_reasons_may_contain_the_separator():
    message = errors.bad_image("a|b\nc.jpg", "a type | of 3")
    assert data.explain(ValueError(f"[[node]] {message} [Op:x]")) == "unreadable image a|b\nc.jpg: a type / of 3"


@pytest.mark.parametrize("returns", [True, False])
def test_exit_waits_for_running_calls_for_a_limited_time(returns, monkeypatch):
    running, closed = (
        tf.raw_ops.VarHandleOp(dtype=kind, shape=[], shared_name=kind.name) for kind in (tf.int64, tf.bool)
    )
    tf.raw_ops.AssignVariableOp(resource=running, value=tf.constant(1, tf.int64))
    pauses = []

    def sleep(seconds):  # the call returns during the third pause
        pauses.append(seconds)
        if returns and len(pauses) == 3:
            python_ops._add(running, -1)

    monkeypatch.setattr(python_ops, "time", types.SimpleNamespace(monotonic=lambda: sum(pauses), sleep=sleep))
    python_ops._close(running, closed)
    assert bool(tf.raw_ops.ReadVariableOp(resource=closed, dtype=tf.bool))
    assert len(pauses) == 3 if returns else sum(pauses) == pytest.approx(30, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("on_bad_image", "ending"), [("error", "raise"), ("error", "break"), ("skip", "break")])
def test_process_exits_after_an_unreadable_image(source, tmp_path, on_bad_image, ending):
    code, output = forked.run("tests.data.exit_after_error", tmp_path / "p", on_bad_image, ending)
    assert code == (1 if ending == "raise" else 0), output
    assert ("unreadable image" in output) == (ending == "raise")
