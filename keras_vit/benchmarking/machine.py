"""What a machine is, in words, for results that are worth nothing without it."""

import os
import platform
import time


def describe() -> str:
    """The number of cores, the processor, its vector extensions and the memory, as far as the system tells."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [f"{cores} cores of {_processor()}"]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        parts.append(f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB")
    parts.append(f"{platform.system()}, Python {platform.python_version()}")
    return ", ".join(parts)


def _processor():
    name, extensions = platform.processor() or platform.machine(), []
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            values = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
        values = {key.strip(): value.strip() for key, value in values.items()}
        name = values.get("model name", name)
        present = values.get("flags", "").split()
        extensions = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in present]
    return f"{name} ({', '.join(extensions)})" if extensions else name


class Watch:
    """Watches how much of the processors goes to programs other than this one and what it starts.

    `others` is their share, with what a virtual machine's host takes; None where the system does not tell. Figures that
    were measured while it was more than a few percent are worth little.
    """

    def __enter__(self):
        self._start = (_busy_seconds(), _own_seconds(), time.monotonic())
        self.others = None
        return self

    def __exit__(self, *exception):
        busy, own, clock = (
            now - before if now is not None else None
            for now, before in zip((_busy_seconds(), _own_seconds(), time.monotonic()), self._start, strict=True)
        )
        if busy is not None and clock:
            self.others = min(max((busy - own) / (clock * os.cpu_count()), 0.0), 1.0)


def _busy_seconds():
    """Seconds that all processors together have not been idle."""
    if not os.path.exists("/proc/stat"):
        return None
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, interrupt, soft, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + interrupt + soft + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds():
    """Seconds of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
