"""Classes of the data are matched to those of the model by name, in any order, number and Unicode form."""

import unicodedata

import numpy as np
import pytest

from keras_vit import evaluators
from keras_vit.evaluators import results_table
from keras_vit.util import checks
from keras_vit.zoo.labels import imagenet_classes
from tests.evaluators.synthetic import batches_of, context, predictor

KNOWN = ("apple", "kiwi", "plum")


def measured(names, known=KNOWN, truth=None, evaluator="classification", card=None, **changes):
    """The result on two images of each class, where the model's predictions are right if it has the class.

    `truth` are the names that the model has for the classes of the data, if they are not equal.
    """
    numbers = [list(known).index(name) if name in known else 0 for name in truth or names]
    images, labels = np.repeat(np.eye(len(known))[numbers], 2, axis=0), np.repeat(np.arange(len(names)), 2)
    images, labels = np.concatenate([images, images[:1]]), np.concatenate([labels, labels[:1]])  # not full batches
    data = evaluators.EvaluationData(list(batches_of(images, labels)), len(names), class_names=tuple(names))
    where = context(lambda *_: data, class_names=known, **changes)
    vars(where.predictor.card).update(card or {})
    suite = evaluators.Suite([evaluator])
    suite.check(where)
    return suite.run(where)[0]


@pytest.mark.parametrize(
    ("names", "truth", "examples"),
    [
        (("kiwi", "plum", "zucchini"), None, [0, 3, 2]),  # compared by number, a third was right
        (("plum", "kiwi", "apple"), None, [2, 2, 3]),
        (("kiwi", "plum"), None, [0, 3, 2]),
        (("plum",), None, [0, 0, 3]),
        (("apple", "avocado", "kiwi", "plum"), None, [3, 2, 2]),
        (("Plum", "KIWI"), ("plum", "kiwi"), [0, 2, 3]),
    ],
)
def test_classes_are_matched_by_name(names, truth, examples, caplog):
    result = measured(names, truth=truth)
    assert result.metrics["accuracy"] == 1.0 and result.metrics["examples"] == sum(examples)
    assert result.details["class_examples"].tolist() == examples
    np.testing.assert_array_equal(result.details["confusion"], np.diag(examples))
    unknown = sorted({"zucchini", "avocado"} & set(names))
    assert [name for name in ("zucchini", "avocado") if name in caplog.text] == unknown
    assert caplog.text.count("their images are not counted") == len(unknown)  # by the check, and not again by the run
    assert results_table.to_json([result])


def test_class_names_in_another_unicode_form_match():
    known = ("mzzz", "mûre", "noix")
    names = [unicodedata.normalize("NFD", name) for name in ("noix", "mûre")]
    result = measured(names, known, truth=("noix", "mûre"))
    assert result.metrics["accuracy"] == 1.0 and result.details["class_examples"].tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    ("names", "known", "found"),
    [
        (("b", "a", "c"), ("a", "b"), [1, 0, -1]),
        (("a", "A"), ("A", "a"), [1, 0]),  # the same case comes first
        (("STRASSE",), ("straße",), [0]),
        (("crane", "crane", "dog"), ("crane", "crane", "dog"), [0, 1, 2]),  # ImageNet has two classes of this name
        ((), ("a",), []),
        (("e\u0301", "x"), ("É",), [0, -1]),
    ],
)
def test_class_numbers_are_found_by_name(names, known, found):
    assert checks.class_numbers(names, known).tolist() == found


@pytest.mark.parametrize(
    ("names", "known"),
    [(("APPLE",), ("Apple", "apple")), (("apple", "Apple"), ("apple",)), (("crane",), ("crane",) * 2)],
)
def test_ambiguous_class_names_are_refused(names, known):
    with pytest.raises(ValueError, match="must differ in more than their case.*Rename"):
        checks.class_numbers(names, known)


