import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from keras_vit import inspection, models
from keras_vit.data import headers
from keras_vit.exporting import saved_model, signatures, verify
from keras_vit.inference import KerasPredictor, model_card
from keras_vit.inference.saved_model import SavedModelPredictor
from tests import forked, selection, tiny


def export(model, base, output="softmax", **options):
    return saved_model.write(model, str(base), card=tiny.card(output), images=tiny.images(), **options)


def expected_probabilities(model, contents):
    images = np.stack([tiny.preprocess(tf.constant(content)) for content in contents])
    return tf.nn.softmax(tf.cast(model(images, training=False), tf.float32)).numpy()


@pytest.fixture(scope="module")
def exported(served, served_artifact):
    """The model, its artifact, the directory and the comparison of the export."""
    model, base, comparison = served
    return model, served_artifact, base, comparison


def test_log_level_is_restored(monkeypatch):
    """Also if TensorFlow cannot write."""

    def save(*_, **__):
        assert logging.get_verbosity() == logging.WARNING
        raise OSError

    before = logging.get_verbosity()
    monkeypatch.setattr(signatures.tf.saved_model, "save", save)
    try:
        logging.set_verbosity(logging.INFO)
        with pytest.raises(OSError):
            signatures.write(tf.Module(), "a", {})
        assert logging.get_verbosity() == logging.INFO
    finally:
        logging.set_verbosity(before)


def test_export_writes_a_version_directory_and_a_model_card(exported):
    _, artifact, base, comparison = exported
    assert os.listdir(base) == ["1"]
    assert (base / "1" / "saved_model.pb").exists()
    assert artifact.card.preprocess == tiny.PREPROCESS
    # Every weight once, in float32; the rest are their names.
    size = sum(path.stat().st_size for path in (base / "1" / "variables").glob("*.data-*"))
    assert 4 * exported[0].count_params() < size < 4 * exported[0].count_params() + 20_000
    graph = [base / "1" / "saved_model.pb", *(base / "1" / "variables").iterdir()]
    assert artifact.card.bytes >= sum(path.stat().st_size for path in graph)
    assert comparison.examples == 6
    assert comparison.top1_agreement == 1.0


def test_the_graph_has_no_backward_passes(exported):
    _, artifact, _, _ = exported
    definition = artifact._graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    assert nodes and not [node.name for node in nodes if "_gradient_op_type" in node.attr]


def test_signatures_have_the_documented_names(exported):
    signatures = exported[1].signatures
    expected = {"serving_default", "serve_images", "serve_tensor", "features", "features_tensor"}
    assert set(signatures) == expected
    answer = {"probabilities", "top_k_classes", "top_k_scores"}
    assert set(signatures["serving_default"].inputs) == {"image_bytes"}
    assert set(signatures["serving_default"].outputs) == {*answer, "valid"}
    for name, dtype in (("serve_images", tf.uint8), ("serve_tensor", tf.float32)):
        assert set(signatures[name].inputs) == {"images"}
        assert signatures[name].inputs["images"].dtype == dtype.as_datatype_enum
        assert set(signatures[name].outputs) == answer
        assert signatures[name].inputs["images"].tensor_shape.dim[0].size == -1
    assert all(signature.method_name == "tensorflow/serving/predict" for signature in signatures.values())


@pytest.mark.slow
def test_images_of_several_formats_and_sizes_share_a_batch(exported):
    model, artifact, _, _ = exported
    wide, tall = tiny.arrays(1, 20, 40)[0], tiny.arrays(1, 50, 10, seed=1)[0]
    contents = [
        tiny.encode(wide, "PNG"),
        tiny.encode(tall, "JPEG", quality=95),
        tiny.encode(tall, "BMP"),
        tiny.encode(wide, "WEBP", lossless=True),
    ]
    answer = artifact.run("serving_default", {"image_bytes": contents})
    assert answer["valid"].all()
    # Float32 kernels sum in another order in the exported graph than in the model.
    np.testing.assert_allclose(answer["probabilities"], expected_probabilities(model, contents), atol=1e-5)


