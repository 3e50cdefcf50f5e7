"""Strict loading: a mismatch raises an error that names the remedy, and leaves the model unchanged."""

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_vit
from keras_vit.checkpoints import load_checkpoint, model_from_checkpoint, save_checkpoint
from tests import tiny
from tests.checkpoints import files

SIZES = dict(patch_size=8, hidden_size=32, num_layers=2, num_heads=4, mlp_dim=64, image_size=32, classes=7)


def snapshot(model):
    return [np.array(variable) for variable in model.variables]


def assert_unchanged(model, before):
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(np.asarray(variable), value)


@pytest.mark.parametrize(
    "name,arguments,message",
    [
        ("vit_token_legacy", {"activation": "gelu"}, "activation='gelu_tanh'"),
        ("vit_token_legacy", {"layer_norm_epsilon": 1e-12}, "layer_norm_epsilon=1e-06"),
        ("vit_token_legacy", {"num_heads": 2}, "num_heads=4"),
        ("vit_token_legacy", {"pooling": "gap"}, "pooling='token'"),
        ("vit_token_legacy", {"mlp_dim": 48}, "mlp_dim=64"),
        ("vit_token_legacy", {"num_layers": 3}, "num_layers=2"),
        ("vit_token_legacy", {"num_registers": 1}, "num_registers=0"),
        ("vit_token_legacy", {"layer_scale": 0.1}, "layer_scale=None"),
        ("vit_token_legacy", {"qkv_bias": False}, "qkv_bias=True"),
        ("vit_token_legacy", {"representation_size": 32}, "representation_size=None"),
        ("vit_token_legacy", {"channels": 1}, "adapt_channels=True"),
        ("vit_token_legacy", {"patch_size": 16}, "patch_size=8"),
        ("vit_token_legacy", {"resnet_blocks": (), "patch_size": 2}, "resnet_blocks=None"),
        ("bv_gap_sincos", {"pooling": "gap"}, "position_embedding='sincos2d'"),
        ("bv_tok", {"pooling": "map"}, "pooling='token'"),
        ("hf_vit", {"classes": 6}, "activation='gelu'"),
        ("hf_vit", {"classes": 6, "activation": "gelu"}, "layer_norm_epsilon=1e-12"),
        ("timm_vit_reg_ls", {"classes": 6, "activation": "gelu", "num_registers": 4}, "layer_scale=1.0"),
        ("timm_vit", {"classes": 6, "activation": "gelu", "pooling": "gap"}, "pooling='token'"),
        ("vit_prelogits", {"num_layers": 1, "representation_size": None}, "representation_size=24"),
    ],
)  # fmt: skip
def test_files_for_other_arguments_of_the_model_are_refused(name, arguments, message):
    with keras.StatelessScope(initialize_variables=False):  # an assignment would be another error
        model = keras_vit.VisionTransformer(**{**SIZES, **arguments})
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        load_checkpoint(model, files.golden_path(name))


@pytest.mark.slow
def test_missing_and_unexpected_tensors_are_listed_with_the_nearest(tmp_path):
    tensors = files.tensors_of("vit_token_legacy")
    tensors["Transformer/encoderblock_1/LayerNorm_2/scales"] = tensors.pop(
        "Transformer/encoderblock_1/LayerNorm_2/scale"
    )
    path = files.write_npz(tmp_path / "model.npz", tensors)
    model = keras_vit.VisionTransformer(**SIZES)
    before = snapshot(model)
    with pytest.raises(ValueError) as error:
        load_checkpoint(model, path)
    text = str(error.value)
    assert (
        "encoderblock_1/LayerNorm_1/scale; nearest on the other side: Transformer/encoderblock_1/LayerNorm_2/scales"
        in text
    )
    assert "Tensors of the file that are not in the model (1):" in text
    assert_unchanged(model, before)
    report = load_checkpoint(model, path, strict=False)
    assert report.missing == ["encoderblock_1/LayerNorm_1/scale"]
    assert report.unexpected == ["Transformer/encoderblock_1/LayerNorm_2/scales"]
    assert len(report.loaded) == len(model.trainable_variables) - 1
    np.testing.assert_array_equal(np.asarray(model.get_layer("cls").tokens), tensors["cls"])


