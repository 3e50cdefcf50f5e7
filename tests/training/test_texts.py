"""Messages and log lines of a training run: remaining time, differences, and mismatches."""

import types

import keras
import numpy as np
import pytest

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.runs import checkpoints, run_fields
from keras_vit.runs.errors import CheckpointMismatch
from keras_vit.training import backend, create, run_data, run_summary
from keras_vit.training.loop import Loop
from keras_vit.training.speed import Speed


def test_first_call_gives_an_upper_bound_of_the_remaining_time():
    """It compiles; the second call does not."""
    recipe, state = recipes.Recipe(total_steps=100), types.SimpleNamespace(progress=types.SimpleNamespace(step=40))
    loop, speed = Loop(recipe, None, state, None, None, None), Speed(batch_size=4_096)
    assert loop._details({"loss": 1.23456}, speed) == ["loss 1.2346", "? left", "0 images/s"]
    speed.add(1, 0.5)
    assert loop._details({}, speed) == ["at most 0:30 left", "8,192 images/s"]
    speed.add(10, 10.0)
    assert loop._details({}, speed) == ["1:00 left", "4,096 images/s"]


def test_images_that_replicas_cannot_divide_are_refused():
    backend.check_rows(np.zeros((6, 1)), replicas=3)
    with pytest.raises(ValueError, match="multiple of 3 replicas. Received: 7"):
        backend.check_rows(np.zeros((7, 1)), replicas=3)


@pytest.mark.parametrize(
    ("found", "differences"),
    [
        ({"a": ((3, 2), "float32")}, "'a' is float32 [3, 2] in the checkpoint and float32 [2, 3] in the recipe, and 0"),
        ({"a": ((2, 3), "bfloat16")}, "'a' is bfloat16 [2, 3] in the checkpoint and float32 [2, 3] in the recipe"),
        (
            {"c": ((), "int32"), "d": ((), "int32")},
            "'c' is int32 [] in the checkpoint and missing in the recipe, and 1",
        ),
        (
            {"a": None, "b": None, "c": ((), "int32")},
            "'a' is missing in the checkpoint and float32 [2, 3] in the recipe, and 2",
        ),
    ],
)
def test_first_differing_array_is_named_and_the_others_are_counted(found, differences):
    specs = {"a": ((2, 3), "float32"), "b": ((4,), "int32")}
    checkpoints.check_specs("ckpt-1", specs, specs)
    stored = {name: spec for name, spec in {**specs, **found}.items() if spec}
    with pytest.raises(CheckpointMismatch) as caught:
        checkpoints.check_specs("ckpt-1", stored, specs)
    assert differences in str(caught.value)


def test_long_values_of_changed_fields_are_truncated():
    assert run_fields._short("x" * 58) == "'" + "x" * 58 + "'"  # 60 characters
    assert run_fields._short("x" * 59) == "'" + "x" * 56 + "..."


@pytest.mark.parametrize("counted", [True, False])
def test_report_of_a_run_lists_its_files_and_scores(counted, tmp_path):
    for name in ("model.keras", "metrics.jsonl", "report.png", "config.json"):
        (tmp_path / name).touch()
    tally = np.array([[3, 1], [0, 12]]) if counted else None
    results = {"split": "test", "eval_accuracy": 0.9375, "examples": 16}
    metrics = recipes.Recipe().task.metrics
    task = types.SimpleNamespace(lines=lambda tally: [], metrics=metrics, class_names=("a", "b"))
    validation = types.SimpleNamespace(tally=tally, task=task, results=results)
    report = run_summary.report_text(str(tmp_path), results, validation)
    first, *lines = report.strip().splitlines()
    assert first == "test accuracy 93.75% on 16 examples"
    assert (
        any("95% confidence" in line for line in lines) == any("Confusion (rows" in line for line in lines) == counted
    )
    assert lines[-2:] == [
        f"In {tmp_path}: model.keras, metrics.jsonl, report.png",
        f"To visualize attention: keras-vit visualize --model={tmp_path} --output={tmp_path}/inspection",
    ]


def test_only_accuracies_have_a_confidence_interval(tmp_path):
    metrics = recipes.parse_task("segmentation").metrics
    task = types.SimpleNamespace(lines=lambda tally: ["scores per class"], metrics=metrics)
    results = {"split": "test", "eval_miou": 0.5, "eval_pixel_accuracy": 0.75, "examples": 2}
    validation = types.SimpleNamespace(tally=np.eye(2, dtype=int), task=task, results=results)
    choosing = {"split": "validation", "eval_miou": 0.75, "examples": 4}
    report = run_summary.report_text(str(tmp_path), choosing, validation)
    assert report.index("test miou 50.00% on 2 examples") < report.index("validation miou 75.00% on 4 examples, used")
    assert "scores per class" in report and "pixel_accuracy 75.00%" in report
    assert "confidence" not in report and "Confusion" not in report


