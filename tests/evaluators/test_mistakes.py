"""Mistakes in evaluators and their data: found when a suite is made or checked, before training."""

import json
import re

import pytest

from keras_vit import evaluators
from tests.evaluators.synthetic import Data, context

KNOWN = ("ape", "bee", "cat")


class Named(Data):
    """Data whose classes have names, and whose images have a shape."""

    def __init__(self, *class_names, image_shape=(3,), label_kind="class"):
        super().__init__(len(class_names))
        self.class_names, self.image_shape, self.label_kind = class_names, image_shape, label_kind

    def __call__(self, source, split, pp):
        opened = super().__call__(source, split, pp)
        opened.class_names, opened.image_shape = self.class_names, self.image_shape
        opened.label_kind = self.label_kind
        return opened


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["few_shot"], "(?s)evaluator 'few_shot'.*Did you mean 'fewshot'?"),
        (["fewshot(shot=(1,))"], "(?s)argument 'shot' of 'fewshot'.*Did you mean 'shots'?"),
        (["knn", "knn"], "Two evaluators are called 'knn'"),
        (["knn(neighbors=range(3))"], "(?s)not a literal.*neighbors="),
        (["knn(neighbors={[]: 1})"], "(?s)not a literal.*neighbors="),
        (["knn(1)"], "wrong arguments of 'knn'"),
        (["knn|knn(name='b')"], "Expected one evaluator"),
        ([""], "Expected one evaluator"),
        (["knn("], "(?s)Error in the evaluator.*knn"),
        (["__import__('os')"], "evaluator '__import__'"),
        (["knn(every=0)"], "`every` must be an integer of at least 1"),
        (["knn(source=5)"], "`source` must be a string"),
        (["knn(name=5)"], "`name` must be a string"),
        (["knn(name='')"], "`name` must be a string that is not empty"),
        (["knn(temperature=0)"], "`temperature` must be a finite number above 0"),
        (["knn(temperature='warm')"], "`temperature` must be a finite number above 0"),
        (["knn(neighbors=(5, -1))"], "`neighbors` must be an integer of at least 1"),
        (["knn(neighbors='5')"], "`neighbors` must be an integer of at least 1"),
        (["fewshot(shots=(0,))"], "`shots` must be an integer of at least 1. Received: shots=0"),
        (["fewshot(shots=())"], "`shots` must be a number or several"),
        (["fewshot(l2=0)"], "`l2` must be a finite number above 0"),
        (["fewshot(seeds=0)"], "`seeds` must be an integer of at least 1"),
        (["fewshot(seeds=(1, -1))"], "`seeds` must be an integer of at least 1"),
        (["linear_probe(solver='lbfgz')"], "`solver` must be one of 'lbfgs', 'ridge'.*Did you mean 'lbfgs'"),
        (["linear_probe(l2=-1)"], "`l2` must be a finite number at least 0"),
        (["linear_probe(solver='ridge', l2=(1, 0))"], "`l2` must be a finite number above 0"),
        (["vtab(solver='sgd')"], "`solver` must be one of"),
        (["vtab(tasks=())"], "`tasks` must be names of tasks"),
        (["vtab(tasks=5)"], "`tasks` must be names of tasks"),
        (["vtab(options=0)"], "`options` must be a string"),
        (["vtab(tasks=('mnist',))"], "There is no task 'mnist' in VTAB. Available: caltech101"),
        (["real"], "'real'.*'source'"),
        (["real(source='x', labels='/nowhere/real.json')"], "cannot be read from '/nowhere/real.json'"),
        (["subset(classes=(0, 1))"], "'source'"),
        (["subset"], "'source'"),
        (["subset(classes=(0.5, 1), source='x')"], "classes must be different integers"),
        (["subset(classes='imagenet_b', source='x')"], "The subset must be one of imagenet_a, imagenet_r"),
    ],
)
def test_wrong_suites_are_refused(texts, message):
    with pytest.raises(ValueError, match=message):
        evaluators.Suite(texts)


