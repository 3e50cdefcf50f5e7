"""Known sizes of data sets that are not on this machine."""

import socket

import pytest

from keras_vit.data.readers import vtab
from keras_vit.planning import datasets


def test_known_data():
    assert datasets.size("tfds:imagenet2012", "train[:99%]") == (1_268_355, 1000, None)
    assert datasets.size("tfds:imagenet2012:5.1.0#data_dir='/x'", "validation") == (50_000, 1000, None)
    assert datasets.size("tfds:imagenet21k", "full[51200:]") == (14_145_922, 21_843, None)
    assert datasets.size("vtab:dtd#download=True", "train800val200") == (1_000, 47, None)
    assert datasets.size("vtab:dtd", "trainval") == (None, 47, None)
    assert datasets.size("fashion_mnist", "test") == (10_000, 10, (28, 28, 1))


@pytest.mark.parametrize("source", ["fashion_mnist:/mine", "idx:/mine", "npz:runs/two.npz", "folder:/mine"])
def test_nothing_is_known_of_folders_of_your_own(source):
    assert datasets.size(source, "validation") == datasets.Size()


def test_a_task_that_vtab_does_not_have():
    with pytest.raises(ValueError, match="There is no task 'dtt' in VTAB. Did you mean 'dtd'"):
        datasets.size("vtab:dtt", "train800")


def test_known_classes_of_vtab_are_those_of_its_data_sets(monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets")
    monkeypatch.setattr(socket.socket, "connect", _refuse)  # what a data set consists of is known without its data
    assert set(datasets.VTAB) == set(vtab.TASKS)
    for name, task in vtab.TASKS.items():
        builder = tfds.builder(task.dataset)
        assert datasets.VTAB[name] == (task.num_classes or builder.info.features[task.label].num_classes), name


def _refuse(*arguments):
    raise OSError("no network")
