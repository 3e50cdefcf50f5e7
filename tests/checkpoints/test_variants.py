"""Spellings, prefixes and shapes of the same weights."""

import json
import re

import keras
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.checkpoints import load_checkpoint, model_from_checkpoint, save_checkpoint
from tests.checkpoints import files

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}  # as the golden data


def check(path, name, **arguments):
    defaults, images, logits = files.golden_case(name)
    model = model_from_checkpoint(path, **{**defaults, **arguments})
    np.testing.assert_allclose(np.asarray(model(images)), logits, **TOLERANCE)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "opt/target/", "params/", "img/", "params/img/"])
def test_prefixes_and_other_tensors_are_skipped(prefix, tmp_path):
    tensors = {prefix + name: value for name, value in files.tensors_of("vit_token_legacy").items()}
    if prefix:
        tensors |= {"opt/state/step": np.int64(7), "txt/head/kernel": np.ones((3, 3)), "t": np.float32(1)}
    check(files.write_npz(tmp_path / "no-extension.npz", tensors), "vit_token_legacy")


@pytest.mark.slow
def test_prefix_chooses_one_of_two_models_in_a_file(tmp_path):
    tensors = files.tensors_of("vit_gap")
    both = {f"params/{k}": v for k, v in tensors.items()} | {f"params/ema/{k}": v * 0.5 for k, v in tensors.items()}
    path = files.write_npz(tmp_path / "both.npz", both)
    model = check(path, "vit_gap")
    average = model_from_checkpoint(path, prefix="params/ema/")
    np.testing.assert_array_equal(
        np.asarray(average.get_layer("head").kernel), 0.5 * np.asarray(model.get_layer("head").kernel)
    )
    with pytest.raises(ValueError, match="prefix='nowhere/'"):
        model_from_checkpoint(path, prefix="nowhere/")


@pytest.mark.slow
def test_file_type_is_recognized_by_content_not_by_name(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(files.golden_path("vit_gap").read_bytes())
    check(path, "vit_gap")


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [False, True])
def test_bfloat16_stored_as_void_and_fortran_order_are_read(compressed, tmp_path):
    tensors = {name: files.to_void2(value) for name, value in files.tensors_of("vit_token_legacy").items()}
    tensors["head/kernel"] = np.asfortranarray(files.tensors_of("vit_token_legacy")["head/kernel"])
    path = files.write_npz(tmp_path / "bf16.npz", tensors, compressed)
    _, images, logits = files.golden_case("vit_token_legacy")
    model = model_from_checkpoint(path, image_size=32)
    # Every weight is the golden one, rounded to eight significant bits: no value is lost, moved or transposed.
    rounded = {
        name: np.asarray(value).astype(ml_dtypes.bfloat16).astype("float32")
        for name, value in files.tensors_of("vit_token_legacy").items()
    }
    rounded["head/kernel"] = files.tensors_of("vit_token_legacy")["head/kernel"]
    expected = model_from_checkpoint(files.write_npz(tmp_path / "rounded.npz", rounded), image_size=32)
    for weight, wanted in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(weight), np.asarray(wanted), err_msg=weight.path)
    # Through two blocks.
    np.testing.assert_allclose(np.asarray(model(images)), logits, atol=0.15)
    kernel = files.tensors_of("vit_token_legacy")["head/kernel"]
    np.testing.assert_array_equal(np.asarray(model.get_layer("head").kernel), kernel)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hybrid_stem", "hybrid_blocks", "bit_big_vision", "bit_big_transfer"])
def test_group_norm_weights_of_one_or_four_dimensions_are_read(name, tmp_path):
    tensors = files.tensors_of(name)
    for key, value in tensors.items():
        if re.search(r"(gn\w+|norm-pre-head|group_norm)/\w+$", key):
            tensors[key] = value.reshape((1, 1, 1, -1) if value.ndim == 1 else -1)
    path = files.write_npz(tmp_path / "model.npz", tensors)
    model = check(path, name)
    written = np.load(save_checkpoint(model, tmp_path / "out.npz", format=files.golden_format(name)))
    assert {key: written[key].shape for key in written.files} == {key: value.shape for key, value in tensors.items()}


