"""One call for every format."""

import functools
import importlib
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from keras_vit import exporting, inference, save_checkpoint
from keras_vit.data import UnreadableImageError
from keras_vit.exporting import verify
from keras_vit.exporting.inference_model import inference_model
from keras_vit.inference import model_card, sample_images
from keras_vit.inference.keras_card import card_of_model
from keras_vit.util import file_io
from tests import selection, tiny


@pytest.mark.slow
def test_a_model_is_exported_to_the_format_of_the_extension(tmp_path):
    model = tiny.model(num_layers=1)
    (tmp_path / "a.png").write_bytes(tiny.images(1).contents[0])
    comparison = exporting.export(
        model,
        tmp_path / "model.tflite",
        preprocess="value_range(-1, 1)",
        images=[tiny.images(2).contents[1], f"{tmp_path}/*.png"],
        class_names=tiny.CLASS_NAMES,
        precision="float16",
    )
    assert comparison.examples == 2
    artifact = inference.open_predictor(tmp_path / "model.tflite")
    assert (artifact.kind, artifact.card.precision) == ("tflite", "float16")
    assert artifact.class_names == tiny.CLASS_NAMES
    assert artifact.card.preprocess == "decode(3)|resize((16, 16), method='bilinear')|value_range(-1, 1)"


@pytest.mark.slow
def test_a_checkpoint_is_exported(tmp_path):
    model = tiny.model(num_layers=1)
    save_checkpoint(model, tmp_path / "model.npz")
    arguments = {"preprocess": "value_range(-1, 1)", "images": tiny.images().contents}
    exporting.export(tmp_path / "model.npz", tmp_path / "model.tflite", **arguments)
    artifact = inference.open_predictor(tmp_path / "model.tflite")
    original = inference.open_predictor(tmp_path / "model.npz", preprocess="value_range(-1, 1)")
    images = original.preprocess(tiny.images().contents)
    np.testing.assert_allclose(artifact.predict(images), original.predict(images), atol=1e-5)
    assert artifact.class_names == tuple("0123456")


def test_exporting_an_artifact_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        importlib.import_module("keras_vit.exporting.verified_export"), "open_predictor", lambda *_, **__: object()
    )
    with pytest.raises(ValueError, match="`model`.*Received: 'a.tflite'"):
        exporting.export("a.tflite", tmp_path / "b.onnx", images=GOOD)


GOOD = tiny.arrays(1)


def backbone():
    return tiny.model(num_layers=1, include_top=False)


def new_head():
    base = tiny.model(num_layers=1)
    return tiny.randomize(keras.Model(base.input, keras.layers.Dense(3)(base.get_layer("pool").output)))


def tutorial(**arguments):
    """Transfer learning as Keras' tutorials write it."""
    inputs = keras.Input((tiny.SIZE, tiny.SIZE, 3))
    features = tiny.model(num_layers=1, include_top=False, dropout_rate=0.1)(
        keras.layers.RandomFlip("horizontal")(inputs), training=False
    )
    outputs = keras.layers.Dense(3, **arguments)(keras.layers.Dropout(0.2)(features))
    model = tiny.randomize(keras.Model(inputs, outputs))
    model.compile("adam", lambda labels, predicted: keras.ops.mean(predicted))
    return model


def mixed():
    base = tiny.model(num_layers=1, dtype="mixed_bfloat16")
    head = keras.layers.Dense(3, dtype="mixed_bfloat16")
    return tiny.randomize(keras.Model(base.input, head(base.get_layer("pool").output)))


def sequential():
    return keras.Sequential(
        [keras.Input((tiny.SIZE, tiny.SIZE, 3)), keras.layers.RandomFlip(), tiny.model(num_layers=1)]
    )


def around_base(*layers, before=(), **arguments):
    """A functional model of a body without a head, and further layers."""
    x = inputs = keras.Input((tiny.SIZE, tiny.SIZE, 3))
    for layer in (*before, tiny.model(num_layers=1, include_top=False, **arguments), *layers):
        x = layer(x)
    return tiny.randomize(keras.Model(inputs, x))


def stacked(*layers, first=()):
    """A sequential model of a body without a head, and further layers."""
    return tiny.randomize(keras.Sequential([*first, tiny.model(num_layers=1, include_top=False), *layers]))


def head(units, *activations):
    """A sequential model that another model ends in."""
    return keras.Sequential([keras.layers.Dense(5, "gelu"), keras.layers.Dense(units, *activations)])


def augmentation():
    return keras.Sequential([keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1)])


def called(model):
    """A model without its own input, which is built by its first call."""
    model(np.zeros((2, tiny.SIZE, tiny.SIZE, 3), np.float32))
    return model


def quantized():
    model = tiny.model(num_layers=1)
    model.quantize("int8")
    return model


