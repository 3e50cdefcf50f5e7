"""Defaults of public functions and dataclasses that come from a paper or another project, each with its source.

Another default would silently change results. What has no source outside of this package is not listed.
"""

import dataclasses
import inspect

import pytest

import keras_vit
from export.serving import server
from keras_vit import inspection, layers, optim, recipe
from keras_vit.data import parse
from keras_vit.evaluators import fewshot, knn, linear_probe
from keras_vit.exporting import verify
from keras_vit.models.vit_options import ViTOptions

# The arguments of all Vision Transformers.
VIT = {
    # ViT-B/16: "An Image is Worth 16x16 Words" (arXiv:2010.11929), table 1.
    **{"patch_size": 16, "hidden_size": 768, "num_layers": 12, "num_heads": 12, "mlp_dim": 3072},
    # vision_transformer, vit_jax/models_vit.py: classifier="token", AddPositionEmbs (learned), qkv with biases.
    **{"pooling": "token", "position_embedding": "learned", "position_embedding_at": "input", "qkv_bias": True},
    # flax.linen.gelu has approximate=True, flax.linen.LayerNorm has epsilon=1e-6.
    **{"activation": "gelu_tanh", "norm": "layer", "layer_norm_epsilon": 1e-6},
    # vit_jax/models_vit.py, head_bias_init: float = 0; scipy.ndimage.zoom of the position table in checkpoint.py.
    **{"head_bias": 0.0, "resnet_numerics": "reference", "position_resizing": "reference"},
    # transformers, models/dinov3_vit/configuration_dinov3_vit.py: rope_theta=100.0.
    "rope_base": 100.0,
}

LAYERS = {
    # flax.linen.LayerNorm and GroupNorm have epsilon=1e-6; vit_jax/models_resnet.py has the default num_groups=32.
    layers.LayerNorm: {"epsilon": 1e-6},
    layers.RMSNorm: {"epsilon": 1e-6},
    layers.GroupNorm: {"groups": 32, "epsilon": 1e-6},
    # vit_jax/models_resnet.py, weight_standardize(..., eps=1e-5), added to the deviation.
    layers.StdConv2D: {"epsilon": 1e-5, "epsilon_inside": False},
    # "Going deeper with Image Transformers" (arXiv:2103.17239), section 2: 1e-5 at 24 layers.
    layers.LayerScale: {"initial_value": 1e-5},
    # transformers, models/dinov3_vit/configuration_dinov3_vit.py: rope_theta=100.0.
    layers.RotaryPositions: {"base": 100.0},
    # vit_jax/models_vit.py: nn.initializers.normal(stddev=0.02) for the position table.
    layers.AddPositionEmbs: {"stddev": 0.02},
}

MODELS = {
    keras_vit.VisionTransformer: VIT,
    # "Masked Autoencoders Are Scalable Vision Learners" (arXiv:2111.06377), table 1: 75% masked, a decoder of 8 blocks
    # of width 512; mae/models_mae.py: decoder_num_heads=16. torch.nn.GELU is exact.
    keras_vit.MaskedAutoencoder: {
        **{"activation": "gelu", "mask_ratio": 0.75},
        **{"decoder_hidden_size": 512, "decoder_num_layers": 8, "decoder_num_heads": 16},
    },
    # arXiv:2010.11929, appendix B.1.2: half of the patches; the mean color is predicted.
    keras_vit.MaskedPatchPredictor: {"mask_ratio": 0.5, "target": "mean_color"},
    # "Big Transfer" (arXiv:1912.11370), BiT-R50x1; big_vision/models/bit.py: the border of the max pool after the root.
    keras_vit.BiTResNet: {"block_sizes": (3, 4, 6, 3), "width_factor": 1, "pool_padding": "infinity"},
}

