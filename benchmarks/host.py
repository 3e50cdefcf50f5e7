"""Description of the machine, and the processor time that other programs use during a measurement."""

import os
import platform
import re
import time

_EXTENSIONS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "avx512f": "AVX512", "avx2": "AVX2"}  # widest first


def describe() -> str:
    """Return the number of cores, the processor, its vector extensions, the memory and the system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    return f"{cores} cores of {processor()}, {memory}, {platform.system()}, Python {platform.python_version()}"


def processor() -> str:
    """Return the name of the processor and its vector extensions."""
    name, extensions = platform.processor() or platform.machine(), []
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line.partition(":") for line in file.read().split("\n\n")[0].splitlines()]
        values = {key.strip(): value.strip() for key, _, value in lines}
        name, flags = values.get("model name", name), values.get("flags", "").split()
        extensions = [flag for flag in reversed(_EXTENSIONS) if flag in flags]
    return f"{name} ({', '.join(extensions)})" if extensions else name


def kind(machine: str) -> str:
    """Return the processor and its widest extension from an output of `describe`, such as `"AMD EPYC, AVX2"`."""
    found = re.fullmatch(r"\d+ cores of (.*?)(?: \(([a-z0-9_, ]+)\))?, [\d.]+ GiB, .*", machine)
    if found is None:
        return machine
    extensions = (found[2] or "").split(", ")
    return ", ".join([found[1], *[name for flag, name in _EXTENSIONS.items() if flag in extensions][:1]])


class OtherPrograms:
    """Context that measures the share of the processors that other programs use.

    Attributes:
        share: The share, including the time that the host of a virtual machine takes; None if it is unknown.
    """

    def __enter__(self):
        self.share = None
        self._start = (_busy_seconds(), _own_seconds(), time.monotonic())
        return self

    def __exit__(self, *exception):
        busy, own, clock = _busy_seconds(), _own_seconds(), time.monotonic()
        if busy is not None:
            others = (busy - self._start[0]) - (own - self._start[1])
            self.share = min(max(others / ((clock - self._start[2]) * (os.cpu_count() or 1)), 0.0), 1.0)


def _busy_seconds():
    """Return the busy seconds of all processors together."""
    if not os.path.exists("/proc/stat"):
        return None
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, interrupt, soft, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + interrupt + soft + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds():
    """Return the processor time of this process and its ended children."""
    return sum(os.times()[:4])
