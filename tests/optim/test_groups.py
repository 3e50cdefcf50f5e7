"""Groups of weights that layers declare, against patterns of the reference's names."""

import dataclasses
import re

import keras
import pytest

from keras_vit import models
from keras_vit import recipe as recipes
from keras_vit.models import variables
from tests import selection
from tests.models import variants
from tests.recipe import toy

BLOCK = re.compile(r"encoderblock_\d+|block\d+/unit\d+")
STEM = re.compile(r"(embedding|cls|dist|registers|pre_norm|posembed_\w+|conv_root|gn_root|root_block)(/|$)")


def check(model):
    """The declarations of the layers agree with their names."""
    paths = [weight.path for weight in model.trainable_weights]
    assert variables.decayed(model) == {path for path in paths if path.endswith("kernel")}
    blocks = list(dict.fromkeys(found.group() for path in paths if (found := BLOCK.search(path))))
    deepest = len(blocks) + 1
    expected = {}
    for path in paths:
        block = BLOCK.search(path)
        depth = 1 + blocks.index(block.group()) if block else 0 if STEM.match(path) else deepest
        expected[path] = 0.5 ** (deepest - depth)
    assert variables.layer_multipliers(model, 0.5) == expected
    shapes = {weight.path: weight.shape for weight in model.trainable_weights}
    kernels = [path for path in paths if BLOCK.search(path) and path.endswith("kernel")]
    assert variables.block_matrices(model) == {path: input_axes(path, shapes[path]) for path in kernels}


def input_axes(path, shape):
    """The axes of a kernel that are summed over, of each kind of layer."""
    if len(shape) == 3:
        return 2 if "/out/" in path else 1  # [heads, head width, width], and [width, heads, head width]
    return len(shape) - 1


def describe(name):
    arguments = {"block_sizes": (1, 2), "classes": 3} if name == "bit" else variants.SMALL | variants.VARIANTS[name]
    with keras.StatelessScope(initialize_variables=False):
        return models.BiTResNet(**arguments) if name == "bit" else models.VisionTransformer(**arguments)


@pytest.mark.parametrize(
    "name",
    selection.cases(variants.VARIANTS, lambda name: name not in variants.REWIRED, selection.EXHAUSTIVE),
)
def test_parameter_groups_of_every_model_variant(name):
    check(describe(name))


@pytest.mark.slow
def test_parameter_groups_of_every_recipe(monkeypatch, tmp_path):
    toy.replace_readers(monkeypatch, tmp_path)
    structures = {}
    for name, arguments in toy.CASES:
        recipe = toy.load(name, arguments)
        if recipe.optim.weight_decay_mask is None and recipe.model.weights is None:
            short = {"num_layers": 2} if recipe.model.variant in models.VIT else {}
            model = dataclasses.replace(recipe.model, arguments=recipe.model.arguments | short)
            structures[model.variant.split("ViT")[0], repr(sorted(model.arguments))] = model
    assert len(structures) > 5
    for model in structures.values():
        check(recipes.describe_model(recipes.Recipe(model=model), classes=3))


@pytest.mark.slow
def test_layer_depths_match_hand_computation():
    multipliers = variables.layer_multipliers(describe("hybrid"), 0.5)
    expected = {
        "conv_root/kernel": 0,
        "block1/unit1/conv1/kernel": 1,
        "block2/unit1/gn1/scale": 2,
        "embedding/kernel": 0,
        "cls/cls": 0,
        "encoderblock_0/LayerNorm_0/bias": 3,
        "encoderblock_1/MlpBlock_0/Dense_0/bias": 4,
        "encoder_norm/scale": 5,
        "head/kernel": 5,
    }
    assert {path: multipliers[path] for path in expected} == {path: 0.5 ** (5 - d) for path, d in expected.items()}
    assert set(variables.layer_multipliers(describe("hybrid"), 1.0).values()) == {1.0}


def test_layer_depths_of_nested_models_and_models_without_blocks():
    head = keras.layers.Dense(2, name="own_head")
    model = keras.Sequential([describe("features"), head])
    multipliers = variables.layer_multipliers(model, 0.5)
    assert sorted(set(multipliers.values())) == [0.125, 0.25, 0.5, 1.0]
    assert multipliers[head.kernel.path] == 1.0
    assert min(multipliers, key=multipliers.get).split("/")[-2] in ("embedding", "cls", "posembed_input")
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    assert set(variables.layer_multipliers(plain, 0.5).values()) == {1.0}


def test_weight_decay_masks_match_paths():
    model = describe("token")
    paths = [weight.path for weight in model.trainable_weights]
    assert variables.decayed(model, "kernel$") == variables.decayed(model)
    assert variables.decayed(model, ".*") == set(paths)


@pytest.mark.slow
def test_lora_and_quantized_kernels_are_grouped_as_kernels():
    model = variants.make("token")
    model.quantize("int8", filters="Dense_0")
    for layer in model.layers:
        layer.trainable = layer.name in ("head", "encoderblock_1")
    for index in range(2):
        query = model.get_layer(f"encoderblock_{index}").attention.query
        query.trainable = True
        query.enable_lora(2)
    first, second = (f"encoderblock_{index}/MultiHeadDotProductAttention_0" for index in range(2))
    factors = [f"{block}/query/lora_kernel_{factor}" for block in (first, second) for factor in "ab"]
    others = [f"{second}/key/kernel", f"{second}/value/kernel", f"{second}/out/kernel"]
    dense = "encoderblock_1/MlpBlock_0/Dense_1/kernel"  # Dense_0 is quantized
    assert variables.decayed(model) == {*factors, *others, dense, "head/kernel"}
    assert variables.block_matrices(model) == {**dict(zip(others, (1, 1, 2), strict=True)), dense: 1}
    multipliers = variables.layer_multipliers(model, 0.5)
    assert [multipliers[path] for path in factors] == [0.25, 0.25, 0.5, 0.5]
