"""The evaluators as recipes name them: each finds its data, computes, and returns (metrics, missing data).

`splits(subject)` tells which (source, split, preprocessing) an evaluator reads; a source, split or preprocessing that
is None is the subject's own.
"""

from collections.abc import Sequence

from keras_vit.evaluators import classification, fewshot, knn, linear_probe, real, subsets, vtab
from keras_vit.evaluators.subject import Subject


class Classification:
    """Accuracy, top-5 accuracy, loss and calibration of the scores.

    Args:
        source: Data to test on.
        split: Its split; the subject's `eval_split` if None.
        pp: Preprocessing.
    """

    def __init__(self, source: str | None = None, split: str | None = None, pp: str | None = None):
        self.source, self.split, self.pp = source, split, pp

    def splits(self, subject: Subject) -> list[tuple[str, str, str]]:
        return [(self.source or subject.source, self.split or subject.eval_split, self.pp or subject.pp)]

    def __call__(self, subject: Subject) -> tuple[dict, dict]:
        opened = subject.open_split(*self.splits(subject)[0])
        result = classification.evaluate(
            subject.predict,
            opened.batches,
            opened.num_classes,
            output=subject.output,
            scores_are=subject.scores_are,
        )
        wanted = ("accuracy", "top5", "loss", "ece", "examples", "mean_average_precision")
        return {name: result[name] for name in wanted if result[name] is not None}, {}


class Real(Classification):
    """ImageNet ReaL.

    Args:
        source: The validation images; with multi-hot labels (`"tfds:imagenet2012_real#label=real_label"`), or any with
            `labels`.
        split: Split of the source.
        pp: Preprocessing.
        labels: Path of `real.json`; the image files must then have ImageNet's names.
    """

    def __init__(self, source: str, split: str = "validation", pp: str | None = None, labels: str | None = None):
        super().__init__(source, split, pp)
        self.labels = labels

    def __call__(self, subject):
        opened = subject.open_split(*self.splits(subject)[0])
        if self.labels is None:
            return real.evaluate(subject.predict, opened.batches), {}
        if opened.names is None:
            raise ValueError(f"With labels= the images must be files with names. Received: source={self.source!r}.")
        return real.evaluate(subject.predict, opened.batches, real.read_labels(self.labels, opened.names)), {}


class Subset(Classification):
    """Accuracy on a test set that holds only some of the classes, among which alone the model may choose.

    Args:
        classes: `"imagenet_a"`, `"imagenet_r"` or class numbers.
        source: The test set; its classes are those of the subset in their order, or all of the model's.
        split: Split of the source.
        pp: Preprocessing.
    """

    def __init__(self, classes: str | Sequence[int], source: str, split: str = "test", pp: str | None = None):
        super().__init__(source, split, pp)
        self.classes = subsets.check_classes(classes)

    def __call__(self, subject):
        opened = subject.open_split(*self.splits(subject)[0])
        predict = subsets.restrict(subject.predict, self.classes)
        batches = opened.batches
        if opened.num_classes != len(self.classes):
            batches = (self._relabelled(batch) for batch in batches)
        result = classification.evaluate(
            predict, batches, len(self.classes), output=subject.output, scores_are=subject.scores_are
        )
        return {name: result[name] for name in ("accuracy", "top5", "examples")}, {}

    def _relabelled(self, batch):
        kept = batch["mask"] > 0
        return {
            "image": batch["image"][kept],
            "label": subsets.relabel(batch["label"][kept], self.classes),
            "mask": batch["mask"][kept],
        }


class _OnFeatures:
    """An evaluator that learns from the features of one split and tests on another."""

    def __init__(self, source, train_split, eval_split, pp):
        self.source, self.train_split, self.eval_split, self.pp = source, train_split, eval_split, pp

    def splits(self, subject: Subject) -> list[tuple[str, str, str]]:
        source, pp = self.source or subject.source, self.pp or subject.pp
        splits = self.train_split or subject.train_split, self.eval_split or subject.eval_split
        return [(source, split, pp) for split in splits]

    def __call__(self, subject: Subject) -> tuple[dict, dict]:
        (train, num_classes), (test, _) = (subject.features_of(*place) for place in self.splits(subject))
        return self.evaluate(train, test, num_classes), {}