KINDS = {
    "backbone": (backbone, {}, "features"),
    "new_head": (new_head, {}, "scores"),
    "named": (new_head, {"class_names": ["a", "b", "c"]}, "softmax"),
    "tutorial": (tutorial, {}, "scores"),
    "softmax": (lambda: tutorial(activation="softmax"), {}, "softmax"),
    "sigmoid": (lambda: tutorial(activation="sigmoid"), {"class_names": ["a", "b", "c"]}, "sigmoid"),
    "sequential": (sequential, {}, "softmax"),
    "one_logit": (lambda: tiny.model(num_layers=1, classes=1), {}, "sigmoid"),
    "named_logit": (lambda: around_base(keras.layers.Dense(1)), {"class_names": ["yes"]}, "sigmoid"),
    "stacked": (lambda: stacked(keras.layers.Dense(3)), {}, "scores"),
    "nested": (lambda: around_base(head(3, "softmax"), before=[augmentation()]), {}, "softmax"),
    "quantized": (quantized, {}, "softmax"),
    "mixed": (mixed, {}, "scores"),
}


@pytest.mark.slow
def test_a_copy_has_the_weights_of_quantized_layers():
    """Otherwise the artifact and the copy that it is compared with are wrong in the same way."""
    model, images = quantized(), tiny.arrays(2, tiny.SIZE, tiny.SIZE) / 127.5 - 1
    np.testing.assert_allclose(inference_model(model)(images), model(images), atol=1e-5)


def expected_outputs(model, images, output):
    """The outputs of the model called directly; of logits the probabilities. `output` "as_is" is for probabilities."""
    values = keras.ops.convert_to_numpy(model(images, training=False)).astype(np.float32)
    return {"softmax": functools.partial(special.softmax, axis=-1), "sigmoid": special.expit}.get(output, np.asarray)(
        values
    )


DENSE = keras.layers.Dense
LOGITS = {
    "one": (lambda: tiny.model(num_layers=1, classes=1), "sigmoid"),
    "wrapped": (lambda: called(keras.Sequential([tiny.model(num_layers=1, classes=1)])), "sigmoid"),
    "dense": (lambda: around_base(DENSE(1)), "sigmoid"),
    "several": (lambda: tiny.model(num_layers=1), "softmax"),
    "tanh": (lambda: tiny.model(num_layers=1, classifier_activation="tanh"), "softmax"),
    "nested_head": (lambda: around_base(head(3)), "softmax"),
    "two_heads": (lambda: around_base(head(5), head(3)), "softmax"),
    "stacked": (lambda: stacked(DENSE(3), first=[keras.Input((tiny.SIZE, tiny.SIZE, 3))]), "softmax"),
    "without_input": (lambda: stacked(DENSE(3)), "softmax"),
    "normalized": (
        lambda: stacked(keras.layers.Dropout(0.2), keras.layers.BatchNormalization(name="norm"), DENSE(3, name="head")),
        "softmax",
    ),
    "augmented": (lambda: tiny.randomize(called(stacked(DENSE(3), first=[augmentation()]))), "softmax"),
}
PROBABILITIES = {
    "sigmoid": (lambda: around_base(head(1, "sigmoid")), "sigmoid"),
    "sigmoid_operation": (lambda: around_base(DENSE(1), keras.ops.sigmoid), "sigmoid"),
    "several_sigmoids": (lambda: around_base(DENSE(3, "sigmoid")), "sigmoid"),
    "nested": (lambda: around_base(head(3, "softmax")), "softmax"),
    "layer": (lambda: around_base(DENSE(3), keras.layers.Softmax()), "softmax"),
    "operation": (lambda: around_base(DENSE(3), keras.ops.softmax), "softmax"),
    "tensorflow": (lambda: around_base(DENSE(3, tf.nn.softmax)), "softmax"),
    "float32": (
        lambda: around_base(DENSE(3, "softmax"), keras.layers.Activation("linear", dtype="float32")),
        "softmax",
    ),
    "dropout": (lambda: around_base(DENSE(3, "softmax"), keras.layers.Dropout(0.1)), "softmax"),
    "cast": (lambda: around_base(DENSE(3, "softmax"), lambda x: keras.ops.cast(x, "float32")), "softmax"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "output", "of_logits"),
    [
        pytest.param(*case, cases is LOGITS, id=name)
        for cases in (LOGITS, PROBABILITIES)
        for name, case in cases.items()
    ],
)
def test_probabilities_equal_the_probabilities_of_the_model(build, output, of_logits):
    """Of the model called directly, and of the copy that is exported."""
    model, images = build(), tiny.arrays(3, tiny.SIZE, tiny.SIZE) / np.float32(127.5) - 1
    labels = tuple(map(str, range(model.output_shape[-1])))  # without names, a layer of another package gives scores
    predictor = inference.KerasPredictor(model, card_of_model(model, "model", "value_range(-1, 1)", labels))
    expected = expected_outputs(model, images, output if of_logits else "as_is")
    assert predictor.card.output == output
    np.testing.assert_allclose(predictor.predict(images), expected, atol=1e-6)
    copy = inference_model(model)
    np.testing.assert_allclose(expected_outputs(copy, images, output), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "extension", selection.cases(["", ".tflite", ".onnx", ".xml"], ["", ".tflite", ".onnx"], selection.EXHAUSTIVE)
)
def test_rectangular_models_are_exported(extension, tmp_path):
    if extension in (".onnx", ".xml"):
        pytest.importorskip({".onnx": "onnxruntime", ".xml": "openvino"}[extension])
    model, arrays = tiny.model(num_layers=1, image_size=(16, 24)), tiny.arrays(3, 16, 24)
    exporting.export(model, tmp_path / f"model{extension}", images=arrays, preprocess="value_range(-1, 1)")
    artifact = inference.open_predictor(tmp_path / f"model{extension}")
    images = arrays.astype(np.float32) / 127.5 - 1
    np.testing.assert_allclose(artifact.predict(images), expected_outputs(model, images, "softmax"), atol=1e-5)
    for change in ({"image_shape": [24, 16, 3]}, {"class_names": list("012345")}):
        path = model_card.path_of(artifact.path)
        content = file_io.read_json(path)
        file_io.write_json(path, {**content, **change})
        with pytest.raises(ValueError, match=f"{next(iter(change))}.*Export the artifact again"):
            inference.open_predictor(artifact.path)
        file_io.write_json(path, content)


