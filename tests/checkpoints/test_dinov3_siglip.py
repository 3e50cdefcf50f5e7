"""DINOv2, DINOv3 and SigLIP in the files of transformers, timm and Meta: read, written and refused."""

import itertools
import json
import os
import re

import keras
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_vit
from keras_vit.checkpoints import (
    CheckpointError,
    architecture_of,
    load_checkpoint,
    model_from_checkpoint,
    save_checkpoint,
)
from keras_vit.checkpoints.families import _huggingface
from keras_vit.models.normalization import IMAGENET
from tests import selection
from tests.checkpoints import files

HUGGINGFACE = ("hf_dinov2", "hf_dinov2_registers", "hf_dinov2_swiglu", "hf_dinov3", "hf_dinov3_gated")
HUGGINGFACE += ("hf_siglip", "hf_siglip_classifier", "hf_siglip_head72")
RESIZED = ("hf_dinov2_larger_grid", "hf_dinov2_registers_smaller_grid", "hf_dinov3_wide")
TIMM = ("timm_dinov2", "timm_dinov2_giant", "timm_dinov2_reg4", "timm_dinov3", "timm_dinov3_plus", "timm_dinov3_qkvb")
SIGLIP = ("timm_siglip", "timm_siglip_gap", "timm_siglip_tanh")
# Largest difference as a part of the largest number: sums of float32 in another order.
RELATIVE = 1e-5


def golden(name):
    return dict(np.load(files.GOLDEN / f"{name}_io.npz"))


def config_of(name):
    return json.loads((files.GOLDEN / f"{name}_config.json").read_text())


def directory(path, name, config=None, rename=lambda name: name, drop="^$", **changes):
    tensors = {rename(k): v for k, v in load_file(files.golden_path(name)).items() if not re.search(drop, k)}
    return files.write_directory(path / "model", tensors, {**(config or config_of(name)), **changes})


def assert_close(found, expected):
    assert np.abs(np.asarray(found) - expected).max() <= RELATIVE * np.abs(expected).max()


def assert_golden(model, name):
    data, config = golden(name), model.config
    layers = [model.get_layer(f"encoderblock_{i}").output for i in range(config.num_layers)]
    outputs = [*layers, model.get_layer("encoder_norm").output, model.output]
    *blocks, last, output = keras.Model(model.input, outputs)(data["image"])
    for found, expected in zip(blocks[:-1], data.get("hidden_states", [])[1:-1], strict=False):
        assert_close(found, expected)
    for key in ("last_hidden_state", "tokens"):
        if key in data:
            assert_close(last, data[key])
    for key in ("logits", "pooler_output", "output"):
        if key in data:
            assert_close(output, data[key])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*HUGGINGFACE, *RESIZED, *TIMM, *SIGLIP])
def test_files_of_other_projects_give_golden_outputs_and_are_written_back(name, tmp_path):
    model = files.golden_model(name, image_size=golden(name)["image"].shape[1:3])
    assert_golden(model, name)
    written = []
    for format in ("huggingface", "timm"):
        try:
            path = save_checkpoint(model, tmp_path / format, format=format)
        except CheckpointError:
            continue
        written.append(format)
        assert files.config_of(path) == model.config
        # As the other project reads it: without the metadata in the header.
        tensors = load_file(os.path.join(path, "model.safetensors"))
        config = json.loads((tmp_path / format / "config.json").read_text())
        bare = files.write_directory(tmp_path / f"bare_{format}", tensors, config)
        # Where a project has no such pooling, its own configuration states another.
        can_say_it = files.config_of(bare).pooling == model.config.pooling
        assert_golden(model_from_checkpoint(bare if can_say_it else path), name)
        if name.split("_")[0].startswith(format[:2]) and name not in RESIZED:
            expected = {k for k in load_file(files.golden_path(name)) if not k.startswith("vision_model.head.")}
            assert set(tensors) == expected
    # A head on class token and mean is not timm's, and transformers rounds the width of a gated MLP.
    only = {"hf_dinov2": ["huggingface"], "timm_dinov2_giant": ["timm"]}
    assert written == only.get(name, ["huggingface", "timm"])


