"""Write models as Hugging Face's ViT, DeiT, DINOv2, DINOv3 and SigLIP."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from keras_vit.checkpoints.checkpoint import Layout
from keras_vit.checkpoints.families import _torch, huggingface_reading
from keras_vit.checkpoints.families._huggingface import DINOV2, DINOV3, SIGLIP, VIT, ModelType, rules
from keras_vit.checkpoints.families.family import ANY, GIVEN, Config, Family, Files, Names, Writing
from keras_vit.models.normalization import Normalization
from keras_vit.util import checks

# Arguments that cannot be inferred from tensors, by their fields in a configuration.
_WRITTEN = {
    "attention_probs_dropout_prob": "attention_dropout_rate",
    "hidden_dropout_prob": "dropout_rate",
    "layer_norm_eps": "layer_norm_epsilon",
    "num_attention_heads": "num_heads",
}


def documents(
    config: Config, layout: Layout, class_names: Names, normalization: Normalization, model_type: ModelType
) -> Files:
    """Return `config.json` and `preprocessor_config.json`."""
    size = config["image_size"] or 224
    height, width = checks.size_pair("image_size", size)
    document: dict[str, Any] = {
        "hidden_act": {"gelu_tanh": "gelu_pytorch_tanh"}.get(config["activation"], config["activation"]),
        "image_size": size,
        "initializer_range": 0.02,
        **{field: config[argument] for field, argument in {**huggingface_reading.SHOWN, **_WRITTEN}.items()},
    }
    if config["representation_size"] is not None:
        document |= {"pooler_output_size": config["representation_size"], "pooler_act": "tanh"}
    if config["include_top"]:
        names = class_names or tuple(f"LABEL_{index}" for index in range(config["classes"]))
        document["id2label"] = {str(index): name for index, name in enumerate(names)}
        # If two classes have the same name, the last index is written, as in transformers.
        document["label2id"] = {name: index for index, name in enumerate(names)}
    preprocessor = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": list(normalization[0]),
        "image_processor_type": "ViTImageProcessor",
        "image_std": list(normalization[1]),
        "resample": 2,
        "rescale_factor": 1 / 255,
        "size": {"height": height, "width": width},
    }
    return {"config.json": _of_type(document, config, model_type), "preprocessor_config.json": preprocessor}


def _of_type(document: dict[str, Any], config: Config, model_type: ModelType) -> dict[str, Any]:
    """Add the fields of the model's type to a configuration."""
    name, own = model_type.model_types[0], model_type.classes[bool(config["include_top"])]
    gated, registers = config["mlp"] == "swiglu", config["num_registers"]
    if model_type is VIT and config["distillation_token"]:
        with_teacher = config["distillation_token"] is True and config["include_top"]
        name, own = "deit", own.replace("ViT", "DeiT") + ("WithTeacher" if with_teacher else "")
    if model_type is DINOV2:
        document |= {"layerscale_value": config["layer_scale"], "use_swiglu_ffn": gated, "use_mask_token": True}
        width = 1.5 * config["mlp_dim"] if gated else config["mlp_dim"]
        document["mlp_ratio"] = _torch.ratio(int(width), config["hidden_size"])
        del document["intermediate_size"]
        if gated:
            document["hidden_act"] = "gelu"
        if registers:
            name, document["num_register_tokens"] = "dinov2_with_registers", registers
            own = own.replace("Dinov2", "Dinov2WithRegisters")
    if model_type is DINOV3:
        query, key, value = _torch.biases(config["qkv_bias"])
        document |= {"query_bias": query, "key_bias": key, "value_bias": value, "proj_bias": True, "mlp_bias": True}
        document |= {"use_gated_mlp": gated, "num_register_tokens": registers, "rope_theta": config["rope_base"]}
        document["layerscale_value"] = config["layer_scale"]
        document |= {f"pos_embed_{name}": config[f"rope_{name}"] for name in ("shift", "jitter", "rescale")}
        del document["qkv_bias"]
    if model_type is SIGLIP:
        document["vision_use_head"] = config["pooling"] == "map"
        del document["qkv_bias"]
        if config["include_top"]:
            name, labels = "siglip", {field: document.pop(field) for field in ("id2label", "label2id")}
            document = {"vision_config": {**document, "model_type": "siglip_vision_model"}, **labels}
    return {**document, "model_type": name, "architectures": [own]}


