"""Evaluators by name, on a predictor made of functions and arrays: no backend is needed."""

import dataclasses
import json
import re

import numpy as np
import pytest

from keras_vit import evaluators
from keras_vit.evaluators import Metric, class_subset, linear_probe, results_table, vtab
from keras_vit.evaluators.evaluation import SplitEvaluator
from tests.evaluators.synthetic import Data, batches_of, context


def test_every_evaluator_runs_by_name():
    suite = evaluators.Suite(["classification", "fewshot(shots=(1, 5))", "knn(neighbors=(1, 5))", "linear_probe"])
    data = Data()
    results = {result.name: result.metrics for result in suite.run(context(data))}
    assert results["classification"]["accuracy"] == 1.0
    assert results["classification"]["examples"] == 20
    assert set(results["fewshot"]) == {"1shot", "1shot_std", "5shot", "5shot_std"}
    assert results["knn"]["k5"] > 0.9
    assert results["linear_probe"]["accuracy"] > 0.9
    # Features of a split are computed once for the three that use them.
    assert data.asked == [("made-up", "test", "value_range"), ("made-up", "train", "value_range")] * 1 + [
        ("made-up", "test", "value_range")
    ]


def test_arguments_override_the_data_of_the_context():
    data = Data()
    evaluators.Suite(["knn(source='other', train_split='test', split='train', pp='resize', neighbors=[1])"]).run(
        context(data)
    )
    assert data.asked == [("other", "test", "resize"), ("other", "train", "resize")]


def test_features_are_reused_for_the_same_data_and_preprocessing():
    data = Data()
    others = ("pp='resize'", "source='other'", "split='train'")
    evaluators.Suite(["knn(neighbors=1)", *(f"knn(name={other[:2]!r}, neighbors=1, {other})" for other in others)]).run(
        context(data)
    )
    assert data.asked == [
        *[("made-up", split, "value_range") for split in ("train", "test")],
        *[("made-up", split, "resize") for split in ("train", "test")],
        *[("other", split, "value_range") for split in ("train", "test")],
    ]  # train and test of the fourth are the train of the first


def test_evaluators_run_at_their_intervals():
    suite = evaluators.Suite(["knn(every=10)", "fewshot", "knn(name='last', every=1000)"])
    often, seldom = (evaluators.Scheduled(suite, context(Data()), every=every) for every in (5, 0))
    assert often.intervals() == [10, 5, 1000] and seldom.intervals() == [10, 1000]
    assert often.due(5) == ["fewshot"]
    assert often.due(10) == ["knn", "fewshot"]
    assert seldom.due(30) == ["knn"]
    assert seldom.due(100, last=True) == ["knn", "fewshot", "last"]


def test_real_counts_any_true_label_and_skips_images_without_labels(tmp_path):
    scores = np.array([[9.0, 0, 0], [0, 9, 0], [0, 0, 9], [9, 0, 0], [np.nan, 0, 0]])
    sets = [[0, 2], [0], [2], [], [0]]
    batches = list(batches_of(scores, np.zeros(5, int), size=4))
    result = evaluators.imagenet_real.evaluate(lambda images: images, batches, sets)
    assert result == {"accuracy": 0.5, "examples": 4, "non_finite": 1}  # right, wrong, right, left out, NaN is wrong

    multi_hot = np.zeros((5, 3))
    for row, right in enumerate(sets):
        multi_hot[row, right] = 1
    assert evaluators.imagenet_real.evaluate(lambda images: images, batches_of(scores, multi_hot, size=4)) == result

    path = tmp_path / "real.json"
    path.write_text(json.dumps(sets))
    names = [f"val/n01440764/ILSVRC2012_val_{number:08}.JPEG" for number in (3, 1, 5)]
    labels = evaluators.imagenet_real.read_labels(str(path))
    assert labels == sets
    assert evaluators.imagenet_real.select(labels, names, "real.json") == [[2], [0, 2], sets[-1]]
    with pytest.raises(ValueError, match="must be named ILSVRC2012_val_00000001.JPEG"):
        evaluators.imagenet_real.select(labels, ["cat.jpg"], "real.json")
    with pytest.raises(ValueError, match="labels of 5 images. Received: an image of number 6"):
        evaluators.imagenet_real.select(labels, ["ILSVRC2012_val_00000006.JPEG"], "real.json")
    with pytest.raises(ValueError, match="for each of the 5 images. Received: 1"):
        evaluators.imagenet_real.evaluate(lambda images: images, batches, sets[:1])


