"""Training on JAX with eight virtual devices. `test_jax.py` runs this file, in a process whose backend is JAX.

KERAS_BACKEND=jax python -m pytest tests/training/test_on_jax.py
"""

import dataclasses
import json
import math
import os
import re
import shutil
import signal
import types

import jax
import keras
import numpy as np
import orbax.checkpoint as orbax
import pytest
import tensorflow as tf

import keras_vit
from export import latency
from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.exporting.inference_model import inference_model
from keras_vit.inference import open_predictor
from keras_vit.runs import checkpoints
from keras_vit.runs.checkpoints import CheckpointStore
from keras_vit.runs.chosen_checkpoint import choose, listed
from keras_vit.runs.errors import CheckpointMismatch, Diverged, Interrupted, StorageError
from keras_vit.training import distribute
from keras_vit.training.jax import scan, sharded_checkpoints
from keras_vit.training.jax.backend import JaxBackend
from keras_vit.training.jax.devices import Batches, Devices, create_devices, fsdp_of, hosts, join_hosts
from keras_vit.training.jax.state import TrainState
from keras_vit.training.jax.step import (
    TrainStep,
    evaluate,
    jit_evaluation,
    program,
    run_steps,
    seed_values,
    training_inputs,
)
from keras_vit.training.loop import Loop
from keras_vit.training.teacher import Teacher
from keras_vit.training.validation import Validation
from tests import programs, selection, tiny
from tests.training import linear_probe, masked, reference, small_runs, toy
from tests.training.test_loop import Improving, lines
from tests.training.trajectories import error

CLASSES, BATCH, SIZE = 8, 16, tiny.SIZES["image_size"]
EIGHT = create_devices(virtual_devices=8).mesh.devices.flatten().tolist()
NOISE = {"dropout_rate": 0.2, "attention_dropout_rate": 0.2, "drop_path_rate": 0.2}


def devices(count=1, fsdp=False):
    """Devices with weights sharded over all of them, or over `fsdp` of them if it is a number."""
    return Devices(EIGHT[:count], count if fsdp is True else int(fsdp) or 1, min_part=1)


def recipe(total_steps=10, data=None, **fields):
    optim = {"learning_rate": 0.01, "schedule": recipes.Schedule(warmup_steps=2), **fields.pop("optim", {})}
    fields = {"log_every": 2, "eval_every": 4, "checkpoint_every": 3, "seed": 1, **fields}
    return recipes.Recipe(
        total_steps=total_steps,
        model=recipes.Model(
            variant="ViT-Ti/16",
            image_size=SIZE,
            arguments=dict(tiny.ARGUMENTS),
        ),
        data=recipes.Data(batch_size=BATCH, pp_train="value_range(-1, 1)", **(data or {})),
        optim=recipes.Optim(**optim),
        **fields,
    )


EVERYTHING = recipe(
    precision="float32",
    label_smoothing=0.1,
    data={"mixup": 0.2, "cutmix": 1.0},
    optim={"ema_momentum": 0.8, "accumulation_steps": 2, "weight_decay": 0.1, "layer_decay": 0.8},
    adapt="weights('^(?!embedding)')",
)


def network(seed=0, adapt="all", **arguments):
    """A network whose queries have LoRA unless all weights are trained."""
    keras.utils.set_random_seed(seed)
    model = keras_vit.VisionTransformer(**{**tiny.SIZES, "classes": CLASSES, **arguments})
    if adapt != "all":
        keras_vit.adapt(model, "lora(2, layers='query')")
        keras_vit.adapt(model, adapt)
    for weight in model.trainable_variables:  # a head of zeros would stop all gradients but its own
        weight.assign(weight + np.random.default_rng(1).normal(scale=0.05, size=weight.shape))
    return model


def batch_of(step):
    """A batch that is a function of the step, as real training data are."""
    rng = np.random.default_rng(step + 10)
    images = rng.integers(0, 256, [BATCH, SIZE, SIZE, 3], np.uint8)
    share = np.full([BATCH], rng.uniform(0.3, 0.7) * (-1) ** step, np.float32)
    return {"image": images, "label": rng.integers(0, CLASSES, [BATCH], np.int32), "mix": share}


def with_teacher(recipe, teacher):
    """The task of a recipe, whose teacher is open."""
    task = tasks.bind(recipe, outputs=CLASSES)
    task.teacher_model = teacher
    return task


def train(recipe, where, steps=3, teacher=None, **arguments):
    """State and metrics after some steps."""
    model = network(adapt=recipe.adapt, **arguments)
    state = TrainState(model, recipe, where, task=with_teacher(recipe, teacher))
    step = TrainStep(state, recipe, training_inputs(tasks.bind(recipe, outputs=CLASSES)), BATCH)
    arrays, metrics = state.arrays(), []
    for index in range(steps):
        arrays, values = step.compiled(arrays, state.fixed_arrays(), where.place_rows(batch_of(index)), np.int32(index))
        metrics.append([values[name] for name in ("loss", "accuracy", "grad_norm", "learning_rate")])
    state.set_arrays(arrays)
    assert step.compiled._cache_size() == 1
    return state, np.array(metrics)


