"""Position tables of every grid, in every format, with every kind of prefix token."""

import functools
import json

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_vit
from keras_vit.checkpoints import CheckpointError, load_checkpoint, model_from_checkpoint, save_checkpoint
from tests import selection, tiny
from tests.checkpoints import files

GRIDS = [(2, 8), (4, 6), (1, 9), (3, 3)]
TOKENS = {
    "class token": {"pooling": "token"},
    "none": {"pooling": "gap"},
    "registers": {"pooling": "token", "num_registers": 2},
    "registers alone": {"pooling": "gap", "num_registers": 2},
    "distillation": {"pooling": "token", "distillation_token": True},
}
FORMATS = {
    "google": ("class token", "none"),
    "big_vision": ("class token", "none"),
    "huggingface": ("class token", "distillation"),
    "timm": tuple(TOKENS),
    "keras": tuple(TOKENS),
    "weights.h5": tuple(TOKENS),
}
CASES = [(format, tokens) for format, kinds in FORMATS.items() for tokens in kinds]
# Equal, except for a class token whose position was added before the sum with the patches.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@functools.cache
def make(grid, tokens="class token", activation="gelu_tanh", seed=0):
    """Returns a model, which the tests share; its weights are random, or zeros for seed None."""
    size = tuple(4 * edge for edge in grid)
    arguments = dict(image_size=size, classes=3, activation=activation, **TOKENS[tokens])
    model = keras_vit.VisionTransformer(4, 8, 1, 2, 16, **arguments)
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(np.zeros(variable.shape) if seed is None else rng.normal(scale=0.3, size=variable.shape))
    return model


def outputs(model, grid):
    images = np.random.default_rng(1).uniform(-1, 1, (2, 4 * grid[0], 4 * grid[1], 3)).astype("float32")
    return keras.ops.convert_to_numpy(model(images))


def write(model, directory, format):
    if format in ("keras", "weights.h5"):
        path = directory / ("model.keras" if format == "keras" else "model.weights.h5")
        (model.save if format == "keras" else model.save_weights)(path)
        return path
    return save_checkpoint(model, directory / ("x.npz" if format in ("google", "big_vision") else "x"), format=format)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "tokens", "grid"),
    selection.cases(
        [(*case, grid) for case in CASES for grid in GRIDS],
        lambda format, tokens, grid: (tokens, grid) == (FORMATS[format][0], (2, 8)),
        lambda format, tokens, grid: (
            pytest.mark.slow if grid == (2, 8) or tokens == FORMATS[format][-1] else selection.EXHAUSTIVE
        ),
    ),
    ids=str,
)
def test_round_trip_keeps_the_grid(format, tokens, grid, tmp_path):
    model = make(grid, tokens)
    expected = outputs(model, grid)
    path = write(model, tmp_path, format)
    copy = make(grid, tokens, seed=None)
    report = load_checkpoint(copy, path)
    assert not report.problems() and not any("resized" in note for note in report.notes)
    np.testing.assert_allclose(outputs(copy, grid), expected, **TOLERANCE)
    if format != "weights.h5":  # weights alone do not show their heads, nor the grid
        np.testing.assert_allclose(outputs(model_from_checkpoint(path), grid), expected, **TOLERANCE)


@pytest.mark.parametrize(
    "grid", [*GRIDS[:2], *(pytest.param(grid, marks=pytest.mark.slow) for grid in GRIDS[2:])], ids=str
)
@pytest.mark.parametrize("format,tokens", [case for case in CASES if case[0] in ("google", "big_vision", "timm")])
def test_files_without_grid_load_unchanged_into_equal_tables(format, tokens, grid, tmp_path):
    """Into a model whose table is as long, the table is loaded as it is."""
    model = make(grid, tokens)
    path = write(model, tmp_path, format)
    if format == "timm":  # without configuration and metadata
        tensors = load_file(tmp_path / "x" / "model.safetensors")
        path = files.write_directory(tmp_path / "foreign", tensors)
    else:
        path = files.write_npz(tmp_path / "foreign.npz", dict(np.load(path)))
    copy = make(grid, tokens, "gelu" if format == "timm" else "gelu_tanh", seed=None)
    report = load_checkpoint(copy, path)
    assert not report.problems() and not any("resized" in note for note in report.notes)
    tables = [np.asarray(m.get_layer("posembed_input").pos_embedding) for m in (copy, model)]
    np.testing.assert_allclose(tables[0][:, -grid[0] * grid[1] :], tables[1][:, -grid[0] * grid[1] :])


def test_class_token_in_published_files_has_a_position_embedding(tmp_path):
    # 25 entries were read as 5 x 5 patches, though the file holds `cls`.
    path = files.write_npz(tmp_path / "x.npz", dict(np.load(write(make((4, 6)), tmp_path, "google"))))
    with pytest.raises(CheckpointError, match=r"24 position embeddings.*grid=\(height, width\)"):
        model_from_checkpoint(path)
    assert model_from_checkpoint(path, grid=(4, 6)).get_config()["image_size"] == [16, 24]


@pytest.mark.slow
def test_ambiguous_position_embeddings_of_timm_are_refused(tmp_path):
    # Neither 30 patches nor 31, without an entry of the class token, form a square.
    write(make((5, 6), activation="gelu"), tmp_path, "timm")
    path = files.write_directory(tmp_path / "foreign", load_file(tmp_path / "x" / "model.safetensors"))
    with pytest.raises(CheckpointError, match="31 position embeddings with 1 prefix tokens can be read in two ways"):
        model_from_checkpoint(path, num_heads=2)
    assert model_from_checkpoint(path, num_heads=2, grid=(5, 6)).get_config()["image_size"] == [20, 24]


