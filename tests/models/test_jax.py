"""The same models on Keras' JAX backend: golden equality, policies, gradients. In a separate process."""

import subprocess
import sys

import pytest

from tests.on_jax import ON_JAX

PROGRAM = """
import keras, numpy as np, jax, pytest, sys
from tests import golden_data
from tests.models import variants
from tests.models import test_dinov3_siglip
from tests.models.test_golden import TOLERANCE, assign, by_path, model_of

assert keras.backend.backend() == "jax"
assert pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *sys.argv[1:]]) == 0
data = golden_data.load("hybrid_blocks")
model = model_of(data["meta"])
assign(model, by_path(golden_data.params(data)))
np.testing.assert_allclose(model.predict(data["image"], verbose=0), data["logits"], **TOLERANCE)
print("hybrid_blocks")

test_dinov3_siglip.check("hf_siglip_head72")  # `make test-jax` takes all
test_dinov3_siglip.check("hf_dinov3_wide", any_size=True)
print("dinov3_siglip")

# A whole training step, with recomputed blocks and a gradient for every variable.
model = variants.make("dinov3", remat="blocks")
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
print("gradient")

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


ATTENTION = "tests/layers/test_attention.py::test_"
TESTS = (
    *(f"{ATTENTION}implementations_match_the_formula[{case}]" for case in ("197-jax", "577-chunks", "197-selected")),
    *(
        f"{ATTENTION}attention_weights_with_dropout_match_the_formula[197]",
        f"{ATTENTION}cudnn_attention_is_used_only_for_supported_cases",
    ),
    "tests/inspection/test_relevance.py::test_relevance_finds_the_decisive_patch",
    "tests/inspection/test_distance.py::test_distance_of_two_patches_matches_hand_computation",
)


@pytest.mark.slow
def test_layers_models_and_inspection_pass_on_the_jax_backend():
    pytest.importorskip("jax")
    command = [sys.executable, "-c", PROGRAM, *TESTS]
    result = subprocess.run(command, capture_output=True, text=True, env=ON_JAX, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert result.stdout.split("\n")[-2] == "refused"
