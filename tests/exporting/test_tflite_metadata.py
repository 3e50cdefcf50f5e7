"""What apps read inside of TFLite files."""

import io
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

from keras_vit.exporting import tflite_metadata
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.tflite import make_interpreter
from tests import tiny


def constant_file(values):
    """A TFLite file that multiplies by a constant large enough to be stored in a buffer of its own."""
    weights = tf.constant(values)

    @tf.function(input_signature=[tf.TensorSpec([1, values.shape[0]], tf.float32, "images")])
    def classify(images):
        return {"probabilities": images @ weights}

    return tf.lite.TFLiteConverter.from_concrete_functions([classify.get_concrete_function()]).convert()


@pytest.fixture(scope="module")
def plain():
    return constant_file(np.random.default_rng(0).normal(size=(64, 7)).astype(np.float32))


def field(table, number):
    """Where the field of a table begins; None if it is absent. By hand, as the format's documentation has it."""
    content, position = table
    vtable = position - int.from_bytes(content[position : position + 4], "little", signed=True)
    size = int.from_bytes(content[vtable : vtable + 2], "little")
    slot = 4 + 2 * number
    offset = int.from_bytes(content[vtable + slot : vtable + slot + 2], "little") if slot < size else 0
    return position + offset if offset else None


def follow(content, position):
    return content, position + int.from_bytes(content[position : position + 4], "little")


def child(table, *numbers):
    for number in numbers:
        table = follow(table[0], field(table, number))
    return table


def items(vector):
    content, position = vector
    count = int.from_bytes(content[position : position + 4], "little")
    return [follow(content, position + 4 + 4 * index) for index in range(count)]


def text(string):
    content, position = string
    length = int.from_bytes(content[position : position + 4], "little")
    return content[position + 4 : position + 4 + length].decode()


def floats(vector):
    content, position = vector
    count = int.from_bytes(content[position : position + 4], "little")
    return np.frombuffer(content, np.float32, count, position + 4).tolist()


def number(table, index, size):
    place = field(table, index)
    return int.from_bytes(table[0][place : place + size], "little")


def root_of(description):
    content = tflite_metadata.table_bytes(tflite_metadata.describe(description))
    assert content[4:8] == b"M001"
    return follow(content, 0)


def test_every_field_stands_where_the_schema_has_it():
    root = root_of(tiny.card(architecture="VisionTransformer"))
    assert text(child(root, 0)) == "VisionTransformer"
    assert text(child(root, 7)) == "1.0.0"
    (graph,) = items(child(root, 3))
    (images,), (probabilities,) = items(child(graph, 2)), items(child(graph, 3))
    assert (text(child(images, 0)), text(child(probabilities, 0))) == ("images", "probabilities")
    # content: an image (2) in RGB (1) of 16 x 16
    assert number(child(images, 3), 0, 1) == 2
    image = child(images, 3, 1)
    assert number(image, 0, 1) == 1
    assert [number(child(image, 1), index, 4) for index in (0, 1)] == [tiny.SIZE, tiny.SIZE]
    # one process unit: a normalization (1)
    (unit,) = items(child(images, 4))
    assert number(unit, 0, 1) == 1
    assert floats(child(unit, 1, 0)) == pytest.approx([127.5] * 3)
    assert floats(child(unit, 1, 1)) == pytest.approx([127.5] * 3)
    assert floats(child(images, 5, 0)) == pytest.approx([1.0] * 3)
    assert floats(child(images, 5, 1)) == pytest.approx([-1.0] * 3)
    # one file: labels of an axis (2); the content is a feature (1)
    (labels,) = items(child(probabilities, 6))
    assert (text(child(labels, 0)), number(labels, 2, 1)) == ("labels.txt", 2)
    assert number(child(probabilities, 3), 0, 1) == 1


def test_the_file_still_computes_and_holds_its_labels(plain, tmp_path):
    content = tflite_metadata.add(plain, tiny.card())
    assert tiny.labels_in(content) == list(tiny.CLASS_NAMES)
    answers = []
    for name, data in (("plain", plain), ("with", content)):
        path = tmp_path / f"{name}.tflite"
        path.write_bytes(data)
        opened = make_interpreter(str(path))
        opened.allocate_tensors()
        opened.set_tensor(opened.get_input_details()[0]["index"], np.ones((1, 64), np.float32))
        opened.invoke()
        answers.append(opened.get_tensor(opened.get_output_details()[0]["index"]))
    np.testing.assert_array_equal(*answers)


def test_the_entry_is_found_by_its_name_and_weights_stay_aligned(plain):
    content = tflite_metadata.add(plain, tiny.card())
    model = schema.Model.GetRootAs(content, 0)
    entries = {model.Metadata(i).Name(): model.Metadata(i).Buffer() for i in range(model.MetadataLength())}
    assert b"min_runtime_version" in entries  # what the converter wrote is still there
    found = model.Buffers(entries[b"TFLITE_METADATA"]).DataAsNumpy().tobytes()
    assert found == tflite_metadata.table_bytes(tflite_metadata.describe(tiny.card()))
    start = content.index(model.Buffers(model.BuffersLength() - 2).DataAsNumpy().tobytes())
    assert start % 4 == 0
    filled = [model.Buffers(i) for i in range(model.BuffersLength()) if model.Buffers(i).DataLength() > 64]
    assert filled
    for buffer in filled:
        place = buffer._tab.Vector(buffer._tab.Offset(4))
        assert place % 16 == 0


def test_the_same_model_gives_the_same_file(plain):
    first = tflite_metadata.add(plain, tiny.card())
    assert first == tflite_metadata.add(plain, tiny.card())
    assert first != tflite_metadata.add(plain, tiny.card(architecture="BiTResNet")) != plain


def test_the_archive_is_stored_plain(plain):
    """Readers on devices map the labels into memory, uncompressed."""
    with zipfile.ZipFile(io.BytesIO(tflite_metadata.add(plain, tiny.card()))) as archive:
        assert [(info.filename, info.compress_type) for info in archive.infolist()] == [("labels.txt", 0)]


@pytest.mark.parametrize(
    ("pp", "channels", "mean", "std"),
    [
        ("decode|value_range(-1, 1)", 3, [127.5] * 3, [127.5] * 3),
        ("decode|value_range(0, 1)", 1, [0.0], [255.0]),
        ("decode|resize(16)", 3, [0.0] * 3, [1.0] * 3),  # plain pixels go in
        ("decode|vgg_value_range((124, 116, 104), (58, 57, 57))", 3, [124, 116, 104], [58, 57, 57]),
    ],
)
def test_normalization_is_that_of_the_preprocessing(pp, channels, mean, std):
    for found, expected in zip(tflite_metadata.normalization(pp, channels), (mean, std), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)  # worked out in float32


def test_other_endings_are_left_out(monkeypatch):
    monkeypatch.setattr(
        tflite_metadata.preprocessing, "device_function", lambda pp: lambda x: tf.cast(x, tf.float32) ** 2
    )
    assert tflite_metadata.normalization("square", 3) is None
    (graph,) = items(child(root_of(tiny.card()), 3))
    (images,) = items(child(graph, 2))
    assert field(images, 4) is None and field(images, 5) is None


def test_labels_have_a_line_each(plain):
    description = ModelCard(("a\nb", "c  d"), tiny.PREPROCESS, "softmax", (16, 16, 1))
    assert tiny.labels_in(tflite_metadata.add(plain, description)) == ["a b", "c d"]
