"""ONNX and OpenVINO files."""

import dataclasses
import gc
import importlib.util
import os
import subprocess
import sys
import time
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.exporting import onnx_openvino, verified_file
from keras_vit.inference import formats, model_card, onnx, openvino
from keras_vit.inference.opening import open_artifact
from tests import tiny
from tests.exporting.test_tflite import bit, exhaustive, hybrid, prepared, slow, small

FORMATS = {"onnx": ("onnxruntime", "tf2onnx"), "openvino": ("openvino",)}


@pytest.fixture(params=["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def kind(request):
    for package in FORMATS[request.param]:
        # Looked for without importing: OpenVINO's import has side effects, which are ours to prevent.
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'keras-vision-transformers[{request.param}]'")
    return request.param


def path_of(kind, folder):
    return str(folder / f"model{formats.FORMATS[kind].extension}")


def export(model, kind, folder, output="softmax", **options):
    return onnx_openvino.write(model, path_of(kind, folder), card=tiny.card(output), images=tiny.images(), **options)[1]


@pytest.mark.slow
def test_exported_files_have_a_model_card_and_equal_predictions(kind, tmp_path):
    model = small(dtype="mixed_bfloat16", dropout_rate=0.1)
    comparison = export(model, kind, tmp_path)
    expected = {"onnx": ["model.onnx"], "openvino": ["model.bin", "model.xml"]}[kind]
    file = expected[-1]
    assert sorted(os.listdir(tmp_path)) == sorted([*expected, f"{file}.json"])
    assert comparison.examples == 6
    assert comparison.top1_agreement == 1.0
    artifact = open_artifact(str(tmp_path))
    assert artifact.kind == kind
    if kind == "onnx":
        pytest.importorskip("onnx").checker.check_model(str(tmp_path / file), full_check=True)
    assert artifact.card.precision == "float32"
    size = sum(os.path.getsize(tmp_path / name) for name in expected)
    assert artifact.card.bytes == model_card.size_of(artifact.path) == size
    # The same float32 sums in another order, for any number of images.
    plain = small(dtype="float32")
    for count in (6, 1, 3):
        expected = tf.nn.softmax(plain(prepared(count), training=False)).numpy()
        np.testing.assert_allclose(artifact.predict(prepared(count)), expected, atol=1e-5)


@pytest.mark.slow
def test_fixed_batch_is_padded(kind, tmp_path):
    model = small(pooling="map", num_registers=2, layer_scale=0.5)
    export(model, kind, tmp_path, output="sigmoid", batch_size=4)
    artifact = open_artifact(path_of(kind, tmp_path), num_threads=1)
    assert artifact.batch_size == 4
    # Two calls for six images: an output in the memory of the runtime would be overwritten by the second call.
    expected = tf.sigmoid(model(prepared(6), training=False)).numpy()
    np.testing.assert_allclose(artifact.predict(prepared(6)), expected, atol=1e-5)


@pytest.mark.parametrize(
    "network",
    [
        exhaustive(lambda: small(pooling="gap", position_embedding="sincos2d", image_size=None)),
        exhaustive(lambda: small(position_embedding="relative", activation="gelu")),
        exhaustive(lambda: small(classifier_activation="softmax", representation_size=8, remat="blocks")),
        exhaustive(lambda: small(attention_chunk_size=2)),
        exhaustive(hybrid),
        slow(bit),
    ],
    ids=["gap", "relative", "activation", "chunks", "hybrid", "bit"],
)
def test_every_model_family_is_exported(network, kind, tmp_path):
    # The tolerance of float32 is part of the export.
    assert export(network(), kind, tmp_path).max_difference < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_model_export_of_keras_writes_a_working_file(activation, tmp_path):
    pytest.importorskip("tf2onnx")
    runtime = pytest.importorskip("onnxruntime")
    model, images = small(activation=activation), prepared(3)
    expected = model(images, training=False)
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    assert [node.name for node in session.get_inputs()] == ["images"]
    (outputs,) = session.run(None, {"images": images})
    # The same float32 sums in another order.
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


def test_damaged_and_unrelated_files_are_refused(kind, tmp_path):
    path = path_of(kind, tmp_path)
    with pytest.raises(FileNotFoundError, match="No artifact"):
        open_artifact(path)
    parts = model_card.parts_of(path)
    for part in parts.values():
        with open(part, "wb") as file:
            file.write(b"no model")
    model_card.write(path, tiny.card())
    with pytest.raises(ValueError, match="that can be run"):
        open_artifact(path)
    if kind == "openvino":
        os.remove(parts[".bin"])
        with pytest.raises(FileNotFoundError, match=r"\.bin"):
            open_artifact(path)
    with pytest.raises(ValueError, match="must have the input 'images' and the output 'probabilities'. Received"):
        onnx.check_names(path, ["images"], ["logits"], "probabilities")


def test_missing_packages_name_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs tf2onnx, onnx: pip install 'keras-vision-transformers\[onnx\]'"):
        onnx_openvino.write(tiny.model(), "a.onnx", card=tiny.card(), images=tiny.images(1))
    for name in ("onnxruntime", "openvino"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"keras-vision-transformers\[onnx\]"):
        onnx._open_session(str(tmp_path / "a.onnx"), None, "probabilities")
    with pytest.raises(ImportError, match=r"keras-vision-transformers\[openvino\]"):
        openvino.import_openvino()


@pytest.mark.slow
def test_an_openvino_file_computes_in_bfloat16_where_the_processor_does(tmp_path, caplog, monkeypatch):
    runtime = pytest.importorskip("openvino")
    path, hints = path_of("openvino", tmp_path), []

    class Core(runtime.Core):
        def compile_model(self, model, device, config):
            hints.append(config["INFERENCE_PRECISION_HINT"])
            return super().compile_model(model, device, config)

    monkeypatch.setattr(openvino, "import_openvino", lambda: types.SimpleNamespace(Core=Core))
    with caplog.at_level("WARNING", logger="absl"):
        comparison = export(small(), "openvino", tmp_path, precision="mixed_bfloat16")
    is_half = "BF16" in runtime.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert comparison.precision == ("mixed_bfloat16" if is_half else "float32")
    assert comparison.summary().endswith(f"computed in {comparison.precision}")
    assert ("does not compute in bfloat16: model.xml runs in float32" in caplog.text) is not is_half
    artifact = open_artifact(path)
    assert (artifact.card.precision, artifact.stored_precision) == ("mixed_bfloat16", "bfloat16")
    model_card.write(path, dataclasses.replace(artifact.card, precision="float32"))
    assert open_artifact(path).stored_precision == "float32"
    assert hints == ["bf16", "bf16", "f32"]


def test_precisions_of_other_formats_are_refused(kind, tmp_path):
    others = {"onnx": "'float32'. Received", "openvino": "'float32', 'mixed_bfloat16'. Received"}
    with pytest.raises(ValueError, match=f"`precision` must be one of {others[kind]}: precision='int8'"):
        export(small(), kind, tmp_path, precision="int8")


@pytest.mark.slow
def test_openvino_sends_no_telemetry_and_keeps_the_log_handlers(tmp_path):
    """Its package for reports is not even imported, as it would be with a plain import."""
    pytest.importorskip("openvino_telemetry")
    code = (
        "import sys; from absl import logging; logging.use_absl_handler(); logging.set_verbosity(logging.INFO); "
        "from keras_vit.inference import openvino; openvino.import_openvino(); print(sorted(sys.modules)); "
        "logging.info('Verified')"
    )
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert "'openvino'" in done.stdout
    assert "openvino_telemetry" not in done.stdout
    assert "Verified" in done.stderr
    assert not (tmp_path / "intel").exists()  # where it would keep the number that it gives to each user


@pytest.mark.slow
def test_models_above_the_onnx_size_limit_are_refused(monkeypatch, tmp_path):
    model = small()
    monkeypatch.setattr(type(model), "count_params", lambda self: 2**29)
    with pytest.raises(verified_file.ConversionError, match=r"at most 2 GiB. Received: .* 2.00 GiB .*SavedModel"):
        export(model, "onnx", tmp_path)
    assert not os.listdir(tmp_path)
    monkeypatch.setattr(type(model), "count_params", lambda self: 2**29 - 1)
    monkeypatch.setattr(onnx_openvino, "with_answers", lambda *_: 1 / 0)  # the conversion begins
    with pytest.raises(ZeroDivisionError):
        export(model, "onnx", tmp_path)


def test_interrupted_write_leaves_no_file(tmp_path, monkeypatch):
    """Without a converter: files are written atomically."""
    path = str(tmp_path / "deep" / "a.xml")
    card = tiny.card()

    def write(name):
        for extension in (".xml", ".bin"):
            with open(os.path.splitext(name)[0] + extension, "wb") as file:
                file.write(b"12345")

    with pytest.raises(RuntimeError), verified_file.draft(path, card) as (name, describe):
        write(name)
        describe()
        raise RuntimeError
    assert os.listdir(tmp_path / "deep") == []
    with verified_file.draft(path, card) as (name, describe):
        write(name)
        describe()
        assert os.listdir(tmp_path / "deep") == [os.path.basename(os.path.dirname(name))]
    assert sorted(os.listdir(tmp_path / "deep")) == ["a.bin", "a.xml", "a.xml.json"]
    assert '"bytes": 10' in (tmp_path / "deep" / "a.xml.json").read_text()
    published = []
    monkeypatch.setattr(verified_file.file_io, "move_file", lambda _, path: published.append(os.path.split(path)))
    with verified_file.draft(path, card) as (name, describe):
        write(name)
        describe()
    # The card is last. Readers reject new files with the old card.
    finals = [name for folder, name in published if folder == os.path.dirname(path)]
    assert sorted(finals[:-1]) == ["a.bin", "a.xml"] and finals[-1] == "a.xml.json"


def test_garbage_is_collected_during_conversion():
    class Circle:
        def __init__(self):
            self.itself = self

    gc.disable()
    try:
        circle = weakref.ref(Circle())
        assert circle() is not None
        with onnx_openvino._garbage_collected(seconds=0.01):
            deadline = time.monotonic() + 20
            while circle() is not None and time.monotonic() < deadline:
                time.sleep(0.01)
        assert circle() is None
    finally:
        gc.enable()
