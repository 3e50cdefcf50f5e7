"""Process of `benchmarks.gpu`: runs a function of `WORKERS` and prints its result as a line of JSON."""

import json
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.gpu import correctness, peers, speed


def everything(variant: str, optimizer: str, batches: list[int], tokens: list[int]) -> dict[str, Any]:
    """Run all measurements at tiny sizes."""
    return {
        **speed.training(variant, optimizer, remat="blocks", tiny=True),
        **speed.inference(variant, batches, tiny=True),
        **speed.attention(tokens, tiny=True),
        "mae": speed.training(variant, optimizer, tiny=True, task="mae"),
        "timm": peers.training(variant, optimizer, remat="blocks", tiny=True),
        "timm_inference": peers.inference(variant, batches, tiny=True),
    }


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "correctness": correctness.correctness,
    "resume": correctness.resume,
    "training": speed.training,
    "inference": speed.inference,
    "attention": speed.attention,
    "everything": everything,
    "timm_training": peers.training,
    "timm_inference": peers.inference,
}

if __name__ == "__main__":
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    arguments.pop("exit_code", None)
    sys.stdout.write(json.dumps(WORKERS[name](**arguments)) + "\n")
