"""The preprocessing of a checkpoint's project, from the files beside its tensors: the pixels of its image processor."""

import io
import json
import math
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_vit
from keras_vit.checkpoints.checkpoint import Checkpoint, Layout
from keras_vit.checkpoints.families import _preprocessing
from keras_vit.data import preprocess
from keras_vit.inference import light_preprocess, open_predictor
from keras_vit.models.normalization import operation
from keras_vit.models.resizing import Resizing
from tests import golden_data

PROCESSORS = golden_data.load("hf_image_processors")["meta"]["processors"]
FILTERS = {
    "pillow_bilinear": Image.Resampling.BILINEAR,
    "pillow_bicubic": Image.Resampling.BICUBIC,
    "pillow_lanczos": Image.Resampling.LANCZOS,
}


@pytest.mark.parametrize(
    ("patch_size", "size"), [(14, (224, 196)), ((16, 14), (224, 196)), ((14, 16), None), (16, None), (None, (224, 196))]
)
def test_size_that_is_not_a_multiple_of_the_patch_size_is_ignored(patch_size, size):
    found = Checkpoint(None, Layout("timm"), [], {}, arguments={"patch_size": patch_size})
    assert found.evaluated_size is None
    found.resizing = Resizing((224, 196), 256, "pillow_bicubic")
    assert found.evaluated_size == size


def encoded(image, form="png"):
    file = io.BytesIO()
    Image.fromarray(image).save(file, form)
    return file.getvalue()


@pytest.fixture(scope="module")
def processed():
    return golden_data.load("hf_image_processors")


