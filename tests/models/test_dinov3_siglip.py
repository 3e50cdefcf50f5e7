"""DINOv2, DINOv3 and SigLIP: every hidden state of transformers' models on their own weights, mapped by hand."""

import json
import re

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from tests import golden_data

FILES = {
    "hf_dinov2": {},
    "hf_dinov2_swiglu": {},
    "hf_dinov2_registers": {},
    # transformers resizes bicubically, and antialiases only the models with registers
    "hf_dinov2_larger_grid": {"position_resizing": "bicubic"},
    "hf_dinov2_registers_smaller_grid": {"position_resizing": "antialiased"},
    "hf_dinov3": {},
    "hf_dinov3_wide": {},
    "hf_dinov3_gated": {},
    "hf_siglip": {},
    "hf_siglip_head72": {},
    "hf_siglip_classifier": {},
}
# Largest difference in a hidden state, as a part of its largest number: float32 rounding, summed in another order.
RELATIVE = 1e-5

ATTENTION, MLP = r"\1/MultiHeadDotProductAttention_0", r"\1/MlpBlock_0"
BLOCK = r"^(encoderblock_\d+|MAPHead_0)\."
NAMES = [  # patterns in transformers' names, alternating with ours
    (r"^(?:vision_model|dinov2)\.", ""),
    (r"^(?:encoder\.)?layers?\.(\d+)\.", r"encoderblock_\1."),
    (r"^embeddings\.patch_embeddings?(?:\.projection)?\.", "embedding/"),
    (r"^embeddings\.cls_token$", "cls/cls"),
    (r"^embeddings\.register_tokens$", "registers/registers"),
    (r"^embeddings\.position_embeddings?(?:\.weight)?$", "posembed_input/pos_embedding"),
    (r"^(?:layernorm|norm|post_layernorm)\.", "encoder_norm/"),
    (r"^classifier\.", "head/"),
    (r"^head\.probe$", "MAPHead_0/probe"),
    (r"^head\.(?!weight|bias)", "MAPHead_0."),
    (BLOCK + "(?:norm1|layer_norm1|layernorm)\\.", r"\1/LayerNorm_0/"),
    (BLOCK + "(?:norm2|layer_norm2)\\.", r"\1/LayerNorm_1/"),
    (BLOCK + "layer_scale1.lambda1", r"\1/LayerScale_0/gamma"),
    (BLOCK + "layer_scale2.lambda1", r"\1/LayerScale_1/gamma"),
    (BLOCK + r"attention\.output\.dense", ATTENTION + "/out"),
    (BLOCK + r"(?:self_attn|attention)\.(?:o|out)_proj", ATTENTION + "/out"),
    (BLOCK + r"(?:attention\.attention|self_attn|attention)\.(query|key|value|q|k|v)(?:_proj)?\.", ATTENTION + r"/\2/"),
    (r"/(q|k|v)/", lambda match: {"q": "/query/", "k": "/key/", "v": "/value/"}[match[1]]),
    (BLOCK + r"mlp\.fc1", MLP + "/Dense_0"),
    (BLOCK + r"mlp\.fc2", MLP + "/Dense_1"),
    (BLOCK + r"mlp\.(gate|up|down)_proj", r"\1/SwiGLU_0/\2"),
    (BLOCK + r"mlp\.weights_out", r"\1/SwiGLU_0/down"),
]


def tensors_of(name):
    """Return the tensors of a file under names that are ours, with the packed ones taken apart."""
    file = safetensors.numpy.load_file(golden_data.path(f"{name}.safetensors"))
    tensors = {}
    for key, value in file.items():
        if "mask_token" in key or key.startswith(("text_model", "logit_")):
            continue
        for pattern, replacement in NAMES:
            key = re.sub(pattern, replacement, key)
        if "weights_in" in key:  # gate, then factor
            for part, half in zip(("gate", "up"), np.split(value, 2), strict=True):
                tensors[key.replace(".mlp.weights_in.", f"/SwiGLU_0/{part}/")] = half
        elif "in_proj" in key:
            for part, third in zip(("query", "key", "value"), np.split(value, 3), strict=True):
                path = f"MAPHead_0/MultiHeadDotProductAttention_0/{part}/"
                tensors[path + key.rsplit("_", 1)[1]] = third
        else:
            tensors[key.replace(".", "/")] = value
    if any("SwiGLU_0/gate" in key for key in tensors):
        return tensors
    plain = {"SwiGLU_0/up": "MlpBlock_0/Dense_0", "SwiGLU_0/down": "MlpBlock_0/Dense_1"}  # DINOv3's names for both
    return {re.sub("SwiGLU_0/(up|down)", lambda match: plain[match[0]], key): value for key, value in tensors.items()}


