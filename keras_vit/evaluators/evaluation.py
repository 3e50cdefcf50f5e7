"""Base classes of evaluators, their context (a predictor and its data) and their results."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from keras_vit.evaluators.dataset import EvaluationData, Labeled, collect
from keras_vit.util import checks
from keras_vit.util.metrics import Metric

if TYPE_CHECKING:
    from keras_vit.inference import Predictor

COUNTS = {name: Metric(name) for name in ("examples", "non_finite")}


class NotMeasurable(ValueError):
    """The predictor lacks an output that an evaluator needs. Other evaluators may still measure the predictor."""


@dataclasses.dataclass
class Context:
    """A predictor with its data. The features of a split are computed once for all evaluators.

    Attributes:
        predictor: Predictor to evaluate, see `keras_vit.open_predictor`.
        open_split: Function from a source, a split and a preprocessing string to `EvaluationData`, see `split_opener`.
        source: Source for evaluators without their own source.
        train_split: Split for training classifiers on features.
        eval_split: Split for testing.

    Example:
    >>> predictor = keras_vit.open_predictor("runs/digits")
    >>> context = Context(predictor, keras_vit.evaluators.split_opener(batch_size=100), source="digits")
    >>> context.output, context.image_shape
    ('softmax', (8, 8, 1))
    """

    predictor: "Predictor"
    open_split: Callable[[str, str, str], EvaluationData]
    source: str
    train_split: str = "train"
    eval_split: str = "test"
    _features: dict = dataclasses.field(default_factory=dict, init=False, repr=False)

    @property
    def output(self) -> str:
        """Output of the predictor, such as `"softmax"`, `"sigmoid"` or `"values"`, see `ModelCard`."""
        return self.predictor.card.output

    @property
    def preprocess(self) -> str:
        """Preprocessing string of the predictor."""
        return self.predictor.card.preprocess

    @property
    def image_shape(self) -> tuple[int | None, ...]:
        """`(H, W, C)` of the predictor's input, with None for sides of any size."""
        model = getattr(self.predictor, "model", None)
        return tuple(self.predictor.card.image_shape if model is None else model.input_shape[1:])

    def require_features(self) -> None:
        """Raise `NotMeasurable` if the predictor does not return features."""
        if self.predictor.features_unavailable:
            raise NotMeasurable(f"{self.predictor.features_unavailable}.")

    def features(self, source: str, split: str, pp: str) -> tuple[Labeled, int]:
        """Return the features `[N, D]` and labels `[N]` of a split, and the number of classes."""
        self.require_features()
        key = (source, split, pp)
        if key not in self._features:
            opened = self.open_split(*key)
            self._features[key] = collect(self.predictor.features, opened.batches), opened.num_classes
        return self._features[key]

    def forget_features(self) -> None:
        """Discard the computed features, after a change of the predictor's weights."""
        self._features.clear()

    def open_fitting(
        self, source: str, split: str, pp: str, label_kinds: Sequence[str], outputs: Sequence[str] = ()
    ) -> EvaluationData:
        """Open a split, or raise a ValueError if its images, labels or outputs do not fit the predictor."""
        opened = self.open_split(source, split, pp)
        if opened.label_kind not in label_kinds or (outputs and self.output not in outputs):
            model = f" and a model whose output is {' or '.join(map(repr, outputs))}" if outputs else ""
            raise ValueError(
                f"Expected labels of the kind {' or '.join(map(repr, label_kinds))}{model}. Received: {source!r} with "
                f"labels of the kind {opened.label_kind!r}, and the output {self.output!r}. Choose another evaluator."
            )
        expected = self.image_shape
        if opened.image_shape is None:
            return opened
        pairs = list(zip(opened.image_shape, expected, strict=False))
        if len(opened.image_shape) != len(expected) or any(None not in (a, b) and a != b for a, b in pairs):
            raise ValueError(
                f"The model takes images of the shape {expected}. Received: {source!r} with "
                f"{tuple(opened.image_shape)} after {pp!r}. Pass another pp."
            )
        return opened


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of an evaluator.

    Attributes:
        metrics: Numbers by name, with None for numbers that are not available.
        missing: Data sets that are not available, with the reasons.
        details: Arrays by name that are too large for tables and curves, such as a confusion matrix.
        name: Name of the evaluator in its suite.
        not_measured: Reason why the evaluator could not measure this predictor; None if it did.
        meanings: Direction and unit of each number, by name. `Suite` fills them in.

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
        """Format a number with its unit."""
        return self.meanings.get(key, Metric(key)).text(self.metrics[key])


class Evaluator(abc.ABC):
    """Base class of evaluators, which measure a predictor.

    Evaluators are dataclasses. The fields of an evaluator are the arguments that `Suite` accepts, and its constructor
    checks them.

    Attributes:
        name: Name in a `Suite`.
        metrics: Meanings of the numbers in the results. Other numbers are fractions, and larger values are better.

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
        """Add the meaning of each number to a result, and the name, which is the evaluator's by default."""
        meanings = {key: self.metric(key) for key in result.metrics}
        return dataclasses.replace(result, name=name or self.name, meanings=meanings)

    @abc.abstractmethod
    def check(self, context: Context) -> None:
        """Open the data and check that the predictor fits.

        Raises:
            ValueError: If the predictor does not fit the data.
            NotMeasurable: If the predictor lacks an output that the evaluator needs, such as features.
        """

    @abc.abstractmethod
    def measure(self, context: Context) -> Result:
        """Run the predictor on the data and return the result."""


@dataclasses.dataclass(kw_only=True)
class SplitEvaluator(Evaluator):
    """Base class of evaluators that test on a split.

    Attributes:
        outputs: Supported outputs of models, see `ModelCard`; empty for all.
        label_kinds: Supported kinds of labels, see `EvaluationData`.
        source, split, pp: Test data and their preprocessing string. The context's by default.

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
            checks.optional_text(name, getattr(self, name))

    def data_choice(self, context: Context) -> tuple[str, str, str]:
        """Return source, split and preprocessing string."""
        return self.source or context.source, self.split or context.eval_split, self.pp or context.preprocess

    def open(self, context: Context) -> EvaluationData:
        """Open the data. Raise an error if the data do not fit the predictor or the evaluator."""
        return context.open_fitting(*self.data_choice(context), self.label_kinds, self.outputs)


Kind = TypeVar("Kind", bound=type[Evaluator])
EVALUATORS: dict[str, type[Evaluator]] = {}


def register(kind: Kind) -> Kind:
    """Register an evaluator class, so that `Suite` finds it by its name. Use this function as a decorator.

    Example:
    >>> EVALUATORS["knn"]
    <class 'keras_vit.evaluators.knn.Knn'>
    """
    EVALUATORS[kind.name] = kind
    return kind
