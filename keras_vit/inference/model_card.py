"""Model card: the description of a predictor, as JSON.

Each artifact has its own card, with the size and SHA-256 of each of its files. A card that does not match the files
raises an error, because the labels and the preprocessing of another export would silently give wrong predictions.
A card is not signed: it detects damage, but not an attack.
"""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit import outputs
from keras_vit.inference import formats, masks, preparation
from keras_vit.util import file_io, formatting
from keras_vit.util.values import Values

FILE_NAME = "model_card.json"
CUT = ".../"  # replaces the folders of an absolute path
EXPORT_AGAIN = "Export the artifact again to get a new card."


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """Description of a predictor.

    Attributes:
        class_names: Name of each class; empty for a model without classes.
        preprocess: Preprocessing string, from an encoded image to the input of the model.
        output: `"softmax"` or `"sigmoid"` for probabilities, `"values"` for numbers in the unit of the data, `"mask"`
            for the class of each pixel, or `"scores"` or `"features"` for raw outputs.
        image_shape: Shape of a preprocessed image, `(H, W, C)`.
        input_dtype: Dtype of the input, `"float32"` or `"uint8"`.
        precision: Precision of the weights, such as `"float32"` or `"int8"`.
        batch_size: Number of images per call; None for any number.
        max_pixels: Largest number of pixels of an image that the artifact accepts; 0 if the artifact takes only
            preprocessed images.
        architecture: Name of the model's class.
        arguments: Arguments of the model.
        parameters: Number of parameters.
        values: Names, means and standard deviations of the values; empty for a model without values.
        verification: Differences between the artifact and the model, measured during the export: the fields of
            `keras_vit.exporting.Comparison`.
        metrics: Last evaluation of the training run.
        data: Data set on which the model was trained.
        recipe: Recipe of the training run.
        versions: Versions of the packages that trained the model.
        weights: Name and downloaded commit of the model's weights, or of the initial weights of its run, such as
            `"hf:OWNER/NAME@COMMIT"`; empty if the weights came from a path.
        model_sha256: SHA-256 of the model's file. For several files, SHA-256 of their names and SHA-256s.
        bytes: Size of the artifact.
        files: Size and SHA-256 of each file of the artifact.
        run: Run directory of the model, which is not written to the file.

    Example:
    >>> card = ModelCard(("cat", "dog"), "decode|resize(32)|value_range(-1, 1)", "softmax", (32, 32, 3))
    >>> card.prepare([open("images/cat.png", "rb").read()]).shape
    (1, 32, 32, 3)
    """

    class_names: tuple[str, ...]
    preprocess: str
    output: str
    image_shape: tuple[int, int, int]
    input_dtype: str = "float32"
    precision: str = "float32"
    batch_size: int | None = None
    max_pixels: int = 0
    architecture: str = ""
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    parameters: int = 0
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    verification: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    weights: str = ""
    model_sha256: str = ""
    bytes: int = 0
    files: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    run: str = ""

    @property
    def kind(self) -> outputs.Output:
        """Kind of the output."""
        return outputs.of(self.output)

    @property
    def output_name(self) -> str:
        """Name of the artifact's output: `probabilities`, `values`, `mask`, `scores` or `features`."""
        return self.kind.output_name

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes or values, in the order of the outputs; empty for scores and features."""
        return self.class_names or tuple(self.values.get("names", ()))

    @property
    def has_independent_classes(self) -> bool:
        """Whether classes are decided independently: there is only one class, or an image may have several."""
        return len(self.class_names) == 1 or outputs.of(self.data.get("label_kind")).is_independent

    @property
    def reported_split(self) -> str:
        """Split of the data whose score a run reports."""
        return self.recipe_data.get("test_split") or self.recipe_data.get("eval_split", "test")

    @property
    def sha256(self) -> str:
        """SHA-256 of the names and hashes of the artifact's files, or of the model if there is no artifact."""
        listed = repr(sorted(self.files.items())).encode()
        return hashlib.sha256(listed).hexdigest() if self.files else self.model_sha256

    @property
    def recipe_data(self) -> Mapping[str, Any]:
        """Data section of the recipe; empty if the card has no recipe."""
        return self.recipe.get("data", {})

    def predictions(self, raw: Any) -> Any:
        """Convert raw outputs to predictions, see `Output.predictions`."""
        return self.kind.predictions(raw, self.values, self.image_shape[:2])

    def at_image_sizes(self, predictions: Any, contents: Sequence[Any]) -> Any:
        """Resize masks to the sizes of their encoded images. Other predictions stay unchanged."""
        if not self.kind.has_masks:
            return predictions
        masks.check_preprocess(self.preprocess)
        sizes = [masks.read_pixels(content, self.preprocess).shape[:2] for content in contents]
        return [masks.resized(prediction, size) for prediction, size in zip(predictions, sizes, strict=True)]

    def preprocess_function(self) -> Callable[[Any], Any]:
        """Return a TensorFlow function from an encoded image (scalar string) to the predictor's input."""
        from keras_vit.data import preprocess

        return preprocess.single_image(self.preprocess)

    def prepare(self, contents: Sequence[Any]) -> np.ndarray:
        """Preprocess encoded images to `[N, H, W, C]`."""
        return np.stack([preparation.image_function(self.preprocess)(content) for content in contents])

    def to_dict(self) -> dict[str, Any]:
        """Return the card as a dictionary for JSON, without empty optional fields."""
        content = dataclasses.asdict(self)
        return {name: value for name, value in content.items() if (value or name in _REQUIRED) and name != "run"}


