"""Write a page with a model's results, sample predictions and attention maps.

    keras-vit visualize --model=runs/digits --output=report
    keras-vit visualize --model=ViT-B_16.npz --images='images/*.jpg' --output=report

The model is the directory of a run, a `.keras` file, a checkpoint that keras_vit reads, or an exported model. The page,
report.html, does not need a network. The page contains the accuracy, confusions and attention, and images with their
predictions (mistakes first) or masks (lowest mIoU first). The figures are also written as SVG and PNG to figures/.
Without --images, the images come from the evaluation split of the run.
"""

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from keras_vit import cli
from keras_vit.cli import common_flags

common_flags.define_model_flags()
common_flags.define_images_flag("for the page")
common_flags.define_output_flag("Directory for the page and the figures.")
flags.DEFINE_integer("num_images", 12, "Maximum number of images on the page.", 1)
flags.DEFINE_integer("evaluated_images", 1000, "Maximum number of images for the accuracy.", 0)
flags.DEFINE_integer("distance_images", 64, "Maximum number of images for the mean attention distance.", 1)
common_flags.define_on_bad_image_flag()
flags.DEFINE_string("title", None, "Title of the page; by default the model and its data.")

with cli.imports(__name__):
    import numpy as np
    import tensorflow as tf

    from keras_vit import evaluators
    from keras_vit import recipe as recipes
    from keras_vit.data import preprocess
    from keras_vit.evaluators import classification, regression, segmentation
    from keras_vit.inference import ModelCard, Predictor, open_predictor, sample_images
    from keras_vit.inspection import _inputs, examples, plots
    from keras_vit.inspection.headings import run_title
    from keras_vit.runs import run_directory
    from keras_vit.util import image_files
    from keras_vit.util.formatting import as_number
    from keras_vit.util.metrics import is_correct, segmentation_scores
    from keras_vit.util.progress import Progress, track

    from .report import reconstructions, report


