"""XLA's compilers for accelerators, used without the device: memory, operations and memory traffic of a program.

The compiler for a target is an ordinary package: libtpu for TPUs, JAX's CUDA plugin for NVIDIA GPUs. JAX describes the
target to the compiler. TensorFlow programs are passed as HLO, as in TensorFlow itself.

References:
    https://docs.jax.dev/en/latest/aot.html, https://openxla.org/xla/tf2xla
"""

import abc
import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from unittest import mock

from tools.compile_plan import hlo, targets
from tools.compile_plan.targets import Gpu, Target
from train.launching import files

# Otherwise libtpu queries the metadata server of Google Cloud, which takes minutes on other machines.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several processes can compile at once, because no program is run
}
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Two messages of the compiler about a program that is too large.
_MEMORY_ERRORS = (
    r"Used ([\d.]+[KMGT]) of ([\d.]+[KMGT]) hbm",
    r"\(([\d.]+[KMGT])\) exceeds available HBM \(([\d.]+[KMGT])\)",
)
_CUDNN = 91000  # the version that programs are traced for


class CompilerMissing(ImportError):
    """Raised if the packages of a target's compiler are not installed."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Figures of a compiled program per device, in bytes, except for `flops` and the counts in `collectives`."""

    flops: float  # of matrix products and convolutions
    bytes_accessed: float  # from and to the main memory
    arguments: int
    outputs: int
    aliased: int  # outputs that overwrite inputs
    temporaries: int
    code: int
    collectives: dict[str, int]  # operations that exchange data between devices, by kind
    sent: int = 0  # to devices of the same slice or host
    sent_across: int = 0  # to other slices

    @property
    def memory(self) -> int:
        """Bytes of memory that the program needs."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclasses.dataclass(frozen=True)
class DoesNotFit:
    """Result for a program that is too large: it needs `memory` bytes per device, but has only `capacity`."""

    memory: int
    capacity: int


class Compiler(abc.ABC):
    """Compiler for a target."""

    packages: ClassVar[dict[str, str]]  # name by module
    extra: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}  # options of XLA

    def __init__(self, target: Any):
        if not self.available():
            raise CompilerMissing(
                f"Compiling for {target.name} needs the packages {', '.join(self.packages.values())}. Install them, "
                f"in the clone, with: pip install '.[cpu,{self.extra}]'"
            )
        self.target = target

    @classmethod
    def available(cls) -> bool:
        """Return whether the compiler is installed."""
        return all(importlib.util.find_spec(module) is not None for module in cls.packages)

    @classmethod
    def versions(cls) -> str:
        """Return the versions of the compiler: `"libtpu 0.0.42.1 through jax 0.10.2"`."""
        return " through ".join(f"{name} {importlib.metadata.version(name)}" for name in cls.packages.values())

    @functools.cached_property
    def devices(self) -> list[Any]:
        """JAX's descriptions of the target's devices."""
        import jax
        from jax.experimental import topologies

        jax.config.update("jax_platforms", "cpu")  # do not search for an accelerator
        return topologies.get_topology_desc(**self._topology()).devices

    @abc.abstractmethod
    def _topology(self) -> dict[str, Any]:
        """Return the arguments that describe the target to JAX."""

    @abc.abstractmethod
    def capacity(self) -> int:
        """Return the bytes of memory per device that programs may use."""

    @abc.abstractmethod
    def outcome(self, compile_program: Callable[[], Any]) -> Compiled | DoesNotFit:
        """Call a function that compiles a program, and return the figures of the result."""

    def tracing(self) -> contextlib.AbstractContextManager:
        """Return a context in which programs are traced as on the target."""
        return contextlib.nullcontext()

    def compile_function(self, function: Callable[[Any], Any], shape: tuple[int, ...], dtype: str) -> Any:
        """Compile a function of one array for the first device."""
        import jax

        where = jax.sharding.SingleDeviceSharding(self.devices[0])
        return self.compile(jax.jit(function), jax.ShapeDtypeStruct(shape, dtype, sharding=where))

    def compile(self, step: Any, *arguments: Any) -> Compiled | DoesNotFit:
        """Compile a jitted function for `jax.ShapeDtypeStruct`s on `devices`."""
        with self.tracing():
            lowered = step.lower(*arguments)
        return self.outcome(lambda: lowered.compile(compiler_options=self.options))

    def compile_hlo(self, hlo: bytes, replicas: int = 1) -> Compiled | DoesNotFit:
        """Compile the program of each replica, a serialized `HloModuleProto`."""
        devices = self.devices[:replicas]
        # JAX has no public function to compile HLO. tests/compile_plan/test_compiler.py fails if these names change.
        import numpy as np
        from jax._src import compiler
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jaxlib.mlir import ir

        text = xla_client._xla.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(hlo))
        text = text.replace("mhlo.copy", "stablehlo.optimization_barrier")  # identities that the importer leaves
        module = ir.Module.parse(text, mlir.make_ir_context())
        options = compiler.get_compile_options(
            num_replicas=replicas,
            num_partitions=1,
            device_assignment=np.array([[device.id] for device in devices]),  # [replicas, 1]
            env_options_overrides=self.options,
            backend=devices[0].client,
        )
        client, where = devices[0].client, xla_client.DeviceList(tuple(devices))
        return self.outcome(lambda: client.compile(module, where, options))


def figures(executable: Any) -> Compiled:
    """Return the figures of a compiled program.

    The executable is JAX's internal type or the result of `jax.jit(...).lower().compile()`.
    """
    if hasattr(executable, "memory_analysis"):
        memory, text = executable.memory_analysis(), executable.as_text()
    else:
        memory, text = executable.get_compiled_memory_stats(), executable.hlo_modules()[0].to_string()
    program = hlo.parse(text)
    return Compiled(
        flops=program.flops,
        bytes_accessed=program.traffic,
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        collectives=hlo.collectives(text),
        sent=program.sent,
        sent_across=program.sent_across,
    )


class TpuCompiler(Compiler):
    """Compiler for a slice of TPUs."""

    packages = {"libtpu": "libtpu", "jax": "jax"}
    extra = "plan"

    def _topology(self) -> dict[str, Any]:
        for name, value in _ENVIRONMENT.items():  # read when libtpu is first used
            os.environ.setdefault(name, value)
        options: dict[str, Any] = {"platform": "tpu", "topology_name": targets.topology(self.target)}
        if self.target.slices > 1:
            options["num_slices"] = self.target.slices
        if self.target.chips == 1:
            options["chips_per_host_bounds"] = [1, 1, 1]
        if self.target.chip.devices < self.target.chip.cores:
            options["chip_config_name"] = "megacore"  # both cores of a chip as one device
        return options

    def capacity(self) -> int:
        """Return the bytes of memory per device that programs may use, without the memory reserved for the system.

        The compiler reports this number only for programs that are too large, so this method compiles such a program.
        """
        result = self.compile_function(lambda x: x + x[:1], (2 * self.target.memory,), "uint8")
        if isinstance(result, Compiled):
            raise RuntimeError(
                f"Expected the compiler to reject a program of twice the memory of {self.target.name}. It compiled."
            )
        return result.capacity

    def outcome(self, compile_program: Callable[[], Any]) -> Compiled | DoesNotFit:
        try:
            executable = compile_program()
        except Exception as error:  # noqa: BLE001  jaxlib's error type is private
            too_large = _read_memory_error(str(error))
            if too_large is None:
                raise
            return too_large
        return figures(executable)


def _read_memory_error(message: str) -> DoesNotFit | None:
    for pattern in _MEMORY_ERRORS:
        match = re.search(pattern, message)
        if match:
            used, capacity = (int(float(text[:-1]) * _UNITS[text[-1]]) for text in match.groups())
            return DoesNotFit(used, capacity)
    return None


class GpuCompiler(Compiler):
    """Compiler for the GPUs of one host."""

    packages = {"jax_plugins.xla_cuda12": "jax-cuda12-plugin", "jax": "jax"}
    extra = "plan-gpu"
    # The flags of `keras-vit launch`. The other two would try kernels on the device. Matrix products use cuBLAS.
    options = {**files.XLA_FLAGS, "xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}

    @classmethod
    def available(cls) -> bool:
        try:
            return super().available()
        except ModuleNotFoundError:  # the package of all plugins is missing
            return False

    def _topology(self) -> dict[str, Any]:
        return {
            "topology_name": self.target.name,
            "platform": "cuda",
            "topology": targets.topology(self.target),
            "target_config": targets.configuration(self.target.chip),
        }

    def capacity(self) -> int:
        """Return the memory that `keras-vit launch` gives to JAX. The driver, cuBLAS and cuDNN need the rest."""
        return int(files.GPU_MEMORY * self.target.memory)

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Use cuDNN's attention as on the target, although JAX and the layers check the device of this machine."""
        from jax._src.cudnn import fused_attention_stablehlo as cudnn

        from keras_vit.layers.kernels import fused_attention

        with contextlib.ExitStack() as stack:
            for module, name, replacement in (
                (cudnn, "check_cudnn_version", lambda: _CUDNN),
                (cudnn, "check_compute_capability", self._reaches),
                (cudnn, "is_cuda_compute_capability_equal", lambda version: version == self._capability),
                (fused_attention, "has_cudnn", lambda: True),
            ):
                stack.enter_context(mock.patch.object(module, name, replacement))
            yield

    @property
    def _capability(self) -> str:
        return "{}.{}".format(*self.target.chip.capability)

    def _reaches(self, version: str) -> bool:
        return self.target.chip.capability >= tuple(map(int, version.split(".")))

    def outcome(self, compile_program: Callable[[], Any]) -> Compiled:
        """Return the figures of a program. This compiler accepts every size, so `memory` can exceed the capacity."""
        return figures(compile_program())


def of_target(target: Target) -> Compiler:
    """Return the compiler for a target."""
    return (GpuCompiler if isinstance(target.chip, Gpu) else TpuCompiler)(target)