# What the classes of transformers take where a configuration says nothing: ViTConfig, Dinov2Config, SiglipVisionConfig.
@pytest.mark.parametrize(
    ("name", "activation", "epsilon"),
    [
        ("hf_vit", "gelu", 1e-12),
        ("hf_dinov2", "gelu", 1e-6),
        ("hf_dinov3", "gelu", 1e-5),
        ("hf_siglip", "gelu_tanh", 1e-6),
    ],
)
def test_missing_configuration_fields_have_the_defaults_of_transformers(name, activation, epsilon, tmp_path):
    config = {key: value for key, value in config_of(name).items() if key not in ("hidden_act", "layer_norm_eps")}
    found = files.config_of(directory(tmp_path, name, config))
    assert (found.activation, found.layer_norm_epsilon) == (activation, epsilon)


def test_missing_numbers_of_attention_heads_have_the_defaults_of_transformers():
    kinds = (_huggingface.VIT, _huggingface.DINOV2, _huggingface.DINOV3, _huggingface.SIGLIP)
    found = {kind.model_types[0]: kind.defaults["num_attention_heads"] for kind in kinds}
    assert found == {"vit": 12, "dinov2": 12, "dinov3_vit": 6, "siglip_vision_model": 12}


@pytest.mark.parametrize("block", ["model.layer.", "layers.", "encoder.layer."])
def test_dinov3_blocks_under_newer_names_are_read(block, tmp_path):
    path = directory(tmp_path, "hf_dinov3", rename=lambda name: re.sub(r"^layer\.", block, name))
    assert architecture_of(path)[1] == architecture_of(files.golden_path("hf_dinov3"), config=config_of("hf_dinov3"))[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_dinov2", "hf_dinov2_swiglu", "hf_dinov3_gated"])
def test_newer_tensor_names_of_transformers_are_written_and_read(name, tmp_path):
    model = files.golden_model(name, image_size=golden(name)["image"].shape[1:3])
    path = save_checkpoint(model, tmp_path / "later", format="huggingface", naming="later")
    names = " ".join(load_file(os.path.join(path, "model.safetensors")))
    assert "attention.q_proj" in names and "attention.attention" not in names and "weights_in" not in names
    assert_golden(model_from_checkpoint(path), name)


TOWERS = {
    "hf_dinov2_registers": "backbone.",
    "timm_dinov2": "model.vision_encoder.",
    "hf_dinov3": "dinov2.",
    "hf_siglip": "model.vision_encoder.",
}


def test_mixed_tensor_names_are_refused(tmp_path):
    first = lambda name: name.replace("encoder.layer.0.attention.output.dense", "encoder.layer.0.attention.o_proj")  # noqa: E731
    with pytest.raises(CheckpointError, match=r"attention\.o_proj|incomplete"):
        model_from_checkpoint(directory(tmp_path, "hf_dinov2", rename=first))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "prefix"),
    selection.cases(
        list(itertools.product(TOWERS, ("backbone.", "model.vision_encoder.", "dinov2."))),
        lambda name, prefix: TOWERS[name] == prefix,
        selection.EXHAUSTIVE,
    ),
)
def test_a_tower_under_a_prefix_is_found(name, prefix, tmp_path):
    path = directory(tmp_path, name, rename=prefix.__add__)
    tensors = load_file(path / "model.safetensors")
    extra = {"logit_scale": np.ones(1, np.float32), "text_model.embeddings.weight": np.ones((2, 2), np.float32)}
    files.write_directory(path, {**tensors, **extra})
    model = model_from_checkpoint(path)
    assert_golden(model, name)
    assert set(extra) <= set(load_checkpoint(model, path).dropped)