@pytest.mark.parametrize("kind", KINDS)
def test_model_card_has_output_kind_and_classes(kind, tmp_path, monkeypatch):
    """Up to the conversion: what the writer of a format is given."""
    given = []

    def write(model, path, *, card, images):
        given.append(card)
        return path, None

    monkeypatch.setattr("keras_vit.exporting.tflite.write", write)
    build, options, output = KINDS[kind]
    model = build()
    exporting.export(model, tmp_path / "a.tflite", images=GOOD, preprocess="value_range(-1, 1)", **options)
    (card,) = given
    assert card.output == output
    classes = () if output in ("scores", "features") else map(str, range(model.output_shape[-1]))
    assert card.class_names == tuple(options.get("class_names", classes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "extension"),
    selection.cases(
        [(kind, extension) for kind in KINDS for extension in ("", ".tflite", ".onnx")],
        # All formats convert the copy that `test_probabilities_equal_the_probabilities_of_the_model` compares. TFLite
        # takes the least time: one model of each output, and those that are not in float32.
        lambda kind, extension: (
            (kind, extension)
            in [
                *((kind, ".tflite") for kind in ("backbone", "tutorial", "one_logit", "nested", "quantized", "mixed")),
                ("quantized", ".onnx"),
                ("mixed", ".onnx"),
                ("named", ""),
            ]
        ),
        selection.EXHAUSTIVE,
    ),
)
def test_functional_models_are_exported(kind, extension, tmp_path):
    if extension == ".onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("tf2onnx")
    build, options, output = KINDS[kind]
    model = build()
    arrays = tiny.arrays(4, tiny.SIZE, tiny.SIZE)
    path = tmp_path / f"model{extension}"
    if (kind, extension) == ("quantized", ".tflite"):
        with pytest.raises(exporting.ConversionError, match="before `quantize`"):
            exporting.export(model, path, images=arrays, preprocess="value_range(-1, 1)")
        return
    comparison = exporting.export(model, path, images=arrays, preprocess="value_range(-1, 1)", **options)
    assert comparison.examples == 4
    assert (comparison.top1_agreement is None) == (output in ("scores", "features"))
    artifact = inference.open_predictor(path)
    assert artifact.card.output == output
    classes = () if comparison.top1_agreement is None else map(str, range(model.output_shape[-1]))
    assert artifact.class_names == tuple(options.get("class_names", classes))
    images = arrays.astype(np.float32) / 127.5 - 1
    expected = expected_outputs(model, images, "as_is" if kind in ("softmax", "sigmoid", "nested") else output)
    # Float32 sums in another order; the mixed model is rounded to 8 bits itself, int8 layers in steps of 1/127.
    tolerance = {"mixed": 0.1, "quantized": 0.05}.get(kind, 1e-4)
    scale = max(np.abs(expected).max(), 1.0)
    np.testing.assert_allclose(artifact.predict(images) / scale, expected / scale, atol=tolerance)
    if output == "features":
        np.testing.assert_array_equal(artifact.features(images), artifact.predict(images))


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision", selection.cases(["float16", "dynamic_int8", "int8", "int16x8"], ["int8"], selection.EXHAUSTIVE)
)
def test_features_are_exported_in_every_precision(precision, tmp_path):
    images = tiny.arrays(4)
    options = {}
    if precision in ("int8", "int16x8"):
        options = {"calibration": tiny.images(), "tolerance": verify.Tolerance(1.0, 0.0)}
    path = tmp_path / "a.tflite"
    exporting.export(
        tiny.model(num_layers=1, include_top=False, hidden_size=64, mlp_dim=128, num_heads=4),
        path,
        images=images,
        preprocess="value_range(-1, 1)",
        precision=precision,
        **options,
    )
    assert inference.open_predictor(path).stored_precision == precision


