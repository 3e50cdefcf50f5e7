"""Compare the peak memory of training on a CPU with the estimate of `keras-vit train`.

    python -m benchmarks.step_memory          # all recipes, a process each; writes benchmarks/step_memory.json
    python -m benchmarks.step_memory vit mae  # some of them

`keras-vit train` compares its estimate with the memory of the machine. Here, each recipe trains two steps on enlarged
digits, saves a checkpoint and the model, and exits. The measured memory is the peak resident memory of the process
minus the resident memory after the libraries were loaded. It does not depend on the load of the machine.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from keras_vit import recipe as recipes
from keras_vit.util import file_io, formatting

FILE = os.path.join(os.path.dirname(__file__), "step_memory.json")
CLASSES = 10
_ADAMW, _SGD = recipes.Optim("adamw", 1e-3), recipes.Optim("sgd", 1e-3, momentum=0.9, clip_norm=1.0)
_PARTS = recipes.Optim("adamw", 1e-3, ema_momentum=0.99, accumulation_steps=4)


def _recipe(variant: str, size: int, batch_size: int, optim: recipes.Optim, **fields) -> recipes.Recipe:
    pp = f"resize({size})|grayscale_to_rgb|value_range(-1, 1)"
    data = recipes.Data("digits", "train[:256]", "test[:8]", pp, pp, batch_size, eval_batch_size=8)
    model = recipes.Model(variant, size)
    return recipes.Recipe(total_steps=2, deterministic=False, model=model, data=data, optim=optim, **fields)


RECIPES = {
    "ViT": _recipe("ViT-S/16", 224, 32, _ADAMW),
    "ViT in bfloat16": _recipe("ViT-B/16", 224, 8, _SGD, precision="mixed_bfloat16"),
    "BiT": _recipe("BiT-R50x1", 160, 16, _SGD),
    "MAE": _recipe("ViT-S/16", 224, 16, _ADAMW, task="mae()"),
    "ViT in parts": _recipe("ViT-B/16", 224, 16, _PARTS),
}


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--measure"]:
        sys.stdout.write(json.dumps(_measure(RECIPES[arguments[1]])))
        return
    measured = file_io.read_json(FILE) if os.path.exists(FILE) else {}
    for name in arguments or RECIPES:
        command = [sys.executable, "-m", "benchmarks.step_memory", "--measure", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        measured[name] = json.loads(done.stdout.splitlines()[-1])
        file_io.write_json(FILE, measured)
    sys.stdout.write(table(measured) + "\n")


def table(measured: dict[str, float]) -> str:
    """Return a Markdown table of the measurements and the estimates in bytes."""
    from keras_vit.training.planning import plan

    rows = []
    for name, value in measured.items():
        recipe, expected = RECIPES[name], plan.of_recipe(RECIPES[name], CLASSES).total_bytes()
        what = f"{recipe.model.variant}, {recipe.model.image_size} px, batch {recipe.data.batch_size}"
        rows.append((name, what, f"{expected / 1e9:.2f} GB", f"{value / 1e9:.2f} GB", f"{expected / value:.2f}"))
    return formatting.markdown_table(("recipe", "model", "estimate:", "measured:", "ratio:"), rows)


def _measure(recipe: recipes.Recipe) -> int:
    from benchmarks.workers.worker import peak_bytes
    from keras_vit.training import train

    before = peak_bytes() or 0
    with tempfile.TemporaryDirectory() as folder:
        train.train(recipe, os.path.join(folder, "run"), distribute="one_device")
    return (peak_bytes() or 0) - before


if __name__ == "__main__":
    main(sys.argv[1:])
