"""Exported models that predict masks: every format and signature."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import models
from keras_vit.exporting import export, graph_ops, verify
from keras_vit.inference import masks, open_predictor
from tests import tiny

NAMES = ("sky", "sea", "sand")


@pytest.fixture(scope="module")
def model():
    found = tiny.model(head=models.LinearSegmenter(3, blocks=(0, -1)))
    found.class_names = NAMES
    return found


def test_masks_of_many_classes_have_16_bits():
    for mask in (np.array([[0, 299], [256, 7]], np.int32), np.array([[0, 255]], np.uint8)):
        opened = Image.open(io.BytesIO(graph_ops.to_png(tf.constant(mask)).numpy()))
        np.testing.assert_array_equal(np.asarray(opened), mask)
        assert opened.mode == ("L" if mask.dtype == np.uint8 else "I;16")


def test_mask_of_an_unreadable_image_has_one_pixel():
    """Its size is 0 x 0, and a PNG file has at least one pixel."""
    files = graph_ops.of_sizes(
        graph_ops.to_png,
        tf.zeros([2, 2, 2], tf.uint8),
        tf.constant([[0, 0], [3, 4]]),
        tf.TensorSpec([], tf.string),
    )
    assert [Image.open(io.BytesIO(content)).size for content in files.numpy()] == [(1, 1), (4, 3)]


def expected(model, contents):
    """The masks at the size of the input, and at those of the images."""
    images = np.stack([tiny.preprocess(tf.constant(content)) for content in contents])
    logits = tf.image.resize(model(images, training=False), (tiny.SIZE, tiny.SIZE))
    of_input = tf.argmax(logits, axis=-1).numpy()
    sizes = [tf.io.decode_image(content).shape[:2] for content in contents]
    resized = [tf.image.resize(m[..., None], s, "nearest")[..., 0] for m, s in zip(of_input, sizes, strict=True)]
    return of_input, [mask.numpy() for mask in resized]


def contents():
    """Images of different sizes."""
    return [tiny.encode(tiny.arrays(1, *size, seed=size[0])[0], "PNG") for size in ((20, 24), (9, 30), (16, 16))]


@pytest.mark.slow
def test_saved_model_signatures_return_masks(model, tmp_path):
    export(model, tmp_path, images=contents(), preprocess=tiny.PREPROCESS, extra_signatures=["features"])
    artifact = open_predictor(tmp_path)
    of_input, of_images = expected(model, contents())
    assert (artifact.card.output, artifact.card.class_names) == ("mask", NAMES)
    np.testing.assert_array_equal(artifact.predict(artifact.preprocess(contents())), of_input)
    batch = {"image_bytes": [contents()[0], b"bad", *contents()[1:]]}
    found = artifact.run("serving_default", batch)
    assert found["valid"].tolist() == [True, False, True, True]
    assert found["mask_bytes"][1] == b"" and found["class_names"][0].tolist() == [name.encode() for name in NAMES]
    runs = artifact.run("run_lengths", batch)
    assert runs["size"].tolist() == [[20, 24], [0, 0], [9, 30], [16, 16]] and not runs["run_lengths"][1].any()
    for row, mask in zip((0, 2, 3), of_images, strict=True):
        np.testing.assert_array_equal(masks.from_png(found["mask_bytes"][row]), mask)
        np.testing.assert_array_equal(masks.from_runs(runs["run_lengths"][row], runs["size"][row]), mask)
    decoded = artifact.run("serve_images", {"images": tf.io.decode_image(contents()[1]).numpy()[None]})
    np.testing.assert_array_equal(decoded["mask"][0], of_images[1])
    assert artifact.run("serving_default", {"image_bytes": np.zeros([0], object)})["mask_bytes"].shape == (0,)
    assert artifact.features(artifact.preprocess(contents())).shape == (3, 16)
    artifact.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.tflite", {}),
        ("b.tflite", {"precision": "dynamic_int8", "batch_size": 2}),
        ("c.tflite", {"input_dtype": "uint8"}),
        pytest.param("d.onnx", {}, marks=pytest.mark.exhaustive),
        pytest.param("e.xml", {}, marks=pytest.mark.exhaustive),
    ],
)
def test_masks_of_exported_files_match_the_model(name, options, model, tmp_path):
    if name.endswith((".onnx", ".xml")):
        pytest.importorskip({"x": "tf2onnx", "l": "openvino"}[name[-1]])
    comparison = export(model, tmp_path / name, images=contents(), preprocess=tiny.PREPROCESS, **options)
    artifact = open_predictor(tmp_path / name)
    found = artifact.predict(artifact.preprocess(contents()))
    assert found.dtype == np.uint8 and comparison.output == "mask"
    tolerance = verify.tolerance_of(options.get("precision", "float32"), "mask")
    assert np.mean(found == expected(model, contents())[0]) >= tolerance.top1_agreement


def test_comparison_of_masks_matches_hand_computation():
    one = [np.zeros((2, 2), np.uint8), np.zeros((4, 4), np.uint8)]
    other = [np.array([[0, 1], [0, 0]]), one[1]]
    found = verify.compare_answers(tiny.card("mask"), one, other)
    assert (found.max_difference, found.mean_difference, found.top1_agreement) == (0.25, 0.125, 0.95)
    assert verify.compare_answers(tiny.card("mask"), one, [one[0], one[0]]).top1_agreement == pytest.approx(0.2)
    (problem,) = verify.failures(found, verify.tolerance_of("float32", "mask"))
    assert "agreement" in problem


@pytest.mark.slow
def test_export_with_different_masks_is_refused(tmp_path, monkeypatch):
    """An artifact whose files of masks are those of another size of the input is not written."""
    model = tiny.model(num_layers=1, head=models.LinearSegmenter(3))
    monkeypatch.setattr("keras_vit.exporting.graph_ops.resized", lambda mask, size: mask)
    with pytest.raises(verify.VerificationError, match="serving_default"):
        export(model, tmp_path, images=contents(), preprocess=tiny.PREPROCESS)


@pytest.mark.slow
def test_cropping_preprocessing_is_refused(model, tmp_path):
    """Only where masks of the sizes of images are returned."""
    arguments = {"images": contents(), "preprocess": "decode|resize_small(20)|central_crop(16)|value_range(-1, 1)"}
    with pytest.raises(ValueError, match="central_crop"):
        export(model, tmp_path, **arguments)
    assert export(model, tmp_path / "a.tflite", **arguments).top1_agreement == 1.0


@pytest.mark.slow
def test_feature_maps_and_scores_per_patch_are_not_upsampled(tmp_path):
    base = tiny.model(head=models.LinearSegmenter(1))
    maps = keras.Model(base.input, base.get_layer("patch_map").output)
    for model, output in ((base, "scores"), (maps, "features")):
        export(model, tmp_path / f"{output}.tflite", images=contents(), preprocess=tiny.PREPROCESS)
        artifact = open_predictor(tmp_path / f"{output}.tflite")
        images = artifact.preprocess(contents())
        assert artifact.card.output == output
        np.testing.assert_allclose(artifact.predict(images), model(images), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_activation_of_a_segmentation_head_is_kept(tmp_path):
    """The larger of two enlarged probabilities is not always that of the larger logit."""
    model = tiny.model(head=models.LinearSegmenter(3), classifier_activation="softmax")
    images = contents()
    comparison = export(model, tmp_path / "a.tflite", images=images, preprocess=tiny.PREPROCESS)
    assert comparison.top1_agreement == 1.0
