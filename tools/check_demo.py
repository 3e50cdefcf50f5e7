"""Check the output of `make demo`: the report pages, and the test accuracy of the model and of both artifacts.

python -m tools.check_demo demo
"""

import json
import os
import subprocess
import sys

ACCURACY = 0.975
MODELS = ("run", "saved_model/digits", "digits.tflite")
PAGES = ("report/report.html", "run/report.png")


def check(directory: str) -> None:
    """Raise an error if a file is missing or the accuracy of a model is below `ACCURACY`."""
    for name in (*PAGES, *MODELS):
        path = os.path.join(directory, name)
        if not os.path.exists(path):
            raise FileNotFoundError(f"`make demo` must write {path!r}. The file does not exist.")
    for name in MODELS:
        accuracy = evaluate(os.path.join(directory, name))
        print(f"{name}: accuracy {accuracy:.2%}")
        if accuracy < ACCURACY:
            raise ValueError(f"{name} must have an accuracy of at least {ACCURACY:.1%}. Received: {accuracy:.2%}.")


def evaluate(model: str) -> float:
    """Return the accuracy that `keras-vit evaluate` measures."""
    command = [sys.executable, "-m", "keras_vit", "evaluate", f"--model={model}", "--json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["accuracy"]


if __name__ == "__main__":
    check(sys.argv[1])