@pytest.mark.parametrize("content", ["no json", "{}", "[1]", '[["cat"]]', "[[-1]]", "[[true]]"])
def test_files_that_are_not_labels_of_real_are_rejected(content, tmp_path):
    (tmp_path / "real.json").write_text(content)
    with pytest.raises(ValueError, match=r"real\.json"):
        evaluators.Suite([f"real(source='x', labels={str(tmp_path / 'real.json')!r})"])


def test_scalars_are_accepted_in_place_of_tuples():
    suite = evaluators.Suite(["knn(neighbors=5)", "fewshot(shots=2, seeds=1)", "vtab(tasks='svhn')"])
    assert suite.evaluators["knn"].neighbors == (5,)
    assert suite.evaluators["fewshot"].shots == (2,)
    assert suite.evaluators["vtab"].tasks == ("svhn",)
    content = Data().content
    train, test = content["train"], content["test"]
    assert set(evaluators.fewshot.FewShot(shots=2).evaluate(train, test, 3)) == {"2shot", "2shot_std"}
    assert set(evaluators.knn.Knn(neighbors=5).evaluate(train, test, 3)) == {"k5"}


def test_missing_data_of_an_evaluator_are_reported():
    suite = evaluators.Suite(["classification", "knn(source='missing:pets', name='pets')"])
    with pytest.raises(ValueError, match="The evaluator 'pets' cannot run: missing:pets is not here"):
        suite.check(context(Data()))


@pytest.mark.parametrize("evaluator", ["classification", "subset(classes=(0, 1, 2), source='x')"])
@pytest.mark.parametrize(
    ("class_names", "message"),
    [
        (("dog", "eel", "fox"), "must have classes of the model: ape, bee, cat. Received: dog, eel, .*--class_names"),
        (("ape", "APE"), r"differ in more than their case.*\['ape', 'APE'\]"),
        (("0", "1"), "must have the model's 3 classes, not 2: ape, bee, cat. Received: 0, 1"),
    ],
)
def test_data_with_other_classes_than_the_model_are_refused(evaluator, class_names, message):
    suite = evaluators.Suite([evaluator])
    with pytest.raises(ValueError, match=message):
        suite.check(context(Named(*class_names), class_names=KNOWN))
    suite.check(context(Named(*KNOWN), class_names=KNOWN))


def test_numbers_of_unnamed_classes_are_compared():
    evaluators.Suite(["classification"]).check(context(Data(3), class_names=KNOWN))
    with pytest.raises(ValueError, match="must have the model's 3 classes"):
        evaluators.Suite(["classification"]).check(context(Data(4), class_names=KNOWN))


def test_feature_evaluators_accept_any_classes():
    suite = evaluators.Suite(["knn", "fewshot", "linear_probe"])
    suite.check(context(Named("dog", "cat"), class_names=KNOWN))


def test_differing_numeric_class_names_are_logged(caplog):
    evaluators.Suite(["classification"]).check(context(Named("1", "2", "3"), class_names=KNOWN))
    assert (
        "other names than the model's and are compared by their numbers: ape, bee, cat. Received: 1, 2, 3"
        in caplog.text
    )


def test_multi_label_data_must_have_all_classes():
    suite = evaluators.Suite(["classification"])
    for names in (("ape", "bee"), ("ape", "bee", "dog")):
        with pytest.raises(
            ValueError, match="with several labels must have all of the model's 3 classes: ape, bee, cat. Received: ape"
        ):
            suite.check(context(Named(*names, label_kind="classes"), class_names=KNOWN, output="sigmoid"))


