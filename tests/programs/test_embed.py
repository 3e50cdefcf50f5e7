"""`train.embed`: one row of features per image, in a file that an interruption does not lose."""

import dataclasses
import os
import pathlib
import shutil
import types

import numpy as np
import pytest

from keras_vit import inference
from keras_vit.inference import feature_store, image_inputs
from keras_vit.util import locks
from tests import selection, tiny
from tests.object_store import Killed, store  # noqa: F401  a fixture
from tests.programs import call


@pytest.fixture(scope="module")
def images(digits, tmp_path_factory):
    return tiny.digit_files(tmp_path_factory.mktemp("images"), digits.source, 7)


@pytest.fixture(scope="module")
def expected(run, images):
    predictor = inference.open_predictor(run)
    return predictor.features(predictor.preprocess([image.read_bytes() for image in images]))


def embed(model, output, *arguments):
    return call("train.embed", f"--model={model}", f"--output={output}", "--batch_size=2", "--part_size=3", *arguments)


def interrupt(monkeypatch, calls, *arguments):
    """Interrupt a call of the program after a number of calls of the model."""
    features, done = inference.KerasPredictor.features, []

    def interrupted(self, batch):
        if len(done) == calls:
            raise KeyboardInterrupt
        done.append(batch)
        return features(self, batch)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(inference.KerasPredictor, "features", interrupted)
        embed(*arguments)


def without_model(monkeypatch):
    """Fail where a model is opened."""
    monkeypatch.setattr(inference, "open_predictor", lambda *_, **__: pytest.fail("the model was opened"))


def rows(path):
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return file["names"].tolist(), file["features"]
    table = pytest.importorskip("pyarrow.parquet").read_table(path)
    return table["names"].to_pylist(), np.array(table["features"].to_pylist(), np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    selection.cases(
        [("run", "features.npz"), ("run", "features.parquet"), ("saved_model", "features.npz")],
        [("run", "features.npz")],
    ),
)
def test_embed_writes_one_row_per_image(kind, name, request, images, expected, tmp_path, capsys):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="pip install 'keras-vision-transformers[parquet]'")
    output = tmp_path / name
    assert embed(request.getfixturevalue(kind), output, images[0].parent / "*.png") == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(output)
    names, features = rows(output)
    assert names == [str(image) for image in images] and features.dtype == np.float32
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-5)  # batches of another size
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.slow
def test_finished_parts_are_not_computed_again(run, images, expected, tmp_path, monkeypatch):
    output, calls = tmp_path / "a.npz", []
    features = inference.KerasPredictor.features

    def interrupted(self, batch):
        calls.append(len(batch))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return features(self, batch)

    monkeypatch.setattr(inference.KerasPredictor, "features", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embed(run, output, *images)
    assert calls == [2, 1, 2, 1] and not output.exists()
    calls[:] = [0] * 4
    assert embed(run, output, *images) == 0
    assert calls[4:] == [2, 1, 1]  # the first three images are those of the finished part
    names, found = rows(output)
    assert names == [str(image) for image in images]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_finished_parts_in_a_bucket_are_reused_on_another_machine(run, images, expected, store, monkeypatch):  # noqa: F811
    monkeypatch.setattr(locks, "SILENCE", 0)
    features, calls = inference.KerasPredictor.features, []

    def counted(self, batch):
        calls.append(len(batch))
        return features(self, batch) if len(calls) != 4 else store.kill()

    monkeypatch.setattr(inference.KerasPredictor, "features", counted)
    with pytest.raises(Killed):
        embed(run, "s3://bucket/a.npz", *images)
    store.restart()
    store.machine("second")
    assert embed(run, "s3://bucket/a.npz", *images) == 0
    assert calls[4:] == [2, 1, 1]
    assert [path.name for path in store.root.rglob("*") if path.is_file()] == ["a.npz"]
    np.testing.assert_allclose(rows(store.root / "bucket" / "a.npz")[1], expected, rtol=1e-5, atol=1e-5)


def test_parts_of_another_model_are_refused_and_parts_of_other_images_are_computed_again(tmp_path, monkeypatch):
    """Also of an image that was replaced by one of the same size."""
    image, folder = tmp_path / "1.png", tmp_path / "parts"
    calls = []

    class Means(inference.Predictor):
        features_unavailable = None

        def features(self, images):
            calls.append(len(images))
            return images.mean((1, 2))

    def rows(sha256="a", preprocess=tiny.PREPROCESS, **options):
        card = dataclasses.replace(tiny.card(model_sha256=sha256), preprocess=preprocess)
        parts = feature_store.FeatureParts(str(folder), Means("", card), **options)
        return list(parts.rows(image_inputs.of_files([str(image)])))

    image.write_bytes(tiny.images(1).contents[0])
    folder.mkdir()
    ((_, before),) = rows()
    np.testing.assert_array_equal(rows()[0].features, before)
    assert calls == [1]
    others = {"model": {"sha256": "b"}, "preprocess": {"preprocess": "decode|resize(8)"}}
    others |= {"part_size": {"part_size": 7}, "dense": {"dense": True}}
    assert rows(batch_size=1)[0].names == [str(image)]
    for field, options in others.items():
        with pytest.raises(ValueError, match=rf"values of: {field}\."):
            rows(**options)
    with monkeypatch.context() as patch, pytest.raises(ValueError, match=r"values of: keras_vit\."):
        patch.setattr(feature_store, "__version__", "0")
        rows()
    time = image.stat().st_mtime_ns
    image.write_bytes(image.read_bytes() + b"a")  # another size
    os.utime(image, ns=(time, time))
    rows()
    assert calls == [1, 1]
    os.utime(image, ns=(0, 0))
    rows()
    rows()
    assert calls == [1, 1, 1]


@pytest.mark.slow
def test_damaged_and_unrelated_parts_are_computed_again(run, images, expected, tmp_path, monkeypatch):
    output, parts = tmp_path / "a.npz", tmp_path / "a.npz.parts"
    interrupt(monkeypatch, 5, run, output, "--part_size=1", *images)
    cut, empty, foreign, exchanged, whole = sorted(parts.glob("*.npz"))
    cut.write_bytes(cut.read_bytes()[:100])
    empty.write_bytes(b"")
    np.savez(foreign, names=np.array(["x", "y"]), features=np.zeros((2, expected.shape[1]), np.float32))
    shutil.copy(whole, exchanged)
    assert embed(run, output, "--part_size=1", *images) == 0
    names, features = rows(output)
    assert names == [str(image) for image in images]
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [{1, 3, 4}, {0, 1, 2, 3, 4}])
def test_parts_without_a_readable_image_are_skipped(bad, run, images, tmp_path):
    """Parts have three images."""
    copies = [shutil.copy(image, tmp_path) for image in images[:5]]
    for index in bad:
        pathlib.Path(copies[index]).write_bytes(b"not an image")
    output = tmp_path / "a.npz"
    if len(bad) == 5:
        with pytest.raises(ValueError, match="None of the images"):
            embed(run, output, *copies)
    else:
        (tmp_path / "list.txt").write_text("\n".join([*copies, copies[0]]))
        assert embed(run, output, tmp_path / "list.txt", "--on_bad_image=skip") == 0
        names, features = rows(output)
        assert names == [copies[0], copies[2], copies[0]]  # a row for each line
        np.testing.assert_array_equal(features[0], features[2])
        output.unlink()
        assert embed(run, output, *copies) == 1
    assert not (tmp_path / "a.npz.parts").exists()


