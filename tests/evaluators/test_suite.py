"""Evaluators by name, on a subject made of functions and arrays: no backend is needed."""

import json

import numpy as np
import pytest

from keras_vit import evaluators
from keras_vit.evaluators import report, subsets, vtab


def batches_of(images, labels, size=8):
    """Full batches; the last is filled with rows of mask 0, as the pipeline does it."""
    for start in range(0, len(images), size):
        image, label = images[start : start + size], labels[start : start + size]
        missing = size - len(image)
        yield {
            "image": np.pad(image, ((0, missing), (0, 0))),
            "label": np.pad(label, ((0, missing),) + ((0, 0),) * (label.ndim - 1)),
            "mask": np.repeat([1.0, 0.0], [len(image), missing]),
        }


class Data:
    """An `open_split` of made-up data, that remembers what was asked of it."""

    def __init__(self, num_classes=3, count=45, **splits):
        rng = np.random.default_rng(0)
        labels = np.arange(count) % num_classes
        images = np.eye(num_classes)[labels] + 0.3 * rng.normal(size=(count, num_classes))
        self.content = {"train": (images, labels), "test": (images[:20], labels[:20]), **splits}
        self.num_classes, self.asked = num_classes, []

    def __call__(self, source, split, pp):
        self.asked.append((source, split, pp))
        if source.startswith("missing"):
            raise FileNotFoundError(f"{source} is not here.")
        images, labels = self.content[split]
        return evaluators.Split(list(batches_of(images, labels)), self.num_classes)


def subject(data, **changes):
    arguments = {
        "predict": lambda images: 5.0 * images,
        "features": lambda images: images,
        "open_split": data,
        "source": "made-up",
        "train_split": "train",
        "eval_split": "test",
        "pp": "value_range",
        **changes,
    }
    return evaluators.Subject(**arguments)


def test_every_evaluator_runs_by_name():
    suite = evaluators.Suite(["classification", "fewshot(shots=(1, 5))", "knn(neighbours=(1, 5))", "linear_probe"])
    data = Data()
    results = {result.name: result.metrics for result in suite.run(subject(data))}
    assert results["classification"]["accuracy"] == 1.0
    assert results["classification"]["examples"] == 20
    assert set(results["fewshot"]) == {"1shot", "1shot_std", "5shot", "5shot_std"}
    assert results["knn"]["k5"] > 0.9
    assert results["linear_probe"]["accuracy"] > 0.9
    # Features of a split are computed once for the three that use them.
    assert data.asked == [("made-up", "test", "value_range"), ("made-up", "train", "value_range")] * 1 + [
        ("made-up", "test", "value_range")
    ]


def test_arguments_override_the_subjects_data():
    data = Data()
    evaluators.Suite(["knn(source='other', train_split='test', eval_split='train', pp='resize', neighbours=[1])"]).run(
        subject(data)
    )
    assert data.asked == [("other", "test", "resize"), ("other", "train", "resize")]


def test_intervals():
    suite = evaluators.Suite(["knn(every=10)", "fewshot", "knn(name='last', every=1000)"])
    assert suite.intervals() == [10, 1000]
    assert suite.due(5, 100, every=5) == ["fewshot"]
    assert suite.due(10, 100, every=5) == ["knn", "fewshot"]
    assert suite.due(30, 100, every=0) == ["knn"]
    assert suite.due(100, 100, every=0) == ["knn", "fewshot", "last"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["few_shot"], "Unknown evaluator 'few_shot' in 'few_shot'. Did you mean 'fewshot'?"),
        (["fewshot(shot=(1,))"], "There is no argument 'shot' in .*Did you mean 'shots'?"),
        (["knn", "knn"], "Two evaluators are called 'knn'"),
        (["knn(neighbours=range(3))"], "neighbours is not a literal"),
        (["knn(1)"], "written name or name"),
        (["knn("], "written name or name"),
        (["__import__('os')"], "written name or name"),
        (["knn(every=0)"], "`every` must be an integer of at least 1"),
        (["vtab(tasks=('mnist',))"], "The tasks of VTAB are caltech101, .* Received: 'mnist'"),
        (["subset(classes='imagenet_b', source='x')"], "The subset must be one of imagenet_a, imagenet_r"),
    ],
)
def test_wrong_suites_are_refused(texts, message):
    with pytest.raises(ValueError, match=message):
        evaluators.Suite(texts)


def test_missing_data_is_found_before_the_training():
    suite = evaluators.Suite(["classification", "knn(source='missing:pets', name='pets')"])
    with pytest.raises(ValueError, match="The data of the evaluator 'pets' cannot be opened: missing:pets is not here"):
        suite.check(subject(Data()))


def test_scores_alone_are_not_enough_for_features():
    with pytest.raises(ValueError, match="needs the features before the head"):
        evaluators.Suite(["knn"]).run(subject(Data(), features=None))


def test_real_counts_any_right_label_and_leaves_out_images_without_one(tmp_path):
    scores = np.array([[9.0, 0, 0], [0, 9, 0], [0, 0, 9], [9, 0, 0], [np.nan, 0, 0]])
    sets = [[0, 2], [0], [2], [], [0]]
    batches = list(batches_of(scores, np.zeros(5, int), size=4))
    result = evaluators.real.evaluate(lambda images: images, batches, sets)
    assert result == {"accuracy": 0.5, "examples": 4}  # right, wrong, right, left out, NaN is wrong

    multi_hot = np.zeros((5, 3))
    for row, right in enumerate(sets):
        multi_hot[row, right] = 1
    assert evaluators.real.evaluate(lambda images: images, batches_of(scores, multi_hot, size=4)) == result

    path = tmp_path / "real.json"
    path.write_text(json.dumps(sets))
    names = [f"val/n01440764/ILSVRC2012_val_{number:08}.JPEG" for number in (3, 1)]
    assert evaluators.real.read_labels(str(path), names) == [[2], [0, 2]]
    with pytest.raises(ValueError, match="must be named ILSVRC2012_val_00000001.JPEG"):
        evaluators.real.read_labels(str(path), ["cat.jpg"])
    with pytest.raises(ValueError, match="labels of 5 images. Received: an image of number 6"):
        evaluators.real.read_labels(str(path), ["ILSVRC2012_val_00000006.JPEG"])
    with pytest.raises(ValueError, match="for each of the 5 images is expected. Received: 1"):
        evaluators.real.evaluate(lambda images: images, batches, sets[:1])