OPTIM = {
    # optax.sgd and the reference's momentum: 0.9 (vit_jax/configs/common.py).
    optim.Momentum: {"momentum": 0.9, "nesterov": False},
    # mae/util/lars.py: momentum=0.9, trust_coefficient=0.001.
    optim.LARS: {"momentum": 0.9, "trust": 1e-3},
    # optax.scale_by_adam: b1=0.9, b2=0.999, eps=1e-8; "Adam" (arXiv:1412.6980), algorithm 1.
    optim.AdamW: {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    # kellerjordan.github.io/posts/muon: momentum 0.95.
    optim.Muon: {"momentum": 0.95, "nesterov": False},
}

RECIPE = {
    recipe.Data: {"shuffle_buffer": 50_000},  # vit_jax/configs/common.py
    # big_vision/utils.py, create_learning_rate_schedule: timescale=10_000 of "rsqrt".
    recipe.Schedule: {"name": "cosine", "timescale": 10_000},
    # optax.adamw. The published configurations clip at 1: vit_jax/configs/common.py, grad_norm_clip = 1, and
    # big_vision/configs/vit_s16_i1k.py, grad_clip_norm = 1.0.
    recipe.Optim: {
        **{"name": "adamw", "clip_norm": 1.0, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        **{"momentum": 0.9, "nesterov": False},
    },
    # arXiv:2111.06377, table 1 and section 3 (normalized pixels).
    recipe.MAE: {
        **{"mask_ratio": 0.75, "normalize_pixels": True},
        **{"decoder_hidden_size": 512, "decoder_num_layers": 8, "decoder_num_heads": 16},
    },
    recipe.MaskedPatch: {"mask_ratio": 0.5, "target": "mean_color"},  # arXiv:2010.11929, appendix B.1.2
    recipe.Distillation: {"temperature": 1.0},  # "A good teacher is patient and consistent" (arXiv:2106.05237), 2.2
}

CROP = {"area_min": 5, "area_max": 100, "ratio_min": 0.75, "ratio_max": 1.33}
MAX_PIXELS = 2**30 // 6  # Pillow's limit of an image, twice MAX_IMAGE_PIXELS = 1 GiB // 4 // 3
OPERATIONS = {
    "decode": {"channels": 3, "max_pixels": MAX_PIXELS},  # big_vision/pp/ops_image.py
    "resize": {"method": "bilinear", "antialias": False},
    "resize_small": {"method": "area", "antialias": False},  # big_vision/pp/ops_image.py, get_resize_small
    "resize_long": {"method": "area", "antialias": True},  # the same, get_resize_long
    # big_vision/pp/ops_image.py, get_inception_crop: area_min=5, area_max=100; tf.image.sample_distorted_bounding_box:
    # aspect_ratio_range=(0.75, 1.33). "Going deeper with convolutions" (arXiv:1409.4842) has 8 to 100%.
    "inception_crop": CROP,
    "decode_jpeg_and_inception_crop": {**CROP, "max_pixels": MAX_PIXELS},
    "flip_lr": {"probability": 0.5},
    # big_vision/pp/ops_general.py, get_value_range.
    "value_range": {"vmin": -1, "vmax": 1, "in_min": 0, "in_max": 255.0},
    # Mean and deviation of ImageNet: torchvision.transforms, timm.data.constants.
    "value_norm": {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    # big_vision/pp/ops_image.py, get_vgg_value_range: the same times 255.
    "vgg_value_range": {"mean": (123.675, 116.28, 103.53), "std": (0.229 * 255, 0.224 * 255, 0.225 * 255)},
    # "Random Erasing Data Augmentation" (arXiv:1708.04896), section 4.2: s_l=0.02, r_1=0.3; timm.data.RandomErasing:
    # max_area=1/3. timm's probability of the DeiT recipe is 0.25.
    "random_erasing": {
        **{"probability": 0.25, "area_min": 2, "area_max": 100 / 3, "ratio_min": 0.3, "ratio_max": 1 / 0.3},
    },
    "randaug": {"num_layers": 2, "magnitude": 10, "mode": "reference"},  # big_vision/pp/autoaugment.py
}

EVALUATORS = {
    # big_vision/evaluators/fewshot_lsr.py: shots=(1, 5, 10, 25), l2_reg=2**10, num_seeds=3.
    fewshot.FewShot: {"shots": (1, 5, 10, 25), "l2": 2.0**10, "seeds": 3},
    # "Emerging Properties in Self-Supervised Vision Transformers" (arXiv:2104.14294), eval_knn.py: temperature=0.07.
    knn.Knn: {"neighbors": (1, 5, 10, 20, 50, 100, 200), "temperature": 0.07},
    linear_probe.LinearProbe: {"solver": "lbfgs"},
}

OTHERS = {
    keras_vit.decode_predictions: {"top": 5},  # keras.applications
    # "Quantifying Attention Flow in Transformers" (arXiv:2005.00928): the mean of the heads, and the residual at half.
    inspection.attention_rollout: {"head_fusion": "mean", "discard_ratio": 0.0, "residual": True},
    inspection.embedding_filters: {"k": 28},  # arXiv:2010.11929, figure 7
    # Probabilities of float32 kernels differ by about 1e-6: a tie is decided by rounding.
    verify.compare: {"tie": 1e-5},
    server.Limits: {"grace_seconds": 30.0},  # Kubernetes
}


def check(function, expected):
    """A function has these defaults, of these types."""
    parameters = inspect.signature(function).parameters
    found = {name: parameters[name].default for name in expected}
    assert found == expected
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in expected.items()}


TABLE = {**LAYERS, **MODELS, **OPTIM, **RECIPE, **EVALUATORS, **OTHERS}


@pytest.mark.parametrize("function", TABLE, ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_defaults_match_their_sources(function):
    check(function, TABLE[function])


@pytest.mark.parametrize("name", OPERATIONS)
def test_defaults_of_preprocessing_match_their_sources(name):
    check(parse.OPS[name].factory, OPERATIONS[name])


OF_PRETRAINING = ("activation", "mask_ratio", "target")  # another value than of a Vision Transformer


@pytest.mark.parametrize("model", [keras_vit.ViT_B16, keras_vit.MaskedAutoencoder, keras_vit.MaskedPatchPredictor])
def test_all_vision_transformers_have_the_same_defaults(model):
    check(
        model,
        {
            name: value
            for name, value in VIT.items()
            if name in inspect.signature(model).parameters and name not in OF_PRETRAINING
        },
    )


NAMES = {"norm_type": "norm"}  # arguments of layers: options of models


@pytest.mark.parametrize("name", layers.__all__)
def test_layers_have_the_defaults_of_the_options_of_models(name):
    options = {field.name: field.default for field in dataclasses.fields(ViTOptions)}
    layer = getattr(layers, name)
    parameters = inspect.signature(layer).parameters if layer.__module__ != "keras_vit.layers.dense" else {}
    for own, parameter in parameters.items():
        option = options.get(NAMES.get(own, own), parameter.empty)
        if parameter.empty not in (parameter.default, option):
            assert parameter.default == option or {parameter.default, option} <= {None, False}, own