def test_subset_of_unknown_classes_is_refused():
    suite = evaluators.Suite(["subset(classes=(0, 2), source='x')"])
    for names in (("ape", "cat"), ("cat", "ape"), ("Cat", "dog")):
        suite.check(context(Named(*names), class_names=KNOWN))
    with pytest.raises(ValueError, match="3 classes has no class 988"):
        evaluators.Suite(["subset(classes='imagenet_r', source='x')"]).check(context(Named(*KNOWN), class_names=KNOWN))


@pytest.mark.parametrize(
    ("evaluator", "data", "message"),
    [
        ("classification", Named(*KNOWN, label_kind="classes"), "need a model that was trained with the sigmoid loss"),
        ("knn", Named(*KNOWN, label_kind="classes"), "of the kind 'class'. Received: .* of the kind 'classes'"),
        ("subset(classes=(0, 1), source='x')", Named(*KNOWN, label_kind="classes"), "of the kind 'class' and a model"),
        ("real(source='x', split='test')", Named(*KNOWN), "needs several labels per image, or labels="),
        ("knn(pp='resize(5)')", Named(*KNOWN, image_shape=(5,)), r"shape \(3,\). Received: .* \(5,\) after 'resize"),
    ],
)
def test_data_of_another_label_kind_or_image_size_are_refused(evaluator, data, message):
    suite = evaluators.Suite([evaluator])
    with pytest.raises(ValueError, match=message):
        suite.check(context(data, class_names=KNOWN, image_shape=(3,)))


def test_feature_splits_of_different_classes_are_refused():
    def open_split(source, split, pp):
        return Data(3 if split == "train" else 2)(source, split, pp)

    with pytest.raises(ValueError, match="must have the same classes. Received: 3 in 'train' and 2 in 'test'"):
        evaluators.Suite(["knn"]).check(context(open_split))

    def in_another_order(source, split, pp):
        return Named(*(KNOWN if split == "train" else reversed(KNOWN)))(source, split, pp)

    with pytest.raises(ValueError, match="must have the same classes. Received: 3 in 'train' and 3 in 'test'"):
        evaluators.Suite(["knn"]).check(context(in_another_order))


@pytest.mark.parametrize(
    ("shape", "fits"),
    [((4, 8, 3), True), ((4, None, 3), True), ((None, None, 3), True), ((8, 4, 3), False), ((4, 8), False)],
)
@pytest.mark.parametrize("expected", [(4, 8, 3), (4, None, 3)])
def test_images_of_another_size_are_refused(shape, fits, expected):
    """A side that is not known until an image is read fits any side."""
    where = context(Named(*KNOWN, image_shape=shape), image_shape=expected)
    if fits:
        evaluators.Suite(["knn"]).check(where)
    else:
        with pytest.raises(ValueError, match=re.escape(f"shape {expected}. Received: 'made-up' with {shape} after")):
            evaluators.Suite(["knn"]).check(where)


@pytest.mark.parametrize(
    ("known", "shown"), [("abcde", "a, b, c, d, e. Received: u, v"), ("abcdef", "a, b, c, d, e, .... Received: u, v")]
)
def test_messages_list_at_most_five_classes(known, shown):
    with pytest.raises(ValueError, match=re.escape(shown)):
        evaluators.Suite(["classification"]).check(context(Named("u", "v"), class_names=tuple(known)))


def test_labels_of_real_beyond_the_classes_are_refused(tmp_path):
    path = tmp_path / "real.json"
    path.write_text(json.dumps([[0], [3]]))
    suite = evaluators.Suite([f"real(source='x', split='test', labels={str(path)!r})"])

    def open_split(source, split, pp):
        return evaluators.EvaluationData([], 3, names=("ILSVRC2012_val_00000002.JPEG",))

    with pytest.raises(ValueError, match="contains the class 3, which a model of 3 classes does not have"):
        suite.check(context(open_split, class_names=KNOWN))
    suite.check(context(open_split, class_names=tuple("abcd")))
    with pytest.raises(ValueError, match="must be files with names"):
        suite.check(context(Data()))
