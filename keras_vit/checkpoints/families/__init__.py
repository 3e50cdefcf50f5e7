"""The projects whose checkpoints are read and written, with one module for each project.

To add a project, write a module with a `Family` and add the family to `FAMILIES`. Most of a family consists of rules,
which map the tensors of a file to the variables of a model. Here are the rules for three tensors of a PyTorch project:

>>> from keras_vit.checkpoints.rules import DENSE, HEADS_IN, bind_stored, bind_variables, fused, rule
>>> rules = [
...     rule("cls_token", "cls/cls"),
...     rule("blocks.{i}.fc1.weight", "encoderblock_{i}/MlpBlock_0/Dense_0/kernel", DENSE),
...     rule(
...         "blocks.{i}.qkv.weight",
...         ["encoderblock_{i}/query/kernel", "encoderblock_{i}/key/kernel", "encoderblock_{i}/value/kernel"],
...         fused(HEADS_IN, 3),
...     ),
... ]

The first tensor has the shape of its variable. The second tensor is a dense kernel, which PyTorch stores transposed.
The third tensor becomes three variables: `fused` splits it, and `HEADS_IN` converts each part from `[H*K, D]` to
`[D, H, K]`. (The real names of attention variables are longer.)

To read a file, the rules are applied to its names. The result is one binding for each match, and a list of the names
that no rule matches:

>>> bindings, unexpected = bind_stored(rules, ["cls_token", "blocks.1.fc1.weight", "blocks.1.qkv.weight", "ema.decay"])
>>> [binding.variables[0] for binding in bindings]
['cls/cls', 'encoderblock_1/MlpBlock_0/Dense_0/kernel', 'encoderblock_1/query/kernel']
>>> unexpected
['ema.decay']

A binding can compute the shapes of its variables from headers. The arguments of the model are inferred from these
shapes. Later, the binding converts the arrays in the same way:

>>> bindings[2].variable_shapes({"blocks.1.qkv.weight": (96, 32)}, heads=4)
((32, 4, 8), (32, 4, 8), (32, 4, 8))

To write a model, the same rules are applied to the names of its variables:

>>> variables = [name for binding in bindings for name in binding.variables]
>>> bindings, left_over = bind_variables(rules, variables)
>>> [binding.stored[0] for binding in bindings], left_over
(['cls_token', 'blocks.1.fc1.weight', 'blocks.1.qkv.weight'], [])
>>> bindings[2].stored_shapes(dict.fromkeys(bindings[2].variables, (32, 4, 8)))
((96, 32),)

The classes build on each other in this order:

1. `Transform` (`rules.py`): a pair of functions that convert a file's arrays to a model's arrays, and back.
2. `Rule`: templates of the names on both sides, and the transform between them.
3. `Binding`: a rule with its templates filled in, for one file or one model.
4. `Layout` (`checkpoint.py`): the naming scheme and the shapes of a file, which most projects have changed over time. A
   family's `rules` function returns the rules of a layout.
5. `Checkpoint`: an open file with its layout, its bindings and the arguments of its model. A family's `recognize`
   function returns a checkpoint, or None for the files of other projects.
6. `Writing` (`family.py`): the models that a family can write, and the configuration files to write with them.
7. `Family`: a project with its `recognize` and `rules` functions and, if the project's checkpoints can be written, its
   `Writing`.
"""

from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.checkpoint import KINDS
from keras_vit.checkpoints.families import (
    bit,
    google,
    huggingface,
    keras,
    mae,
    meta,
    timm,
    vit_pytorch,
)
from keras_vit.checkpoints.families.family import Family, Writing
from keras_vit.checkpoints.formats.tensors import CheckpointError

# The first family that recognizes a file reads it. Keras is first: its variables have the names of Google's tensors.
FAMILIES: tuple[Family, ...] = (
    keras.FAMILY,
    *google.FAMILIES,
    *bit.FAMILIES,
    *mae.FAMILIES,
    *huggingface.FAMILIES,
    meta.FAMILY,
    *timm.FAMILIES,
    vit_pytorch.FAMILY,
)


def written_formats() -> dict[str, str]:
    """Return the formats that `save_checkpoint` writes, each with its type of file: `"npz"` or `"safetensors"`."""
    return {family.name: family.writing.tensors for family in FAMILIES if family.writing is not None}


def writing_family(format: str, kind: str, config: Mapping[str, Any]) -> tuple[Family, Writing]:
    """Return the family that writes a model in a format, and its `Writing`."""
    options = KINDS[kind].config.options()
    reasons: dict[str, list[str]] = {}
    for family in FAMILIES:
        if family.writing is None or family.kind != kind:
            continue
        found = family.writing.reasons(config, options)
        if not found and family.name == format:
            return family, family.writing
        # A project has several types of models. Keep the reasons of the type with the fewest reasons.
        reasons[family.name] = min(reasons.get(family.name, found), found, key=len)
    found = reasons.get(format, [f"it does not support {KINDS[kind].noun}s"])
    others = [name for name, listed in reasons.items() if not listed]
    raise CheckpointError(
        f"The {format} format cannot represent this model: {'; '.join(found)}. "
        f"{'Formats that can: ' + ', '.join(others) + '; or' if others else 'Save it with'} model.save('model.keras')."
    )
