"""What a machine is, in words, for results that are worth nothing without it."""

import os
import platform


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