@cli.published("output")
def main(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    if not options.output:
        raise ValueError("--output is missing: the directory for the page and the figures.")
    image_files.check_local(argv[1:])
    plots.require_matplotlib()
    predictor = open_predictor(options.model, **common_flags.model_options())
    pp = predictor.card.preprocess

    # Images in the format of the model's input; only images of a run have labels
    encoded = tf.TensorSpec([], tf.string)
    prepare_one = tf.function(preprocess.single_image(pp), input_signature=[encoded], autograph=False)
    found, origin = find_images([*options.images, *argv[1:]], predictor.card, prepare_one)
    prepared = [prepare_one(content).numpy() for content in track(found.contents, "Preparing")]
    is_mask = predictor.card.kind.has_masks
    predict = predictor.predict if predictor.class_names and not is_mask else None
    measured = bool(predictor.card.names)
    if is_mask:
        found = found._replace(labels=masks_as_seen(found, predictor.card))
    outputs = None
    if measured:
        with Progress("Predicting", len(prepared)) as bar:
            parts = []
            for batch in _inputs.batches(prepared, 16):  # images may differ in size
                parts.append(predictor.predict(batch))
                bar.add(len(batch))
        outputs = np.concatenate(parts)
    results = evaluate(predictor, outputs, found.labels)
    if not measured:
        found = found._replace(labels=None)  # the model has no class names

    # The page
    directory = predictor.path if os.path.isdir(predictor.path) else os.path.dirname(predictor.path)
    right, confidence = None, None
    if predict is not None and outputs is not None and found.labels is not None:
        right, confidence = is_correct(outputs.argmax(axis=-1), found.labels), outputs.max(axis=-1)
    chosen = examples.choose(options.num_images, right, confidence, len(prepared))
    if is_mask and outputs is not None and found.labels is not None:
        chosen = np.argsort(image_scores(outputs, found.labels, predictor), kind="stable")[
            : options.num_images
        ].tolist()
    distance_images = [prepared[index] for index in examples.spread(range(len(prepared)), options.distance_images)]
    path = report.write_report(
        options.output,
        options.title or title_of(options.model, predictor.card),
        [load_example(predictor, found, index, pp, None if predict else outputs) for index in chosen],
        predict,
        predictor.class_names,
        model=getattr(predictor, "model", None),
        results=results,
        data=origin,
        card=card_of(predictor),
        metrics=run_directory.read_metrics(directory),
        quantities=recipes.parse_task(predictor.card.recipe.get("task", "classification")).metrics[:2],
        distance_images=distance_images,
        reconstructions=reconstruct(predictor, [prepared[index] for index in chosen], pp),
        progress=True,
        note=note_of(directory, predictor.card),
    )
    sys.stdout.write(f"{path}\n")
    return 0


def find_images(
    patterns: Sequence[str], description: ModelCard, prepare_one: Callable[[tf.Tensor], tf.Tensor]
) -> tuple[sample_images.SampleImages, str]:
    """Return the images of the command line, or by default of the run's evaluation split, and their origin."""
    options, recipe = flags.FLAGS, description.recipe_data
    limit = max(options.num_images, options.distance_images, options.evaluated_images)
    on_bad_image = options.on_bad_image or recipe.get("on_bad_image", "error")
    if patterns:
        found, origin = sample_images.from_files(patterns, limit, on_bad_image), ""
    else:
        if not recipe:
            raise ValueError("--images is missing: the data set that the model was trained on is not known.")
        source = sample_images.open_data(description)
        found, origin = (
            sample_images.from_source(source, limit, on_bad_image, description),
            f"{description.reported_split} split",
        )
        if source.num_examples > limit:
            origin += f", {limit:,} of {source.num_examples:,} images"
    return sample_images.keep_readable(found, prepare_one, on_bad_image), origin


def evaluate(predictor: Predictor, outputs: np.ndarray | None, labels: np.ndarray | None) -> evaluators.Result | None:
    """Return the results on labeled images, or None if there is nothing to measure."""
    if outputs is None or labels is None or not flags.FLAGS.evaluated_images:
        return None
    if predictor.card.kind.has_values:
        names = predictor.card.values["names"]
        return regression.Regression().describe(regression.to_result(labels, outputs, names))
    if predictor.card.kind.has_masks:
        confusion = np.sum(confusions(outputs, labels, predictor), axis=0)
        ignore = segmentation.ignored(predictor.card)
        result = segmentation.to_result(confusion, len(labels), predictor.class_names, ignore=ignore)
        return segmentation.Segmentation().describe(result)
    metrics = evaluators.ClassificationMetrics(
        len(predictor.class_names), predictor.card.output, scores_are="probabilities"
    )
    metrics.update(outputs, labels)
    return classification.Classification().describe(classification.to_result(metrics.result()))


def masks_as_seen(found: sample_images.SampleImages, card: ModelCard) -> np.ndarray | None:
    """Return the true masks, preprocessed like the images, with -1 for ignored pixels; None without masks."""
    if found.labels is None:
        return None
    ignore = segmentation.ignored(card)
    count = len(card.class_names)
    pairs = zip(found.contents, found.labels, strict=True)
    seen = np.stack([examples.mask_as_seen(content, mask, card.preprocess, count) for content, mask in pairs])
    return seen if ignore == 255 else np.where(seen == ignore, -1, seen)


def confusions(outputs: np.ndarray, labels: np.ndarray, predictor: Predictor) -> list[np.ndarray]:
    """Return the confusion matrix of the pixels of each image."""
    pairs = zip(labels, outputs, strict=True)
    return [segmentation.count(true, predicted, len(predictor.class_names)) for true, predicted in pairs]


def image_scores(outputs: np.ndarray, labels: np.ndarray, predictor: Predictor) -> list[float]:
    """Return the mIoU of each image."""
    ignore = segmentation.ignored(predictor.card)
    return [segmentation_scores(confusion, ignore)["miou"] for confusion in confusions(outputs, labels, predictor)]


def load_example(
    predictor: Any, found: sample_images.SampleImages, index: int, pp: str, outputs: np.ndarray | None = None
) -> examples.Example:
    """Return an image before and after preprocessing, with the mask, values or attention that the model returns."""
    contents, label = found.contents[index], None if found.labels is None else found.labels[index]
    if outputs is None:
        example = examples.load(contents, found.names[index], pp, label)
    elif predictor.card.kind.has_masks:
        example = examples.load(contents, found.names[index], pp)
        ignore = segmentation.ignored(predictor.card)
        example = dataclasses.replace(example, mask=label, predicted=outputs[index], ignore=ignore)
    else:
        example = examples.load(contents, found.names[index], pp)
        example = dataclasses.replace(example, values=values_of(predictor.card, outputs[index], label))
    if "attention" not in getattr(predictor, "signatures", ()):
        return example
    attention = predictor.run("attention", {"image_bytes": [contents]})["attention"][0]
    return dataclasses.replace(example, attention=attention)


def values_of(card: ModelCard, predicted: np.ndarray, true: np.ndarray | None) -> list[tuple[str, str]]:
    """Return the name of each value with the predicted number and, if known, the true number."""
    texts = [as_number(float(value)) for value in predicted]
    if true is not None:
        texts = [f"{text}, true {as_number(float(value))}" for text, value in zip(texts, true, strict=True)]
    return list(zip(card.names, texts, strict=True))


def reconstruct(predictor: Predictor, images: Any, pp: str) -> Any:
    """Return the reconstructions of a pre-trained run without labels; None for other models."""
    whole, recipe = getattr(predictor, "whole_model", None), predictor.card.recipe
    if whole is None or not recipe:
        return None
    return reconstructions.reconstruct(whole, recipes.from_dict(dict(recipe)), np.stack(images), pp)


def card_of(predictor: Predictor) -> dict[str, Any]:
    """Return the entries of the model card for the page."""
    hidden = ("image_shape", "files")
    return {name.replace("_", " "): value for name, value in predictor.card.to_dict().items() if name not in hidden}


def note_of(directory: str, description: ModelCard) -> str:
    """Return a sentence about the checkpoint of a run that the page shows, or an empty text for the last step."""
    checkpoint, total = flags.FLAGS.checkpoint, description.recipe.get("total_steps")
    step = int(checkpoint) if (checkpoint or "").isdecimal() else description.metrics.get("step")
    if not total or step is None or (checkpoint is None and step == total):
        return ""
    finished = run_directory.is_finished(directory)
    return f"The page shows step {step:,} of {total:,}." + ("" if finished else " The run is not finished.")


def title_of(path: str, description: ModelCard) -> str:
    """Return a title without absolute paths, such as "ViT-B/16 on flowers"."""
    return run_title(description.recipe) if description.recipe else os.path.basename(os.path.normpath(path))


if __name__ == "__main__":
    cli.run(main)