def pixels(pp, content):
    """The result of a string, which is the same with and without TensorFlow."""
    light, whole = light_preprocess.function_of(pp)(content), preprocess.single_image(pp)(tf.constant(content)).numpy()
    np.testing.assert_array_equal(light, whole)
    return whole


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSORS)
def test_pixels_match_transformers(name, processed):
    document = PROCESSORS[name]
    mean, deviation = tuple(document["image_mean"]), tuple(document["image_std"])
    pp = f"{_preprocessing.of_transformers(document).operations()}|{operation((mean, deviation))}"
    for image in ("wide", "tall", "small"):
        found = pixels(pp, encoded(processed[f"images/{image}"]))
        # The order of rescaling and normalizing rounds differently; a pixel of another value is 1/255 away.
        np.testing.assert_allclose(found, processed[f"{name}/{image}"], rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", FILTERS)
def test_resizing_matches_pillow(method):
    random = np.random.default_rng(0)
    for height, width, new_height, new_width in [(60, 17, 20, 31), (70, 40, 20, 20), (7, 9, 40, 3), (31, 31, 31, 12)]:
        image = random.integers(0, 256, (height, width, 3), np.uint8)
        resized = Image.fromarray(image).resize((new_width, new_height), FILTERS[method])
        found = pixels(f"decode|resize(({new_height}, {new_width}), {method!r})", encoded(image))
        np.testing.assert_array_equal(found, np.asarray(resized))
    # The limit at which the order changes: the height is reduced exactly twice as much as the width.
    pixels(f"decode|resize((20, 20), {method!r})", encoded(random.integers(0, 256, (60, 40, 3), np.uint8)))
    gray = random.integers(0, 256, (23, 40), np.uint8)
    resized = Image.fromarray(gray).resize((19, 11), FILTERS[method])
    np.testing.assert_array_equal(
        pixels(f"decode(1)|resize((11, 19), {method!r})", encoded(gray))[..., 0], np.asarray(resized)
    )


def test_a_photograph_is_decoded_as_pillow_does(processed):
    content = encoded(processed["images/wide"], "jpeg")
    found = preprocess.single_image("decode(precise=True)")(tf.constant(content)).numpy()
    np.testing.assert_array_equal(found, np.asarray(Image.open(io.BytesIO(content))))


def test_floating_point_pixels_are_not_resized_as_bytes():
    with pytest.raises(ValueError, match="pillow_bicubic.*uint8.*float32"):
        preprocess.host_function("resize(8, 'pillow_bicubic')")({"image": tf.zeros([4, 4, 3])})


@pytest.mark.parametrize("height,width", [(50, 91), (91, 50), (64, 67), (40, 40)])
def test_evaluation_preprocessing_of_timm_is_read(height, width):
    """By the rules of torchvision: the longer side is cut off, and half of a pixel is rounded to the even number."""
    random = np.random.default_rng(0)
    image = random.integers(0, 256, (height, width, 3), np.uint8)
    resizing = _preprocessing.of_timm({"input_size": [3, 32, 32], "crop_pct": 0.9, "interpolation": "bicubic"})
    short = math.floor(32 / 0.9)
    sides = [int(short * side / min(height, width)) for side in (height, width)]
    resized = Image.fromarray(image).resize(sides[::-1], Image.Resampling.BICUBIC)
    top, left = (round((side - 32) / 2.0) for side in sides)
    expected = np.asarray(resized)[top : top + 32, left : left + 32]
    np.testing.assert_array_equal(pixels(resizing.operations(), encoded(image)), expected)


@pytest.mark.parametrize(
    "document",
    [
        {"do_resize": False, "size": 224},
        {"size": {"longest_edge": 224}},
        {"size": 224, "resample": 9},
        {"size": {"shortest_edge": "x"}},
        {"size": 224, "do_center_crop": True, "crop_size": 256},
        {"size": 10**9},
        {},
    ],
)
def test_unsupported_processors_are_not_guessed(document):
    assert _preprocessing.of_transformers(document) is None


@pytest.mark.parametrize(
    "config",
    [{}, {"input_size": [3, 32, 32], "crop_mode": "border"}, {"input_size": [3, 32, 32], "crop_pct": "1"}],
)
def test_unsupported_timm_preprocessing_is_not_guessed(config):
    assert _preprocessing.of_timm(config) is None


@pytest.mark.parametrize(
    ("size", "resized", "method", "rounding"),
    [
        ((32, 32), 31, "pillow_bicubic", "down"),
        ((32, 24), (32, 23), "pillow_bicubic", "down"),
        ((32, 32), 2**14 + 1, "pillow_bicubic", "down"),
        ((32, 32), 32, "bicubic", "down"),
        ((32, 32), 32, "pillow_bicubic", "up"),
        ((0, 32), 32, "pillow_bicubic", "down"),
    ],
)
def test_resizings_smaller_than_the_crop_are_refused(size, resized, method, rounding):
    Resizing((32, 24), (32, 24), "pillow_bicubic", "even")  # without a crop
    Resizing((32, 32), 2**14, "pillow_bicubic")
    with pytest.raises(ValueError, match="`resized` must be|`method`|`rounding`|`size`"):
        Resizing(size, resized, method, rounding)


def test_resizings_are_written_as_preprocessing_strings():
    gray = Resizing((20, 32), 40, "pillow_lanczos", "even")
    assert gray.operations(1) == (
        "decode(1, precise=True)|resize_small(40, 'pillow_lanczos')|central_crop((20, 32), rounding='even')"
    )
    stretched = Resizing((32, 32), (40, 36), "pillow_bilinear")
    assert stretched.operations() == ("decode(precise=True)|resize((40, 36), 'pillow_bilinear')|central_crop(32)")
    assert stretched.scaled((32, 32)) is stretched and stretched.scaled((48, 48)).resized == (48, 48)
    assert gray.scaled((32, 32)).resized == (32, 32)  # a crop that is not square has no proportion


def test_resize_scales_with_the_crop():
    photo = Resizing((224, 224), 256, "pillow_bicubic")
    assert photo.scaled((518, 518)) == Resizing((518, 518), 592, "pillow_bicubic")
    assert Resizing((224, 224), 256, "pillow_bicubic").scaled((230, 230)).resized == 263  # 262.86
    assert photo.scaled((224, 336)).operations() == "decode(precise=True)|resize((224, 336), 'pillow_bicubic')"
    dinov3 = _preprocessing.of_transformers({"image_processor_type": "DINOv3ViTImageProcessorFast", "size": 224})
    assert dinov3.operations() == "decode(precise=True)|resize(224, 'bilinear', antialias=True, cast=False)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory as of `facebook/dinov2-small` with a tiny network; its processor has another size than its table."""
    folder = tmp_path_factory.mktemp("dinov2")
    shutil.copy(golden_data.path("hf_dinov2.safetensors"), folder / "model.safetensors")
    config = json.loads(golden_data.path("hf_dinov2_config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    document = {**PROCESSORS["bit"], "size": {"shortest_edge": 48}, "crop_size": {"height": 42, "width": 42}}
    (folder / "preprocessor_config.json").write_text(json.dumps(document))
    return folder


OF_FOLDER = (
    "decode(precise=True)|resize_small(48, 'pillow_bicubic')|central_crop(42)|"
    "value_norm((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))"
)


@pytest.mark.slow
def test_predictions_of_a_folder_use_its_processor(folder, processed):
    predictor = open_predictor(folder)
    assert predictor.card.preprocess == OF_FOLDER and predictor.card.image_shape == (42, 42, 3)
    content = encoded(processed["images/wide"])
    features = predictor.features([content])
    np.testing.assert_array_equal(features, predictor.features(predictor.preprocess([content])))
    model = keras_vit.model_from_checkpoint(folder, image_size=42)
    expected = keras_vit.models.representation(model).predict(pixels(OF_FOLDER, content)[None], verbose=0)[0]
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)  # compiled together with the head
    assert open_predictor(folder, image_size=56).card.preprocess.startswith("decode(precise=True)|resize_small(64, ")


@pytest.mark.slow
def test_model_keeps_the_preprocessing_of_its_checkpoint(folder, tmp_path):
    model = keras_vit.model_from_checkpoint(folder, image_size=42)
    assert model.preprocess == OF_FOLDER
    assert keras_vit.model_from_checkpoint(folder).preprocess.startswith("decode(precise=True)|resize_small(64, ")
    model.save(tmp_path / "model.keras")
    for path in (tmp_path / "model.keras", keras_vit.save_checkpoint(model, tmp_path / "hf", format="huggingface")):
        assert open_predictor(path).card.preprocess == OF_FOLDER
    assert keras_vit.VisionTransformer(14, 32, 1, 2, 64, image_size=28).preprocess is None


@pytest.mark.slow
def test_a_checkpoint_without_a_head_returns_features(processed, tmp_path):
    arguments = {"activation": "gelu", "layer_scale": 0.1, "image_size": 42, "include_top": False}
    model = keras_vit.VisionTransformer(14, 32, 1, 2, 64, **arguments)
    model.input_normalization, model.resizing = (0.5, 0.5), Resizing((42, 42), 48, "pillow_bicubic")
    predictor = open_predictor(keras_vit.save_checkpoint(model, tmp_path / "hf", format="huggingface"))
    assert predictor.card.output == "features" and predictor.class_names == ()
    content = encoded(processed["images/tall"])
    found = predictor.predict([content])
    np.testing.assert_array_equal(found, predictor.features([content]))
    np.testing.assert_allclose(found, model(pixels(model.preprocess, content)[None]), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_damaged_resizing_metadata_are_refused(folder):
    model = keras_vit.model_from_checkpoint(folder)
    for fields in ({}, {"size": [42, 42], "resized": 10**6, "method": "pillow_bicubic", "rounding": "down"}, "x"):
        with pytest.raises((ValueError, TypeError), match="resiz"):
            type(model).from_config({**model.get_config(), "resizing": fields})