@pytest.mark.slow
def test_equal_numbers_of_patches_are_not_resized(tmp_path):
    # 16 patches of a 2 x 8 model were resized from a guessed 4 x 4.
    path = files.write_npz(tmp_path / "x.npz", dict(np.load(write(make((2, 8)), tmp_path, "google"))))
    model = model_from_checkpoint(path, image_size=(8, 32))
    np.testing.assert_array_equal(outputs(model, (2, 8)), outputs(make((2, 8)), (2, 8)))


def test_assumed_grid_is_logged(tmp_path, caplog):
    path = files.write_npz(tmp_path / "x.npz", dict(np.load(write(make((3, 3)), tmp_path, "google"))))
    with caplog.at_level("INFO", logger="absl"):
        model_from_checkpoint(path)
    assert any("3x3 is assumed" in record.getMessage() for record in caplog.records)


def test_grid_that_does_not_match_the_table_is_refused(tmp_path):
    path = write(make((2, 8)), tmp_path, "google")
    with pytest.raises(CheckpointError, match=r"grid.*\(3, 4\)"):
        model_from_checkpoint(path, grid=(3, 4))


def test_extra_position_entry_of_big_vision_is_the_class_token(tmp_path):
    tensors = dict(np.load(write(make((3, 3)), tmp_path, "google")))
    tensors["pos_embedding"] = tensors.pop("Transformer/posembed_input/pos_embedding")
    model = model_from_checkpoint(files.write_npz(tmp_path / "x.npz", tensors))
    np.testing.assert_allclose(outputs(model, (3, 3)), outputs(make((3, 3)), (3, 3)), **TOLERANCE)


def test_grid_of_the_file_precedes_the_grid_of_the_model(tmp_path):
    """A table of 2 x 8 in a model of 4 x 4: as many entries, at other positions."""
    source, model = make((2, 8), "none"), make((4, 4), "none", seed=None)
    report = load_checkpoint(model, write(source, tmp_path, "google"))
    assert any("from 2x8 to 4x4" in note for note in report.notes)
    table = keras.ops.convert_to_numpy(source.get_layer("posembed_input").pos_embedding).reshape(2, 8, 8)
    rows, columns = np.linspace(0, 1, 4), np.linspace(0, 7, 4)  # the corners stay where they are
    wide = np.stack([[np.interp(columns, range(8), row[:, c]) for c in range(8)] for row in table])  # [2, c, 4]
    expected = np.stack([wide[0] * (1 - weight) + wide[1] * weight for weight in rows]).transpose(0, 2, 1)
    found = keras.ops.convert_to_numpy(model.get_layer("posembed_input").pos_embedding).reshape(4, 4, 8)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_position_embeddings_of_timm_precede_the_pretraining_size_in_the_configuration(tmp_path):
    keras_vit.save_checkpoint(tiny.model(activation="gelu"), tmp_path / "noted", format="timm")
    config = json.loads((tmp_path / "noted" / "config.json").read_text())
    del config["model_args"]["img_size"]
    config["pretrained_cfg"]["input_size"] = [3, 64, 64]
    tensors = load_file(tmp_path / "noted" / "model.safetensors")  # without the metadata
    assert files.config_of(files.write_directory(tmp_path / "bare", tensors, config)).image_size == tiny.SIZE


@pytest.mark.slow
@pytest.mark.parametrize("stated", ["img_size", "input_size"])
def test_sizes_of_timm_are_height_and_width(stated, tmp_path):
    source = tiny.model(activation="gelu", image_size=(16, 48))
    keras_vit.save_checkpoint(source, tmp_path / "noted", format="timm")
    config = json.loads((tmp_path / "noted" / "config.json").read_text())
    assert config["model_args"]["img_size"] == [16, 48] and config["pretrained_cfg"]["input_size"] == [3, 16, 48]
    if stated == "input_size":
        del config["model_args"]["img_size"]
    else:
        config["pretrained_cfg"]["input_size"] = [3, 64, 64]
    tensors = load_file(tmp_path / "noted" / "model.safetensors")  # without the metadata
    path = files.write_directory(tmp_path / "bare", tensors, config)
    assert tuple(files.config_of(path).image_size) == (16, 48)
    images = np.random.default_rng(0).uniform(-1, 1, (1, 16, 48, 3)).astype("float32")
    np.testing.assert_allclose(model_from_checkpoint(path, num_heads=2)(images), source(images), atol=1e-5)


@pytest.mark.slow
def test_sizes_of_transformers_are_height_and_width(tmp_path):
    source = tiny.model(activation="gelu", layer_norm_epsilon=1e-12, image_size=(16, 48))
    keras_vit.save_checkpoint(source, tmp_path / "noted", format="huggingface")
    config = json.loads((tmp_path / "noted" / "config.json").read_text())
    preprocessor = json.loads((tmp_path / "noted" / "preprocessor_config.json").read_text())
    assert list(config["image_size"]) == [16, 48] and preprocessor["size"] == {"height": 16, "width": 48}
    tensors = load_file(tmp_path / "noted" / "model.safetensors")
    path = files.write_directory(tmp_path / "bare", tensors, config)
    assert tuple(files.config_of(path).image_size) == (16, 48)