@pytest.mark.slow
def test_bit_files_with_numbered_convolutions_are_read(tmp_path):
    tensors = {}
    for index, (name, value) in enumerate(files.tensors_of("bit_big_transfer").items()):
        tensors[name.replace("/standardized_conv2d/", f"/standardized_conv2d_{index}/")] = value
    model = check(files.write_npz(tmp_path / "model.npz", tensors), "bit_big_transfer")
    written = np.load(save_checkpoint(model, tmp_path / "out.npz", format="google"))
    assert set(written.files) == set(tensors)


@pytest.mark.slow
@pytest.mark.parametrize("position", ["Transformer/pos_embedding", "Transformer/posembed_input/pos_embedding"])
def test_older_names_of_big_vision_position_embeddings_are_read(position, tmp_path):
    tensors = files.tensors_of("bv_map")
    tensors[position] = tensors.pop("pos_embedding")
    check(files.write_npz(tmp_path / "model.npz", tensors), "bv_map")
    tensors = files.tensors_of("bv_tok")  # then the class token was joined first, and had a position
    table, slot = tensors.pop("pos_embedding"), np.full((1, 1, 32), 0.25, "float32")
    tensors |= {position: np.concatenate([slot, table], axis=1), "cls": tensors["cls"] - slot}
    check(files.write_npz(tmp_path / "token.npz", tensors), "bv_tok")


@pytest.mark.slow
def test_inlined_attention_pooling_under_legacy_names_is_read(tmp_path):
    inlined = {"MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1", "LayerNorm_0": "LayerNorm_2"}
    inlined["MlpBlock_0"] = "MlpBlock_3"
    tensors = {}
    for name, value in files.tensors_of("bv_map").items():
        if name.startswith("MAPHead_0/"):
            module, _, rest = name.removeprefix("MAPHead_0/").partition("/")
            name = f"{inlined.get(module, module)}/{rest}" if rest else module
        tensors[name] = value
    model = check(files.write_npz(tmp_path / "model.npz", tensors), "bv_map")
    assert set(np.load(save_checkpoint(model, tmp_path / "out.npz", format="big_vision")).files) == set(tensors)


@pytest.mark.slow
def test_stacked_and_flat_blocks_are_the_same(tmp_path):
    flat = files.tensors_of("bv_tok")
    stacked = {name: value for name, value in flat.items() if "encoderblock_" not in name}
    for name in [name for name in flat if "encoderblock_0" in name]:
        blocks = [flat[name.replace("encoderblock_0", f"encoderblock_{index}")] for index in range(2)]
        stacked[name.replace("encoderblock_0", "encoderblock")] = np.stack(blocks)
    check(files.write_npz(tmp_path / "model.npz", stacked), "bv_tok")


@pytest.mark.slow
def test_rectangular_grids_are_kept_and_never_guessed(tmp_path):
    source = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=(16, 48), classes=3)
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 48, 3)).astype("float32")
    path = save_checkpoint(source, tmp_path / "ours.npz")
    ours = model_from_checkpoint(path)
    assert ours.get_config()["image_size"] == [16, 48]
    np.testing.assert_array_equal(np.asarray(ours(images)), np.asarray(source(images)))
    foreign = files.write_npz(tmp_path / "foreign.npz", dict(np.load(path)))  # without our metadata
    with pytest.raises(ValueError, match=r"grid=\(height, width\)"):
        model_from_checkpoint(foreign)
    for arguments in ({"grid": (2, 6)}, {"image_size": (16, 48)}):
        model = model_from_checkpoint(foreign, **arguments)
        np.testing.assert_array_equal(np.asarray(model(images)), np.asarray(source(images)))


@pytest.mark.slow
def test_square_number_of_patches_keeps_a_rectangular_grid(tmp_path):
    source = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=(16, 64), classes=3)
    path = save_checkpoint(source, tmp_path / "ours.npz")
    assert model_from_checkpoint(path).get_config()["image_size"] == [16, 64]
    # A table of 16 entries that the caller states to be 4 x 4 is resized.
    model = keras_vit.VisionTransformer(8, 32, 2, 4, 64, image_size=(16, 64), classes=7)
    report = load_checkpoint(model, files.golden_path("vit_token_legacy"), grid=(4, 4))
    assert any("from 4x4 to 2x8" in note for note in report.notes)


