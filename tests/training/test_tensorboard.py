"""TensorBoard events: what TensorBoard finds in them, read with TensorFlow."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data, recipe
from keras_vit.training import errors, metrics, run_data, tensorboard


def values(directory):
    """The values of all events in a directory by tag: lists of (step, plugin, content, value)."""
    found = {}
    for path in sorted(directory.glob("events*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                plugin = value.metadata.plugin_data
                entry = event.step, plugin.plugin_name, plugin.content, tf.make_ndarray(value.tensor)
                found.setdefault(value.tag, []).append(entry)
    return found


def test_training_and_evaluation_share_their_tags(tmp_path):
    writer = metrics.MetricsWriter(str(tmp_path), step=0)
    writer.write(2, {"loss": 0.5, "accuracy": 0.25, "grad_norm": 1.0})
    writer.write(2, {"split": "test", "eval_accuracy": 0.75, "eval_loss": 0.125, "examples": 8})
    writer.write(2, {"knn/k1": 0.5})
    writer.close()
    train, evaluation = (values(tmp_path / "tensorboard" / kind) for kind in ("train", "eval"))
    assert {"loss", "accuracy"} <= set(train) & set(evaluation)
    assert train["loss"] == [(2, "scalars", b"", 0.5)] and evaluation["loss"] == [(2, "scalars", b"", 0.125)]
    assert evaluation["knn/k1"] == [(2, "scalars", b"", 0.5)]
    assert not values(tmp_path / "tensorboard")


def test_the_recipe_is_text(tmp_path):
    given = recipe.Recipe(model=recipe.Model(arguments={"pooling": "gap"}), evaluators=("knn",) * 60)
    tensorboard.describe(str(tmp_path), given)
    found = values(tmp_path / "tensorboard")
    ((_, plugin, _, text),) = found["recipe"]
    assert plugin == "text"
    content = text.item().decode().removeprefix("```json\n").removesuffix("\n```")
    assert recipe.from_dict(json.loads(content)) == given
    assert set(found) == {"recipe"}


@pytest.mark.parametrize(("dtype", "channels"), [("uint8", 1), ("float32", 3)])
def test_example_images(tmp_path, dtype, channels):
    images = np.zeros((3, 4, 6, channels), dtype)
    images[1] = 255 if dtype == "uint8" else 1.0
    tensorboard.describe(str(tmp_path), recipe.Recipe(), images)
    ((_, plugin, _, blobs),) = values(tmp_path / "tensorboard")["training images"]
    assert plugin == "images"
    assert blobs[:2].tolist() == [b"6", b"4"]  # width, height
    decoded = [tf.io.decode_png(blob).numpy() for blob in blobs[2:]]
    assert [image.shape for image in decoded] == [(4, 6, channels)] * 3
    assert [int(image.max()) for image in decoded] == [0, 255, 0]


def test_example_images_are_those_of_the_first_batch():
    given = recipe.Recipe(
        model=recipe.Model(image_size=8),
        data=recipe.Data(pp_train="inception_crop(8, 70)|value_range(-1, 1)", pp_eval="value_range(-1, 1)"),
    )

    class Backend:
        num_replicas = 1

    found = run_data.Splits(given, Backend()).example_images(4)
    batches = data.train_batches(data.open_source("digits", split="train"), given.data.pp_train, 128)
    np.testing.assert_array_equal(found, next(iter(batches))["image"][:4])


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(errors.StorageError, match="tensorboard"):
        tensorboard.describe(str(tmp_path), recipe.Recipe())
