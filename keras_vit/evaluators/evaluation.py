"""Evaluators, the predictor and data that they measure, and their results."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from absl import logging

from keras_vit import _checks
from keras_vit._metrics import Metric
from keras_vit.evaluators.dataset import Labeled, Split, collect, renumber
from keras_vit.zoo.labels import imagenet_classes

if TYPE_CHECKING:
    from keras_vit.inference import Predictor

COUNTS = {name: Metric(name) for name in ("examples", "non_finite")}


class NotMeasurable(ValueError):
    """The predictor lacks what an evaluator needs. Other evaluators may still run on it."""


@dataclasses.dataclass
class Context:
    """A predictor with its data. Features of a split are computed once for all evaluators.

    Attributes:
        predictor: Predictor to evaluate, see `keras_vit.inference.open_predictor`.
        open_split: Function of a source, a split and a preprocessing string to a `Split`, see `opener`.
        source: Data of evaluators that name none.
        train_split: Its split to learn from.
        eval_split: Its split to test on.

    Example:
    >>> predictor = keras_vit.inference.open_predictor("runs/digits")
    >>> context = Context(predictor, keras_vit.evaluators.opener(batch_size=100), source="digits")
    >>> context.output, context.image_shape
    ('softmax', (8, 8, 1))
    """

    predictor: "Predictor"
    open_split: Callable[[str, str, str], Split]
    source: str
    train_split: str = "train"
    eval_split: str = "test"
    _features: dict = dataclasses.field(default_factory=dict, init=False, repr=False)

    @property
    def output(self) -> str:
        """`"softmax"`, `"sigmoid"` or `"values"`, as the predictor was trained; see `ModelCard`."""
        return self.predictor.card.output

    @property
    def preprocess(self) -> str:
        """Preprocessing string of the predictor."""
        return self.predictor.card.preprocess

    @property
    def image_shape(self) -> tuple[int | None, ...]:
        """`(H, W, C)` that the predictor takes; a size is None if it takes any."""
        model = getattr(self.predictor, "model", None)
        return tuple(self.predictor.card.image_shape if model is None else model.input_shape[1:])

    def require_features(self) -> None:
        """Refuse a predictor that returns only scores, with `NotMeasurable`."""
        if self.predictor.features_unavailable:
            raise NotMeasurable(f"{self.predictor.features_unavailable}.")

    def features(self, source: str, split: str, pp: str) -> tuple[Labeled, int]:
        """Return features `[N, D]` and labels `[N]` of a split, and the number of classes."""
        self.require_features()
        key = (source, split, pp)
        if key not in self._features:
            opened = self.open_split(*key)
            self._features[key] = collect(self.predictor.features, opened.batches), opened.num_classes
        return self._features[key]

    def forget_features(self) -> None:
        """Forget the features that were computed: the weights of the predictor have changed."""
        self._features.clear()

    def open_fitting(
        self, source: str, split: str, pp: str, label_kinds: Sequence[str], outputs: Sequence[str] = ()
    ) -> Split:
        """Open a split. Refuse images that do not fit the predictor, other labels, and other outputs unless empty."""
        opened = self.open_split(source, split, pp)
        if opened.label_kind not in label_kinds or (outputs and self.output not in outputs):
            model = f" and a model whose output is {' or '.join(map(repr, outputs))}" if outputs else ""
            raise ValueError(
                f"Expected labels of the kind {' or '.join(map(repr, label_kinds))}{model}. Received: {source!r} with "
                f"labels of the kind {opened.label_kind!r}, and a model whose output is {self.output!r}. Choose an "
                "evaluator for this model and these data."
            )
        expected = self.image_shape
        if opened.image_shape is None:
            return opened
        pairs = list(zip(opened.image_shape, expected, strict=False))
        if len(opened.image_shape) != len(expected) or any(None not in (a, b) and a != b for a, b in pairs):
            raise ValueError(
                f"The model takes images of the shape {expected}. Received: {source!r} with "
                f"{tuple(opened.image_shape)} after {pp!r}: give another pp."
            )
        return opened

    def in_model_classes(self, opened: Split, part: np.ndarray | None = None) -> Split:
        """Return data whose labels are numbers of the model's classes, for one pass.

        Names decide, and images of classes that the model does not have do not count. Where data or model have numbers
        for names, the classes must be those of the model, or its classes `part`, in their order.
        """
        known, card = tuple(self.predictor.class_names or ()), self.predictor.card
        names = tuple(opened.class_names or map(str, range(opened.num_classes)))
        in_order = tuple(range(len(known or names)) if part is None or len(part) != len(names) else part.tolist())
        of_the_data = tuple(card.data.get("class_names", ()))  # that it was trained on, if it got other names
        imagenet = imagenet_classes(len(known)) if len(known) in (1000, 21_843) else ()
        identifiers = tuple(identifier for identifier, _ in imagenet) if known == tuple(n for _, n in imagenet) else ()
        numbers = np.asarray(_class_numbers(names, (known, of_the_data, identifiers), in_order) if known else in_order)
        whole = list(range(len(known or names)))
        if numbers.tolist() == whole:
            return opened
        if opened.label_kind == "classes" and sorted(numbers) != whole:
            shown = f"{_some(known)}. Received: {_some(names)}"
            raise ValueError(f"Data of several labels must have all of the model's {len(known)} classes: {shown}.")
        batches, originals = map(functools.partial(renumber, numbers), opened.batches), opened.originals
        count = len(known) or int(numbers.max()) + 1
        if originals is not None:
            opened = dataclasses.replace(
                opened, originals=lambda pp: map(functools.partial(renumber, numbers), originals(pp))
            )
        return dataclasses.replace(opened, batches=batches, num_classes=count, class_names=known or None)


@functools.lru_cache  # warnings are logged once
def _class_numbers(
    names: tuple[str, ...], known: tuple[tuple[str, ...], ...], in_order: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the number of the model's class for each class of the data, -1 for none; `known` are names of its classes.

    `in_order` are the numbers of classes without names.
    """
    shown = f"{_some(known[0])}. Received: {_some(names)}"
    for some in known:
        numbers = tuple(_checks.class_numbers(names, some).tolist())
        unknown = [name for name, number in zip(names, numbers, strict=True) if number < 0]
        moved = any(number not in (-1, place) for place, number in enumerate(numbers))
        if moved and names == tuple(map(str, range(len(names)))):  # data without names, or numbers as names
            raise ValueError(f"Names of classes are expected where those of the model are other numbers: {shown}.")
        if len(unknown) < len(names):
            if unknown:
                shown = _some(unknown)
                logging.warning("The model does not have these classes; their images are not counted: %s.", shown)
            return numbers
    if not any(all(name.removeprefix("LABEL_").isdecimal() for name in some) for some in (names, known[0])):
        raise ValueError(
            f"The data must have classes of the model: {shown}. Rename the classes of the data, or name the model's "
            "as they are named in the data: --labels=FILE, unless it is an artifact."
        )
    if len(names) != len(in_order):
        raise ValueError(f"The data must have the model's {len(known[0])} classes, not {len(names)}: {shown}.")
    logging.warning("The classes have other names than the model's and are compared by their numbers: %s.", shown)
    return in_order


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of an evaluator.

    Attributes:
        metrics: Numbers by name; None where a number is not available.
        missing: Data sets that are not available, with the reason.
        details: Arrays by name, such as a confusion matrix, which are too large for tables and curves.
        name: Name of the evaluator in its suite.
        not_measured: Why the evaluator could not run on this predictor; None if it ran.
        meanings: Direction and unit of each number by its name. `Suite` fills them in.

    Example:
    >>> Result({"accuracy": 0.75}).metrics["accuracy"]
    0.75
    """

    metrics: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    missing: Mapping[str, str] = dataclasses.field(default_factory=dict)
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    name: str = ""
    not_measured: str | None = None
    meanings: Mapping[str, Metric] = dataclasses.field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether there is at least one number."""
        return any(value is not None for value in self.metrics.values())

    def text(self, key: str) -> str:
        """Return a number with its unit."""
        return self.meanings.get(key, Metric(key)).text(self.metrics[key])


