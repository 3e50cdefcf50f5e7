"""Process that runs one step for each line on standard input and prints its time as JSON.

Workers do not import this package at the top, because they also run in the environments of other packages. Start a
worker with `python WORKER.py SYSTEM WORK`, where `WORK` contains the fields of `Work` as JSON.
"""

import dataclasses
import importlib
import importlib.metadata
import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Step = Callable[[], Any]  # a step returns nothing, or a dictionary with its "seconds"
CLASSES = 1000
PACKAGES = (
    *("keras", "tensorflow", "tensorflow-cpu", "jax", "numpy", "ai-edge-litert"),
    *("keras-hub", "vit-keras", "torch", "torchvision", "pillow", "timm", "transformers", "peft"),
)
# Libraries that are loaded first, to measure their memory separately from the memory of the work.
IMPORTS = {
    "keras_vit": ("tensorflow", "keras_vit"),
    "keras_vit_tasks": ("tensorflow", "keras_vit"),
    "keras_hub": ("tensorflow", "keras_hub"),
    "keras_directory": ("tensorflow", "keras"),
    "keras_hub_guide": ("tensorflow", "keras"),
    "vit_keras": ("tensorflow", "vit_keras"),
    "timm": ("timm",),
    "timm_compiled": ("timm",),
    "transformers": ("torch", "transformers"),
    "peft": ("torch", "transformers", "peft"),
}
# Patch size, width, layers, heads and MLP width.
SIZES = {
    "ViT-Ti/16": (16, 192, 12, 3, 768),
    "ViT-S/16": (16, 384, 12, 6, 1536),
    "ViT-B/16": (16, 768, 12, 12, 3072),
}


@dataclasses.dataclass(frozen=True)
class Work:
    """Work of a step.

    Attributes:
        task: `"inference"`, `"training"`, a task of a recipe (`"mae"`), or an argument of `adapt` (`"all"`).
        model: Name of the model.
        batch: Images per step.
        precision: `"float32"` or `"bfloat16"`, or the precision of a TFLite file.
        image_size: Height and width of the images.
        arguments: Additional arguments of this package's model.
        without: Name of this package's kernel that is replaced by its plain formula in training.
        folder: Directory of image files, with a folder per class.
    """

    task: str = "inference"
    model: str = "ViT-B/16"
    batch: int = 1
    precision: str = "float32"
    image_size: int = 224
    arguments: dict = dataclasses.field(default_factory=dict)
    without: str | None = None
    folder: str = ""


def serve(systems: Mapping[str, Callable[[Work], Step]], warm_up: int = 2) -> None:
    """Build the system that is named on the command line, then run a step for each line on standard input.

    Args:
        systems: Functions by name that take a `Work` and return a step. A step is a function without arguments. It can
            return a dictionary with its `"seconds"`; otherwise, `serve` measures the time of the call.
        warm_up: Number of steps before the first measured step.
    """
    name, work = sys.argv[1], Work(**json.loads(sys.argv[2]))
    try:
        for library in IMPORTS.get(name, ()):
            importlib.import_module(library)
        libraries = peak_bytes()
        step = systems[name](work)
        for _ in range(warm_up):
            step()
    except Exception as error:  # any error of the package; the other systems continue
        _say(error=f"{type(error).__name__}: {error}", versions=versions())
        return
    _say(ready=True, versions=versions())
    for _ in sys.stdin:
        try:
            start = time.perf_counter()
            result = step()
            seconds = time.perf_counter() - start
        except Exception as error:
            _say(error=f"{type(error).__name__}: {error}")
            return
        memory = {"peak_bytes": peak_bytes(), "library_bytes": libraries}
        _say(**{"seconds": seconds, **memory, **(result if isinstance(result, dict) else {})})


def _say(**values):
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def peak_bytes() -> int | None:
    """Return the peak resident memory of this process."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # not Linux; on Linux, ru_maxrss starts at the memory of the parent
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def versions() -> dict[str, str]:
    """Return the versions of the installed packages of `PACKAGES`."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def keras_hub_model(work: Work) -> Any:
    """Return keras-hub's classifier of the same size, with random weights."""
    import keras_hub

    patch, hidden, layers, heads, mlp = SIZES[work.model]
    dtype = keras_policy(work)
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(work.image_size, work.image_size, 3),
        patch_size=patch,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=hidden,
        mlp_dim=mlp,
        dtype=dtype,
    )
    return keras_hub.models.ViTImageClassifier(backbone, num_classes=CLASSES, preprocessor=None, dtype=dtype)


def keras_policy(work: Work) -> str:
    """Return the dtype policy. Weights are float32 in training, and bfloat16 in bfloat16 inference, as in PyTorch."""
    if work.precision == "bfloat16":
        return "bfloat16" if work.task == "inference" else "mixed_bfloat16"
    return "float32"
