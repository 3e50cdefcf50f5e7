"""The TPU compiler, which is in libtpu."""

import os
import re
from collections.abc import Callable
from typing import Any

from keras_vit.planning import hlo, targets
from keras_vit.planning.compiler import Compiled, Compiler, DoesNotFit, figures

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


class TpuCompiler(Compiler):
    """The compiler for a slice of TPUs. It counts operations and traffic itself."""

    packages = {"libtpu": "libtpu", "jax": "jax"}
    extra = "plan"

    def _topology(self) -> dict[str, Any]:
        for name, value in _ENVIRONMENT.items():  # read when libtpu is first used
            os.environ.setdefault(name, value)
        options: dict[str, Any] = {"platform": "tpu", "topology_name": targets.topology(self.target)}
        if self.target.chips == 1:
            options["chips_per_host_bounds"] = [1, 1, 1]
        if self.target.chip.devices < self.target.chip.cores:
            options["chip_config_name"] = "megacore"  # both cores of a chip as one device
        return options

    def capacity(self) -> int:
        """Return the bytes of memory per device that programs may use, without those reserved for the system.

        The compiler states them for a program that is too large, so it gets one.
        """
        answer = self.compile_function(lambda x: x + x[:1], (2 * self.target.memory,), "uint8")
        if isinstance(answer, Compiled):
            raise RuntimeError(
                f"Expected the compiler to refuse a program of twice the memory of {self.target.name}. It accepted it."
            )
        return answer.capacity

    def outcome(self, compile_program: Callable[[], Any]) -> Compiled | DoesNotFit:
        try:
            executable = compile_program()
        except Exception as error:  # noqa: BLE001  jaxlib's error type is private
            too_large = _read_memory_error(str(error))
            if too_large is None:
                raise
            return too_large
        cost, (sizes, text) = executable.cost_analysis(), figures(executable)
        return Compiled(cost["flops"], cost["bytes accessed"], **sizes, collectives=hlo.collectives(text))


def _read_memory_error(message: str) -> DoesNotFit | None:
    for pattern in _MEMORY_ERRORS:
        match = re.search(pattern, message)
        if match:
            used, capacity = (int(float(text[:-1]) * _UNITS[text[-1]]) for text in match.groups())
            return DoesNotFit(used, capacity)
    return None