def saved(state):
    return {name: np.asarray(value) for name, value in state.values()}


def assert_close(first, second, rtol=1e-4, atol=1e-5):
    assert set(first) == set(second)
    for name in first:
        if not name.endswith("key/bias"):  # rounding, which Adam magnifies: see test_trajectories.py
            np.testing.assert_allclose(first[name], second[name], rtol=rtol, atol=atol, err_msg=name)


def assert_same(first, second):
    assert set(first) == set(second)
    for name in first:
        assert first[name].tobytes() == second[name].tobytes(), name


# The reference's trajectories


@pytest.mark.parametrize(
    ("name", "count", "fsdp", "micro_batches"),
    [
        pytest.param("traj_sgd_float32", 1, False, 1, marks=selection.EXHAUSTIVE),
        pytest.param("traj_sgd_bfloat16", 8, False, 1, marks=selection.EXHAUSTIVE),
        ("traj_sgd_bfloat16", 4, True, 2),
        ("traj_adamw", 8, True, 1),
    ],
)
def test_training_matches_the_reference(name, count, fsdp, micro_batches):
    data, start, end, averages = reference.load(name)
    run, where = reference.recipe(data["meta"], accumulation_steps=micro_batches), devices(count, fsdp)
    model = reference.create_model(data["meta"])
    reference.assign(model, start)
    state = TrainState(model, run, where)
    step = TrainStep(
        state, run, lambda batch, *_: (batch["image"], jax.nn.one_hot(batch["label"], data["meta"]["classes"])), 8
    )
    arrays, history = state.arrays(), []
    for index in range(len(data["losses"])):
        batch = where.place_rows({"image": data["images"][index], "label": data["labels"][index]})
        arrays, metrics = step.compiled(arrays, state.fixed_arrays(), batch, np.int32(index))
        history.append(metrics)
    state.set_arrays(arrays)
    history = {name: np.array([values[name] for values in history]) for name in history[0]}
    assert error(history["loss"], data["losses"]) < 1e-4
    assert error(history["learning_rate"], data["lrs"]) < 1e-4
    if "grad_norms" in data:
        assert error(history["grad_norm"], data["grad_norms"]) < 1e-4
    values = saved(state)
    for weight in state.trained:
        if name == "traj_adamw" and weight.path.endswith("key/bias"):  # see test_trajectories.py
            continue
        assert error(values[f"model/{weight.path}"], end[weight.path]) < 1e-4, weight.path
        if name == "traj_adamw":
            assert error(values[f"average/{weight.path}"], averages[weight.path]) < 1e-4, weight.path