class FewShot(_OnFeatures):
    """Few-shot least squares, see `keras_vit.evaluators.fewshot`.

    Args:
        source: Data to learn from and test on.
        train_split: Where the shots are taken from.
        eval_split: What is tested on.
        pp: Preprocessing.
        shots: Numbers of examples a class.
        l2: Regularisation.
        seeds: Number of draws.
    """

    def __init__(
        self, source=None, train_split=None, eval_split=None, pp=None, shots=fewshot.SHOTS, l2=fewshot.L2, seeds=3
    ):
        super().__init__(source, train_split, eval_split, pp)
        self.options = {"shots": tuple(shots), "l2": l2, "seeds": seeds}

    def evaluate(self, train, test, num_classes):
        return fewshot.evaluate(train, test, num_classes, **self.options)


class Knn(_OnFeatures):
    """Nearest neighbours, see `keras_vit.evaluators.knn`.

    Args:
        source: Data to learn from and test on.
        train_split: The neighbours.
        eval_split: What is tested on.
        pp: Preprocessing.
        neighbours: Numbers of neighbours.
        temperature: Of their votes.
    """

    def __init__(
        self,
        source=None,
        train_split=None,
        eval_split=None,
        pp=None,
        neighbours=knn.NEIGHBOURS,
        temperature=knn.TEMPERATURE,
    ):
        super().__init__(source, train_split, eval_split, pp)
        self.options = {"neighbours": tuple(neighbours), "temperature": temperature}

    def evaluate(self, train, test, num_classes):
        return knn.evaluate(train, test, num_classes, **self.options)


class LinearProbe(_OnFeatures):
    """A linear classifier, see `keras_vit.evaluators.linear_probe`.

    Args:
        source: Data to learn from and test on.
        train_split: What is learned from.
        eval_split: What is tested on.
        pp: Preprocessing.
        solver: "lbfgs" or "ridge".
        l2: Strengths of the regularisation to choose from.
        max_iterations: Of L-BFGS.
    """

    def __init__(
        self,
        source=None,
        train_split=None,
        eval_split=None,
        pp=None,
        solver="lbfgs",
        l2=None,
        max_iterations=linear_probe.MAX_ITERATIONS,
    ):
        super().__init__(source, train_split, eval_split, pp)
        self.options = {"solver": solver, "l2": l2, "max_iterations": max_iterations}

    def evaluate(self, train, test, num_classes):
        return linear_probe.evaluate(train, test, num_classes, **self.options)


class Vtab:
    """VTAB-1k on frozen features: a linear classifier a task, its regularisation chosen on the 200 validation examples.

    Fine-tuning, as the papers report it, is `train/vtab.py`; this is its cheap relative for use during training.

    Args:
        tasks: Names of tasks; None for all nineteen.
        pp: Preprocessing; the benchmark squashes every image to one size.
        solver: "lbfgs" or "ridge".
        options: Of the sources, joined by `&`, such as `"data_dir='/data'&download=True"`.
    """

    def __init__(
        self, tasks: Sequence[str] | None = None, pp: str | None = None, solver: str = "lbfgs", options: str = ""
    ):
        self.tasks = vtab.TASKS if tasks is None else vtab.check_tasks(tasks)
        self.pp, self.solver, self.options = pp, solver, f"#{options}" if options else ""

    def splits(self, subject: Subject) -> list[tuple[str, str, str]]:
        return []  # a task that is missing is listed in the results

    def __call__(self, subject: Subject) -> tuple[dict, dict]:
        accuracies, missing = {}, {}
        for task in self.tasks:
            try:
                places = [subject.features_of(f"vtab:{task}{self.options}", split, self.pp) for split in _VTAB_SPLITS]
            except (OSError, ImportError) as error:
                missing[task] = str(error).splitlines()[0]
                continue
            (train, num_classes), (validation, _), (test, _) = places
            result = linear_probe.evaluate(train, test, num_classes, self.solver, validation=validation)
            accuracies[task] = result["accuracy"]
        means = vtab.summarize(accuracies)
        del means["missing"]
        return {**accuracies, **means}, missing


_VTAB_SPLITS = (vtab.TRAIN, vtab.VALIDATION, vtab.TEST)