@pytest.mark.slow
def test_heads_are_kept_or_reset():
    path = files.golden_path("vit_token_legacy")
    kernel = files.tensors_of("vit_token_legacy")["head/kernel"]
    same = keras_vit.VisionTransformer(**SIZES)
    assert load_checkpoint(same, path).reset == []
    np.testing.assert_array_equal(np.asarray(same.get_layer("head").kernel), kernel)
    # "reset" gives the initial values, also where something had been learned.
    assert load_checkpoint(same, path, head="reset").reset == ["head/kernel", "head/bias"]
    assert not np.asarray(same.get_layer("head").kernel).any()

    other = keras_vit.VisionTransformer(**{**SIZES, "classes": 3, "head_bias": -6.9})
    report = load_checkpoint(other, path)
    assert report.reset and any("7 classes" in note for note in report.notes)
    np.testing.assert_allclose(np.asarray(other.get_layer("head").bias), -6.9, rtol=1e-6)  # float32 of -6.9
    before = snapshot(other)
    with pytest.raises(ValueError, match="classes=7"):
        load_checkpoint(other, path, head="keep")
    assert_unchanged(other, before)
    with pytest.raises(ValueError, match="`head` must be one of"):
        load_checkpoint(other, path, head="drop")

    headless = keras_vit.VisionTransformer(**SIZES, include_top=False)
    assert {"params/head/bias", "params/head/kernel"} <= set(load_checkpoint(headless, path).dropped)


@pytest.mark.slow
def test_fine_tuning_drops_pre_logits_like_the_reference():
    model = keras_vit.VisionTransformer(**{**SIZES, "num_layers": 1, "classes": 3})
    report = load_checkpoint(model, files.golden_path("vit_prelogits"))
    assert {"params/pre_logits/kernel", "params/head/kernel"} <= set(report.dropped)
    kept = keras_vit.VisionTransformer(**{**SIZES, "num_layers": 1, "classes": 3, "representation_size": 24})
    assert "pre_logits/kernel" in load_checkpoint(kept, files.golden_path("vit_prelogits")).loaded


def test_channels_that_cannot_be_adapted_leave_the_model_unchanged():
    model = keras_vit.VisionTransformer(**{**SIZES, "channels": 2})
    before = snapshot(model)
    with pytest.raises(ValueError, match="channels=3"):
        load_checkpoint(model, files.golden_path("vit_token_legacy"), adapt_channels=True)
    assert_unchanged(model, before)


@pytest.mark.slow
def test_bit_and_vit_files_are_distinguished():
    with pytest.raises(ValueError, match="contains a BiT ResNet"):
        load_checkpoint(keras_vit.VisionTransformer(**SIZES), files.golden_path("bit_big_vision"))
    with pytest.raises(ValueError, match="contains a Vision Transformer"):
        load_checkpoint(keras_vit.BiTResNet((1, 1), image_size=32, classes=7), files.golden_path("vit_gap"))
    with pytest.raises(ValueError, match="block_sizes="):
        load_checkpoint(keras_vit.BiTResNet((1, 2), image_size=32, classes=7), files.golden_path("bit_big_vision"))


def test_heads_of_a_timm_file_are_not_guessed():
    with pytest.raises(ValueError, match="num_heads=..."):
        model_from_checkpoint(files.golden_path("timm_vit"))


