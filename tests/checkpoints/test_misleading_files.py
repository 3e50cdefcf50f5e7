"""Inconsistent files, and headers that would cause a hang or fill the memory, are rejected immediately."""

import functools
import io
import itertools
import json
import os
import pathlib
import re
import tempfile
import zipfile

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_vit
from keras_vit.checkpoints import CheckpointError, architecture_of, load_checkpoint, model_from_checkpoint
from keras_vit.checkpoints import save_checkpoint as save
from tests.checkpoints import files


def refused(path, match, **arguments):
    """Every entry point refuses the file, and names it, before a model is built."""
    for function in (architecture_of, model_from_checkpoint):
        with pytest.raises(CheckpointError, match=match) as error:
            function(path, **arguments)
        assert os.fspath(path) in str(error.value)


def golden_directory(tmp_path, name="hf_vit", drop="", **changes):
    tensors = {k: v for k, v in files.tensors_of(name).items() if not drop or not re.search(drop, k)}
    return files.write_directory(tmp_path / "model", tensors, files.hf_config(name, **changes))


@pytest.mark.parametrize(
    "argument,changes",
    [
        ("num_layers", {"num_hidden_layers": 3}),
        ("hidden_size", {"hidden_size": 64}),
        ("mlp_dim", {"intermediate_size": 10**6}),
        ("patch_size", {"patch_size": 16}),
        ("channels", {"num_channels": 1}),
        ("qkv_bias", {"qkv_bias": False}),
        ("image_size", {"image_size": 64}),
        ("image_size", {"image_size": "32"}),
        ("image_size", {"image_size": -5}),
        ("image_size", {"image_size": int("9" * 400)}),
        ("model_type", {"model_type": "swin"}),
        ("7 classes", {"id2label": {str(index): str(index) for index in range(7)}}),
        ("layer_norm_eps", {"layer_norm_eps": int("9" * 400)}),
        ("num_attention_heads", {"num_attention_heads": 0}),
    ],
)
def test_configurations_that_contradict_the_tensors_are_refused(argument, changes, tmp_path):
    # Each of them silently built the model of the tensors, or raised an OverflowError.
    refused(golden_directory(tmp_path, **changes), argument)


def test_missing_blocks_and_heads_of_hugging_face_are_refused(tmp_path):
    refused(golden_directory(tmp_path, drop=r"layers\.1\."), "num_layers=2")
    refused(golden_directory(tmp_path, drop=r"layers\.0\."), "no block 0")
    config = {"architectures": ["ViTForImageClassification"]}
    refused(golden_directory(tmp_path, drop="^classifier", **config), "ViTForImageClassification")


@pytest.fixture(scope="module")
def timm_path(tmp_path_factory):
    """A directory in timm's format with our metadata, which the tests read with other configurations."""
    model = files.golden_model("timm_vit_reg_ls", num_heads=4)
    return save(model, tmp_path_factory.mktemp("misleading") / "timm", format="timm")


@pytest.mark.parametrize(
    "argument,changes",
    [
        ("num_layers", {"depth": 3}),
        ("hidden_size", {"embed_dim": 64}),
        ("mlp_dim", {"mlp_ratio": 4.0}),
        ("patch_size", {"patch_size": 4}),
        ("num_registers", {"reg_tokens": 1}),
        ("qkv_bias", {"qkv_bias": False}),
        ("img_size|image_size", {"img_size": 64}),
        ("channels", {"in_chans": 4}),
    ],
)
def test_timm_configurations_that_contradict_the_tensors_are_refused(argument, changes, timm_path):
    config = timm_config(timm_path)
    config["model_args"] |= changes
    refused(timm_path, argument, config=config)
    refused(timm_path, "classes", config={**config, "num_classes": 7, "model_args": {}})


def timm_config(path):
    with open(os.path.join(path, "config.json")) as file:
        return json.load(file)