@pytest.mark.slow
def test_concurrent_calls_are_refused(run, images, tmp_path):
    output = tmp_path / "a.npz"
    with locks.locked(f"{output}.parts"), pytest.raises(ValueError, match=r"process \d+.*another --output"):
        embed(run, output, *images)
    assert (tmp_path / "a.npz.parts").exists()


def test_an_existing_output_is_kept(run, images, tmp_path, monkeypatch):
    output = tmp_path / "a.npz"
    output.write_bytes(b"mine")
    without_model(monkeypatch)
    with pytest.raises(FileExistsError, match="--output"):
        embed(run, output, *images)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    assert output.read_bytes() == b"mine"


def test_a_folder_without_images_is_refused_before_the_model_is_loaded(run, tmp_path, monkeypatch):
    (tmp_path / "in" / "cat").mkdir(parents=True)
    without_model(monkeypatch)
    with pytest.raises(FileNotFoundError, match="Images in folders end in .jpg"):
        embed(run, tmp_path / "a.npz", tmp_path / "in")


@pytest.mark.slow
def test_names_that_are_not_utf8_are_kept(run, images, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")
    shutil.copy(images[0], path)
    assert embed(run, tmp_path / "a.npz", images[1], path) == 0
    assert rows(tmp_path / "a.npz")[0] == [str(images[1]), path]


def test_wrong_arguments_are_refused(run, images, tmp_path, monkeypatch):
    opened = types.SimpleNamespace(features_unavailable="this file returns probabilities only")
    monkeypatch.setattr(inference, "open_predictor", lambda *_, **__: opened)
    for message, model, *arguments in (
        ("--output must end in", run, tmp_path / "a.csv", images[0]),
        ("--model must return features", run, tmp_path / "a.npz", images[0]),
        ("--dense", run, tmp_path / "a.parquet", "--dense", images[0]),
        ("at least one image", run, tmp_path / "a.npz"),
    ):
        with pytest.raises(ValueError, match=message):
            embed(model, *arguments)
