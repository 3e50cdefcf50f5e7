"""The programs on a model that predicts masks, from images to files."""

import json
import re

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import data, models, recipe
from keras_vit.inference import masks, open_predictor
from keras_vit.runs import run_directory
from tests import tiny
from tests.programs import call
from tests.tf_serving import servers

NAMES = ("sky", "sea", "sand")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A file with a model that predicts masks."""
    network = tiny.model(num_layers=1, head=models.LinearSegmenter(3))
    network.class_names = NAMES
    path = tmp_path_factory.mktemp("model") / "views.keras"
    network.save(path)
    return path


@pytest.fixture
def images(tmp_path):
    paths = [tmp_path / "images" / name for name in ("a.png", "b.jpg")]
    paths[0].parent.mkdir()
    for path, size in zip(paths, ((20, 24), (9, 30)), strict=True):
        Image.fromarray(tiny.arrays(1, *size)[0]).save(path)
    return paths


def check_files(model, paths, folder):
    """The files are the masks of the predictor in the sizes of the images, and overlays."""
    predictor = open_predictor(model, preprocess=tiny.PREPROCESS)
    contents = [path.read_bytes() for path in paths]
    expected = predictor.card.at_image_sizes(predictor.predict(predictor.preprocess(contents)), contents)
    assert sorted(path.name for path in folder.iterdir()) == ["a.png", "a_overlay.png", "b.png", "b_overlay.png"]
    for path, content, mask in zip(paths, contents, expected, strict=True):
        opened = Image.open(folder / f"{path.stem}.png")
        assert opened.mode == "P"
        np.testing.assert_array_equal(np.asarray(opened), mask)
        overlay = np.asarray(Image.open(folder / f"{path.stem}_overlay.png"))
        np.testing.assert_array_equal(overlay, masks.overlay(masks.read_pixels(content, "decode"), mask))
    return expected


@pytest.mark.slow
def test_predict_writes_masks(model, images, tmp_path, capsys):
    arguments = (f"--model={model}", f"--preprocess={tiny.PREPROCESS}", f"--output={tmp_path / 'masks'}")
    assert call("train.predict", *arguments, "--json", *images) == 0
    expected = check_files(model, images, tmp_path / "masks")
    for line, mask in zip(capsys.readouterr().out.splitlines(), expected, strict=True):
        classes = json.loads(line)["classes"]
        assert sum(entry["share"] for entry in classes) == pytest.approx(1.0)
        shares = {entry["label"]: entry["share"] for entry in classes}
        # Of the mask at the size of the model's input.
        assert shares.get("sky", 0.0) == pytest.approx(np.mean(mask == 0), abs=0.1)
    assert call("train.predict", *arguments, *images[:1]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0] == str(images[0]) and all(line.split()[0] in NAMES for line in table[1:])


@pytest.mark.slow
def test_flags_for_classifiers_are_refused(model, images, tmp_path):
    arguments = (f"--model={model}", f"--preprocess={tiny.PREPROCESS}")
    for flag in ("--top_k=2", "--order=uncertain", f"--sort={tmp_path}/sorted"):
        with pytest.raises(ValueError, match=flag.partition("=")[0]):
            call("train.predict", *arguments, flag, *images)
    with pytest.raises(ValueError, match="--output"):
        call("train.predict", *arguments, f"--output={images[0].parent}", *images)
    tiny.model().save(tmp_path / "classes.keras")
    with pytest.raises(ValueError, match="--output"):
        classes = f"--model={tmp_path / 'classes.keras'}"
        call("train.predict", classes, "--preprocess=value_range(-1, 1)", f"--output={tmp_path}/masks", *images)


@pytest.mark.slow
def test_masks_of_images_with_equal_names_are_kept_apart(model, images, tmp_path):
    """Their masks are in the folders of the images; the table has the share of each class."""
    deep = images[0].parent / "deep"
    deep.mkdir()
    images[0].rename(deep / "b.png")
    arguments = (f"--model={model}", f"--preprocess={tiny.PREPROCESS}", images[0].parent)
    assert call("train.predict", *arguments, f"--output={tmp_path / 'masks'}") == 0
    written = {path.relative_to(tmp_path / "masks").as_posix() for path in (tmp_path / "masks").rglob("*.png")}
    assert written == {"b.png", "b_overlay.png", "deep/b.png", "deep/b_overlay.png"}
    assert call("train.predict", *arguments, f"--output={tmp_path / 'shares.jsonl'}") == 0
    rows = [json.loads(line) for line in (tmp_path / "shares.jsonl").read_text().splitlines()]
    assert [sum(row[name] for name in NAMES) for row in rows] == pytest.approx([1.0, 1.0])


@pytest.mark.slow
def test_client_writes_masks(model, images, tmp_path, capsys):
    predictor = open_predictor(model, preprocess=tiny.PREPROCESS)
    with servers.serving_model(servers.served_model.ServedModel("views", predictor)) as url:
        arguments = (f"--url={url}", "--name=views", f"--output={tmp_path / 'masks'}", "--json")
        assert call("export.client", *arguments, *images) == 0
    check_files(model, images, tmp_path / "masks")
    assert "classes" in json.loads(capsys.readouterr().out.splitlines()[0])


@pytest.mark.slow
def test_embed_writes_features_of_patches(model, images, tmp_path):
    file = tmp_path / "features.npz"
    arguments = (f"--model={model}", f"--preprocess={tiny.PREPROCESS}", "--dense", *images)
    assert call("train.embed", f"--output={file}", *arguments) == 0
    predictor = open_predictor(model, preprocess=tiny.PREPROCESS)
    prepared = predictor.preprocess([path.read_bytes() for path in images])
    (expected,) = keras_vit.feature_extractor(predictor.model, blocks=(-1,))(prepared)["maps"]
    with np.load(file) as found:
        assert found["features"].shape == (2, 2, 2, 16)
        np.testing.assert_allclose(found["features"], expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The files of a run on shapes with masks, with random weights."""
    folder = tmp_path_factory.mktemp("shapes")
    assert call("train.sample_data", "--set=shapes", "--count=6", f"--output={folder / 'data'}") == 0
    source = f"folder:{folder / 'data' / 'images'}#masks={folder / 'data' / 'masks'}"
    opened = data.open_source(source, "test")
    pp = f"decode|resize({tiny.SIZE})|value_range(-1, 1)"
    used = recipe.Recipe(data=recipe.Data(source=source, pp_train=pp, pp_eval=pp), task="segmentation")
    description = {"name": source, "class_names": list(opened.class_names), "num_classes": opened.num_outputs}
    description |= {"num_train": 6, "num_eval": 6, "label_kind": "mask"}
    network = tiny.model(head=models.LinearSegmenter(opened.num_outputs))
    network.class_names = opened.class_names
    (folder / "run").mkdir()
    run_directory.save_model(network, str(folder / "run"))
    run_directory.write_config(str(folder / "run"), used, description)
    return folder / "run"


@pytest.mark.slow
def test_report_shows_masks_with_the_lowest_miou_first(run, tmp_path, capsys):
    """The tiles are those of the evaluator; the images come with both masks, the lowest mIoU first."""
    pytest.importorskip("matplotlib", reason="the report needs matplotlib")
    assert call("train.visualize", f"--model={run}", f"--output={tmp_path}", "--num_images=3") == 0
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert call("train.evaluate", f"--model={run}", "--json") == 0
    measured = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert f"<dd>{100 * measured['miou']:.2f}%</dd>" in html
    assert len(re.findall(r'title="(?:predicted|true)" src="data:image/', html)) == 6
    scores = [float(score) for score in re.findall(r"<span>mIoU ([\d.]+)%</span>", html)]
    assert len(scores) == 3 and scores == sorted(scores)
    for title in ("Intersection over union per class", "Confusion matrix", "The lowest mIoU first"):
        assert title in html
