"""Resizing of position tables and patch kernels, against the reference and closed forms."""

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.checkpoints import load_checkpoint, model_from_checkpoint, resize
from keras_vit.layers import AddPositionEmbs, resize_table
from keras_vit.layers.interpolation import METHODS, interpolation_matrix
from tests import selection, tiny
from tests.checkpoints import files

PAIRS = [(7, 12), (14, 24), (12, 7), (24, 14), (4, 4)]


@pytest.mark.parametrize("slots", [0, 1])
@pytest.mark.parametrize("old,new", PAIRS)
def test_position_resizing_matches_the_reference(old, new, slots):
    data = np.load(files.GOLDEN / "posemb_resize.npz")
    result = resize.resize_table(data[f"old_{old}_{slots}"], (old, old), (new, new), slots)
    # Both in double, rounded once to single: the last bit may differ.
    np.testing.assert_allclose(result, data[f"new_{old}_{new}_{slots}"], rtol=1e-6, atol=1e-6)
    if old == new:
        np.testing.assert_array_equal(result, data[f"old_{old}_{slots}"])


# Sizes at which rounding leaves the reference's last row and column zero, and some at which it does not.
ZEROED = [(28, 14), (28, 22), (28, 24), (28, 27), (24, 22), (24, 42), (16, 30), (16, 59), (14, 86), (14, 100), (12, 86)]
SOUND = [(7, 12), (14, 24), (16, 27), (24, 14), (7, 53)]


@pytest.mark.parametrize("old,new", ZEROED + SOUND)
def test_edges_are_not_zeroed(old, new):
    table = np.ones((1, old * old, 2), "float32")
    np.testing.assert_allclose(resize.resize_table(table, (old, old), (new, new)), 1.0, rtol=1e-6)


def test_rectangular_grids_and_class_token_entries_are_resized():
    table = np.arange(1 + 2 * 3, dtype="float32").reshape(1, 7, 1)
    result = resize.resize_table(table, (2, 3), (3, 5), num_slots=1)
    expected = [[1, 1.5, 2, 2.5, 3], [2.5, 3, 3.5, 4, 4.5], [4, 4.5, 5, 5.5, 6]]
    np.testing.assert_allclose(result[0, 1:, 0].reshape(3, 5), expected, rtol=1e-6)
    assert result[0, 0, 0] == 0.0
    one = resize.resize_table(table[:, 1:], (2, 3), (1, 1))
    assert one.shape == (1, 1, 1) and one[0, 0, 0] == 1.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("old,new", [(7, 12), (14, 5), (3, 4), (5, 1)])
def test_every_method_keeps_constants(method, old, new):
    matrix = interpolation_matrix(new, old, method, np)
    assert matrix.shape == (new, old)
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, rtol=1e-12)  # double precision


def test_bilinear_resizing_uses_pixel_centers():
    np.testing.assert_allclose(
        interpolation_matrix(4, 2, "bilinear", np), [[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]], rtol=1e-12
    )


@pytest.mark.slow
def test_loading_at_another_resolution_resizes_positions(caplog):
    source = files.tensors_of("vit_token_legacy")["Transformer/posembed_input/pos_embedding"]
    for size, grid in ((48, (6, 6)), ((24, 64), (3, 8))):
        model = model_from_checkpoint(files.golden_path("vit_token_legacy"), image_size=size)
        table = np.asarray(model.get_layer("posembed_input").pos_embedding)
        np.testing.assert_array_equal(table, resize.resize_table(source, (4, 4), grid, 1))
    for method in METHODS:
        model = model_from_checkpoint(files.golden_path("vit_token_legacy"), image_size=48, method=method)
        table = np.asarray(model.get_layer("posembed_input").pos_embedding)
        np.testing.assert_array_equal(table, resize.resize_table(source, (4, 4), (6, 6), 1, method))
    with pytest.raises(ValueError, match="Did you mean 'bicubic'"):
        model_from_checkpoint(files.golden_path("vit_token_legacy"), image_size=48, method="cubic")