@pytest.mark.slow
def test_configurations_of_transformers_may_omit_defaults(tmp_path):
    """SiglipVisionConfig and Dinov2WithRegistersConfig as published: only the fields that differ."""
    config = config_of("hf_siglip")
    kept = {name: config[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "image_size")}
    nested = {"model_type": "siglip", "vision_config": {**kept, "num_attention_heads": 2}}
    path = directory(tmp_path, "hf_siglip", rename="vision_model.".__add__)
    (path / "config.json").write_text(json.dumps(nested))
    model = model_from_checkpoint(path)
    assert_golden(model, "hf_siglip")
    assert model.input_normalization == ((0.5,) * 3, (0.5,) * 3)
    path = directory(tmp_path / "dino", "hf_dinov2_registers")
    bare = {"model_type": "dinov2_with_registers", "num_attention_heads": 2}
    (path / "config.json").write_text(json.dumps(bare))
    assert_golden(model_from_checkpoint(path), "hf_dinov2_registers")


@pytest.mark.slow
def test_normalization_is_read_with_the_weights(tmp_path):
    assert model_from_checkpoint(files.golden_path("hf_dinov3")).input_normalization == IMAGENET
    path = directory(tmp_path, "hf_dinov3")
    satellite = {"image_mean": [0.43, 0.411, 0.296], "image_std": [0.213, 0.156, 0.143]}
    (path / "preprocessor_config.json").write_text(json.dumps(satellite))
    model = model_from_checkpoint(path)
    assert model.input_normalization == ((0.43, 0.411, 0.296), (0.213, 0.156, 0.143))


def to_meta(name, three=False):
    """Return the tensors of a file of transformers under Meta's names, with Meta's buffers."""
    tensors, result = load_file(files.golden_path(name)), {}
    for key, value in tensors.items():
        key = key.removeprefix("embeddings.").removeprefix("encoder.")
        key = key.replace("patch_embeddings.projection", "patch_embed.proj").replace(
            "patch_embeddings", "patch_embed.proj"
        )
        key = key.replace("position_embeddings", "pos_embed").replace("layernorm", "norm")
        key = re.sub(r"^layer\.", "blocks.", key).replace("layer_scale", "ls").replace("lambda1", "gamma")
        key = key.replace("attention.output.dense", "attn.proj").replace("attention.o_proj", "attn.proj")
        key = key.replace("weights_in", "w12").replace("weights_out", "w3")
        if three:
            key = key.replace("register_tokens", "storage_tokens").replace("gate_proj", "w1")
            gated = any("gate_proj" in k for k in tensors)
            key = key.replace("up_proj", "w2" if gated else "fc1").replace("down_proj", "w3" if gated else "fc2")
        result[key] = value
    for block in {key.split(".")[1] for key in result if key.startswith("blocks.")}:
        parts = {}
        for leaf in ("weight", "bias"):
            for part in "qkv":
                names = [
                    n for n in result if re.match(rf"blocks\.{block}\.attention\.(attention\.)?{part}\w*\.{leaf}$", n)
                ]
                parts[part] = result.pop(names[0]) if names else np.full_like(parts["q"], 7.0)  # what the mask hides
            result[f"blocks.{block}.attn.qkv.{leaf}"] = np.concatenate([parts[part] for part in "qkv"])
            parts = {"q": parts["q"][..., 0] if leaf == "weight" else parts["q"]}
        if three:
            size = len(result[f"blocks.{block}.attn.qkv.bias"]) // 3
            result[f"blocks.{block}.attn.qkv.bias_mask"] = np.repeat(np.float32([1, 0, 1]), size)
    if three:
        periods = 100.0 ** (np.arange(4) / 4)
        result["rope_embed.periods"] = periods.astype(ml_dtypes.bfloat16)
        result["local_cls_norm.weight"] = np.ones(32, np.float32)
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    "name,method",
    [
        ("hf_dinov2_swiglu", "dinov2"),
        ("hf_dinov2_registers", "antialiased"),
        ("hf_dinov3", None),
        ("hf_dinov3_gated", None),
    ],
)
def test_tensor_names_used_by_meta_are_read(name, method, tmp_path):
    path = files.write_directory(tmp_path / "meta", to_meta(name, three="dinov3" in name))
    size = golden(name)["image"].shape[1:3]
    model = model_from_checkpoint(path, num_heads=2, image_size=size)
    assert_golden(model, name)
    assert model.input_normalization == IMAGENET
    assert method in (None, model.config.position_resizing)


