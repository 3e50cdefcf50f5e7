"""TPUs by the names that Google Cloud gives them: how many devices a slice has, and what one can do at most."""

import dataclasses
import math
import re

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Generation:
    """A generation of TPUs; figures are of one chip, as published.

    Attributes:
        name: As in `v5e-256`.
        cores: TensorCores of a chip.
        counts_cores: Whether the number of a slice's name counts TensorCores; else it counts chips.
        devices: Devices that a chip is to a program: one a core up to v3, one a chip since v4.
        dimensions: Of the network between the chips.
        peak_flops: Operations a second in bfloat16.
        memory: Bytes of HBM.
        bandwidth: Bytes a second from and to the HBM.
        interconnect: Bytes a second that the chip can send to other chips, over all links.
        source: Where these figures are from.
    """

    name: str
    cores: int
    counts_cores: bool
    devices: int
    dimensions: int
    peak_flops: float
    memory: int
    bandwidth: float
    interconnect: float
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
_ALIASES = {"v5litepod": "v5e"}  # what gcloud calls it


@dataclasses.dataclass(frozen=True)
class Target:
    """A slice of TPU chips.

    Attributes:
        name: Such as `v5e-256`.
        generation: Of its chips.
        chips: Their number.
    """

    name: str
    generation: Generation
    chips: int

    @property
    def devices(self) -> int:
        """Devices that a program sees: the replicas of TPUStrategy."""
        return self.chips * self.generation.devices

    @property
    def peak_flops(self) -> float:
        """Operations a second of a device, in bfloat16."""
        return self.generation.peak_flops / self.generation.devices

    @property
    def bandwidth(self) -> float:
        """Bytes a second between a device and its HBM."""
        return self.generation.bandwidth / self.generation.devices

    @property
    def memory(self) -> int:
        """Bytes of HBM of a device. The compiler leaves some of them to the system."""
        return self.generation.memory // self.generation.devices

    @property
    def shape(self) -> tuple[int, ...]:
        """Chips along each dimension of the network, the flattest arrangement first: (2, 4) or (2, 2, 4)."""
        sides = [1] * self.generation.dimensions
        for _ in range(int(math.log2(self.chips))):
            # The smallest side doubles; of equal ones the last, but a third dimension only after a host's 2 x 2.
            candidates = [2, 1, 0] if min(sides[:2]) >= 2 else [1, 0]
            index = min((i for i in candidates if i < len(sides)), key=lambda i: sides[i])
            sides[index] *= 2
        return tuple(sorted(sides)) if min(sides) > 1 else tuple(sides)

    @property
    def topology(self) -> str:
        """The slice as the compiler names it: `v5e:16x16`."""
        return f"{self.generation.name}:{'x'.join(map(str, self.shape))}"


def parse(name: str) -> Target:
    """Returns the slice of a name such as `v5e-256`, `v3-8` or `v4-32`.

    Raises:
        ValueError: For an unknown generation or a size that there is not.
    """
    match = re.fullmatch(r"(v\d+[a-z]*)-(\d+)", name)
    generation = GENERATIONS.get(_ALIASES.get(match[1], match[1])) if match else None
    if generation is None:
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
            f"The number in --target={name} counts {counted}, and slices have a power of two of them, such as "
            f"{', '.join(f'{generation.name}-{size}' for size in sizes)}. Received: {number}."
        )
    return Target(name, generation, chips)
