"""Hugging Face's ViT and DeiT, also for DINO and MSN: a directory with `model.safetensors` and `config.json`.

References:
    - [transformers](https://github.com/huggingface/transformers), models `vit` and `deit`
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from keras_vit import _checks
from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import _torch
from keras_vit.checkpoints.families.family import ANY, GIVEN, Config, Family, Files, Names, Writing
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.rules import Rule
from keras_vit.models.normalization import Normalization

ANCHOR = "embeddings.patch_embeddings.projection.weight"
# MSN and the encoder of MAE have the model of ViT.
_MODEL_TYPES = ("vit", "deit", "vit_msn", "vit_mae")
# Of the class of their configurations, for what a file leaves out.
_DEFAULTS: Mapping[str, Any] = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_attention_heads": 12}
# Fields of a configuration and our arguments: those that tensors show, and others that are written.
_SHOWN = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_channels": "channels",
    "intermediate_size": "mlp_dim",
    "qkv_bias": "qkv_bias",
    "patch_size": "patch_size",
}
_WRITTEN = {
    "attention_probs_dropout_prob": "attention_dropout_rate",
    "hidden_dropout_prob": "dropout_rate",
    "image_size": "image_size",
    "layer_norm_eps": "layer_norm_epsilon",
    "num_attention_heads": "num_heads",
}
# Names in published files (transformers up to 4), and in later versions.
_PUBLISHED = _torch.Names(
    embedding="embeddings.patch_embeddings.projection",
    tokens={
        "embeddings.cls_token": "cls/cls",
        "embeddings.distillation_token": "dist/dist",
        "embeddings.position_embeddings": architecture.TABLE,
    },
    block="encoder.layer.{i}",
    norms=("layernorm_before", "layernorm_after"),
    heads=("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    out="attention.output.dense",
    mlp=("intermediate.dense", "output.dense"),
    encoder_norm="layernorm",
)
_LATER = dataclasses.replace(
    _PUBLISHED,
    block="layers.{i}",
    heads=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    out="attention.o_proj",
    mlp=("mlp.fc1", "mlp.fc2"),
)
STYLES = {"published": _PUBLISHED, "later": _LATER}


def rules(layout: Layout) -> list[Rule]:
    """Return the rules of a layout, whose `prefix` is that of the body, such as `vit.`."""
    # DeiT with a teacher has two classifiers, DeiT without and ViT have one.
    return [
        *_torch.model_rules(STYLES[layout.style], layout.prefix),
        *_torch.dense(f"{layout.prefix}pooler.dense", "pre_logits"),
        *_torch.dense("distillation_classifier", "head_dist"),
        *_torch.dense("cls_classifier" if layout.position == "teacher" else "classifier", "head"),
    ]


def style_of(names: Iterable[str], body: str) -> str:
    """Return the naming scheme of tensors whose names begin with `body`."""
    return "published" if any(name.startswith(f"{body}encoder.layer.") for name in names) else "later"


def recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return what `source` holds, or None if it is not a Hugging Face ViT or DeiT."""
    names, body = set(source.tensors), _torch.find_body(source, ANCHOR)
    if body is None:
        return None
    layout = Layout(
        "huggingface",
        style=style_of(names, body),
        position="teacher" if "cls_classifier.weight" in names else "",
        prefix=body,
    )
    # The mask token of masked-image modeling is not part of the model, and no classifier reads the pooler.
    ignored = {f"{body}embeddings.mask_token"}
    if {"classifier.weight", "cls_classifier.weight"} & names:
        ignored |= {f"{body}pooler.dense.weight", f"{body}pooler.dense.bias"}
    checkpoint = bind(source, layout, rules(layout), hints, ignored)
    if (source.config or {}).get("model_type") == "vit_mae":
        checkpoint.arguments["pooling"] = "token"
        checkpoint.allow_any_head()
    return checkpoint


def bind(
    source: TensorSource,
    layout: Layout,
    rules: list[Rule],
    hints: Hints,
    ignored: Set[str] = frozenset(),
    kind: str = "vit",
    *,
    anchor: str = ANCHOR,
    config: dict[str, Any] | None = None,
    defaults: Mapping[str, Any] = _DEFAULTS,
    model_types: tuple[str, ...] = _MODEL_TYPES,
) -> Checkpoint:
    """Return the checkpoint with the arguments that its tensors and its configuration show."""
    config, path = config if config is not None else source.config or {}, source.path
    if not config:
        _torch.note_missing_config(path)
    key = "num_attention_heads"
    heads = config.get(key, defaults[key] if config else None)
    stated = None if heads is None else (key, heads)
    checkpoint = _torch.bind(source, layout, rules, hints, f"{layout.prefix}{anchor}", stated, ignored, kind)
    found = checkpoint.arguments
    found["activation"] = _torch.activation(config.get("hidden_act", defaults["hidden_act"]), path)
    epsilon = config.get("layer_norm_eps", defaults["layer_norm_eps"])
    found["layer_norm_epsilon"] = _torch.number(epsilon, 0.0, 1.0, f"{path}: the configuration's layer_norm_eps")
    for argument, key in (("activation", "hidden_act"), ("layer_norm_epsilon", "layer_norm_eps")):
        if key not in config:
            checkpoint.assumed[argument] = f"the default of {key}"
    _check_config(config, found, body=checkpoint.layout.prefix, path=path, model_types=model_types)
    if "image_size" in config:
        found["image_size"] = config["image_size"]
    if source.preprocessor is not None:
        checkpoint.input_normalization = _torch.stated_normalization(source.preprocessor, path)
    labels = config.get("id2label")
    if isinstance(labels, dict) and found["include_top"]:
        if len(labels) != found["classes"]:
            raise CheckpointError(f"{path}: config.json names {len(labels)} classes, the head has {found['classes']}.")
        ordered = [labels.get(str(index)) for index in range(len(labels))]
        names = tuple(name for name in ordered if isinstance(name, str))
        if len(names) == len(labels):
            checkpoint.class_names = names
    return checkpoint


