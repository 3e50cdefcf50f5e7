"""Target accelerators with their published figures: NVIDIA GPUs, and TPU slices by their names on Google Cloud."""

import dataclasses
import math
import re

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """Accelerator with its published figures."""

    name: str  # such as "v5e" in v5e-256
    peak_flops: float  # operations per second in bfloat16, without sparsity
    memory: int  # bytes
    bandwidth: float  # bytes per second from and to the memory
    interconnect: float  # bytes per second that a chip sends to other chips, over all links
    source: str


@dataclasses.dataclass(frozen=True)
class Tpu(Chip):
    """Generation of TPUs. Names of slices count TensorCores if a chip has two of them, and chips otherwise."""

    cores: int
    devices: int  # devices of a chip in a program: one per core up to v3, one per chip since v4
    dimensions: int  # dimensions of the interconnect
    network: float = 0.0  # bytes per second that a chip sends to other slices; 0 if not published


_DOCS = "https://cloud.google.com/tpu/docs/"
_PAPER = "https://arxiv.org/abs/2304.01433, tables 4 and 5"
GENERATIONS = {
    tpu.name: tpu
    for tpu in (
        Tpu("v3", 123e12, 32 * GIB, 900e9, 4 * 70e9, _PAPER, cores=2, devices=2, dimensions=2),
        Tpu("v4", 275e12, 32 * GIB, 1_200e9, 6 * 50e9, _PAPER, cores=2, devices=1, dimensions=3),
        Tpu("v5e", 197e12, 16 * GIB, 819e9, 200e9, _DOCS + "v5e", cores=1, devices=1, dimensions=2, network=3.125e9),
        Tpu("v5p", 459e12, 95 * GIB, 2_765e9, 600e9, _DOCS + "v5p", cores=2, devices=1, dimensions=3, network=6.25e9),
        Tpu("v6e", 918e12, 32 * GIB, 1_640e9, 448e9, _DOCS + "v6e", cores=1, devices=1, dimensions=2, network=12.5e9),
    )
}
_ALIASES = {"v5litepod": "v5e"}  # its name in gcloud


@dataclasses.dataclass(frozen=True)
class Gpu(Chip):
    """GPU with the figures of its data sheet. The interconnect's speed is for one direction."""

    title: str  # name that the driver reports after "NVIDIA"
    capability: tuple[int, int]  # compute capability of CUDA
    processors: int  # streaming multiprocessors
    clock: float  # GHz, boost
    l2_cache: int  # MiB


_NVIDIA, _ADA = "https://www.nvidia.com/en-us/data-center/", "NVIDIA's Ada GPU architecture whitepaper"
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100-40g", 312e12, 40 * GIB, 1_555e9, 300e9, _NVIDIA + "a100", "A100-SXM4-40GB", (8, 0), 108, 1.41, 40),
        Gpu("a100", 312e12, 80 * GIB, 2_039e9, 300e9, _NVIDIA + "a100", "A100-SXM4-80GB", (8, 0), 108, 1.41, 40),
        Gpu("l4", 121e12, 24 * GIB, 300e9, 32e9, _NVIDIA + "l4", "L4", (8, 9), 58, 2.04, 48),
        Gpu("l40s", 362e12, 48 * GIB, 864e9, 32e9, _NVIDIA + "l40s", "L40S", (8, 9), 142, 2.52, 96),
        Gpu("rtx4090", 165.2e12, 24 * GIB, 1_008e9, 32e9, _ADA, "GeForce RTX 4090", (8, 9), 128, 2.52, 72),
        Gpu("h100", 989e12, 80 * GIB, 3_350e9, 450e9, _NVIDIA + "h100", "H100 80GB HBM3", (9, 0), 132, 1.98, 50),
        Gpu("h200", 989e12, 141 * GIB, 4_800e9, 450e9, _NVIDIA + "h200", "H200", (9, 0), 132, 1.98, 50),
    )
}
# KiB of shared memory, threads and float32 lanes of a multiprocessor, by architecture (CUDA programming guide, compute
# capabilities). A block can use all of the shared memory except for 1 KiB.
_PROCESSORS = {(8, 0): (164, 2_048, 64), (8, 9): (100, 1_536, 128), (9, 0): (228, 2_048, 128)}


