"""The same measurements for timm with `torch.compile` and scaled-dot-product attention, if they are installed."""

import functools
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gpu import speed
from keras_vit.training.planning import cost

NAMES = {"ViT-B/16": "vit_base_patch16_224", "ViT-S/16": "vit_small_patch16_224"}
TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 10}


def missing(tiny: bool) -> str | None:
    """Return the missing requirements, or None. Tiny models also run on a CPU."""
    absent = [name for name in ("torch", "timm") if importlib.util.find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed"
    import torch

    return None if tiny or torch.cuda.is_available() else "no GPU for PyTorch"


def training(variant: str, optimizer: str, remat: str = "none", tiny: bool = False) -> dict[str, Any]:
    """Measure compiled training steps in bfloat16 with growing batches; see `speed.best_batch`."""
    if reason := missing(tiny):
        return {"skipped": reason}
    import torch

    def of_batch(batch_size: int) -> dict[str, Any]:
        torch.cuda.empty_cache()  # after the model of the previous batch size is deleted
        seconds, memory = _training(variant, optimizer, remat, batch_size, tiny)
        rates = speed.rates(batch_size / seconds, cost.of_variant(variant))
        return {"batch_size": batch_size, **rates, "peak_bytes": memory, **_versions()}

    return speed.best_batch(of_batch, tiny)


def _training(variant: str, optimizer: str, remat: str, batch_size: int, tiny: bool) -> tuple[float, int | None]:
    """Return the seconds per step and the peak memory of the device in bytes."""
    import torch

    device = _device()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    model = _model(variant, tiny).to(device)
    model.set_grad_checkpointing(remat == "blocks")
    optimizers = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    rule = optimizers[optimizer](model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    compiled = torch.compile(model)
    images = torch.rand(batch_size, 3, *model.patch_embed.img_size, device=device) * 2 - 1
    labels = torch.randint(0, model.num_classes, (batch_size,), device=device)

    def step():
        with torch.autocast(device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(compiled(images), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        rule.step()
        rule.zero_grad(set_to_none=True)

    seconds = _median(step, 0.2 if tiny else speed.SECONDS)
    return seconds, torch.cuda.max_memory_allocated() if device.type == "cuda" else None


def inference(variant: str, batches: list[int], tiny: bool = False) -> dict[str, Any]:
    """Measure compiled inference in bfloat16; see `speed.inference`."""
    if reason := missing(tiny):
        return {"skipped": reason}
    import torch

    device, found = _device(), {}
    model = _model(variant, tiny).to(device).eval().to(torch.bfloat16)
    compiled = torch.compile(model)
    with torch.inference_mode():
        for batch_size in batches:
            images = torch.rand(batch_size, 3, *model.patch_embed.img_size, device=device, dtype=torch.bfloat16)
            seconds = _median(functools.partial(compiled, images), 0.1 if tiny else speed.SECONDS / 2)
            found[str(batch_size)] = round(1e3 * seconds, 3)
    return {"ms_per_batch": found, **_versions()}


def _device() -> Any:
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _model(variant: str, tiny: bool) -> Any:
    import timm

    return timm.create_model(NAMES[variant], **(TINY if tiny else {}))


def _median(function: Callable[[], Any], seconds: float) -> float:
    """Return the median time of a call over five rounds, after warm-up calls."""
    import torch

    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for _ in range(3):
        function()
    wait()
    start = time.perf_counter()
    function()
    wait()
    calls, times = max(1, int(seconds / 5 / (time.perf_counter() - start))), []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        wait()
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times)


def _versions() -> dict[str, str]:
    import timm
    import torch

    return {"torch": torch.__version__, "timm": timm.__version__}