@selection.EXHAUSTIVE  # `test_pretraining.py` has it on TensorFlow: the task is the same code
@pytest.mark.parametrize(("count", "fsdp", "micro_batches"), [(1, False, 1), (8, True, 1)])
def test_training_of_a_masked_autoencoder_matches_the_reference(count, fsdp, micro_batches):
    """Batches of four images, repeated until each device has one: the mean loss and its gradient stay the same."""
    data = masked.load()
    run, where = masked.recipe(data["meta"], accumulation_steps=micro_batches), devices(count, fsdp)
    state = TrainState(masked.create_model(data["meta"]), run, where)
    steps, size = data["traj/images"].shape[:2]
    repeats = -(-count // size)
    step = TrainStep(state, run, lambda batch, *_: (batch["image"], batch["order"]), size * repeats)
    arrays, history = state.arrays(), []
    for index in range(steps):
        images, order = data["traj/images"][index], masked.to_order(data["traj/noise"][index])
        rows = {"image": np.tile(images, (repeats, 1, 1, 1)), "order": np.tile(order, (repeats, 1))}
        arrays, metrics = step.compiled(arrays, state.fixed_arrays(), where.place_rows(rows), np.int32(index))
        history.append(metrics)
    state.set_arrays(arrays)
    history = {name: np.array([values[name] for values in history]) for name in history[0]}
    assert error(history["loss"], data["traj/losses"]) < 1e-4
    final = {name.removeprefix("traj/final/"): value for name, value in data.items() if name.startswith("traj/final/")}
    end, values = masked.to_variables(final, data["meta"]), saved(state)
    for weight in (*state.trained, *state.fixed):
        if not weight.path.endswith("key/bias"):  # see test_trajectories.py
            assert error(values[f"model/{weight.path}"], end[weight.path]) < 1e-4, weight.path


# Any number of devices


@pytest.fixture(scope="module")
def on_one():
    return train(EVERYTHING, devices(), **NOISE)


@pytest.mark.parametrize("fsdp", selection.cases([False, True, 2], [True, 2], selection.EXHAUSTIVE))
def test_eight_devices_give_the_result_of_one(on_one, fsdp):
    """With everything on: what dropout draws and mixup pairs belongs to the global batch."""
    state, metrics = train(EVERYTHING, devices(8, fsdp), remat="blocks", **NOISE)
    np.testing.assert_allclose(metrics, on_one[1], rtol=1e-4)  # another order of summation in float32
    assert_close(saved(state), saved(on_one[0]))
    arrays = state.arrays()
    divided = [not array.is_fully_replicated for array in jax.tree.leaves(arrays)]
    assert all(divided) if fsdp else not any(divided)
    part = sum(array.addressable_shards[0].data.nbytes for array in jax.tree.leaves(arrays))
    assert part == sum(array.nbytes for array in jax.tree.leaves(arrays)) / state.devices.fsdp


DEEP = {**NOISE, "num_layers": 5}


@pytest.fixture(scope="module")
def deep_on_one():
    return train(EVERYTHING, devices(), **DEEP)


@pytest.mark.parametrize(
    ("count", "fsdp", "remat"),
    [
        (1, False, "none"),
        (8, 4, "blocks"),
        pytest.param(8, 2, "none", marks=selection.EXHAUSTIVE),
        pytest.param(8, True, "blocks", marks=selection.EXHAUSTIVE),
    ],
)
def test_a_scan_gives_the_result_of_the_loop(deep_on_one, monkeypatch, count, fsdp, remat):
    """Blocks 1 to 3, with their own drop path rates and random numbers. The weights have the same names."""
    monkeypatch.setattr(scan, "MIN_BLOCKS", 3)
    scans, run = [], jax.lax.scan
    monkeypatch.setattr(scan.jax.lax, "scan", lambda *arguments: scans.append(arguments) or run(*arguments))
    state, metrics = train(EVERYTHING, devices(count, fsdp), remat=remat, **DEEP)
    assert len(scans) == 2  # over the micro-batches, and over the blocks
    np.testing.assert_allclose(metrics, deep_on_one[1], rtol=1e-4)
    assert_close(saved(state), saved(deep_on_one[0]))


@pytest.mark.parametrize(
    ("arguments", "adapt", "lengths"),
    [
        ({}, "all", [4]),  # the last block computes only the class token
        ({"pooling": "gap"}, "all", [5]),
        ({"pooling": "gap", "drop_path_rate": 0.2}, "all", [1, 4]),  # the first block drops nothing
        ({"position_embedding": "rope2d", "hidden_size": 32}, "all", [4]),
        ({"position_embedding_at": "every_layer"}, "all", [1, 1, 1, 1]),
        ({"pooling": "gap"}, "lora(2)", [5]),
        ({"pooling": "gap"}, "last(2)", [3, 2]),  # the frozen blocks have no gradients
    ],
)
def test_chains_of_equal_blocks_are_found(monkeypatch, arguments, adapt, lengths):
    monkeypatch.setattr(scan, "MIN_BLOCKS", 1)
    model = keras_vit.VisionTransformer(**{**tiny.SIZES, "num_layers": 5, **arguments})
    keras_vit.adapt(model, adapt)
    chains = scan.chains(model)
    names = [block.name for chain in chains for block in chain]
    assert names[:4] == [f"encoderblock_{index}" for index in range(4)]
    assert [len(chain) for chain in chains][: len(lengths)] == lengths
    monkeypatch.setattr(scan, "MIN_BLOCKS", 6)
    assert scan.chains(model) == []


def test_blocks_whose_output_is_used_otherwise_end_a_chain(monkeypatch):
    monkeypatch.setattr(scan, "MIN_BLOCKS", 1)
    model = keras_vit.VisionTransformer(**{**tiny.SIZES, "num_layers": 5})
    features = keras_vit.feature_extractor(model, blocks=(1, 3))
    assert [[block.name[-1] for block in chain] for chain in scan.chains(features)] == [["0", "1"], ["2", "3"]]
    autoencoder = keras_vit.MaskedAutoencoder(
        **{**tiny.SIZES, "num_layers": 3}, decoder_hidden_size=8, decoder_num_heads=2, decoder_num_layers=4
    )
    assert [len(chain) for chain in scan.chains(autoencoder)] == [3, 4]


def test_distillation_works_with_sharded_weights():
    """A teacher of another size with sharded weights gives the result of a teacher on one device."""
    run = recipe(task="distillation('teacher', temperature=2)", optim={"name": "sgd", "accumulation_steps": 2})
    states = []
    for where in (devices(1), devices(8, fsdp=True)):
        taught = types.SimpleNamespace(model=network(1, image_size=16), preprocess="resize(16)|value_range(0, 1)")
        states.append(train(run, where, teacher=Teacher(taught, run.data.pp_train)))
    (one, expected), (divided, metrics) = states
    np.testing.assert_allclose(metrics, expected, rtol=1e-4)
    assert_close(saved(divided), saved(one))
    assert any(not weight.value.sharding.is_fully_replicated for weight in divided.given)
    assert set(one.specs()) == set(TrainState(network(), recipe(optim={"name": "sgd"}), devices(1)).specs())


def test_frozen_weights_and_layer_decay_apply(on_one):
    start = {weight.path: weight.numpy() for weight in network(adapt=EVERYTHING.adapt, **NOISE).weights}
    values = saved(on_one[0])
    for path, value in start.items():
        frozen = path.startswith("embedding") or path.endswith("query/kernel")  # with LoRA
        assert np.array_equal(values[f"model/{path}"], value) == frozen, path
        assert (f"optimizer/first_moment/{path}" in values) != frozen


def test_mixed_bfloat16_computes_in_bfloat16_and_stores_float32():
    _, expected = train(recipe(), devices(2), steps=1)
    half, metrics = train(
        recipe(precision="mixed_bfloat16", optim={"momentum_dtype": "bfloat16"}),
        devices(2, True),
        steps=1,
        dtype="mixed_bfloat16",
    )
    np.testing.assert_allclose(metrics[:, 0], expected[:, 0], rtol=0.05)  # bfloat16 has 8 bits
    assert not np.array_equal(metrics[:, 0], expected[:, 0])
    arrays = half.arrays()
    assert {str(array.dtype) for array in arrays["weights"]} == {"float32"}
    assert [str(slot.dtype) for slot in arrays["slots"][0]] == ["bfloat16", "float32"]
    text = (
        TrainStep(half, recipe(), training_inputs(tasks.bind(recipe(), outputs=CLASSES)), BATCH)
        .compiled.lower(*half.descriptions(), batch_of(0), np.int32(0))
        .as_text()
    )
    # Of matrices: sums that norm and dense layers share in their backward pass are products with a vector, in float32.
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    matrices = [line for line in products if not re.search(r": \(.*tensor<\d+xf32>.*\) ->", line)]
    assert len(matrices) > 20
    assert all("bf16" in line for line in matrices)


def test_dropout_depends_on_seed_and_step_only():
    keys = {(seed, step): np.asarray(seed_values(seed, step, 3)) for seed in (0, 1) for step in (0, 1)}
    assert len({tuple(row) for value in keys.values() for row in value}) == 12
    np.testing.assert_array_equal(seed_values(1, 1, 3), keys[1, 1])


# The loop


class Trainer:
    """Everything that a run needs, as `train.main` makes it; `run()` starts or resumes in `directory`."""

    def __init__(self, directory, recipe, where=None, bad_step=None, sharded=False):
        self.directory, self.recipe, self.where, self.bad_step = str(directory), recipe, where or devices(), bad_step
        self.state = TrainState(network(**NOISE), recipe, self.where)
        self.backend = JaxBackend(self.where)
        checkpoints = f"{directory}/checkpoints"
        create = sharded_checkpoints.ShardedCheckpointStore if sharded else self.backend.create_store
        self.store = create(checkpoints, recipe.keep_checkpoints, *[self.where] * sharded)
        self.restored = toy.restore(self.store, self.state)
        inputs = training_inputs(tasks.bind(recipe, outputs=CLASSES))

        def poisoned(batch, step, replica):
            images, labels = inputs(batch, step, replica)
            return images + batch["poison"][:, None, None, None], labels

        self.step = TrainStep(self.state, recipe, poisoned, BATCH)
        # A function of arrays: one that was compiled for the same recipe and devices serves another trainer, too.
        name = (repr(recipe), self.where.mesh, self.where.fsdp)
        self.step.compiled = COMPILED.setdefault(name, self.step.compiled)
        mask = np.asarray([1.0] * 11 + [0.0] * 5, np.float32)
        dataset = tf.data.Dataset.from_tensors({**batch_of(99), "valid": mask})
        task, model = tasks.bind(recipe, outputs=CLASSES), self.state.model
        step = tasks.evaluation(task, model, lambda batch: inputs(batch, 0, 0))
        compiled = COMPILED.setdefault((*name, "evaluation"), jit_evaluation(self.state, step))
        rows = Batches(self.where, lambda *_: dataset)
        self.validation = Validation(self.backend, task, evaluate(self.state, compiled), rows)
        self.loop = Loop(
            recipe,
            self.backend,
            self.state,
            run_steps(self.step),
            self.batches,
            self.store,
            [self.validation],
            self.directory,
        )

    def batches(self, first):
        for step in range(first, 10**6):
            poison = np.full([BATCH], np.nan if step == self.bad_step else 0.0, np.float32)
            yield self.where.place_rows({**batch_of(step), "poison": poison})

    def run(self):
        return self.loop.run()


RUN = recipe(optim={"ema_momentum": 0.8})
COMPILED = {}


@pytest.fixture(scope="module", params=selection.cases([1, 4], [4], selection.EXHAUSTIVE))
def whole(request, tmp_path_factory):
    """An uninterrupted run on one device, or on four with sharded weights."""
    directory = tmp_path_factory.mktemp("whole")
    trainer = Trainer(directory, RUN, devices(request.param, fsdp=request.param > 1))
    trainer.results = trainer.run()
    return trainer


def test_training_writes_metrics(whole):
    found = lines(whole.directory)
    assert [line["step"] for line in found if "loss" in line] == [2, 4, 6, 8, 10]
    assert [line["step"] for line in found if "eval_loss" in line] == [4, 8, 10]
    assert whole.results["examples"] == 11  # five rows are masked
    assert whole.validation.tally.sum() == 11
    images = whole.validation.examples["image"]
    assert images.shape == ((4, SIZE, SIZE, 3) if whole.where.fsdp > 1 else (11, SIZE, SIZE, 3))
    assert whole.step.compiled._cache_size() == 1


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("stop_at", selection.cases([2, 5, 6], [5], selection.EXHAUSTIVE))
def test_resuming_is_exact(whole, tmp_path, stop_at, sharded, monkeypatch):
    """SIGTERM after `stop_at` steps; a second trainer resumes. Dropout, averages and metrics agree."""
    first = Trainer(tmp_path, RUN, whole.where, sharded=sharded)
    next_count, call = first.loop._next_count, first.loop.run_steps
    monkeypatch.setattr(first.loop, "_next_count", lambda step, speed: min(1, next_count(step, speed)))

    def call_and_terminate(iterator, step, count):
        if step + 1 == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return call(iterator, step, count)

    monkeypatch.setattr(first.loop, "run_steps", call_and_terminate)
    with pytest.raises(Interrupted, match=f"SIGTERM at step {stop_at} of 10; the state is saved"):
        first.run()
    second = Trainer(tmp_path, RUN, whole.where)
    assert second.restored == stop_at
    second.run()
    assert_same(saved(second.state), saved(whole.state))
    assert lines(tmp_path) == lines(whole.directory)


def test_another_number_of_devices_resumes(whole, tmp_path):
    """Two devices end in step 7; one device resumes from the checkpoint of step 6 and reaches the result of `whole`."""
    with pytest.raises(Diverged):
        Trainer(tmp_path, RUN, devices(2, fsdp=True), bad_step=7).run()
    trainer = Trainer(tmp_path, RUN)
    assert trainer.restored == 6
    trainer.run()
    assert_close(saved(trainer.state), saved(whole.state))
    small_runs.assert_same_metrics(trainer.directory, whole.directory)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """A state on eight devices with sharded weights, of which each host saves its parts."""
    trainer = Trainer(tmp_path_factory.mktemp("sharded"), RUN, devices(8, fsdp=True), sharded=True)
    for weight in (*trainer.state.trained, *trainer.state.moving):
        weight.assign(weight.value + 1)
    trainer.state.progress.step = 9
    trainer.store.save(trainer.state.values(whole=False), best=True)
    trainer.store.wait()
    return trainer


@pytest.mark.parametrize(("count", "fsdp"), [(4, 4), (1, 1), (8, 2)])
def test_checkpoint_of_eight_devices_resumes_on_another_mesh(sharded, count, fsdp):
    trainer = Trainer(sharded.directory, RUN, devices(count, fsdp))
    assert trainer.restored == 9
    assert_same(saved(trainer.state), saved(sharded.state))
    kernel = max(trainer.state.trained, key=lambda weight: math.prod(weight.shape)).value
    assert kernel.addressable_shards[0].data.size == kernel.size // fsdp


def test_orbax_reads_the_parts_without_this_package(sharded):
    """The values are those of the state, without this package."""
    with orbax.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore(f"{sharded.directory}/checkpoints/ckpt_9")
    assert_same(found, saved(sharded.state))


def test_reading_the_parts_needs_orbax(sharded, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"Several hosts wrote .*pip install '.*\[orbax\]'") as caught:
        JaxBackend(devices()).create_store(f"{sharded.directory}/checkpoints", 2)
    assert caught.value.name == "orbax"


def test_interrupted_write_leaves_the_previous_checkpoint(sharded, tmp_path):
    shutil.copytree(sharded.directory, tmp_path, dirs_exist_ok=True)
    torn = tmp_path / "checkpoints/ckpt_12.orbax-checkpoint-tmp"
    (tmp_path / "checkpoints/ckpt_9").rename(torn)
    shutil.copytree(torn, tmp_path / "checkpoints/ckpt_9")
    assert Trainer(tmp_path, RUN).restored == 9
    assert not torn.exists()


def test_only_the_newest_parts_are_kept(tmp_path):
    store = sharded_checkpoints.ShardedCheckpointStore(str(tmp_path), 2, devices())
    for step in (1, 2, 3):
        store.save({"step": np.asarray(step), "model/x": np.full(3, step, np.float32)}.items(), best=step == 1)
    store.wait()
    assert listed(str(tmp_path)) == "best (1), 2, 3"
    assert store.restore({"step": ((), "int64"), "model/x": ((3,), "float32")})["model/x"].tolist() == [3, 3, 3]


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def largest(directory):
    return max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


SPECS = {"step": ((), "int64"), "model/x": ((3000,), "float32")}


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    """The checkpoints of steps 1 and 2 of two hosts."""
    directory = tmp_path_factory.mktemp("two_steps")
    save_steps(directory, (1, 2))
    return directory


def save_steps(directory, steps):
    store = sharded_checkpoints.ShardedCheckpointStore(str(directory), 2, devices())
    store.restore(SPECS)
    values = np.random.default_rng(0).normal(size=3000).astype(np.float32)
    for step in steps:
        store.save({"step": np.asarray(step), "model/x": values + step}.items())
    store.wait()


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: flip(largest(path)),
        lambda path: largest(path).write_bytes(b""),
        lambda path: largest(path).unlink(),
        lambda path: (path / "_METADATA").unlink(),
        lambda path: (path / "_METADATA").write_bytes(b""),
        lambda path: (path / "manifest.ocdbt").unlink(),
        lambda path: (path / "manifest.json").unlink(),
        lambda path: (path / "manifest.json").write_text('{"files": {}}'),
    ],
)
def test_damaged_parts_are_reported_and_the_previous_checkpoint_is_restored(two_steps, tmp_path, harm, caplog):
    shutil.copytree(two_steps, tmp_path, dirs_exist_ok=True)
    harm(tmp_path / "ckpt_2")
    with pytest.raises(ValueError, match="ckpt_2 is not usable"):
        choose(str(tmp_path), "2")
    store = sharded_checkpoints.ShardedCheckpointStore(str(tmp_path), 2, devices())
    assert store.restore(SPECS)["step"] == 1
    assert "ckpt_2 is not usable" in caplog.text and store.newest() == str(tmp_path / "ckpt_1")
    save_steps(tmp_path, [2])  # the run resumes, and writes the damaged step again
    assert checkpoints.problem_with(str(tmp_path / "ckpt_2")) is None


