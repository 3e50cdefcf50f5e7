"""The defaults of public functions and dataclasses, each with its source: another default silently changes results.

A default of None, or of a field that is built anew (`dataclasses.field(default_factory=...)`), is not listed.
"""

import inspect

import pytest

import keras_vit
from keras_vit import evaluators, inspection, layers, optim, recipe
from keras_vit.data import parse
from keras_vit.data import train_batches as train_batches_of
from keras_vit.evaluators import fewshot, knn, linear_probe
from keras_vit.exporting import verify
from keras_vit.inference import latency
from keras_vit.tf_serving import client, server

# The arguments of all Vision Transformers.
VIT = {
    # ViT-B/16: "An Image is Worth 16x16 Words" (arXiv:2010.11929), table 1.
    **{"patch_size": 16, "hidden_size": 768, "num_layers": 12, "num_heads": 12, "mlp_dim": 3072},
    **{"image_size": 224, "classes": 1000, "channels": 3, "include_top": True},
    # vision_transformer, vit_jax/models_vit.py: classifier="token", AddPositionEmbs (learned), qkv with biases.
    **{"pooling": "token", "position_embedding": "learned", "position_embedding_at": "input", "qkv_bias": True},
    **{"output_projection": "bias", "norm_after_pooling": False, "patch_norm": False, "head_norm": False},
    **{"num_registers": 0, "distillation_token": False, "pool_prefix_tokens": False},
    # flax.linen.gelu has approximate=True, flax.linen.LayerNorm has epsilon=1e-6.
    **{"activation": "gelu_tanh", "norm": "layer", "layer_norm_epsilon": 1e-6},
    # vit_jax/models_vit.py, head_bias_init: float = 0; scipy.ndimage.zoom of the position table in checkpoint.py.
    **{"head_bias": 0.0, "resnet_numerics": "reference", "position_resizing": "reference"},
    # Noise is off: the recipes set it.
    **{"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "drop_path_rate": 0.0, "remat": "none"},
    # The ViT paper's blocks. transformers, models/dinov3_vit/configuration_dinov3_vit.py: rope_theta=100.0.
    **{"mlp": "mlp", "qk_norm": False, "norm_before_blocks": False, "final_norm": True, "rope_base": 100.0},
}

LAYERS = {
    # flax.linen.LayerNorm and GroupNorm have epsilon=1e-6; vit_jax/models_resnet.py has the default num_groups=32.
    layers.LayerNorm: {"epsilon": 1e-6, "scale_initializer": "ones"},
    layers.RMSNorm: {"epsilon": 1e-6, "scale_initializer": "ones"},
    layers.GroupNorm: {"groups": 32, "epsilon": 1e-6, "scale_initializer": "ones"},
    # vit_jax/models_resnet.py, weight_standardize(..., eps=1e-5), added to the deviation.
    layers.StdConv2D: {"strides": 1, "padding": "same", "epsilon": 1e-5, "epsilon_inside": False},
    # "Going deeper with Image Transformers" (arXiv:2103.17239), section 2: 1e-5 at 24 layers.
    layers.LayerScale: {"initial_value": 1e-5},
    layers.EncoderBlock: {"dropout_rate": 0.0, "drop_path_rate": 0.0, "layer_norm_epsilon": 1e-6, "norm_type": "layer"},
    layers.MAPHead: {"layer_norm_epsilon": 1e-6, "norm_type": "layer"},
    layers.SelfAttention: {
        **{"dropout_rate": 0.0, "use_bias": True, "output_projection": "bias", "layer_norm_epsilon": 1e-6}
    },
    layers.MlpBlock: {"dropout_rate": 0.0, "activation": "gelu_tanh"},
    layers.SwiGLU: {"dropout_rate": 0.0},
    # transformers, models/dinov3_vit/configuration_dinov3_vit.py: rope_theta=100.0.
    layers.RotaryPositions: {"num_prefix_tokens": 0, "base": 100.0},
    # vit_jax/models_vit.py: nn.initializers.normal(stddev=0.02) for the position table.
    layers.AddPositionEmbs: {
        **{"kind": "learned", "num_prefix_tokens": 0, "num_registers": 0, "stddev": 0.02, "method": "reference"},
    },
}

MODELS = {
    keras_vit.VisionTransformer: VIT,
    # "Masked Autoencoders Are Scalable Vision Learners" (arXiv:2111.06377), table 1: 75 % masked, a decoder of 8 blocks
    # of width 512; mae/models_mae.py: decoder_num_heads=16. torch.nn.GELU is exact.
    keras_vit.MaskedAutoencoder: {
        **VIT,
        **{"activation": "gelu", "mask_ratio": 0.75},
        **{"decoder_hidden_size": 512, "decoder_num_layers": 8, "decoder_num_heads": 16},
    },
    # arXiv:2010.11929, appendix B.1.2: half of the patches; the mean color is predicted.
    keras_vit.MaskedPatchPredictor: {**VIT, "mask_ratio": 0.5, "target": "mean_color"},
    # "Big Transfer" (arXiv:1912.11370), BiT-R50x1; big_transfer/bit_tf2/models.py: the max pool after the root.
    keras_vit.BiTResNet: {
        **{"block_sizes": (3, 4, 6, 3), "width_factor": 1, "image_size": 224, "classes": 1000},
        **{"include_top": True, "channels": 3, "head_bias": 0.0, "pool_padding": "infinity"},
    },
}

OPTIM = {
    # optax.sgd and the reference's momentum: 0.9 (vit_jax/configs/common.py).
    optim.Momentum: {"momentum": 0.9, "nesterov": False, "momentum_dtype": "float32"},
    # mae/util/lars.py: momentum=0.9, trust_coefficient=0.001.
    optim.LARS: {"momentum": 0.9, "trust": 1e-3, "momentum_dtype": "float32"},
    # optax.scale_by_adam: b1=0.9, b2=0.999, eps=1e-8; "Adam" (arXiv:1412.6980), algorithm 1.
    optim.AdamW: {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "momentum_dtype": "float32"},
    # kellerjordan.github.io/posts/muon: momentum 0.95.
    optim.Muon: {"momentum": 0.95, "nesterov": False, "momentum_dtype": "float32"},
    optim.cross_entropy: {"kind": "softmax"},
}

RECIPE = {
    recipe.Model: {"variant": "ViT-S/16", "image_size": 224, "head": "auto"},
    recipe.Data: {
        **{"source": "digits", "train_split": "train", "eval_split": "test", "batch_size": 128},
        **{"pp_train": "decode|resize(224)|flip_lr|value_range(-1, 1)"},
        **{"pp_eval": "decode|resize(224)|value_range(-1, 1)", "on_bad_image": "error"},
        # vit_jax/configs/common.py: shuffle_buffer = 50_000.
        **{"mixup": 0.0, "cutmix": 0.0, "shuffle_buffer": 50_000},
    },
    recipe.Schedule: {
        # big_vision/utils.py, create_learning_rate_schedule: timescale=10_000 of "rsqrt".
        **{"name": "cosine", "warmup_steps": 0, "end": 0.0, "timescale": 10_000, "cooldown_steps": 0},
        **{"boundaries": (), "factor": 0.1},
    },
    recipe.Optim: {
        # optax.adamw. The published configurations clip at 1: vit_jax/configs/common.py, grad_norm_clip = 1, and
        # big_vision/configs/vit_s16_i1k.py, grad_clip_norm = 1.0.
        **{"name": "adamw", "learning_rate": 1e-3, "clip_norm": 1.0, "weight_decay": 0.0},
        **{"momentum": 0.9, "nesterov": False, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        **{"momentum_dtype": "float32", "accumulation_steps": 1, "layer_decay": 1.0, "frozen": "", "ema": 0.0},
    },
    recipe.Recipe: {
        **{"seed": 0, "total_steps": 1_000, "precision": "float32", "deterministic": True, "jit": "auto"},
        **{"task": recipe.Classification(), "loss": "softmax", "label_smoothing": 0.0, "steps_per_loop": 100},
        **{"log_every": 50, "eval_every": 0, "checkpoint_every": 1_000, "keep_checkpoints": 2, "evaluators": ()},
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
RESIZE = {"method": "bilinear", "antialias": False, "cast": True}
MAX_PIXELS = 2**30 // 6  # Pillow's limit of an image, twice MAX_IMAGE_PIXELS = 1 GiB // 4 // 3
OPERATIONS = {
    # PIL and tf.io.decode_image; big_vision/pp/ops_image.py.
    "decode": {"channels": 3, "precise": False, "exif": True, "max_pixels": MAX_PIXELS},
    "resize": RESIZE,
    "resize_small": {**RESIZE, "method": "area"},  # big_vision/pp/ops_image.py, get_resize_small
    "resize_long": {**RESIZE, "method": "area", "antialias": True},  # the same, get_resize_long
    # big_vision/pp/ops_image.py, get_inception_crop: area_min=5, area_max=100; tf.image.sample_distorted_bounding_box:
    # aspect_ratio_range=(0.75, 1.33). "Going deeper with convolutions" (arXiv:1409.4842) has 8 to 100 %.
    "inception_crop": {**CROP, **RESIZE},
    # tf.image.decode_and_crop_jpeg: ratio=1.
    "decode_jpeg_and_inception_crop": {**CROP, **RESIZE, "exif": True, "max_pixels": MAX_PIXELS, "scaled": False},
    "flip_lr": {"probability": 0.5},
    "pad": {"mode": "constant", "value": 0},
    # big_vision/pp/ops_general.py, get_value_range.
    "value_range": {"vmin": -1, "vmax": 1, "in_min": 0, "in_max": 255.0, "clip_values": False},
    # Mean and deviation of ImageNet: torchvision.transforms, timm.data.constants.
    "value_norm": {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    # big_vision/pp/ops_image.py, get_vgg_value_range: the same times 255.
    "vgg_value_range": {"mean": (123.675, 116.28, 103.53), "std": (0.229 * 255, 0.224 * 255, 0.225 * 255)},
    "color_jitter": {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0},
    # "Random Erasing Data Augmentation" (arXiv:1708.04896), section 4.2: s_l=0.02, r_1=0.3; timm.data.RandomErasing:
    # max_area=1/3. timm's probability of the DeiT recipe is 0.25.
    "random_erasing": {
        **{"probability": 0.25, "area_min": 2, "area_max": 100 / 3, "ratio_min": 0.3, "ratio_max": 1 / 0.3},
        **{"value": 128},
    },
    "randaug": {"num_layers": 2, "magnitude": 10, "mode": "reference"},  # big_vision/pp/autoaugment.py
    "onehot": {"key": "label", "on": 1.0, "off": 0.0},
}

EVALUATORS = {
    # big_vision/evaluators/fewshot_lsr.py: shots=(1, 5, 10, 25), l2_reg=2**10, num_seeds=3.
    fewshot.FewShot: {"shots": (1, 5, 10, 25), "l2": 2.0**10, "seeds": 3},
    # "Emerging Properties in Self-Supervised Vision Transformers" (arXiv:2104.14294), eval_knn.py: temperature=0.07.
    knn.Knn: {"neighbors": (1, 5, 10, 20, 50, 100, 200), "temperature": 0.07},
    linear_probe.LinearProbe: {"solver": "lbfgs"},
    evaluators.ClassificationMetrics: {"output": "softmax", "scores_are": "logits"},
    evaluators.evaluate: {"output": "softmax", "scores_are": "logits"},
}

OTHERS = {
    train_batches_of: {
        **{"seed": 0, "start_step": 0, "shard_index": 0, "num_shards": 1, "mixup": 0.0, "cutmix": 0.0},
        **{"shuffle_buffer": 50_000, "on_bad_image": "error", "as_tuples": False},
    },
    keras_vit.load_checkpoint: {
        **{"head": "auto", "strict": True, "resize_patch": False, "adapt_channels": False},
        **{"allow_nonfinite": False},
    },
    keras_vit.model_from_checkpoint: {
        **{"decoder": False, "head": "auto", "resize_patch": False, "adapt_channels": False},
        **{"allow_nonfinite": False},
    },
    keras_vit.save_checkpoint: {"format": "google", "dtype": "float32"},
    keras_vit.decode_predictions: {"top": 5},  # keras.applications
    # "Quantifying Attention Flow in Transformers" (arXiv:2005.00928): the mean of the heads, and the residual at half.
    inspection.attention_rollout: {"head_fusion": "mean", "discard_ratio": 0.0, "residual": True},
    inspection.embedding_filters: {"k": 28},  # arXiv:2010.11929, figure 7
    inspection.occlusion_sensitivity: {"grid": 8, "fill": 0.0, "batch_size": 16},
    latency.measure: {"warmup": 5},
    # Probabilities of float32 kernels differ by about 1e-6: a tie is decided by rounding.
    verify.compare: {"tie": 1e-5},
    verify.Tolerance: {"max_difference": 1e-4, "top1_agreement": 1.0},
    client.Client: {"timeout": 30.0, "retries": 4, "backoff": 0.2},
    # The grace is that of Kubernetes. Four of the largest bodies at a time.
    server.Limits: {
        "body_bytes": 64 * 2**20,
        "bodies_bytes": 4 * 64 * 2**20,
        "body_seconds": 60.0,
        "json_values": 2 * 2**20,
        "connections": 100,
        "grace_seconds": 30.0,
    },
}


def defaults(function):
    """Defaults by name, without None, the defaults that are built anew, and `**kwargs`."""
    parameters = inspect.signature(function).parameters.values()
    found = {p.name: p.default for p in parameters if p.default is not p.empty and p.default is not None}
    return {name: value for name, value in found.items() if type(value).__name__ != "_HAS_DEFAULT_FACTORY_CLASS"}


TABLE = {**LAYERS, **MODELS, **OPTIM, **RECIPE, **EVALUATORS, **OTHERS}


@pytest.mark.parametrize("function", TABLE, ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_defaults_are_those_of_their_sources(function):
    found = defaults(function)
    assert found == TABLE[function]
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in TABLE[function].items()}


@pytest.mark.parametrize("name", OPERATIONS)
def test_defaults_of_preprocessing(name):
    assert defaults(parse.OPS[name].factory) == OPERATIONS[name]


def test_every_operation_with_a_default_is_in_the_table():
    assert {name for name, operation in parse.OPS.items() if defaults(operation.factory)} == set(OPERATIONS)


def test_gates_of_exports():
    """Float32 kernels add in another order; quantized files may lose one point of accuracy."""
    gates = {
        name: (gate.max_difference, gate.top1_agreement, gate.accuracy_drop) for name, gate in verify.TOLERANCES.items()
    }
    assert gates == {
        "float32": (1e-4, 1.0, None),
        "bfloat16": (0.1, 0.98, None),  # 8 significant bits
        "float16": (0.02, 0.999, None),  # 11 significant bits
        "dynamic_int8": (0.5, 0.99, None),
        "int8": (1.0, 0.9, 0.01),
        "int16x8": (1.0, 0.95, 0.01),
    }
    relative = {name: verify.tolerance_of(name, output="features").max_difference for name in gates}
    expected = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
    assert relative == {**expected, "dynamic_int8": 0.1, "int8": 0.25, "int16x8": 0.25}


def test_strengths_of_the_linear_probe():
    assert linear_probe.L2["lbfgs"] == tuple(10.0**k for k in range(-6, 2))
    assert linear_probe.L2["ridge"] == tuple(2.0**k for k in range(-4, 21, 4))
    assert linear_probe.HELD_OUT == 0.1