@pytest.mark.parametrize(
    "format,arguments,reason",
    [
        ("google", {"activation": "gelu"}, "activation='gelu'"),
        ("google", {"pooling": "map"}, "pooling='map'"),
        ("google", {"num_registers": 2}, "num_registers=2"),
        ("google", {"position_embedding_at": "every_layer"}, "position_embedding_at"),
        ("big_vision", {"resnet_blocks": (), "patch_size": 2}, "resnet_blocks"),
        ("big_vision", {"position_embedding": "learned2d"}, "position_embedding='learned2d'"),
        ("huggingface", {"pooling": "gap", "class_token": True}, "class_token=True"),
        ("huggingface", {"representation_size": 8}, "pre_logits"),
        ("timm", {"layer_norm_epsilon": 1e-12, "activation": "gelu"}, "layer_norm_epsilon"),
        ("timm", {"resnet_blocks": (), "patch_size": 2}, "resnet_numerics"),
    ],
)
def test_formats_reject_models_that_their_readers_cannot_rebuild(format, arguments, reason, tmp_path):
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.VisionTransformer(**{**SIZES, **arguments})
    with pytest.raises(ValueError, match=reason):
        save_checkpoint(model, tmp_path / "out", format=format)
    assert list(tmp_path.iterdir()) == []


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    model = files.golden_model("vit_gap")
    path = tmp_path / "model.npz"
    path.write_bytes(b"what was there")
    monkeypatch.setattr("keras_vit.checkpoints.save._Writer.produce", lambda self, name: 1 / 0)
    for format, target in (("google", path), ("big_vision", path)):
        with pytest.raises(ZeroDivisionError):
            save_checkpoint(model, target, format=format)
    hf = files.golden_model("hf_vit")
    with pytest.raises(ZeroDivisionError):
        save_checkpoint(hf, tmp_path / "directory", format="huggingface")
    assert [item.name for item in tmp_path.iterdir()] == ["model.npz"] and path.read_bytes() == b"what was there"


def test_wrong_arguments_of_saving_are_refused(tmp_path):
    model = files.golden_model("vit_gap")
    with pytest.raises(ValueError, match="Did you mean 'google'"):
        save_checkpoint(model, tmp_path / "x", format="gogle")
    with pytest.raises(ValueError, match="`naming`"):
        save_checkpoint(model, tmp_path / "x", naming="published")
    with pytest.raises(ValueError, match="`stacked`"):
        save_checkpoint(model, tmp_path / "x", stacked=True)
    with pytest.raises(ValueError, match="class_names"):
        hf = files.golden_model("hf_vit")
        save_checkpoint(hf, tmp_path / "x", format="huggingface", class_names=["one"])


def big_transfer(tmp_path):
    """Return a file with the names of the published BiT files, without our metadata."""
    return files.write_npz(tmp_path / "BiT-M.npz", files.tensors_of("bit_big_transfer"))


def bit(**arguments):
    return keras_vit.BiTResNet((1, 1), image_size=32, classes=7, **arguments)


@pytest.mark.slow
def test_pool_padding_of_published_bit_files_is_compared(tmp_path, caplog):
    # Their max-pooling was padded with zeros, which silently changes the outputs.
    path = big_transfer(tmp_path)
    with caplog.at_level("WARNING", logger="absl"):
        report = load_checkpoint(bit(), path)
        model_from_checkpoint(path)
    assert sum("pool_padding='zeros'" in record.getMessage() for record in caplog.records) == 2
    assert any("pool_padding='zeros'" in note for note in report.notes)
    caplog.clear()
    with caplog.at_level("WARNING", logger="absl"):
        load_checkpoint(bit(pool_padding="zeros"), path)
        assert model_from_checkpoint(path, pool_padding="zeros").config.pool_padding == "zeros"
    assert not caplog.records


@pytest.mark.slow
def test_pool_padding_of_other_bit_files_is_compared(tmp_path):
    with pytest.raises(ValueError, match="pool_padding='infinity'"):  # as big_vision computes
        load_checkpoint(bit(pool_padding="zeros"), files.golden_path("bit_big_vision"))
    load_checkpoint(bit(pool_padding="edge"), files.golden_path("bit_big_vision"))  # the same function
    model = bit(pool_padding="zeros")
    ours = save_checkpoint(model, tmp_path / "x.npz")
    assert model_from_checkpoint(ours).config.pool_padding == "zeros"
    with pytest.raises(ValueError, match="pool_padding='zeros'"):
        load_checkpoint(bit(), ours)
    model.save(tmp_path / "x.keras")
    with pytest.raises(ValueError, match="pool_padding='zeros'"):
        load_checkpoint(bit(), tmp_path / "x.keras")
    with pytest.raises(ValueError, match="pool_padding='zeros'"):  # big_vision would compute something else
        save_checkpoint(model, tmp_path / "y.npz", format="big_vision")


@pytest.mark.slow
def test_message_names_the_variants_of_file_and_model(tmp_path):
    arguments = dict(num_layers=12, image_size=32, classes=2)
    path = save_checkpoint(keras_vit.create_model("ViT-Ti/16", **arguments), tmp_path / "x.npz")
    with pytest.raises(ValueError, match="The file is a ViT-Ti/16; the model is ViT-S/16"):
        load_checkpoint(keras_vit.create_model("ViT-S/16", **arguments), path)


