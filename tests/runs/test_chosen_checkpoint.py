"""The opened checkpoint of a run: the final model, the best checkpoint, or the checkpoint of a step."""

import hashlib
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import inference
from keras_vit.runs import checkpoints, chosen_checkpoint, load_run
from keras_vit.training import run_summary, state
from keras_vit.util.metrics import Metric
from tests import programs

STORED = pathlib.Path(__file__).parent / "data" / "run"
IMAGES = np.random.default_rng(0).uniform(-1, 1, (3, 8, 8, 1)).astype(np.float32)


def arrays_of(prefix):
    """All arrays of a checkpoint as TensorFlow reads them, by the name in the state."""
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 4 steps whose best checkpoint, of step 2, differs from the final model. Tests must not change it."""
    directory = shutil.copytree(STORED, tmp_path_factory.mktemp("chosen") / "run")
    rng = np.random.default_rng(1)
    best = {
        name: array if array.ndim == 0 else rng.normal(size=array.shape).astype(array.dtype)
        for name, array in arrays_of(directory / "checkpoints" / "ckpt-4").items()
    }
    best["step"] = np.asarray(2, np.int64)
    (directory / "checkpoints" / "best").mkdir()
    prefix = str(directory / "checkpoints" / "best" / "ckpt-2")
    checkpoints.write(prefix, best)
    checkpoints.write_manifest(prefix)
    lines = [{"step": 2, "split": "test", "eval_accuracy": 0.5325, "eval_loss": 1.0, "examples": 360}]
    lines += [
        json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines() if '"step": 4' in line
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


@pytest.mark.slow
def test_the_checkpoint_of_the_last_step_is_the_final_model(run):
    """With the moving averages in place of the weights, bit for bit."""
    final, last, of_step = load_run(run), load_run(run, checkpoint="last"), load_run(run, checkpoint=4)
    assert (final.step, last.step, of_step.step) == (None, 4, 4)
    expected = final.model(IMAGES).numpy()
    for opened in (last, of_step):
        assert {v.path: v.numpy().tobytes() for v in state.weights(opened.model)} == {
            v.path: v.numpy().tobytes() for v in state.weights(final.model)
        }
        np.testing.assert_array_equal(opened.model(IMAGES).numpy(), expected)


def test_best_checkpoint_is_loaded(run):
    opened = load_run(run, checkpoint="best")
    stored = arrays_of(run / "checkpoints" / "best" / "ckpt-2")
    assert opened.step == 2
    assert opened.model.class_names == opened.class_names
    for weight in state.weights(opened.model):  # every weight of this recipe is averaged or constant
        value = stored.get(f"average/{weight.path}", stored.get(f"model/{weight.path}"))
        np.testing.assert_array_equal(weight.numpy(), value)


@pytest.mark.slow
def test_checkpoints_of_an_unfinished_run_are_loaded(run, tmp_path):
    directory = shutil.copytree(run, tmp_path / "run")
    (directory / "model.keras").unlink()
    assert [load_run(directory, checkpoint=name).step for name in ("best", "last")] == [2, 4]
    assert inference.open_predictor(directory, checkpoint=4).predict(IMAGES).shape == (3, 10)
    with pytest.raises(FileNotFoundError, match=r"model\.keras.*best \(2\), 4"):
        load_run(directory)


def test_unknown_checkpoints_are_refused(run, tmp_path):
    for unknown in ("3", 3, "bets"):
        with pytest.raises(ValueError, match=rf"'last', .*best \(2\), 4.*Received: checkpoint='{unknown}'"):
            load_run(run, checkpoint=unknown)
    directory = shutil.copytree(run, tmp_path / "run")
    next((directory / "checkpoints" / "best").glob("ckpt-2.data*")).write_bytes(b"")
    with pytest.raises(ValueError, match="ckpt-2 .*bytes instead of"):
        load_run(directory, checkpoint="best")
    shutil.rmtree(directory / "checkpoints")
    with pytest.raises(ValueError, match="checkpoint='best'"):
        load_run(directory, checkpoint="best")


def test_newest_intact_best_checkpoint_is_loaded(tmp_path):
    """A process that was killed may leave two best checkpoints."""
    best = tmp_path / "best"
    best.mkdir()
    for folder, step in ((best, 2), (best, 10), (tmp_path, 2), (tmp_path, 12)):
        (folder / f"ckpt-{step}.index").write_bytes(b"arrays")
        checkpoints.write_manifest(str(folder / f"ckpt-{step}"))
    assert chosen_checkpoint.listed(str(tmp_path)) == "best (10), 2, 12"
    chosen = {name: chosen_checkpoint.choose(str(tmp_path), name) for name in ("best", "2", "12", "last")}
    assert [found.step for found in chosen.values()] == [10, 2, 12, 12]
    assert chosen["2"].path == str(best / "ckpt-2")
    (best / "ckpt-10.index").unlink()
    assert chosen_checkpoint.choose(str(tmp_path), "best").path == str(best / "ckpt-2")
    (best / "ckpt-2.index").unlink()
    assert chosen_checkpoint.choose(str(tmp_path), "2").path == str(tmp_path / "ckpt-2")
    with pytest.raises(ValueError, match="best/ckpt-10 is not usable: ckpt-10.index is missing"):
        chosen_checkpoint.choose(str(tmp_path), "best")


@pytest.mark.slow
def test_predictor_has_the_metrics_and_hash_of_the_best_checkpoint(run, tmp_path):
    final, best = inference.open_predictor(run), inference.open_predictor(run, checkpoint="best")
    assert (final.card.metrics["step"], best.card.metrics["eval_accuracy"]) == (4, 0.5325)
    assert final.card.sha256 == hashlib.sha256((run / "model.keras").read_bytes()).hexdigest()
    of_step = inference.open_predictor(run, checkpoint=4)
    copied = shutil.copytree(run, tmp_path / "other")
    (copied / "config.json").write_text((run / "config.json").read_text() + "\n")  # as another recipe would be
    other = inference.open_predictor(copied, checkpoint="best")
    assert len({predictor.card.sha256 for predictor in (final, best, of_step, other)} | {""}) == 5
    assert not np.array_equal(final.predict(IMAGES), best.predict(IMAGES))
    shutil.copy(run / "model.keras", tmp_path / "model.keras")
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        inference.open_predictor(tmp_path / "model.keras", preprocess="value_range(-1, 1)", checkpoint="best")
    (tmp_path / "a.onnx").write_bytes(b"")
    with pytest.raises(ValueError, match="checkpoint"):
        inference.open_predictor(tmp_path / "a.onnx", checkpoint="best")


@pytest.mark.slow
def test_evaluate_uses_the_chosen_checkpoint(run, capsys):
    found = {}
    for checkpoint in ("last", "4", "best"):
        assert programs.call("train.evaluate", f"--model={run}", "--json", f"--checkpoint={checkpoint}") == 0
        found[checkpoint] = json.loads(capsys.readouterr().out)["loss"]
    assert found["last"] == found["4"] != found["best"]


@pytest.mark.parametrize(
    "name",
    [
        *("train.evaluate", "train.predict", "train.visualize", "export.main"),
        *("export.verify", "export.serve", "export.benchmark", "export.convert_checkpoint"),
    ],
)
def test_every_program_that_opens_a_run_has_the_flag(name):
    assert programs.load(name).flags.FLAGS["checkpoint"].default is None


@pytest.mark.slow
def test_convert_and_benchmark_use_the_chosen_checkpoint(run, tmp_path):
    programs.call("export.convert_checkpoint", run, tmp_path / "best.keras", "--checkpoint=best")
    converted = keras.models.load_model(tmp_path / "best.keras", compile=False)
    np.testing.assert_array_equal(converted(IMAGES).numpy(), load_run(run, checkpoint="best").model(IMAGES).numpy())
    program = programs.load("export.benchmark")
    program.flags.FLAGS(["benchmark", "--checkpoint=best"])
    assert "--checkpoint=best" in program.worker_command("runs/a", True)
    assert "--checkpoint=best" not in program.worker_command("a.tflite", False)


@pytest.mark.parametrize(
    ("scores", "chosen", "expected"),
    [
        (
            {2: 0.5325, 4: 0.485},
            2,
            ["the weights of step 2, the best of 2 evaluations; --checkpoint=last: 48.50% at step 4"],
        ),
        ({2: 0.485, 4: 0.5325}, 4, ["the weights of step 4, the best of 2 evaluations"]),
        ({4: 0.5}, 4, []),
        ({}, 4, []),
    ],
)
def test_log_of_a_finished_training_states_the_chosen_checkpoint(scores, chosen, expected, tmp_path):
    lines = [{"step": step, "eval_accuracy": score, "eval_loss": 1.0} for step, score in scores.items()]
    lines.append({"step": chosen, "test_loss": 1.0})
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = run_summary.best_line(str(tmp_path), Metric("accuracy", unit="%"))
    assert found == [f"model.keras has {line}" for line in expected]


def test_of_many_classes_the_most_frequent_confusions_are_listed():
    confusion = np.diag(np.full(21, 9))
    confusion[[3, 7, 3], [9, 2, 5]], confusion[20, 0] = 2, 4  # true classes, predicted classes
    names = [f"c{number}" for number in range(21)]
    lines = run_summary.confusion_lines(confusion, names)
    equal = [f"c{true} taken for c{predicted}: 2" for true, predicted in ((3, 5), (3, 9), (7, 2))]
    assert [line.strip() for line in lines[1:]] == ["c20 taken for c0: 4", *equal]
    table = run_summary.confusion_lines(confusion[:20, :20], names[:20])
    assert len(table) == 2 + 20 and table[2 + 3].split()[1:8] == ["·", "·", "·", "9", "·", "2", "·"]
    confusion[:12, 12] = np.arange(10, 22)
    assert [line.split()[0] for line in run_summary.confusion_lines(confusion, names)[1:]] == names[11:1:-1]
    rows = run_summary.confusion_lines(np.full((2, 2), 1000), ["a", "b"])[2:]
    assert [line.split() for line in rows] == [["a", "1000", "1000"], ["b", "1000", "1000"]]
    head, *rows = run_summary.confusion_lines(np.eye(2, dtype=int), ["wheat", "barley"])[1:]
    assert head.split() == ["whe", "bar"] and len({len(line) for line in (head, *rows)}) == 1  # names do not touch