def test_subset_classes_are_matched_by_name():
    """The best score is of a class outside of the subset."""
    scores = np.array([[1.0, 9.0, 0.0], [0.0, 9.0, 1.0], [0.0, 9.0, 1.0]])
    for names, labels in (
        (("plum", "apple"), [1, 0, 0]),
        (("apple", "plum"), [0, 1, 1]),
        (("plum", "fig", "apple"), [2, 0, 1]),
    ):
        data = evaluators.EvaluationData(list(batches_of(scores, np.array(labels))), len(names), class_names=names)
        where = context(lambda *_, data=data: data, class_names=KNOWN)
        result = evaluators.Suite(["subset(classes=(0, 2), source='x')"]).run(where)[0]
        assert result.metrics["accuracy"] == 1.0 and result.metrics["examples"] == (2 if "fig" in names else 3)


def test_multi_label_classes_in_another_order_are_matched_by_name():
    names, labels = ("kiwi", "plum", "apple"), np.array([[0, 1, 1], [1, 0, 0]])
    scores = np.array([[3.0, -3.0, 2.0], [-2.0, 1.0, -1.0]])  # of apple, kiwi, plum
    data = evaluators.EvaluationData(list(batches_of(scores, labels)), 3, "classes", class_names=names)
    suite = evaluators.Suite(["classification", "real(source='x', split='test')"])
    where = context(lambda *_: data, class_names=KNOWN, output="sigmoid")
    suite.check(where)
    first, real = suite.run(where)
    assert (first.metrics["mean_average_precision"], real.metrics["accuracy"]) == (1.0, 1.0)
    assert first.details["class_examples"].tolist() == [1, 1, 1]


def test_model_with_renamed_classes_matches_the_names_of_its_training_data():
    """`--class_names` gave the model names to print, and its own data were refused or compared by number."""
    printed = ("Granny Smith", "Chinese gooseberry", "Reine Claude")
    result = measured(("plum", "kiwi"), printed, truth=printed[:0:-1], card={"data": {"class_names": list(KNOWN)}})
    assert result.details["class_examples"].tolist() == [0, 2, 3]


@pytest.mark.parametrize("subset", [False, True])
def test_wordnet_identifiers_of_imagenet_folders_match_class_names(subset):
    identifiers, labels = zip(*imagenet_classes(1000), strict=True)
    numbers = [6, 11, 13, 988]  # also of ImageNet-A
    evaluator = "subset(classes='imagenet_a', source='x')" if subset else "classification"
    result = measured([identifiers[n] for n in numbers], labels, [labels[n] for n in numbers], evaluator)
    assert result.metrics["accuracy"] == 1.0 and result.metrics["examples"] == 9


@pytest.mark.parametrize("known", [("0", "1", "2"), ("LABEL_0", "LABEL_1", "LABEL_2")])
def test_numeric_class_names_are_compared_by_number(known, caplog):
    result = measured(("x", "y", "z"), known, truth=known)
    assert result.metrics["accuracy"] == 1.0 and "compared by their numbers" in caplog.text
    with pytest.raises(ValueError, match="must have the model's 3 classes, not 2"):
        measured(("v", "w"), known, truth=known[:2])


def test_numbers_that_differ_from_the_indices_are_class_names():
    """Data without names have the names 0, 1 and 2. The classes 1, 2 and 3 of a model may be the same or others."""
    with pytest.raises(ValueError, match="must have class names: 1, 2, 3. Received: 0, 1, 2"):
        measured(("0", "1", "2"), ("1", "2", "3"))
    assert measured(("3", "5"), tuple("0123456789")).details["class_examples"].tolist() == [0, 0, 0, 3, 0, 2, *[0] * 4]
    assert measured(("0", "1", "2", "3"), ("0", "1", "2")).metrics["examples"] == 7


def test_classes_of_a_model_without_class_names_are_compared_by_number():
    assert predictor().class_names == ()
    data = evaluators.EvaluationData(list(batches_of(np.eye(3), np.arange(3))), 3, class_names=("x", "y", "z"))
    assert evaluators.Suite(["classification"]).run(context(lambda *_: data))[0].metrics["accuracy"] == 1.0
