"""Strategies for the devices of a machine, errors for missing devices, and batches that divide evenly."""

import contextlib
import importlib
import json
import logging
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.training import create, distribute
from keras_vit.training.tf import backend as tf_backend


def test_one_device_strategy_has_one_replica():
    strategy = distribute.create_strategy("one_device")
    assert distribute.describe(strategy) == "OneDeviceStrategy, 1 replica"
    assert distribute.workers(strategy) == (0, 1)
    assert tf_backend.TensorFlowBackend(strategy).is_chief
    several = types.SimpleNamespace(num_replicas_in_sync=2)
    assert distribute.describe(several) == "SimpleNamespace, 2 replicas"


class WorkerOfTfConfig(tf.distribute.MultiWorkerMirroredStrategy):
    """The constructor would wait for the other workers."""

    num_replicas_in_sync = 1

    def __init__(self):
        pass


@pytest.mark.parametrize(
    ("chiefs", "task", "worker", "is_chief"),
    [
        (0, ("worker", 0), 0, True),
        (0, ("worker", 2), 2, False),
        (1, ("chief", 0), 0, True),
        (1, ("worker", 0), 1, False),
        (1, ("worker", 2), 3, False),
    ],
)
def test_workers_are_numbered_and_the_first_is_the_chief(chiefs, task, worker, is_chief, monkeypatch):
    cluster = {"worker": ["a:1", "b:1", "c:1"], **({"chief": ["d:1"]} if chiefs else {})}
    config = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    backend = tf_backend.TensorFlowBackend(WorkerOfTfConfig())
    assert (backend.worker, backend.is_chief, backend.num_workers) == (worker, is_chief, 3 + chiefs)


def test_auto_uses_the_available_devices(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert distribute._default_strategy(virtual_devices=2) == "mirrored"
    if not tf.config.list_physical_devices("GPU"):
        assert distribute._default_strategy(virtual_devices=0) == "one_device"
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert distribute._default_strategy(virtual_devices=0) == "multi_worker"


def test_unknown_strategy_is_refused():
    with pytest.raises(ValueError, match="must be one of auto, one_device.*'horovod'"):
        distribute.create_strategy("horovod")


def test_missing_tpu_is_reported_within_seconds():
    started = time.monotonic()
    with pytest.raises(distribute.DevicesMissing, match="TPU build, which is not installed"):
        distribute.create_strategy("tpu", "local")
    assert time.monotonic() - started < 10


def test_tpu_build_without_its_environment_is_refused(monkeypatch):
    monkeypatch.setattr(distribute, "has_tpu_build", lambda: True)
    for name in distribute.TPU_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        distribute.DevicesMissing, match="lacks TPU_NAME, PJRT_DEVICE.*export TPU_NAME=local PJRT_DEVICE=TPU"
    ):
        distribute.create_strategy("tpu")
    for name in distribute.TPU_ENVIRONMENT:
        monkeypatch.setenv(name, "x")
    with pytest.raises(distribute.DevicesMissing, match="found no TPU on this machine"):
        distribute.create_strategy("tpu")


def test_xla_is_not_requested_on_a_tpu_host(monkeypatch):
    strategy = distribute.create_strategy("one_device")
    assert distribute.use_xla("on", strategy)
    assert not distribute.use_xla("off", strategy)
    monkeypatch.setattr(distribute, "has_tpu_build", lambda: True)
    assert not distribute.use_xla("auto", strategy)
    with pytest.raises(ValueError, match="TPU build lacks"):
        distribute.use_xla("on", strategy)


def test_a_deterministic_max_pool_is_not_compiled(monkeypatch):
    strategy = distribute.create_strategy("one_device")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: ["/gpu:0"])
    assert distribute.use_xla("auto", strategy)
    assert not distribute.use_xla("auto", strategy, exact_max_pool=True)
    with pytest.raises(ValueError, match="deterministic gradient of the max pooling.*deterministic=False"):
        distribute.use_xla("on", strategy, exact_max_pool=True)


@pytest.mark.parametrize("replicas", [1, 8])
def test_rematerialization_is_not_compiled_on_several_gpus(replicas, monkeypatch, caplog):
    class Strategy:
        num_replicas_in_sync = replicas

    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: ["/gpu:0"])
    with caplog.at_level(logging.INFO, logger="absl"):
        assert distribute.use_xla("auto", Strategy()) and not caplog.text
        assert distribute.use_xla("auto", Strategy(), remat=True) == (replicas == 1)
    assert ("runs without XLA" in caplog.text) == (replicas == 8)
    with pytest.raises(ValueError, match="model.remat") if replicas == 8 else contextlib.nullcontext():
        distribute.use_xla("on", Strategy(), remat=True)


def test_determinism_is_not_requested_on_a_tpu(monkeypatch):
    asked = []
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: asked.append(True))
    distribute.make_deterministic(object.__new__(tf.distribute.TPUStrategy))
    assert not asked
    distribute.make_deterministic(distribute.create_strategy("one_device"))
    assert asked