@pytest.mark.slow
def test_rope_periods_and_bias_masks_in_meta_files_are_checked(tmp_path):
    tensors = to_meta("hf_dinov3", three=True)
    zeros = {k: np.zeros_like(v) if k.endswith("bias_mask") else v for k, v in tensors.items()}
    model = model_from_checkpoint(files.write_directory(tmp_path / "zeros", zeros), num_heads=2)
    assert not np.any(model.get_layer("encoderblock_0").attention.query.bias)
    # A step of bfloat16 is at most 1/128 of a number.
    other = {**tensors, "rope_embed.periods": tensors["rope_embed.periods"].astype("float32") * (1 + 1 / 50)}
    with pytest.raises(CheckpointError, match=r"rope_embed\.periods"):
        model_from_checkpoint(files.write_directory(tmp_path / "periods", other), num_heads=2)
    keys = {k: np.ones_like(v) if k.endswith("bias_mask") else v for k, v in tensors.items()}
    with pytest.raises(CheckpointError, match="bias_mask"):
        model_from_checkpoint(files.write_directory(tmp_path / "keys", keys), num_heads=2)


def test_dinov2_position_interpolation_matches_meta():
    """dinov2/models/vision_transformer.py: bicubic at the coordinates of a size that is larger by 0.1."""
    from keras_vit.checkpoints import resize
    from keras_vit.layers.interpolation import resize_table

    table = np.random.default_rng(0).normal(size=(1, 5 * 5, 3)).astype("float32")

    def cubic(x, a=-0.75):
        x = abs(x)
        return (
            ((a + 2) * x - (a + 3)) * x * x + 1 if x <= 1 else ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0
        )

    def line(values, size):
        result = []
        for index in range(size):
            center = (index + 0.5) * len(values) / (size + 0.1) - 0.5
            nearest = range(int(np.floor(center)) - 1, int(np.floor(center)) + 3)
            result.append(sum(cubic(center - i) * values[min(max(i, 0), len(values) - 1)] for i in nearest))
        return np.array(result)

    grid = table.reshape(5, 5, 3).astype("float64")
    for size in ((7, 4), (5, 8)):
        expected = np.apply_along_axis(line, 1, np.apply_along_axis(line, 0, grid, size[0]), size[1])
        found = resize.resize_table(table, (5, 5), size, method="dinov2").reshape(*size, 3)
        np.testing.assert_allclose(found, expected, atol=1e-6)  # float32
        in_model = np.asarray(resize_table(table.reshape(1, 5, 5, 3), size, "dinov2"))[0]
        np.testing.assert_allclose(in_model, expected, atol=1e-5)  # float32 throughout
    np.testing.assert_array_equal(resize_table(table.reshape(1, 5, 5, 3), (5, 5), "dinov2"), table.reshape(1, 5, 5, 3))


