"""TPU slices by their names on Google Cloud: their devices, memory and peak performance."""

import dataclasses
import math
import re

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Generation:
    """A generation of TPUs, with published figures per chip."""

    name: str  # such as "v5e" in v5e-256
    cores: int  # TensorCores
    counts_cores: bool  # whether the number in the name of a slice counts TensorCores instead of chips
    devices: int  # that a program sees: one per core up to v3, one per chip since v4
    dimensions: int  # of the interconnect
    peak_flops: float  # operations per second in bfloat16
    memory: int  # bytes of HBM
    bandwidth: float  # bytes per second from and to the HBM
    interconnect: float  # bytes per second to other chips, over all links
    source: str


_DOCS = "https://cloud.google.com/tpu/docs/"
_PAPER = "https://arxiv.org/abs/2304.01433, tables 4 and 5"
GENERATIONS = {
    generation.name: generation
    for generation in (
        Generation("v3", 2, True, 2, 2, 123e12, 32 * GIB, 900e9, 4 * 70e9, _PAPER),
        Generation("v4", 2, True, 1, 3, 275e12, 32 * GIB, 1_200e9, 6 * 50e9, _PAPER),
        Generation("v5e", 1, False, 1, 2, 197e12, 16 * GIB, 819e9, 200e9, _DOCS + "v5e"),
        Generation("v5p", 2, True, 1, 3, 459e12, 95 * GIB, 2_765e9, 600e9, _DOCS + "v5p"),
        Generation("v6e", 1, False, 1, 2, 918e12, 32 * GIB, 1_640e9, 448e9, _DOCS + "v6e"),
    )
}
_ALIASES = {"v5litepod": "v5e"}  # its name in gcloud


@dataclasses.dataclass(frozen=True)
class Target:
    """A slice of TPU chips."""

    name: str
    generation: Generation
    chips: int

    @property
    def devices(self) -> int:
        """Number of devices, which are the replicas of TPUStrategy."""
        return self.chips * self.generation.devices

    @property
    def peak_flops(self) -> float:
        """Operations per second and device, in bfloat16."""
        return self.generation.peak_flops / self.generation.devices

    @property
    def bandwidth(self) -> float:
        """Bytes per second between a device and its HBM."""
        return self.generation.bandwidth / self.generation.devices

    @property
    def memory(self) -> int:
        """Bytes of HBM per device. The compiler reserves some of them for the system."""
        return self.generation.memory // self.generation.devices

    @property
    def shape(self) -> tuple[int, ...]:
        """Chips along each dimension of the interconnect, in ascending order: (2, 4) or (2, 2, 4)."""
        sides = [1] * self.generation.dimensions
        for _ in range(int(math.log2(self.chips))):
            # Double the smallest side, the last one of equals; a third dimension only beyond the 2 x 2 chips of a host.
            candidates = [2, 1, 0] if min(sides[:2]) >= 2 else [1, 0]
            index = min((i for i in candidates if i < len(sides)), key=lambda i: sides[i])
            sides[index] *= 2
        return tuple(sorted(sides)) if min(sides) > 1 else tuple(sides)

    @property
    def topology(self) -> str:
        """Name of the slice for the compiler: `v5e:16x16`."""
        return f"{self.generation.name}:{'x'.join(map(str, self.shape))}"


def parse(name: str) -> Target:
    """Return the slice with a name such as `v5e-256`, `v3-8` or `v4-32`."""
    match = re.fullmatch(r"(v\d+[a-z]*)-(\d+)", name)
    generation = GENERATIONS.get(_ALIASES.get(match[1], match[1])) if match else None
    if match is None or generation is None:
        raise ValueError(
            f"--target must be a TPU slice of one of the generations {', '.join(GENERATIONS)}, such as v5e-8, v3-8 or "
            f"v4-32. Received: {name!r}."
        )
    number = int(match[2])
    chips, rest = divmod(number, generation.cores if generation.counts_cores else 1)
    smallest = 4 if generation.counts_cores else 1
    if rest or chips < smallest or chips & (chips - 1) or chips == 2:
        sizes = [
            smallest * generation.cores * 2**power if generation.counts_cores else 4 * 2**power
            for power in (0, 1, 2, 6)
        ]
        counted = "TensorCores" if generation.counts_cores else "chips"
        raise ValueError(
            f"--target={name} must have a power of two of {counted}, such as "
            f"{', '.join(f'{generation.name}-{size}' for size in sizes)}. Received: {number}."
        )
    return Target(name, generation, chips)
