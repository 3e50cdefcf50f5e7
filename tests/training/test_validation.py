"""The evaluation of a split, by hand: sums over batches become means over examples."""

import types

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.runs.run_directory import last_evaluation, read_metrics
from keras_vit.training.validation import Validation, evaluate_chosen, use_best
from tests.training import toy


def sums_of(loss, accuracy, examples):
    return {"loss": loss, "accuracy": accuracy, "examples": examples}


BATCHES = [  # images, labels, valid, and what an evaluation of the batch returns
    (
        {"image": np.zeros((2, 1)), "label": np.array([0, 1]), "valid": np.array([1.0, 1.0])},
        {"loss": 3.0, "accuracy": 1.0, "examples": 2.0},
    ),
    (
        {"image": np.ones((2, 1)), "label": np.array([1, 1]), "valid": np.array([1.0, 0.0])},
        {"loss": 0.5, "accuracy": 1.0, "examples": 1.0},
    ),
]
CONFUSIONS = [np.array([[1, 0], [1, 0]], np.float32), np.array([[0, 0], [0, 1]], np.float32)]


def validation(batches=BATCHES, confusions=CONFUSIONS, **options):
    pairs = zip(batches, confusions, strict=True)
    results = iter([(sums, confusion, batch["label"]) for (batch, sums), confusion in pairs])
    backend = types.SimpleNamespace(first_rows=np.asarray)
    task = tasks.bind(recipes.Recipe(), outputs=2)
    return Validation(backend, task, lambda batch: next(results), [batch for batch, _ in batches], **options)


def test_metrics_of_the_test_split_begin_with_test():
    """The best checkpoint is chosen by the names that begin with `eval_`."""
    found = validation(test_split="train[:3]")
    (line,) = found(7, last=True)
    assert list(line) == ["split", "test_accuracy", "test_loss", "examples"]
    assert found.results == {name.replace("test_", "eval_"): value for name, value in line.items()}
    assert line["split"] == "train[:3]"


@pytest.mark.parametrize(("test_split", "intervals"), [(None, [4]), ("val", [4]), ("test", [])])
def test_a_split_that_is_also_the_test_split_is_read_at_the_end(test_split, intervals):
    found, fields = validation(), {"data.test_split": test_split, "eval_every": 4}
    found.task.recipe = recipes.replace(found.task.recipe, fields)
    assert found.intervals() == intervals


def test_metrics_are_means_over_examples():
    found = validation()
    (line,) = found(7)
    assert (line["split"], line["examples"]) == ("test", 3)
    assert list(line) == ["split", "eval_accuracy", "eval_loss", "examples"]  # the score first
    assert (line["eval_accuracy"], line["eval_loss"]) == pytest.approx((2 / 3, 3.5 / 3))
    assert found.tally.tolist() == [[1, 0], [1, 1]]
    assert found.examples["image"].tolist() == [[0.0], [0.0]]  # of the first batch, without what is masked


def test_padding_examples_are_not_shown():
    found = validation(BATCHES[1:], CONFUSIONS[1:])
    list(found(0))
    assert found.examples["image"].tolist() == [[1.0]]


def test_empty_split_is_refused():
    with pytest.raises(ValueError, match="nothing to evaluate: the split 'test'"):
        list(validation([], [])(0))


@pytest.mark.parametrize(("classes", "counts"), [(0, False), (1, True), (200, True), (201, False)])
def test_confusions_of_up_to_200_classes_are_counted(classes, counts):
    assert tasks.bind(recipes.Recipe(), outputs=classes).counts == counts


class Scores:
    """Evaluations of a training, and of the chosen weights, by their steps."""

    def __init__(self, scores):
        self.scores, self.calls = scores, []

    def intervals(self):
        return [4]

    def __call__(self, step, last=False):
        self.calls.append(step)
        yield {"split": "val", "eval_accuracy": self.scores[step], "eval_loss": 1.0}


def chosen(directory, total_steps, scores, test=True, chooses=True):
    """A toy run to its end, the arrays of its last step, and the evaluations that choose."""
    directory.mkdir(exist_ok=True)
    trainer = toy.Trainer(directory, toy.recipe(total_steps))
    between, tests = Scores(scores), (lambda step, last: [{"split": "test", "test_loss": step}]) if test else None
    trainer.loop.evaluators = [between]
    results = trainer.run()
    trained = {name: np.array(array) for name, array in trainer.everything().items()}
    if chooses:
        evaluate_chosen(trainer.loop, results, tests)
    return trainer, trained, between


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scores", "step"), [((0.1, 0.9, 0.5), 8), ((0.1, 0.5, 0.9), 12), ((0.1, 0.3, 0.3), 12), ((0.1, 0.3, np.nan), 8)]
)
def test_the_best_weights_are_chosen_and_tested_once(scores, step, tmp_path):
    """Of equal scores, the last. A finished run does the same again, and a longer one goes on from the last weights."""
    scores = dict(zip((4, 8, 12, 16), (*scores, 0.0), strict=True))
    trainer, trained, between = chosen(tmp_path / "run", 12, scores)
    assert between.calls == [4, 8, 12, *([step] if step < 12 else [])]
    stored = tf.train.load_checkpoint(str(tmp_path / f"run/checkpoints/{'best/' * (step < 12)}ckpt-{step}"))
    toy.assert_same(trainer.everything(), {name: stored.get_tensor(name) for name in trainer.everything()})
    lines = read_metrics(str(tmp_path / "run"))
    assert [line["step"] for line in lines if "test_loss" in line] == [step]
    expected = {"step": step, "split": "val", "eval_accuracy": scores[step], "eval_loss": 1.0, "test_loss": step}
    expected["last_step"] = 12
    assert last_evaluation(str(tmp_path / "run")) == expected
    again, *_ = chosen(tmp_path / "run", 12, scores)
    toy.assert_same(again.everything(), trainer.everything())
    assert read_metrics(str(tmp_path / "run")) == lines
    chosen(tmp_path / "never", 12, scores, chooses=False)
    longer, never = (chosen(tmp_path / name, 16, scores)[1] for name in ("run", "never"))
    toy.assert_same(longer, never)


@pytest.mark.slow
def test_without_test_images_the_last_line_is_of_the_chosen_weights(tmp_path):
    trainer, *_ = chosen(tmp_path, 12, {4: 0.1, 8: 0.9, 12: 0.5}, test=False)
    assert trainer.state.progress.step == last_evaluation(str(tmp_path))["step"] == 8


@pytest.mark.slow
def test_a_best_checkpoint_that_cannot_be_read_leaves_the_last(tmp_path, caplog):
    trainer = toy.Trainer(tmp_path, toy.recipe(8))
    trainer.loop.evaluators = [Scores({4: 0.9, 8: 0.5})]
    results = trainer.run()
    for path in (tmp_path / "checkpoints" / "best").glob("*.data*"):
        path.write_bytes(b"")
    assert not use_best(trainer.loop, results) and trainer.state.progress.step == 8
    assert "cannot be read" in caplog.text