@pytest.mark.parametrize("variant, pools", [("R+ViT-Ti/16", True), ("BiT-R50x1", True), ("ViT-Ti/16", False)])
def test_models_with_max_pooling_are_detected(variant, pools):
    """Its deterministic gradient cannot be compiled: `jit="on"` refuses these models, and no others."""
    small = {"BiT-R50x1": {"block_sizes": (1,)}, "R+ViT-Ti/16": {"resnet_blocks": (1,), "patch_size": 1}}
    model = {"hidden_size": 8, "num_heads": 2, "num_layers": 1, "mlp_dim": 8, "patch_size": 4}
    model = {**({} if variant == "BiT-R50x1" else model), **small.get(variant, {})}
    recipe = recipes.Recipe(total_steps=1, jit="on", model=recipes.Model(variant, image_size=16, arguments=model))
    backend = tf_backend.TensorFlowBackend(distribute.create_strategy("one_device"))
    state = backend.create_state(recipe, tasks.bind(recipe, outputs=2), 3)
    with pytest.raises(ValueError, match="max pooling") if pools else contextlib.nullcontext():
        backend.compile_steps(state, recipe)
    recipe.deterministic = False
    assert callable(backend.compile_steps(state, recipe))


@pytest.mark.parametrize(
    "config",
    [None, "not json", '{"cluster": {}}', '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}'],
)
def test_wrong_tf_config_is_refused(monkeypatch, config):
    if config is None:
        monkeypatch.delenv("TF_CONFIG", raising=False)
    else:
        monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError, match='TF_CONFIG.*"cluster": {"worker"'):
        distribute.create_strategy("multi_worker")


VERTEX_AI = {  # as its documentation and that of SageMaker show the variable
    "cluster": {
        "chief": ["training-workerpool0-ab-0:2222"],
        "worker": ["training-workerpool1-ab-0:2222", "training-workerpool1-ab-1:2222"],
        "evaluator": ["training-workerpool3-ab-0:2222"],
    },
    "environment": "cloud",
    "task": {"type": "worker", "index": 1, "trial": ""},
    "job": '{"python_module": "", "package_uris": [], "args": ["train", "--config=digits"]}',
}
SAGEMAKER = {
    "cluster": {"worker": ["algo-1:8890", "algo-2:8890"]},
    "environment": "cloud",
    "task": {"index": 1, "type": "worker"},
}


@pytest.mark.parametrize(
    ("config", "joined"),
    [(VERTEX_AI, ("training-workerpool0-ab-0:2222", 3, 2)), (SAGEMAKER, ("algo-1:8890", 2, 1))],
)
def test_tf_config_of_cloud_services_is_understood(config, joined, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert distribute._default_strategy(virtual_devices=0) == "multi_worker"
    distribute.check_tf_config()
    jax_devices = pytest.importorskip("jax") and importlib.import_module("keras_vit.training.jax.devices")
    assert jax_devices.hosts() == joined
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)


def test_an_evaluator_is_not_a_worker(monkeypatch):
    config = {**VERTEX_AI, "task": {"type": "evaluator", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(ValueError, match="TF_CONFIG.*Received: 'evaluator'"):
        distribute.check_tf_config()


def test_batch_sizes_are_global():
    assert distribute.check_batch_size("data.batch_size", 64, 8) == 8
    with pytest.raises(
        ValueError, match="among 8 replicas. Received: data.batch_size=60. The nearest valid size is 64"
    ):
        distribute.check_batch_size("data.batch_size", 60, 8)
    with pytest.raises(ValueError, match="8 replicas and 4 micro-batches.*nearest valid size is 32"):
        distribute.check_batch_size("data.batch_size", 8, 8, micro_batches=4)


@pytest.mark.slow
def test_replicas_get_their_rows_in_order():
    """The rows of a global batch go to the replicas of a worker in order, whatever their number."""

    class TwoReplicas:
        num_replicas_in_sync, num_input_pipelines, input_pipeline_id = 2, 1, 0

        def distribute_datasets_from_function(self, function):
            return function(self)

    def of_worker(shard, shards):
        numbers = tf.data.Dataset.range(3).map(
            lambda k: {"image": tf.range(4, dtype=tf.int64) + 10 * k, "label": tf.fill([4], k)}
        )
        return numbers

    parts = list(distribute.distribute_batches(TwoReplicas(), of_worker).as_numpy_iterator())
    np.testing.assert_array_equal(
        [part["image"] for part in parts], [[0, 1], [2, 3], [10, 11], [12, 13], [20, 21], [22, 23]]
    )


def test_one_device_reads_the_dataset_itself():
    numbers = tf.data.Dataset.range(3)
    strategy = distribute.create_strategy("one_device")
    batches = distribute.distribute_batches(strategy, lambda shard, shards: numbers.shard(shards, shard))
    assert [int(number) for number in batches] == [0, 1, 2]
    assert isinstance(batches, tf.data.Dataset) or tf.config.list_physical_devices("GPU")


@pytest.mark.parametrize("name, said", [("mirrored", True), ("one_device", False), ("auto", False)])
def test_unavailable_devices_are_reported(name, said, caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        created = create.create(recipes.Recipe(deterministic=False), name)
    assert created.record()["replicas"] == 1 and created.record()["kind"] == "cpu"
    assert (f"--distribute={name} has no effect, because only one device" in caplog.text) == said