def assign(model, tensors):
    """Assign PyTorch's tensors to the variables of a model; each must be used."""
    unused = set(tensors)
    for variable in model.weights:
        path, kind = variable.path.rsplit("/", 1)
        name = next(n for n in (variable.path, f"{path}/weight") if n in tensors)
        value = tensors[name]
        if kind == "kernel":
            value = value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
        variable.assign(value.reshape(variable.shape))
        unused.discard(name)
    assert not unused


def model_of(name, tensors, image_size, **arguments):
    config = json.loads(golden_data.path(f"{name}_config.json").read_text())
    classes = len(config.get("id2label", ()))
    config = config.get("vision_config", config)
    siglip, dinov3 = "siglip" in config["model_type"], config["model_type"] == "dinov3_vit"
    swiglu = config.get("use_swiglu_ffn") or config.get("use_gated_mlp")
    flags = [config.get(f"{part}_bias", True) for part in ("query", "key", "value")]
    found = {
        "patch_size": config["patch_size"],
        "hidden_size": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "mlp_dim": next(v for k, v in tensors.items() if k.endswith(("Dense_0/bias", "SwiGLU_0/up/bias"))).shape[0],
        "pooling": ("gap" if classes else "map") if siglip else "token+gap" if classes else "token",
        "num_registers": tensors.get("registers/registers", np.zeros((1, 0))).shape[1],
        "position_embedding": "rope2d" if dinov3 else "learned",
        "layer_norm_epsilon": config["layer_norm_eps"],
        "layer_scale": None if siglip else 1.0,
        "qkv_bias": tuple(flags),
        "mlp": "swiglu" if swiglu else "mlp",
        "rope_base": config.get("rope_theta", 100.0),
        "include_top": bool(classes),
        "classes": classes or None,
    }
    if not swiglu:
        found["activation"] = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}[config["hidden_act"]]
    if image_size is None and not dinov3:
        found["position_grid"] = config["image_size"] // config["patch_size"]
    return keras_vit.VisionTransformer(image_size=image_size, **{**found, **arguments})


def load(name, any_size=False):
    """Return the model of a file and the recorded images and outputs."""
    data, tensors = golden_data.load(f"{name}_io"), tensors_of(name)
    any_size = any_size or "position_resizing" in FILES[name]
    model = model_of(name, tensors, None if any_size else data["image"].shape[1:3], **FILES[name])
    if "classifier" in name:
        tensors = {key: value for key, value in tensors.items() if not key.startswith("MAPHead_0")}
    assign(model, tensors)
    return model, data


def assert_near(got, expected, message=""):
    got, expected = keras.ops.convert_to_numpy(got), np.asarray(expected)
    assert got.shape == expected.shape, message
    assert np.abs(got - expected).max() <= RELATIVE * np.abs(expected).max(), message


def check(name, any_size=False):
    """Assert that every hidden state, the features and the output of a model are those of transformers."""
    model, data = load(name, any_size)
    config, images = model.config, data["image"]
    blocks = range(config.num_layers)
    raw = keras_vit.feature_extractor(model, blocks, norm=False)(images)
    normed = keras_vit.feature_extractor(model, blocks)(images)
    prefix = config.num_prefix_tokens + config.num_registers
    expected = [*data["hidden_states"][1:]]
    maps, tokens = [*raw["maps"]], [*raw.get("tokens", ())]
    if "last_hidden_state" in data:
        expected.append(data["last_hidden_state"])
        maps.append(normed["maps"][-1])
        tokens += normed["tokens"][-1:] if tokens else []
    if "dinov2" in name or "dinov3" in name:
        whole = keras.Model(model.input, [model.get_layer(f"encoderblock_{i}").output for i in blocks])
        for got, wanted in zip(whole(images), data["hidden_states"][1:], strict=True):
            assert_near(got, wanted, "with registers")
    for number, (patches, wanted) in enumerate(zip(maps, expected, strict=True)):
        assert_near(patches, wanted[:, prefix:].reshape(patches.shape), f"patches {number}")
    for number, (token, wanted) in enumerate(zip(tokens, expected if config.class_token else (), strict=True)):
        assert_near(token, wanted[:, 0], f"class token {number}")
    assert_near(model(images), data["logits"] if "logits" in data else data["pooler_output"])


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_hidden_states_match_transformers(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_dinov3_wide", "hf_dinov3_gated"])
def test_hidden_states_of_models_of_any_size_match_transformers(name):
    check(name, any_size=True)
