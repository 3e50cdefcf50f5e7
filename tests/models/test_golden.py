"""Numerical equality with the reference implementations, on their own weights.

rtol=1e-4, atol=1e-5: float32 rounding through some tens of contractions, summed in another order.
"""

import keras
import numpy as np
import pytest

from keras_vit import BiTResNet, VisionTransformer
from tests import golden_data

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
VIT_FILES = [
    *("vit_token_legacy", "vit_token_linen", "vit_gap", "vit_prelogits", "hybrid_stem", "hybrid_blocks"),
    *("bv_tok", "bv_gap_sincos", "bv_map", "bv_gap_rep_scan"),
]
LEGACY = {"LayerNorm_2": "LayerNorm_1", "MlpBlock_3": "MlpBlock_0", "DotProductAttention_1": "DotProductAttention_0"}


def model_of(meta):
    pooling = meta.get("classifier") or {"tok": "token"}.get(meta["pool"], meta["pool"])
    return VisionTransformer(
        *(meta[key] for key in ("patch", "hidden_size", "num_layers", "num_heads", "mlp_dim")),
        resnet_blocks=meta.get("resnet"),
        image_size=meta["image"],
        classes=meta["classes"],
        pooling=pooling,
        representation_size=meta.get("representation_size") or (meta["hidden_size"] if meta.get("rep_size") else None),
        position_embedding="sincos2d" if meta.get("posemb") == "sincos2d" else "learned",
    )


def by_path(params):
    """The reference's parameters under the paths that our variables have."""
    result = {}
    for name, value in params.items():
        name = name.removeprefix("Transformer/")
        for old, new in LEGACY.items():
            name = name.replace(old, new)
        name = {"cls": "cls/cls", "pos_embedding": "posembed_input/pos_embedding"}.get(name, name)
        if name.startswith("encoderblock/"):  # blocks stacked on the first axis
            result |= {name.replace("encoderblock", f"encoderblock_{i}"): block for i, block in enumerate(value)}
        else:
            result[name] = (
                value.reshape(-1) if value.shape[:3] == (1, 1, 1) and name.endswith(("scale", "bias")) else value
            )
    return result


def assign(model, params):
    unused = set(params)
    for variable in model.weights:
        value = params[variable.path]
        if variable.path == "posembed_input/pos_embedding" and value.shape != variable.shape:
            # big_vision's class token has no position; ours then has the position zero.
            value = np.concatenate([np.zeros_like(value[:, :1]), value], axis=1)
        variable.assign(value)
        unused.discard(variable.path)
    assert not unused


@pytest.mark.slow
@pytest.mark.parametrize("name", VIT_FILES)
def test_vit_and_hybrids_reproduce_the_reference(name, golden):
    data = golden(name)
    model = model_of(data["meta"])
    assign(model, by_path(golden_data.params(data)))
    outputs = [model.get_layer("encoder_norm").output, model.output]
    encoded, logits = keras.Model(model.input, outputs)(data["image"])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(encoded), data["encoded"], **TOLERANCE)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(logits), data["logits"], **TOLERANCE)


@pytest.mark.slow
def test_bit_reproduces_the_reference(golden):
    data = golden("bit_big_vision")
    meta = data["meta"]
    model = BiTResNet(meta["depth"], meta["width"], image_size=data["image"].shape[1:3], classes=meta["classes"])
    assign(model, by_path(golden_data.params(data)))
    outputs = [model.get_layer("pool").output, model.output]
    pre_logits, logits = keras.Model(model.input, outputs)(data["image"])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(pre_logits), data["pre_logits"], **TOLERANCE)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(logits), data["logits"], **TOLERANCE)


@pytest.mark.slow
def test_every_weight_matters(golden):
    """The golden comparison would notice a single parameter left at its initial value."""
    data = golden("vit_token_linen")
    model = model_of(data["meta"])
    params = by_path(golden_data.params(data))
    assign(model, params)
    reference = keras.ops.convert_to_numpy(model(data["image"]))
    for variable in model.weights:
        if variable.path.endswith("key/bias"):
            continue  # a constant added to all logits of a softmax: no effect, by algebra
        value = variable.numpy()
        variable.assign(np.zeros_like(value))
        assert np.abs(keras.ops.convert_to_numpy(model(data["image"])) - reference).max() > 1e-4, variable.path
        variable.assign(value)
