"""The choice of trained weights: by name, in saved files, in `fit`, and after merging."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.adaptation.adapt import lora_layers
from keras_vit.exporting.inference_model import inference_model
from tests import tiny

HEAD = {"head/kernel", "head/bias"}


def paths(model):
    return {weight.path for weight in model.trainable_weights}


def found(model, *parts):
    return {weight.path for weight in model.weights if any(part in weight.path for part in parts)}


CHOICES = {
    "all": lambda model: found(model, "/"),
    "head": lambda model: HEAD,
    "last(1)": lambda model: found(model, "encoderblock_1/", "encoder_norm/", "head/"),
    "last(2)": lambda model: found(model, "encoderblock_", "encoder_norm/", "head/"),
    "bias": lambda model: found(model, "/bias") | HEAD,
    "lora": lambda model: found(model, "query/lora_kernel", "value/lora_kernel") | HEAD,
    "lora(rank=2, alpha=5, layers='Dense_0|/out')": lambda model: found(model, "lora_kernel_a", "lora_kernel_b") | HEAD,
    "weights('block_1/.*kernel')": lambda model: {path for path in found(model, "block_1/") if path.endswith("kernel")},
}


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
def test_only_the_selected_weights_are_trainable(choice, tmp_path):
    model = tiny.model()
    keras_vit.adapt(model, choice)
    expected = CHOICES[choice](model)
    assert paths(model) == expected
    assert {layer.lora_rank for layer in lora_layers(model)} == {"lora": {8}, "lora(": {2}}.get(
        choice[:5].rstrip(), set()
    )
    model.save(tmp_path / "model.keras")
    assert paths(keras.models.load_model(tmp_path / "model.keras")) == expected
    keras_vit.adapt(model, "all")
    kernels = {f"{layer.path}/kernel" for layer in lora_layers(model)}
    assert paths(model) == found(model, "/") - kernels


@pytest.mark.slow
def test_fit_updates_only_the_selected_weights_and_their_statistics():
    backbone = keras.Sequential([tiny.model(include_top=False), keras.layers.BatchNormalization(name="own_norm")])
    model = keras.Sequential([backbone, keras.layers.Dense(3, name="own_head")])
    model.build((None, tiny.SIZE, tiny.SIZE, 3))
    for choice, changed in {"head": "own_head", "weights('own_norm|own_head')": "own_norm|own_head"}.items():
        keras_vit.adapt(model, choice)
        before = {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights}
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        images = np.random.default_rng(0).normal(size=(6, tiny.SIZE, tiny.SIZE, 3)).astype("float32")
        model.fit(images, np.arange(6) % 3, batch_size=6, verbose=0)
        moved = {path for path, value in before.items() if (value != _value(model, path)).any()}
        assert moved == {path for path in before if any(part in path for part in changed.split("|"))}


def _value(model, path):
    return next(keras.ops.convert_to_numpy(weight) for weight in model.weights if weight.path == path)


@pytest.mark.slow
def test_adapt_discards_functions_compiled_for_other_trainable_weights():
    model = tiny.model(num_layers=1)
    for change in (lambda: keras_vit.adapt(model, "lora"), lambda: keras_vit.merge_adapter(model)):
        model.train_function = model.test_function = model.predict_function = print
        change()
        assert model.train_function is model.test_function is model.predict_function is None


def test_statistics_of_a_linear_probe_are_computed_from_the_images():
    model = tiny.model(head_norm=True)
    keras_vit.adapt(model, "head")
    assert model.get_layer("head_norm").trainable
    keras_vit.adapt(model, "bias")
    assert model.get_layer("head_norm").trainable
    keras_vit.adapt(model, "weights('cls')")
    assert not model.get_layer("head_norm").trainable


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, "int8"])
def test_a_merged_model_equals_the_adapted_model(mode, tmp_path):
    model, images = tiny.model(), np.random.default_rng(0).normal(size=(2, tiny.SIZE, tiny.SIZE, 3)).astype("float32")
    if mode:
        model.quantize(mode, filters="query")
    keras_vit.adapt(model, "lora(rank=2, layers='query|out|Dense_1')")
    plain = model(images)
    for layer in lora_layers(model):
        layer.lora_kernel_b.assign(np.random.default_rng(1).normal(scale=0.3, size=layer.lora_kernel_b.shape))
    expected = keras.ops.convert_to_numpy(model(images))
    assert np.abs(expected - plain).max() > 0.1
    copy = inference_model(model)  # as exports have it: factors of integers stay
    assert {layer.name for layer in lora_layers(copy)} == ({"query"} if mode else set())
    np.testing.assert_allclose(copy(images), expected, rtol=1e-4, atol=0.05 if mode else 1e-4)
    if mode is None:  # a model without LoRA reads the sums
        model.save(tmp_path / "lora.keras")
        loaded = keras_vit.model_from_checkpoint(tmp_path / "lora.keras")
        assert not lora_layers(loaded) and paths(loaded) == found(loaded, "/")
        np.testing.assert_allclose(loaded(images), expected, rtol=1e-4, atol=1e-4)
    keras_vit.merge_adapter(model)
    assert not lora_layers(model) and not found(model, "lora")
    np.testing.assert_allclose(model(images), expected, rtol=1e-4, atol=0.05 if mode else 1e-4)
    if mode is None:
        path = keras_vit.save_checkpoint(model, tmp_path / "merged.npz")
        np.testing.assert_allclose(keras_vit.model_from_checkpoint(path)(images), expected, rtol=1e-4, atol=1e-4)


ERRORS = {
    "lora(rank=0)": "rank",
    "lora(layers='attn')": "Names of these layers: .*query",
    "lora(8, layers='(')": "regular expression",
    "last": "blocks",
    "last(3)": "with 2",
    "weights('none')": "nothing to train",
    "lore": "lora",
    "head|bias": "Received: adapt='head|bias'",
}


@pytest.mark.parametrize("choice", ERRORS)
def test_wrong_specifications_are_refused(choice):
    with pytest.raises(ValueError, match=ERRORS[choice]):
        keras_vit.adapt(tiny.model(), choice)


@pytest.mark.slow
def test_models_without_the_required_layers_are_refused():
    with pytest.raises(ValueError, match="head"):
        keras_vit.adapt(tiny.model(include_top=False), "head")
    with pytest.raises(ValueError, match="no such layers"):
        keras_vit.adapt(keras_vit.BiTResNet((1,), image_size=16, classes=3), "lora")
    with pytest.raises(ValueError, match="keras_vit model"):
        keras_vit.adapt(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), "head")
    model = tiny.model()
    keras_vit.adapt(model, "lora(2)")
    keras_vit.adapt(model, "lora(2)")  # the same again, as after a load
    with pytest.raises(ValueError, match="merge_adapter"):
        keras_vit.adapt(model, "lora(4)")


def test_kernels_with_lora_stay_frozen_after_a_second_adapt():
    model = tiny.model(num_layers=1)
    for choice in ("lora", "head", "lora"):
        keras_vit.adapt(model, choice)
        assert not {f"{layer.path}/kernel" for layer in lora_layers(model)} & paths(model)


def test_existing_lora_of_another_scale_or_other_layers_is_refused():
    model = tiny.model(num_layers=1)
    keras_vit.adapt(model, "lora(2)")
    for choice in ("lora(2, alpha=5)", "lora(2, layers='query')"):
        with pytest.raises(ValueError, match="already has LoRA with rank=2, alpha=16. Received: rank=2, alpha="):
            keras_vit.adapt(model, choice)