@pytest.mark.parametrize("count", [1, 4])
def test_registers_in_the_architecture_name_of_timm_are_required(count, timm_path, tmp_path):
    """A model without registers does not have this architecture."""
    config = {**timm_config(timm_path), "architecture": f"vit_medium_patch16_reg{count}_gap_256", "model_args": {}}
    tensors = load_file(os.path.join(timm_path, "model.safetensors"))
    del tensors["reg_token"]
    refused(files.write_directory(tmp_path / "bare", tensors, config), f"num_registers={count}", num_heads=4)


@pytest.mark.parametrize("name", ["qk_norm", "pre_norm", "dynamic_img_pad"])
def test_unsupported_options_of_timm_are_refused(name, timm_path):
    config = timm_config(timm_path)
    config["model_args"][name] = True
    refused(timm_path, name, config=config)
    config["model_args"][name] = False
    assert architecture_of(timm_path, config=config)[1] == architecture_of(timm_path)[1]
    config["model_args"]["patch_drop_rate"] = 0.5  # only in training
    assert architecture_of(timm_path, config=config)[1] == architecture_of(timm_path)[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"pooling": "gap", "class_token": True, "pool_prefix_tokens": True},
        {"pooling": "map", "num_registers": 2},
        {"pooling": "map", "class_token": True},
    ],
)
def test_tokens_pooled_by_timm_are_compared(arguments, tmp_path):
    """Its attention pooling leaves prefix tokens out by default, which was not noticed."""
    sizes = {"patch_size": 8, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 24, "image_size": 16}
    model = keras_vit.VisionTransformer(**sizes, **arguments, activation="gelu", classes=2)
    path = save(model, tmp_path / "timm", format="timm")
    config = timm_config(path)
    assert config["model_args"]["pool_include_prefix"] is True
    assert model_from_checkpoint(path, config=config).config == model.config
    del config["model_args"]["pool_include_prefix"]
    tensors = load_file(os.path.join(path, "model.safetensors"))  # without our metadata
    bare = files.write_directory(tmp_path / "bare", tensors, config)
    if arguments["pooling"] == "map":
        refused(bare, "pool_include_prefix")
    else:
        assert architecture_of(bare)[1]["pool_prefix_tokens"] is False


@functools.cache
def own_content():
    """The content of an .npz file with our metadata."""
    with tempfile.TemporaryDirectory() as directory:
        path = save(files.golden_model("vit_token_legacy"), os.path.join(directory, "own.npz"))
        return pathlib.Path(path).read_bytes()


def own_npz(tmp_path, drop="", note=None, **changes):
    """Write a file with our metadata, without some of its tensors or with other metadata."""
    path = tmp_path / "own.npz"
    with zipfile.ZipFile(io.BytesIO(own_content())) as archive:
        comment = archive.comment.removeprefix(b"keras_vit:")
        members = {name: archive.read(name) for name in archive.namelist() if not drop or not re.search(drop, name)}
    content = json.loads(comment)
    content["arguments"] |= changes
    content |= note or {}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.comment = b"keras_vit:" + json.dumps(content).encode()
    return path


@pytest.mark.slow
def test_files_without_tensors_stated_in_their_metadata_are_refused(tmp_path):
    refused(own_npz(tmp_path, drop="encoderblock_1/"), "num_layers=2")
    refused(own_npz(tmp_path, drop="^head/"), "include_top=True")
    refused(own_npz(tmp_path, drop="^cls"), "class_token=True")
    model = keras_vit.VisionTransformer(8, 32, 2, 4, 64, image_size=32, classes=7)
    with pytest.raises(CheckpointError, match="include_top"):  # it reset the head of the model
        load_checkpoint(model, own_npz(tmp_path, drop="^head/"))


