"""Shows what a model learned and where it looks: one page with pictures, predictions and figures.

    python -m train.visualize --model=runs/digits --output=report
    python -m train.visualize --model=ViT-B_16.npz --images='pictures/*.jpg' --output=report

Opens a run's directory, a `.keras` file, any checkpoint that keras_vit reads, and exported models as far as they allow.
Leaves report.html, which needs no network, and the figures as SVG and PNG in figures/. Without --images it takes
pictures of the run's evaluation split.
"""

import os
import sys

import keras
import numpy as np
import tensorflow as tf
from absl import flags

import keras_vit.checkpoints as checkpoints_of_the_field
from keras_vit import data, program
from keras_vit.data import parse, preprocess
from keras_vit.inspection import plots, report
from keras_vit.serving import artefacts, card, outputs, pictures, runs
from keras_vit.training import progress, run_directory

flags.DEFINE_string("model", None, "Directory of a run, .keras file, checkpoint, or SavedModel.")
flags.DEFINE_list("images", [], "Picture files, or patterns such as 'pictures/*.jpg'.")
flags.DEFINE_string("output", None, "Directory for the page and the figures.")
flags.DEFINE_integer("num_pictures", 8, "How many pictures the page shows at most.", 1)
flags.DEFINE_integer("distance_images", 64, "How many images the attention distance is averaged over.", 1)
flags.DEFINE_string("preprocess", None, "Preprocessing string, if not the model's own.")
flags.DEFINE_enum("on_bad_image", None, ["error", "skip"], "Images that cannot be read; the run's recipe if not given.")
flags.DEFINE_string("title", None, "Title of the page; the model's name if not given.")


def main(argv):
    options = flags.FLAGS
    if not options.model:
        raise ValueError("--model is missing: the directory of a run, a .keras file, a checkpoint or a SavedModel.")
    if not options.output:
        raise ValueError("--output is missing: the directory for the page and the figures.")
    plots.require_matplotlib()
    classifier = open_model(options.model)
    model = getattr(classifier, "model", None)
    description = classifier.card
    pp = options.preprocess or description["preprocess"]
    found, more = find_pictures(options, argv[1:], description, preprocess.single_image(pp))

    examples = make_examples(found, pp, classifier)
    prepared = [example.image for example in examples] + pictures_to_images(more, pp)
    path = report.write_report(
        options.output,
        options.title or title_of(options.model, description),
        examples,
        classifier.predict if classifier.class_names else None,
        classifier.class_names,
        model,
        card_of(description),
        metrics_of(classifier.path),
        prepared,
        progress=True,
    )
    sys.stdout.write(f"{path}\n")
    return 0


def open_model(path):
    """Opens whatever can predict, as an artefact with a card."""
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


def find_pictures(options, patterns, description, prepare):
    """Returns the pictures to show, and more images for the attention distance."""
    patterns = [*options.images, *patterns]
    recipe = description.get("recipe", {}).get("data", {})
    if patterns:
        found = pictures.from_files(patterns, max(options.num_pictures, options.distance_images))
    else:
        if not recipe:
            raise ValueError("--images is missing: the model does not say what pictures it was trained on.")
        source = data.open_source(recipe["source"], split=recipe["eval_split"])
        found = runs.from_source(source, max(options.num_pictures, options.distance_images))
    found = pictures.keep_readable(found, prepare, options.on_bad_image or recipe.get("on_bad_image", "error"))
    # Evenly spread, as data sets are often sorted by class.
    shown = np.unique(np.linspace(0, len(found.contents) - 1, options.num_pictures).round().astype(int)).tolist()
    others = [index for index in range(len(found.contents)) if index not in shown][
        : max(options.distance_images - len(shown), 0)
    ]
    return select(found, shown), select(found, others)


def select(found, indices):
    labels = None if found.labels is None else found.labels[indices]
    return pictures.Pictures([found.contents[i] for i in indices], labels, [found.names[i] for i in indices])


