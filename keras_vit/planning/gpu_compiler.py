"""XLA's compiler for NVIDIA GPUs, which is in JAX's CUDA plugin. It needs neither a GPU nor the driver."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from keras_vit.planning import hlo, targets
from keras_vit.planning.compiler import Compiled, Compiler, cudnn_checks, figures

# The driver, the workspaces of cuBLAS and cuDNN, and fragments of the allocator take the rest.
SHARE = 0.9
_CUDNN = 91000  # the version that programs are traced for


class GpuCompiler(Compiler):
    """The compiler for GPUs of one host. Operations and traffic are counted in the text of the program."""

    packages = {"jax_plugins.xla_cuda12": "jax-cuda12-plugin", "jax": "jax"}
    extra = "plan-gpu"
    # Both would try kernels on the device. Products are those of cuBLAS.
    options = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}

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
        return int(SHARE * self.target.memory)

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Let attention be that of cuDNN, as on the target: JAX and the layers ask the device of this machine."""
        from keras_vit.layers.kernels import fused_attention

        cudnn = cudnn_checks()
        with contextlib.ExitStack() as stack:
            for module, name, answer in (
                (cudnn, "check_cudnn_version", lambda: _CUDNN),
                (cudnn, "check_compute_capability", self._reaches),
                (cudnn, "is_cuda_compute_capability_equal", lambda version: version == self._capability),
                (fused_attention, "has_cudnn", lambda: True),
            ):
                stack.enter_context(mock.patch.object(module, name, answer))
            yield

    @property
    def _capability(self) -> str:
        return "{}.{}".format(*self.target.chip.capability)

    def _reaches(self, version: str) -> bool:
        return self.target.chip.capability >= tuple(map(int, version.split(".")))

    def outcome(self, compile_program: Callable[[], Any]) -> Compiled:
        """Return the figures of a program. This compiler refuses none: `memory` may exceed the capacity."""
        sizes, text = figures(compile_program())
        program = hlo.parse(text)
        return Compiled(program.flops, program.traffic, **sizes, collectives=hlo.collectives(text))
