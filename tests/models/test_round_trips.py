"""Saving, loading and cloning of every model under every dtype policy, also in another process."""

import copy
import json

import keras
import numpy as np
import pytest

from keras_vit import load_checkpoint, model_from_checkpoint, save_checkpoint
from keras_vit.models.predictions import of_head
from keras_vit.util.values import Values
from tests import forked, selection
from tests.models import variants

POLICIES = ("float32", "mixed_bfloat16", "bfloat16")
REBUILT = ("dinov3", "map", "shared", "deit", "hybrid", "any_size")


def run(model, images):
    return keras.ops.convert_to_numpy(keras.ops.cast(model(images), "float32"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "policy"), variants.cases_under(POLICIES))
def test_saved_models_give_the_same_output(name, policy, tmp_path):
    model = variants.shared(name, policy)
    images = variants.images(model)
    expected = run(model, images)

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert loaded.get_config() == model.get_config()
    assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
    np.testing.assert_array_equal(run(loaded, images), expected)


@pytest.mark.slow
@pytest.mark.parametrize("extension", ["h5", "hdf5"])
def test_a_model_is_loaded_from_hdf5(extension, tmp_path):
    model = variants.shared("gap", "float32")
    model.save(tmp_path / f"model.{extension}")
    loaded = keras.models.load_model(tmp_path / f"model.{extension}")
    assert type(loaded) is type(model)
    assert loaded.get_config() == model.get_config()
    images = variants.images(model)
    np.testing.assert_array_equal(run(loaded, images), run(model, images))


