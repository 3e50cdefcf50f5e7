"""Training steps for NVIDIA GPUs, compiled by XLA on a machine without a GPU."""

import json
import os
import subprocess
import sys

import pytest

from tests.training.small_runs import ROOT
from tools.compile_plan.compiler import GpuCompiler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not GpuCompiler.available(), reason="the CUDA plugin of JAX is not installed (extra [plan-gpu])"
    ),
]
# 17 tokens: an odd number, which JAX refuses to differentiate without padding.
SMALL = ("--config.data.batch_size=64", "--config.precision=mixed_bfloat16", "--config.model.arguments.pooling=token")


def products_per_step(counted):
    """Operations of all products but those of the last block for the 16 tokens that the head does not read."""
    tokens, width, mlp, batch = 17, 64, 128, 64
    queries, weights, outputs, dense = width * width, 2 * tokens * width, width * width, 2 * width * mlp
    return counted["training_flops_per_step"] - 6 * batch * (tokens - 1) * (queries + weights + outputs + dense)


def call(backend, module, *flags):
    command = [sys.executable, "-m", module, "--config=digits", "--json", *SMALL, *flags]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def plan(backend, *flags):
    compiled = call(backend, "tools.compile_plan", "--nosearch", *flags)
    return call(backend, "train.plan", f"--devices={compiled['devices']}"), compiled


@pytest.mark.parametrize("target", ["h100", "a100", "l4"])
def test_jax_step_has_the_planned_operations(target):
    counted, compiled = plan("jax", f"--target={target}")
    assert compiled["fits"] and compiled["collectives"] == {}
    # A bit more for recomputed attention weights and a padded number of tokens, less for the gradient of the images.
    assert compiled["flops"] == pytest.approx(products_per_step(counted), rel=0.03)
    # Weights and momentum are read and written at least once.
    assert compiled["bytes_accessed"] > 2 * 2 * 4 * counted["parameters"]


def test_fsdp_shards_weights_over_gpus():
    _, copied = plan("jax", "--target=h100:8")
    _, sharded = plan("jax", "--target=h100:8", "--distribute=fsdp")
    assert set(copied["collectives"]) == {"all-reduce"}
    assert sharded["collectives"]["all-gather"] >= 1
    assert sharded["arguments"] < copied["arguments"]


def test_tensorflow_step_has_the_planned_operations():
    counted, compiled = plan("tensorflow", "--target=h100:8")
    assert compiled["fits"] and compiled["collectives"]["all-reduce"] >= 1
    # XLA pads the 17 tokens of the attention to 24.
    assert compiled["flops"] == pytest.approx(products_per_step(counted) / 8, rel=0.08)