@pytest.mark.parametrize(
    "argument,changes",
    [
        ("hidden_size", {"hidden_size": 48}),
        ("mlp_dim", {"mlp_dim": 65}),
        ("num_heads", {"num_heads": 2}),
        ("classes", {"classes": 8}),
        ("patch_size", {"patch_size": 16}),
        ("channels", {"channels": 1}),
        ("pooling", {"pooling": "map"}),
        ("pooling", {"pooling": 7}),
        ("position_embedding", {"position_embedding": "none"}),
        ("layer_scale", {"layer_scale": 0.1}),
        ("layer_norm_epsilon", {"layer_norm_epsilon": None}),
        ("layer_norm_epsilon", {"layer_norm_epsilon": "abc"}),
        ("distillation_token", {"distillation_token": True}),
        ("activation", {"activation": "no_such_function"}),
    ],
)
def test_metadata_that_contradict_the_tensors_are_refused(argument, changes, tmp_path):
    with pytest.raises(CheckpointError, match=argument) as error:
        model_from_checkpoint(own_npz(tmp_path, **changes))
    assert "own.npz" in str(error.value)


@pytest.mark.parametrize(
    "match,note",
    [
        ("version 999", {"version": 999}),
        ("arguments", {"arguments": [1]}),
        ("grid", {"grid": [4, 5]}),
        ("grid", {"grid": [4]}),
        ("image_size", {"image_size": int("9" * 400)}),
    ],
)
def test_malformed_metadata_are_refused(match, note, tmp_path):
    refused(own_npz(tmp_path, note=note), match)


def test_metadata_of_older_versions_are_read(tmp_path):
    # They named fewer arguments.
    path = own_npz(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        note = json.loads(archive.comment.removeprefix(b"keras_vit:"))
        for name in ("patch_size", "channels", "include_top", "classes", "representation_size"):
            del note["arguments"][name]
        archive.comment = b"keras_vit:" + json.dumps(note).encode()
    assert model_from_checkpoint(path).config.classes == 7


def test_scalar_head_bias_is_refused(tmp_path):
    tensors = files.tensors_of("vit_gap") | {"head/bias": np.float32(1)}
    path = files.write_npz(tmp_path / "x.npz", tensors)
    refused(path, "head/bias.*1 dimensions")
    with pytest.raises(CheckpointError, match="head/bias"):  # it counted as 0 classes, and the head was reset
        load_checkpoint(files.golden_model("vit_gap"), path)


@pytest.mark.parametrize("name", ["MlpBlock_3/Dense_0", "MultiHeadDotProductAttention_1/query"])
def test_kernels_with_a_wrong_number_of_dimensions_are_refused(name, tmp_path):
    # Found by damaging files: was a TypeError.
    kernel = {f"Transformer/encoderblock_0/{name}/kernel": np.ones(1, "float32")}
    refused(bomb(tmp_path, "vit_token_legacy", **kernel), "kernel.*dimensions")


def bomb(tmp_path, source="vit_gap", **tensors):
    return files.write_npz(tmp_path / "bomb.npz", {**files.tensors_of(source), **tensors})


EMPTY = {
    "classes": ("head/kernel", (0, 2**33)),
    "mlp": ("Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel", (0, 2**36)),
    "pre_logits": ("pre_logits/kernel", (2**30, 0)),
    "stack": ("Transformer/encoderblock/LayerNorm_0/scale", (2**28, 0)),
    "larger stack": ("Transformer/encoderblock/LayerNorm_0/scale", (2**40, 0)),
}


@pytest.mark.parametrize("name,shape", EMPTY.values(), ids=EMPTY)
def test_empty_tensors_are_refused(name, shape, tmp_path):
    source = "bv_gap_rep_scan" if "encoderblock/" in name else "vit_token_legacy"
    refused(bomb(tmp_path, source, **{name: np.empty(shape, "float32")}), "encoderblock/|no elements")


def test_empty_register_tokens_are_refused(tmp_path):
    tensors = files.tensors_of("timm_vit_reg_ls") | {"reg_token": np.empty((1, 2**40, 0), "float32")}
    refused(files.write_directory(tmp_path / "x", tensors), "no elements", num_heads=4, grid=(4, 4))


@pytest.mark.slow
def test_gaps_in_block_numbers_and_incomplete_blocks_are_refused(tmp_path):
    norm = np.ones(32, "float32")
    name = "Transformer/encoderblock_{}/LayerNorm_0/scale".format
    refused(bomb(tmp_path, **{name(999_999): norm}), "no block 2")  # it built a million layers
    refused(bomb(tmp_path, **{name(i): norm for i in range(2, 900)}), "incomplete.*weights")
    refused(bomb(tmp_path, "hybrid_blocks", **{"block999999/unit1/conv1/kernel": np.ones((1, 1, 1, 1))}), "no stage")
    unit = {f"block1/unit2/conv{part}/kernel": np.ones((1, 1, 1, 1), "float32") for part in (1, 2, 3)}
    unit |= {n.replace("unit2", f"unit{i}"): v for n, v in unit.items() for i in range(3, 500)}
    refused(bomb(tmp_path, "hybrid_blocks", **unit), "incomplete")


def test_stacks_of_different_numbers_of_blocks_are_refused(tmp_path):
    source = files.tensors_of("bv_gap_rep_scan")
    name = "Transformer/encoderblock/LayerNorm_0/scale"
    refused(bomb(tmp_path, "bv_gap_rep_scan", **{name: source[name][:1]}), "same number of blocks")
    refused(bomb(tmp_path, "bv_gap_rep_scan", **{name: np.float32(1)}), "same number of blocks")  # was a TypeError


@pytest.mark.slow
@pytest.mark.parametrize("name", ["block99999999999", "block1", "encoderblock_99999999999"])
def test_huge_numbers_in_layer_names_of_keras_files_are_refused(name, tmp_path):
    path = tmp_path / "model.weights.h5"
    files.golden_model("vit_gap").save_weights(path)
    with h5py.File(path, "a") as file:
        outer = file.create_group("layers/bomb/vars")
        outer.attrs["name"] = name
        unit = file.create_group("layers/bomb/unit/vars")
        unit.attrs["name"] = "unit999999999999999999"
        inner = file.create_group("layers/bomb/unit/conv/vars")
        inner.attrs["name"] = "conv1"
        inner["0"] = np.ones((1, 1, 64, 64), "float32")
    with pytest.raises(CheckpointError) as error:
        model_from_checkpoint(path)
    assert str(path) in str(error.value)


def test_one_byte_file_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"\x80")
    refused(tmp_path / "x", "not a supported checkpoint")  # was an IndexError


