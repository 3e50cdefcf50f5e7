"""Rates of the machine, which bound every step: `machine.py machine WORK`.

The matrix products have the shapes of the model's blocks. PyTorch computes them, because it uses the processor's matrix
instructions (AMX) even if the weights change. Products without a fast implementation, such as bfloat16 on AVX2, are
left out, because they would take minutes.
"""

import os
import time

from worker import SIZES, Step, Work, serve

_SECONDS = 0.2  # per rate
_SLOW = 2.0  # seconds for all products
_COPIED = 2**26  # numbers: 256 MiB, larger than the caches


def machine(work: Work) -> Step:
    """Return a step that measures products and copies per second, with one thread and with all threads."""
    import torch

    patch, hidden, _, _, mlp = SIZES[work.model]
    rows = work.batch * ((work.image_size // patch) ** 2 + 1)
    shapes = ((hidden, 3 * hidden), (hidden, hidden), (hidden, mlp), (mlp, hidden))  # the four products of a block
    operations = 2 * rows * sum(inputs * outputs for inputs, outputs in shapes)
    products, slow = {}, []
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        pairs = [(torch.rand(rows, shape[0]).to(dtype), torch.rand(shape).to(dtype)) for shape in shapes]
        few, right = pairs[0][0][:64], pairs[0][1]
        seconds = min(_timed(lambda few=few, right=right: few @ right) for _ in range(2))
        estimate = seconds * operations / (2 * len(few) * hidden * 3 * hidden)
        if estimate > _SLOW:
            slow.append(f"{name} products are left out: they would take {estimate:.0f} s")
            continue
        products[name] = lambda pairs=pairs: [left @ right for left, right in pairs]
    source, copy = torch.rand(_COPIED), torch.empty(_COPIED)
    threads = sorted({1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1})

    def measure():
        rates, started = {}, time.perf_counter()
        for count in threads:
            torch.set_num_threads(count)
            with torch.inference_mode():
                for name, multiply in products.items():
                    rates[f"{name}, {count} threads"] = operations / _seconds(multiply)
                rates[f"memory, {count} threads"] = 8 * _COPIED / _seconds(lambda: copy.copy_(source))
        return {"seconds": time.perf_counter() - started, "rates": rates, "note": "; ".join(slow)}

    return measure


def _seconds(function) -> float:
    """Return the minimum time of a call."""
    function()  # packs weights, allocates
    best, end = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        best = min(best, _timed(function))
    return best


def _timed(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    serve({"machine": machine})
