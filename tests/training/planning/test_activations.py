"""Counted activations against algebra, against what TensorFlow and JAX keep, and against the memory of a step."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import create_model
from keras_vit.layers import kernels
from keras_vit.training.planning import cost, plan
from tests import selection
from tests.models import variants


def test_activation_memory_follows_the_architecture():
    base = cost.of_variant("ViT-B/16")
    # A block saves 8 vectors of D and 2 of the MLP's width per token, and the attention weights.
    block = 197 * (8 * 768 + 2 * 3072) + 12 * 197**2
    assert cost.of_variant("ViT-B/16", num_layers=13).activations - base.activations == block
    remat = cost.of_variant("ViT-B/16", remat="blocks")
    assert remat.parameters == base.parameters and remat.macs == base.macs
    assert base.activations - remat.activations == 12 * block - (12 * 197 * 768 + block)
    # Instead of GELU's input and output: both outputs of a gated MLP, the SiLU, and the product.
    gated = cost.of_variant("ViT-B/16", mlp="swiglu")
    assert gated.activations - base.activations == 12 * 197 * (4 - 2) * 3072
    # Two vectors per token: both branches of a block, or the query and the key.
    for option in ({"layer_scale": 0.1}, {"qk_norm": True}):
        assert cost.of_variant("ViT-B/16", **option).activations - base.activations == 12 * 197 * 2 * 768


def test_activations_of_attention_pooling_match_hand_computation():
    """Inputs, query, keys and values, weights, the input of the output projection, and the norm and MLP of one row."""
    pooled, mean = (cost.of_variant("ViT-B/16", pooling=pooling, class_token=True) for pooling in ("map", "gap"))
    attention = 768 * (1 + 197) + 768 * (1 + 2 * 197) + 12 * 197 + 768
    assert pooled.activations - mean.activations == attention + 2 * 768 + 2 * 3072


def test_activations_of_attention_in_chunks_have_the_weights_of_one_chunk():
    arguments = {"image_size": 1024, "pooling": "gap"}
    whole = cost.of_variant("ViT-S/16", attention_chunk_size=4096, **arguments)  # one chunk: no chunks
    chunks = cost.of_variant("ViT-S/16", attention_chunk_size=256, **arguments)
    assert (chunks.parameters, chunks.macs) == (whole.parameters, whole.macs)
    assert whole.activations - chunks.activations == 6 * 4096 * (12 * 4096 - 256)
    # 8 vectors of D and 2 of the MLP's width per token: with the chunks, memory grows with the number of tokens alone.
    rest = chunks.activations - 12 * 4096 * (8 * 384 + 2 * 1536) - 6 * 256 * 4096
    assert rest == 1024 * 1024 * 3 + 4096 * 384 + 384  # the image, and what norm and head take
    both = cost.of_variant("ViT-S/16", attention_chunk_size=256, remat="blocks", **arguments)
    one_block = 4096 * (8 * 384 + 2 * 1536) + 6 * 256 * 4096
    assert both.activations == rest + 12 * 4096 * 384 + one_block
    assert cost.of_variant("ViT-S/16", **arguments) == chunks  # by itself
    assert cost.of_variant("ViT-S/16", image_size=512, pooling="gap").activations > 12 * 6 * 1024**2  # at once
    dropout = cost.of_variant("ViT-S/16", attention_dropout_rate=0.1, **arguments)  # excludes chunks
    assert dropout.activations == whole.activations + 12 * 6 * 4096**2 * 3 // 2


def test_dropout_keeps_a_byte_of_each_value():
    base = cost.of_variant("ViT-B/16")
    tokens, weights = 197 * 12 * (2 * 768 + 3072), 12 * 12 * 197**2  # the mask of the input is not counted
    for option in ({}, {"mlp": "swiglu"}):
        without, dropped = (cost.of_variant("ViT-B/16", dropout_rate=rate, **option) for rate in (0.0, 0.1))
        assert dropped.activations - without.activations == tokens // 2
    dropped = cost.of_variant("ViT-B/16", attention_dropout_rate=0.1)
    assert dropped.activations - base.activations == weights + weights // 2


BATCH = 11  # no other dimension is 11
KEPT = {
    **{name: {} for name in ("token", "gap", "all_tokens", "features", "every_layer", "registers", "fc_norm")},
    **{name: {} for name in ("map", "no_final_norm", "dinov3")},  # one query, norms of queries, and gated MLPs
    "hybrid": {"patch_size": 1},
    "hybrid_timm": {"patch_size": 2},
    "chunks": {"attention_chunk_size": 16},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", selection.cases(KEPT, ("gap", "hybrid")))
def test_counted_activations_match_tensorflow(name):
    assert kept_by_tensorflow(small("gap" if name == "chunks" else name, **KEPT[name])) == counted(name)


@pytest.mark.slow
def test_tensorflow_also_saves_masks_and_padded_copies():
    # The masks of stochastic depth, and the mask of the input's dropout.
    ratio = kept_by_tensorflow(small("dropout")) / counted("dropout")
    assert ratio == pytest.approx(1, abs=0.01)
    # Convolutions of BiT have padded copies of their inputs, which are not counted.
    model = create_model("BiT-R50x1", block_sizes=(1, 1, 1, 1))
    activations = cost.of_config(model.config).activations
    assert kept_by_tensorflow(model, padded_copies=False) / activations == pytest.approx(1, abs=0.02)
    assert 1.1 < kept_by_tensorflow(model) / activations < 1.25
    # Both forms of GELU keep their input only; other activation functions and relative positions keep more.
    ratios = {name: kept_by_tensorflow(small(name)) / counted(name) for name in ("deit", "relative")}
    assert ratios["deit"] == pytest.approx(1, abs=0.001) and 1.01 < ratios["relative"] < 1.06


def small(name, **arguments):
    sizes = {"hidden_size": 64, "mlp_dim": 256, "num_heads": 4, "patch_size": 8, "image_size": (64, 64)}
    return variants.make_whole(name, **{**sizes, **arguments})  # all tokens, as they are counted


def counted(name):
    model = small("gap" if name == "chunks" else name, **KEPT.get(name, {}))
    one_chunk = 4 * 16 * 64 if name == "chunks" else 0  # temporary, not saved
    return cost.of_config(model.config).activations - one_chunk


def kept_by_tensorflow(model, padded_copies=True):
    """Numbers an image that the gradient's operations take from the forward pass, statistics of norms left out.

    Without `padded_copies`, a padded image counts as the image.
    """
    kept = {}
    same = ("Identity", "IdentityN", "Reshape", *(() if padded_copies else ("Pad", "PadV2")))

    def step(images):
        operations = tf.compat.v1.get_default_graph().get_operations
        with tf.GradientTape() as tape:
            output = tf.reduce_sum(model(images, training=True))
        forward = {operation.name for operation in operations()}
        tape.gradient(output, [weight.value for weight in model.trainable_variables])
        for operation in operations():
            for tensor in operation.inputs if operation.name not in forward else ():
                while tensor.op.type in same:  # the same memory
                    tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
                if tensor.op.name in forward:
                    kept[tensor.name] = tensor

    images = tf.TensorSpec((BATCH, *model.inputs[0].shape[1:]))
    with kernels.plain("xla"):  # with XLA, processors compute one of the MLP's tensors again
        tf.function(step, autograph=False).get_concrete_function(images)
    numbers = 0
    for tensor in kept.values():
        shape = tensor.shape.as_list() if tensor.dtype != tf.resource and tensor.shape.rank else []
        if BATCH in shape[:2] and shape[-1] > 1 and shape[1:3] != [1, 1]:
            numbers += int(np.prod(shape)) // BATCH // (2 if tensor.dtype == tf.bool else 1)
    return numbers


@pytest.mark.exhaustive
def test_counted_activations_match_jax_without_compilation():
    program = """