REFUSED = {
    "model_type": ("hf_dinov2", {"model_type": "clip_vision_model"}),
    "siglip2": ("hf_siglip", {"model_type": "siglip2_vision_model"}),
    "num_registers": ("hf_dinov3", {"num_register_tokens": 3}),
    "key_bias": ("hf_dinov3", {"key_bias": True}),
    "mlp": ("hf_dinov3", {"use_gated_mlp": True}),
    "hidden_act": ("hf_dinov3_gated", {"hidden_act": "gelu"}),
    "rope_theta": ("hf_dinov3", {"rope_theta": "100"}),
    "rope_type": ("hf_dinov3", {"rope_theta": None, "rope_parameters": {"rope_theta": 100.0, "rope_type": "yarn"}}),
    "rope_scaling": ("hf_dinov3", {"rope_scaling": {"factor": 2}}),
    "use_qk_norm": ("hf_dinov2", {"use_qk_norm": True}),
    "num_layers": ("hf_siglip", {"num_hidden_layers": 3}),
    "image_size": ("hf_siglip", {"image_size": 512}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_configurations_of_unsupported_transformers_models_are_refused(reason, tmp_path):
    name, changes = REFUSED[reason]
    with pytest.raises(CheckpointError, match=reason):
        model_from_checkpoint(directory(tmp_path, name, **changes))


@pytest.mark.slow
def test_fields_of_the_rotary_embedding_are_read(tmp_path):
    path = directory(tmp_path, "hf_dinov3", rope_theta=50.0, pos_embed_jitter=1.5)
    config = model_from_checkpoint(path).config
    assert (config.rope_base, config.rope_jitter, config.rope_rescale) == (50.0, 1.5, 2.0)
    patch = config.patch_size
    for height, width in ((3, 2), (2, 3)):  # pixels beyond the last whole patch are ignored
        path = directory(tmp_path / f"{height}", "hf_dinov3", image_size=[height * patch + 1, width * patch + 1])
        assert architecture_of(path)[1]["image_size"] == [height * patch, width * patch]
    config = {name: value for name, value in config_of("hf_dinov3").items() if name != "rope_theta"}
    path = directory(tmp_path / "new", "hf_dinov3", config=config, rope_parameters={"rope_theta": 40.0})
    assert model_from_checkpoint(path).config.rope_base == 40.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_dinov2", "hf_dinov3", "hf_siglip"])
def test_missing_blocks_and_wrong_shapes_are_refused(name, tmp_path):
    with pytest.raises(CheckpointError, match="num_layers=2"):
        model_from_checkpoint(directory(tmp_path, name, drop=r"layers?\.1\."))
    with pytest.raises(CheckpointError, match="are missing|not in the file"):
        model_from_checkpoint(directory(tmp_path / "b", name, drop=r"layers?\.1\.mlp\.\w+\.weight"))
    tensors = load_file(files.golden_path(name))
    key = next(k for k in tensors if re.search(r"layers?\.0\..*(q_proj|query)\.weight", k))
    files.write_directory(tmp_path / "c", {**tensors, key: tensors[key][:, :-1]}, config_of(name))
    with pytest.raises(CheckpointError, match="query|fit"):
        model_from_checkpoint(tmp_path / "c")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name,argument",
    [("timm_dinov3", "position_embedding"), ("timm_dinov2_giant", "mlp"), ("timm_siglip_tanh", "activation")],
)
def test_unknown_timm_architecture_is_refused_with_the_remedy(name, argument, tmp_path):
    path = directory(tmp_path, name, architecture="my_own_vit")
    with pytest.raises(CheckpointError, match=f"{argument}="):
        model_from_checkpoint(path)
    value = {"position_embedding": "rope2d", "mlp": "swiglu", "activation": "gelu_tanh"}[argument]
    assert_golden(model_from_checkpoint(path, **{argument: value}), name)


@pytest.mark.parametrize(
    "name,changes",
    [
        ("timm_dinov3", {"rope_type": "cat"}),
        ("timm_dinov3", {"rope_rotate_half": False}),
        ("timm_dinov2", {"qk_norm": True}),
        ("timm_dinov2", {"norm_layer": "rmsnorm"}),
        ("timm_dinov2", {"swiglu_mlp": True}),
    ],
)
def test_unsupported_arguments_of_timm_are_refused(name, changes, tmp_path):
    arguments = {**config_of(name)["model_args"], **changes}
    with pytest.raises(CheckpointError, match=next(iter(changes))):
        model_from_checkpoint(directory(tmp_path, name, model_args=arguments))


@pytest.mark.slow
def test_loaded_encoder_gets_a_new_head(tmp_path):
    path = files.golden_path("hf_dinov2_registers")
    model = model_from_checkpoint(path, classes=3, pooling="token+gap")
    assert model.output_shape == (None, 3) and model.get_layer("head").kernel.shape == (64, 3)
    report = load_checkpoint(
        keras_vit.VisionTransformer(**{**arguments_of("hf_siglip"), "pooling": "gap"}), files.golden_path("hf_siglip")
    )
    assert any("head.probe" in name for name in report.dropped)


def arguments_of(name):
    found = files.config_of(files.golden_path(name)).to_dict()
    return {**found, "include_top": True, "classes": 2, "name": None, "dtype": None}