def test_real_by_name_reads_the_file_and_the_names(tmp_path):
    path = tmp_path / "real.json"
    path.write_text(json.dumps([[0], [2]]))
    images = np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])  # image 2 is right, image 1 is wrong

    def open_split(source, split, pp):
        names = tuple(f"{source}/ILSVRC2012_val_{number:08}.JPEG" for number in (2, 1))
        return evaluators.EvaluationData(list(batches_of(images, np.zeros(2, int))), 3, names=names)

    suite = evaluators.Suite([f"real(source='folder:val', labels={str(path)!r})"])
    assert suite.run(context(open_split))[0].metrics == {"accuracy": 0.5, "examples": 2}


def test_subset_predictions_are_restricted_to_its_classes():
    assert len(class_subset.IMAGENET_A) == len(class_subset.IMAGENET_R) == 200
    assert all(sorted(set(some)) == list(some) and some[-1] < 1000 for some in class_subset.SUBSETS.values())

    # Class 1 has the best score, and is not in the subset (0, 2).
    scores = np.array([[1.0, 9.0, 0.0], [0.0, 9.0, 1.0]])
    whole = Data(test=(scores, np.array([0, 2])))  # labels among all three classes
    suite = evaluators.Suite(["subset(classes=(0, 2), source='tfds:part')"])
    assert suite.run(context(whole))[0].metrics == {"accuracy": 1.0, "top5": 1.0, "examples": 2}
    part = Data(num_classes=2, test=(scores, np.array([0, 1])))  # labels that count the classes of the subset
    assert suite.run(context(part))[0].metrics["accuracy"] == 1.0
    outside = Data(test=(scores, np.array([0, 1])))
    with pytest.raises(ValueError, match="Every label must be one of the 2 classes of the subset. Received: 1"):
        suite.run(context(outside))
    with pytest.raises(ValueError, match="3 classes has no class 988"):
        class_subset.restrict(lambda images: images, class_subset.check_classes("imagenet_r"))(scores)
    with pytest.raises(ValueError, match="A model of 3 classes has no class 3"):
        class_subset.restrict(lambda images: images, class_subset.check_classes((0, 3)))(scores)


def test_vtab_means_require_complete_groups():
    everything = {task: 0.5 for task in vtab.TASKS}
    assert len(vtab.TASKS) == 19 and [len(tasks) for tasks in vtab.GROUPS.values()] == [7, 4, 8]
    everything["svhn"] = 0.85
    summary = vtab.means(everything)
    assert summary["natural"] == pytest.approx(0.55)
    assert summary["specialized"] == summary["structured"] == 0.5
    assert summary["mean"] == pytest.approx((18 * 0.5 + 0.85) / 19)

    del everything["dmlab"]
    summary = vtab.means(everything)
    assert summary["natural"] == pytest.approx(0.55)
    assert summary["structured"] is None and summary["mean"] is None