def test_only_damaged_parts_raise_an_error(two_steps, tmp_path):
    """The last checkpoint is not deleted, even if it has no manifest."""
    shutil.copytree(two_steps, tmp_path, dirs_exist_ok=True)
    flip(largest(tmp_path / "ckpt_1"))
    (tmp_path / "ckpt_2/manifest.json").unlink()
    with pytest.raises(StorageError, match="None of the checkpoints .* is complete"):
        sharded_checkpoints.ShardedCheckpointStore(str(tmp_path), 2, devices()).restore(SPECS)
    assert (tmp_path / "ckpt_2/_METADATA").exists()


def test_damaged_parts_of_later_steps_are_not_kept(two_steps, tmp_path):
    shutil.copytree(two_steps, tmp_path, dirs_exist_ok=True)
    (tmp_path / "ckpt_2").rename(tmp_path / "ckpt_9")
    flip(largest(tmp_path / "ckpt_9"))
    save_steps(tmp_path, [2, 3])
    assert listed(str(tmp_path)) == "2, 3"


@pytest.mark.parametrize("write", [2, 3])
def test_best_checkpoint_survives_a_kill_while_its_parts_are_written(tmp_path, monkeypatch, write):
    """The third and the fourth write are those of step 8: its best and its newest checkpoint, or none of them."""
    run = recipe(optim={"ema_momentum": 0.8}, checkpoint_every=0, eval_every=4, patience=2, total_steps=40)
    directories = [tmp_path / name for name in ("whole", "killed")]
    written, finished = [], checkpoints.write_manifest

    def write_manifest(path):
        written.append(path)
        if len(written) > write:
            raise RuntimeError("killed")
        finished(path)

    for directory in directories:
        directory.mkdir()
        trainer = Trainer(directory, run, sharded=True)
        trainer.loop.evaluators = [Improving()]
        if directory == directories[1]:
            monkeypatch.setattr(checkpoints, "write_manifest", write_manifest)
            with pytest.raises(StorageError):
                trainer.run()
            monkeypatch.undo()
            trainer = Trainer(directory, run, sharded=True)
            trainer.loop.evaluators = [Improving()]
            assert trainer.restored == (4 if write == 2 else 8)
        trainer.run()
    for directory in directories:
        assert checkpoints.saved_steps(directory / "checkpoints/best") == [8]
        assert checkpoints.saved_steps(directory / "checkpoints")[-1] == 16
    assert lines(directories[0]) == lines(directories[1])