def splits(**fields):
    """The splits of the digits for three replicas."""
    values = "resize(8)|value_range(-1, 1)"
    data = recipes.Data("digits", "train[:6]", "test[:6]", values, values, batch_size=6)
    recipe = recipes.Recipe(data=data, model=recipes.Model(image_size=8))
    changes = {name.replace("__", "."): value for name, value in fields.items()}
    return run_data.RunData(recipes.replace(recipe, changes), types.SimpleNamespace(num_replicas=3, num_workers=1))


@pytest.mark.slow
def test_valid_splits_are_accepted():
    assert (splits().channels, splits().eval_batch_size) == (1, 6)
    other = splits(data__batch_size=12, data__eval_batch_size=3, optim__accumulation_steps=2)
    assert other.eval_batch_size == 3  # micro-batches are for training only


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data__pp_train": "resize((8, 12))"}, r"data.pp_train must .*=8 by 8. It returns 8 by 12.*resize\(8\)"),
        ({"data__pp_eval": "resize((12, 8))"}, "data.pp_eval must .*=8 by 8. It returns 12 by 8"),
        ({"data__pp_eval": "grayscale_to_rgb|resize(8)"}, "same number of channels. Received: 1 and 3"),
        (
            {"data__batch_size": 7},
            "data.batch_size .* 3 replicas. Received: data.batch_size=7.*nearest valid size is 6",
        ),
        ({"data__batch_size": 9, "optim__accumulation_steps": 2}, "3 replicas and 2 micro-batches.*valid size is 12"),
        ({"data__eval_batch_size": 10}, "data.eval_batch_size .* 3 replicas. Received: data.eval_batch_size=10"),
    ],
)
def test_wrong_image_and_batch_sizes_of_splits_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        splits(**fields)


def test_splits_of_different_labels_are_refused(monkeypatch):
    labels = {"train[:6]": ("class", 10), "test[:6]": ("classes", 12), "train[6:]": ("class", 10)}
    sources = {name: types.SimpleNamespace(label_kind=kind, num_outputs=n) for name, (kind, n) in labels.items()}
    monkeypatch.setattr(run_data, "open_source", lambda source, split: sources[split])
    expected = r"Received: 10 of the kind 'class' in 'train\[:6\]', 12 of the kind 'classes' in 'test\[:6\]'"
    for fields in ({}, {"data__eval_split": "train[6:]", "data__test_split": "test[:6]"}):
        with pytest.raises(ValueError, match=f"same labels. {expected}"):
            splits(**fields)


def test_other_backends_do_not_train(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(ValueError, match="tensorflow or jax. Received: KERAS_BACKEND=torch"):
        create.create(recipes.Recipe())


def test_batches_have_the_options_of_the_recipe(monkeypatch):
    """The patches that an evaluation hides are drawn from another seed than those of the training."""
    for name in ("train_batches", "eval_batches"):
        monkeypatch.setattr(run_data, name, lambda *given, **options: {"given": given, **options})
    data = recipes.Data("digits", pp_train="a", pp_eval="b", batch_size=6, mixup=0.1, cutmix=0.2, shuffle_buffer=5)
    data.on_bad_image = "skip"
    found = object.__new__(run_data.RunData)
    found.recipe, found.train, found.eval_batch_size = recipes.Recipe(seed=7, data=data), "t", 3
    found.task = types.SimpleNamespace(draw=lambda seed, step: (seed, step), on_host=lambda batches: batches)
    found.backend = types.SimpleNamespace(num_workers=1, distribute=lambda batches: batches(1, 3))
    train, evaluated = found.train_batches(4), found.eval_batches("e")
    assert [batches.pop("draw")(9) for batches in (train, evaluated)] == [(7, 9), (7 ^ 0x6576616C, 9)]
    shared = {"shard_index": 1, "num_shards": 3, "on_bad_image": "skip"}
    mixing = {"mixup": 0.1, "cutmix": 0.2, "shuffle_buffer": 5}
    assert train == {"given": ("t", "a"), "batch_size": 6, "seed": 7, "start_step": 4, **mixing, **shared}
    assert evaluated == {"given": ("e", "b"), "batch_size": 3, **shared}


@pytest.mark.parametrize(
    ("task", "loss", "labels", "logits", "captions"),
    [
        (
            "classification",
            "softmax",
            [1, 0],
            [[0, np.log(3)], [0, np.log(9)]],
            ["dog · 75.0%", "dog · 90.0%\n(is cat)"],
        ),
        (
            "multi_label",
            "sigmoid",
            [[1, 1], [1, 0]],
            [[2, np.log(3)], [-3, -np.log(9)]],
            ["cat, dog", "none\n(is cat)"],
        ),
    ],
)
def test_captions_show_true_and_predicted_classes(task, loss, labels, logits, captions):
    task = tasks.bind(recipes.Recipe(task=task, loss=loss), outputs=2)
    task.class_names, logits = ("cat", "dog"), np.array(logits, "float32")
    images = np.zeros((2, 4, 4, 3), np.uint8)
    shown = task.show({"image": images, "predictions": logits, "label": np.array(labels)}, None)
    assert shown.captions == captions and shown.right.tolist() == [True, False]
    np.testing.assert_allclose(shown.confidence, [0.75, 0.9], rtol=1e-6)
