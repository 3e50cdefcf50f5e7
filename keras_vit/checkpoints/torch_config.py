"""The configuration files that lie beside the tensors of Hugging Face and timm models."""

from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.layout import Layout

_HF_ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}


def documents(
    format: str,
    config: dict[str, Any],
    layout: Layout,
    class_names: tuple[str, ...] | None,
    preprocessor: dict[str, Any] | None,
) -> dict[str, dict[str, Any]]:
    """Returns the files that describe a model, as {name: content}.

    Args:
        format: `"huggingface"` or `"timm"`.
        config: The model's arguments.
        layout: The layout in which its tensors are written.
        class_names: Names of the classes, if known.
        preprocessor: The content of `preprocessor_config.json`; None for images in [-1, 1] of the model's size.
    """
    if class_names is not None and len(class_names) != config["classes"]:
        raise ValueError(f"`class_names` must name {config['classes']} classes. Received: {len(class_names)} names.")
    if format == "timm":
        return {"config.json": _timm(config, layout, class_names)}
    height, width = architecture.pair(config["image_size"])
    default = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "ViTImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "resample": 2,
        "rescale_factor": 1 / 255,
        "size": {"height": height, "width": width},
    }
    return {"config.json": _huggingface(config, class_names), "preprocessor_config.json": preprocessor or default}


def _huggingface(config: dict[str, Any], class_names: tuple[str, ...] | None) -> dict[str, Any]:
    deit = bool(config["distillation_token"])
    kind = "DeiT" if deit else "ViT"
    suffix = "Model" if not config["include_top"] else "ForImageClassification"
    if deit and config["include_top"] and config["distillation_token"] is True:
        suffix = "ForImageClassificationWithTeacher"
    result: dict[str, Any] = {
        "architectures": [f"{kind}{suffix}"],
        "attention_probs_dropout_prob": config["attention_dropout_rate"],
        "hidden_act": _HF_ACTIVATIONS.get(config["activation"], config["activation"]),
        "hidden_dropout_prob": config["dropout_rate"],
        "hidden_size": config["hidden_size"],
        "image_size": config["image_size"],
        "initializer_range": 0.02,
        "intermediate_size": config["mlp_dim"],
        "layer_norm_eps": config["layer_norm_epsilon"],
        "model_type": kind.lower(),
        "num_attention_heads": config["num_heads"],
        "num_channels": config["channels"],
        "num_hidden_layers": config["num_layers"],
        "patch_size": config["patch_size"],
        "qkv_bias": config["qkv_bias"],
    }
    if config["representation_size"] is not None:
        result |= {"pooler_output_size": config["representation_size"], "pooler_act": "tanh"}
    if config["include_top"]:
        names = class_names or tuple(f"LABEL_{index}" for index in range(config["classes"]))
        result["id2label"] = {str(index): name for index, name in enumerate(names)}
        # Where two classes share a name the last index wins, as it does in transformers itself.
        result["label2id"] = {name: index for index, name in enumerate(names)}
    return result


def _timm(config: dict[str, Any], layout: Layout, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    height, width = architecture.pair(config["image_size"])
    pool = {"gap": "avg"}.get(config["pooling"], config["pooling"])
    classes = config["classes"] if config["include_top"] else 0
    arguments: dict[str, Any] = {
        "img_size": [height, width],
        "patch_size": config["patch_size"],
        "in_chans": config["channels"],
        "embed_dim": config["hidden_size"],
        "depth": config["num_layers"],
        "num_heads": config["num_heads"],
        "mlp_ratio": _ratio(config["mlp_dim"], config["hidden_size"]),
        "qkv_bias": config["qkv_bias"],
        "global_pool": pool,
        "class_token": bool(config["class_token"]),
        "act_layer": {"quick_gelu": "quick_gelu"}.get(config["activation"], config["activation"]),
    }
    if config["layer_scale"] is not None:
        arguments["init_values"] = config["layer_scale"]
    if pool == "avg":
        arguments["fc_norm"] = config["norm_after_pooling"]
    if config["distillation_token"]:
        arguments.pop("class_token")  # the distilled class has both tokens always
    else:
        arguments["reg_tokens"] = config["num_registers"]
        arguments["no_embed_class"] = layout.slots == "none"
    if config["position_embedding"] == "none":
        arguments["pos_embed"] = "none"
    architecture_name = _timm_name(config)
    result: dict[str, Any] = {
        "architecture": architecture_name,
        "num_classes": classes,
        "num_features": config["hidden_size"],
        "global_pool": pool,
        "model_args": arguments,
        "pretrained_cfg": {
            "num_classes": classes,
            "input_size": [config["channels"], height, width],
            "fixed_input_size": True,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "squash",
            "mean": [0.5] * config["channels"],
            "std": [0.5] * config["channels"],
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }
    if class_names is not None:
        result["label_names"] = list(class_names)
    return result


def _ratio(mlp_dim: int, hidden_size: int) -> float:
    """Return a ratio for which `int(hidden_size * ratio)`, which timm computes, is `mlp_dim` in spite of rounding."""
    ratio = mlp_dim / hidden_size
    return ratio if int(hidden_size * ratio) == mlp_dim else (mlp_dim + 0.5) / hidden_size


def _timm_name(config: dict[str, Any]) -> str:
    """Returns the registered model whose class builds this one; `model_args` says the rest."""
    blocks = config["resnet_blocks"]
    if blocks is not None:
        # Its function builds the backbone, which arguments cannot describe.
        named = {(): "vit_tiny_r_s16_p8_224", (2, 2, 2, 2): "vit_small_r26_s32_224", (3, 4, 9): "vit_base_r50_s16_224"}
        named[(3, 4, 6, 3)] = "vit_large_r50_s32_224"
        return named.get(tuple(blocks), "vit_base_resnet50_hybrid")
    return "deit_base_distilled_patch16_224" if config["distillation_token"] else "vit_base_patch16_224"
