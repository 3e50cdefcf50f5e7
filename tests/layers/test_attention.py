"""Every implementation of attention against the plain formula, at the lengths of real models, in values and gradients.

On JAX: `KERAS_BACKEND=jax python -m pytest tests/layers/test_attention.py`; `tests/models/test_jax.py` does a part.
"""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.inspection.relevance import gradients
from keras_vit.layers import formulas
from keras_vit.layers.kernels import chunked_attention, fused_attention

TOKENS = (196, 197, 577, 1025)
HEADS, SIZE = 2, 8


def plain(*arguments):
    return formulas.attention(*arguments)[0]


def implementations():
    """Return {name: function of query, key and value} for this backend and these devices."""
    found = {
        "chunks": functools.partial(chunked_attention.attend, chunk_size=64),
        "selected": fused_attention.attention,
    }
    if keras.backend.backend() == "jax":
        found["jax"] = functools.partial(fused_attention.attend, implementation="xla")
        if fused_attention.has_cudnn():
            found["cudnn"] = fused_attention.attend
    return found


def arrays(tokens, dtype="float32"):
    rng = np.random.default_rng(tokens)
    return [ops.cast(rng.normal(size=(1, tokens, HEADS, SIZE)), dtype) for _ in range(4)]


def values_and_gradients(function, query, key, value, upstream):
    """Return the output of a function, and its derivatives for a derivative of the output."""

    def compute(*inputs):
        value_of = lambda inputs: ops.sum(ops.cast(function(*inputs) * upstream, "float32"))  # noqa: E731
        return [function(*inputs), *gradients(value_of, list(inputs))]

    if keras.backend.backend() == "jax":
        import jax

        compute = jax.jit(compute)  # one program instead of one per operation
    results = compute(query, key, value)
    return [ops.convert_to_numpy(ops.cast(result, "float32")) for result in results]


def assert_close(got, expected, tolerance):
    for name, first, second in zip(("value", "d_query", "d_key", "d_value"), got, expected, strict=True):
        np.testing.assert_allclose(first, second, rtol=0, atol=tolerance * np.abs(second).max(), err_msg=name)


@pytest.mark.parametrize("name", implementations())
@pytest.mark.parametrize("tokens", TOKENS)
def test_implementations_match_the_formula(tokens, name):
    inputs = arrays(tokens)
    if name == "cudnn":  # which has no float32: sums of 8-bit numbers, against the formula in single precision
        got = values_and_gradients(implementations()[name], *(ops.cast(x, "bfloat16") for x in inputs))
    else:
        got = values_and_gradients(implementations()[name], *inputs)
    # Sums of up to 1,025 products in single precision, in another order.
    assert_close(got, values_and_gradients(plain, *inputs), 2e-2 if name == "cudnn" else 1e-5)


@pytest.mark.parametrize("tokens", TOKENS)
def test_attention_weights_with_dropout_match_the_formula(tokens):
    """A dropout is a function of the weights, so that an implementation without weights must not be chosen."""
    mask = np.random.default_rng(0).random((1, HEADS, tokens, tokens)) < 0.9
    drop = lambda weights: weights * ops.cast(mask, weights.dtype) / 0.9  # noqa: E731
    got, expected = (
        values_and_gradients(lambda q, k, v: function(q, k, v, None, drop), *arrays(tokens))  # noqa: B023
        for function in (fused_attention.attention, plain)
    )
    assert_close(got, expected, 1e-5)
    without = values_and_gradients(fused_attention.attention, *arrays(tokens))
    assert np.abs(got[0] - without[0]).max() > 1e-3


def test_cudnn_attention_is_used_only_for_supported_cases(monkeypatch):
    monkeypatch.setattr(fused_attention, "has_cudnn", lambda: True)
    half, single = arrays(8, "bfloat16")[0], arrays(8)[0]
    assert fused_attention.applies(half) == (keras.backend.backend() == "jax")
    assert not fused_attention.applies(single)
    assert not fused_attention.applies(half[..., :4])
    monkeypatch.setattr(fused_attention, "has_cudnn", lambda: False)
    assert not fused_attention.applies(half)
