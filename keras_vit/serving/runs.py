"""From the directory of a training run to what the exports need: description, preprocessing, real pictures."""

import os

import numpy as np
import tensorflow as tf

import keras_vit.models  # noqa: F401  the class of a saved model must be known before it is loaded
from keras_vit import _io, data, training
from keras_vit.data import preprocess as preprocessing
from keras_vit.data import sources
from keras_vit.serving import artefacts, card, outputs, pictures
from keras_vit.training import run_directory


def describe(run: training.Run) -> dict:
    """The model card of a run: what it was trained on and how, its last metrics, its size and hash.

    Args:
        run: What `load_run` returned.
    """
    model = run.model
    class_names = outputs.check_class_names(run.class_names, model.output_shape[-1])
    preprocess = complete_preprocess(run.preprocess, model.input_shape[1:])
    image_shape = (*preprocessing.output_size(preprocess), model.input_shape[-1])
    return card.make(
        class_names,
        preprocess,
        run.output,
        image_shape,
        architecture=type(model).__name__,
        arguments=model.get_config(),
        parameters=model.count_params(),
        metrics=last_metrics(run.path),
        data={name: value for name, value in run.config["data"].items() if name != "class_names"},
        recipe=run.config["recipe"],
        versions=run.config.get("versions", {}),
        model_sha256=_sha256_of_model(run.path),
    )


def complete_preprocess(pp: str, input_shape: tuple[int | None, int | None, int]) -> str:
    """The preprocessing of pictures from anywhere, for a model that was trained on images of one size in arrays.

    Such a recipe neither decodes nor resizes. Both are added where they are missing; on an image of the model's size
    they change nothing.

    Args:
        pp: The recipe's evaluation preprocessing.
        input_shape: The model's `(height, width, channels)`; open sizes are None.

    Returns:
        A preprocessing string that begins with the encoded picture and ends with the model's input.
    """
    height, width, channels = input_shape
    host, device = preprocessing.split(pp)
    parts = [host] if host.startswith("decode") else [f"decode({channels})", host]
    complete = "|".join(part for part in (*parts, device) if part)
    if height is None or width is None:
        return complete
    try:
        preprocessing.output_size(complete)
    except ValueError:
        resize = f"resize(({height}, {width}), method='area')"  # of a larger picture every pixel counts
        complete = "|".join(part for part in (*parts, resize, device) if part)
    return complete


def open_classifier(path: str, num_threads: int | None = None) -> artefacts.Artefact:
    """Opens a run directory, a `.keras` file of one, or an exported artefact: from images to probabilities.

    Args:
        path: Any of these.
        num_threads: Threads of a TFLite file; None for all cores.
    """
    if artefacts.is_exported(path):
        return artefacts.open_artefact(path, num_threads)
    run = training.load_run(path)
    return artefacts.KerasArtefact(run.model, describe(run), run.path)


def preprocess_function(description: dict):
    """The preprocessing of a card: an encoded picture, or decoded pixels, to the classifier's input."""
    return preprocessing.single_image(description["preprocess"])


def verification_pictures(
    run: training.Run, limit: int, patterns: list[str] = (), split: str | None = None
) -> pictures.Pictures:
    """Real pictures: the user's own files, else some of the data set that the run was evaluated on.

    Args:
        run: The run.
        limit: How many at most.
        patterns: Files or glob patterns; empty for the run's data set.
        split: Split of the data set; None for the run's evaluation split.

    Raises:
        ValueError: If the data set is not there and no files are given.
    """
    if patterns:
        return pictures.from_files(list(patterns), limit)
    recipe = run.config["recipe"]["data"]
    try:
        source = data.open_source(recipe["source"], split=split or recipe["eval_split"])
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(
            "Expected real pictures to verify the artefact with. The data set of the run, "
            f"{recipe['source']!r}, cannot be opened here ({error}). Give pictures with --images='pictures/*.jpg'."
        ) from error
    return from_source(source, limit)


def from_source(source: sources.Source, limit: int) -> pictures.Pictures:
    """Encoded pictures of a data set, spread evenly over it, with their labels.

    Args:
        source: What `open_source` returned.
        limit: How many at most.
    """
    count = min(limit, source.num_examples)
    contents, labels, names = [], [], []
    for index, image, label in _examples(source, count):
        image = image if image.dtype == tf.string else tf.io.encode_png(image)
        contents.append(image.numpy())
        labels.append(label)
        names.append(source.origin(index) if isinstance(source, sources.FileSource) else f"{source.name} #{index}")
    return pictures.Pictures(contents, np.stack(labels), names)


def last_metrics(directory: str) -> dict:
    """The last line of a run's metrics that holds an evaluation; empty if there is none."""
    path = os.path.join(directory, run_directory.METRICS)
    lines, _ = _io.read_json_lines(path) if os.path.exists(path) else ([], 0)
    return next((line for line in reversed(lines) if "eval_accuracy" in line), {})


def _examples(source, count):
    if isinstance(source, sources.IndexedSource):
        for index in np.linspace(0, source.num_examples - 1, count).astype(int).tolist():
            example = source.fetch(tf.constant(index, tf.int64))
            yield index, example["image"], example["label"].numpy()
        return
    # A stream of records: the first ones.
    for index, example in enumerate(source.examples().take(count)):
        yield index, example["image"], example["label"].numpy()


def _sha256_of_model(directory):
    path = os.path.join(directory, run_directory.MODEL)
    return _io.sha256(path) if os.path.exists(path) else None
