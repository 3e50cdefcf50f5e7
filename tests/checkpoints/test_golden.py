"""Golden files of five projects: models built from a file reproduce its outputs, and are written back unchanged."""

import os

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_vit
from keras_vit.checkpoints import load_checkpoint, model_from_checkpoint, save_checkpoint
from keras_vit.checkpoints.formats import npz, safetensors
from tests.checkpoints import files

# Single-precision sums in another order; the golden data asks for the same.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.slow
@pytest.mark.parametrize("name", files.FLAX + files.TORCH)
def test_golden_file_gives_its_logits_and_is_written_back_unchanged(name, tmp_path):
    arguments, images, logits = files.golden_case(name)
    model = files.golden_model(name, **arguments)
    np.testing.assert_allclose(np.asarray(model(images)), logits, **TOLERANCE)

    # Bit for bit: the same names, shapes, dtypes and bytes.
    expected = files.tensors_of(name)
    format = files.golden_format(name)
    path = save_checkpoint(model, tmp_path / ("out.npz" if name in files.FLAX else "out"), format=format)
    written = dict(np.load(path)) if name in files.FLAX else load_file(os.path.join(path, "model.safetensors"))
    assert set(written) == set(expected)
    for key, value in expected.items():
        assert written[key].shape == value.shape and written[key].dtype == value.dtype, key
        assert written[key].tobytes() == value.tobytes(), key

    # The written file states everything that the source left open.
    assert files.config_of(path) == model.config


@pytest.mark.slow
def test_golden_file_loads_into_an_existing_model():
    _, images, logits = files.golden_case("vit_token_legacy")
    model = keras_vit.VisionTransformer(8, 32, 2, 4, 64, image_size=32, classes=7)
    report = load_checkpoint(model, files.golden_path("vit_token_legacy"))
    assert len(report.loaded) == len(model.trainable_variables) and not report.problems() and not report.reset
    np.testing.assert_allclose(np.asarray(model(images)), logits, **TOLERANCE)


SOURCES = [("vit_token_legacy", npz.NpzSource), ("hf_vit", safetensors.SafetensorsSource)]


@pytest.mark.parametrize("name,source", SOURCES)
def test_every_tensor_is_read_once(name, source, monkeypatch):
    taken: list[str] = []
    read = source.read
    monkeypatch.setattr(source, "read", lambda self, name: taken.append(name) or read(self, name))
    assert not hasattr(source, "blocks")  # there is no other way to the data
    model = model_from_checkpoint(files.golden_path(name))
    assert len(taken) == len(set(taken)) and len(taken) >= len(model.trainable_variables)


@pytest.mark.slow
def test_encoded_tokens_match_the_reference():
    data = np.load(files.golden_path("vit_token_legacy"))
    model = model_from_checkpoint(files.golden_path("vit_token_legacy"), pooling=None, include_top=False)
    np.testing.assert_allclose(np.asarray(model(data["image"])), data["encoded"], **TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source,format", [("vit_token_legacy", "big_vision"), ("bv_tok", "google"), ("bv_map", "timm")]
)
def test_formats_are_converted_with_equal_logits(source, format, tmp_path):
    _, images, logits = files.golden_case(source)
    model = files.golden_model(source)
    path = save_checkpoint(model, tmp_path / ("out" if format == "timm" else "out.npz"), format=format)
    converted = model_from_checkpoint(path)
    np.testing.assert_allclose(np.asarray(converted(images)), logits, **TOLERANCE)


def test_big_vision_folds_the_class_tokens_position(tmp_path):
    model = files.golden_model("vit_token_legacy")
    path = save_checkpoint(model, tmp_path / "out.npz", format="big_vision")
    source, written = files.tensors_of("vit_token_legacy"), np.load(path)
    table = source["Transformer/posembed_input/pos_embedding"]
    np.testing.assert_array_equal(written["cls"], source["cls"] + table[:, :1])
    np.testing.assert_array_equal(written["pos_embedding"], table[:, 1:])


@pytest.mark.slow
def test_stacked_blocks_and_naming_schemes_are_written_on_request(tmp_path):
    model = files.golden_model("bv_tok")
    stacked = np.load(save_checkpoint(model, tmp_path / "stacked.npz", format="big_vision", stacked=True))
    kernel = stacked["Transformer/encoderblock/MlpBlock_0/Dense_0/kernel"]
    flat = files.tensors_of("bv_tok")
    for index in range(2):
        name = f"Transformer/encoderblock_{index}/MlpBlock_0/Dense_0/kernel"
        np.testing.assert_array_equal(kernel[index], flat[name])
    model = files.golden_model("vit_token_linen")
    legacy = np.load(save_checkpoint(model, tmp_path / "legacy.npz", naming="legacy"))
    assert "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel" in legacy.files
    hybrid = files.golden_model("hybrid_blocks")
    for naming, dimensions in (("legacy", 4), ("linen", 1)):  # of the group norms of each version of Flax
        written = np.load(save_checkpoint(hybrid, tmp_path / f"hybrid_{naming}.npz", naming=naming))
        assert written["gn_root/scale"].ndim == dimensions
    model = files.golden_model("hf_vit")
    published = load_file(
        os.path.join(
            save_checkpoint(model, tmp_path / "hf", format="huggingface", naming="published"), "model.safetensors"
        )
    )
    assert "vit.encoder.layer.0.attention.attention.query.weight" in published


@pytest.mark.slow
def test_bfloat16_is_written_as_the_reference_stores_it(tmp_path):
    model = files.golden_model("vit_gap")
    path = save_checkpoint(model, tmp_path / "out.npz", dtype="bfloat16")
    assert np.load(path)["head/kernel"].dtype == np.dtype("V2")
    again = model_from_checkpoint(path)
    kernel = np.asarray(model.get_layer("head").kernel)
    # bfloat16 keeps eight significant bits.
    np.testing.assert_allclose(np.asarray(again.get_layer("head").kernel), kernel, rtol=2**-8)
