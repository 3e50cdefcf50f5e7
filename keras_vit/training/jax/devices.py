"""Mesh of devices, and the sharding of arrays on it.

one_device            one accelerator, or the CPU
data_parallel         shards the batch, and copies everything else to each device
fsdp                  shards the batch, and every large weight with its optimizer slots and average, over all devices;
                      on several TPU slices, over the devices of each slice
mesh(data=8, fsdp=4)  shards the batch over all devices, and the weights over groups of 4 devices, with 8 copies of them
auto                  data_parallel on several devices, otherwise one_device
"""

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from keras_vit.util import checks, literal_calls

MIN_PART = 1024  # elements; TPUs pad to tiles of 8 x 128, so that smaller parts would not save memory


class Devices:
    """Mesh of devices that all take part in every step.

    The devices are ordered by slice, process and number, so that the rows of a batch have the same order in every run.
    The mesh has an axis `data` and one or several axes `fsdp_0`, `fsdp_1`, ..., whose devices are neighbors. Each large
    weight is sharded over the axes `fsdp_...` and copied along the axis `data`. Programs for devices of a
    `jax.experimental.topologies` description can be compiled but not run.

    Args:
        devices: The devices. None for all devices.
        fsdp: Number of devices that share a copy of the weights.
        min_part: A weight is sharded if each of these devices gets at least this number of its elements.

    Attributes:
        count: Number of devices that share a batch.
        kind: Kind of the devices: `"cpu"`, `"gpu"` or `"tpu"`.
        processes: Number of processes that run the same program, one per host.
    """

    def __init__(self, devices: Sequence[Any] | None = None, fsdp: int = 1, min_part: int = MIN_PART):
        self.fsdp, self.min_part = fsdp, min_part
        ordered = sorted(
            jax.devices() if devices is None else devices,
            key=lambda device: (_slice_of(device), device.process_index, device.id),
        )
        in_slice = devices_of_slice(ordered)
        if in_slice % fsdp:
            raise ValueError(
                f"fsdp must divide the number of devices of a slice or, without slices, of all devices. Received: "
                f"fsdp={fsdp}, {len(ordered)} devices, {in_slice} of them in a slice."
            )
        factors = _prime_factors(fsdp)
        self.axes = ("data", *(f"fsdp_{number}" for number in range(len(factors))))
        self.mesh = Mesh(np.asarray(ordered).reshape(len(ordered) // fsdp, *factors), self.axes)
        self.whole = NamedSharding(self.mesh, PartitionSpec())
        self.rows = NamedSharding(self.mesh, PartitionSpec(self.axes))
        self.count, self.kind = self.mesh.size, self.mesh.devices.flat[0].platform
        self._order = list(dict.fromkeys(device.process_index for device in ordered))
        self.processes = len(self._order)

    @property
    def worker(self) -> int:
        """Number of this process in the order of the rows."""
        return self._order.index(jax.process_index()) if self.processes > 1 else 0

    def of_weight(self, shape: tuple[int, ...]) -> NamedSharding:
        """Return the sharding of a weight of this shape.

        The longest axis whose length is divisible by `fsdp` is sharded. If there is no such axis, several axes are
        sharded. On 256 devices, `[1408, 6144]` is sharded into 256 parts of the second axis, and `[1408, 16, 88]` into
        128 x 2 parts.
        """
        if self.fsdp == 1 or np.prod(shape, dtype=np.int64) < self.min_part * self.fsdp:
            return self.whole
        order = sorted(range(len(shape)), key=lambda axis: (shape[axis] % self.fsdp > 0, -shape[axis]))
        parts: list[list[str]] = [[] for _ in shape]
        sizes = list(shape)
        for name in self.axes[1:]:
            factor = self.mesh.shape[name]
            if (axis := next((axis for axis in order if sizes[axis] % factor == 0), None)) is not None:
                parts[axis].append(name)
                sizes[axis] //= factor
        return NamedSharding(self.mesh, PartitionSpec(*(tuple(names) or None for names in parts)))

    def stacked(self, sharding: NamedSharding) -> NamedSharding:
        """Return the sharding of a stack of arrays `[n, ...]` of which each has a sharding."""
        return NamedSharding(self.mesh, PartitionSpec(None, *sharding.spec))

    def description(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        """Return shape, dtype and sharding of a weight."""
        return jax.ShapeDtypeStruct(tuple(shape), jax.numpy.dtype(dtype), sharding=self.of_weight(tuple(shape)))

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Return zeros, sharded like a weight of this shape. Each process creates its own part."""
        described = self.description(shape, dtype)
        part = np.zeros(described.sharding.shard_shape(described.shape), described.dtype)
        return jax.make_array_from_callback(described.shape, described.sharding, lambda _: part)

    def place(self, value: Any, sharding: NamedSharding) -> jax.Array:
        """Put an array on the devices. Every process must pass the complete array."""
        value = np.asarray(value)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    def place_rows(self, batch: dict) -> dict:
        """Put this process's rows of a batch on its devices."""
        return {name: jax.make_array_from_process_local_data(self.rows, rows) for name, rows in batch.items()}

    def fetch(self, value: jax.Array) -> np.ndarray:
        """Gather a whole array. Every process must call this."""
        if value.is_fully_addressable or value.is_fully_replicated:
            return np.asarray(value)
        return multihost_utils.process_allgather(value, tiled=True)

    def mean(self, value: float) -> float:
        """Return the mean of a number over all processes. Every process must call this."""
        return float(np.mean(multihost_utils.process_allgather(np.float32(value)))) if self.processes > 1 else value

    def wait(self) -> None:
        """Wait until every process has called this."""
        if self.processes > 1:
            multihost_utils.sync_global_devices("keras_vit")

    def describe(self) -> str:
        """Return one line about the devices, such as `JAX, 8 TPU v5 lite, fsdp`."""
        kind, count = self.mesh.devices.flat[0].device_kind, self.mesh.size
        way = {1: "data parallel", count: "fsdp"}.get(self.fsdp, f"mesh(data={count // self.fsdp}, fsdp={self.fsdp})")
        way = way if count > 1 else "one device"
        processes = f" in {self.processes} processes" if self.processes > 1 else ""
        return f"JAX, {count} {kind}{processes}, {way}"


def devices_of_slice(devices: Sequence[Any]) -> int:
    """Return the number of devices in each TPU slice, or of all devices if these are not TPUs."""
    slices = {_slice_of(device) for device in devices} if devices[0].platform == "tpu" else {0}
    return len(devices) // len(slices)


def _slice_of(device: Any) -> int:
    return getattr(device, "slice_index", 0) or 0  # CPUs have none


def _prime_factors(number: int) -> list[int]:
    """Return the prime factors of a number in ascending order. The number 1 has none."""
    factors = []
    for factor in range(2, number + 1):
        while number % factor == 0:
            factors.append(factor)
            number //= factor
    return factors


class Batches:
    """Global batches on the devices. Each process reads its share.

    `per_process_batches` maps (shard index, number of shards) to the `tf.data.Dataset` of a process.
    """

    def __init__(self, devices: Devices, per_process_batches: Callable):
        self.devices = devices
        self.dataset = per_process_batches(devices.worker, devices.processes)

    def __iter__(self) -> Iterator[dict]:
        return map(self.devices.place_rows, self.dataset.as_numpy_iterator())


def create_devices(name: str = "auto", virtual_devices: int = 0, multi_host: bool = False) -> Devices:
    """Return the devices to train on. Call this before anything else uses JAX.

    With `multi_host`, JAX finds the other hosts of a TPU pod or cluster job automatically. Hosts in the environment
    variable TF_CONFIG are always joined.
    """
    import tensorflow as tf  # TensorFlow reads the data; the step does not need it

    from keras_vit.training import distribute

    if name not in distribute.JAX_STRATEGIES and not name.startswith("mesh("):
        raise ValueError(
            f"With KERAS_BACKEND=jax, --distribute must be one of {', '.join(distribute.JAX_STRATEGIES)}, or a mesh "
            f"such as 'mesh(data=8, fsdp=4)'. Received: {name!r}"
        )
    tf.config.set_visible_devices([], "GPU")  # TensorFlow only reads data; JAX needs the memory of the GPU
    if virtual_devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", virtual_devices)
    join_hosts(multi_host)
    if name == "one_device":
        if jax.process_count() > 1:
            raise ValueError("--distribute=one_device cannot use several hosts. Use data_parallel or fsdp.")
        return Devices(jax.devices()[:1])
    return Devices(fsdp=fsdp_of(name, jax.devices()))


def fsdp_of(name: str, devices: Sequence[Any]) -> int:
    """Return the number of devices that share a copy of the weights, for a value of `--distribute`.

    Raises:
        ValueError: If a mesh is malformed, or does not have the number of the devices.
    """
    if not name.startswith("mesh("):
        return devices_of_slice(devices) if name == "fsdp" else 1
    (call,) = literal_calls.parse(name, "mesh", "mesh(data=8, fsdp=4)")
    mesh, _ = call.create(lambda data=None, fsdp=1: (data, checks.positive_int("fsdp", fsdp)))
    data, fsdp = mesh
    if len(devices) % fsdp or data not in (None, len(devices) // fsdp):
        raise ValueError(
            f"data x fsdp must be the number of devices, {len(devices)}. Received: --distribute={name!r}. Without "
            "`data`, the mesh takes all devices."
        )
    return fsdp


def join_hosts(multi_host: bool) -> None:
    """Join the hosts in the variable TF_CONFIG or, with `multi_host`, the hosts that JAX finds."""
    if "TF_CONFIG" not in os.environ and not multi_host:
        return
    # In a job of Slurm or Open MPI, JAX takes one GPU per process. The only process of a node must take all GPUs.
    tasks, nodes = os.environ.get("SLURM_NTASKS"), os.environ.get("SLURM_STEP_NUM_NODES")
    only_one = (tasks is not None and tasks == nodes) or os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == "1"
    everything = only_one and "JAX_LOCAL_DEVICE_IDS" not in os.environ
    address, count, index = hosts() if "TF_CONFIG" in os.environ else (None, None, None)
    jax.distributed.initialize(address, count, index, local_device_ids=[] if everything else None)


def hosts() -> tuple[str, int, int]:
    """Return the network address of the first host in TF_CONFIG, the number of hosts, and the index of this host."""
    from keras_vit.training import distribute

    addresses, index = distribute.check_tf_config()
    return next(iter(addresses.values())), len(addresses), index


def ask_for_determinism() -> None:
    """Make GPUs compute the same bits in every run. Call this before anything else uses JAX."""
    flag = "--xla_gpu_deterministic_ops=true"
    flags = os.environ.get("XLA_FLAGS", "")
    gpu = any(importlib.util.find_spec(name) for name in ("jax_cuda13_plugin", "jax_cuda12_plugin"))
    if gpu and "xla_gpu_deterministic_ops" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}".strip()
