"""Training on several devices: TensorFlow's strategies, and splitting of batches among replicas.

one_device    one GPU, or the CPU
mirrored      all GPUs of this machine (or virtual CPU devices), one replica each
multi_worker  several machines, each started with its own `TF_CONFIG`
tpu           the TPU cores of this machine (`--tpu=local`) or of a named TPU
auto          multi_worker if `TF_CONFIG` is set, else tpu, mirrored for several GPUs, or one_device

The devices of JAX are in `keras_vit.training.jax.devices`.
"""

import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from keras_vit import recipe as recipes

STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker", "tpu")
JAX_STRATEGIES = ("auto", "one_device", "data_parallel", "fsdp")
TPU_ENVIRONMENT = ("TPU_NAME", "PJRT_DEVICE", "NEXT_PLUGGABLE_DEVICE_USE_C_API", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH")


class DevicesMissing(RuntimeError):
    """Requested devices that the machine lacks."""


def create_strategy(name: str = "auto", tpu: str = "local", virtual_devices: int = 0) -> tf.distribute.Strategy:
    """Return the `tf.distribute` strategy for a name in `STRATEGIES`."""
    if name not in STRATEGIES:
        of_jax = name in JAX_STRATEGIES or name.startswith("mesh(")
        jax = " That one is for KERAS_BACKEND=jax." if of_jax else ""
        raise ValueError(f"--distribute must be one of {', '.join(STRATEGIES)}. Received: {name!r}.{jax}")
    if virtual_devices:
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * virtual_devices
        tf.config.set_logical_device_configuration(cpu, parts)
    if name == "auto":
        name = _default_strategy(virtual_devices)
    if name == "tpu":
        return _tpu_strategy(tpu)
    if name == "multi_worker":
        check_tf_config()
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    return tf.distribute.OneDeviceStrategy("/gpu:0" if tf.config.list_logical_devices("GPU") else "/cpu:0")


def check_batch_size(name: str, batch_size: int, replicas: int, micro_batches: int = 1) -> int:
    """Return the number of examples per replica. Raises a ValueError if `batch_size` is not divisible."""
    parts = replicas * micro_batches
    if batch_size % parts:
        micro = f" and {micro_batches} micro-batches" if micro_batches > 1 else ""
        raise ValueError(
            f"{name} is the size over all devices and must divide evenly among {replicas} replicas{micro}. "
            f"Received: {name}={batch_size}. The nearest valid size is {recipes.nearest_multiple(batch_size, parts)}."
        )
    return batch_size // replicas


def workers(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Return the number of this process, from 0, and the number of training processes."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 0, 1
    addresses, index = check_tf_config()
    return index, len(addresses)


def device(strategy: tf.distribute.Strategy) -> str:
    """Return the kind of a strategy's devices: `"cpu"`, `"gpu"` or `"tpu"`."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return "tpu"
    return "gpu" if tf.config.list_logical_devices("GPU") else "cpu"


def make_deterministic(strategy: tf.distribute.Strategy) -> None:
    """Make every run compute the same bits, including the input pipelines.

    A TPU is always deterministic. This function does not change the settings of a TPU, because the TPU compiler rejects
    the gradient of max pooling under op determinism.
    """
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        tf.config.experimental.enable_op_determinism()


def use_xla(jit: str, strategy: tf.distribute.Strategy, exact_max_pool: bool = False, remat: bool = False) -> bool:
    """Return whether to compile the gradient computation with XLA.

    `"auto"` compiles on GPUs. A TPU compiles everything itself. On a TPU, XLA for the host must not be
    requested, because TensorFlow's TPU build does not contain it.
    """
    if jit == "on" and exact_max_pool:
        raise ValueError(
            'jit="on" and deterministic=True: TensorFlow cannot compile the deterministic gradient of the max pooling '
            'in a hybrid or BiT. Use jit="auto", which does not compile this model, or deterministic=False.'
        )
    tpu = isinstance(strategy, tf.distribute.TPUStrategy) or has_tpu_build()
    if jit == "on" and tpu:
        raise ValueError('jit="on" needs XLA on the host, which TensorFlow\'s TPU build lacks. Use jit="auto".')
    remat = remat and strategy.num_replicas_in_sync > 1  # `tf.recompute_grad` finds variables, not weights in arguments
    if jit == "on" and remat:
        raise ValueError(
            'jit="on": on several devices, TensorFlow cannot compile a model with rematerialization. Use jit="auto", '
            'which does not compile it, or model.remat="none".'
        )
    possible = jit == "auto" and not tpu and bool(tf.config.list_logical_devices("GPU"))
    if possible and (exact_max_pool or remat):
        reason = "rematerialization on several devices" if remat else "the deterministic gradient of max pooling"
        logging.info("The step runs without XLA, which TensorFlow does not support for %s.", reason)
        return False
    return jit == "on" or possible


def has_tpu_build() -> bool:
    """Return whether the installed TensorFlow is the TPU build."""
    try:
        importlib.metadata.version("tensorflow-tpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def describe(strategy: tf.distribute.Strategy) -> str:
    """Return one line about the devices, such as `MirroredStrategy, 2 replicas`."""
    replicas = strategy.num_replicas_in_sync
    _, count = workers(strategy)
    several = f" in {count} workers" if count > 1 else ""
    return f"{type(strategy).__name__}, {replicas} replica{'s' if replicas > 1 else ''}{several}"


def distribute_batches(
    strategy: tf.distribute.Strategy, per_worker_batches: Callable[[int, int], tf.data.Dataset]
) -> tf.distribute.DistributedDataset | tf.data.Dataset:
    """Split each worker's batches among its replicas, in the order of the rows."""

    def per_replica_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = per_worker_batches(context.input_pipeline_id, context.num_input_pipelines)
        local_replicas = context.num_replicas_in_sync // context.num_input_pipelines
        if local_replicas == 1:
            return dataset

        def split(batch):  # [b, ...] -> [replicas, b / replicas, ...]
            return {
                name: tf.reshape(value, [local_replicas, value.shape[0] // local_replicas, *value.shape[1:]])
                for name, value in batch.items()
            }

        return dataset.map(split, num_parallel_calls=1, deterministic=True).unbatch().prefetch(local_replicas)

    if isinstance(strategy, tf.distribute.OneDeviceStrategy) and not tf.config.list_logical_devices("GPU"):
        return per_worker_batches(0, 1)  # nothing to split or copy; a pass starts in a third of the time
    return strategy.distribute_datasets_from_function(per_replica_batches)


def _default_strategy(virtual_devices: int) -> str:
    if "TF_CONFIG" in os.environ:
        return "multi_worker"
    if tf.config.list_physical_devices("TPU"):
        return "tpu"
    return "mirrored" if virtual_devices > 1 or len(tf.config.list_physical_devices("GPU")) > 1 else "one_device"


def check_tf_config() -> tuple[dict[str, str], int]:
    """Check `TF_CONFIG`, because TensorFlow hangs or raises a misleading error if it is wrong.

    Returns the network addresses of all workers by name, such as `"worker 0"`, and the number of this worker. The
    numbers are the positions of the network addresses; number 0 is the chief.
    """
    example = (
        '\'{"cluster": {"worker": ["host0:12345", "host1:12345"]}, "task": {"type": "worker", "index": 0}}\', with '
        "the same cluster and a different index on each machine"
    )
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise ValueError(f"--distribute=multi_worker needs the environment variable TF_CONFIG, such as {example}.")
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        index = int(task["index"])
        address = dict(enumerate(cluster[task["type"]]))[index]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"TF_CONFIG must be JSON such as {example}. Received: {text!r} ({error!r})") from error
    if task["type"] not in ("chief", "worker"):
        raise ValueError(
            "The task type in TF_CONFIG must be 'chief' or 'worker'. Training runs its own evaluations, without "
            f"parameter servers. Received: {task['type']!r}. Do not start tasks of this type."
        )
    if ":" not in str(address):
        raise ValueError(f"Network addresses in TF_CONFIG must have the form host:port. Received: {address!r}")
    kinds = [kind for kind in ("chief", "worker") if kind in cluster]
    addresses = {f"{kind} {number}": address for kind in kinds for number, address in enumerate(cluster[kind])}
    return addresses, list(addresses).index(f"{task['type']} {index}")


def _tpu_strategy(tpu: str) -> tf.distribute.Strategy:
    if tpu == "local":
        _check_local_tpu()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu)
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def _check_local_tpu() -> None:
    """Raise an error within seconds if no TPU is found. TensorFlow would take minutes."""
    if tf.config.list_physical_devices("TPU"):
        return
    if not has_tpu_build():
        raise DevicesMissing(
            "--distribute=tpu needs TensorFlow's TPU build, which is not installed. On a TPU VM, in a separate "
            "environment: pip install 'keras-vision-transformers[tpu]' -f "
            "https://storage.googleapis.com/libtpu-tf-releases/index.html. Elsewhere, use --distribute=auto."
        )
    missing = [name for name in TPU_ENVIRONMENT if name not in os.environ]
    if missing:
        libtpu = importlib.util.find_spec("libtpu")
        folder = libtpu.submodule_search_locations if libtpu else None
        library = os.path.join(folder[0] if folder else "/path/to", "libtpu.so")
        raise DevicesMissing(
            f"--distribute=tpu --tpu=local found no TPU, and the environment lacks {', '.join(missing)}. Before Python "
            "starts: export TPU_NAME=local PJRT_DEVICE=TPU NEXT_PLUGGABLE_DEVICE_USE_C_API=true "
            f"TF_XLA_FLAGS=--tf_mlir_enable_mlir_bridge=true TF_PLUGGABLE_DEVICE_LIBRARY_PATH={library}"
        )
    raise DevicesMissing(
        "--distribute=tpu --tpu=local found no TPU on this machine. Run on a TPU VM, name a TPU with --tpu=NAME, or "
        "use --distribute=auto to train on what this machine has."
    )
