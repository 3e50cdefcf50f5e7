"""Evaluators of scores as recipes name them: each finds its data and measures what the network answers.

`check(subject)` opens the data and compares its classes with the network's. A source, split or preprocessing that is
None is the subject's own.
"""

from collections.abc import Sequence

from keras_vit.evaluators import arguments, classification, real, subsets
from keras_vit.evaluators.result import Findings
from keras_vit.evaluators.subject import Split, Subject


class Classification:
    """Accuracy, top-5 accuracy, loss and calibration of the scores.

    Args:
        source: Data to test on.
        split: Its split; the subject's `eval_split` if None.
        pp: Preprocessing.
    """

    def __init__(self, source: str | None = None, split: str | None = None, pp: str | None = None):
        self.source = arguments.text("source", source)
        self.split, self.pp = arguments.text("split", split), arguments.text("pp", pp)

    def place(self, subject: Subject) -> tuple[str, str, str]:
        """Source, split and preprocessing."""
        return self.source or subject.source, self.split or subject.eval_split, self.pp or subject.pp

    def open(self, subject: Subject) -> Split:
        return subject.open_fitting(*self.place(subject))

    def check(self, subject: Subject) -> None:
        opened = self.open(subject)
        subject.check_classes(self.place(subject)[0], opened)
        self.check_labels(opened, subject)

    def check_labels(self, opened: Split, subject: Subject) -> None:
        if opened.multi_label and subject.output != "sigmoid":
            raise ValueError("Labels of several classes need a network that was trained with the sigmoid loss.")

    def __call__(self, subject: Subject) -> Findings:
        opened = self.open(subject)
        result = classification.evaluate(
            subject.predict,
            opened.batches,
            opened.num_classes,
            output=subject.output,
            scores_are=subject.scores_are,
        )
        details = {name: result[name] for name in ("non_finite", "per_class", "class_examples", "confusion")}
        return Findings(classification.numbers(result), details=details)


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
        self.labels = arguments.text("labels", labels)
        self.right = None if labels is None else real.read_labels(labels)

    def check(self, subject):
        opened = self.open(subject)
        if self.right is not None:
            self._labels_of(opened)
            if subject.class_names is not None:
                real.check_labels(self.right, len(subject.class_names), self.labels)
            return
        subject.check_classes(self.place(subject)[0], opened)
        if not opened.multi_label:
            raise ValueError(f"ReaL needs several labels an image, or labels=. Received: source={self.source!r}.")

    def _labels_of(self, opened):
        if opened.names is None:
            raise ValueError(f"With labels= the images must be files with names. Received: source={self.source!r}.")
        return real.select(self.right, opened.names, self.labels)

    def __call__(self, subject):
        opened = self.open(subject)
        labels = None if self.right is None else self._labels_of(opened)
        return Findings(real.evaluate(subject.predict, opened.batches, labels))


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

    def check(self, subject):
        opened = self.open(subject)
        if subject.class_names is not None:
            subsets.check_largest(self.classes, len(subject.class_names))
            subset = self.classes if opened.num_classes == len(self.classes) else None
            subject.check_classes(self.place(subject)[0], opened, subset)
        self.check_labels(opened, subject)

    def __call__(self, subject):
        opened = self.open(subject)
        predict = subsets.restrict(subject.predict, self.classes)
        batches = opened.batches
        if opened.num_classes != len(self.classes):
            batches = (self._relabelled(batch) for batch in batches)
        result = classification.evaluate(
            predict, batches, len(self.classes), output=subject.output, scores_are=subject.scores_are
        )
        return Findings({name: result[name] for name in ("accuracy", "top5", "examples")})

    def _relabelled(self, batch):
        kept = batch["mask"] > 0
        return {
            "image": batch["image"][kept],
            "label": subsets.relabel(batch["label"][kept], self.classes),
            "mask": batch["mask"][kept],
        }
