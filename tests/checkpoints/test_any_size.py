"""A model for images of any size resizes positions as its checkpoint's project does, from the checkpoint's own grid."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import load_checkpoint, model_from_checkpoint, resize
from keras_vit.layers import AddPositionEmbs, resize_table
from tests import selection
from tests.checkpoints import files


@pytest.mark.parametrize("method", resize.METHODS)
@pytest.mark.parametrize("sizes", [((4, 4), (6, 5)), ((7, 7), (12, 3)), ((37, 37), (16, 24)), ((1, 3), (2, 7))])
def test_the_layer_resizes_like_loading(method, sizes):
    old, new = sizes
    table = np.random.default_rng(0).normal(size=(1, old[0] * old[1], 8)).astype("float32")
    expected = resize.resize_table(table, old, new, method=method).reshape(1, *new, 8)
    result = np.asarray(resize_table(table.reshape(1, *old, 8), new, method))
    # Weights in single precision here, in double there.
    np.testing.assert_allclose(result, expected, atol=1e-4)
    same = np.asarray(resize_table(table.reshape(1, *old, 8), old, method))
    np.testing.assert_allclose(same, table.reshape(1, *old, 8), atol=1e-6)


OWN = {"hf_vit": "bicubic", "hf_deit": "bicubic", "timm_vit": "antialiased", "bv_map": "reference"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "own", "size"),
    selection.cases(
        [(name, own, size) for name, own in OWN.items() for size in ((48, 32), (16, 24))],
        [("timm_vit", "antialiased", (16, 24)), ("bv_map", "reference", (48, 32))],
    ),
)
def test_any_size_equals_a_model_of_that_size(name, own, size):
    arguments, images, logits = files.golden_case(name)
    model = model_from_checkpoint(files.golden_path(name), image_size=None, **arguments)
    assert model.config.position_resizing == own
    np.testing.assert_allclose(np.asarray(model(images)), logits, rtol=1e-4, atol=1e-5)
    other = np.random.default_rng(0).uniform(-1, 1, (2, *size, 3)).astype("float32")
    expected = np.asarray(model_from_checkpoint(files.golden_path(name), image_size=size, **arguments)(other))
    # As the golden data: the positions are resized in single precision in a call, in double precision by a load.
    np.testing.assert_allclose(np.asarray(model(other)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_any_size_is_kept_in_keras_files(tmp_path):
    path, images = tmp_path / "model.keras", np.random.default_rng(0).uniform(-1, 1, (2, 48, 32, 3)).astype("float32")
    model = model_from_checkpoint(files.golden_path("bv_map"), image_size=None)
    expected = np.asarray(model(images))
    model.save(path)
    for again in (keras.models.load_model(path), model_from_checkpoint(path)):
        np.testing.assert_array_equal(np.asarray(again(images)), expected)
    fixed = model_from_checkpoint(path, image_size=(48, 32))
    np.testing.assert_allclose(np.asarray(fixed(images)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_model_that_resizes_in_another_way_is_noticed():
    arguments, _, _ = files.golden_case("hf_vit")
    own = model_from_checkpoint(files.golden_path("hf_vit"), image_size=None)
    other = type(own).from_config({**own.get_config(), "position_resizing": "reference"})
    report = load_checkpoint(other, files.golden_path("hf_vit"))
    assert any("'reference'" in note and "'bicubic'" in note for note in report.notes)
    chosen = load_checkpoint(other, files.golden_path("hf_vit"), method="reference")  # the user knows better
    assert not any("'bicubic'" in note for note in chosen.notes)
    assert not any("'bicubic'" in note for note in load_checkpoint(own, files.golden_path("hf_vit")).notes)


def test_arguments():
    with pytest.raises(ValueError, match="position_resizing"):
        keras_vit.models.ViTConfig(position_resizing="cubic")
    with pytest.raises(ValueError, match="method"):
        AddPositionEmbs(method="cubic")
    assert keras_vit.models.ViTConfig(image_size=None, position_grid=37, patch_size=14).grid == (37, 37)
    assert keras_vit.models.ViTConfig(image_size=224, position_grid=37).position_grid is None