def test_malformed_patch_embedding_is_refused(tmp_path):
    refused(bomb(tmp_path, **{"embedding/kernel": np.ones(3, "float32")}), "embedding/kernel")


def test_too_many_shards_are_refused(tmp_path):
    weight_map = {f"{index}": f"{index}.safetensors" for index in range(300)}
    for index in range(300):
        files.write_directory(tmp_path / "one", {f"{index}": np.ones(1, "float32")})
        os.replace(tmp_path / "one" / "model.safetensors", tmp_path / f"{index}.safetensors")
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": weight_map}))
    refused(path, "shards")


@pytest.mark.slow
def test_message_about_a_thousand_unknown_names_is_bounded(tmp_path):
    # Comparing 3,000 names with each other took 5 s.
    alike = {f"Transformer/encoderblock_1/LayerNorm_{i}/scale{'x' * 60}": np.ones(1, "float32") for i in range(1000)}
    model = files.golden_model("vit_gap")
    with pytest.raises(CheckpointError, match=r"are not in the model \(1000\)") as error:
        load_checkpoint(model, bomb(tmp_path, **alike))
    assert str(error.value).count("nearest") <= 20


def test_architecture_of_a_file_builds_a_matching_model():
    kind, arguments = architecture_of(files.golden_path("hf_vit"))
    assert kind == "vit" and arguments["activation"] == "gelu" and arguments["image_size"] == 32
    built = keras_vit.VisionTransformer(**arguments)
    assert not load_checkpoint(built, files.golden_path("hf_vit")).problems()
    kind, arguments = architecture_of(files.golden_path("bit_big_vision"), classes=3)
    assert (kind, arguments["block_sizes"], arguments["classes"]) == ("bit", [1, 1], 3)


