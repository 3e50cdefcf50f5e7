"""The TPU compiler on a machine without a TPU: memory, operations and memory traffic of a program.

The compiler is in libtpu, an ordinary package. JAX describes the target slice to it. A TensorFlow program is passed as
HLO, as TensorFlow itself does on a TPU.

References:
    https://docs.jax.dev/en/latest/aot.html, https://openxla.org/xla/tf2xla
"""

import collections
import dataclasses
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Callable
from typing import Any

from keras_vit.planning.tpu_targets import Target

# Otherwise libtpu asks the metadata server of Google Cloud for the machine, for minutes if there is none.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several processes may compile at once, because nothing is run
}
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# The two messages of the compiler for a program that is too large.
_MEMORY_ERRORS = (
    r"Used ([\d.]+[KMGT]) of ([\d.]+[KMGT]) hbm",
    r"\(([\d.]+[KMGT])\) exceeds available HBM \(([\d.]+[KMGT])\)",
)


class CompilerMissing(ImportError):
    """The packages that compile for TPUs are not installed."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Figures of a compiled program, per device. All are in bytes but `flops` and the counts of `collectives`."""

    flops: float
    bytes_accessed: float
    arguments: int
    outputs: int
    aliased: int  # outputs that overwrite inputs
    temporaries: int
    code: int
    collectives: dict[str, int]  # operations that exchange data between devices, by kind

    @property
    def memory(self) -> int:
        """Bytes of memory that the program needs."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclasses.dataclass(frozen=True)
class DoesNotFit:
    """A program that is too large. It needs `memory` bytes per device, of `capacity`."""

    memory: int
    capacity: int


def available() -> bool:
    """Return whether the compiler is installed."""
    return importlib.util.find_spec("libtpu") is not None and importlib.util.find_spec("jax") is not None


def versions() -> str:
    """Return the versions of the compiler: `"libtpu 0.0.42.1 through jax 0.10.2"`."""
    return " through ".join(f"{name} {importlib.metadata.version(name)}" for name in ("libtpu", "jax"))


def compile_hlo(hlo: bytes, target: Target, replicas: int = 1) -> Compiled | DoesNotFit:
    """Compile a program for a slice. `hlo` is a serialized `HloModuleProto`."""
    _prepare()
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib.mlir import ir

    text = xla_client._xla.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(hlo))
    text = text.replace("mhlo.copy", "stablehlo.optimization_barrier")  # identities that the importer leaves
    module = ir.Module.parse(text, mlir.make_ir_context())
    devices = topology(target).devices[:replicas]
    assignment = np.array([[device.id] for device in devices])  # [replicas, 1]
    options = compiler.get_compile_options(
        num_replicas=replicas, num_partitions=1, device_assignment=assignment, backend=devices[0].client
    )
    return outcome(lambda: devices[0].client.compile(module, xla_client.DeviceList(tuple(devices)), options))


def capacity(target: Target) -> int:
    """Return the bytes of memory per device that programs may use, without those reserved for the system.

    The compiler states them for a program that is too large, so it gets one.
    """
    device = topology(target).devices[0]
    import jax

    huge = jax.ShapeDtypeStruct((2 * target.memory,), "uint8", sharding=jax.sharding.SingleDeviceSharding(device))
    answer = outcome(lambda: jax.jit(lambda x: x + x[:1]).lower(huge).compile())
    if isinstance(answer, Compiled):
        raise RuntimeError(
            f"Expected the compiler to refuse a program of twice the memory of {target.name}. It accepted it."
        )
    return answer.capacity


def topology(target: Target) -> Any:
    """Return JAX's description of a slice, with its `devices`."""
    _prepare()
    from jax.experimental import topologies

    options: dict[str, object] = {}
    if target.chips == 1:
        options["chips_per_host_bounds"] = [1, 1, 1]
    if target.generation.devices < target.generation.cores:
        options["chip_config_name"] = "megacore"  # both cores of a chip as one device
    return topologies.get_topology_desc(platform="tpu", topology_name=target.topology, **options)


def outcome(compile_program: Callable[[], Any]) -> Compiled | DoesNotFit:
    """Call a function that compiles a program and return the figures of the result."""
    try:
        executable = compile_program()
    except Exception as error:  # noqa: BLE001  jaxlib's error type is private
        too_large = _read_memory_error(str(error))
        if too_large is None:
            raise
        return too_large
    return read(executable)


def read(executable: Any) -> Compiled:
    """Return the figures of an executable, of JAX's internal kind or of `jax.jit(...).lower().compile()`."""
    cost = executable.cost_analysis()
    if hasattr(executable, "memory_analysis"):
        memory, text = executable.memory_analysis(), executable.as_text()
    else:
        memory, text = executable.get_compiled_memory_stats(), executable.hlo_modules()[0].to_string()
    return Compiled(
        cost["flops"],
        cost["bytes accessed"],
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
        collectives(text),
    )


def _prepare() -> None:
    """Set the variables that libtpu reads at its first use."""
    if not available():
        raise CompilerMissing(
            "Compiling for TPUs needs the package jax[tpu]. Install it with: "
            "pip install 'keras-vision-transformers[cpu,plan]'"
        )
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import jax

    jax.config.update("jax_platforms", "cpu")  # no search for a TPU


def _read_memory_error(message: str) -> DoesNotFit | None:
    for pattern in _MEMORY_ERRORS:
        match = re.search(pattern, message)
        if match:
            used, capacity = (int(float(text[:-1]) * _UNITS[text[-1]]) for text in match.groups())
            return DoesNotFit(used, capacity)
    return None


_COLLECTIVE = re.compile(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


def collectives(text: str) -> dict[str, int]:
    """Count the operations that exchange data in the text of a compiled program, by kind."""
    return dict(collections.Counter(_COLLECTIVE.findall(text)))