def _check_config(
    config: dict[str, Any], found: dict[str, Any], body: str, path: str, model_types: tuple[str, ...]
) -> None:
    """Refuse tensors that are not those of the configuration."""
    if config.get("model_type") not in (None, *model_types):
        raise CheckpointError(
            f"{path}: config.json has model_type={str(config['model_type'])[:40]!r}. Its tensors are of: "
            f"{', '.join(model_types)}."
        )
    stated = {argument: config.get(field) for field, argument in {**_SHOWN, "pooler_act": "pooler_act"}.items()}
    pooler = "tanh" if found["representation_size"] else None
    architecture.check_stated(stated, {**found, "pooler_act": pooler}, f"{path}: config.json")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or "ForImageClassification" not in str(architectures[:1]):
        return
    if body and not found["include_top"]:  # without a prefix it is the body alone, on purpose
        raise CheckpointError(f"{path} has no classifier, though config.json says {architectures[0]}. Fetch it again.")


def documents(config: Config, layout: Layout, class_names: Names, normalization: Normalization) -> Files:
    """Return `config.json` and `preprocessor_config.json`."""
    height, width = _checks.size_pair("image_size", config["image_size"])
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
    return {"config.json": _config(config, class_names), "preprocessor_config.json": preprocessor}


def _config(config: Config, class_names: Names) -> dict[str, Any]:
    deit = bool(config["distillation_token"])
    kind = "DeiT" if deit else "ViT"
    suffix = "Model" if not config["include_top"] else "ForImageClassification"
    if deit and config["include_top"] and config["distillation_token"] is True:
        suffix = "ForImageClassificationWithTeacher"
    result: dict[str, Any] = {
        "architectures": [f"{kind}{suffix}"],
        "model_type": kind.lower(),
        "hidden_act": {"gelu_tanh": "gelu_pytorch_tanh"}.get(config["activation"], config["activation"]),
        "initializer_range": 0.02,
        **{field: config[argument] for field, argument in {**_SHOWN, **_WRITTEN}.items()},
    }
    if config["representation_size"] is not None:
        result |= {"pooler_output_size": config["representation_size"], "pooler_act": "tanh"}
    if config["include_top"]:
        names = class_names or tuple(f"LABEL_{index}" for index in range(config["classes"]))
        result["id2label"] = {str(index): name for index, name in enumerate(names)}
        # Where two classes share a name the last index wins, as it does in transformers itself.
        result["label2id"] = {name: index for index, name in enumerate(names)}
    return result


def _layout(config: Config) -> Layout:
    return Layout("huggingface", "published", prefix=_body(config) if config["include_top"] else "")


def _fit(layout: Layout, config: Config) -> Layout:
    teacher = config["distillation_token"] is True and config["include_top"]
    prefix = _body(config) if config["include_top"] else layout.prefix  # headless files have it or not
    return dataclasses.replace(layout, position="teacher" if teacher else "", prefix=prefix)


def _body(config: Config) -> str:
    return "deit." if config["distillation_token"] else "vit."


def square_patches(config: Config) -> list[str]:
    """Return the reason why transformers cannot rebuild a model, if its patches are not square."""
    return [] if isinstance(config["patch_size"], int) else ["its configuration knows square patches only"]


def _limits(config: Config) -> Iterator[str]:
    if config["include_top"] and config["representation_size"] is not None:
        yield "its classifiers read the class token, not pre_logits (representation_size)"
    if config["distillation_token"] is True and not config["include_top"]:
        yield _torch.HEADLESS_DEIT
    yield from square_patches(config)


FAMILY = Family(
    "huggingface",
    recognize,
    rules,
    resize_method="bicubic",
    writing=Writing(
        values={
            "activation": _torch.WRITTEN_ACTIVATIONS,
            "pooling": ("token", None),
            "position_embedding": ("learned",),
            "class_token": (True,),
            "image_size": GIVEN,
            **dict.fromkeys(("distillation_token", "layer_norm_epsilon", "qkv_bias", "representation_size"), ANY),
        },
        limits=_limits,
        layout=_layout,
        fit=_fit,
        styles={name: functools.partial(dataclasses.replace, style=name) for name in STYLES},
        tensors="safetensors",
        documents=documents,
    ),
)