DESCRIBED = sorted(path.name.removesuffix("_config.json") for path in files.GOLDEN.glob("*_config.json"))
QUICK = ("hf_vit", "timm_siglip", "timm_dinov3_qkvb")
# Kinds of tensors that a project's own model does not read.
UNREAD = re.compile(r".*embeddings\.mask_token|vision_model\.head\..*|decoder\..*")


def kinds_of(names):
    """Return the names by kind: the same tensor of each block is one kind, and so are all biases of a module."""
    kinds = {}
    for name in names:
        kind = re.sub(r"\b((?:blocks|layers?)\.)\d+\.", r"\1{i}.", name)
        kinds.setdefault(kind, set()).add(name)
        if kind.endswith("bias"):
            kinds.setdefault(f"biases of {kind.rpartition('.')[0].rpartition('.')[0]}", set()).add(name)
        kinds.setdefault(f"all of {kind.rpartition('.')[0]}", set()).add(name)
    return kinds


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DESCRIBED]
)
def test_files_without_a_kind_of_tensor_load_unchanged_or_are_refused(name, tmp_path):
    """A file with the configuration of its project loads with its own outputs, or is refused."""
    tensors, config = load_file(files.golden_path(name)), files.hf_config(name)
    path, expected = tmp_path / "model", files.config_of(files.golden_path(name))
    for kind, names in kinds_of(tensors).items():
        files.write_directory(path, {key: value for key, value in tensors.items() if key not in names}, config)
        if all(map(UNREAD.fullmatch, names)) and (name == "hf_siglip_classifier" or "head" not in kind):
            assert files.config_of(path) == expected, kind
            continue
        try:
            found = files.config_of(path)
        except CheckpointError:
            continue
        assert found == expected, kind  # else the file is another model
        with pytest.raises(CheckpointError):
            load_checkpoint(files.golden_model(name), path)
            pytest.fail(f"loaded without {kind}")


def to_plain_meta(name):
    from tests.checkpoints.test_dinov3_siglip import to_meta

    return to_meta(name, three="dinov3" in name)


@pytest.mark.parametrize("name", ["hf_dinov2_swiglu", "hf_dinov3", "hf_dinov3_gated"])
@pytest.mark.parametrize(
    "kind", ["cls_token", "pos_embed|periods", "bias_mask", r"ls\d", "attn.proj.bias", "qkv.bias$"]
)
def test_incomplete_files_from_meta_are_refused(name, kind, tmp_path):
    tensors = {key: value for key, value in to_plain_meta(name).items() if not re.search(kind, key)}
    if len(tensors) < len(to_plain_meta(name)):
        refused(files.write_directory(tmp_path / "meta", tensors), "meta", num_heads=2)


@pytest.mark.parametrize(
    "source,name",
    [
        *itertools.product(
            ["vit_token_legacy"], ["head/bias", "head/kernel", "pos_embedding", "query/bias", "out/bias"]
        ),
        *itertools.product(["vit_prelogits"], ["pre_logits/bias", "pre_logits/kernel"]),
        *itertools.product(["bit_big_transfer"], ["head/conv2d/bias", "head/conv2d/kernel"]),
        *itertools.product(["bv_tok", "bv_map"], ["pos_embedding"]),
    ],
)
def test_incomplete_files_from_google_are_refused(source, name, tmp_path):
    tensors = {key: value for key, value in files.tensors_of(source).items() if not key.endswith(name)}
    path = files.write_npz(tmp_path / "x.npz", tensors)
    with pytest.raises(CheckpointError):
        model_from_checkpoint(path)
    with pytest.raises(CheckpointError):  # it reset the model's head, though the file has a half of its own
        load_checkpoint(files.golden_model(source), path)