_REQUIRED = ("class_names", "preprocess", "output", "image_shape", "files")
_OF_THE_RUN = ("arguments", "metrics", "data", "recipe", "versions")


def write(artifact: str, card: ModelCard) -> ModelCard:
    """Write the card of an artifact, which is a SavedModel directory or a file.

    Returns the written card, with the sizes and hashes of the files, and without folders of absolute paths.
    """
    files = {
        name: {"bytes": os.path.getsize(file), "sha256": file_io.sha256(file)}
        for name, file in parts_of(artifact).items()
    }
    # A shortened path cannot be opened, so programs cannot mistake other data with the same name for these data.
    of_the_run = {name: formatting.without_folders(getattr(card, name), CUT) for name in _OF_THE_RUN}
    card = dataclasses.replace(card, files=files, bytes=size_of(artifact), **of_the_run)
    file_io.write_json(path_of(artifact), card.to_dict())
    return card


def read(artifact: str) -> ModelCard:
    """Read the card of an artifact, which is a SavedModel directory or a file, and check the artifact's files.

    Raises:
        FileNotFoundError: If the card, or a file that it names, is missing.
        ValueError: If the card is damaged or incomplete, or belongs to other files.
    """
    path = path_of(artifact)
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"Expected the model card {path!r}, which contains the labels and the preprocessing. {EXPORT_AGAIN}"
        )
    content = file_io.read_json(path)
    problems = _problems(content)
    if problems:
        raise ValueError(f"The model card {path!r} is damaged: {'; '.join(problems)}. {EXPORT_AGAIN}")
    _check_files(path, content["files"], parts_of(artifact))
    known = {field.name for field in dataclasses.fields(ModelCard)} - {"run"}
    content = {name: value for name, value in content.items() if name in known}
    return ModelCard(**{**content, **{name: tuple(content[name]) for name in ("class_names", "image_shape")}})


def path_of(path: str) -> str:
    """Return the path of an artifact's card: `model.tflite` -> `model.tflite.json`, or a file in its directory."""
    return os.path.join(path, "assets.extra", FILE_NAME) if os.path.isdir(path) else f"{path}.json"


def parts_of(path: str) -> dict[str, str]:
    """Return the files of an artifact, except for its card, by their names in the card.

    The files include the warm-up requests of a SavedModel and the weights of an OpenVINO model.
    """
    if os.path.isdir(path):
        files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names if name[0] != "."]
        return {os.path.relpath(f, path).replace(os.sep, "/"): f for f in sorted(files) if f != path_of(path)}
    # Omit the stem of the names, so that a file can be renamed together with its card.
    stem, extension = os.path.splitext(path)
    known = formats.of_file(path)
    return {part: stem + part for part in (extension, *(known.parts if known else ()))}


def size_of(artifact: str) -> int:
    """Return the size of an artifact in bytes, without its card."""
    return sum(map(os.path.getsize, parts_of(artifact).values()))


def _problems(content: Mapping[str, Any]) -> list[str]:
    """Return the problems of a card, each as a clause."""
    optional = (field.name for field in dataclasses.fields(ModelCard) if field.default_factory is dict)
    kinds: dict[str, type] = dict.fromkeys(optional, dict)
    kinds |= {"class_names": list, "preprocess": str, "output": str, "image_shape": list}
    wrong = [name for name in _REQUIRED if name not in content]
    wrong += [name for name, kind in kinds.items() if not isinstance(content.get(name, kind()), kind)]
    if wrong:
        return [f"it lacks {', '.join(wrong)}"]
    problems = []
    if not all(isinstance(name, str) for name in content["class_names"]):
        problems.append("class_names must be strings")
    if content["output"] not in outputs.NAMES:
        problems.append(f"output must be one of {outputs.NAMES}, not {content['output']!r}")
    elif outputs.of(content["output"]).has_values:
        try:
            Values.from_dict(content.get("values", {}))
        except ValueError as error:
            problems.append(str(error))
    if len(content["image_shape"]) != 3 or not all(isinstance(size, int) for size in content["image_shape"]):
        problems.append(f"image_shape must be three integers, not {content['image_shape']!r}")
    return problems


def _check_files(path: str, expected: Mapping[str, Any], parts: Mapping[str, str]) -> None:
    """Raise an error if the sizes or hashes of an artifact's files differ from its card."""
    missing = [name for name in {**expected, **parts} if not os.path.isfile(parts.get(name, ""))]
    if missing:
        raise FileNotFoundError(f"The artifact of the model card {path!r} lacks its file {missing[0]!r}.")
    for name, file in parts.items():
        if expected.get(name) != {"bytes": os.path.getsize(file), "sha256": file_io.sha256(file)}:
            raise ValueError(
                f"The model card {path!r} does not belong to {file!r}: size or SHA-256 differ, so the file was "
                f"replaced or damaged after the export. {EXPORT_AGAIN}"
            )
