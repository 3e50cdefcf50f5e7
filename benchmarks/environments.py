"""An environment of its own for each system, made from the package index with pinned versions."""

import dataclasses
import hashlib
import subprocess
import sys
from pathlib import Path

from absl import logging


@dataclasses.dataclass(frozen=True)
class Peer:
    """What a peer needs.

    Attributes:
        packages: Installed with what they require.
        alone: Installed without what they require, where that would bring another build of TensorFlow along.
    """

    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()


_KERAS = ("tensorflow-cpu==2.21.0", "keras==3.15.1")
_TORCH = "torch==2.14.1"

# What this package requires itself.
_OWN = ("keras==3.15.1", "absl-py", "h5py", "ml_dtypes")

PEERS = {
    # This package as well, so that nothing else that happens to be installed is imported along: Keras and TensorFlow
    # import matplotlib, scikit-learn and JAX where they find them.
    "keras_vit": Peer(packages=("tensorflow-cpu==2.21.0", *_OWN)),
    "keras_vit_jax": Peer(packages=("jax[cpu]==0.10.2", *_OWN)),
    # keras-hub requires tensorflow-text, which requires `tensorflow`; its vision models use neither.
    "keras_hub": Peer(
        packages=(*_KERAS, "packaging", "regex", "tokenizers", "sentencepiece", "kagglehub", "kagglesdk==0.1.28"),
        alone=("keras-hub==0.32.0",),
    ),
    "vit_keras": Peer(packages=(*_KERAS, "scipy", "validators", "opencv-python-headless"), alone=("vit-keras==0.2.0",)),
    "timm": Peer(packages=(_TORCH, "torchvision==0.29.1", "timm==1.0.31")),
    # Without torchvision: its models do not need it.
    "transformers": Peer(packages=(_TORCH, "transformers==5.23.0")),
}
SAME = {"timm_compiled": "timm"}  # systems that run in another's environment


def ensure(system: str, folder: Path) -> str:
    """Returns the Python of a system's environment, which is made first where it is not there or out of date.

    Args:
        system: A key of `PEERS` or `SAME`.
        folder: Where the environments are.

    Raises:
        RuntimeError: If pip fails.
    """
    name = SAME.get(system, system)
    peer = PEERS[name]
    home = folder / name
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    stamp = home / "installed"
    wanted = fingerprint(peer)
    if stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    logging.info("Installing %s into %s (once; a minute or more)", ", ".join(peer.packages + peer.alone), home)
    _run([sys.executable, "-m", "venv", "--clear", str(home)], name)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *peer.packages], name)
    if peer.alone:
        _run([*pip, "--no-deps", *peer.alone], name)
    stamp.write_text(wanted)
    return str(python)


def fingerprint(peer: Peer) -> str:
    """What an environment must have been made from to be used again."""
    return hashlib.sha256(repr((peer, sys.version)).encode()).hexdigest()


def _run(command, name):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise RuntimeError(f"The environment of {name} could not be made ({' '.join(command[:4])} ...): {last}")