HF_PUBLISHED = {
    r"layers\.(\d+)\.attention\.([qkv])_proj": lambda m: (
        f"encoder.layer.{m[1]}.attention.attention.{dict(q='query', k='key', v='value')[m[2]]}"
    ),
    r"layers\.(\d+)\.attention\.o_proj": r"encoder.layer.\1.attention.output.dense",
    r"layers\.(\d+)\.mlp\.fc1": r"encoder.layer.\1.intermediate.dense",
    r"layers\.(\d+)\.mlp\.fc2": r"encoder.layer.\1.output.dense",
    r"layers\.(\d+)\.layernorm": r"encoder.layer.\1.layernorm",
}


def published(tensors):
    result = {}
    for name, value in tensors.items():
        for pattern, replacement in HF_PUBLISHED.items():
            name = re.sub(pattern, replacement, name)
        result[name] = value
    return result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_vit", "hf_deit"])
def test_published_tensor_names_of_hugging_face_are_read(name, tmp_path):
    path = files.write_directory(tmp_path / "model", published(files.tensors_of(name)), files.hf_config(name))
    check(path, name)


@pytest.mark.slow
def test_sharded_hugging_face_files_are_read(tmp_path):
    tensors = files.tensors_of("hf_vit")
    names, weight_map = sorted(tensors), {}
    for index in range(3):
        shard = f"model-0000{index + 1}-of-00003.safetensors"
        save_file({name: tensors[name] for name in names[index::3]}, tmp_path / shard)
        weight_map |= dict.fromkeys(names[index::3], shard)
    (tmp_path / "config.json").write_text(json.dumps(files.hf_config()))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    check(tmp_path, "hf_vit")
    check(index, "hf_vit")
    index.write_text(json.dumps({"weight_map": {**weight_map, names[0]: "../elsewhere.safetensors"}}))
    with pytest.raises(ValueError, match="own directory"):
        model_from_checkpoint(tmp_path)


def test_fields_of_the_hugging_face_configuration_are_applied(tmp_path):
    tensors = {k: v for k, v in files.tensors_of("hf_vit").items() if not re.search(r"[qkv]_proj\.bias", k)}
    changes = dict(
        qkv_bias=False,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=1e-5,
        id2label={str(i): f"c{i}" for i in range(6)},
    )
    model = model_from_checkpoint(files.write_directory(tmp_path / "m", tensors, files.hf_config(**changes)))
    config = model.get_config()
    assert (config["qkv_bias"], config["activation"], config["layer_norm_epsilon"]) == (False, "gelu_tanh", 1e-5)
    assert model.class_names == tuple(f"c{i}" for i in range(6))
    with pytest.raises(ValueError, match="unknown activation 'mystery'"):
        model_from_checkpoint(files.write_directory(tmp_path / "n", tensors, files.hf_config(hidden_act="mystery")))


@pytest.mark.slow
def test_deit_with_and_without_teacher_classifier_is_read(tmp_path):
    # Without a teacher's classifier the distillation token takes part in the attention and is not read.
    tensors = files.tensors_of("hf_deit")
    teacher = files.golden_model("hf_deit")
    tensors = {k: v for k, v in tensors.items() if not k.startswith("distillation_classifier")}
    tensors = {k.replace("cls_classifier", "classifier"): v for k, v in tensors.items()}
    path = files.write_directory(tmp_path / "plain", tensors, files.hf_config("hf_deit"))
    plain = model_from_checkpoint(path)
    images = files.golden_case("hf_deit")[1]
    expected = keras.Model(teacher.inputs[0], teacher.get_layer("head").output)(images)
    np.testing.assert_allclose(np.asarray(plain(images)), np.asarray(expected), **TOLERANCE)
    written = save_checkpoint(plain, tmp_path / "out", format="huggingface")
    again = model_from_checkpoint(written)
    assert again.get_config()["distillation_token"] == "unused"
    # The body alone, as in DINO's and other headless files.
    body = {k.removeprefix("deit."): v for k, v in tensors.items() if k.startswith("deit.")}
    headless = model_from_checkpoint(files.write_directory(tmp_path / "body", body, files.hf_config("hf_deit")))
    assert not headless.get_config()["include_top"]