def test_vtab_lists_missing_data(caplog):
    data = Data(train800=None, val200=None, train800val200=None)
    data.content |= {"train800": data.content["train"], "val200": data.content["test"]}

    def open_split(source, split, pp):
        if source == "vtab:dtd":
            raise FileNotFoundError("not prepared.\nAnd more.")
        if source == "vtab:pets":
            raise FileNotFoundError
        return data(source, split, pp)

    result = evaluators.Suite(["vtab(tasks=('svhn', 'dtd'))"]).run(context(open_split))[0]
    assert result.metrics["svhn"] > 0.9
    assert result.metrics["natural"] is None
    assert result.missing == {"dtd": "not prepared."} and "vtab: dtd is missing: not prepared." in caplog.messages
    assert "dtd          missing: not prepared." in results_table.table([result])
    assert result.measured
    nothing = evaluators.Suite(["vtab(tasks='dtd')"]).run(context(open_split))[0]
    assert not nothing.measured
    suite = evaluators.Suite(["vtab(tasks=('svhn', 'dtd'))"])
    suite.check(context(open_split))  # a long training begins without the data
    assert "The results will not contain the task dtd: not prepared." in caplog.messages
    (silent,) = evaluators.Suite(["vtab(tasks='pets')"]).run(context(open_split))
    assert silent.missing == {"pets": "FileNotFoundError"}


def test_vtab_arguments_are_passed_to_the_sources_and_the_classifier(monkeypatch):
    seen = []

    def evaluate(self, train, test, num_classes, validation):
        seen.append((self.solver, len(train[1]), len(test[1]), num_classes, len(validation[1])))
        return {"accuracy": 0.5}

    monkeypatch.setattr(linear_probe.LinearProbe, "evaluate", evaluate)
    data = Data()
    data.content |= {"train800": data.content["train"], "val200": tuple(part[:8] for part in data.content["test"])}
    evaluators.Suite(["vtab(tasks='svhn', solver='ridge', pp='resize', options='download=True')"]).run(context(data))
    assert data.asked == [("vtab:svhn#download=True", split, "resize") for split in ("train800", "val200", "test")]
    assert seen == [("ridge", 45, 20, 3, 8)]


def test_results_are_reported_in_tables():
    fewshot, classification, vtab = (evaluators.EVALUATORS[name]() for name in ("fewshot", "classification", "vtab"))
    numbers = {"accuracy": 0.9312, "loss": 0.25, "examples": 10_000}
    results = [
        fewshot.describe(evaluators.Result({"10shot": 0.5, "10shot_std": 0.01})),
        classification.describe(evaluators.Result(numbers), "test"),
        vtab.describe(evaluators.Result({"mean": None}, {"dtd": "not prepared"})),
        evaluators.Result(name="knn", not_measured="no features"),
    ]
    lines = results_table.table(results).splitlines()
    assert len({re.search(r"[0-9–](?=%| nats|$)", line).end() for line in lines[:6]}) == 1  # in columns
    assert [line.split() for line in lines] == [
        ["fewshot", "10shot", "50.00%"],
        ["10shot_std", "1.00%"],
        ["test", "accuracy", "93.12%"],
        ["loss", "0.25", "nats"],
        ["examples", "10,000"],
        ["vtab", "mean", "–"],
        ["dtd", "missing:", "not", "prepared"],
        ["knn", "not", "measured:", "no", "features"],
    ]
    assert json.loads(results_table.to_json(results)) == {
        "fewshot": {"10shot": 0.5, "10shot_std": 0.01},
        "test": {"accuracy": 0.9312, "loss": 0.25, "examples": 10_000},
        "vtab": {"mean": None, "missing": {"dtd": "not prepared"}},
        "knn": {"not_measured": "no features"},
    }
    assert results_table.table([]) == ""


def test_each_result_is_logged(caplog):
    caplog.set_level("INFO", "absl")
    evaluators.Suite(["knn(neighbors=(1, 5))"]).run(context(Data()))
    assert caplog.messages == ["knn: k1 100.00%, k5 100.00%"]


