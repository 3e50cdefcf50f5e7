"""Images that were not preprocessed cause one warning."""

import ast
import functools
import io
import pathlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data import preprocess
from keras_vit.inference import keras_card
from keras_vit.models.inputs import kind_of_values
from keras_vit.models.normalization import IMAGENET
from tests import forked, selection, tiny


def model():
    return keras_vit.VisionTransformer(8, 16, 1, 2, 16, image_size=16, classes=2)


shared = functools.cache(model)  # for tests that do not change it


PIXELS = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), np.uint8)


def test_preprocess_input_scales_pixels_to_minus_one_and_one():
    prepared = keras_vit.preprocess_input(PIXELS)
    assert prepared.dtype == np.float32 and (prepared.min(), prepared.max()) == (-1.0, 1.0)
    tensor = keras.ops.convert_to_tensor(PIXELS)
    np.testing.assert_allclose(keras_vit.preprocess_input(tensor), prepared, rtol=0, atol=1e-6)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "P"])
def test_pillow_images_are_upright_in_every_mode(mode, orientation):
    """Like their files."""
    pillow = pytest.importorskip("PIL.Image")
    image = pillow.fromarray(np.repeat(np.arange(0, 240, 10, np.uint8).reshape(4, 6)[..., None], 3, -1)).convert(mode)
    exif = image.getexif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.save(file, "JPEG" if mode == "CMYK" else "PNG", exif=exif)
    expected = preprocess.single_image("decode(precise=True)|value_range(-1, 1)")(tf.constant(file.getvalue()))
    found = keras_vit.preprocess_input(pillow.open(file))
    np.testing.assert_allclose(found, expected[..., 0] if mode == "L" else expected, atol=1e-6)


def test_channels_first_is_refused():
    expected = keras_vit.preprocess_input(PIXELS)
    np.testing.assert_array_equal(keras_vit.preprocess_input(PIXELS, data_format="channels_last"), expected)
    with pytest.raises(ValueError, match="data_format.*channels_last"):
        keras_vit.preprocess_input(PIXELS, data_format="channels_first")
    with pytest.raises(ValueError, match="`model`"):  # the second argument in keras.applications
        keras_vit.preprocess_input(PIXELS, "channels_last")


@pytest.mark.slow
def test_traced_models_print_nothing():
    assert forked.run("tests.models.traced") == (0, "")


# Their functions run when something is built, saved or opened, never inside of a trace.
NOT_TRACED = ("data/readers/", "data/sources.py")


@pytest.mark.slow
def test_autograph_can_read_what_users_trace():
    package = pathlib.Path(keras_vit.__file__).parent
    files = [*package.glob("*.py")]
    files += [
        path for subpackage in ("layers", "models", "optim", "data") for path in (package / subpackage).rglob("*.py")
    ]
    unreadable = (ast.NamedExpr, ast.Match, ast.AsyncFunctionDef)
    found = [
        f"{path}:{node.lineno}"
        for path in files
        if not path.relative_to(package).as_posix().startswith(NOT_TRACED)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, unreadable)
    ]
    assert found == []


@pytest.mark.parametrize("images", [PIXELS, PIXELS.astype("float32"), keras.ops.convert_to_tensor(PIXELS)])
def test_unscaled_pixels_are_warned_of_once(images):
    network = model()
    with pytest.warns(UserWarning, match="preprocess_input"):
        network(images)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(images)


FRACTIONS = PIXELS.astype("float32") / 255
SCALED = keras_vit.preprocess_input(PIXELS)
LABELS = np.zeros(2)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["predict", "predict_on_batch"])
def test_integer_images_are_detected_when_keras_traces_the_model(method):
    with pytest.warns(UserWarning, match="preprocess_input"):
        getattr(model(), method)(PIXELS)


def test_black_images_give_no_warning_and_the_next_batch_is_checked():
    network = model()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        network(np.zeros((2, 16, 16, 3), "float32"))
    with pytest.warns(UserWarning, match=r"\[0, 255\]"):
        network(PIXELS.astype("float32"))


