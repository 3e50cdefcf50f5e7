"""Versions of a served model, by hand: artifacts are stand-ins that open or do not."""

import pathlib

import numpy as np
import pytest

from keras_vit.tf_serving import client, rest, served_model


class Artifact:
    def __init__(self):
        self.signatures, self.closed = {}, False

    def close(self):
        self.closed = True


@pytest.fixture
def opened(monkeypatch):
    """The paths that were opened; one with a file "bad" cannot be."""
    paths = []

    def open_warm(path):
        paths.append(pathlib.Path(path).name)
        if (pathlib.Path(path) / "bad").exists():
            raise ValueError("damaged")
        return Artifact()

    monkeypatch.setattr(served_model, "_open_warm", open_warm)
    return paths


def version(base, number, *files):
    for name in ("saved_model.pb", *files):
        path = base / str(number) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"content")


def test_a_damaged_version_is_tried_again_after_it_has_changed(tmp_path, opened):
    version(tmp_path, 1)
    model = served_model.ServedModel("pets", str(tmp_path))
    version(tmp_path, 2, "bad")
    assert not model.reload() and not model.reload()
    assert (model.version, opened) == (1, ["1", "2"])  # not opened in vain at each look
    (tmp_path / "2" / "bad").unlink()
    assert model.reload()
    assert (model.version, opened) == (2, ["1", "2", "2"])
    assert not model.reload()


def test_the_newest_version_that_opens_is_served(tmp_path, opened):
    version(tmp_path, 1)
    version(tmp_path, 9)
    version(tmp_path, 10, "bad")
    model = served_model.ServedModel("pets", str(tmp_path))
    assert (model.version, opened) == (9, ["10", "9"])
    with model.use("pets", 9) as (number, artifact):
        assert number == 9 and model.busy and not artifact.closed
    assert not model.busy
    for name, number in (("pets", 1), ("pets", 10), ("cats", 9)):
        with pytest.raises(client.RequestError, match="Servable not found"), model.use(name, number):
            pass


def test_the_status_names_the_newest_version_first():
    """As TensorFlow Serving does."""
    states = rest.model_status({1: "UNLOADING", 2: "AVAILABLE"})["model_version_status"]
    assert [(state["version"], state["state"]) for state in states] == [("2", "AVAILABLE"), ("1", "UNLOADING")]


@pytest.mark.parametrize(("count", "batches"), [(1, [1]), (4, [2, 2]), (5, [2, 2, 1])])
def test_a_client_sends_every_image_once_and_in_order(count, batches, monkeypatch):
    sent = []

    def run(self, signature, inputs):
        (batch,) = inputs.values()
        sent.append(batch)
        rows = len(batch)
        labels = np.array([[item.decode()] for item in batch], object)
        return {"top_k_classes": labels, "top_k_scores": np.full((rows, 1), 0.5), "valid": np.ones(rows, bool)}

    monkeypatch.setattr(client.Client, "run", run)
    contents = [str(index).encode() for index in range(count)]
    found = client.Client("http://localhost:1", "pets").predict(contents, batch_size=2)
    assert [prediction.labels for prediction in found] == [[str(index)] for index in range(count)]
    assert [len(batch) for batch in sent] == batches
