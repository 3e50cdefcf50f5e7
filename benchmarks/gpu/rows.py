"""Rows of `benchmarks.gpu`, in the order of their importance."""

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_DETERMINISTIC = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: Name of the row.
        worker: A function of `benchmarks.gpu.worker`.
        processes: Arguments of each process that the row starts, one after the other.
        limit: Largest number of seconds of one process.
        environment: Environment variables.
    """

    name: str
    worker: str
    processes: tuple[dict[str, Any], ...]
    limit: float = 100.0
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _resume(tiny: bool) -> Row:
    path = str(Path(tempfile.gettempdir()) / "keras_vit_gpu_resume.npz")
    killed, resumed = {"path": path, "kill": True, "exit_code": -9}, {"path": path, "kill": False}
    return Row("resume", "resume", ({**killed, "tiny": tiny}, {**resumed, "tiny": tiny}), environment=_DETERMINISTIC)


def _training(variant: str, optimizer: str, remat: str = "none", peer: bool = True) -> list[Row]:
    name = f"training-{variant}-{optimizer}" + ("-remat" if remat != "none" else "")
    arguments = {"variant": variant, "optimizer": optimizer, "remat": remat, "tiny": False}
    rows = [Row(name, "training", (arguments,))]
    return [*rows, Row(f"{name}-timm", "timm_training", (arguments,))] if peer else rows


def _inference(variant: str) -> Row:
    return Row(f"inference-{variant}", "inference", ({"variant": variant, "batches": [1, 32, 256], "tiny": False},))


ROWS = [
    Row("correctness", "correctness", ({"trajectories": ["traj_sgd_float32", "traj_sgd_bfloat16", "traj_adamw"]},)),
    _resume(tiny=False),
    *_training("ViT-B/16", "adamw"),
    *_training("ViT-S/16", "adamw"),
    Row("attention", "attention", ({"tokens": [196, 197, 577, 1025]},)),
    _inference("ViT-B/16"),
    Row(
        "inference-ViT-B/16-timm", "timm_inference", ({"variant": "ViT-B/16", "batches": [1, 32, 256], "tiny": False},)
    ),
    *_training("ViT-B/16", "sgd", peer=False),
    *_training("ViT-B/16", "adamw", remat="blocks", peer=False),
    *_training("ViT-S/16", "sgd", peer=False),
    *_training("R50+ViT-B/16", "sgd", peer=False),
    *_training("BiT-R50x1", "sgd", peer=False),
    _inference("ViT-S/16"),
]
_TINY = [
    Row("correctness", "correctness", ({"trajectories": ["traj_sgd_float32"], "models": ["vit_token_linen"]},)),
    _resume(tiny=True),
    Row("speed", "everything", ({"variant": "ViT-Ti/16", "optimizer": "adamw", "batches": [1, 2], "tokens": [5]},)),
]
TINY = [dataclasses.replace(row, limit=3600.0) for row in _TINY]  # a busy machine is no failure
