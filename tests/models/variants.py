"""Small models, one for each option of a model."""

import functools
from unittest import mock

import numpy as np
import pytest

from keras_vit import BiTResNet, VisionTransformer
from keras_vit.models import ViTConfig
from tests import selection, tiny

SMALL = {**tiny.ARGUMENTS, "num_layers": 2, "image_size": (16, 8), "classes": 3}

VARIANTS = {
    "token": {},
    "gap": {"pooling": "gap"},
    "map": {"pooling": "map"},
    "all_tokens": {"pooling": None},
    "features": {"include_top": False},
    "softmax": {"classifier_activation": "softmax", "representation_size": 5},
    "learned2d": {"position_embedding": "learned2d"},
    "sincos2d": {"position_embedding": "sincos2d", "pooling": "gap"},
    "relative": {"position_embedding": "relative"},
    "no_positions": {"position_embedding": "none"},
    "every_layer": {"position_embedding_at": "every_layer", "num_registers": 2},
    "shared": {"position_embedding_at": "every_layer_shared", "position_embedding": "learned2d", "num_registers": 1},
    "registers": {"num_registers": 2, "layer_scale": 0.1, "qkv_bias": False},
    "dropout": {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "drop_path_rate": 0.2},
    "remat": {"dropout_rate": 0.1, "drop_path_rate": 0.2, "remat": "blocks"},
    "deit": {"distillation_token": True, "activation": "gelu"},
    "fc_norm": {"pooling": "gap", "class_token": True, "norm_after_pooling": True},
    "vit_pytorch": {"patch_norm": True, "head_dim": 6, "output_projection": "no_bias", "qkv_bias": False},
    "one_head": {"num_heads": 1, "output_projection": "none", "patch_size": (4, 2)},
    "mean_of_all": {"pooling": "gap", "class_token": True, "pool_prefix_tokens": True},
    "head_norm": {"head_norm": True},
    "dinov3": {
        **{"position_embedding": "rope2d", "rope_rescale": 2.0, "mlp": "swiglu", "qkv_bias": (True, False, True)},
        **{"num_registers": 2, "layer_scale": 0.1},
    },
    "any_size_rope": {"image_size": None, "position_embedding": "rope2d", "pooling": "gap"},
    "rms": {"norm": "rms", "qk_norm": True, "norm_before_blocks": True, "pooling": "token+gap"},
    "no_final_norm": {"final_norm": False, "qk_norm": True, "pooling": "map"},
    "any_size_patch_norm": {"image_size": None, "patch_norm": True},
    "any_size": {"image_size": None},
    "any_size_sincos2d": {"image_size": None, "position_embedding": "sincos2d"},
    "hybrid": {"resnet_blocks": (1, 1), "patch_size": 1},
    "hybrid_root": {"resnet_blocks": (), "patch_size": 2, "image_size": None},
    "hybrid_timm": {"resnet_blocks": (1,), "patch_size": 2, "resnet_numerics": "timm"},
    "bit": None,
}

# For tests that take long with every variant: the fast tests take two kinds, the slow tests the others.
QUICK = ("token", "bit")
CASES = selection.cases(VARIANTS, QUICK)
IN_HALF = ("token", "map", "hybrid", "bit")
# Other wirings of parts that other variants have, which `make test-slow` leaves out where a case takes seconds.
REWIRED = ("all_tokens", "features", "no_positions", "fc_norm", "mean_of_all", "any_size_patch_norm", "hybrid_root")


def cases_under(policies):
    """(variant, policy): in float32 all that are not rewired, some in half precision; all in `make test-all`."""
    return selection.cases(
        [(name, policy) for policy in policies for name in VARIANTS],
        lambda name, policy: policy == "float32" and name in QUICK,
        lambda name, policy: (
            pytest.mark.slow
            if (policy == "float32" and name not in REWIRED) or (policy == "mixed_bfloat16" and name in IN_HALF)
            else selection.EXHAUSTIVE
        ),
    )


def make(name, dtype="float32", seed=0, **arguments):
    """The small model of a name, with every variable away from its initial value."""
    if name == "bit":
        model = BiTResNet(**{"block_sizes": (1, 1), "image_size": (16, 8), "classes": 3, "dtype": dtype, **arguments})
    else:
        model = VisionTransformer(**{**SMALL, **VARIANTS[name], "dtype": dtype, **arguments})
    return tiny.randomize(model, seed)


@functools.cache
def shared(name, dtype="float32"):
    """The same model, for tests that do not change it."""
    return make(name, dtype)


def make_whole(name, dtype="float32", **arguments):
    """The same model, but its last block computes all tokens, whatever the output depends on."""
    with mock.patch.object(ViTConfig, "num_output_tokens", None):
        return make(name, dtype, **arguments)


def images(model, batch=2, seed=1):
    """Random images in [-1, 1] that the model takes."""
    height, width, channels = model.inputs[0].shape[1:]
    return np.random.default_rng(seed).uniform(-1, 1, (batch, height or 16, width or 8, channels)).astype("float32")
