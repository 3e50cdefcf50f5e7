"""The evaluation of a split, by hand: sums over batches become means over examples."""

import types

import numpy as np
import pytest

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.training.validation import Validation


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


def test_the_test_split_has_other_names():
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


def test_means_over_examples():
    found = validation()
    (line,) = found(7)
    assert (line["split"], line["examples"]) == ("test", 3)
    assert list(line) == ["split", "eval_accuracy", "eval_loss", "examples"]  # the score first
    assert (line["eval_accuracy"], line["eval_loss"]) == pytest.approx((2 / 3, 3.5 / 3))
    assert found.tally.tolist() == [[1, 0], [1, 1]]
    assert found.examples["image"].tolist() == [[0.0], [0.0]]  # of the first batch, without what is masked


def test_masked_examples_are_not_shown():
    found = validation(BATCHES[1:], CONFUSIONS[1:])
    list(found(0))
    assert found.examples["image"].tolist() == [[1.0]]


def test_a_split_without_examples():
    with pytest.raises(ValueError, match="nothing to evaluate: the split 'test'"):
        list(validation([], [])(0))


@pytest.mark.parametrize(("classes", "counts"), [(0, False), (1, True), (200, True), (201, False)])
def test_confusions_of_up_to_200_classes_are_counted(classes, counts):
    assert tasks.bind(recipes.Recipe(), outputs=classes).counts == counts
