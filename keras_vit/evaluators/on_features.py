"""Evaluators of features as recipes name them: each learns from the features of one split and tests on another.

The classes of the data need not be the network's. A source, split or preprocessing that is None is the subject's own.
"""

from collections.abc import Sequence

from absl import logging

from keras_vit.evaluators import arguments, fewshot, knn, linear_probe, vtab
from keras_vit.evaluators.result import Findings
from keras_vit.evaluators.subject import Subject


class _OnFeatures:
    def __init__(self, source, train_split, eval_split, pp):
        self.source, self.pp = arguments.text("source", source), arguments.text("pp", pp)
        self.train_split = arguments.text("train_split", train_split)
        self.eval_split = arguments.text("eval_split", eval_split)

    def splits(self, subject: Subject) -> list[tuple[str, str, str]]:
        """Source, split and preprocessing of what is learned from and of what is tested on."""
        source, pp = self.source or subject.source, self.pp or subject.pp
        splits = self.train_split or subject.train_split, self.eval_split or subject.eval_split
        return [(source, split, pp) for split in splits]

    def check(self, subject: Subject) -> None:
        subject.require_features()
        _check_places(subject, self.splits(subject))

    def __call__(self, subject: Subject) -> Findings:
        (train, num_classes), (test, _) = (subject.features_of(*place) for place in self.splits(subject))
        return Findings(self.evaluate(train, test, num_classes))


class FewShot(_OnFeatures):
    """Few-shot least squares, see `keras_vit.evaluators.fewshot`.

    Args:
        source: Data to learn from and test on.
        train_split: Where the shots are taken from.
        eval_split: What is tested on.
        pp: Preprocessing.
        shots: Numbers of examples a class, or one.
        l2: Regularisation.
        seeds: Number of draws.
    """

    def __init__(
        self, source=None, train_split=None, eval_split=None, pp=None, shots=fewshot.SHOTS, l2=fewshot.L2, seeds=3
    ):
        super().__init__(source, train_split, eval_split, pp)
        self.options = fewshot.check(shots, l2, seeds)

    def evaluate(self, train, test, num_classes):
        return fewshot.evaluate(train, test, num_classes, **self.options)


class Knn(_OnFeatures):
    """Nearest neighbours, see `keras_vit.evaluators.knn`.

    Args:
        source: Data to learn from and test on.
        train_split: The neighbours.
        eval_split: What is tested on.
        pp: Preprocessing.
        neighbours: Numbers of neighbours, or one.
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
        self.options = knn.check(neighbours, temperature)

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
        l2: Strengths of the regularisation to choose from, or one.
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
        self.options = linear_probe.check(solver, l2, max_iterations)

    def evaluate(self, train, test, num_classes):
        return linear_probe.evaluate(train, test, num_classes, **self.options)


class Vtab:
    """VTAB-1k on frozen features: a linear classifier a task, its regularisation chosen on the 200 validation examples.

    Fine-tuning, as the papers report it, is `train/vtab.py`; this is its cheap relative for use during training.

    Args:
        tasks: Names of tasks, or one; None for all nineteen.
        pp: Preprocessing; the benchmark squashes every image to one size.
        solver: "lbfgs" or "ridge".
        options: Of the sources, joined by `&`, such as `"data_dir='/data'&download=True"`.
    """

    def __init__(
        self, tasks: str | Sequence[str] | None = None, pp: str | None = None, solver: str = "lbfgs", options: str = ""
    ):
        if not isinstance(tasks, str | Sequence | None):
            raise ValueError(f"`tasks` must be names of tasks, or be left out for all. Received: tasks={tasks!r}.")
        self.tasks = vtab.TASKS if tasks is None else vtab.check_tasks([tasks] if isinstance(tasks, str) else tasks)
        if not self.tasks:
            raise ValueError(f"`tasks` must name a task, or be left out for all. Received: tasks={tasks!r}.")
        self.pp, self.solver = arguments.text("pp", pp), linear_probe.check(solver)["solver"]
        self.options = "" if options == "" else f"#{arguments.text('options', options)}"

    def splits(self, subject: Subject, task: str) -> list[tuple[str, str, str]]:
        """Source, split and preprocessing of what is learned from, validated and tested on."""
        splits = (vtab.TRAIN, vtab.VALIDATION, vtab.TEST)
        return [(f"vtab:{task}{self.options}", split, self.pp or subject.pp) for split in splits]

    def check(self, subject: Subject) -> None:
        """A task whose data are missing is listed in the results, and here already in the log."""
        subject.require_features()
        for task in self.tasks:
            try:
                _check_places(subject, self.splits(subject, task))
            except (OSError, ImportError) as error:
                logging.warning("The task %s will be missing: %s", task, _first_line(error))

    def __call__(self, subject: Subject) -> Findings:
        accuracies, missing = {}, {}
        for task in self.tasks:
            try:
                places = [subject.features_of(*place) for place in self.splits(subject, task)]
            except (OSError, ImportError) as error:
                missing[task] = _first_line(error)
                continue
            (train, num_classes), (validation, _), (test, _) = places
            result = linear_probe.evaluate(train, test, num_classes, self.solver, validation=validation)
            accuracies[task] = result["accuracy"]
        means = vtab.summarize(accuracies)
        del means["missing"]
        return Findings({**accuracies, **means}, missing)


def _check_places(subject, places):
    """Opens splits; their examples must have one class each, of the same classes."""
    opened = [subject.open_fitting(*place) for place in places]
    for place, split in zip(places, opened, strict=True):
        if split.multi_label:
            raise ValueError(f"One class an example is needed. Received: {place[0]!r}, whose examples have several.")
        if split.num_classes != opened[0].num_classes:
            raise ValueError(
                f"All splits must have the same classes. Received: {opened[0].num_classes} in {places[0][1]!r} and "
                f"{split.num_classes} in {place[1]!r} of {place[0]!r}."
            )


def _first_line(error):
    return (str(error) or type(error).__name__).splitlines()[0]
