"""Write a page that shows what a model learned and where it looks.

    python -m train.visualize --model=runs/digits --output=report
    python -m train.visualize --model=ViT-B_16.npz --images='images/*.jpg' --output=report

The model is the directory of a run, a `.keras` file, a checkpoint that keras_vit reads, or an exported model. The page,
report.html, needs no network. It shows accuracy, confusions, images with their predictions, mistakes first, and
attention. The figures are also written as SVG and PNG to figures/. Without --images, the images are those of the run's
evaluation split.
"""

import dataclasses
import os
import sys

import keras
import numpy as np
import tensorflow as tf
from absl import flags

import keras_vit.checkpoints as checkpoints_of_the_field
from keras_vit import data, evaluators, program
from keras_vit.data import preprocess
from keras_vit.inspection import examples, plots, report
from keras_vit.serving import artefacts, card, outputs, pictures, runs
from keras_vit.training import progress, run_directory

flags.DEFINE_string("model", None, "Directory of a run, .keras file, checkpoint, or exported model.")
flags.DEFINE_multi_string("images", [], "Image file, or a pattern such as 'images/*.jpg'. May be repeated.")
flags.DEFINE_string("output", None, "Directory for the page and the figures.")
flags.DEFINE_integer("num_images", 12, "Largest number of images on the page.", 1)
flags.DEFINE_integer("evaluated_images", 1000, "Largest number of images to measure the accuracy on.", 0)
flags.DEFINE_integer("distance_images", 64, "Largest number of images to average the attention distance over.", 1)
flags.DEFINE_string("preprocess", None, "Preprocessing string, if not that of the model.")
flags.DEFINE_enum("on_bad_image", None, ["error", "skip"], "Images that cannot be read; the run's recipe if not given.")
flags.DEFINE_string("title", None, "Title of the page; the model and its data if not given.")


def main(argv):
    options = flags.FLAGS
    if not options.model:
        raise ValueError(
            "--model is missing: the directory of a run, a .keras file, a checkpoint, or an exported model"
        )
    if not options.output:
        raise ValueError("--output is missing: the directory for the page and the figures.")
    plots.require_matplotlib()
    classifier = open_model(options.model)
    pp = options.preprocess or classifier.card["preprocess"]

    # Images, as the model takes them; those of a run have labels
    found, origin = find_images([*options.images, *argv[1:]], classifier.card, preprocess.single_image(pp))
    prepared = prepare(found.contents, pp)
    predict = classifier.predict if classifier.class_names else None
    probabilities = None if predict is None else np.concatenate([predict(image[None]) for image in prepared])
    results = evaluate(classifier, probabilities, found.labels)

    # The page
    chosen = examples.choose(options.num_images, probabilities, found.labels, len(prepared))
    path = report.write_report(
        options.output,
        options.title or title_of(options.model, classifier.card),
        [load_example(classifier, found, index, pp) for index in chosen],
        predict,
        classifier.class_names,
        model=getattr(classifier, "model", None),
        results=results,
        data=origin,
        card={name.replace("_", " "): value for name, value in classifier.card.items() if name != "image_shape"},
        metrics=metrics_of(classifier.path),
        distance_images=[prepared[index] for index in examples.spread(range(len(prepared)), options.distance_images)],
        progress=True,
    )
    sys.stdout.write(f"{path}\n")
    return 0


