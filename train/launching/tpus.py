"""TPU slices by their names on Google Cloud."""

import dataclasses
import math
import re
from typing import NamedTuple


class Generation(NamedTuple):
    """Generation of TPUs, from Google Cloud's tables."""

    counted: int  # number per chip in the name of a slice: 2 (TensorCores) or 1 (chips)
    dimensions: int
    label: str  # cloud.google.com/gke-tpu-accelerator
    machine: str
    runtime: str  # software version of a TPU VM
    vms_of_eight: tuple[int, ...] = (4,)  # chips per VM of a slice with eight chips, the default first


GENERATIONS = {
    "v4": Generation(2, 3, "tpu-v4-podslice", "ct4p-hightpu", "tpu-ubuntu2204-base"),
    "v5litepod": Generation(1, 2, "tpu-v5-lite-podslice", "ct5lp-hightpu", "v2-alpha-tpuv5-lite", (8, 4)),
    "v5p": Generation(2, 3, "tpu-v5p-slice", "ct5p-hightpu", "v2-alpha-tpuv5"),
    "v6e": Generation(1, 2, "tpu-v6e-slice", "ct6e-standard", "v2-alpha-tpuv6e", (4, 8)),
}


@dataclasses.dataclass(frozen=True)
class Slice:
    """TPU slice: its name in gcloud, its generation and its chips."""

    name: str
    generation: Generation
    chips: int
    chips_per_vm: int

    @property
    def hosts(self) -> int:
        return self.chips // self.chips_per_vm

    @property
    def machine(self) -> str:
        return f"{self.generation.machine}-{self.chips_per_vm}t"

    @property
    def topology(self) -> str:
        """Number of chips along each dimension, such as 4x8 or 2x4x4."""
        sides = [1] * self.generation.dimensions
        while math.prod(sides) < self.chips:  # double the last smallest side; use a third dimension after 2 x 2
            usable = range(2 if math.prod(sides) < 4 else len(sides))
            sides[min(usable, key=lambda index: (sides[index], -index))] *= 2
        return "x".join(map(str, sides))


def parse(name: str, chips_per_vm: int | None = None) -> Slice:
    """Return the slice of an accelerator type, such as `v5litepod-16`, `v6e-8` or `v4-32`."""
    found = re.fullmatch(r"(v\d+[a-z]*)-(\d+)", name.replace("v5e", "v5litepod"))
    if not found or found[1] not in GENERATIONS:
        raise ValueError(
            "--accelerator must be one of v4-N, v5litepod-N, v5p-N and v6e-N, such as v5litepod-16 or v4-32. "
            f"Received: --accelerator={name}. gcloud compute tpus accelerator-types list shows the types of a zone."
        )
    generation = GENERATIONS[found[1]]
    chips, rest = divmod(int(found[2]), generation.counted)
    if rest or chips not in ([] if generation.dimensions == 3 else [1]) + [2**power for power in range(2, 14)]:
        sizes = ", ".join(f"{found[1]}-{size * generation.counted}" for size in (4, 8, 16, 32, 64))
        counted = "TensorCores, two per chip" if generation.counted == 2 else "chips"
        raise ValueError(f"--accelerator counts {counted}. Expected a slice such as {sizes}. Received: {name}.")
    allowed = generation.vms_of_eight if chips == 8 else (min(chips, 4),)
    if chips_per_vm not in (None, *allowed):
        expected = " or ".join(map(str, allowed))
        raise ValueError(f"--chips_per_vm of {name} must be {expected}. Received: --chips_per_vm={chips_per_vm}.")
    return Slice(found[0], generation, chips, chips_per_vm or allowed[0])