def test_weights_of_a_step_are_read_from_parts(sharded):
    checkpoints, path = f"{sharded.directory}/checkpoints", f"{sharded.directory}/checkpoints/best/ckpt_9"
    chosen = choose(checkpoints, "best")
    assert listed(checkpoints) == "best (9), 9" and chosen.path == path
    shapes = {weight.path: tuple(weight.shape) for weight in sharded.state.trained}
    expected = saved(sharded.state)
    assert_same(chosen.weights(shapes), {name: expected[f"average/{name}"] for name in shapes})


def test_parts_of_another_format_or_recipe_are_refused(sharded):
    with pytest.raises(CheckpointMismatch, match="several hosts on JAX"):
        CheckpointStore(f"{sharded.directory}/checkpoints").restore(sharded.state.specs())
    with pytest.raises(CheckpointMismatch, match="ckpt_9 does not fit this recipe"):
        Trainer(sharded.directory, recipe(optim={"ema_momentum": 0.8, "name": "sgd"}))


def test_checkpoint_of_another_recipe_is_refused(whole):
    with pytest.raises(CheckpointMismatch, match="ckpt-10 does not fit this recipe"):
        Trainer(whole.directory, recipe(optim={"ema_momentum": 0.8, "name": "sgd"}))


def test_evaluation_and_forward_use_the_averages(whole):
    state = whole.state
    images = np.random.default_rng(0).normal(size=(8, SIZE, SIZE, 3)).astype(np.float32)
    _, scores = whole.backend.compile_forward(state)(images)
    assert np.abs(np.asarray(state.model(images)) - scores).max() > 1e-4
    copy = network(seed=5, **NOISE)
    for weight in copy.trainable_variables:
        weight.assign(saved(state)[f"average/{weight.path}"])
    np.testing.assert_allclose(scores, copy(images), rtol=1e-4, atol=1e-5)
    rows = batch_of(99)
    scores = np.asarray(copy(rows["image"] / 127.5 - 1.0))[:11]  # the other five are masked
    right = (np.argmax(scores, -1) == rows["label"][:11]).sum()
    assert whole.results["eval_accuracy"] == pytest.approx(right / 11)
    assert np.trace(whole.validation.tally) == right
    np.testing.assert_allclose(
        whole.validation.examples["predictions"],
        scores[: len(whole.validation.examples["predictions"])],
        rtol=1e-4,
        atol=1e-5,
    )