def open_model(path):
    """Open anything that predicts, with a model card."""
    is_directory_of_run = os.path.exists(os.path.join(path, run_directory.CONFIG)) and os.path.exists(
        os.path.join(path, run_directory.MODEL)
    )
    is_file_of_run = path.endswith(".keras") and os.path.exists(
        os.path.join(os.path.dirname(path), run_directory.CONFIG)
    )
    if artefacts.is_exported(path) or is_directory_of_run or is_file_of_run:
        return runs.open_classifier(path)
    if path.endswith(".keras") and os.path.isfile(path):
        model = keras.models.load_model(path, compile=False)  # made of any layers, with the user's own around them
    else:
        model = checkpoints_of_the_field.model_from_checkpoint(path)
    height, width, channels = model.input_shape[1:]
    size = (height or 224, width or 224)
    has_head = model.get_config().get("include_top", True) and len(model.output_shape) == 2
    activation = getattr(model.layers[-1], "activation", None)
    description = card.make(
        outputs.check_class_names(getattr(model, "class_names", ()), model.output_shape[-1]) if has_head else (),
        f"decode({channels})|resize({size})|value_range(-1, 1)",
        "sigmoid" if activation is keras.activations.sigmoid else "softmax",
        (*size, channels),
        architecture=type(model).__name__,
        parameters=model.count_params(),
        file=os.path.basename(os.path.normpath(path)),
        arguments=model.get_config(),
    )
    classifier = artefacts.KerasArtefact(model, description, path)
    if activation in (keras.activations.softmax, keras.activations.sigmoid):
        classifier.scores_are = "probabilities"
    return classifier


def find_images(patterns, description, prepare_one):
    """Return the images of the command line, else of the run's evaluation split, and where they come from."""
    options, recipe = flags.FLAGS, description.get("recipe", {}).get("data", {})
    limit = max(options.num_images, options.distance_images, options.evaluated_images)
    if patterns:
        found, origin = pictures.from_files(patterns, limit), ""
    else:
        if not recipe:
            raise ValueError("--images is missing: the model does not say what images it was trained on.")
        source = data.open_source(recipe["source"], split=recipe["eval_split"])
        found, origin = runs.from_source(source, limit), f"{recipe['eval_split']} split"
        if source.num_examples > limit:
            origin += f", {limit:,} of {source.num_examples:,} images"
    return pictures.keep_readable(
        found, prepare_one, options.on_bad_image or recipe.get("on_bad_image", "error")
    ), origin


def prepare(contents, pp):
    """Return the images as the model takes them. They may differ in size."""
    function = preprocess.single_image(pp)
    return [function(tf.constant(content)).numpy() for content in contents]


def evaluate(classifier, probabilities, labels):
    """Return the results on labeled images, or None if there is nothing to measure."""
    if probabilities is None or labels is None or not flags.FLAGS.evaluated_images:
        return None
    metrics = evaluators.ClassificationMetrics(
        len(classifier.class_names), classifier.card["output"], scores_are="probabilities"
    )
    metrics.update(probabilities, labels)
    return metrics.result()


def load_example(classifier, found, index, pp):
    """Return an image as people and as the model see it, with the attention that an exported model returns."""
    contents = found.contents[index]
    example = examples.load(contents, found.names[index], pp, None if found.labels is None else found.labels[index])
    if "attention" not in getattr(classifier, "signatures", ()):
        return example
    attention = classifier.run("attention", {"image_bytes": [contents]})["attention"][0]
    return dataclasses.replace(example, attention=attention)


def title_of(path, description):
    """Return a title without absolute paths, such as "ViT-B/16 on flowers"."""
    recipe = description.get("recipe", {})
    if not recipe:
        return os.path.basename(os.path.normpath(path))
    model, source = recipe["model"], recipe["data"]["source"]
    arguments, name = description["arguments"], model["variant"]
    if any(model.get(size) for size in ("hidden_size", "num_layers", "mlp_dim")):
        name = f"ViT of {arguments['num_layers']} layers"
    _, colon, place = source.partition("#")[0].partition(":")
    return f"{name} on {os.path.basename(os.path.normpath(place)) if colon and os.path.isabs(place) else source}"


def metrics_of(path):
    path = os.path.join(path if os.path.isdir(path) else os.path.dirname(path), run_directory.METRICS)
    return progress.read_metrics(path) if os.path.exists(path) else []


def run():
    program.run(main)


if __name__ == "__main__":
    run()