@dataclasses.dataclass(frozen=True)
class Target:
    """Accelerators of the same kind that train together. Figures are per device, as seen by a program."""

    name: str
    chips: int  # chips of a slice
    chip: Tpu | Gpu
    slices: int = 1  # slices of TPUs, connected by the network of the data center

    @property
    def devices(self) -> int:
        return self.slices * self.chips * self._each

    @property
    def peak_flops(self) -> float:
        return self.chip.peak_flops / self._each

    @property
    def memory(self) -> int:
        return self.chip.memory // self._each

    @property
    def bandwidth(self) -> float:
        return self.chip.bandwidth / self._each

    @property
    def network(self) -> float:
        """Bytes per second that a chip sends to other slices. 0 means a single slice."""
        return self.chip.network if isinstance(self.chip, Tpu) and self.slices > 1 else 0.0

    @property
    def _each(self) -> int:
        """Number of devices per chip."""
        return self.chip.devices if isinstance(self.chip, Tpu) else 1


def topology(target: Target) -> str:
    """Return the compiler's name of a target: `v5e:16x16` for TPUs; partitions, hosts and devices for GPUs."""
    if isinstance(target.chip, Gpu):
        return f"1x1x{target.chips}"
    return f"{target.chip.name}:{'x'.join(map(str, shape(target.chips, target.chip.dimensions)))}"


def shape(chips: int, dimensions: int) -> tuple[int, ...]:
    """Return the chips of a slice along each dimension, in ascending order: (2, 4) or (2, 2, 4)."""
    sides = [1] * dimensions
    for _ in range(int(math.log2(chips))):
        # Double the smallest side, or the last of equal sides. Beyond the 2 x 2 chips of a host, use a third dimension.
        candidates = [2, 1, 0] if min(sides[:2]) >= 2 else [1, 0]
        index = min((i for i in candidates if i < len(sides)), key=lambda i: sides[i])
        sides[index] *= 2
    return tuple(sorted(sides)) if min(sides) > 1 else tuple(sides)


def configuration(gpu: Gpu) -> str:
    """Return the compiler's `GpuTargetConfigProto` for a GPU."""
    shared, threads, lanes = _PROCESSORS[gpu.capability]
    fields = {
        "threads_per_block_limit": 1_024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 * 1024,
        "shared_memory_per_core": shared * 1024,
        "shared_memory_per_block_optin": (shared - 1) * 1024,
        "threads_per_core_limit": threads,
        "core_count": gpu.processors,
        "fpus_per_core": lanes,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "memory_bandwidth": int(gpu.bandwidth),
        "l2_cache_size": gpu.l2_cache * 2**20,
        "clock_rate_ghz": gpu.clock,
        "device_memory_size": gpu.memory,
        "registers_per_core_limit": 65_536,
        "registers_per_block_limit": 65_536,
    }
    major, minor = gpu.capability
    return (
        f"gpu_device_info {{ {' '.join(f'{name}: {value}' for name, value in fields.items())} "
        f"cuda_compute_capability {{ major: {major} minor: {minor} }} }} "
        f'platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} device_description_str: "NVIDIA {gpu.title}"'
    )


def parse(name: str, slices: int = 1) -> Target:
    """Parse the name of a target: a slice such as `v5e-256`, `v3-8` or `v4-32`, or GPUs such as `h100` or `h100:8`."""
    target = _parse(name)
    if slices == 1:
        return target
    if not (isinstance(target.chip, Tpu) and target.chip.network):
        known = ", ".join(tpu.name for tpu in GENERATIONS.values() if tpu.network)
        raise ValueError(f"--slices={slices} needs a --target of one of the generations {known}. Received: {name!r}.")
    return dataclasses.replace(target, name=f"{slices} slices of {name}", slices=slices)


def _parse(name: str) -> Target:
    match = re.fullmatch(r"([\w-]+)(?::([1-8]))?", name)
    if match and match[1] in GPUS:
        return Target(name, int(match[2] or 1), GPUS[match[1]])
    match = re.fullmatch(r"(v\d+[a-z]*)-(\d+)", name)
    tpu = GENERATIONS.get(_ALIASES.get(match[1], match[1])) if match else None
    if match is None or tpu is None:
        raise ValueError(
            f"--target must be a TPU slice of one of the generations {', '.join(GENERATIONS)}, such as v5e-8, v3-8 or "
            f"v4-32, or one of the GPUs {', '.join(GPUS)}, with up to 8 of them in one host: h100:8. "
            f"Received: {name!r}."
        )
    chips, rest = divmod(int(match[2]), tpu.cores)
    if rest or chips < 1 or chips & (chips - 1) or chips == 2 or (chips == 1 and tpu.cores == 2):
        sizes = ", ".join(f"{tpu.name}-{4 * tpu.cores * 2**power}" for power in (0, 1, 2, 6))
        counted = "TensorCores" if tpu.cores == 2 else "chips"
        raise ValueError(f"--target={name} must have a power of two of {counted}, such as {sizes}.")
    return Target(name, chips, tpu)