@pytest.mark.slow
@pytest.mark.parametrize("name,own", [("hf_vit", "bicubic"), ("timm_vit", "antialiased"), ("bv_tok", "reference")])
def test_each_project_has_its_own_method(name, own):
    arguments, _, _ = files.golden_case(name)
    tables = [
        np.asarray(
            model_from_checkpoint(files.golden_path(name), image_size=48, method=method, **arguments)
            .get_layer("posembed_input")
            .pos_embedding
        )
        for method in (None, own)
    ]
    np.testing.assert_array_equal(*tables)


@pytest.mark.slow
def test_one_channel_kernel_equals_three_equal_channels():
    _, images, _ = files.golden_case("vit_token_legacy")
    colour = files.golden_model("vit_token_legacy")
    grey = model_from_checkpoint(files.golden_path("vit_token_legacy"), channels=1, adapt_channels=True)
    image = images[..., :1]
    # Sums of three products in another order.
    np.testing.assert_allclose(
        np.asarray(grey(image)), np.asarray(colour(np.repeat(image, 3, axis=-1))), rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit_token_legacy", "hybrid_stem", "bit_big_vision"])
def test_fourth_channel_initially_leaves_the_outputs_unchanged(name):
    _, images, logits = files.golden_case(name)
    model = model_from_checkpoint(files.golden_path(name), channels=4, adapt_channels=True)
    extra = np.zeros_like(images[..., :1])
    if name == "vit_token_legacy":
        extra += np.random.default_rng(0).uniform(-1, 1, extra.shape).astype("float32")
    # A standardized kernel of four channels is that of three times a constant, which group norm removes but for its
    # epsilon.
    tolerance = 1e-5 if name == "vit_token_legacy" else 2e-3
    np.testing.assert_allclose(
        np.asarray(model(np.concatenate([images, extra], axis=-1))), logits, rtol=tolerance, atol=tolerance
    )


def test_resized_patch_kernels_give_equal_outputs_on_resized_patches():
    # Upsampling loses nothing, so that the resized kernel gives the very same products (FlexiViT, section 3.4).
    rng = np.random.default_rng(0)
    kernel, patch = rng.normal(size=(4, 6, 3, 5)), rng.normal(size=(4, 6, 3))
    larger = resize.resize_patch_kernel(kernel, (8, 9))
    rows, columns = (interpolation_matrix(*sizes, "bilinear", np) for sizes in ((8, 4), (9, 6)))
    resized = np.einsum("yh,xw,hwc->yxc", rows, columns, patch)
    np.testing.assert_allclose(
        np.einsum("hwc,hwcd->d", resized, larger), np.einsum("hwc,hwcd->d", patch, kernel), rtol=1e-9
    )
    model = model_from_checkpoint(
        files.golden_path("vit_token_legacy"), patch_size=16, image_size=64, resize_patch=True
    )
    assert np.asarray(model.get_layer("embedding").kernel).shape == (16, 16, 3, 32)


@pytest.mark.parametrize("sizes", [((12, 9), (5, 4)), ((14, 14), (9, 11)), ((6, 7), (12, 10)), ((24, 24), (7, 7))])
def test_antialiased_resize_matches_pillow(sizes):
    """Pillow's bicubic filter is that of PyTorch with antialiasing, which has taken it over."""
    old, new = sizes
    table = np.random.default_rng(0).normal(size=(1, 1 + old[0] * old[1], 3)).astype("float32")
    result = resize.resize_table(table, old, new, num_slots=1, method="antialiased")
    assert result.dtype == table.dtype
    np.testing.assert_array_equal(result[:, 0], table[:, 0])
    for channel in range(3):
        image = Image.fromarray(table[0, 1:, channel].reshape(old)).resize(new[::-1], Image.Resampling.BICUBIC)
        # Pillow works in float32 between the two directions.
        np.testing.assert_allclose(result[0, 1:, channel].reshape(new), np.asarray(image), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_half_precision_is_resized_in_single_precision(tmp_path):
    """Weights of a file in float16 are rounded once, when they were written."""
    sizes = {"patch_size": 4, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 24, "classes": 2}
    path = keras_vit.save_checkpoint(
        tiny.randomize(keras_vit.VisionTransformer(**sizes, image_size=16)), tmp_path / "a.npz"
    )
    with np.load(path) as file:
        half = {name: file[name].astype("float16") if file[name].dtype == "float32" else file[name] for name in file}
    np.savez(tmp_path / "half.npz", **half)
    model = keras_vit.VisionTransformer(**sizes, image_size=24)
    keras_vit.load_checkpoint(model, tmp_path / "half.npz")
    (table,) = [value for name, value in half.items() if name.endswith("pos_embedding")]
    expected = resize.resize_table(table.astype("float32"), (4, 4), (6, 6), num_slots=1)
    np.testing.assert_allclose(model.get_layer("posembed_input").pos_embedding, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_positions_are_resized_as_the_saved_model_resizes_them(tmp_path):
    source = tiny.model(position_resizing="bilinear")  # a grid of 2 x 2
    source.save(tmp_path / "model.keras")
    model = model_from_checkpoint(tmp_path / "model.keras", image_size=40)
    table = np.asarray(source.get_layer("posembed_input").pos_embedding)
    expected, other = (resize.resize_table(table, (2, 2), (5, 5), 1, method) for method in ("bilinear", "reference"))
    found = model.get_layer("posembed_input").pos_embedding
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    assert np.abs(found - other).max() > 0.01


@pytest.mark.parametrize("method", METHODS)
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
def test_model_of_any_size_equals_a_model_of_that_size(name, own, size):
    arguments, images, logits = files.golden_case(name)
    model = model_from_checkpoint(files.golden_path(name), image_size=None, **arguments)
    assert model.config.position_resizing == own
    np.testing.assert_allclose(np.asarray(model(images)), logits, rtol=1e-4, atol=1e-5)
    other = np.random.default_rng(0).uniform(-1, 1, (2, *size, 3)).astype("float32")
    expected = np.asarray(model_from_checkpoint(files.golden_path(name), image_size=size, **arguments)(other))
    # As the golden data: the positions are resized in single precision in a call, in double precision by a load.
    np.testing.assert_allclose(np.asarray(model(other)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_models_of_any_size_round_trip_through_keras_files(tmp_path):
    path, images = tmp_path / "model.keras", np.random.default_rng(0).uniform(-1, 1, (2, 48, 32, 3)).astype("float32")
    model = model_from_checkpoint(files.golden_path("bv_map"), image_size=None)
    expected = np.asarray(model(images))
    model.save(path)
    for again in (keras.models.load_model(path), model_from_checkpoint(path)):
        np.testing.assert_array_equal(np.asarray(again(images)), expected)
    fixed = model_from_checkpoint(path, image_size=(48, 32))
    np.testing.assert_allclose(np.asarray(fixed(images)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_loading_into_a_model_with_another_resizing_method_is_reported():
    arguments, _, _ = files.golden_case("hf_vit")
    own = model_from_checkpoint(files.golden_path("hf_vit"), image_size=None)
    other = type(own).from_config({**own.get_config(), "position_resizing": "reference"})
    report = load_checkpoint(other, files.golden_path("hf_vit"))
    assert any("'reference'" in note and "'bicubic'" in note for note in report.notes)
    chosen = load_checkpoint(
        other, files.golden_path("hf_vit"), method="reference"
    )  # the argument of the user takes precedence
    assert not any("'bicubic'" in note for note in chosen.notes)
    assert not any("'bicubic'" in note for note in load_checkpoint(own, files.golden_path("hf_vit")).notes)


def test_wrong_resizing_methods_are_refused():
    with pytest.raises(ValueError, match="position_resizing"):
        keras_vit.models.ViTConfig(position_resizing="cubic")
    with pytest.raises(ValueError, match="method"):
        AddPositionEmbs(method="cubic")
    assert keras_vit.models.ViTConfig(image_size=None, position_grid=37, patch_size=14).grid == (37, 37)
    assert keras_vit.models.ViTConfig(image_size=224, position_grid=37).position_grid is None