import jax, keras, numpy as np
from keras_vit.training.planning import cost
from tests.models import variants
for name in ("gap", "hybrid", "bit"):
    sizes = {"hidden_size": 64, "mlp_dim": 256, "num_heads": 4, "patch_size": 1 if name == "hybrid" else 8}
    model = variants.make_whole(name, image_size=(64, 64), **({} if name == "bit" else sizes))
    counted = cost.of_config(model.config).activations
    weights, others = ([v.value for v in some] for some in (model.trainable_variables, model.non_trainable_variables))
    run = lambda w: model.stateless_call(w, others, variants.images(model, batch=11), training=True)[0].sum()
    kept = {id(leaf): leaf for leaf in jax.tree_util.tree_leaves(jax.vjp(run, weights)[1])}.values()
    kept = [leaf for leaf in kept if leaf.shape and leaf.shape[0] == 11 and leaf.shape[-1] > 1]
    print(sum(leaf.nbytes / 4 for leaf in kept) / 11 / counted)
"""
    vit, hybrid, bit = (float(line) for line in run(program, "jax").split())
    assert vit == pytest.approx(1, abs=0.001)
    # JAX also keeps, of each ReLU, where its input was above 0, and zeros for elsewhere; the compiler removes both.
    assert hybrid == pytest.approx(1.39, abs=0.02) and bit == pytest.approx(1.62, abs=0.02)


@pytest.mark.exhaustive
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's count of a process's memory")
def test_memory_of_an_uncompiled_step_is_a_multiple_of_its_activations():
    program = """
import sys
import tensorflow as tf
from keras_vit import create_model
from keras_vit.training.planning import cost
name, dtype, *batches = sys.argv[1:]
model = create_model(name, dtype=dtype)

@tf.function
def step(images):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(images, training=True))
    return [tf.reduce_sum(g) for g in tape.gradient(loss, [w.value for w in model.trainable_variables])]

def peak(batch):
    images = tf.random.uniform((batch, 224, 224, 3))
    step(images)
    open("/proc/self/clear_refs", "w").write("5")  # forgets the first step's peak
    step(images)
    return int(dict(line.split(":") for line in open("/proc/self/status"))["VmHWM"].split()[0]) * 1024

small, large = map(int, batches)
first, second = peak(small), peak(large)
activations = tf.as_dtype(model.compute_dtype).size * cost.of_config(model.config).activations
print((second - first) / (large - small) / activations)
"""
    ratios = []
    for work in (
        ("ViT-Ti/16", "float32", 2, 18),
        ("ViT-Ti/16", "mixed_bfloat16", 2, 18),
        ("BiT-R50x1", "float32", 2, 8),
    ):
        command = [sys.executable, "-c", program, *map(str, work)]
        environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        ratios.append(float(done.stdout.split()[-1]))
    # Temporary memory depends on how many operations run at once.
    # An estimate may be too large, but hardly too small.
    factors = [plan.TEMPORARY, plan.TEMPORARY_IN_16_BITS, plan.TEMPORARY_OF_RESNET]
    assert all(1 < ratio < 1.15 * factor for ratio, factor in zip(ratios, factors, strict=True)), ratios


def run(program, backend, *arguments):
    """Output of a Python program in a separate process."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
