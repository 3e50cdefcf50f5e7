"""Training on the JAX backend, in separate processes."""

import json
import subprocess
import sys

import numpy as np
import pytest

from keras_vit import recipe as recipes
from keras_vit.runs.checkpoints import CheckpointStore
from keras_vit.training.tf.state import TrainState
from tests import programs, selection
from tests.cached_files import cached_directory
from tests.on_jax import ON_JAX
from tests.training import small_runs, toy
from tests.training.test_multi_worker import LONG, assert_all_stop_and_save, free_ports

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(autouse=True, scope="module")
def jax():
    return pytest.importorskip("jax")


@pytest.mark.parametrize("marks", ["not exhaustive", pytest.param("exhaustive", marks=selection.EXHAUSTIVE)])
def test_training_tests_pass_on_jax(marks):
    """The golden trajectories, one and eight devices, resuming, divergence, pixels."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", marks]
    command += ["tests/training/test_on_jax.py"]
    command += ["tests/tasks/test_segmentation.py::test_loss_and_accuracy_match_hand_computation"] * (
        marks == "not exhaustive"
    )
    done = subprocess.run(command, cwd=small_runs.ROOT, env=ON_JAX, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of the tiny recipe on one device, with dropout and averages."""

    def make(directory):
        small_runs.train_alone(directory, environment=ON_JAX)

    return cached_directory(tmp_path_factory, "whole_on_jax", make)


def test_tensorflow_resumes_from_a_checkpoint_of_jax(whole):
    config = json.loads((whole / "config.json").read_text())
    assert config["versions"]["keras_backend"] == "jax"
    recipe = recipes.from_dict(config["recipe"])
    state = TrainState(recipes.build_model(recipe, classes=10, channels=1), recipe)
    assert toy.restore(CheckpointStore(str(whole / "checkpoints"), writes=False), state) == 12
    state.use_averages()
    final = small_runs.final_weights(whole)
    small_runs.assert_same_bits({weight.path: weight.numpy() for weight in state.trained}, final)


def test_tensorflow_exports_a_run_of_jax(whole, tmp_path):
    given = [f"--model={whole}", f"--output={tmp_path}/model.tflite", "--num_images=8"]
    command, environment = [sys.executable, "-m", "export.main", *given], ON_JAX
    done = subprocess.run(command, cwd=small_runs.ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert programs.call("export.verify", given[0], f"--artifact={tmp_path}/model.tflite", given[2]) == 0


JOIN = """
from jax._src import xla_bridge
from keras_vit.training.jax import devices
devices.join_hosts(multi_host=True)
print("visible:", xla_bridge.CUDA_VISIBLE_DEVICES.value)
"""
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "localhost", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("environment", "visible"),
    [
        ({"SLURM_NTASKS": "1", "SLURM_STEP_NUM_NODES": "1"}, "all"),
        pytest.param(
            {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_NODES": "1", "JAX_LOCAL_DEVICE_IDS": "0,2"},
            "0,2",
            marks=selection.EXHAUSTIVE,
        ),
    ],
)
def test_one_task_per_node_of_slurm_uses_all_gpus(environment, visible):
    """JAX itself takes the GPU number SLURM_LOCALID, the first one."""
    environment = {**ON_JAX, **STEP, **environment}
    done = subprocess.run(
        [sys.executable, "-c", JOIN], cwd=small_runs.ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert f"visible: {visible}" in done.stdout, done.stderr[-3000:]


def start_hosts(directory, **fields):
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    configs = [{"cluster": cluster, "task": {"type": "worker", "index": index}} for index in range(2)]
    return [
        small_runs.start(
            directory, "--distribute=fsdp", environment={**ON_JAX, "TF_CONFIG": json.dumps(config)}, **fields
        )
        for config in configs
    ]


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory):
    """An uninterrupted run of the tiny recipe on two hosts."""

    def make(directory):
        hosts = start_hosts(directory)
        outputs = [host.communicate(timeout=600)[0] for host in hosts]
        for host, output in zip(hosts, outputs, strict=True):
            assert host.returncode == 0, output[-4000:]
        assert "JAX, 2 cpu in 2 processes, fsdp" in outputs[0]

    return cached_directory(tmp_path_factory, "two_hosts_on_jax", make)


def test_two_hosts_give_the_result_of_one_device(whole, two_hosts):
    assert_same_run(whole, two_hosts)
    assert "2 processes" in (two_hosts / "log-1.txt").read_text()


def test_sigterm_to_one_host_stops_and_saves_all(tmp_path):
    assert_all_stop_and_save(start_hosts(tmp_path, **LONG), 1, tmp_path, "ckpt_{}")


def assert_same_run(first, second):
    """The same up to the order of summation in float32: dropout belongs to the global batch."""
    one, other = small_runs.final_weights(first), small_runs.final_weights(second)
    for path, value in one.items():
        if not path.endswith("key/bias"):  # rounding, which Adam magnifies: see test_trajectories.py
            np.testing.assert_allclose(other[path], value, rtol=1e-3, atol=1e-4, err_msg=path)
    small_runs.assert_same_metrics(first, second)
