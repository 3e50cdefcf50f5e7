import collections
import dataclasses
import os
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import models
from keras_vit.exporting import quantization, tflite, verified_file, verify
from keras_vit.inference import formats
from keras_vit.inference.opening import open_artifact
from keras_vit.inference.tflite import TFLitePredictor, make_interpreter
from tests import selection, tiny


def export(model, path, output="softmax", **options):
    return tflite.write(model, str(path), card=tiny.card(output), images=tiny.images(), **options)[1]


def prepared(count=6):
    return np.stack([tiny.preprocess(tf.constant(content)) for content in tiny.images(count).contents])


def small(**arguments):
    """A model of one block, which shows all that is tested of a conversion."""
    return tiny.model(**{"num_layers": 1, **arguments})


def hybrid(**arguments):
    network = models.VisionTransformer(
        patch_size=1,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        mlp_dim=32,
        resnet_blocks=(1, 1),
        image_size=tiny.SIZE,
        classes=len(tiny.CLASS_NAMES),
        **arguments,
    )
    return tiny.randomize(network)


def bit():
    network = models.BiTResNet(block_sizes=(1, 1), image_size=tiny.SIZE, classes=len(tiny.CLASS_NAMES))
    return tiny.randomize(network)


def operators(content):
    """Counts the operators of a TFLite file by name; custom and Flex ones have the prefix `CUSTOM:`."""
    from tensorflow.lite.python import schema_py_generated as schema

    root = schema.Model.GetRootAs(content, 0)
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    codes = []
    for index in range(root.OperatorCodesLength()):
        entry = root.OperatorCodes(index)
        # Codes below 127 are stored in the old, one-byte field.
        code = max(entry.BuiltinCode(), entry.DeprecatedBuiltinCode())
        custom = entry.CustomCode()
        codes.append(f"CUSTOM:{custom.decode()}" if custom else names[code])
    counts = collections.Counter()
    for index in range(root.SubgraphsLength()):
        graph = root.Subgraphs(index)
        counts.update(codes[graph.Operators(i).OpcodeIndex()] for i in range(graph.OperatorsLength()))
    return counts


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


def exhaustive(value):
    return pytest.param(value, marks=selection.EXHAUSTIVE)


@pytest.mark.slow
def test_export_writes_a_file_and_a_model_card(tmp_path):
    model = small()
    comparison = export(model, tmp_path / "a" / "model.tflite")
    assert sorted(os.listdir(tmp_path / "a")) == ["model.tflite", "model.tflite.json"]
    assert comparison.examples == 6
    assert comparison.top1_agreement == 1.0
    artifact = open_artifact(str(tmp_path / "a"))
    assert artifact.card.precision == "float32"
    # The same float32 sums in another order.
    expected = tf.nn.softmax(model(prepared(), training=False)).numpy()
    np.testing.assert_allclose(artifact.predict(prepared()), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    [
        lambda: small(dtype="mixed_bfloat16", dropout_rate=0.1, drop_path_rate=0.1),
        exhaustive(lambda: small(dtype="bfloat16")),
        exhaustive(lambda: small(attention_chunk_size=2)),
        lambda: small(pooling="map", num_registers=2, layer_scale=0.5),
        exhaustive(lambda: small(pooling="gap", position_embedding="sincos2d", image_size=None)),
        exhaustive(lambda: small(position_embedding="relative", activation="gelu")),
        exhaustive(lambda: small(classifier_activation="softmax", representation_size=8, remat="blocks")),
        slow(lambda: small(patch_norm=True, head_dim=6, output_projection="no_bias", image_size=None)),
        exhaustive(lambda: small(num_heads=1, output_projection="none", pooling="gap", pool_prefix_tokens=True)),
        slow(bit),
    ],
    ids=[
        "mixed",
        "bfloat16",
        "chunks",
        "map",
        "gap",
        "relative",
        "activation",
        "patch_norm",
        "one_head",
        "bit",
    ],
)
def test_every_family_converts_to_built_in_operators(network, tmp_path):
    path = tmp_path / "model.tflite"
    comparison = export(network(), path)
    assert not [name for name in operators(path.read_bytes()) if name.startswith("CUSTOM")]
    assert comparison.max_difference < 1e-4


@pytest.mark.slow
def test_gelu_is_one_operator_and_weights_are_standardized_in_advance(tmp_path):
    comparison = export(hybrid(dtype="mixed_bfloat16"), tmp_path / "model.tflite")
    assert comparison.max_difference < 1e-4
    counts = operators((tmp_path / "model.tflite").read_bytes())
    assert not [name for name in counts if name.startswith("CUSTOM")]
    assert counts["GELU"] == 1
    # Kernels standardized at run time would add a root for each convolution. There is one for each of the 9 group norms
    # and 3 layer norms, and one for the first norm of the last block, which normalizes the queries on their own.
    assert counts["CONV_2D"] == 10
    assert counts["RSQRT"] == 9 + 3 + 1
    assert counts["SQRT"] == 0


