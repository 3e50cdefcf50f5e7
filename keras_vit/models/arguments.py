"""Constructors that take the arguments of a configuration and suggest the right name for an unknown argument."""

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

from keras_vit.util import checks

P = ParamSpec("P")
C = TypeVar("C")
Self = TypeVar("Self")

# Names of the arguments in other libraries.
_SYNONYMS = {
    "image_size": ("input_size", "img_size"),
    "classes": ("num_classes", "n_classes", "num_labels"),
    "channels": ("num_channels", "in_chans", "in_channels"),
    "name": ("model_name",),
    "dropout_rate": ("dropout", "drop_rate", "hidden_dropout_prob"),
    "attention_dropout_rate": ("attn_drop_rate", "attention_dropout", "attention_probs_dropout_prob"),
    "drop_path_rate": ("stochastic_depth_rate", "stochastic_depth"),
    "hidden_size": ("embed_dim", "hidden_dim", "width", "dim"),
    "num_layers": ("depth", "num_hidden_layers", "transformer_layers"),
    "head_dim": ("dim_head",),
    "num_heads": ("heads", "num_attention_heads"),
    "mlp_dim": ("intermediate_size",),
    "classifier_activation": ("activation_fn", "head_activation"),
    "num_registers": ("reg_tokens", "num_register_tokens"),
    "layer_scale": ("init_values", "layerscale_value"),
    "layer_norm_epsilon": ("layer_norm_eps", "norm_eps"),
    "weights": ("pretrained", "pretrained_cfg"),
    "block_sizes": ("num_blocks", "stackwise_num_blocks", "layers"),
    "width_factor": ("widen_factor",),
}
_WITHOUT_ARGUMENT = {
    **dict.fromkeys(("input_shape", "image_shape"), "Use `image_size` and `channels`."),
    "pooling": "With `include_top=False`, the output of a BiTResNet is the mean over the positions.",
    "input_tensor": "Build the model without it, and call the model on the tensor.",
    "weights": "Build a published variant, such as `keras_vit.ViT_B16(weights=...)`, or call "
    "`keras_vit.load_checkpoint(model, path)`.",
    "include_preprocessing": "Pass `input_range=(0, 255)` for a model that takes pixels.",
}


def check_names(
    constructor: str, given: Iterable[str], known: Iterable[str], error: type[Exception] = TypeError
) -> None:
    """Raise a TypeError (or `error`) that suggests the right name for an unknown argument."""
    known = list(known)
    for name in given:
        if name in known:
            continue
        meant = next((own for own, others in _SYNONYMS.items() if name in others), name)
        if meant != name and meant in known:
            hint = f" Use `{meant}`."
        elif meant in _WITHOUT_ARGUMENT:
            hint = f" {_WITHOUT_ARGUMENT[meant]}"
        else:
            hint = checks.nearest(name, known)
        raise error(f"{constructor}() has no argument {name!r}.{hint} Its arguments are: {', '.join(known)}.")


def bind(
    constructor: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name. Raises a TypeError with the constructor's name if the call is invalid."""
    check_names(constructor, kwargs, signature.parameters)
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"{constructor}(): {error}. Its arguments are: {', '.join(signature.parameters)}.") from None


def configured_by(
    config_class: Callable[P, C],
) -> Callable[[Callable[[Self, C], None]], Callable[Concatenate[Self, P], None]]:
    """Decorate an `__init__` that takes a configuration. Callers then pass the configuration's arguments instead."""
    signature = inspect.signature(config_class)

    def decorate(init: Callable[[Self, C], None]) -> Callable[Concatenate[Self, P], None]:
        @functools.wraps(init)
        def construct(self: Self, *args: P.args, **kwargs: P.kwargs) -> None:
            arguments: dict[str, Any] = bind(type(self).__name__, signature, args, kwargs)
            init(self, config_class(**arguments))  # type: ignore[call-arg]

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        construct.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[own, *signature.parameters.values()], return_annotation=None
        )
        del construct.__wrapped__  # tools that unwrap functions would show the signature of `init`
        return construct

    return decorate


def with_arguments(text: str | None, config_class: Any, leave_out: Iterable[str] = ()) -> str:
    """Replace the line "See ..." below "Args:" in a docstring with the arguments of a configuration, in their order."""
    entries: dict[str, str] = {}
    for owner in reversed(config_class.__mro__):
        section = inspect.cleandoc(owner.__doc__ or "").partition("Args:\n")[2].split("\n\n", 1)[0]  # empty under -OO
        for entry in re.split(r"\n(?= {4}\w)", section):  # continued lines are indented by eight spaces
            entries[entry.strip().split(":", 1)[0]] = textwrap.indent(entry, "    ")
    names = [name for name in inspect.signature(config_class).parameters if name in entries and name not in leave_out]
    return re.sub(r" +See `\S+`\.", lambda _: "\n".join(entries[name] for name in names), text or "", count=1)
