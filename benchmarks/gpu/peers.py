"""The same figures of timm with `torch.compile` and scaled-dot-product attention, where they are installed."""

import importlib.util
import statistics
import time
from typing import Any

from benchmarks.gpu import speed
from keras_vit.planning import cost

NAMES = {"ViT-B/16": "vit_base_patch16_224", "ViT-S/16": "vit_small_patch16_224"}


def missing() -> str | None:
    """Return what is missing on this machine, None if nothing is."""
    absent = [name for name in ("torch", "timm") if importlib.util.find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed"
    import torch

    return None if torch.cuda.is_available() else "no GPU for PyTorch"


def training(variant: str, optimizer: str, remat: str = "none", tiny: bool = False) -> dict[str, Any]:
    """Measure compiled training steps in bfloat16; see `speed.training`."""
    if reason := missing():
        return {"skipped": reason}
    import timm
    import torch

    device = torch.device("cuda")
    optimizers = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    for batch_size in speed.BATCHES:
        try:
            model = timm.create_model(NAMES[variant]).to(device)
            rule = optimizers[optimizer](model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
            compiled = torch.compile(model)
            images = torch.rand(batch_size, 3, 224, 224, device=device) * 2 - 1
            labels = torch.randint(0, 1000, (batch_size,), device=device)

            def step(rule=rule, compiled=compiled, images=images, labels=labels, model=model):
                with torch.autocast("cuda", torch.bfloat16):
                    loss = torch.nn.functional.cross_entropy(compiled(images), labels)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
                rule.step()
                rule.zero_grad(set_to_none=True)

            seconds = _median(step, speed.SECONDS)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            continue
        rates = speed.rates(batch_size / seconds, cost.of_variant(variant))
        return {"batch_size": batch_size, **rates, "peak_bytes": torch.cuda.max_memory_allocated(), **_versions()}
    raise MemoryError(f"{variant} does not fit.")


def inference(variant: str, batches: list[int], tiny: bool = False) -> dict[str, Any]:
    """Measure compiled inference in bfloat16; see `speed.inference`."""
    if reason := missing():
        return {"skipped": reason}
    import timm
    import torch

    model = timm.create_model(NAMES[variant]).cuda().eval().to(torch.bfloat16)
    compiled, found = torch.compile(model), {}
    with torch.inference_mode():
        for batch_size in batches:
            images = torch.rand(batch_size, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
            found[str(batch_size)] = round(1e3 * _median(lambda images=images: compiled(images), speed.SECONDS / 2), 3)
    return {"ms_per_batch": found, **_versions()}


def _median(function, seconds: float) -> float:
    """Return the median time of a call over five rounds, the first calls left out."""
    import torch

    for _ in range(3):
        function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    calls, times = max(1, int(seconds / 5 / (time.perf_counter() - start))), []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times)


def _versions() -> dict[str, str]:
    import timm
    import torch

    return {"torch": torch.__version__, "timm": timm.__version__}