def test_top_k_names_the_best_classes(exported):
    answer = exported[1].run("serving_default", {"image_bytes": tiny.images(2).contents})
    assert answer["top_k_classes"].shape == answer["top_k_scores"].shape == (2, 5)
    for probabilities, labels, scores in zip(
        *(answer[k] for k in ("probabilities", "top_k_classes", "top_k_scores")), strict=True
    ):
        best = np.argsort(-probabilities)[:5]
        assert [label.decode() for label in labels] == [tiny.CLASS_NAMES[index] for index in best]
        np.testing.assert_array_equal(scores, probabilities[best])


def test_unreadable_image_leaves_other_predictions_unchanged(exported):
    model, artifact, _, _ = exported
    good = tiny.images(2).contents
    bomb = tiny.encode(np.zeros((2000, 1000, 3), np.uint8), "PNG")  # 2 million pixels, 1 allowed
    contents = [good[0], b"", b"no image", good[0][:60], bomb, good[1]]
    answer = artifact.run("serving_default", {"image_bytes": contents})
    np.testing.assert_array_equal(answer["valid"], [True, False, False, False, False, True])
    np.testing.assert_allclose(answer["probabilities"][[0, 5]], expected_probabilities(model, good), atol=1e-5)
    assert not answer["probabilities"][1:5].any()
    assert (answer["top_k_classes"][1:5] == b"").all()


def test_batches_without_readable_images_are_marked_invalid(exported):
    artifact = exported[1]
    answer = artifact.run("serving_default", {"image_bytes": [b"bad"]})
    assert answer["probabilities"].shape == (1, 7)
    assert not answer["valid"].any()
    assert artifact.run("serving_default", {"image_bytes": np.zeros([0], object)})["probabilities"].shape == (0, 7)


@pytest.mark.slow
def test_decoded_and_preprocessed_images_give_equal_predictions(exported):
    model, artifact, _, _ = exported
    images = tiny.arrays(3)
    contents = tiny.images(3).contents
    expected = expected_probabilities(model, contents)
    answer = artifact.run("serve_images", {"images": images})
    np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-5)
    prepared = np.stack([tiny.preprocess(tf.constant(content)) for content in contents])
    np.testing.assert_allclose(artifact.predict(prepared), expected, atol=1e-5)


@pytest.mark.slow
def test_features_are_the_input_of_the_head(exported):
    model, artifact, _, _ = exported
    contents = tiny.images(3).contents
    answer = artifact.run("features", {"image_bytes": [contents[0], b"bad", *contents[1:]]})
    np.testing.assert_array_equal(answer["valid"], [True, False, True, True])
    assert not answer["features"][1].any()
    head = model.get_layer("head")
    logits = answer["features"][[0, 2, 3]] @ head.kernel.numpy() + head.bias.numpy()
    np.testing.assert_allclose(tf.nn.softmax(logits), expected_probabilities(model, contents), atol=1e-5)