def test_every_metric_has_unit_and_direction():
    suite = evaluators.Suite(["classification(name='a/b')", "fewshot", "linear_probe", "vtab", "regression"])
    assert suite.metric("a/b/accuracy") == Metric("accuracy", unit="%")
    assert suite.metric("a/b/loss") == Metric("loss", larger_is_better=False, unit="nats")
    assert suite.metric("fewshot/5shot") == Metric("5shot", unit="%")
    assert suite.metric("fewshot/5shot_std") == Metric("5shot_std", larger_is_better=False, unit="%")
    assert suite.metric("linear_probe/l2").unit == suite.metric("a/b/examples").unit == ""
    assert suite.metric("vtab/mean").unit == "%"
    assert not suite.metric("regression/mae").larger_is_better and suite.metric("regression/r2").larger_is_better
    with pytest.raises(ValueError, match="evaluator 'knn' for the metric 'knn/k1'. Available: a/b"):
        suite.metric("knn/k1")
    (result,) = suite.run(context(Data()), ["a/b"])
    assert result.meanings == {key: suite.metric(f"a/b/{key}") for key in result.metrics}


def test_custom_evaluators_are_registered(monkeypatch):
    @dataclasses.dataclass(kw_only=True)
    class Sum(SplitEvaluator):
        name = "sum"
        metrics = {"pixels": evaluators.Metric("pixels", unit="gray levels")}

        def check(self, context):
            self.open(context)

        def measure(self, context):
            return evaluators.Result({"pixels": float(sum(b["image"].sum() for b in self.open(context).batches))})

    monkeypatch.setitem(evaluators.EVALUATORS, "sum", None)  # removed after the test
    assert evaluators.register(Sum) is Sum
    data = Data()
    suite = evaluators.Suite(["sum(source='other', split='train', pp='resize')"])
    suite.check(context(data))
    (result,) = suite.run(context(data))
    assert data.asked == [("other", "train", "resize")] * 2
    assert result.text("pixels").endswith(" gray levels")


def test_json_contains_details_and_null_for_nan():
    details = {"per_class": np.array([0.5, np.nan]), "confusion": np.eye(2, dtype=np.int64)}
    result = evaluators.Result({"loss": float("nan"), "ece": np.float32(np.inf)}, details=details, name="test")
    text = results_table.to_json([result])
    assert "NaN" not in text and "Infinity" not in text
    expected = {"loss": None, "ece": None, "per_class": [0.5, None], "confusion": [[1, 0], [0, 1]]}
    assert json.loads(text) == {"test": expected}


def test_models_without_features_are_evaluated_by_their_scores():
    without = context(Data(), features_unavailable="a file: take the run")
    suite = evaluators.Suite(["knn", "classification", "vtab"])
    suite.check(without)  # an evaluator that cannot run is not an error of the data
    with pytest.raises(ValueError, match="The evaluator 'other' cannot run: missing:a is not here"):
        evaluators.Suite(["knn", "classification(name='other', source='missing:a')"]).check(without)
    results = {result.name: result for result in suite.run(without)}
    assert results["classification"].metrics["accuracy"] == 1.0
    assert results["knn"].not_measured == results["vtab"].not_measured == "a file: take the run."
    assert results["knn"].metrics == {}


def test_classification_by_name_has_the_accuracy_of_each_class():
    (result,) = evaluators.Suite(["classification"]).run(context(Data()))
    np.testing.assert_array_equal(result.details["per_class"], [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(result.details["confusion"], np.diag([7, 7, 6]))
    assert all(np.isscalar(value) for value in result.metrics.values())
    order = ["accuracy", "accuracy_low", "accuracy_high", "chance", "largest_class", "balanced_accuracy", "macro_f1"]
    assert list(result.metrics) == [*order, "top5", "loss", "ece", "examples"]
    # The first row of each of three batches is not finite.
    bad = context(Data(), scores=lambda images: np.where(np.arange(len(images))[:, None] == 0, np.nan, images))
    (result,) = evaluators.Suite(["classification"]).run(bad)
    assert result.metrics["non_finite"] == 3
