"""Pre-training runs and their linear probes: resumed bit for bit, visualized, evaluated and fine-tuned."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import flagsaver

from keras_vit import checkpoints, models
from keras_vit import recipe as recipes
from keras_vit.inference import open_predictor
from keras_vit.models import variables
from keras_vit.runs.trained_run import load_run
from tests import golden_data, programs, selection, tiny
from tests.training import small_runs
from train.report.reconstructions import reconstruct

TASKS = {
    "mae": "mae(decoder_hidden_size=16, decoder_num_layers=1, decoder_num_heads=2)",
    "masked_patch": "masked_patch(target='colors_4x4')",
}


RUNS = {
    **{name: {"task": task} for name, task in TASKS.items()},
    "linear_probe": {
        "model__arguments__head_norm": True,
        "optim__name": "lars",
        "optim__learning_rate": 0.1,
        "adapt": "head",
        "optim__ema_momentum": 0,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", selection.cases(RUNS, ["mae"], selection.EXHAUSTIVE))
def test_resumed_run_equals_an_uninterrupted_run_bit_for_bit(name, tmp_path):
    """The run again from its sixth step: masked patches and moving statistics are the same."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    small_runs.train(whole, **RUNS[name], keep_checkpoints=4)
    shutil.copytree(whole, resumed)
    (resumed / "model.keras").unlink()
    for path in (resumed / "checkpoints").glob("**/*"):
        if path.name.startswith(("ckpt-8.", "ckpt-9.", "ckpt-12.")):
            path.unlink()
    assert "Resuming from the checkpoint of step 6" in small_runs.train(resumed, **RUNS[name], keep_checkpoints=4)
    small_runs.assert_same_bits(small_runs.final_weights(whole), small_runs.final_weights(resumed))
    assert small_runs.metrics(whole) == small_runs.metrics(resumed)


def unlabeled(folder):
    """A folder of images without classes."""
    rng = np.random.default_rng(0)
    for index in range(20):
        image = rng.integers(0, 256, (16, 16, 3)).astype("uint8")
        (folder / f"{index}.png").write_bytes(tf.io.encode_png(image).numpy())
    return folder


def small(source, **fields):
    """A recipe of two steps."""
    pp = "decode|resize(16)|value_range(-1, 1)"
    arguments = {**tiny.ARGUMENTS, **fields.pop("arguments", {})}
    return recipes.Recipe(
        total_steps=2,
        deterministic=False,  # would stay on for the tests that follow
        model=recipes.Model("ViT-Ti/16", image_size=16, arguments=arguments, **fields.pop("model", {})),
        data=recipes.Data(source=source, pp_train=pp, pp_eval=pp, batch_size=4),
        optim=recipes.Optim(learning_rate=1e-3),
        **fields,
    )


def train(recipe, directory, monkeypatch):
    """Runs the training program in this process."""
    main = programs.load("train.main")
    monkeypatch.setattr(main.cli, "recipe_from_flags", lambda *_: recipes.check(recipe))
    with flagsaver.flagsaver(workdir=str(directory), distribute="one_device"):
        main.main([])
    lines = [json.loads(line) for line in (pathlib.Path(directory) / "metrics.jsonl").read_text().splitlines()]
    return lines


@pytest.mark.slow
@pytest.mark.parametrize(("task", "score"), [("mae", "explained"), ("masked_patch", "accuracy")])
def test_training_on_images_without_labels(task, score, tmp_path, monkeypatch):
    """A run is trained, visualized, embedded and fine-tuned; classification is refused."""
    (tmp_path / "images").mkdir()
    source, run = f"images:{unlabeled(tmp_path / 'images')}", tmp_path / "run"
    lines = train(small(source, task=TASKS[task]), run, monkeypatch)
    assert [line["step"] for line in lines if f"eval_{score}" in line] == [2]
    assert (run / "report.png").stat().st_size > 10_000

    loaded = load_run(str(run))
    assert loaded.class_names == ()
    predictor = open_predictor(str(run))
    images = np.random.default_rng(0).uniform(-1, 1, (3, 16, 16, 3)).astype("float32")
    np.testing.assert_allclose(
        predictor.features(images), models.representation(loaded.model)(images)[0], rtol=1e-4, atol=1e-5
    )
    shown = reconstruct(loaded.model, recipes.from_dict(loaded.config["recipe"]), images, loaded.preprocess)
    assert np.abs(shown["input"].astype(float) - (images + 1) * 127.5).max() <= 1

    with pytest.raises(ValueError, match="labels"):
        train(small(source), tmp_path / "classification", monkeypatch)
    fine = small("digits", model={"weights": str(run / "model.keras")})
    fine.data.pp_train = fine.data.pp_eval = "resize(16)|value_range(-1, 1)"
    with pytest.raises(checkpoints.CheckpointError, match="channels"):  # digits are gray
        train(fine, tmp_path / "fine", monkeypatch)


@pytest.mark.slow
def test_fine_tuning_learning_rates_match_the_reference():
    """The reference's table for a model with the norm after the pooling."""
    meta = golden_data.load("mae_io")["meta"]
    name = next(name for name in meta if name.startswith("finetune_groups_layer_decay_"))
    expected, factor = meta[name], float(name.rpartition("_")[2])
    model = models.VisionTransformer(
        patch_size=meta["patch_size"],
        hidden_size=meta["embed_dim"],
        num_layers=meta["depth"],
        num_heads=meta["num_heads"],
        mlp_dim=int(meta["embed_dim"] * meta["mlp_ratio"]),
        image_size=meta["img_size"],
        classes=3,
        pooling="gap",
        class_token=True,
        norm_after_pooling=True,
        resnet_numerics="timm",
        activation="gelu",
    )
    stored = stored_names(model)
    assert set(stored) == set(expected)
    rates, decayed = variables.layer_multipliers(model, factor), variables.decayed(model)
    for tensor, paths in stored.items():
        rate, decay = expected[tensor]
        for path in paths:
            assert rates[path] == pytest.approx(rate), path
            assert (path in decayed) == (decay > 0), path


def stored_names(model):
    """The reference's name of each parameter, with the paths of our weights that it is made of."""
    from keras_vit.checkpoints.checkpoint import Layout
    from keras_vit.checkpoints.families import timm_reading
    from keras_vit.checkpoints.rules import bind_variables

    bindings, left_over = bind_variables(timm_reading.rules(Layout("timm")), [weight.path for weight in model.weights])
    assert not left_over
    return {name: binding.variables for binding in bindings for name in binding.stored}
