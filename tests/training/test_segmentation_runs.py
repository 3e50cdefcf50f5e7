"""A segmentation from folders of images and masks to a model that is evaluated, resumed and loaded."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.evaluators.segmentation import count
from keras_vit.inference import open_predictor
from keras_vit.runs.run_directory import read_metrics
from keras_vit.runs.trained_run import load_run
from keras_vit.util.metrics import segmentation_scores
from tests import programs
from tests.training import small_runs

PP = "decode(1)|resize(8)|value_range(-1, 1)"
FIELDS = {
    "task": "segmentation(blocks=(0, 1), dropout_rate=0.1)",
    "label_smoothing": 0.0,
    "model__arguments__patch_size": 2,
    "data__pp_train": "decode(1)|scaled_crop(8, 0.8, 1.5)|flip_lr|value_range(-1, 1)",
    "data__pp_eval": PP,
    "data__eval_batch_size": 8,
    "optim__learning_rate": 0.01,
}
UPSAMPLE = {
    **FIELDS,
    "task": "segmentation(head='upsample')",
    **small_runs.QUIET,
}  # of layer norms: devices do not matter
SCORES = ("eval_miou", "eval_pixel_accuracy")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Gray images with a light and a dark square, and an ignored border."""
    root, rng = tmp_path_factory.mktemp("masks"), np.random.default_rng(0)
    for split, number in (("train", 64), ("test", 20)):
        for folder in ("images", "masks"):
            (root / folder / split).mkdir(parents=True)
        for index in range(number):
            mask = np.zeros((12, 16), np.uint8)
            for value in (1, 2):
                y, x = rng.integers(0, 8), rng.integers(0, 12)
                mask[y : y + 5, x : x + 5] = value
            image = np.array([128, 250, 10])[mask] + rng.integers(0, 6, mask.shape)
            mask[:, 0] = 255
            for folder, values in (("images", image), ("masks", mask)):
                encoded = tf.io.encode_png(values.astype(np.uint8)[..., None]).numpy()
                (root / folder / split / f"{index:02}.png").write_bytes(encoded)
    (root / "masks" / "classes.txt").write_text("ground\nlight\ndark\nabsent\n")
    return f"folder:{root}/images#masks={root}/masks"


@pytest.fixture(scope="module")
def run(source, tmp_path_factory):
    directory = tmp_path_factory.mktemp("segmentation") / "run"
    return directory, small_runs.train(directory, data__source=source, **FIELDS, total_steps=60, eval_every=30)


def by_hand(directory, source):
    """The scores of the final model, image by image."""
    opened, predictor = data.open_source(source, "test"), open_predictor(str(directory))
    function, confusion = data.preprocess.host_function(PP), np.zeros((4, 4), np.int64)
    for example in opened.examples():
        small = function({**example, "mask": tf.cast(example["mask"], tf.uint8)})
        logits = predictor.scores(data.preprocess.device_function(PP)(small["image"][None]).numpy())
        confusion += count(small["mask"].numpy(), np.asarray(tf.image.resize(logits, (8, 8)))[0].argmax(-1), 4)
    return segmentation_scores(confusion)


@pytest.mark.slow
def test_segmentation_run_improves_and_counts_every_pixel_once(run, source):
    directory, printed = run
    first, last = (line for line in read_metrics(str(directory)) if "eval_miou" in line)
    expected = by_hand(directory, source)
    assert last["eval_miou"] == expected["miou"] > 0.4  # 20 images in batches of 8, and a class without pixels
    assert last["eval_pixel_accuracy"] == expected["pixel_accuracy"] > first["eval_pixel_accuracy"] - 0.05
    assert "ground" in printed.split("Intersection over union")[1] and "masks: absent)" in printed.split("Inter")[1]
    steps = [line for line in read_metrics(str(directory)) if "loss" in line]
    assert all("pixel_accuracy" in line and "miou" not in line for line in steps)
    model = load_run(str(directory)).model
    assert model.class_names == ("ground", "light", "dark", "absent") and model.output_shape == (None, 4, 4, 4)
    assert json.loads((directory / "config.json").read_text())["output"] == "mask"


@pytest.mark.slow
def test_evaluate_finds_the_same_scores(run, source):
    directory, _ = run
    code, output = programs.run("train.evaluate", f"--model={directory}", "--json")
    found, expected = json.loads(output[output.index("{") :]), by_hand(directory, source)
    assert code == 0 and (found["examples"], found["miou"]) == (20, expected["miou"])
    np.testing.assert_array_equal(np.float64(found["per_class"]["iou"]), expected["iou"])
    code, output = programs.run("train.evaluate", f"--model={directory}")
    assert code == 0 and "light" in output.split("per class")[1]
    windows = f"segmentation(stride=5, pp='{PP.replace('resize(8)', 'resize_small(8)')}')"
    code, output = programs.run("train.evaluate", f"--model={directory}", f"--evaluators={windows}", "--json")
    found = json.loads(output[output.index("{") :])["segmentation"]
    assert np.sum(found["confusion"]) == 20 * 12 * 15  # of the masks as they are stored
    assert found["miou"] > 0.4


@pytest.mark.slow
def test_head_on_a_frozen_encoder_trains_its_batch_norm_and_resumes_exactly(source, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    fields = {**FIELDS, "data__source": source, "adapt": "head", "keep_checkpoints": 9}
    small_runs.train(whole, **fields)
    readers = [tf.train.load_checkpoint(str(whole / "checkpoints" / f"ckpt-{step}")) for step in (3, 12)]
    weights = [name for name in readers[0].get_variable_to_shape_map() if name.startswith("model/")]
    changed = {name for name in weights if not np.array_equal(*(reader.get_tensor(name) for reader in readers))}
    statistics = {"norm/moving_mean", "norm/moving_variance"}
    learned = {"norm/gamma", "norm/beta", "classifier/kernel", "classifier/bias"}
    assert changed == {f"model/head/{name}" for name in statistics | learned} and len(weights) > 20

    shutil.copytree(whole, parts)
    for path in [*(parts / "checkpoints").glob("ckpt-12.*"), *(parts / "checkpoints" / "best").glob("ckpt-12.*")]:
        path.unlink()
    (parts / "model.keras").unlink()
    assert "Resuming from the checkpoint of step 9" in small_runs.train(parts, **fields)
    small_runs.assert_same_bits(small_runs.final_weights(whole), small_runs.final_weights(parts))
    assert small_runs.metrics(whole) == small_runs.metrics(parts)


@pytest.mark.slow
def test_replicas_agree(source, tmp_path):
    fields = {**UPSAMPLE, "data__source": source, "eval_every": 12}
    small_runs.train(tmp_path / "one", **fields)
    small_runs.train_alone(tmp_path / "two", "--distribute=mirrored", "--virtual_devices=2", **fields)
    one, two = (small_runs.metrics(tmp_path / name)[-1] for name in ("one", "two"))
    assert two["examples"] == one["examples"] == 20
    assert two["eval_loss"] == pytest.approx(one["eval_loss"], rel=1e-3)  # sums in another order
    for name in SCORES:  # the same but for pixels whose logits are about equal
        assert two[name] == pytest.approx(one[name], abs=0.01)
