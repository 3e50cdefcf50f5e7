"""`train.similar`: the nearest images in a file of features, as text, JSON and a page."""

import json

import numpy as np
import pytest

from keras_vit import data
from tests import tiny
from tests.programs import call, load


@pytest.fixture(scope="module")
def images(digits, tmp_path_factory):
    return tiny.digit_files(tmp_path_factory.mktemp("images"), digits.source, 7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["features.npz", "features.parquet"])
def test_similar_images_are_listed(name, run, images, tmp_path, capsys, caplog):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="pip install 'keras-vision-transformers[parquet]'")
    file, page = tmp_path / name, tmp_path / "similar.html"
    assert call("train.embed", f"--model={run}", f"--output={file}", images[0].parent) == 0
    capsys.readouterr()
    arguments = [f"--model={run}", f"--features={file}", "--count=3", images[2], images[5]]
    assert call("train.similar", *arguments, "--json", f"--output={page}") is None
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["query"] for result in results] == [str(images[2]), str(images[5])]
    for result in results:
        cosines = [found["cosine"] for found in result["similar"]]
        assert len(cosines) == 3 and cosines == sorted(cosines, reverse=True)
        assert result["similar"][0]["image"] == result["query"] and cosines[0] == pytest.approx(1, abs=1e-5)
    text = page.read_text(encoding="utf-8")
    assert text.count("<figure") == 8 and text.count("cosine 1.0000") == 2
    call("train.similar", *arguments[:-1])
    assert capsys.readouterr().out.splitlines()[:2] == [f"{images[2]}:", f"  1.0000  {images[2]}"]
    assert "other values" not in caplog.text
    call("train.similar", *arguments[:-1], "--preprocess=decode(1)|resize(8)|value_range(-1, 1)")
    assert "other values. Then -> now: preprocess: " in caplog.text


def test_an_image_that_was_moved_or_damaged_is_gray_on_the_page(images, tmp_path, caplog):
    card = load("train.similar").card
    assert card(str(images[0]), "query").note == "query"
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    for name in ("moved.jpg", "bad.jpg"):
        found = card(str(tmp_path / name), "cosine 0.9000")
        assert (found.pixels == 128).all() and found.note == "cosine 0.9000; not readable" and name in caplog.text


@pytest.mark.slow
def test_a_photograph_that_cannot_be_read_is_reported(run, tmp_path):
    np.savez(tmp_path / "a.npz", names=np.array(["a"]), features=np.zeros((1, 16), np.float32))
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(data.UnreadableImageError, match=r"bad\.jpg.*JPEG"):
        call("train.similar", f"--model={run}", f"--features={tmp_path}/a.npz", tmp_path / "bad.jpg")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 5), (3, 2, 2, 16)])
def test_features_of_another_model_and_of_patches_are_refused(shape, run, images, tmp_path):
    np.savez(tmp_path / "a.npz", names=np.array(["a", "b", "c"]), features=np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="16 features per image"):
        call("train.similar", f"--model={run}", f"--features={tmp_path}/a.npz", images[0])


@pytest.mark.parametrize(
    "arrays", [{"names": np.array(["a"])}, {"names": np.array(["a"]), "features": np.zeros((2, 3))}, None]
)
def test_files_without_features_are_refused(arrays, tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"no archive") if arrays is None else np.savez(path, **arrays)
    with pytest.raises(ValueError, match=r"a\.npz"):
        load("train.similar").read(str(path))


@pytest.mark.parametrize("arguments", [["a.png"], ["--features=a.npz"]])
def test_missing_file_or_image_is_reported(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ValueError, match="--features=features.npz photo.jpg"):
        call("train.similar", "--model=no", *arguments)
