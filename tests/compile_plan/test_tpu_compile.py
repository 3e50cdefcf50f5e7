"""The TPU compiler compiles every step that runs in `strategy.run`, on a machine without a TPU.

A few cases are in the default run, all of them in `make test-tpu`. Nothing is run: that the numbers are right is tested
elsewhere, on other hardware.
"""

import dataclasses
import json
import math
import os
import subprocess
import sys

import keras
import pytest
import tensorflow as tf

from keras_vit import tasks
from keras_vit.training import device_preprocessing
from tests.compile_plan import tpu_cases
from tools.compile_plan import step_plan, step_program, targets
from tools.compile_plan.compiler import Compiled, DoesNotFit, TpuCompiler

pytestmark = pytest.mark.skipif(
    not TpuCompiler.available(), reason="the TPU's compiler is not installed: pip install 'jax[tpu]', on Linux"
)
PRECISIONS = ("float32", "mixed_bfloat16")
STRUCTURES = tpu_cases.structures()
_ONE_LAYER = {**STRUCTURES["ViT"].arguments, "num_layers": 1}
SHORT = {"ViT of one layer": dataclasses.replace(STRUCTURES["ViT"], arguments=_ONE_LAYER)}


@pytest.fixture(autouse=True)
def nothing_left():
    """The full matrix would otherwise fill the memory with the models and programs of the tests before."""
    yield
    keras.utils.clear_session(free_memory=True)


def programs(recipe, target="v5e-8"):
    compiler = TpuCompiler(targets.parse(target))
    return step_program.Programs(recipe, tpu_cases.CLASSES, step_program.batch_spec(recipe), compiler)


def check_train_step(structure, precision, setting, target="v5e-8"):
    recipe = tpu_cases.recipe({**STRUCTURES, **SHORT}[structure], precision, setting)
    steps = programs(recipe, target)
    compiled = steps.compile(recipe)
    assert isinstance(compiled, Compiled)
    assert compiled.collectives["all-reduce"] >= 1
    assert compiled.flops > 0
    # Weights, moments and averages are updated where they are.
    copies = 1 + (2 if recipe.optim.name == "adamw" else 1) + (recipe.optim.ema_momentum > 0)
    gradients = 4 * sum(math.prod(weight.shape) for weight in steps.state(recipe).trained)
    least = gradients * (copies - (0.5 if recipe.optim.momentum_dtype == "bfloat16" else 0))
    assert compiled.aliased >= least
    assert compiled.outputs - compiled.aliased < 64 * 1024  # beyond them, four numbers (and padding) come back


def check_eval_step(structure, precision, setting, target="v5e-8"):
    recipe = tpu_cases.recipe(STRUCTURES[structure], precision, setting)
    steps = programs(recipe, target)
    compiler = steps.compiler
    state = steps.state(recipe)
    evaluate = tasks.evaluation(state.task, state.model, device_preprocessing.evaluation_inputs(state.task))
    size = (recipe.data.eval_batch_size or recipe.data.batch_size) // compiler.target.devices
    specs = {
        name: tf.TensorSpec([size, *spec.shape[1:]], spec.dtype) for name, spec in steps.batch.items() if name != "mix"
    }
    specs = {**specs, "valid": tf.TensorSpec([size], tf.float32)}
    program = step_program.lower(lambda batch: evaluate(state.evaluated(), batch), specs)
    compiled = compiler.compile_hlo(program, compiler.target.devices)
    assert isinstance(compiled, Compiled)
    assert compiled.collectives == {}
    assert compiled.flops > 0


# --- in the default run -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("structure", "precision"),
    [("ViT of one layer", "mixed_bfloat16"), pytest.param("BiT", "float32", marks=pytest.mark.exhaustive)],
)
def test_train_step_with_all_options_compiles_for_tpu(structure, precision):
    check_train_step(structure, precision, "everything")


@pytest.mark.slow
def test_eval_step_with_averaged_weights_compiles_for_tpu():
    check_eval_step("ViT", "mixed_bfloat16", "averages")


