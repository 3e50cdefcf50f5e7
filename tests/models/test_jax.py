"""The same models on Keras' JAX backend: golden equality, policies, gradients. In a separate process."""

import subprocess
import sys

import pytest

from tests.on_jax import ON_JAX

PROGRAM = """
import keras, numpy as np, jax
from tests import golden_data
from tests.models import variants
from tests.models import test_todays_vits
from tests.models.test_golden import TOLERANCE, assign, by_path, model_of
import keras_vit

assert keras.backend.backend() == "jax"
for name in ("hybrid_blocks",):
    data = golden_data.load(name)
    model = model_of(data["meta"])
    assign(model, by_path(golden_data.params(data)))
    np.testing.assert_allclose(model.predict(data["image"], verbose=0), data["logits"], **TOLERANCE)
    print(name)

for name in ("hf_dinov3_gated", "hf_siglip_head72"):  # `make test-jax` takes all
    test_todays_vits.check(name)
    print(name)
test_todays_vits.check("hf_dinov3_wide", any_size=True)

data = golden_data.load("bit_big_vision")
meta = data["meta"]
model = keras_vit.BiTResNet(meta["depth"], meta["width"], image_size=data["image"].shape[1:3], classes=meta["classes"])
assign(model, by_path(golden_data.params(data)))
np.testing.assert_allclose(model.predict(data["image"], verbose=0), data["logits"], **TOLERANCE)
print("bit")

# Each policy computes in its dtype, and the outcome is the float32 one within bfloat16's eight bits.
for policy in ("mixed_bfloat16",):
    exact, model = variants.make("registers"), variants.make("registers", policy)
    images = variants.images(exact)
    expected, got = exact.predict(images, verbose=0), model.predict(images, verbose=0)
    assert np.abs(got.astype("float32") - expected).max() < 0.1 * np.abs(expected).max()
    print(policy)

# A whole training step, with dropout, recomputed blocks and a gradient for every variable.
for name in ("dropout", "dinov3"):
    model = variants.make(name, remat="blocks")
    images = variants.images(model, batch=8)
    trained = [v.value for v in model.trainable_variables]
    others = [v.value for v in model.non_trainable_variables]

    def loss(trained):
        outputs, _ = model.stateless_call(trained, others, images, training=True)
        return (outputs**2).sum()

    value, gradients = jax.jit(jax.value_and_grad(loss))(trained)
    assert np.isfinite(value)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        assert variable.path.endswith("key/bias") or np.abs(gradient).max() > 0, variable.path
    print("gradient", name)

model = variants.make("token")
model.compile("sgd", "mse")
images = variants.images(model, batch=4)
try:
    model.fit(np.zeros((4, 40, 40, 3), "float32"), np.zeros((4, *model.output_shape[1:])), verbose=0)
except ValueError as error:
    assert "(4, 40, 40, 3)" in str(error), error
else:
    raise AssertionError("fit")
model.fit({"images": images}, np.zeros((4, *model.output_shape[1:])), verbose=0)
print("refused")
"""


@pytest.mark.slow
def test_attention_on_the_jax_backend():
    pytest.importorskip("jax")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "tests/layers/test_attention.py"], capture_output=True, text=True, env=ON_JAX, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_models_on_the_jax_backend():
    pytest.importorskip("jax")
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=ON_JAX, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.split("\n")[-2] == "refused"
