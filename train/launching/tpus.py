"""Slices of TPUs by the names of Google Cloud: chips, hosts, topology, and what GKE and TPU VMs call them."""

import dataclasses
import math
import re


@dataclasses.dataclass(frozen=True)
class Generation:
    """A generation of TPUs. `divisor` is the number that the name of a slice counts per chip."""

    divisor: int
    dimensions: int
    gke: str  # value of the node label cloud.google.com/gke-tpu-accelerator
    machine: str
    runtime: str  # version of the software of a TPU VM
    vms_of_eight_chips: tuple[int, ...]  # chips per VM of a slice of eight chips, the default first


GENERATIONS = {
    "v4": Generation(2, 3, "tpu-v4-podslice", "ct4p-hightpu", "tpu-ubuntu2204-base", (4,)),
    "v5litepod": Generation(1, 2, "tpu-v5-lite-podslice", "ct5lp-hightpu", "v2-alpha-tpuv5-lite", (8, 4)),
    "v5p": Generation(2, 3, "tpu-v5p-slice", "ct5p-hightpu", "v2-alpha-tpuv5", (4,)),
    "v6e": Generation(1, 2, "tpu-v6e-slice", "ct6e-standard", "v2-alpha-tpuv6e", (4, 8)),
}
_ALIASES = {"v5e": "v5litepod"}


@dataclasses.dataclass(frozen=True)
class Slice:
    """A slice: its name in gcloud, its generation, its chips, and the chips of each of its hosts."""

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
        """The chips along each dimension, such as 4x8 or 2x4x4."""
        sides = [1] * self.generation.dimensions
        while (product := math.prod(sides)) < self.chips:
            # The last side is doubled first; a third dimension only after the 2 x 2 chips of a host.
            order = [0, 1] if product < 4 else list(range(len(sides)))
            smallest = min(order, key=lambda index: (sides[index], -index))
            sides[smallest] *= 2
        return "x".join(map(str, sides))


def parse(name: str, chips_per_vm: int | None = None) -> Slice:
    """Return the slice of an accelerator type, such as `v5litepod-16`, `v6e-8` or `v4-32`."""
    found = re.fullmatch(r"(v\d+[a-z]*)-(\d+)", name)
    kind = _ALIASES.get(found[1], found[1]) if found else ""
    if not found or kind not in GENERATIONS:
        raise ValueError(
            "--accelerator must be one of v4-N, v5litepod-N, v5p-N and v6e-N, such as v5litepod-16 or v4-32. "
            f"Received: --accelerator={name}. gcloud compute tpus accelerator-types list shows those of a zone."
        )
    generation = GENERATIONS[kind]
    chips, rest = divmod(int(found[2]), generation.divisor)
    smallest = 4 if generation.dimensions == 3 else 1
    if rest or chips < smallest or chips & (chips - 1) or chips == 2:
        sizes = ", ".join(f"{kind}-{size * generation.divisor}" for size in (4, 8, 16, 32, 64))
        counted = "TensorCores, two per chip" if generation.divisor == 2 else "chips"
        raise ValueError(
            f"The number of --accelerator counts {counted}. Expected a slice such as {sizes}. Received: {name}."
        )
    allowed = generation.vms_of_eight_chips if chips == 8 else (min(chips, 4),)
    chips_per_vm = chips_per_vm or allowed[0]
    if chips_per_vm not in allowed:
        raise ValueError(
            f"--chips_per_vm of {name} must be {' or '.join(map(str, allowed))}. "
            f"Received: --chips_per_vm={chips_per_vm}."
        )
    return Slice(f"{kind}-{found[2]}", generation, chips, chips_per_vm)