def test_first_black_image_of_a_batch_does_not_prevent_the_warning():
    batch = np.concatenate([np.zeros((1, 16, 16, 3), "float32"), FRACTIONS])
    with pytest.warns(UserWarning, match=r"\[0, 1\]"):
        model()(batch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("normalization", "right", "wrong"),
    [((0.0, 1.0), FRACTIONS, SCALED), ((0.0, 1 / 255), PIXELS, FRACTIONS), (IMAGENET, SCALED, FRACTIONS)],
)
def test_the_warning_follows_the_normalization_of_the_weights(normalization, right, wrong):
    network = model()
    network.input_normalization = normalization
    with pytest.warns(UserWarning, match=r"preprocess_input\(images, model\)"):
        network(wrong)
    network = model()
    network.input_normalization = normalization
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        network(right)


@pytest.mark.slow
def test_checking_a_generator_consumes_no_batch():
    network = model()
    network.compile("sgd", "mse", run_eagerly=True)
    seen = []

    def batches():
        for number in range(2):
            seen.append(number)
            yield SCALED, np.zeros((2, 2))

    network.fit(batches(), verbose=0)
    assert seen == [0, 1]


@pytest.mark.parametrize("images", [FRACTIONS, SCALED])
def test_already_scaled_pixels_are_detected(images):
    with pytest.warns(UserWarning, match="preprocess_input takes pixels"):
        keras_vit.preprocess_input(images)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((0, 1.0), "values in [0, 1]"),
        ((0.5, 1.0), "values in [0, 1]"),
        ((0, 1.001), None),
        ((0, 4.0), None),
        ((0, 4.001), "pixels in [0, 255]"),
        ((-1e-3, 0.5), "values around 0"),
        ((-4.0, 4.0), "values around 0"),
        ((-4.001, 0), "pixels in [0, 255]"),
        ((0.5, 0.5), None),
    ],
)
def test_value_ranges_are_classified_at_their_bounds(values, kind):
    assert kind_of_values(np.float32(values)) == kind


def test_first_images_of_a_batch_are_checked():
    batch = np.zeros((34, 2), "float32")
    batch[32:] = 200.0
    assert kind_of_values(batch) is None  # 32 black images
    batch[31] = 0.5
    assert kind_of_values(batch) == "values in [0, 1]"


@pytest.mark.parametrize("images", [np.zeros((2, 4, 4, 3), "float32"), np.ones((2, 4, 4, 3), "uint8")])
def test_black_images_are_pixels(images):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        keras_vit.preprocess_input(images)


@pytest.mark.slow
def test_a_dict_or_list_of_one_tensor_is_read_as_the_tensor():
    network = tiny.randomize(model())
    network.compile("sgd", "mse", run_eagerly=True)
    expected = network.predict(SCALED, verbose=0)
    forms = [{"images": SCALED}, {"image": SCALED}, [SCALED]]
    for inputs in forms:
        np.testing.assert_array_equal(network.predict(inputs, verbose=0), expected)
        np.testing.assert_array_equal(network(inputs), expected)
    for inputs in forms:
        network.fit(inputs, np.zeros((2, 2)), verbose=0)
    network.fit(tf.data.Dataset.from_tensors(({"images": SCALED}, np.zeros((2, 2)))), verbose=0)


@pytest.mark.parametrize("method", ["predict", "evaluate", "fit", "train_on_batch", "predict_on_batch"])
@pytest.mark.parametrize("images", [SCALED[:, :8], {"images": SCALED[:, :8]}], ids=["array", "dict"])
def test_wrong_image_size_is_refused(method, images):
    network = model()
    network.compile("sgd", "mse", run_eagerly=True)
    labels = () if method.startswith("predict") else (LABELS,)
    with pytest.raises(ValueError, match=r"\(None, 16, 16, 3\).* Received: \(2, 8, 16, 3\)"):
        getattr(network, method)(images, *labels)


@pytest.mark.slow
def test_wrong_image_size_in_a_dataset_is_refused():
    with pytest.raises(ValueError, match=r"\(None, 16, 16, 3\).* Received: \(2, 8, 16, 3\)"):
        model().predict(tf.data.Dataset.from_tensors(SCALED[:, :8]), verbose=0)


def test_models_of_symbolic_images_check_their_shape():
    with pytest.raises(ValueError, match=r"Received: \(None, 8, 32, 3\)"):  # of as many patches
        shared()(keras.Input((8, 32, 3)))