def test_real_by_name_reads_the_file_and_the_names(tmp_path):
    path = tmp_path / "real.json"
    path.write_text(json.dumps([[0], [2]]))
    images = np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])  # image 2 is right, image 1 is wrong

    def open_split(source, split, pp):
        names = tuple(f"{source}/ILSVRC2012_val_{number:08}.JPEG" for number in (2, 1))
        return evaluators.Split(list(batches_of(images, np.zeros(2, int))), 3, names=names)

    suite = evaluators.Suite([f"real(source='folder:val', labels={str(path)!r})"])
    assert suite.run(subject(open_split))[0].metrics == {"accuracy": 0.5, "examples": 2}


def test_subsets_only_choose_among_their_classes():
    assert len(subsets.IMAGENET_A) == len(subsets.IMAGENET_R) == 200
    assert all(sorted(set(some)) == list(some) and some[-1] < 1000 for some in subsets.SUBSETS.values())

    # Class 1 has the best score, and is not in the subset (0, 2).
    scores = np.array([[1.0, 9.0, 0.0], [0.0, 9.0, 1.0]])
    whole = Data(test=(scores, np.array([0, 2])))  # labels among all three classes
    suite = evaluators.Suite(["subset(classes=(0, 2), source='tfds:part')"])
    assert suite.run(subject(whole))[0].metrics == {"accuracy": 1.0, "top5": 1.0, "examples": 2}
    part = Data(num_classes=2, test=(scores, np.array([0, 1])))  # labels that count the classes of the subset
    assert suite.run(subject(part))[0].metrics["accuracy"] == 1.0
    outside = Data(test=(scores, np.array([0, 1])))
    with pytest.raises(ValueError, match="Every label must be one of the 2 classes of the subset. Received: 1"):
        suite.run(subject(outside))
    with pytest.raises(ValueError, match="Class 988 is wanted of a model of 3 classes"):
        subsets.restrict(lambda images: images, "imagenet_r")(scores)


def test_vtab_means_are_of_whole_groups_only():
    everything = {task: 0.5 for task in vtab.TASKS}
    assert len(vtab.TASKS) == 19 and [len(tasks) for tasks in vtab.GROUPS.values()] == [7, 4, 8]
    everything["svhn"] = 0.85
    summary = vtab.summarize(everything)
    assert summary["natural"] == pytest.approx(0.55)
    assert summary["specialized"] == summary["structured"] == 0.5
    assert summary["mean"] == pytest.approx((18 * 0.5 + 0.85) / 19)
    assert summary["missing"] == ()

    del everything["dmlab"]
    summary = vtab.summarize(everything)
    assert summary["natural"] == pytest.approx(0.55)
    assert summary["structured"] is None and summary["mean"] is None
    assert summary["missing"] == ("dmlab",)
    with pytest.raises(ValueError, match="Received: 'mnist'"):
        vtab.summarize({"mnist": 1.0})


def test_vtab_lists_what_is_missing():
    data = Data(train800=None, val200=None, train800val200=None)
    data.content |= {"train800": data.content["train"], "val200": data.content["test"]}

    def open_split(source, split, pp):
        if source == "vtab:dtd":
            raise FileNotFoundError("not prepared.\nAnd more.")
        return data(source, split, pp)

    result = evaluators.Suite(["vtab(tasks=('svhn', 'dtd'))"]).run(subject(open_split))[0]
    assert result.metrics["svhn"] > 0.9
    assert result.metrics["natural"] is None
    assert result.missing == {"dtd": "not prepared."}
    assert "missing" in report.table([result])


def test_reports():
    results = [
        evaluators.Result("fewshot", {"10shot": 0.5, "10shot_std": 0.01}),
        evaluators.Result("test", {"accuracy": 0.9312, "loss": 0.25, "examples": 10_000}),
        evaluators.Result("vtab", {"mean": None}, {"dtd": "not prepared"}),
    ]
    lines = report.table(results).splitlines()
    assert len({len(line) for line in lines}) == 1  # in columns
    assert [line.split() for line in lines] == [
        ["fewshot", "10shot", "50.00"],
        ["10shot_std", "1.00"],
        ["test", "accuracy", "93.12"],
        ["loss", "0.25"],
        ["examples", "10,000"],
        ["vtab", "mean", "-"],
        ["dtd", "missing"],
    ]
    assert report.markdown_row("ViT-B/16", results).splitlines() == [
        "| model | fewshot 10shot | test accuracy | test loss | test examples | vtab mean |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| ViT-B/16 | 50.00 ± 1.00 | 93.12 | 0.25 | 10,000 | - |",
    ]
    assert json.loads(report.to_json(results)) == {
        "fewshot": {"10shot": 0.5, "10shot_std": 0.01},
        "test": {"accuracy": 0.9312, "loss": 0.25, "examples": 10_000},
        "vtab": {"mean": None, "missing": {"dtd": "not prepared"}},
    }
    assert report.table([]) == ""
