"""The models on Keras' torch backend: golden outputs, `fit`, checkpoints in and out. In a separate process.

PyTorch for Linux brings gigabytes of CUDA libraries, so that these tests are among those of the extra [interop]:
`pip install -e '.[torch]'`, then `pytest -m interop tests/models/test_torch.py`. Nothing here needs TensorFlow.
"""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.interop

PROGRAM = """
import sys
import tempfile

import keras
import numpy as np

import keras_vit
from keras_vit import recipe
from keras_vit.layers.kernels.choice import uses_kernel
from keras_vit.training import create
from tests.checkpoints import files

assert keras.backend.backend() == "torch" and not uses_kernel("attention")
to_numpy = keras.ops.convert_to_numpy

# Single-precision sums in another order.
for name in ("vit_token_linen", "hybrid_blocks", "bv_map", "bit_big_vision", "hf_vit", "vit_pytorch_simple"):
    arguments, images, logits = files.golden_case(name)
    arguments = {"num_heads": 3} if name.startswith("vit_pytorch") else arguments
    model = keras_vit.model_from_checkpoint(files.golden_path(name), **arguments)
    np.testing.assert_allclose(to_numpy(model(images)), logits, rtol=1e-4, atol=1e-5)
    print(name)

rng = np.random.default_rng(0)
model = keras_vit.VisionTransformer(
    4, 16, 2, 2, 24, image_size=8, classes=3, dropout_rate=0.1, remat="none", drop_path_rate=0.1
)
images, labels = rng.uniform(-1, 1, (12, 8, 8, 3)).astype("float32"), rng.integers(0, 3, 12)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(images, labels, epochs=30, batch_size=12, verbose=0).history["loss"]
assert history[-1] < 0.9 * history[0], history
print("fit")

with tempfile.TemporaryDirectory() as folder:
    for path in (f"{folder}/model.npz", f"{folder}/model.keras"):
        if path.endswith(".npz"):
            keras_vit.save_checkpoint(model, path)
        else:
            model.save(path)
        again = keras_vit.model_from_checkpoint(path)
        np.testing.assert_array_equal(to_numpy(again(images)), to_numpy(model(images)))
print("checkpoints")

try:
    create.create(recipe.Recipe())
except ValueError as error:
    assert "torch" in str(error)
    print("no training programs")
assert "tensorflow" not in sys.modules or not hasattr(sys.modules["tensorflow"], "__version__")
"""


def run(*arguments):
    """Run Python on the torch backend."""
    pytest.importorskip("torch", exc_type=ImportError)
    root = pathlib.Path(__file__).parents[2]
    environment = {**os.environ, "KERAS_BACKEND": "torch", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_models_run_on_the_torch_backend():
    assert run("-c", PROGRAM).split("\n")[-2] == "no training programs"


def test_surgery_tests_pass_on_the_torch_backend():
    # Without conftest.py, which imports TensorFlow.
    run("-m", "pytest", "--noconftest", "-q", "-m", "not exhaustive", "tests/models/test_surgery.py")
