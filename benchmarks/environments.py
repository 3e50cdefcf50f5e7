"""Virtual environments with pinned versions, one for each measured package."""

import dataclasses
import hashlib
import subprocess
import sys
from pathlib import Path

from absl import logging


@dataclasses.dataclass(frozen=True)
class Environment:
    """Requirements of an environment.

    Attributes:
        packages: Packages to install with their dependencies.
        alone: Packages to install without their dependencies, which would install another build of TensorFlow.
    """

    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()


_KERAS = ("tensorflow-cpu==2.21.0", "keras==3.15.1")
_TORCH = "torch==2.14.1"

_OWN = ("keras==3.15.1", "absl-py", "filelock", "h5py", "ml_dtypes", "safetensors", "scipy")
_FORMATS = (
    *("onnx==1.23.2", "onnxruntime==1.32.0", "tf2onnx==1.17.0", "openvino==2026.4.1", "ai-edge-litert==2.3.0"),
    *("simplejpeg", "pillow"),
)

ENVIRONMENTS = {
    # Also for this package, because Keras and TensorFlow import matplotlib, scikit-learn and JAX if they are installed.
    "keras_vit": Environment(packages=("tensorflow-cpu==2.21.0", *_OWN)),
    "keras_vit_exports": Environment(
        packages=("tensorflow-cpu==2.21.0", *_OWN, *_FORMATS),
    ),
    "keras_vit_jax": Environment(packages=("jax[cpu]==0.10.2", *_OWN)),
    # keras-hub requires tensorflow-text, which requires `tensorflow`; its vision models use neither.
    "keras_hub": Environment(
        packages=(*_KERAS, "packaging", "regex", "tokenizers", "sentencepiece", "kagglehub", "kagglesdk==0.1.28"),
        alone=("keras-hub==0.32.0",),
    ),
    "vit_keras": Environment(
        packages=(*_KERAS, "scipy", "validators", "opencv-python-headless"), alone=("vit-keras==0.2.0",)
    ),
    "timm": Environment(packages=(_TORCH, "torchvision==0.29.1", "timm==1.0.31")),
    # Without torchvision, which the models do not need.
    "transformers": Environment(packages=(_TORCH, "transformers==5.23.0")),
    "peft": Environment(packages=(_TORCH, "transformers==5.23.0", "peft==0.21.2")),
}
# Systems that share an environment. Systems that only use Keras need no other packages.
SAME = {"timm_compiled": "timm", "keras_directory": "keras_vit", "keras_hub_guide": "keras_vit"}


def ensure(system: str, directory: Path) -> str:
    """Create or update the environment of a system, and return its interpreter.

    Args:
        system: A key of `ENVIRONMENTS` or `SAME`.
        directory: Parent directory of the environments.

    Raises:
        RuntimeError: If the environment cannot be created.
    """
    name = SAME.get(system, system)
    environment = ENVIRONMENTS[name]
    home = directory / name
    python, stamp = home / "bin" / "python", home / "installed"
    wanted = fingerprint(environment)
    if stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    logging.info("Installing %s into %s", ", ".join(environment.packages + environment.alone), home)
    _run([sys.executable, "-m", "venv", "--clear", str(home)], name)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *environment.packages], name)
    if environment.alone:
        _run([*pip, "--no-deps", *environment.alone], name)
    stamp.write_text(wanted)
    return str(python)


def fingerprint(environment: Environment) -> str:
    """Return a string that identifies the requirements and the Python version."""
    return hashlib.sha256(repr((environment, sys.version)).encode()).hexdigest()


def _run(command, name):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise RuntimeError(f"Cannot make the environment of {name} ({' '.join(command[:4])} ...): {last}")