def _fit(layout: Layout, config: Config, model_type: ModelType) -> Layout:
    own, teacher = model_type.prefix, config["distillation_token"] is True and config["include_top"]
    if model_type is VIT and config["distillation_token"]:
        own = "deit."
    if model_type is DINOV2 and config["num_registers"]:
        own = "dinov2_with_registers."
    kept = layout.prefix if layout.prefix == own else ""  # optional in headless files
    return dataclasses.replace(
        layout,
        style=layout.style if layout.style in model_type.styles else "published",
        position="teacher" if teacher else "",
        prefix=own if config["include_top"] else kept,
        outer="",
    )


def square_patches(config: Config) -> list[str]:
    """Return a list with a reason if the patches are not square, which transformers does not support."""
    return [] if isinstance(config["patch_size"], int) else ["its configuration supports only square patches"]


def _limits(config: Config, model_type: ModelType) -> Iterator[str]:
    without, top = model_type.poolings
    if config["include_top"] and config["pooling"] != top:
        yield f"its classifiers have pooling={top!r}"
    # An encoder returns its tokens, from which a user can also compute the mean.
    if not config["include_top"] and config["pooling"] not in (without, "gap", None):
        yield f"its encoders have pooling={without!r} or the mean of the tokens"
    if config["include_top"] and config["representation_size"] is not None:
        yield "its classifiers read the class token, not pre_logits (representation_size)"
    if config["distillation_token"] is True and not config["include_top"]:
        yield _torch.HEADLESS_DEIT
    if model_type is DINOV2 and config["mlp"] == "swiglu" and config["mlp_dim"] % 8:
        yield "the width of its gated MLPs is a multiple of 8"
    yield from square_patches(config)


def _family(model_type: ModelType, **values: Any) -> Family:
    styles = {name.partition(":")[0]: name for name in reversed(list(model_type.styles))}
    given: Mapping[str, Any] = {
        "activation": _torch.WRITTEN_ACTIVATIONS,
        "layer_norm_epsilon": ANY,
        "pooling": ANY,
        "class_token": (model_type is not SIGLIP,),
    }
    return Family(
        "huggingface",
        functools.partial(huggingface_reading.recognize, model_type=model_type),
        functools.partial(rules, model_type=model_type),
        resize_method="bicubic",
        input_normalization=model_type.input_normalization,
        writing=Writing(
            values={**given, **values},
            limits=functools.partial(_limits, model_type=model_type),
            layout=lambda config: _fit(Layout("huggingface"), config, model_type),
            fit=functools.partial(_fit, model_type=model_type),
            styles={name: functools.partial(dataclasses.replace, style=style) for name, style in styles.items()},
            tensors="safetensors",
            documents=functools.partial(documents, model_type=model_type),
        ),
        layouts=tuple(
            Layout("huggingface", style, position)
            for style in model_type.styles
            for position in (("", "teacher") if model_type is VIT else ("",))
        ),
    )


_BIASES = (True, False)
FAMILIES = (
    _family(DINOV2, layer_scale=GIVEN, image_size=GIVEN, num_registers=ANY, mlp=ANY, qkv_bias=_BIASES),
    _family(
        DINOV3,
        position_embedding=("rope2d",),
        include_top=(False,),
        layer_scale=GIVEN,
        **dict.fromkeys(("num_registers", "mlp", "qkv_bias", "rope_base"), ANY),
    ),
    _family(SIGLIP, image_size=GIVEN),
    _family(VIT, image_size=GIVEN, distillation_token=ANY, qkv_bias=ANY, representation_size=ANY),
)