@pytest.mark.slow
def test_hdf5_file_is_not_overwritten_without_permission(tmp_path, monkeypatch):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "model.h5")
    content = (tmp_path / "model.h5").read_bytes()
    monkeypatch.setattr("builtins.input", lambda *_: "n")
    variants.shared("gap", "float32").save(tmp_path / "model.h5", overwrite=False)
    assert (tmp_path / "model.h5").read_bytes() == content


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    selection.cases(
        [(name, policy) for policy in POLICIES for name in variants.VARIANTS],
        lambda name, policy: policy == "float32" and name in variants.QUICK,
        lambda name, policy: pytest.mark.slow if policy == "float32" and name in REBUILT else selection.EXHAUSTIVE,
    ),
)
def test_weights_and_clones_give_the_same_output(name, policy, tmp_path):
    model = variants.shared(name, policy)
    images = variants.images(model)
    expected = run(model, images)

    model.save_weights(tmp_path / "model.weights.h5")
    rebuilt = type(model).from_config(model.get_config())
    rebuilt.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(run(rebuilt, images), expected)

    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    # Keras' clone is a plain functional model, whose last block computes all tokens: matrix products of other shapes.
    tolerance = 1e-5 if policy == "float32" else 0.02
    np.testing.assert_allclose(run(clone, images), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", selection.cases(variants.VARIANTS, variants.QUICK, selection.EXHAUSTIVE))
def test_configuration_is_json(name):
    config = variants.shared(name).get_config()
    assert json.loads(json.dumps(config)) == config


@pytest.mark.slow
def test_another_process_loads_the_file(tmp_path):
    models = {
        name: variants.make(name, policy) for name, policy in zip(("hybrid", "bit", "map"), POLICIES, strict=True)
    }
    for name, model in models.items():
        model.save(tmp_path / f"{name}.keras")
        np.savez(tmp_path / f"{name}.npz", images=variants.images(model), expected=run(model, variants.images(model)))
    program = (
        "import sys, pathlib, keras, numpy as np, keras_vit\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).glob('*.keras')):\n"
        "    data = np.load(path.with_suffix('.npz'))\n"
        "    got = keras.ops.cast(keras.models.load_model(path)(data['images']), 'float32')\n"
        "    np.testing.assert_array_equal(keras.ops.convert_to_numpy(got), data['expected'])\n"
        "    print(path.stem)\n"
    )
    code, output = forked.run("-c", program, tmp_path)
    assert code == 0, output
    assert output.split() == ["bit", "hybrid", "map"]


@pytest.mark.slow
def test_frozen_layers_stay_frozen(tmp_path):
    model = variants.make("token")
    model.get_layer("embedding").trainable = False
    model.get_layer("encoderblock_0").trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert [v.path for v in loaded.trainable_variables] == [v.path for v in model.trainable_variables]
    assert len(loaded.trainable_variables) < len(loaded.weights)


@pytest.mark.slow
def test_a_changed_clone_has_one_argument_changed():
    model = variants.make("token")
    larger = type(model).from_config({**model.get_config(), "image_size": 32})
    assert larger.input_shape == (None, 32, 32, 3)
    assert {k: v for k, v in larger.get_config().items() if k != "image_size"} == {
        k: v for k, v in model.get_config().items() if k != "image_size"
    }


@pytest.mark.slow
def test_layers_are_found_by_name_and_replaced():
    model = variants.make("token")
    features = keras.Model(model.input, model.get_layer("encoderblock_0").output)
    head = keras.layers.Dense(5, name="new_head")(model.get_layer("pool").output)
    images = variants.images(model)
    assert features(images).shape == (2, 9, 16)
    assert keras.Model(model.input, head)(images).shape == (2, 5)
    for name in ("embedding", "cls", "posembed_input", "encoderblock_1", "encoder_norm", "head"):
        assert model.get_layer(name).weights


NAMES = ("café", "dog", "bee")


def test_prediction_activation_is_saved_without_class_names():
    model = variants.make("token", classes=3)
    model.prediction_activation = "sigmoid"
    assert type(model).from_config(model.get_config()).prediction_activation == "sigmoid"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deit", "bit", "probabilities"])
def test_class_names_are_saved_with_the_model(name, tmp_path):
    activation = {"classifier_activation": "softmax"} if name == "probabilities" else {}
    model = variants.make("token" if activation else name, classes=3, **activation)
    assert model.class_names is None
    model.class_names, model.prediction_activation = list(NAMES), "sigmoid"
    model.save(tmp_path / "model.keras")
    for copied in (
        keras.models.load_model(tmp_path / "model.keras"),
        copy.deepcopy(model),
        type(model).from_config({**model.get_config(), "image_size": 48}),
        model_from_checkpoint(tmp_path / "model.keras"),
    ):
        assert (copied.class_names, copied.prediction_activation) == (NAMES, "sigmoid")
    assert model_from_checkpoint(tmp_path / "model.keras", classes=4).prediction_activation is None
    with pytest.raises(ValueError, match="prediction_activation"):
        model.prediction_activation = "tanh"
    inputs = keras.Input(model.input_shape[1:])
    clone = keras.models.clone_model(model)
    clone.save(tmp_path / "clone.keras")
    logits = keras.Model(model.input, model.get_layer("head").output)
    around = keras.Model(inputs, model(keras.layers.RandomFlip()(inputs)))
    for copied in (clone, keras.models.load_model(tmp_path / "clone.keras"), logits, around):
        assert (of_head(copied, "class_names"), of_head(copied, "prediction_activation")) == (NAMES, "sigmoid")
        assert of_head(keras.Sequential([keras.layers.RandomFlip(), copied]), "class_names") == NAMES


VALUES = Values(("age", "height"), mean=(40.0, 1.7), deviation=(10.0, 0.1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["token"])
def test_regression_values_are_saved_with_the_model(name, tmp_path):
    model = variants.make(name, classes=2)
    assert model.values is None
    model.values = VALUES
    model.save(tmp_path / "model.keras")
    other = variants.make(name, classes=2)
    other.class_names = NAMES[:2]
    load_checkpoint(other, tmp_path / "model.keras")
    for copied in (
        keras.models.load_model(tmp_path / "model.keras"),
        copy.deepcopy(model),
        model_from_checkpoint(tmp_path / "model.keras"),
        other,
    ):
        assert copied.values == VALUES and copied.class_names is None
    around = keras.Model(model.input, model(keras.layers.RandomFlip()(model.input)))
    for copied in (keras.models.clone_model(model), around):
        assert of_head(copied, "values") == VALUES
    assert model_from_checkpoint(tmp_path / "model.keras", classes=3).values is None
    load_checkpoint(other, save_checkpoint(variants.make(name, classes=2), tmp_path / "timm", format="timm"))
    assert other.values is None  # the head is another


@pytest.mark.slow
def test_wrong_regression_values_are_refused():
    model = variants.make("token", classes=2)
    for wrong in (Values(("age",), (40.0,), (10.0,)), {"names": ["age"]}, "age"):
        with pytest.raises(ValueError, match="[Vv]alues"):
            model.values = wrong
    for other in (variants.make("token", classes=2, classifier_activation="sigmoid"), variants.make("features")):
        with pytest.raises(ValueError, match="values"):
            other.values = VALUES
    model.values = VALUES.to_dict()
    with pytest.raises(ValueError, match="class_names.*values=None"):
        model.class_names = NAMES[:2]
    model.values, model.class_names = None, NAMES[:2]
    with pytest.raises(ValueError, match="class_names=None"):
        model.values = VALUES
    assert "values" not in model.get_config()


@pytest.mark.slow
def test_other_heads_have_no_class_names():
    model = variants.make("token", classes=3)
    model.class_names = NAMES
    config = model.get_config()
    for change in ({"classes": 4}, {"include_top": False}):
        assert type(model).from_config({**config, **change}).class_names is None
    inputs = keras.Input(model.input_shape[1:])
    assert of_head(keras.Model(inputs, keras.layers.Dense(3)(model(inputs))), "class_names") is None
    assert of_head(keras.Model(model.input, model.get_layer("head").input), "class_names") is None
    for wrong in (NAMES[:2], "abc", 3):
        with pytest.raises(ValueError, match="class_names"):
            model.class_names = wrong
    with pytest.raises(ValueError, match="class_names"):
        variants.make("token", include_top=False).class_names = NAMES
    assert model.class_names == NAMES
    model.class_names = None
    assert "class_names" not in model.get_config()


@pytest.mark.slow
def test_class_names_follow_the_head_that_is_loaded(tmp_path):
    model, other = variants.make("token", classes=3), variants.make("token", classes=3)
    model.class_names = NAMES
    for path in (tmp_path / "model.npz", tmp_path / "model.keras"):
        model.save(path) if path.suffix == ".keras" else save_checkpoint(model, path)
        other.class_names = None
        load_checkpoint(other, path)
        assert other.class_names == model_from_checkpoint(path).class_names == NAMES
        assert model_from_checkpoint(path, classes=4).class_names is None
    load_checkpoint(other, path, head="reset")
    assert other.class_names == NAMES  # chosen for the model, whose head is new
    model.class_names = None
    load_checkpoint(other, save_checkpoint(model, tmp_path / "model.npz"))
    assert other.class_names is None  # the head is another, of unknown classes
    other.class_names = NAMES
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    assert other.class_names == NAMES
