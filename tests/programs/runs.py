"""A finished run."""

import json

import tensorflow as tf

from keras_vit import data, models, recipe
from keras_vit.training import run_directory
from tests import small_classifier as small


def write_digits_run(directory, output="softmax", seed=0, **arguments):
    """Leaves what a training run on the digits leaves, with random weights; returns the model."""
    source, test = data.open_source("digits", "train"), data.open_source("digits", "test")
    network = models.VisionTransformer(
        **{
            "patch_size": 4,
            "hidden_size": 16,
            "num_layers": 1,
            "num_heads": 2,
            "mlp_dim": 32,
            "image_size": 8,
            "channels": 1,
            "classes": 10,
            **arguments,
        }
    )
    small.randomize(network, seed)
    directory.mkdir(parents=True, exist_ok=True)
    run_directory.save_model(network, str(directory))
    recipe_used = recipe.Recipe(
        data=recipe.Data(source="digits", pp_train="value_range(-1, 1)", pp_eval="value_range(-1, 1)"), loss=output
    )
    description = {
        "name": source.name,
        "class_names": list(source.class_names),
        "num_classes": 10,
        "num_train": source.num_examples,
        "num_eval": test.num_examples,
        "multi_label": False,
    }
    run_directory.write_config(str(directory), recipe_used, description)
    entry = {"step": 5, "split": "test", "eval_accuracy": 0.5, "eval_loss": 1.0, "examples": 360}
    (directory / "metrics.jsonl").write_text(json.dumps({"step": 4, "loss": 2.0}) + "\n" + json.dumps(entry) + "\n")
    return network


def digit_files(tmp_path, source, count=3):
    """Write the first images of a source as PNG files; returns their paths."""
    paths = []
    for index in range(count):
        paths.append(tmp_path / f"digit_{index}.png")
        paths[-1].write_bytes(tf.io.encode_png(source.images[index]).numpy())
    return paths