@pytest.mark.slow
def test_headless_vit_with_and_without_pooler_is_read(tmp_path):
    body = {k.removeprefix("vit."): v for k, v in files.tensors_of("hf_vit").items() if k.startswith("vit.")}
    model = model_from_checkpoint(files.write_directory(tmp_path / "dino", body, files.hf_config()))
    images = files.golden_case("hf_vit")[1]
    full = files.golden_model("hf_vit")
    features = keras.Model(full.inputs[0], full.get_layer("head").input)
    np.testing.assert_allclose(np.asarray(model(images)), np.asarray(features(images)), **TOLERANCE)
    rng = np.random.default_rng(0)
    body |= {
        "pooler.dense.weight": rng.normal(size=(32, 32)).astype("float32"),
        "pooler.dense.bias": np.ones(32, "float32"),
    }
    pooled = model_from_checkpoint(files.write_directory(tmp_path / "pooler", body, files.hf_config()))
    expected = np.tanh(np.asarray(features(images)) @ body["pooler.dense.weight"].T + 1)
    np.testing.assert_allclose(np.asarray(pooled(images)), expected, **TOLERANCE)
    again = model_from_checkpoint(save_checkpoint(pooled, tmp_path / "out", format="huggingface"))
    np.testing.assert_allclose(np.asarray(again(images)), expected, **TOLERANCE)
    classifier = keras_vit.VisionTransformer(
        8, 32, 2, 4, 64, image_size=32, classes=9, activation="gelu", layer_norm_epsilon=1e-12
    )
    report = load_checkpoint(classifier, tmp_path / "dino")
    assert report.reset == ["head/kernel", "head/bias"]


TIMM = dict(hidden_size=32, num_layers=2, num_heads=4, mlp_dim=64, image_size=32, classes=6, activation="gelu")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"pooling": "gap", "class_token": True, "norm_after_pooling": True},
        {"pooling": "gap", "num_registers": 2},
        {"num_registers": 3, "layer_scale": 0.5, "qkv_bias": False},
        {"pooling": "map", "image_size": (16, 40)},
        {"distillation_token": True},
        {"include_top": False},
        {"position_embedding": "none"},
    ],
    ids=str,
)
def test_timm_directories_describe_the_whole_model(arguments, tmp_path):
    model = keras_vit.VisionTransformer(8, **{**TIMM, **arguments})
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(scale=0.3, size=variable.shape))
    again = model_from_checkpoint(save_checkpoint(model, tmp_path / "out", format="timm"))
    images = rng.uniform(-1, 1, (2, *model.inputs[0].shape[1:])).astype("float32")
    # Equal but for a class token whose position was folded into it before the registers join.
    np.testing.assert_allclose(np.asarray(again(images)), np.asarray(model(images)), **TOLERANCE)


@pytest.mark.slow
def test_keras_files_round_trip(tmp_path):
    model = keras_vit.VisionTransformer(
        8, 32, 2, 4, 64, image_size=32, classes=7, num_registers=2, layer_scale=0.1, dropout_rate=0.1,
        position_embedding="learned2d", representation_size=16, activation="gelu",
    )  # fmt: skip
    images = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    expected = np.asarray(model(images))
    for name in ("model.keras", "model.weights.h5"):
        (model.save if name == "model.keras" else model.save_weights)(tmp_path / name)
        copy = type(model).from_config(model.get_config())
        load_checkpoint(copy, tmp_path / name)
        np.testing.assert_array_equal(np.asarray(copy(images)), expected)
    built = model_from_checkpoint(tmp_path / "model.keras")
    np.testing.assert_array_equal(np.asarray(built(images)), expected)
    # Another resolution and other classes, as for fine-tuning.
    larger = type(model).from_config({**model.get_config(), "image_size": 48, "classes": 3})
    report = load_checkpoint(larger, tmp_path / "model.keras")
    assert report.reset and any("resized from 4 to 6" in note for note in report.notes)


@pytest.mark.slow
def test_every_variable_of_keras_files_is_named(tmp_path):
    kinds = [
        keras_vit.BiTResNet((1, 2), image_size=32, classes=3),
        keras_vit.VisionTransformer(4, 32, 1, 4, 64, image_size=32, classes=3, resnet_blocks=(1, 1)),
        keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=3, pooling="map"),
        keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=3, position_embedding="relative"),
        keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=3, position_embedding_at="every_layer"),
        keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=3, distillation_token=True),
        keras_vit.VisionTransformer(
            8, 32, 1, 4, 64, image_size=32, classes=3, pooling="gap", norm_after_pooling=True,
            position_embedding="sincos2d",
        ),
    ]  # fmt: skip
    for index, model in enumerate(kinds):
        rng = np.random.default_rng(index)
        for variable in model.trainable_variables:
            variable.assign(rng.normal(size=variable.shape))
        model.save(tmp_path / "model.keras")
        again = model_from_checkpoint(tmp_path / "model.keras")
        for ours, theirs in zip(model.trainable_variables, again.trainable_variables, strict=True):
            assert ours.path == theirs.path
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


