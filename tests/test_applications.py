"""The constructors of the published variants, such as `keras_vit.ViT_B16`."""

import inspect
import re

import keras
import numpy as np
import pytest

import keras_vit


@pytest.mark.slow
def test_the_constructor_builds_its_variant_with_the_documented_arguments():
    model = keras_vit.ViT_Ti16(image_size=32, classes=5, pooling="gap", dtype="mixed_bfloat16")
    assert model.name == "vit_ti16"
    assert model.output_shape == (None, 5)
    assert model.get_config()["pooling"] == "gap"
    assert keras_vit.BiT_R50x1(64, 3).output_shape == (None, 3)
    parameters = inspect.signature(keras_vit.ViT_B16).parameters
    assert list(parameters)[:5] == ["image_size", "classes", "weights", "include_top", "pooling"]
    assert "keras_vit.VisionTransformer" in keras_vit.ViT_B16.__doc__


@pytest.mark.slow
def test_the_docstring_lists_the_published_weights_with_their_accuracy():
    text = inspect.getdoc(keras_vit.ViT_B16)
    assert "'augreg'`: trained on ImageNet-21k, then ImageNet, 384 pixels, 85.49%" in text
    assert "'sam'`: trained on ImageNet, 224 pixels\n" in text
    assert "'dinov2'`: trained on LVD-142M, without a head, 518 pixels\n" in inspect.getdoc(keras_vit.ViT_S14)
    assert re.search(r"Published weights:\s+None\.", inspect.getdoc(keras_vit.ViT_g14))
    for name in inspect.signature(keras_vit.ViT_B16).parameters:
        assert f"\n    {name}: " in text, name
    (example,) = re.findall(r"```python\n(.*?)```", inspect.getdoc(keras_vit.ViT_Ti16), re.DOTALL)
    exec(example, {"keras": keras, "keras_vit": keras_vit})


def test_every_constructor_is_public_and_named_after_its_model():
    names = {name for name in keras_vit.__all__ if name.startswith(("ViT_", "R_", "R26_", "R50_", "BiT_"))}
    assert len(names) == len(keras_vit.list_models()) == 30
    assert all(getattr(keras_vit, name).__name__ == name for name in names)


@pytest.mark.slow
def test_weights_may_be_a_file_of_another_resolution_and_number_of_classes(tmp_path):
    trained = keras_vit.ViT_Ti16(image_size=32, classes=3)
    trained.get_layer("head").kernel.assign(np.ones((192, 3)))  # a new head is zero
    keras_vit.save_checkpoint(trained, tmp_path / "trained.npz", format="google")
    model = keras_vit.ViT_Ti16(image_size=48, classes=4, weights=tmp_path / "trained.npz")
    np.testing.assert_array_equal(
        model.get_layer("encoderblock_11").get_weights()[0], trained.get_layer("encoderblock_11").get_weights()[0]
    )
    assert not model.get_layer("head").kernel.numpy().any()


@pytest.fixture
def without_values(monkeypatch):
    """Models with published weights are built, but no variable gets a value."""
    from keras_vit import applications

    monkeypatch.setattr(applications.zoo.WeightsName, "local", lambda _: "")
    monkeypatch.setattr(applications, "load_checkpoint", lambda *_: None)
    with keras.StatelessScope(initialize_variables=False):
        yield


@pytest.mark.slow
def test_image_size_is_the_image_size_of_the_weights(without_values):
    assert keras_vit.ViT_Ti16(weights="augreg").input_shape == (None, 384, 384, 3)
    assert keras_vit.ViT_Ti16(weights="augreg", image_size=224).input_shape == (None, 224, 224, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "names"),
    [(keras_vit.ViT_Ti16, ["image_size", "classes"]), (keras_vit.BiT_R50x1, ["image_size", "classes", "pool_padding"])],
)
def test_the_signature_has_no_defaults_for_arguments_from_the_weights(build, names):
    parameters = inspect.signature(build).parameters
    assert [name for name, parameter in parameters.items() if parameter.default == "auto"] == names
    model = build(**dict.fromkeys(names, "auto"))
    assert (model.input_shape, model.output_shape) == ((None, 224, 224, 3), (None, 1000))
    assert build(image_size=None, classes=2).input_shape == (None, None, None, 3)


@pytest.mark.slow
def test_classes_are_the_classes_of_the_weights(without_values):
    assert keras_vit.ViT_Ti16(weights="augreg-imagenet21k").output_shape == (None, 21843)
    assert keras_vit.ViT_Ti16(weights="augreg-imagenet21k", classes=3).output_shape == (None, 3)


@pytest.mark.parametrize(
    ("model", "weights", "given", "expected"),
    [
        ("BiT-R50x1", "bit-m", {}, {"classes": 21_843, "pool_padding": "zeros", "image_size": 224}),
        (
            *("BiT-R50x1", "bit-m", {"classes": 2, "pool_padding": "edge", "image_size": 96}),
            {"classes": 2, "pool_padding": "edge", "image_size": 96},
        ),
        (
            *("ViT-B/16", "siglip", {}),
            {"pooling": "map", "class_token": False, "include_top": False, "image_size": 224},
        ),
        (
            *("ViT-B/16", "siglip", {"classes": 3, "pooling": "gap"}),
            {"pooling": "gap", "class_token": False, "include_top": True, "image_size": 224, "classes": 3},
        ),
        ("ViT-B/16", "siglip", {"head": print}, {"class_token": False, "image_size": 224, "head": print}),
    ],
)
def test_arguments_of_the_caller_precede_arguments_of_the_weights(model, weights, given, expected):
    """Weights without a head have one if the caller names the classes. A given head replaces the pooling."""
    assert keras_vit.applications._with_published(keras_vit.zoo.find(model, weights), given) == expected


def test_unknown_weights_and_arguments_are_errors():
    with pytest.raises(ValueError, match="augreg"):
        keras_vit.ViT_B16(weights="augregg")
    with pytest.raises(TypeError, match="dropout"):
        keras_vit.ViT_B16(dropout=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build", [keras_vit.ViT_Ti16, keras_vit.BiT_R50x1, lambda **kw: keras_vit.create_model("ViT_Ti16", **kw)]
)
def test_constructors_accept_a_name_for_the_model(build):
    assert build(image_size=32, classes=2, name="mine").name == "mine"


@pytest.mark.slow
def test_variants_are_found_by_the_names_of_their_constructors():
    model = keras_vit.create_model("R26_S32", image_size=32, classes=2)
    assert model.get_config() == keras_vit.create_model("R26+ViT-S/32", image_size=32, classes=2).get_config()
