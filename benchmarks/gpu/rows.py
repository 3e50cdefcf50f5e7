"""Rows of `benchmarks.gpu`: correctness first, then the most important measurements, small models before large ones."""

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_DETERMINISTIC = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}


@dataclasses.dataclass(frozen=True)
class Row:
    """Row: a check or a measurement.

    Attributes:
        name: Name of the row.
        worker: Name of a function of `benchmarks.gpu.worker`.
        processes: Arguments of each process of the row. The processes run one after the other.
        limit: Time limit of each process in seconds.
        environment: Environment variables of the processes.
    """

    name: str
    worker: str
    processes: tuple[dict[str, Any], ...]
    limit: float = 240.0  # the first compilation of a step, with the search for kernels, takes up to two minutes
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _resume(tiny: bool) -> Row:
    path = str(Path(tempfile.gettempdir()) / "keras_vit_gpu_resume.npz")
    killed, resumed = {"path": path, "kill": True, "exit_code": -9}, {"path": path, "kill": False}
    return Row("resume", "resume", ({**killed, "tiny": tiny}, {**resumed, "tiny": tiny}), environment=_DETERMINISTIC)


def _training(variant: str, optimizer: str, remat: str = "none", peer: bool = False) -> list[Row]:
    name = f"training-{variant}-{optimizer}" + ("-remat" if remat != "none" else "")
    arguments = {"variant": variant, "optimizer": optimizer, "remat": remat, "tiny": False}
    rows = [Row(name, "training", (arguments,))]
    return [*rows, Row(f"{name}-timm", "timm_training", (arguments,))] if peer else rows


def _pretraining(variant: str, remat: str = "none") -> Row:
    name = f"pretraining-mae-{variant}" + ("-remat" if remat != "none" else "")
    arguments = {"variant": variant, "optimizer": "adamw", "remat": remat, "tiny": False, "task": "mae"}
    return Row(name, "training", (arguments,))


def _inference(variant: str, peer: bool = False) -> list[Row]:
    arguments = {"variant": variant, "batches": [1, 32, 256], "tiny": False}
    rows = [Row(f"inference-{variant}", "inference", (arguments,))]
    return [*rows, Row(f"inference-{variant}-timm", "timm_inference", (arguments,))] if peer else rows


ROWS = [
    Row("correctness", "correctness", ({"trajectories": ["traj_sgd_float32", "traj_sgd_bfloat16", "traj_adamw"]},)),
    _resume(tiny=False),
    *_training("ViT-S/16", "adamw", peer=True),
    *_training("ViT-B/16", "adamw", peer=True),
    Row("attention", "attention", ({"tokens": [196, 197, 577, 1025]},)),
    *_inference("ViT-B/16", peer=True),
    _pretraining("ViT-B/16"),
    *_training("ViT-B/16", "sgd"),
    *_training("ViT-B/16", "adamw", remat="blocks"),
    *_training("ViT-S/16", "sgd"),
    *_training("R50+ViT-B/16", "sgd"),
    *_training("BiT-R50x1", "sgd"),
    *_inference("ViT-S/16", peer=True),
    _pretraining("ViT-B/16", remat="blocks"),
    *_training("ViT-S/16", "adamw", remat="blocks"),
    *_inference("R50+ViT-B/16"),
    *_inference("BiT-R50x1"),
]
_TINY = [
    Row("correctness", "correctness", ({"trajectories": ["traj_sgd_float32"], "models": ["vit_token_linen"]},)),
    _resume(tiny=True),
    Row("speed", "everything", ({"variant": "ViT-S/16", "optimizer": "adamw", "batches": [1, 2], "tokens": [5]},)),
]
TINY = [dataclasses.replace(row, limit=3600.0) for row in _TINY]  # a busy machine is not a failure
