"""Weights in 8 bits, computed in float32: the same numbers in files of every format."""

import dataclasses
import importlib.util
import types

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from keras_vit import exporting
from keras_vit.exporting import calibrated_rounding, weight_only
from keras_vit.inference import model_card, open_predictor, openvino
from tests import tiny

PACKAGES = {"a.onnx": ("onnxruntime", "tf2onnx"), "a.xml": ("openvino",), "a.tflite": ()}
OPTIONS = {"images": tiny.arrays(), "preprocess": tiny.PREPROCESS}
FLOATS = st.floats(-100, 100, width=32, allow_subnormal=False)


@pytest.mark.slow
@given(arrays.arrays("float32", st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)), elements=FLOATS))
@settings(max_examples=30, deadline=None)
def test_no_weight_moves_by_more_than_half_a_step_of_its_channel(weights):
    for axis in (0, 1, -1):
        integers, scales = weight_only.quantize(weights, axis)
        assert integers.dtype == np.int8 and integers.min() >= -127  # a symmetric range: DEQUANTIZE has no zero point
        assert scales.dtype == np.float32 and scales.shape == (weights.shape[axis],)
        channels = np.moveaxis(weights, axis, 0)
        restored = np.moveaxis(integers, axis, 0) * scales.reshape(-1, 1, 1)
        steps = np.abs(channels).max(axis=(1, 2), keepdims=True) / 127
        assert (np.abs(restored - channels) <= 0.5001 * steps + 1e-30).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_every_format_computes_with_the_rounded_kernels(name, tmp_path):
    for package in PACKAGES[name]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    model = tiny.model(num_layers=1, hidden_size=32, mlp_dim=64)
    comparison = exporting.export(model, tmp_path / name, precision="weight_only_int8", **OPTIONS)
    artifact = open_predictor(tmp_path / name)
    assert artifact.stored_precision == artifact.card.precision == comparison.precision == "weight_only_int8"
    assert artifact.card.verification["top1_agreement"] == comparison.top1_agreement == 1.0
    images = artifact.preprocess(tiny.images().contents)
    expected = calibrated_rounding.rounded(model, tiny.card(), tiny.images())
    answers = keras.ops.softmax(expected(images, training=False))
    np.testing.assert_allclose(artifact.predict(images), answers, atol=1e-5)  # float32 sums in another order
    assert np.abs(answers - keras.ops.softmax(model(images, training=False))).max() > 1e-4
    kernel = model.get_layer("encoderblock_0").mlp.dense_0.kernel.numpy()
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert kernel.tobytes() not in content and kernel.T.tobytes() not in content  # the integers replace it
    if name.endswith(".tflite"):
        starts = starts_of_weights((tmp_path / name).read_bytes())
        assert len(starts) > 8 and not any(start % 16 for start in starts)  # TFLite's schema: force_align


def starts_of_weights(content):
    """The places of the buffers of a TFLite file."""
    from tensorflow.lite.python import schema_py_generated as schema

    model = schema.Model.GetRootAs(content, 0)
    buffers = [model.Buffers(index)._tab for index in range(model.BuffersLength())]
    return [table.Vector(table.Offset(4)) for table in buffers if table.Offset(4)]


@pytest.mark.parametrize("is_transposed", [False, True])
def test_every_output_of_an_openvino_product_has_a_scale(tmp_path, is_transposed):
    """Outputs of very different sizes: with one scale per input, the small outputs would become zeros."""
    runtime = pytest.importorskip("openvino")
    opset, path = runtime.opset13, str(tmp_path / "a.xml")
    kernel = np.random.default_rng(0).normal(size=(32, 64)).astype("float32") * np.logspace(0, -5, 64, dtype="float32")
    x = opset.parameter([1, 32], np.float32)
    first = opset.matmul(x, opset.constant(np.eye(32, dtype="float32")), False, False)  # as of pixels, in float32
    stored = opset.constant(kernel.T.copy() if is_transposed else kernel)
    runtime.save_model(runtime.Model([opset.matmul(first, stored, False, is_transposed)], [x]), path, False)
    weight_only.in_openvino_file(path)
    assert (tmp_path / "a.bin").stat().st_size < 32 * 32 * 4 + 32 * 64 * 2
    found = runtime.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(
        np.eye(1, 32, 3, dtype="float32")
    )[0]
    step = np.abs(kernel).max(axis=0) / 127
    assert (np.abs(found[0] - kernel[3]) <= 0.51 * step).all()


@pytest.mark.slow
def test_an_openvino_file_computes_in_bfloat16_where_the_processor_does(tmp_path, caplog, monkeypatch):
    runtime = pytest.importorskip("openvino")
    path, hints = str(tmp_path / "a.xml"), []

    class Core(runtime.Core):
        def compile_model(self, model, device, config):
            hints.append(config["INFERENCE_PRECISION_HINT"])
            return super().compile_model(model, device, config)

    monkeypatch.setattr(openvino, "import_openvino", lambda: types.SimpleNamespace(Core=Core))
    with caplog.at_level("WARNING", logger="absl"):
        comparison = exporting.export(tiny.model(num_layers=1), path, precision="mixed_bfloat16", **OPTIONS)
    is_half = "BF16" in runtime.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert comparison.precision == ("mixed_bfloat16" if is_half else "float32")
    assert comparison.summary().endswith(f"computed in {comparison.precision}")
    assert ("does not compute in bfloat16: a.xml runs in float32" in caplog.text) is not is_half
    artifact = open_predictor(path)
    assert (artifact.card.precision, artifact.stored_precision) == ("mixed_bfloat16", "bfloat16")
    model_card.write(path, dataclasses.replace(artifact.card, precision="float32"))
    assert open_predictor(path).stored_precision == "float32"
    assert hints == ["bf16", "bf16", "f32"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision"), [("a.onnx", "mixed_bfloat16"), ("a.xml", "dynamic_int8")])
def test_precisions_of_other_formats(name, precision, tmp_path):
    for package in PACKAGES[name]:
        pytest.importorskip(package)
    with pytest.raises(ValueError, match="`precision` must be one of 'float32'.*'weight_only_int8'"):
        exporting.export(tiny.model(num_layers=1), tmp_path / name, precision=precision, **OPTIONS)