# Devices, and programs for unavailable devices


def test_weights_are_sharded_over_the_fsdp_axis():
    four = Devices(EIGHT[:4], fsdp=4)

    def part(shape, devices=four):
        return devices.of_weight(shape).shard_shape(shape)

    assert part((1024, 16, 64)) == (256, 16, 64)
    assert part((16, 64, 1024)) == (16, 64, 256)
    assert part((1023, 64)) == (1023, 16)
    assert part((1024,)) == (1024,)  # too small
    assert part((1026, 66)) == (513, 33)  # no axis is a multiple of four
    assert part((1023, 66)) == (1023, 33)  # twice on two devices each
    assert part((1023, 63)) == (1023, 63)
    assert part((1024, 1024), Devices(EIGHT[:4])) == (1024, 1024)
    six = Devices(EIGHT[:6], fsdp=6)
    assert part((96, 128), six) == (16, 128) and part((32, 99, 64), six) == (32, 33, 32)
    order = four.of_weight((1024, 16)).devices_indices_map((1024, 16))
    assert [rows.start or 0 for rows, _ in order.values()] == [0, 256, 512, 768]
    assert four.describe() == "JAX, 4 cpu, fsdp"


def test_neighboring_devices_share_a_copy_of_the_weights():
    """Neighbors share a copy of the weights, in any order in which the runtime lists the devices."""
    mesh = Devices([EIGHT[index] for index in (5, 2, 7, 0, 1, 4, 6, 3)], fsdp=4)
    assert [device.id for device in mesh.mesh.devices.flat] == [device.id for device in EIGHT]
    assert mesh.describe() == "JAX, 8 cpu, mesh(data=2, fsdp=4)"
    first = [rows.start or 0 for rows, _ in mesh.of_weight((1024, 16)).devices_indices_map((1024, 16)).values()]
    assert first == [0, 256, 512, 768] * 2
    images = [rows.start or 0 for (rows,) in mesh.rows.devices_indices_map((8,)).values()]
    assert images == list(range(8))
    with pytest.raises(ValueError, match="fsdp=3, 8 devices"):
        Devices(EIGHT, fsdp=3)


