"""Configurations next to written tensors, with expected values by hand. Other projects' code reads these fields.

The names and meanings of the fields are those of transformers' configuration classes, of timm's `create_model` and
`pretrained_cfg`, and of vit-pytorch's constructors.
"""

import pytest

from keras_vit.checkpoints import families
from keras_vit.models import MAEConfig, ViTConfig
from tests import tiny

SIZES = {**tiny.ARGUMENTS, "patch_size": 8, "image_size": (16, 24), "classes": 3, "activation": "gelu"}
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
ENCODER = {"include_top": False, "classes": None}
NAMES = {"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}}
DINOV2 = {"layer_scale": 0.5, "layer_norm_epsilon": 1e-6}
DINOV3 = {**ENCODER, "layer_scale": 0.5, "position_embedding": "rope2d", "layer_norm_epsilon": 1e-5}
SIGLIP = {"class_token": False, "activation": "gelu_tanh"}


def documents(format, config, kind="vit", names=None):  # noqa: A002
    """The files that a format writes beside the tensors of a model."""
    _, writing = families.writing_family(format, kind, config.to_dict())
    layout = writing.fit(writing.layout(config.to_dict()), config.to_dict())
    return writing.documents(config.to_dict(), layout, names, IMAGENET)


@pytest.mark.parametrize(
    ("arguments", "expected", "absent"),
    [
        (
            {"dropout_rate": 0.1, "attention_dropout_rate": 0.2, "qkv_bias": False},
            {
                **{"model_type": "vit", "architectures": ["ViTForImageClassification"], "image_size": [16, 24]},
                **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
                **{"patch_size": 8, "num_channels": 3, "qkv_bias": False, "hidden_act": "gelu", **NAMES},
                **{"layer_norm_eps": 1e-6, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2},
            },
            ["pooler_act"],
        ),
        (
            {**ENCODER, "representation_size": 5},
            {"architectures": ["ViTModel"], "pooler_output_size": 5, "pooler_act": "tanh"},
            ["id2label", "label2id"],
        ),
        (
            {"distillation_token": True},
            {"model_type": "deit", "architectures": ["DeiTForImageClassificationWithTeacher"], **NAMES},
            [],
        ),
        (
            {"distillation_token": "unused"},
            {"model_type": "deit", "architectures": ["DeiTForImageClassification"]},
            [],
        ),
        (
            {**ENCODER, "distillation_token": "unused"},
            {"model_type": "deit", "architectures": ["DeiTModel"]},
            ["id2label"],
        ),
        (
            {**DINOV2, **ENCODER},
            {
                **{"model_type": "dinov2", "architectures": ["Dinov2Model"], "layerscale_value": 0.5},
                **{"mlp_ratio": 2.0, "use_swiglu_ffn": False, "use_mask_token": True},
            },
            ["intermediate_size", "num_register_tokens"],
        ),
        (
            {**DINOV2, "pooling": "token+gap", "num_registers": 4, "mlp": "swiglu", "activation": "silu"},
            {
                **{"model_type": "dinov2_with_registers", "num_register_tokens": 4, "use_swiglu_ffn": True},
                "architectures": ["Dinov2WithRegistersForImageClassification"],
                # transformers: int(int(hidden_size * mlp_ratio) * 2 / 3), rounded up to a multiple of 8.
                **{"mlp_ratio": 3.0, "hidden_act": "gelu"},
            },
            ["intermediate_size"],
        ),
        (
            {**DINOV3, "num_registers": 4, "qkv_bias": (True, False, True), "rope_base": 50.0, "rope_jitter": 1.5},
            {
                **{"model_type": "dinov3_vit", "architectures": ["DINOv3ViTModel"], "rope_theta": 50.0},
                **{"query_bias": True, "key_bias": False, "value_bias": True, "proj_bias": True, "mlp_bias": True},
                **{"use_gated_mlp": False, "num_register_tokens": 4, "layerscale_value": 0.5, "mlp_ratio": None},
                **{"pos_embed_shift": None, "pos_embed_jitter": 1.5, "pos_embed_rescale": None},
                **{"intermediate_size": 32, "layer_norm_eps": 1e-5},
            },
            ["qkv_bias"],
        ),
        (
            {**SIGLIP, **ENCODER, "pooling": "map"},
            {
                **{"model_type": "siglip_vision_model", "architectures": ["SiglipVisionModel"]},
                **{"vision_use_head": True, "hidden_act": "gelu_pytorch_tanh"},
            },
            ["qkv_bias", "id2label"],
        ),
    ],
)
def test_configuration_of_transformers_has_the_arguments_of_the_model(arguments, expected, absent):
    found = documents("huggingface", ViTConfig(**{**SIZES, **arguments}))["config.json"]
    found = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    assert {name: found.get(name) for name in expected} == expected
    assert not found.keys() & set(absent)


def test_siglip_classifier_nests_the_vision_configuration():
    found = documents("huggingface", ViTConfig(**{**SIZES, **SIGLIP, "pooling": "gap"}))["config.json"]
    tower = found.pop("vision_config")
    labels = {"label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}, **NAMES}
    assert found == {"model_type": "siglip", "architectures": ["SiglipForImageClassification"], **labels}
    assert (tower["model_type"], tower["vision_use_head"], tower["hidden_size"]) == ("siglip_vision_model", False, 16)


def test_duplicate_class_names_are_numbered_as_in_transformers():
    """As in transformers, the name has the number of the last class."""
    found = documents("huggingface", ViTConfig(**SIZES), names=("crane", "dog", "crane"))["config.json"]
    assert found["id2label"] == {"0": "crane", "1": "dog", "2": "crane"}
    assert found["label2id"] == {"crane": 2, "dog": 1}


def test_configuration_of_transformers_has_the_arguments_of_the_decoder():
    decoder = {"decoder_hidden_size": 8, "decoder_num_layers": 3, "decoder_num_heads": 2, "decoder_mlp_dim": 24}
    sizes = {name: value for name, value in SIZES.items() if name != "classes"}
    config = MAEConfig(**sizes, **decoder, mask_ratio=0.5)
    found = documents("huggingface", config, "mae")["config.json"]
    expected = {
        **{"model_type": "vit_mae", "architectures": ["ViTMAEForPreTraining"], "mask_ratio": 0.5},
        **{"decoder_hidden_size": 8, "decoder_num_hidden_layers": 3, "decoder_num_attention_heads": 2},
        **{"decoder_intermediate_size": 24, "hidden_size": 16, "num_hidden_layers": 1},
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "architecture", "expected", "absent"),
    [
        (
            {"pooling": "gap", "norm_after_pooling": True, "layer_scale": 0.1, "qkv_bias": False},
            "vit_base_patch16_224",
            {
                **{"img_size": [16, 24], "embed_dim": 16, "depth": 1, "in_chans": 3, "patch_size": 8, "num_heads": 2},
                **{"mlp_ratio": 2.0, "qkv_bias": False, "global_pool": "avg", "class_token": False},
                **{"act_layer": "gelu", "init_values": 0.1, "fc_norm": True, "reg_tokens": 0, "no_embed_class": False},
            },
            ["pool_include_prefix", "pos_embed"],
        ),
        (
            {"num_registers": 2, "activation": "gelu_tanh"},
            "vit_base_patch16_224",
            {
                **{"global_pool": "token", "class_token": True, "reg_tokens": 2},
                "no_embed_class": True,
                "act_layer": "gelu_tanh",
            },
            ["init_values", "fc_norm"],
        ),
        (
            {"pooling": "gap", "class_token": True, "pool_prefix_tokens": True, "position_embedding": "none"},
            "vit_base_patch16_224",
            {"fc_norm": False, "pool_include_prefix": True, "pos_embed": "none", "class_token": True},
            [],
        ),
        ({"pooling": "map"}, "vit_base_patch16_224", {"global_pool": "map", "pool_include_prefix": True}, []),
        (
            {"distillation_token": True},
            *("deit_base_distilled_patch16_224", {"global_pool": "token"}),
            ["class_token", "reg_tokens", "no_embed_class"],
        ),
        (
            {"mlp": "swiglu", "activation": "silu", "num_registers": 4},
            *("vit_giant_patch14_reg4_dinov2", {"mlp_ratio": 4.0, "reg_tokens": 4}),  # both halves are one kernel
            [],
        ),
        ({"mlp": "swiglu", "activation": "silu"}, "vit_giant_patch14_dinov2", {"mlp_ratio": 4.0}, []),
        (
            {**DINOV3, "num_registers": 4, "qkv_bias": False, "rope_base": 50.0, "rope_rescale": 2.0},
            "vit_small_patch16_dinov3",
            {"num_reg_tokens": 4, "rope_temperature": 50.0, "rope_rescale_coords": 2.0, "global_pool": "token"},
            ["qkv_bias", "act_layer", "class_token", "reg_tokens", "no_embed_class", "rope_shift_coords"],
        ),
        (
            {**DINOV3, "mlp": "swiglu", "activation": "silu", "qkv_bias": (True, False, True)},
            *("vit_small_plus_patch16_dinov3_qkvb", {"mlp_ratio": 2.0}),
            [],
        ),
    ],
)
def test_configuration_of_timm_has_the_arguments_of_the_model(arguments, architecture, expected, absent):
    found = documents("timm", ViTConfig(**{**SIZES, **arguments}))["config.json"]
    assert found["architecture"] == architecture
    assert {name: found["model_args"].get(name) for name in expected} == expected
    assert not found["model_args"].keys() & set(absent)


@pytest.mark.parametrize(
    ("blocks", "architecture"),
    [
        ((), "vit_tiny_r_s16_p8_224"),
        ((2, 2, 2, 2), "vit_small_r26_s32_224"),
        ((3, 4, 9), "vit_base_r50_s16_224"),
        ((3, 4, 6, 3), "vit_large_r50_s32_224"),
        ((1,), "vit_base_resnet50_hybrid"),
    ],
)
def test_hybrids_have_the_name_of_a_registered_timm_model(blocks, architecture):
    hybrid = {"resnet_blocks": blocks, "resnet_numerics": "timm", "patch_size": 1, "image_size": 32}
    assert documents("timm", ViTConfig(**{**SIZES, **hybrid}))["config.json"]["architecture"] == architecture


def test_configuration_of_timm_describes_the_evaluation_preprocessing():
    """Our pipeline resizes to the size of the model, without a crop and with the bilinear filter."""
    found = documents("timm", ViTConfig(**SIZES, channels=3), names=("ape", "bee", "cat"))["config.json"]
    assert found["pretrained_cfg"] == {
        **{"num_classes": 3, "input_size": [3, 16, 24], "fixed_input_size": True, "interpolation": "bilinear"},
        **{"crop_pct": 1.0, "crop_mode": "squash", "mean": list(IMAGENET[0]), "std": list(IMAGENET[1])},
        **{"first_conv": "patch_embed.proj", "classifier": "head"},
    }
    assert (found["num_classes"], found["num_features"], found["global_pool"]) == (3, 16, "token")
    assert found["label_names"] == ["ape", "bee", "cat"]
    encoder = documents("timm", ViTConfig(**{**SIZES, **ENCODER}))["config.json"]
    assert encoder["num_classes"] == encoder["pretrained_cfg"]["num_classes"] == 0 and "label_names" not in encoder


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"dropout_rate": 0.1, "patch_norm": True},
            {"class": "ViT", "pool": "cls", "dropout": 0.1, "emb_dropout": 0.1, "dim_head": 8},
        ),
        (
            {"pooling": "gap", "head_dim": 6, "patch_norm": True},
            {"class": "ViT", "pool": "mean", "num_register_tokens": None, "dim_head": 6},
        ),
        (
            {
                **{"pooling": "gap", "position_embedding": "sincos2d", "output_projection": "no_bias"},
                **{"patch_norm": True, "num_registers": 2},
            },
            {"class": "SimpleViT", "pool": None, "dropout": None, "num_register_tokens": 2},
        ),
    ],
)
def test_configuration_of_vit_pytorch_has_the_arguments_of_the_model(arguments, expected):
    common = {"qkv_bias": False, "layer_norm_epsilon": 1e-5}
    found = documents("vit_pytorch", ViTConfig(**{**SIZES, **common, **arguments}))["config.json"]
    expected = {
        **{"image_size": [16, 24], "patch_size": 8, "dim": 16, "depth": 1, "heads": 2, "mlp_dim": 32, "channels": 3},
        **{"num_classes": 3, **expected},
    }
    flat = {"class": found["class"], **found["arguments"]}
    flat["image_size"] = list(flat["image_size"])
    assert {name: flat.get(name) for name in expected} == expected