class Evaluator(abc.ABC):
    """A measurement of a predictor.

    Evaluators are dataclasses: their fields are the arguments that `Suite` accepts, and they check them when they are
    created.

    Attributes:
        name: Name in a `Suite`.
        metrics: Meanings of the numbers that are not fractions of which larger ones are better.

    Example:
    >>> @dataclasses.dataclass(kw_only=True)
    ... class ParameterCount(Evaluator):
    ...     name = "parameters"
    ...     metrics = {"parameters": Metric("parameters", larger_is_better=False)}
    ...
    ...     def measure(self, context):
    ...         return Result({"parameters": context.predictor.card.parameters})
    """

    name: ClassVar[str]
    metrics: ClassVar[Mapping[str, Metric]] = COUNTS

    def metric(self, key: str) -> Metric:
        """Return the meaning of a number of the result."""
        return self.metrics.get(key) or Metric(key, unit="%")

    def describe(self, result: Result, name: str = "") -> Result:
        """Return a result with the meaning of each number, and with the name `name` or that of the evaluator."""
        meanings = {key: self.metric(key) for key in result.metrics}
        return dataclasses.replace(result, name=name or self.name, meanings=meanings)

    @abc.abstractmethod
    def check(self, context: Context) -> None:
        """Open the data and refuse a predictor that does not fit them, or, by `NotMeasurable`, that lacks features."""

    @abc.abstractmethod
    def measure(self, context: Context) -> Result:
        """Run the predictor on the data and return the result."""


@dataclasses.dataclass(kw_only=True)
class SplitEvaluator(Evaluator):
    """Evaluator that tests on a split.

    Attributes:
        outputs: Outputs of the models that it measures, see `ModelCard`; empty for all.
        label_kinds: Kinds of labels that it takes, see `Split`.
        source, split, pp: Data to test on and their preprocessing string; None for those of the context.

    Example:
    >>> issubclass(keras_vit.evaluators.classification.Classification, SplitEvaluator)
    True
    """

    outputs: ClassVar[tuple[str, ...]] = ()
    label_kinds: ClassVar[tuple[str, ...]] = ("class",)
    source: str | None = None
    split: str | None = None
    pp: str | None = None

    def __post_init__(self):
        for name in ("source", "split", "pp"):
            _checks.optional_text(name, getattr(self, name))

    def place(self, context: Context) -> tuple[str, str, str]:
        """Return source, split and preprocessing string."""
        return self.source or context.source, self.split or context.eval_split, self.pp or context.preprocess

    def open(self, context: Context) -> Split:
        """Open the data, and refuse those that do not fit the predictor or the evaluator."""
        return context.open_fitting(*self.place(context), self.label_kinds, self.outputs)


Kind = TypeVar("Kind", bound=type[Evaluator])
EVALUATORS: dict[str, type[Evaluator]] = {}


def register(kind: Kind) -> Kind:
    """Make an evaluator available to `Suite` by its name: a decorator of the class.

    Example:
    >>> EVALUATORS["knn"]
    <class 'keras_vit.evaluators.knn.Knn'>
    """
    EVALUATORS[kind.name] = kind
    return kind