@pytest.mark.slow
def test_features_of_preprocessed_images_match_the_model(exported):
    model, artifact, _, _ = exported
    contents = tiny.images(3).contents
    images = np.stack([tiny.preprocess(tf.constant(content)) for content in contents])
    body = keras.Model(model.inputs[0], model.get_layer("head").input)
    expected = body(images).numpy()
    assert artifact.features_unavailable is None
    np.testing.assert_allclose(artifact.features(images), expected, rtol=1e-5, atol=1e-5)  # float32
    keras_artifact = KerasPredictor(model, artifact.card)
    np.testing.assert_allclose(keras_artifact.features(images), expected, rtol=1e-5, atol=1e-5)
    # The signature of files prepares the same images itself.
    of_files = artifact.run("features", {"image_bytes": contents})["features"]
    np.testing.assert_allclose(of_files, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", selection.cases(["token", "gap", "map"], ["token", "map"], selection.EXHAUSTIVE))
def test_attention_maps_match_the_inspection_package(pooling, tmp_path):
    model = tiny.model(pooling=pooling, num_registers=2)
    path, _ = export(model, tmp_path, extra_signatures=("attention",))
    contents = tiny.images(2).contents
    images = np.stack([tiny.preprocess(tf.constant(content)) for content in contents])
    maps = inspection.attention_maps(model, images)
    expected = np.stack([maps.grids()[name].mean(axis=1) for name in maps.blocks()], axis=1)
    answer = SavedModelPredictor(path).run("attention", {"image_bytes": contents})["attention"]
    assert answer.shape == (2, 2, 2, 2)  # images, blocks, rows and columns of patches
    np.testing.assert_allclose(answer, expected, atol=1e-5)


@pytest.mark.slow
def test_unsupported_signatures_are_refused(tmp_path):
    with pytest.raises(ValueError, match="BiT is a ResNet"):
        export(models.BiTResNet((1,), image_size=16, classes=7), tmp_path, extra_signatures=("attention",))
    with pytest.raises(ValueError, match=r"must be among .* Received: \['logits'\]"):
        export(tiny.model(), tmp_path, extra_signatures=("logits",))
    with pytest.raises(ValueError, match="one row of logits or features per image"):
        export(tiny.model(pooling=None), tmp_path)
    assert os.listdir(tmp_path) == []


def test_unknown_signatures_and_inputs_are_refused(exported):
    with pytest.raises(ValueError, match="'predict'.*serve_tensor"):
        exported[1].run("predict", {})
    with pytest.raises(ValueError, match=r"takes the inputs \['images'\]\. Received: \['x'\]"):
        exported[1].run("serve_tensor", {"x": 0})


@pytest.mark.slow
def test_new_versions_never_overwrite_and_binary_models_have_two_classes(tmp_path):
    (tmp_path / "7").mkdir()
    model = tiny.model(num_layers=1)
    path, _ = export(model, tmp_path, top_k=2)
    assert path == str(tmp_path / "8")
    artifact = SavedModelPredictor(path)
    answer = artifact.run("serving_default", {"image_bytes": tiny.images(3).contents})
    assert answer["top_k_classes"].shape == (3, 2)
    assert all(text in artifact.features_unavailable for text in ("'features_tensor'", "--signature=features"))
    np.testing.assert_allclose(answer["top_k_scores"], -np.sort(-answer["probabilities"])[:, :2])
    with pytest.raises(FileExistsError, match="Version 8 exists .* never overwritten"):
        export(model, tmp_path, version=8)
    assert sorted(os.listdir(tmp_path)) == ["7", "8"]


@pytest.mark.slow
def test_artifact_with_different_predictions_is_not_written(tmp_path, monkeypatch):
    def drifting(contents):  # prepares differently inside the graph
        return tiny.preprocess(contents) * (1.0 if tf.executing_eagerly() else -1.0)

    monkeypatch.setattr(model_card.ModelCard, "preprocess_function", lambda card: drifting)
    with pytest.raises(verify.VerificationError, match="not match its model: serving_default: the largest"):
        export(tiny.model(num_layers=1), tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_sigmoid_outputs_and_mixed_precision_are_exported(tmp_path):
    model = tiny.model(num_layers=1, dtype="mixed_bfloat16", dropout_rate=0.1, drop_path_rate=0.1)
    path, comparison = export(model, tmp_path, output="sigmoid")
    images = np.stack([tiny.preprocess(tf.constant(content)) for content in tiny.images(4).contents])
    plain = tiny.model(num_layers=1, dtype="float32")  # the same random weights
    expected = tf.sigmoid(plain(images)).numpy()
    np.testing.assert_allclose(SavedModelPredictor(path).predict(images), expected, atol=1e-5)
    assert comparison.max_difference < 1e-5


@pytest.mark.parametrize("height, width", [(2**31 - 1, 2**31 - 1), (2**32 - 1, 2**32 - 1), (0, 5), (50_000, 50_000)])
def test_a_wrong_header_is_rejected(height, width):
    honest = tiny.encode(tiny.arrays(1)[0], "PNG")
    lying = honest[:16] + width.to_bytes(4, "big") + height.to_bytes(4, "big") + honest[24:]
    with pytest.raises(tf.errors.InvalidArgumentError, match="pixels|Expected"):
        headers.check(tf.constant(lying), 1000, untrusted=True)
    assert headers.check(tf.constant(honest), 20 * 24, untrusted=True) == honest


def saved_model_cli(*arguments):
    """The command of that name, which TensorFlow installs."""
    code, output = forked.run("tensorflow.python.tools.saved_model_cli", *arguments)
    assert code == 0, output[-2000:]
    return output


@pytest.mark.slow
def test_saved_model_cli_shows_and_runs_the_artifact(exported, tmp_path):
    model, _, base, _ = exported
    path = base / "1"
    where = ("--dir", path, "--tag_set", "serve")
    shown = saved_model_cli("show", *where, "--signature_def", "serving_default")
    for text in ("inputs['image_bytes']", "DT_STRING", "outputs['top_k_classes']", "tensorflow/serving/predict"):
        assert text in shown
    content = tiny.images(1).contents[0]
    expected = expected_probabilities(model, [content])
    literal = "".join(f"\\x{byte:02x}" for byte in content)  # a semicolon would end the expression
    signature = ("--signature_def", "serving_default", "--input_exprs", f"image_bytes=[b'{literal}']")
    saved_model_cli("run", *where, *signature, "--outdir", tmp_path / "bytes")
    np.testing.assert_allclose(np.load(tmp_path / "bytes" / "probabilities.npy"), expected, atol=1e-5)
    np.save(tmp_path / "prepared.npy", tiny.preprocess(tf.constant(content))[None])
    signature = ("--signature_def", "serve_tensor", "--inputs", f"images={tmp_path / 'prepared.npy'}")
    saved_model_cli("run", *where, *signature, "--outdir", tmp_path / "tensor")
    np.testing.assert_allclose(np.load(tmp_path / "tensor" / "probabilities.npy"), expected, atol=1e-5)


@pytest.mark.slow
def test_the_graph_neither_reads_nor_writes_files(exported):
    # Operations that the tool warns about in untrusted models.
    assert "does not contain the default denylisted ops" in saved_model_cli(
        "scan", "--dir", exported[2] / "1", "--tag_set", "serve"
    )


@pytest.mark.parametrize(
    ("there", "expected"), [((), 1), (("1", "2"), 3), (("3",), 4), (("1", "10"), 11), (("2", "new", ".tmp"), 3)]
)
def test_the_next_version_is_after_the_largest(there, expected, tmp_path):
    """Serving takes the largest number: a new version that fills a gap would never be served."""
    for name in there:
        (tmp_path / name).mkdir()
    assert saved_model.version_number(str(tmp_path)) == expected


def test_existing_version_is_not_overwritten(tmp_path):
    (tmp_path / "2").mkdir()
    with pytest.raises(FileExistsError, match="Version 2 exists"):
        saved_model.version_number(str(tmp_path), 2)
    assert saved_model.version_number(str(tmp_path), 1) == 1
    with pytest.raises(ValueError, match="version must be at least 1"):
        saved_model.version_number(str(tmp_path), 0)


@pytest.mark.slow
def test_a_failed_export_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(saved_model.signatures, "write", fail)
    with pytest.raises(OSError, match="disk"):
        saved_model.write(tiny.model(), str(tmp_path), card=tiny.card(), images=tiny.images(1))
    assert list(tmp_path.iterdir()) == []
