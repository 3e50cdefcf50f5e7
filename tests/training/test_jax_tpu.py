"""The training step of ViT-L/16 on JAX, compiled by the TPU compiler for 256 chips without a TPU."""

import json
import os
import subprocess
import sys

import pytest

from tests.training.small_runs import ROOT
from tools.compile_plan.compiler import TpuCompiler

pytestmark = [
    pytest.mark.tpu,
    pytest.mark.skipif(
        not TpuCompiler.available(), reason="the TPU's compiler is not installed: pip install 'jax[tpu]'"
    ),
]
# Two of the 24 layers: the others are the same again, and compiling takes as many times as long.
PROGRAM = """
import json, re, sys
import jax, numpy as np, tensorflow as tf
from keras_vit import recipe as recipes
from tools.compile_plan import targets
from tools.compile_plan.compiler import TpuCompiler
from keras_vit.training.jax.devices import Devices
from keras_vit.training.jax.step import program

chips = TpuCompiler(targets.parse("v5e-256")).devices
recipe = recipes.Recipe(
    precision="mixed_bfloat16",
    model=recipes.Model(variant="ViT-L/16", arguments={"num_layers": 2}),
    data=recipes.Data(batch_size=4096),
)
batch = {"image": tf.TensorSpec([None, 224, 224, 3], tf.uint8), "label": tf.TensorSpec([None], tf.int32)}
step, arguments = program(recipe, 1000, batch, Devices(chips, fsdp=len(chips) if sys.argv[1] == "fsdp" else 1))
compiled = step.lower(*arguments).compile()
exchanges = re.findall(r" = (.+?) (all-reduce|all-gather|reduce-scatter)(?:-start)?\\(", compiled.as_text())
state = sum(np.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(arguments[:2]))
json.dump([exchanges, compiled.memory_analysis().argument_size_in_bytes, int(state)], sys.stdout)
"""


@pytest.mark.parametrize("way", ["data_parallel", "fsdp"])
def test_tpu_programs_have_the_expected_collectives(way):
    """Each of the MLP's two kernels in both layers: its gradient is summed, and with fsdp it is gathered before use."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", PROGRAM, way]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr[-3000:]
    exchanges, arguments, state = json.loads(done.stdout)
    shapes = " ".join(shape for shape, _ in exchanges)
    times = shapes.count("bf16[1024,4096]") + shapes.count("f32[1024,4096]")
    images = 16 * 224 * 224 * 3
    if way == "fsdp":
        # For parts of this size the compiler gathers by a sum of zeros and the part: an all-reduce, too.
        assert {kind for _, kind in exchanges} <= {"all-gather", "all-reduce", "reduce-scatter"}
        assert times >= 4
        assert arguments < 4 * images + state / 100
    else:
        assert {kind for _, kind in exchanges} == {"all-reduce"}
        assert times == 2
        assert arguments > state
