"""`train.embed`: one row of features per image, in a file that an interruption does not lose."""

import numpy as np
import pytest

from keras_vit import inference
from tests import selection, tiny
from tests.programs import call, load


@pytest.fixture(scope="module")
def images(digits, tmp_path_factory):
    """Seven image files."""
    return tiny.digit_files(tmp_path_factory.mktemp("images"), digits.source, 7)


@pytest.fixture(scope="module")
def expected(run, images):
    """Their features, by the model."""
    classifier = inference.open_classifier(run)
    return classifier.features(classifier.preprocess([image.read_bytes() for image in images]))


def embed(model, output, *arguments):
    return call("train.embed", f"--model={model}", f"--output={output}", "--batch_size=2", "--part_size=3", *arguments)


def rows(path):
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return file["names"].tolist(), file["features"]
    table = pytest.importorskip("pyarrow.parquet").read_table(path)
    return table["name"].to_pylist(), np.array(table["features"].to_pylist(), np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    selection.cases(
        [("run", "features.npz"), ("run", "features.parquet"), ("saved_model", "features.npz")],
        [("run", "features.npz")],
    ),
)
def test_one_row_per_image(kind, name, request, images, expected, tmp_path, capsys):
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
    features = inference.KerasClassifier.features

    def interrupted(self, batch):
        calls.append(len(batch))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return features(self, batch)

    monkeypatch.setattr(inference.KerasClassifier, "features", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embed(run, output, *images)
    assert calls == [2, 1, 2, 1] and not output.exists()
    with pytest.raises(ValueError, match=r"a\.npz\.parts.*values of: images"):
        embed(run, output, *images[1:])
    calls[:] = [0] * 4
    assert embed(run, output, *images) == 0
    assert calls[4:] == [2, 1, 1]  # the first three images are those of the finished part
    names, found = rows(output)
    assert names == [str(image) for image in images]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("option", ["error", "skip"])
def test_unreadable_images_are_left_out(option, run, images, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    output = tmp_path / "a.npz"
    code = embed(run, output, images[0], tmp_path / "bad.png", tmp_path / "none.png", f"--on_bad_image={option}")
    assert code == (option == "error")
    assert rows(output)[0] == [str(images[0])]


@pytest.mark.slow
def test_wrong_arguments(run, images, tflite_file):
    load("train.embed")
    for message, model, output in (
        ("--model is missing", "", "a.npz"),
        ("--output must end in", run, "a.csv"),
        ("--model must return features", tflite_file, "a.npz"),
    ):
        with pytest.raises(ValueError, match=message):
            embed(model, output, images[0])
    with pytest.raises(ValueError, match="at least one image"):
        embed(run, "a.npz")