@pytest.mark.slow
def test_the_compiler_error_names_the_shortage():
    recipe = tpu_cases.recipe(STRUCTURES["ViT"], "float32", "plain")
    planner = step_plan.of_recipe(recipe, tpu_cases.CLASSES, TpuCompiler(targets.parse("v5e-1")))
    assert 15 * 2**30 < planner.capacity < 16 * 2**30
    huge = planner.estimate(step_plan.Setting(2**22))  # 12 GiB of images, and 2 GiB a layer and matrix
    assert isinstance(huge.result, DoesNotFit)
    assert huge.result.capacity == planner.capacity
    assert huge.free < 0


@pytest.mark.slow
def test_two_tpu_slices_each_have_a_copy_of_the_weights():
    """The chips of a slice share the weight, and each slice has a copy."""
    import jax

    from keras_vit.training.jax.devices import Devices, fsdp_of

    compiler = TpuCompiler(targets.parse("v5e-8", slices=2))
    assert 15 * 2**30 < compiler.capacity() < 16 * 2**30
    mesh = Devices(compiler.devices, fsdp_of("fsdp", compiler.devices))
    parts = mesh.of_weight((4096, 4096))
    weight = jax.ShapeDtypeStruct((4096, 4096), "float32", sharding=parts)
    images = jax.ShapeDtypeStruct((128, 4096), "float32", sharding=mesh.rows)

    def step(weight, images):
        gradient = jax.grad(lambda weight: ((images @ weight) ** 2).mean())(weight)
        return jax.lax.with_sharding_constraint(weight - gradient, parts)

    compiled = compiler.compile(jax.jit(step, donate_argnums=0), weight, images)
    whole = 4 * 4096**2
    # Within a slice, the weight is gathered in bfloat16, and the gradient is scattered.
    assert compiled.sent == whole * 7 / 8 * (0.5 + 1)
    # Only gradients leave a slice: each chip sends its eighth of the gradient of its slice.
    assert compiled.sent_across == whole / 8


# --- all of them: make test-tpu ---------------------------------------------------------------------------------------


@pytest.mark.tpu
@pytest.mark.parametrize("setting", tpu_cases.SETTINGS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_train_step_compiles_for_tpu(structure, precision, setting):
    if not tpu_cases.has(STRUCTURES[structure], setting):
        pytest.skip("a BiT ResNet has no dropout and no stochastic depth")
    check_train_step(structure, precision, setting)


@pytest.mark.tpu
@pytest.mark.parametrize("setting", ["plain", "averages"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_eval_step_compiles_for_tpu(structure, precision, setting):
    check_eval_step(structure, precision, setting)


@pytest.mark.tpu
@pytest.mark.parametrize("target", ["v3-8", "v4-32", "v5p-16", "v6e-8", "v5e-256"])
@pytest.mark.parametrize("structure", ["ViT", "hybrid of 3 stages", "BiT"])
def test_train_step_compiles_for_every_tpu_generation(structure, target, monkeypatch):
    monkeypatch.setattr(tpu_cases, "BATCH", 2 * max(64, targets.parse(target).devices))
    check_train_step(structure, "mixed_bfloat16", "everything", target)


@pytest.mark.tpu
@pytest.mark.parametrize(("fsdp", "slices"), [(False, 1), (True, 1), (True, 2)])
def test_program_compiles_a_jax_step(fsdp, slices):
    command = [sys.executable, "-m", "tools.compile_plan", "--config=digits", "--target=v5e-8", "--json"]
    command += [
        "--nosearch",
        "--config.data.batch_size=64",
        "--config.model.arguments.hidden_size=512",
        f"--distribute={'fsdp' if fsdp else 'data_parallel'}",
        f"--slices={slices}",
    ]
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    content = json.loads(result.stdout)
    assert content["fits"]
    if fsdp:
        assert content["collectives"]["all-gather"] >= 1
    else:
        assert set(content["collectives"]) == {"all-reduce"}
