"""Published parameter counts and the list of models."""

import keras
import pytest

import keras_vit
from keras_vit import recipe as recipes
from keras_vit.training.planning import cost
from tests import selection

# As the reference implementation asserts of its own models.
COUNTS = {
    "ViT-Ti/16": 5_717_416,
    "ViT-S/32": 22_878_952,
    "ViT-S/16": 22_050_664,
    "ViT-B/32": 88_224_232,
    "ViT-B/16": 86_567_656,
    "ViT-B/8": 86_576_872,
    "ViT-L/32": 306_535_400,
    "ViT-L/16": 304_326_632,
    "ViT-H/14": 632_045_800,
    "R+ViT-Ti/16": 6_337_704,
    "R26+ViT-S/32": 36_431_912,
    "R26+ViT-B/32": 101_383_976,
    "R50+ViT-B/16": 98_659_112,
    "R50+ViT-L/32": 328_994_856,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count_equals_the_published_count(name):
    recipe = recipes.Recipe(model=recipes.Model(name, image_size=224))
    assert recipes.describe_model(recipe, classes=1000).count_params() == COUNTS[name]


DINOV2 = {"image_size": 518, "layer_scale": 1.0}
DINOV3 = {"position_embedding": "rope2d", "layer_scale": 1.0, "qkv_bias": False, "num_registers": 4}
SIGLIP = {"pooling": "map"}
# The encoders of the published files: DINOv2's without the mask token, DINOv3's as timm publishes them, SigLIP's with
# its attention pooling.
ENCODERS = [
    ("ViT-S/14", DINOV2, 22_056_192),
    ("ViT-S/14", {**DINOV2, "num_registers": 4}, 22_057_728),
    ("ViT-B/14", DINOV2, 86_579_712),
    ("ViT-L/14", DINOV2, 304_367_616),
    ("ViT-giant2/14", DINOV2, 1_136_479_232),
    ("ViT-giant2/14", {**DINOV2, "num_registers": 4}, 1_136_485_376),
    ("ViT-S/16", DINOV3, 21_586_944),
    ("ViT-S+/16", DINOV3, 28_683_264),
    ("ViT-B/16", DINOV3, 85_641_216),
    ("ViT-H+/16", DINOV3, 840_509_440),
    ("ViT-So400m/14", SIGLIP, 427_680_704),
    ("ViT-So400m/16", {**SIGLIP, "image_size": 256}, 427_888_064),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), ENCODERS)
def test_encoders_have_the_published_number_of_weights(name, arguments, expected):
    assert cost.of_variant(name, include_top=False, classes=None, **arguments).parameters == expected


PAPER = [name for name in keras_vit.models.VIT if name in COUNTS or name not in {name for name, *_ in ENCODERS}]


@pytest.mark.parametrize("name", PAPER)
def test_parameter_count_follows_from_the_sizes(name):
    """The counts of the variants too large to build in a test, by the formula that the built ones obey."""
    config = keras_vit.models.VIT[name]
    width, mlp = config.hidden_size, config.mlp_dim
    channels, stem, stride = 3, 0, 1
    if config.resnet_blocks is not None:
        channels, stem, stride = 64, 7 * 7 * 3 * 64 + 2 * 64, 4
        for index, units in enumerate(config.resnet_blocks):
            features = 64 * 2**index
            for unit in range(units):
                stem += channels * features + 9 * features**2 + 4 * features**2 + 4 * features + 8 * features
                if unit == 0:
                    stem += channels * 4 * features + 8 * features
                channels = 4 * features
            stride = 4 * 2**index
    tokens = (224 // (stride * config.patch_size)) ** 2 + 1
    block = 4 * (width**2 + width) + 2 * width * mlp + mlp + width + 4 * width
    embedding = config.patch_size**2 * channels * width + width
    count = stem + embedding + width + tokens * width + config.num_layers * block + 2 * width + 1000 * (width + 1)
    if name in COUNTS:
        assert count == COUNTS[name]
    else:
        # "Scaling Vision Transformers", table 2: 1,011 and 1,843 million parameters, with a pooling head.
        published = {"ViT-g/14": 1011e6, "ViT-G/14": 1843e6}[name]
        assert count == pytest.approx(published, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT-Ti/16", pytest.param("ViT-B/16", marks=selection.EXHAUSTIVE)])
def test_built_model_has_the_published_parameter_count(name):
    assert keras_vit.create_model(name).count_params() == COUNTS[name]


def test_bit_parameter_counts_equal_the_published_counts():
    # As published with the files of BiT-S: 25.5 million for R50x1 (He et al.'s ResNet-50 has the same kernels).
    with keras.StatelessScope(initialize_variables=False):
        assert keras_vit.create_model("BiT-R50x1").count_params() == 25_549_352


def test_every_listed_model_has_a_constructor():
    for name in keras_vit.list_models():
        function = keras_vit.models.constructor_name(name)
        assert callable(getattr(keras_vit, function)), function
        assert keras_vit.applications.layer_safe_name(name).isidentifier()


@pytest.mark.slow
def test_imagenet_21k_head_has_the_published_parameter_count():
    model = keras_vit.create_model("ViT-B/16", classes=21843)
    assert model.count_params() == 102_595_923
    assert keras_vit.create_model("ViT-B/16", include_top=False).count_params() == 85_798_656
