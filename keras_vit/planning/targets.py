"""Accelerators to plan for: TPU slices by their names on Google Cloud, and NVIDIA GPUs, with published figures."""

import dataclasses
import math
import re

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Target:
    """Accelerators of one kind that train together. Figures are those of a device, which a program sees."""

    name: str
    chips: int
    devices: int  # two per chip up to TPU v3, else one
    peak_flops: float  # operations per second in bfloat16, without sparsity
    memory: int  # bytes
    bandwidth: float  # bytes per second from and to the memory
    interconnect: float  # bytes per second that a chip sends to others, over all links
    source: str


@dataclasses.dataclass(frozen=True)
class Generation:
    """A generation of TPUs, with published figures per chip."""

    name: str  # such as "v5e" in v5e-256
    cores: int  # TensorCores
    counts_cores: bool  # whether the number in the name of a slice counts TensorCores instead of chips
    devices: int  # that a program sees: one per core up to v3, one per chip since v4
    dimensions: int  # of the interconnect
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
_ALIASES = {"v5litepod": "v5e"}  # its name in gcloud


@dataclasses.dataclass(frozen=True)
class Slice(Target):
    """A slice of TPU chips."""

    generation: Generation

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


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU, with the figures of its data sheet. Dense bfloat16 products have half the rate of sparse ones."""

    name: str
    title: str  # that the driver reports
    peak_flops: float
    memory: int
    bandwidth: float
    interconnect: float  # in one direction
    capability: tuple[int, int]  # CUDA's number of the architecture
    processors: int  # streaming multiprocessors
    clock: float  # GHz, boost
    l2_cache: int  # bytes
    source: str


_NVIDIA, _ADA = "https://www.nvidia.com/en-us/data-center/", "NVIDIA's Ada GPU architecture whitepaper"
_MIB = 2**20
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100-40g", "NVIDIA A100-SXM4-40GB", 312e12, 40 * GIB, 1_555e9, 300e9, (8, 0), 108, 1.41, 40 * _MIB,
            _NVIDIA + "a100"),
        Gpu("a100", "NVIDIA A100-SXM4-80GB", 312e12, 80 * GIB, 2_039e9, 300e9, (8, 0), 108, 1.41, 40 * _MIB,
            _NVIDIA + "a100"),
        Gpu("l4", "NVIDIA L4", 121e12, 24 * GIB, 300e9, 32e9, (8, 9), 58, 2.04, 48 * _MIB, _NVIDIA + "l4"),
        Gpu("l40s", "NVIDIA L40S", 362e12, 48 * GIB, 864e9, 32e9, (8, 9), 142, 2.52, 96 * _MIB, _NVIDIA + "l40s"),
        Gpu("rtx4090", "NVIDIA GeForce RTX 4090", 165.2e12, 24 * GIB, 1_008e9, 32e9, (8, 9), 128, 2.52, 72 * _MIB,
            _ADA),
        Gpu("h100", "NVIDIA H100 80GB HBM3", 989e12, 80 * GIB, 3_350e9, 450e9, (9, 0), 132, 1.98, 50 * _MIB,
            _NVIDIA + "h100"),
        Gpu("h200", "NVIDIA H200", 989e12, 141 * GIB, 4_800e9, 450e9, (9, 0), 132, 1.98, 50 * _MIB, _NVIDIA + "h200"),
    )
}  # fmt: skip
# Bytes of shared memory of a multiprocessor, by architecture (CUDA programming guide, compute capabilities). One block
# may use all but 1 KiB.
_SHARED_MEMORY = {(8, 0): 164 * 1024, (8, 9): 100 * 1024, (9, 0): 228 * 1024}


@dataclasses.dataclass(frozen=True)
class Gpus(Target):
    """GPUs of one host."""

    gpu: Gpu

    @property
    def topology(self) -> str:
        """Partitions, hosts and devices for the compiler."""
        return f"1x1x{self.chips}"

    @property
    def configuration(self) -> str:
        """The GPU as the compiler's `GpuTargetConfigProto`."""
        gpu, shared = self.gpu, _SHARED_MEMORY[self.gpu.capability]
        threads = 1_536 if gpu.capability == (8, 9) else 2_048
        fields = {
            "threads_per_block_limit": 1_024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 48 * 1024,
            "shared_memory_per_core": shared,
            "shared_memory_per_block_optin": shared - 1024,
            "threads_per_core_limit": threads,
            "core_count": gpu.processors,
            "fpus_per_core": 64 if gpu.capability == (8, 0) else 128,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 2**16 - 1,
            "block_dim_limit_z": 2**16 - 1,
            "memory_bandwidth": int(gpu.bandwidth),
            "l2_cache_size": gpu.l2_cache,
            "clock_rate_ghz": gpu.clock,
            "device_memory_size": gpu.memory,
            "registers_per_core_limit": 65_536,
            "registers_per_block_limit": 65_536,
        }
        major, minor = gpu.capability
        return (
            f"gpu_device_info {{ {' '.join(f'{name}: {value}' for name, value in fields.items())} "
            f"cuda_compute_capability {{ major: {major} minor: {minor} }} }} "
            f'platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} device_description_str: "{gpu.title}"'
        )


def parse(name: str) -> Slice | Gpus:
    """Return the target of a name: a slice such as `v5e-256`, `v3-8` or `v4-32`, or GPUs such as `h100` or `h100:8`."""
    match = re.fullmatch(r"([\w-]+)(?::([1-8]))?", name)
    if match and match[1] in GPUS:
        gpu, chips = GPUS[match[1]], int(match[2] or 1)
        return Gpus(name, chips, chips, gpu.peak_flops, gpu.memory, gpu.bandwidth, gpu.interconnect, gpu.source, gpu)
    match = re.fullmatch(r"(v\d+[a-z]*)-(\d+)", name)
    generation = GENERATIONS.get(_ALIASES.get(match[1], match[1])) if match else None
    if match is None or generation is None:
        raise ValueError(
            f"--target must be a TPU slice of one of the generations {', '.join(GENERATIONS)}, such as v5e-8, v3-8 or "
            f"v4-32, or one of the GPUs {', '.join(GPUS)}, with up to 8 of them in one host: h100:8. "
            f"Received: {name!r}."
        )
    return _slice(name, generation, int(match[2]))


def _slice(name: str, generation: Generation, number: int) -> Slice:
    chips, rest = divmod(number, generation.cores if generation.counts_cores else 1)
    smallest = 4 if generation.counts_cores else 1
    if rest or chips < smallest or chips & (chips - 1) or chips == 2:
        each = smallest * generation.cores if generation.counts_cores else 4
        counted = "TensorCores" if generation.counts_cores else "chips"
        raise ValueError(
            f"--target={name} must have a power of two of {counted}, such as "
            f"{', '.join(f'{generation.name}-{each * 2**power}' for power in (0, 1, 2, 6))}. Received: {number}."
        )
    devices = generation.devices
    return Slice(
        name,
        chips,
        chips * devices,
        generation.peak_flops / devices,
        generation.memory // devices,
        generation.bandwidth / devices,
        generation.interconnect,
        generation.source,
        generation,
    )
