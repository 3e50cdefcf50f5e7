"""Scan over the equal blocks of a model, so that XLA compiles one block in place of a chain of blocks.

Without a scan, the time of compilation grows with the number of blocks. In a scan, the first block of a chain runs once
per block, with the weights, random states and drop path rate of that block. The variables of the model, and therefore
checkpoints, are the same: the jitted step stacks the weights in the compute dtype, and separates the gradients of the
stacks. The stacks are sharded like the weights, and take 2 bytes per weight in mixed precision.

References:
    big_vision's `models/vit.py` with `scan=True`
"""

import collections
import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_vit.layers import EncoderBlock, SelfAttention
from keras_vit.layers.keras_private import calls
from keras_vit.models.variables import seed_states, weights
from keras_vit.training.jax.devices import Devices
from keras_vit.training.seeds import SeedScope

# From ViT-L on. Twelve blocks compile in minutes, and XLA can optimize across blocks that are not in a scan.
MIN_BLOCKS = 16


def chains(model: keras.Model) -> list[list[EncoderBlock]]:
    """Return each chain of at least `MIN_BLOCKS` equal blocks, of which only the last block's output is used otherwise.

    Equal blocks may differ in their drop path rates, except that a rate of 0 differs from all others.
    """
    found: list[list[Any]] = []
    if not isinstance(model, keras.Function):
        return []
    nodes = calls(model)
    uses = collections.Counter(id(x) for x in model.outputs)
    uses.update(id(x) for node in nodes for x in node.input_tensors)
    ends: dict[int, list[Any]] = {}  # chains by their output
    for node in nodes:
        block = node.operation
        # Other layers may change variables or add losses, which cannot leave a scan.
        if not (type(block) is EncoderBlock and type(block.attention) is SelfAttention):
            continue
        chain = ends.pop(id(node.input_tensors[0]), None)
        if chain is None or uses[id(node.input_tensors[0])] > 1 or _properties(chain[-1]) != _properties(node):
            chain = []
            found.append(chain)
        chain.append(node)
        ends[id(node.outputs[0])] = chain
    return [[node.operation for node in chain] for chain in found if len(chain) >= MIN_BLOCKS]


def _properties(node: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is equal in the calls of equal blocks."""
    config = {**node.operation.get_config(), "name": None}
    config["drop_path_rate"] = config["drop_path_rate"] > 0
    others = {
        name: id(value) if isinstance(value, keras.KerasTensor) else value
        for name, value in node.arguments.kwargs.items()
    }
    return config, others


@contextlib.contextmanager
def scanned(blocks_of_chains: Sequence[Sequence[EncoderBlock]], devices: Devices) -> Iterator[None]:
    """Run each chain as a scan, within a `with` block.

    The call of a chain's first block returns the output of the last block. The calls of the other blocks return their
    input.
    """
    try:
        for blocks in blocks_of_chains:
            for block in blocks:
                block.replacement = lambda x, **arguments: x
            blocks[0].replacement = functools.partial(_scan, blocks, devices)
        yield
    finally:
        for blocks in blocks_of_chains:
            for block in blocks:
                block.replacement = None


def _scan(blocks: Sequence[EncoderBlock], devices: Devices, x: Any, **arguments: Any) -> Any:
    """Return the output of the last block. This function runs in place of the call of the first block."""
    block = blocks[0]
    variables, states = weights(block), seed_states(block)
    shardings = [devices.of_weight(tuple(variable.shape)) for variable in variables]

    def step(x, of_block):
        arrays, seeds, rate = of_block
        x = jax.lax.with_sharding_constraint(x, devices.rows)
        # The gradients have the sharding of the weights, too. Each block therefore sums its own.
        arrays = jax.lax.with_sharding_constraint(arrays, shardings)
        with SeedScope(states, seeds, zip(variables, arrays, strict=True)), _standing_in(block, rate):
            return block.call(x, **arguments), None

    # In the compute dtype, in which the layers read them.
    values = zip(*([variable.value for variable in weights(block)] for block in blocks), strict=True)
    stacks = [
        jax.lax.with_sharding_constraint(jnp.stack(same), devices.stacked(sharding))
        for same, sharding in zip(values, shardings, strict=True)
    ]
    seeds = jnp.asarray([[state.value for state in seed_states(block)] for block in blocks], jnp.uint32)
    rates = jnp.asarray([block.drop_path_rate for block in blocks], jnp.float32)
    recomputed = keras.layers.Layer.rematerialized_call(block, block.call, x) != block.call
    step = jax.checkpoint(step, prevent_cse=False, policy=None if recomputed else _is_product)
    return jax.lax.scan(step, x, (stacks, seeds, rates))[0]


def _is_product(primitive: Any, *_: Any, **__: Any) -> bool:
    """Return whether the result of an operation is saved for the backward pass, which recomputes all other values.

    Without this policy, a scan saves every value. Without a scan, XLA itself decides to recompute cheap values. cuDNN's
    attention is a single operation.
    """
    return primitive.name.startswith(("dot_general", "dot_product_attention"))


@contextlib.contextmanager
def _standing_in(block: EncoderBlock, rate: Any) -> Iterator[None]:
    """Within a `with` block, let the call of a chain's first block compute a block with this drop path rate."""
    layers = (block.drop_path_0, block.drop_path_1) if block.drop_path_rate else ()
    replacement, block.replacement = block.replacement, None
    for layer in layers:
        layer.rate = rate
    try:
        yield
    finally:
        block.replacement = replacement
        for layer in layers:
            layer.rate = block.drop_path_rate
