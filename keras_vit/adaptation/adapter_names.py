"""Names of the modules in an adapter, which follow from the rules of the checkpoint families."""

import dataclasses
import itertools
import re

import keras

from keras_vit.adaptation.adapt import DenseLayer, dense_layers
from keras_vit.checkpoints import CheckpointError, families
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.rules import Binding, Rule, bind_stored, bind_variables
from keras_vit.checkpoints.save import layout_of
from keras_vit.util import checks

FORMATS = ("huggingface", "timm")
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(.+)\.lora_([AB])\.weight")

Modules = dict[str, list[DenseLayer]]  # stored name of a matrix -> the layers whose kernels it concatenates


def bare(module: str) -> str:
    """Return a module's name in the base model."""
    return module.removeprefix(_PREFIX)


def modules_of(model: keras.Model, rules: list[Rule]) -> Modules:
    """Return the layers of each stored matrix, by the matrix's name under the given rules."""
    layers = {f"{layer.path}/kernel": layer for layer in dense_layers(model)}
    found: Modules = {}
    for binding in bind_variables(rules, layers)[0]:
        parts = [layers[name] for name in binding.variables]
        count = len(parts) - len(binding.stored) + 1  # only the first matrix can belong to several layers
        for name in binding.stored:
            found[name.removesuffix(".weight")], parts, count = parts[:count], parts[count:], 1
    return found


def recognize(model: keras.Model, source: TensorSource) -> tuple[Modules, list[str], list[Binding]]:
    """Recognize the naming scheme of an adapter.

    Returns all modules of the model in this naming scheme, the names of the modules with factors, and the bindings of
    variables that are stored without factors.
    """
    factors = list(dict.fromkeys(match[1] for name in source.tensors if (match := _FACTOR.fullmatch(name))))
    others = [name for name in source.tensors if not _FACTOR.fullmatch(name)]
    fewest, result = [*factors, *others], None
    factors = factors if len(fewest) <= 2 * len(model.weights) else []  # too many for an adapter of the model
    for family in families.FAMILIES:
        for layout in family.layouts:
            own = modules_of(model, family.rules(layout))
            prefixes = {name.removesuffix(end) for name in factors for end in own if name.endswith(f".{end}")}
            for prefix in sorted(prefixes):
                for outer in itertools.accumulate(re.findall(r"[^.]*\.", prefix)):
                    rules = family.rules(dataclasses.replace(layout, prefix=prefix, outer=outer))
                    modules, (whole, unknown) = modules_of(model, rules), bind_stored(rules, others)
                    unknown += [name for name in factors if name not in modules]
                    if result is None or len(unknown) < len(fewest):
                        fewest, result = unknown, (modules, factors, whole)
    if result is None or fewest:
        raise CheckpointError(
            f"{source.path} must contain factors of the model's dense layers, and its head, with the names of "
            "transformers' ViT, DeiT, DINOv2, DINOv3 or SigLIP, or of timm. Received: "
            f"{', '.join(map(bare, fewest[:8]))}."
        )
    return result


def written_rules(model: keras.Model, format: str | None, naming: str | None) -> list[Rule]:  # noqa: A002
    """Return the rules of the format in which to write a model's adapter."""
    if format is not None:
        checks.choice("format", format, FORMATS)
    config, read = model.config.to_dict(), getattr(getattr(model, "checkpoint_layout", None), "family", None)
    reasons = []
    for name in [format] if format else sorted(FORMATS, key=lambda name: name != read):
        try:
            family, writing = families.writing_family(name, "vit", config)
        except CheckpointError as error:
            reasons.append(error)
            continue
        naming = naming or ("later" if "later" in writing.styles else None)
        layout = layout_of(model, name, writing, config, naming, None)
        # In version 5 of transformers, headless models have no prefix.
        own = layout.prefix if config["include_top"] or naming == "published" else ""
        return family.rules(dataclasses.replace(layout, prefix=_PREFIX + own, outer=_PREFIX + layout.outer))
    raise reasons[0]
