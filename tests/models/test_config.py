"""Arguments of the models: one list of them, checked and resolved in one place."""

import dataclasses
import inspect
import pathlib
import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import BiTConfig, ViTConfig, vit_config
from keras_vit.models.bit import PublishedBiT
from keras_vit.models.vit_options import PublishedViT
from tests import selection
from tests.models import variants

FILES = pathlib.Path(__file__).parent.parent / "data_files"


@pytest.mark.parametrize(
    ("published", "config_class", "built"),
    [(PublishedViT, ViTConfig, keras_vit.ViT_B16), (PublishedBiT, BiTConfig, keras_vit.BiT_R50x1)],
)
def test_constructors_have_the_arguments_of_the_configuration(published, config_class, built):
    written = dict(inspect.signature(published).parameters)
    del written["weights"]
    sizes = {field.name for field in dataclasses.fields(keras_vit.models.VIT["ViT-B/16"])}
    sizes |= {field.name for field in dataclasses.fields(keras_vit.models.BIT["BiT-R50x1"])}
    expected = {
        name: parameter for name, parameter in inspect.signature(config_class).parameters.items() if name not in sizes
    }
    assert list(written) == list(expected)
    for name, parameter in written.items():
        default = "auto" if name in ("image_size", "classes", "pool_padding") else expected[name].default
        assert (parameter.default, parameter.kind) == (default, expected[name].kind), name
    assert inspect.signature(built).parameters.keys() == {*written, "weights"}


@pytest.mark.parametrize(
    "thing", [keras_vit.VisionTransformer, keras_vit.BiTResNet, keras_vit.ViT_S16, keras_vit.BiT_R50x1]
)
def test_every_argument_is_documented_and_in_the_signature(thing):
    names = set(inspect.signature(thing).parameters) - {"self"}
    section = inspect.getdoc(thing).split("Args:", 1)[1].split("\n\n", 1)[0]
    documented = re.findall(r"^ {4}(\w+): ", section, flags=re.MULTILINE)
    assert set(documented) == names
    assert len(documented) == len(names)


@pytest.mark.slow
@pytest.mark.parametrize("name", variants.CASES)
def test_a_model_returns_the_arguments_that_built_it(name):
    model = variants.shared(name)
    config = model.get_config()
    assert type(model.config).from_dict(config) == model.config
    assert set(config) == set(type(model.config).names())
    assert config.get("class_token", False) is not None
    with keras.StatelessScope(initialize_variables=False):  # without values, which take time
        assert type(model)(**config).config == model.config


@pytest.mark.parametrize("name", selection.cases([name for name in variants.VARIANTS if name != "bit"], variants.QUICK))
def test_derived_properties_match_the_layers(name):
    model = variants.shared(name)
    config = model.config
    length = model.get_layer("encoderblock_0").output.shape[1]
    assert length in (None, config.num_tokens)
    if config.image_size is not None:
        assert model.get_layer("embedding").output.shape[1:3] == config.grid
        assert config.stride == tuple(np.array(config.image_shape[:2]) // config.grid)
    if config.has_position_table and config.position_embedding_at == "input":
        layer = model.get_layer("posembed_input")
        assert layer.table().shape[1:3] == config.grid
        if config.num_position_entries:
            assert layer.pos_embedding.shape[1] == config.num_position_entries
    if config.include_top:
        assert model.get_layer("head").input.shape[-1] == config.num_features
    assert [model.get_layer(f"encoderblock_{i}").drop_path_rate for i in range(2)] == list(config.drop_path_rates)


def test_grid_follows_from_another_image_size():
    config = ViTConfig(patch_size=(16, 8), image_size=None)
    assert config.grid == (14, 28)
    assert vit_config.grid(config.patch_size, image_size=32) == (2, 4)
    with pytest.raises(ValueError, match="image_size"):
        vit_config.grid(config.patch_size, image_size=40)
    assert ViTConfig(patch_size=1, resnet_blocks=(3, 4, 9)).grid == (14, 14)
    assert BiTConfig(width_factor=3).num_features == 6144


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ({"input_shape": (224, 224, 3)}, "image_size"),
        ({"num_classes": 5}, "classes"),
        ({"drop_rate": 0.1}, "dropout_rate"),
        ({"input_tensor": None}, "call the model on the tensor"),
        ({"dropout_rat": 0.1}, "dropout_rate"),
    ],
)
@pytest.mark.parametrize(
    ("constructor", "build"),
    [
        ("ViT_S16", keras_vit.ViT_S16),
        ("VisionTransformer", keras_vit.VisionTransformer),
        ("create_model", lambda **arguments: keras_vit.create_model("ViT-S/16", **arguments)),
    ],
)
def test_unknown_arguments_are_refused_with_a_suggestion(constructor, build, arguments, meant):
    with pytest.raises(ValueError if constructor == "create_model" else TypeError) as error:
        build(**arguments)
    message = str(error.value)
    assert message.startswith(f"{constructor}()")
    assert next(iter(arguments)) in message
    assert meant in message.split("Its arguments are")[0]


def test_weights_are_arguments_of_the_variants_only():
    with pytest.raises(TypeError, match="load_checkpoint"):
        keras_vit.VisionTransformer(weights="augreg")
    with pytest.raises(TypeError, match="`weights`"):
        keras_vit.ViT_S16(pretrained=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("patch_norm", "yes"), ("pool_prefix_tokens", 1), ("layer_norm_epsilon", "small"), ("layer_scale", "1e-4")],
)
def test_arguments_of_wrong_types_are_refused(name, value):
    """A string in place of a number was an error of the layer, and one in place of a bool counted as True."""
    with pytest.raises(ValueError, match=name):
        ViTConfig(pooling="gap", **{name: value})


def test_wrong_values_of_arguments_are_refused():
    with pytest.raises(ValueError, match="include_top=False"):
        keras_vit.ViT_S16(classes=None)
    with pytest.raises(ValueError, match="'gap'"):
        keras_vit.ViT_S16(pooling="avg")
    with pytest.raises(ValueError, match="include_top=False"):
        keras_vit.BiT_R50x1(classes=None)


@pytest.mark.slow
def test_stored_file_of_an_older_version_opens():
    model, data = keras.models.load_model(FILES / "vit.keras"), np.load(FILES / "vit.npz")
    np.testing.assert_allclose(model(data["images"]), data["outputs"], rtol=1e-5, atol=1e-5)