@pytest.mark.slow
def test_datasets_of_unknown_shape_are_left_to_keras():
    batches = tf.data.Dataset.from_generator(lambda: [SCALED], output_types=tf.float32)
    assert model().predict(batches, verbose=0, steps=1).shape == (2, 2)


def outputs(network, images):
    return keras.ops.convert_to_numpy(keras.ops.cast(network(images), "float32"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "normalization"),
    selection.cases(
        [
            (arguments, normalization)
            for arguments in ({}, {"resnet_blocks": (1,), "patch_size": 1}, None)
            for normalization in (None, (0.4, 0.2), IMAGENET)
        ],
        [({}, IMAGENET), (None, (0.4, 0.2))],
    ),
)
def test_model_with_an_input_range_normalizes_pixels(normalization, arguments, tmp_path):
    def build(**others):
        if arguments is None:
            return keras_vit.BiTResNet((1,), image_size=16, classes=2, **others)
        sizes = {"patch_size": 8, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 16, "image_size": 16}
        return keras_vit.VisionTransformer(**{**sizes, "classes": 2, **arguments, **others})

    plain, network = tiny.randomize(build()), tiny.randomize(build(input_range=(0, 255)))
    network.predict(PIXELS, verbose=0)  # what it compiles must not stay
    network.input_normalization = normalization
    mean, deviation = np.asarray(normalization or (0.5, 0.5), np.float32)
    expected = outputs(plain, ((PIXELS / 255 - mean) / deviation).astype("float32"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        np.testing.assert_allclose(network.predict(PIXELS, verbose=0), expected, rtol=1e-4, atol=1e-4)
        for images in (PIXELS, PIXELS.astype("float32"), keras_vit.preprocess_input(PIXELS, network)):
            np.testing.assert_allclose(outputs(network, images), expected, rtol=1e-4, atol=1e-4)
    network.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match=r"takes float images in \[0, 255\]. Received: values in \[0, 1\]"):
        loaded(FRACTIONS)
    np.testing.assert_allclose(outputs(loaded, PIXELS), expected, rtol=1e-4, atol=1e-4)


def test_pixels_reach_the_first_layer_in_float32():
    """bfloat16 has 8 bits: 255 and 254 would be one value after rounding of fractions."""
    network = model_with_range(dtype="mixed_bfloat16")
    scaled = keras.Model(network.input, network.get_layer("rescaling").output)
    images = np.full((1, 16, 16, 3), 254.5, "float32")
    np.testing.assert_allclose(scaled(images), images / 127.5 - 1, rtol=0, atol=1e-6)


def model_with_range(**arguments):
    return keras_vit.VisionTransformer(8, 16, 1, 2, 16, image_size=16, classes=2, input_range=(0, 255), **arguments)


@pytest.mark.slow
def test_a_checkpoint_sets_the_values_of_the_first_layer(tmp_path):
    trained = tiny.randomize(model())
    trained.input_normalization = IMAGENET
    path = keras_vit.save_checkpoint(trained, tmp_path / "hf", format="huggingface")
    network = keras_vit.model_from_checkpoint(path, input_range=(0, 255))
    expected = outputs(trained, keras_vit.preprocess_input(PIXELS, trained))
    np.testing.assert_allclose(outputs(network, PIXELS), expected, rtol=1e-4, atol=1e-4)
    again = model_with_range()
    keras_vit.load_checkpoint(again, path)
    np.testing.assert_allclose(outputs(again, PIXELS), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_an_export_of_pixels_does_not_normalize_twice():
    card = keras_card.card_of_model(model_with_range(), "model.keras", None, ())
    pixels = preprocess.single_image(card.preprocess)(tf.io.encode_png(PIXELS[0]))
    np.testing.assert_allclose(pixels, PIXELS[0], rtol=1e-5)


def test_preprocessed_images_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        network = model()
        network(keras_vit.preprocess_input(PIXELS))
        keras.Model(network.input, network.get_layer("head").output)
        network(keras.Input((16, 16, 3)))


def test_package_exports_all_subpackages():
    assert {"data", "training", "optim", "evaluators", "inspection", "export", "models"} <= set(keras_vit.__all__)
    from keras_vit import exporting

    assert keras_vit.export is exporting.export
    with pytest.raises(AttributeError, match="nothing"):
        _ = keras_vit.nothing