def pictures_to_images(found, pp):
    """Prepares pictures for the model; of images of several sizes each stays an array of its own."""
    prepare = preprocess.single_image(pp)
    return [prepare(tf.constant(contents)).numpy() for contents in found.contents]


def make_examples(found, pp, classifier):
    """Returns each picture as people see it, and as the model does."""
    calls = [call.text for call in parse.parse(preprocess.split(pp)[0], preprocess.OPS)]
    if not calls or not calls[0].startswith("decode"):
        calls.insert(0, "decode")
    decode = preprocess.host_function(calls[0])
    geometry = preprocess.host_function("|".join(calls[1:]))
    examples = []
    for index, (name, image) in enumerate(zip(found.names, pictures_to_images(found, pp), strict=True)):
        pixels = decode({"image": tf.constant(found.contents[index])})["image"].numpy()
        truth = None if found.labels is None else true_label(found.labels[index], classifier.class_names)
        name = os.path.basename(name) if os.path.exists(name) else name.replace(os.path.sep, "/").rpartition("/")[2]
        attention = None
        if "attention" in getattr(classifier, "signatures", ()):
            attention = classifier.run("attention", {"image_bytes": [found.contents[index]]})["attention"][0]
        examples.append(report.Example(name, pixels, image, seen_part(pixels.shape, geometry), truth, attention))
    return examples


def seen_part(shape, geometry):
    """Returns (top, left, bottom, right) of the part of a picture that preprocessing keeps, in pixels.

    It is found by preparing a picture whose values are the places of its pixels.

    Args:
        shape: Of the picture.
        geometry: The host's preprocessing after the decoding.
    """
    y, x = np.mgrid[: shape[0], : shape[1]].astype(np.float32) + 0.5
    places = np.stack([y, x, np.zeros_like(y)], axis=-1)
    seen = geometry({"image": tf.constant(places)})["image"].numpy().astype(np.float32)
    edges = []
    for values, side in ((np.median(seen[..., 0], axis=1), shape[0]), (np.median(seen[..., 1], axis=0), shape[1])):
        size = len(values)
        inner = slice(size // 4, max(size - size // 4, size // 4 + 1))  # borders are padded, or repeat the last pixel
        centres = np.arange(size)[inner] + 0.5
        step = (values[inner][-1] - values[inner][0]) / (len(centres) - 1) if len(centres) > 1 else side / size
        first = values[inner].mean() - step * centres.mean()
        edges.append((float(np.clip(first, 0, side)), float(np.clip(first + step * size, 0, side))))
    (top, bottom), (left, right) = edges
    return top, left, bottom, right


def true_label(label, class_names):
    """Returns the name of a label, or the names of several."""
    if np.ndim(label) == 0:
        return class_names[int(label)]
    return ", ".join(class_names[index] for index in np.flatnonzero(label)) or "none"


def title_of(path, description):
    recipe = description.get("recipe", {})
    if recipe:
        return f"{recipe['model']['variant']} on {without_folders(recipe['data']['source'])}"
    return os.path.basename(os.path.normpath(path))


def without_folders(source):
    """Returns the name of a data set, such as "flowers" of "folder:/home/me/flowers": a page may be passed on."""
    kind, colon, place = source.partition(":")
    return os.path.basename(os.path.normpath(place.partition("#")[0])) if colon and os.path.isabs(place) else source


def card_of(description):
    """The model card as the page shows it: short facts first, what is long folded."""
    hidden = {"image_shape"}
    return {name.replace("_", " "): value for name, value in description.items() if name not in hidden}


def metrics_of(path):
    path = os.path.join(path if os.path.isdir(path) else os.path.dirname(path), run_directory.METRICS)
    return progress.read_metrics(path) if os.path.exists(path) else []


def run():
    program.run(main)


if __name__ == "__main__":
    run()