@pytest.mark.slow
def test_keras_files_with_frozen_layers_load_and_with_changed_layers_are_refused(tmp_path):
    model = keras_vit.VisionTransformer(**SIZES)
    model.get_layer("embedding").trainable = False
    model.get_layer("encoderblock_1").mlp.trainable = False
    model.get_layer("head").bias.trainable = False
    model.save(tmp_path / "frozen.keras")
    again = model_from_checkpoint(tmp_path / "frozen.keras")
    assert [v.path for v in again.trainable_variables] == [v.path for v in model.trainable_variables]
    model.quantize("int8", filters="query")
    model.save(tmp_path / "changed.keras")
    with pytest.raises(ValueError, match="query"):
        model_from_checkpoint(tmp_path / "changed.keras")


@pytest.mark.slow
def test_loading_sets_the_kernels_of_a_model_with_lora(tmp_path):
    source, model = tiny.randomize(keras_vit.VisionTransformer(**SIZES)), keras_vit.VisionTransformer(**SIZES)
    query = model.get_layer("encoderblock_0").attention.query
    query.enable_lora(2)
    factor = np.array(query.lora_kernel_a)
    report = load_checkpoint(model, save_checkpoint(source, tmp_path / "vit.npz"))
    assert not report.problems()
    np.testing.assert_array_equal(query.lora_kernel_a, factor)
    images = np.ones((1, 32, 32, 3), "float32")
    np.testing.assert_allclose(model(images), source(images), rtol=1e-5, atol=1e-5)  # the other factor is zero


@pytest.mark.slow
def test_saved_weights_of_a_model_with_lora_are_merged(tmp_path):
    source = tiny.randomize(keras_vit.VisionTransformer(**SIZES))
    query = source.get_layer("encoderblock_0").attention.query
    query.enable_lora(2)
    query.lora_kernel_b.assign(np.ones(query.lora_kernel_b.shape))
    source.save_weights(tmp_path / "lora.weights.h5")
    model = keras_vit.VisionTransformer(**SIZES)
    load_checkpoint(model, tmp_path / "lora.weights.h5")
    np.testing.assert_array_equal(model.get_layer("encoderblock_0").attention.query.kernel, query.kernel)


@pytest.mark.slow
@pytest.mark.parametrize("project", ["timm", "huggingface"])
@pytest.mark.parametrize(("width", "heads"), [(128, 2), (192, 3), (384, 6)])
def test_attention_heads_are_64_wide_by_default(project, width, heads, tmp_path):
    """As in every model of "An Image is Worth 16x16 Words", table 1, and in DeiT's ViT-Ti and ViT-S."""
    model = keras_vit.VisionTransformer(8, width, 1, 1, 16, image_size=16, classes=2, activation="gelu")
    save_checkpoint(model, tmp_path / "written", format=project)
    tensors = load_file(tmp_path / "written" / "model.safetensors")
    bare = files.write_directory(tmp_path / "bare", tensors)  # neither a configuration nor metadata
    assert model_from_checkpoint(bare).get_config()["num_heads"] == heads


@pytest.mark.slow
def test_position_embeddings_of_timm_tokens_are_added_to_the_tokens(tmp_path):
    """The golden file has entries for patches only. With entries, and tokens that are smaller by them, it is the same.

    timm/models/vision_transformer.py, _pos_embed: without `no_embed_class` the table is added to all tokens.
    """
    tensors, (_, images, logits) = files.tensors_of("timm_vit_reg_ls"), files.golden_case("timm_vit_reg_ls")
    entries = np.random.default_rng(0).normal(size=(1, 5, 32)).astype("float32")
    tensors["cls_token"] = tensors["cls_token"] - entries[:, :1]
    tensors["reg_token"] = tensors["reg_token"] - entries[:, 1:]
    tensors["pos_embed"] = np.concatenate([entries, tensors["pos_embed"]], axis=1)
    model = model_from_checkpoint(files.write_directory(tmp_path / "model", tensors), num_heads=4)
    # As the golden file itself, and the rounding of a difference and a sum.
    np.testing.assert_allclose(np.asarray(model(images)), logits, rtol=1e-4, atol=1e-4)
