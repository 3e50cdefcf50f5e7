"""Adapters that peft writes are read, and peft opens those that are written, with equal logits.

Run with the extra [interop] installed: `pytest -m interop`.
"""

import json

import numpy as np
import pytest

import keras_vit
from tests.checkpoints.test_interop import TOLERANCE, images_for, timm, torch, torchvision, transformers

pytestmark = pytest.mark.interop
FIXTURES = (timm, torch, torchvision, transformers)

SIZES = dict(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8
)
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"]
TRANSFORMERS = {
    "vit": ("ViTForImageClassification", "ViTConfig", {}, {"target_modules": ["q_proj", "v_proj"]}),
    "vit_all": ("ViTForImageClassification", "ViTConfig", {}, {"target_modules": "all-linear", "use_rslora": True}),
    "deit": (
        "DeiTForImageClassificationWithTeacher",
        "DeiTConfig",
        {},
        {"target_modules": ALL, "modules_to_save": ["cls_classifier", "distillation_classifier"]},
    ),
    "dinov2": (
        "Dinov2ForImageClassification",
        "Dinov2Config",
        {},
        {"target_modules": ["o_proj", "fc1", "fc2"], "alpha_pattern": {"fc1": 3, "1.mlp.fc2": 5}},
    ),
    "dinov2_registers": (
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersConfig",
        {"use_swiglu_ffn": True},
        {"target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"], "rank_pattern": {"up_proj": 3}},
    ),
    "dinov3": (
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {"use_gated_mlp": True, "num_register_tokens": 2, "hidden_act": "silu"},
        {"target_modules": ["k_proj", "gate_proj", "down_proj"], "modules_to_save": None},
    ),
    "siglip": (
        "SiglipForImageClassification",
        "SiglipConfig",
        {},
        {"target_modules": ["1.self_attn.q_proj", "1.self_attn.out_proj", "1.mlp.fc2"]},
    ),
    "siglip_tower": (
        "SiglipVisionModel",
        "SiglipVisionConfig",
        {},
        {"target_modules": ["self_attn.k_proj", "0.mlp.fc1", "1.mlp.fc1"], "modules_to_save": None},
    ),
}
TIMM = {
    "qkv": ("vit_base_patch16_224", {}, {"target_modules": ["qkv"]}),
    "all": (
        "vit_base_patch16_224",
        {"init_values": 0.1},
        {
            "target_modules": ["qkv", "attn.proj", "fc1", "fc2"],
            "rank_pattern": {"blocks.0.attn.qkv": 6, "blocks.1.attn.qkv": 2},
            "use_rslora": True,
        },
    ),
    "map": (
        "vit_base_patch16_siglip_224",
        {"global_pool": "map", "class_token": False},
        {"target_modules": ["qkv", "kv", "q"]},
    ),
    "swiglu": ("vit_giant_patch14_dinov2", {"mlp_ratio": 1.5}, {"target_modules": ["mlp.fc1", "mlp.fc2"]}),
    "eva": ("vit_small_plus_patch16_dinov3", {}, {"target_modules": ["qkv", "fc1_x", "fc2"]}),
}


def adapted(module, torch, **config):
    """Give a module of PyTorch an adapter whose factors are all random."""
    peft = pytest.importorskip("peft")
    result = peft.get_peft_model(module, peft.LoraConfig(**{"r": 4, "lora_alpha": 6, **config}))
    randomize(result, torch, "lora_", ".modules_to_save.")
    return result


def randomize(module, torch, *parts):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if any(part in name for part in parts):
                parameter += 0.2 * torch.randn_like(parameter)


def outputs(torch, module, images):
    module.eval()
    with torch.no_grad():
        output = module(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    return getattr(output, "logits", getattr(output, "pooler_output", output)).numpy()


def check_both_ways(torch, build, base, config, folder, **written):
    """Read the adapter of a module that `build` returns, write it again, and open it with peft."""
    import peft

    theirs = adapted(build(), torch, **config)
    theirs.save_pretrained(folder / "adapter")
    model = keras_vit.model_from_checkpoint(base)
    images = images_for(model)
    before = np.asarray(model(images))
    np.testing.assert_allclose(before, outputs(torch, build(), images), **TOLERANCE)
    keras_vit.load_adapter(model, folder / "adapter")
    expected = outputs(torch, theirs, images)
    assert np.abs(expected - before).max() > 0.1
    np.testing.assert_allclose(np.asarray(model(images)), expected, **TOLERANCE)

    for layer in model._flatten_layers():  # as after training: no two layers have the same first factor
        if getattr(layer, "lora_enabled", False):
            layer.lora_kernel_a.assign(
                layer.lora_kernel_a + np.random.default_rng(0).normal(0, 0.1, layer.lora_kernel_a.shape)
            )
    path = keras_vit.save_adapter(model, folder / "written", **written)
    again = peft.PeftModel.from_pretrained(build(), path)
    np.testing.assert_allclose(outputs(torch, again, images), np.asarray(model(images)), **TOLERANCE)


@pytest.mark.parametrize("case", TRANSFORMERS)
def test_adapters_are_exchanged_with_transformers(case, transformers, torch, tmp_path):
    module_name, config_name, arguments, config = TRANSFORMERS[case]
    sizes = {**SIZES, **arguments}
    sizes = {"vision_config": sizes} if case == "siglip" else sizes
    classes = {} if case in ("dinov3", "siglip_tower") else {"num_labels": 5}
    torch.manual_seed(0)
    module = getattr(transformers, module_name)(getattr(transformers, config_name)(**sizes, **classes))
    randomize(module, torch, "")
    module.save_pretrained(tmp_path / "base")
    config = {"modules_to_save": ["classifier"], **config}
    build = lambda: getattr(transformers, module_name).from_pretrained(tmp_path / "base")  # noqa: E731
    check_both_ways(torch, build, tmp_path / "base", config, tmp_path)


@pytest.mark.parametrize("case", TIMM)
def test_adapters_are_exchanged_with_timm(case, timm, torch, tmp_path):
    from safetensors.torch import save_file

    architecture, arguments, config = TIMM[case]
    arguments = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4) | arguments
    torch.manual_seed(0)
    module = timm.create_model(architecture, num_classes=5, **arguments)
    randomize(module, torch, "")
    (tmp_path / "base").mkdir()
    save_file(module.state_dict(), tmp_path / "base" / "model.safetensors")
    document = {
        "architecture": architecture,
        "num_classes": 5,
        "model_args": arguments,
        "global_pool": module.global_pool,
    }
    (tmp_path / "base" / "config.json").write_text(json.dumps(document))

    def build():
        copy = timm.create_model(architecture, num_classes=5, **arguments)
        copy.load_state_dict(module.state_dict())
        return copy

    check_both_ways(torch, build, tmp_path / "base", {"modules_to_save": ["head"], **config}, tmp_path)