WRAPPERS = ("module.", "model._orig_mod.", "base_model.model.")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_vit", "hf_deit", "hf_dinov2", "hf_siglip_classifier"])
@pytest.mark.parametrize("prefix", WRAPPERS)
def test_a_wrapped_classifier_keeps_its_head(name, prefix, tmp_path):
    tensors = {prefix + key: value for key, value in load_file(files.golden_path(name)).items()}
    path = files.write_directory(tmp_path / "model", tensors, files.hf_config(name))
    model, expected = model_from_checkpoint(path), files.golden_model(name)
    assert model.config == expected.config
    for ours, theirs in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not load_checkpoint(model, path).reset
    written = load_file(save_checkpoint(model, tmp_path / "out", format="huggingface") + "/model.safetensors")
    assert not any(key.startswith(prefix) for key in written)


@pytest.mark.slow
def test_a_wrapped_masked_autoencoder_keeps_its_decoder(tmp_path):
    tensors = {f"module.{key}": value for key, value in load_file(files.golden_path("hf_mae")).items()}
    path = files.write_directory(tmp_path / "model", tensors, files.hf_config("hf_mae"))
    model, expected = (model_from_checkpoint(p, decoder=True) for p in (path, files.golden_path("hf_mae")))
    for ours, theirs in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_classifier_renamed_by_an_adapter_is_refused(tmp_path):
    tensors = load_file(files.golden_path("hf_vit"))
    tensors = {k.replace("classifier.", "classifier.modules_to_save.default."): v for k, v in tensors.items()}
    with pytest.raises(ValueError, match="modules_to_save"):
        model_from_checkpoint(files.write_directory(tmp_path / "model", tensors, files.hf_config(id2label={})))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_dinov2", "timm_dinov2", "vit_pytorch_cls"])
@pytest.mark.parametrize("towers", [("student.backbone.", "teacher.backbone."), ("model.", "model_ema."), ("", "ema.")])
def test_prefix_chooses_one_of_two_encoders_in_a_file(name, towers, tmp_path):
    tensors = load_file(files.golden_path(name))
    both = {towers[0] + key: value for key, value in tensors.items()}
    both |= {towers[1] + key: value * np.float32(0.5) for key, value in tensors.items()}
    config = None if name.startswith("vit") else files.hf_config(name)
    path = files.write_directory(tmp_path / "model", both, config)
    arguments = {"num_heads": 4, "pooling": "token"} if config is None else {}
    with pytest.raises(ValueError) as error:
        model_from_checkpoint(path, **arguments)
    assert all(f"'{tower}" in str(error.value) for tower in towers)
    kernels = [
        np.asarray(model_from_checkpoint(path, prefix=tower, **arguments).get_layer("embedding").kernel)
        for tower in (towers[1], towers[0] or ("dinov2." if name == "hf_dinov2" else ""))
    ]
    np.testing.assert_array_equal(2 * kernels[0], kernels[1])
    with pytest.raises(ValueError, match="prefix='nobody'"):
        model_from_checkpoint(path, prefix="nobody", **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm_dinov2", "timm_dinov3_plus", "hf_dinov2"])
def test_chunked_block_names_are_read(name, tmp_path):
    """dinov2/models/vision_transformer.py, BlockChunk: `blocks.1.7.` is block 7, in the second chunk."""
    tensors = load_file(files.golden_path(name))
    chunked = {re.sub(r"\b(blocks|layer)\.(\d+)\.", r"\1.\2.\2.", key): value for key, value in tensors.items()}
    path = files.write_directory(tmp_path / "model", chunked, files.hf_config(name))
    for ours, theirs in zip(model_from_checkpoint(path).weights, files.golden_model(name).weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    restarted = {re.sub(r"\b(blocks|layer)\.(\d+)\.", r"\1.\2.0.", key): value for key, value in tensors.items()}
    with pytest.raises(ValueError, match=r"(blocks|layer)\.\d\.0"):  # the second number is not the block's
        model_from_checkpoint(files.write_directory(tmp_path / "other", restarted, files.hf_config(name)))