@pytest.mark.slow
def test_artifacts_with_uint8_input_accept_pixels(tmp_path):
    path = tmp_path / "model.tflite"
    model = small()
    export(model, path, input_dtype="uint8")
    artifact = open_artifact(str(path))
    assert artifact.input_details["dtype"] == np.uint8
    assert artifact.card.preprocess == "decode|resize(16)"
    pixels = artifact.preprocess(tiny.images().contents).astype(np.uint8)
    expected = tf.nn.softmax(model(pixels / np.float32(127.5) - 1, training=False)).numpy()
    np.testing.assert_allclose(artifact.predict(pixels), expected, atol=1e-5)


class Erf(keras.layers.Layer):
    """A function without a built-in TFLite operator."""

    def call(self, x):
        return tf.math.erf(tf.reduce_mean(x, axis=(1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", slow("int8")])
def test_unsupported_operators_are_refused(precision):
    inputs = keras.Input((4, 4, 3))
    network = keras.Model(inputs, Erf()(inputs))
    with pytest.raises(verified_file.ConversionError, match="cannot be converted to TFLite .*Erf"):
        card = dataclasses.replace(tiny.card(), image_shape=(4, 4, 3), precision=precision)
        tflite.convert(network, card, calibration_images=np.zeros((2, 4, 4, 3), np.float32))


@pytest.mark.slow
def test_artifact_with_different_predictions_is_not_written(tmp_path):
    strict = verify.Tolerance(max_difference=-1.0)  # no file can meet this tolerance
    with pytest.raises(verify.VerificationError, match="does not match its model"):
        export(small(), tmp_path / "model.tflite", tolerance=strict)
    assert os.listdir(tmp_path) == []


def integer_export(precision, model, path, **options):
    """Calibrates with the images of the verification: the accuracy is not tested."""
    lenient = verify.Tolerance(1.0, 0.5)
    return export(model, path, precision=precision, calibration=tiny.images(), tolerance=lenient, **options)


@pytest.mark.slow
def test_int8_keeps_sensitive_operators_in_float(tmp_path):
    path = tmp_path / "model.tflite"
    integer_export("int8", small(), path, input_dtype="uint8", batch_size=4)
    assert open_artifact(str(path)).input_details["dtype"] == np.uint8
    types = operand_types(path.read_bytes())
    assert types["FULLY_CONNECTED"] == types["CONV_2D"] == {"INT8"}
    for name in ("BATCH_MATMUL", "SOFTMAX", "GELU", "ADD", "RSQRT"):
        assert types[name] == {"FLOAT32"}, name


@pytest.mark.slow
def test_int16x8_activations_are_int16(tmp_path):
    path = tmp_path / "model.tflite"
    comparison = integer_export("int16x8", small(), path)
    types = operand_types(path.read_bytes())
    for name in ("FULLY_CONNECTED", "CONV_2D", "BATCH_MATMUL", "SOFTMAX", "ADD", "RSQRT"):
        assert types[name] == {"INT16"}, name
    assert comparison.max_difference < 0.1


def operand_types(content):
    """The types of the first input of each operator, by operator name."""
    from tensorflow.lite.python import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    kinds = {code: name for name, code in vars(schema.TensorType).items() if isinstance(code, int)}
    types = {}
    for graph in model.subgraphs:
        for operator in graph.operators:
            code = model.operatorCodes[operator.opcodeIndex]
            name = names[max(code.builtinCode, code.deprecatedBuiltinCode)]
            types.setdefault(name, set()).add(kinds[graph.tensors[operator.inputs[0]].type])
    return types


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "precision"),
    [
        pytest.param(hybrid, "int8", marks=selection.EXHAUSTIVE),
        pytest.param(hybrid, "int16x8", marks=selection.EXHAUSTIVE),
        (bit, "int8"),
        (bit, "int16x8"),
    ],
)
def test_convolutions_are_quantized_to_integers(network, precision, tmp_path):
    integer_export(precision, network(), tmp_path / "model.tflite")
    types = operand_types((tmp_path / "model.tflite").read_bytes())
    assert types["CONV_2D"] == {"INT8" if precision == "int8" else "INT16"}


@pytest.mark.slow
def test_files_that_the_interpreter_rejects_are_not_written(tmp_path, monkeypatch):
    def refuse(*_):
        raise RuntimeError("Node number 3 (PADV2) failed to prepare")

    monkeypatch.setattr(TFLitePredictor, "predict", refuse)
    with pytest.raises(verified_file.ConversionError, match="The float32 file cannot be run.*PADV2"):
        export(small(), tmp_path / "model.tflite")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_lower_precision_makes_files_smaller(tmp_path):
    # Wide enough that weights make up the file: the graph itself takes 20 kB.
    model, sizes = small(hidden_size=128, mlp_dim=512), {}
    for precision in ("float32", "float16", "dynamic_int8"):
        path = tmp_path / f"{precision}.tflite"
        comparison = export(model, path, precision=precision)
        sizes[precision] = path.stat().st_size
        assert open_artifact(path).stored_precision == precision
        assert comparison.max_difference > 0
    assert sizes["float16"] < 0.6 * sizes["float32"] and sizes["dynamic_int8"] < 0.4 * sizes["float32"]


@pytest.mark.parametrize(
    ("precision", "error"),
    # Of the length of the features: rounding of float32 sums, of weights to 11 bits, of weights and inputs to 8 bits.
    [("float32", 1e-5), ("float16", 1e-3), ("dynamic_int8", 0.05)],
)
@pytest.mark.slow
def test_features_are_exported_with_the_predictions(precision, error, tmp_path):
    model = small()
    export(model, tmp_path / "with.tflite", precision=precision, batch_size=4, features=True)
    both = open_artifact(str(tmp_path / "with.tflite"))
    expected = keras.Model(model.inputs[0], model.get_layer("head").input)(prepared()).numpy()
    found = both.features(prepared())
    assert found.shape == expected.shape == (6, 16)
    assert np.linalg.norm(found - expected) <= error * np.linalg.norm(expected)
    assert both.features_unavailable is None
    # The first subgraph of the file is a classifier.
    opened = make_interpreter(str(tmp_path / "with.tflite"))
    assert list(opened.get_signature_list()) == ["classify", "features"]
    opened.allocate_tensors()
    assert opened.get_output_details()[0]["shape"].tolist() == [4, len(tiny.CLASS_NAMES)]
    if precision != "float32":
        return
    export(model, tmp_path / "without.tflite", precision=precision, batch_size=4)
    without = open_artifact(str(tmp_path / "without.tflite"))
    names = make_interpreter(without.path).get_signature_list()
    assert names == {"classify": {"inputs": ["images"], "outputs": ["probabilities"]}}
    assert without.input_details["shape"].tolist() == [4, 16, 16, 3]
    found = without.predict(prepared(6))
    assert found.shape == (6, 7)  # one full batch, one padded
    np.testing.assert_array_equal(both.predict(prepared(6)), found)
    assert "export it again with --features" in without.features_unavailable
    with pytest.raises(ValueError, match="export it again with --features"):
        without.features(prepared())


@pytest.mark.slow
def test_predictions_and_features_share_the_weights(tmp_path):
    model = small(hidden_size=128, mlp_dim=512)
    sizes = [len(tflite.convert(model, tiny.card(), features=features)) for features in (False, True)]
    assert sizes[1] - sizes[0] < 0.1 * sizes[0]


@pytest.mark.slow
def test_export_with_different_features_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(TFLitePredictor, "features", lambda self, images: np.zeros((6, 16)))
    with pytest.raises(verify.VerificationError, match=r"features: the difference is 1\.0e\+00 of the length"):
        export(small(), tmp_path / "a.tflite", features=True)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("images", "batches"), [(4, [[0, 1, 2, 3]]), (6, [[0, 1, 2, 3], [4, 5, 0, 1]]), (1, [[0, 0, 0, 0]])]
)
def test_every_image_calibrates_and_the_last_batch_is_full(images, batches, monkeypatch):
    shown = []
    monkeypatch.setattr(
        quantization, "track", lambda items, text, unit: shown.append((len(items), text, unit)) or items
    )
    spec = tf.TensorSpec((4, 2, 3, 1), tf.uint8, "images")
    numbered = np.arange(images, dtype=np.float32)[:, None, None, None] * np.ones((2, 3, 1), np.float32)
    found = list(quantization._batches(spec, numbered))
    assert [batch[:, 1, 2, 0].tolist() for batch in found] == batches
    assert shown == [(len(batches), "Calibrating", "batches")]
    assert {(batch.shape, batch.dtype) for batch in found} == {((4, 2, 3, 1), np.dtype(np.uint8))}


@pytest.mark.parametrize("precision", formats.TFLITE.precisions)
def test_infinite_padding_is_replaced_for_integer_activations(precision):
    """Only the padding with minus infinity is replaced, and only where activations are integers."""
    for padding, is_replaced in (("infinity", precision in ("int8", "int16x8")), ("zeros", False), (None, False)):
        model = types.SimpleNamespace(get_config=lambda padding=padding: {"pool_padding": padding})
        expected = {"pool_padding": "edge"} if is_replaced else {}
        assert quantization.model_arguments(model, precision) == expected


@pytest.mark.parametrize("precision", formats.TFLITE.precisions)
def test_only_integer_activations_need_calibration(precision):
    quantization.check(precision, tiny.images(1))
    if precision in ("int8", "int16x8"):
        with pytest.raises(ValueError, match=f"{precision}.*calibration"):
            quantization.check(precision, None)
    else:
        quantization.check(precision, None)