def test_check_images_are_accepted_in_every_form(tmp_path):
    arrays, contents = tiny.arrays(3), tiny.images(3).contents
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.png").write_bytes(content)
    forms = [
        arrays,
        arrays.astype(np.float32),
        tf.constant(arrays),
        list(arrays),
        contents,
        f"{tmp_path}/*.png",
        [tmp_path / "0.png", contents[1], arrays[2]],
    ]
    for images, expected in [*((form, arrays) for form in forms), (arrays[0], arrays[:1]), (contents[0], arrays[:1])]:
        found = sample_images.of_any(images).contents
        np.testing.assert_array_equal([tf.io.decode_png(content) for content in found], expected)


def foreign():
    return keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])


class Subclass(keras.Model):
    def __init__(self):
        super().__init__()
        self.base = tiny.model()

    def call(self, images):
        return self.base(images)


def two_inputs():
    base, other = tiny.model(num_layers=1), keras.Input((3,))
    return keras.Model([base.input, other], keras.layers.Concatenate()([base.output, other]), name="two")


@pytest.mark.slow
def test_a_file_of_a_model_with_two_inputs_is_refused(tmp_path):
    two_inputs().save(tmp_path / "two.keras")
    with pytest.raises(ValueError, match="one input of images"):
        inference.open_predictor(tmp_path / "two.keras", preprocess="value_range(-1, 1)")


network = functools.cache(tiny.model)


class Made(functools.partial):
    """A model that a case makes when it runs."""


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"precison": "int8"}, TypeError, "'precison'.* Did you mean 'precision'"),
        ({"path": "a.onnx", "precision": "float16"}, ValueError, "must be one of 'float32'.*'float16'"),
        ({"path": "a", "precision": "int8"}, ValueError, "precision"),
        ({"precision": "int4"}, ValueError, "precision"),
        ({"precision": "int8", "calibration": tiny.images(), "features": True}, ValueError, "features"),
        ({"path": "z.bin"}, ValueError, r"`path` must end in \.tflite"),
        ({"path": "z.onnx", "format": "tflite"}, ValueError, r"must end in \.tflite for format='tflite'"),
        ({"path": "z.tflite", "format": "saved_model"}, ValueError, "must be a directory"),
        ({"format": "tflit", "path": "z"}, ValueError, "format"),
        ({"model": "z.onnx", "path": Made(tiny.model)}, TypeError, r"export\(model, path\)"),
        ({"model": 3}, TypeError, "keras.Model. Received: int"),
        ({"model": Made(foreign)}, ValueError, "Received: Sequential"),
        ({"model": Made(Subclass)}, ValueError, "Received: Subclass"),
        ({"model": Made(two_inputs)}, ValueError, r"one input of images.*model\.export"),
        ({"model": Made(lambda: keras.Sequential([augmentation(), tiny.model()]))}, ValueError, "keras.Input"),
        ({"model": Made(tiny.model, pooling=None)}, ValueError, "one row of logits or features per image"),
        ({"images": []}, ValueError, "at least one real image"),
        ({"images": None}, TypeError, "NoneType"),
        ({"images": GOOD / 127.5 - 1}, ValueError, "pixels from 0 to 255.*values from -"),
        ({"images": GOOD / 255}, ValueError, "pixels from 0 to 255"),
        ({"images": GOOD[0, 0]}, ValueError, r"\[N, H, W, C\].*shape \(24, 3\)"),
        ({"images": "nowhere/*.png"}, FileNotFoundError, "nowhere"),
        ({"images": "."}, FileNotFoundError, "Images in folders end in"),
        ({"images": b"bad"}, UnreadableImageError, "image 0"),
        ({"images": [*tiny.images(1).contents, b"bad"]}, UnreadableImageError, "image 1"),
        ({"class_names": ["a"]}, ValueError, "class_names"),
        ({"model": "nowhere"}, FileNotFoundError, "nowhere"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_refused(change, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = {"model": network(), "path": "a.tflite", "images": GOOD, "preprocess": "value_range(-1, 1)"}
    change = {name: value() if isinstance(value, Made) else value for name, value in change.items()}
    with pytest.raises(error, match=message):
        exporting.export(**{**arguments, **change})
    assert os.listdir(tmp_path) == []