@dataclasses.dataclass(frozen=True)
class Chip:
    id: int
    process_index: int
    slice_index: int
    platform: str = "tpu"


def test_slices_have_copies_of_the_weights():
    """Two slices of two hosts. The weights are gathered within a slice."""
    chips = [Chip(2 * host + number, host, host % 2) for host in range(4) for number in range(2)]
    assert [fsdp_of(name, chips) for name in ("auto", "data_parallel", "fsdp", "mesh(fsdp=2)")] == [1, 1, 4, 2]
    assert fsdp_of("mesh(data=4, fsdp=2)", chips) == 2
    for wrong in ("mesh(data=2, fsdp=2)", "mesh(fsdp=3)"):
        with pytest.raises(ValueError, match=rf"data x fsdp must be .* 8\. .*{re.escape(wrong)}"):
            fsdp_of(wrong, chips)
    with pytest.raises(ValueError, match="unknown argument 'model'"):
        fsdp_of("mesh(model=2)", chips)
    mesh = Devices(chips, fsdp=4)
    assert mesh.mesh.shape["data"] == 2
    assert [(device.slice_index, device.process_index) for device in mesh.mesh.devices.flat][::2] == [
        *((0, 0), (0, 2), (1, 1), (1, 3))
    ]
    with pytest.raises(ValueError, match="fsdp=8, 8 devices, 4 of them in a slice"):
        Devices(chips, fsdp=8)


def test_strategies_of_the_other_backend_are_refused():
    with pytest.raises(ValueError, match="must be one of auto, .*, fsdp, or a mesh such as .* Received: 'mirrored'"):
        create_devices("mirrored")
    for name in ("fsdp", "mesh(fsdp=2)"):
        with pytest.raises(ValueError, match=rf"'{re.escape(name)}'. That one is for KERAS_BACKEND=jax"):
            distribute.create_strategy(name)


def test_batch_size_that_the_devices_cannot_divide_is_refused():
    with pytest.raises(ValueError, match="among 8 replicas and 2 micro-batches.*nearest valid size is 16"):
        distribute.check_batch_size("data.batch_size", 12, devices(8).count, 2)