@pytest.mark.slow
def test_averaged_weights_do_not_replace_missing_weights(tmp_path):
    tensors = files.tensors_of("vit_gap")
    tensors |= {f"ema/{name}": value * 0.5 for name, value in tensors.items()}
    del tensors["embedding/kernel"]
    path = files.write_npz(tmp_path / "x.npz", tensors)
    refused(path, "prefix='ema/'")
    assert model_from_checkpoint(path, prefix="ema/").config == files.golden_model("vit_gap").config


@pytest.mark.parametrize(
    "drop", [r"blocks\.0\.", r"blocks\.", r"blocks\.0\.mlp", r"blocks\.\d\.mlp\.fc1", r"blocks.*qkv\.w"]
)
def test_files_without_blocks_are_refused(drop, tmp_path):
    tensors = {key: value for key, value in files.tensors_of("timm_siglip").items() if not re.search(drop, key)}
    refused(
        files.write_directory(tmp_path / "x", tensors, files.hf_config("timm_siglip")), "no block 0|incomplete|family"
    )


@pytest.mark.parametrize(
    "name,changes,match",
    [
        ("hf_dinov3", {"proj_bias": False}, "proj_bias"),
        ("hf_dinov3_gated", {"mlp_bias": False}, "mlp_bias"),
        ("hf_dinov2", {"mlp_ratio": 7}, "mlp_dim"),
        ("hf_dinov2_swiglu", {"mlp_ratio": 7}, "mlp_dim"),
        ("hf_siglip", {"vision_use_head": False}, "pooling"),
        ("hf_siglip_classifier", {"model_type": "x"}, "model_type"),
        ("hf_vit", {"layer_norm_eps": 0}, "layer_norm_eps"),
        ("hf_vit", {"model_type": "deit"}, "distillation_token"),
        ("hf_dinov2", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ("hf_vit", {"id2label": {str(index): "x" for index in range(1, 7)}}, "id2label"),
        ("hf_vit", {"id2label": {str(index): [] for index in range(6)}}, "id2label"),
    ],
)
def test_configuration_fields_that_contradict_the_tensors_are_refused(name, changes, match, tmp_path):
    tensors = load_file(files.golden_path(name))
    refused(files.write_directory(tmp_path / "x", tensors, files.hf_config(name, **changes)), match)


def test_numeric_class_names_are_read_as_text(tmp_path):
    labels = {str(index): 10 + index for index in range(6)}  # they were dropped
    assert model_from_checkpoint(golden_directory(tmp_path, id2label=labels)).class_names[0] == "10"


@pytest.mark.parametrize("argument,value", [("init_values", None), ("fc_norm", True), ("pos_embed", "none")])
def test_arguments_of_timm_that_contradict_the_tensors_are_refused(argument, value, timm_path):
    config = timm_config(timm_path)
    config["model_args"][argument] = 0.0 if value is None else value
    refused(timm_path, "layer_scale|norm_after_pooling|position_embedding", config=config)


def test_arguments_of_the_caller_complete_unusual_timm_files(tmp_path):
    tensors = {key: value for key, value in files.tensors_of("timm_vit").items() if not key.endswith("qkv.bias")}
    path = files.write_directory(tmp_path / "x", tensors)  # without a configuration
    refused(path, "qkv_bias", num_heads=4)
    assert model_from_checkpoint(path, num_heads=4, qkv_bias=False).config.qkv_bias is False


@pytest.mark.slow
def test_assumed_activation_of_bare_weights_is_reported(tmp_path):
    model = files.golden_model("vit_gap")
    model.save_weights(tmp_path / "model.weights.h5")
    (note,) = [n for n in load_checkpoint(model, tmp_path / "model.weights.h5").notes if "activation" in n]
    assert note.startswith("activation='gelu_tanh' is assumed")