def test_hosts_are_read_from_tf_config(monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    assert hosts() == ("a:1", 3, 2)
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(ValueError, match="TF_CONFIG must be JSON such as"):
        hosts()


@pytest.mark.parametrize(
    ("environment", "local"),
    [
        ({"SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "2"}, []),
        ({"SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "2", "JAX_LOCAL_DEVICE_IDS": "1"}, None),
        ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_NODES": "2"}, None),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, []),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("tf_config", [False, True])
def test_cluster_jobs_use_their_local_devices(monkeypatch, environment, local, tf_config):
    """A process that is the only one of its node trains on all devices; JAX leaves them as they are for `[]`."""
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *hosts, **others: calls.append((hosts, others)))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if tf_config:
        config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    join_hosts(multi_host=True)
    assert calls == [(("a:1", 2, 1) if tf_config else (None, None, None), {"local_device_ids": local})]
    monkeypatch.delenv("TF_CONFIG", raising=False)
    join_hosts(multi_host=False)
    assert len(calls) == 1


@pytest.mark.parametrize("fsdp", selection.cases([False, True], [True], selection.EXHAUSTIVE))
def test_compiled_program_has_the_expected_collectives(fsdp):
    """No array is made of a model that would not fit in memory; the compiled text holds the communication."""
    run = recipe(precision="mixed_bfloat16", optim={"ema_momentum": 0.9})
    batch = {"image": tf.TensorSpec([None, SIZE, SIZE, 3], tf.uint8), "label": tf.TensorSpec([None], tf.int32)}
    step, arguments = program(run, CLASSES, batch, devices(8, fsdp))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(arguments))
    compiled = step.lower(*arguments).compile()
    text = compiled.as_text()
    assert ("all-gather(" in text) == fsdp
    assert "all-reduce(" in text or "reduce-scatter(" in text
    whole = sum(np.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(arguments[0]))
    size = compiled.memory_analysis().argument_size_in_bytes
    assert size < whole / 4 if fsdp else size > whole


def test_a_model_of_two_billion_weights_is_described_without_them():
    run = recipes.Recipe(model=recipes.Model(variant="ViT-g/14", image_size=224), optim=recipes.Optim(ema_momentum=0.9))
    batch = {"image": tf.TensorSpec([None, 224, 224, 3], tf.uint8), "label": tf.TensorSpec([None], tf.int32)}
    _, (arrays, _, rows, _) = program(run, 1000, batch, Devices(EIGHT, fsdp=8))
    assert sum(np.prod(leaf.shape) for leaf in arrays["weights"]) > 1e9
    assert rows["image"].shape == (128, 224, 224, 3)


# Programs


def test_programs_open_a_run_on_jax(tmp_path, capsys):
    tiny.write_digits_run(tmp_path / "run")
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8, 1) * 4
    keras.utils.save_img(tmp_path / "image.png", pixels, scale=False)
    model = {"model": str(tmp_path / "run")}
    assert programs.call("train.evaluate", json=True, **model) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 360
    assert programs.call("train.predict", tmp_path / "image.png", json=True, **model) in (0, None)
    assert "image.png" in capsys.readouterr().out
    assert latency.measure(open_predictor(model["model"]), batch_size=2, calls=1)["images_per_second"] > 0


def test_exporters_require_tensorflow(tmp_path):
    with pytest.raises(ValueError, match="KERAS_BACKEND=jax"):
        inference_model(tiny.write_digits_run(tmp_path / "run"))


# MAE's linear probe


@pytest.mark.parametrize(
    ("count", "fsdp"), selection.cases([(1, False), (8, False), (8, True)], [(8, True)], selection.EXHAUSTIVE)
)
def test_linear_probe_matches_numpy(count, fsdp):
    """Four steps against NumPy: on several devices the statistics are those of all rows."""
    run, (images, labels) = linear_probe.recipe(), linear_probe.batches()
    model, where = linear_probe.create_model(), devices(count, fsdp)
    run.optim.ema_momentum = 0.5
    start, features = linear_probe.head_of(model), linear_probe.features_of(model, images)
    state = TrainState(model, run, where)

    def inputs(batch, *_):
        return batch["image"], jax.nn.one_hot(batch["label"], linear_probe.CLASSES)

    step = TrainStep(state, run, inputs, linear_probe.BATCH)
    arrays, losses, means = state.arrays(), [], []
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        rows = where.place_rows({"image": image, "label": label})
        arrays, metrics = step.compiled(arrays, state.fixed_arrays(), rows, np.int32(index))
        losses.append(float(metrics["loss"]))
        means.append(np.asarray(arrays["moving"][0]))
    state.set_arrays(arrays)
    averages = saved(state)
    found = [averages.pop(f"average/head_norm/moving_{name}") for name in ("mean", "variance")]
    expected = means[0]
    for mean in means[1:]:  # the plain mean of two steps, then the moving average
        expected = (expected + mean) / 2
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)
    assert np.abs(state.evaluated_arrays()["moving"][0] - expected).max() < 1e-5
    linear_probe.check(model, losses, features, start, labels)
    assert {name for name in averages if "head_norm" in name} == {
        "model/head_norm/moving_mean",
        "model/head_norm/moving_variance",
    }
