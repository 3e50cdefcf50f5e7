"""One way to open everything that predicts."""

import copy
import functools
import hashlib
import json
import shutil

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit import inference
from tests import selection, tiny

PREPROCESS = "value_range(-1, 1)"


@pytest.fixture(scope="module")
def expected():
    """A model, and its probabilities for six images."""
    model = tiny.model()
    predictor = inference.KerasPredictor(model, tiny.card())
    return model, predictor.predict(predictor.preprocess(tiny.images().contents))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", selection.cases(["model.keras", "model.npz", "model.safetensors", "model_directory"], ["model.keras"])
)
def test_predictors_open_every_model_file(expected, name, tmp_path):
    model, probabilities = expected
    path = tmp_path / name
    if name.endswith(".keras"):
        model.save(path)
    else:
        keras_vit.save_checkpoint(model, path, format="google" if name.endswith(".npz") else "timm")
    predictor = inference.open_predictor(path, preprocess=PREPROCESS, class_names=tiny.CLASS_NAMES)
    assert (predictor.kind, predictor.scores_are) == ("keras", "logits")
    assert predictor.class_names == tiny.CLASS_NAMES
    images = predictor.preprocess(tiny.images().contents)
    np.testing.assert_allclose(predictor.predict(images), probabilities, atol=1e-5)
    assert predictor.features(images).shape == (6, 16)


@pytest.mark.slow
def test_run_is_opened_with_its_preprocessing(tmp_path):
    tiny.write_digits_run(tmp_path / "run")
    for path in (tmp_path / "run", tmp_path / "run" / "model.keras"):
        predictor = inference.open_predictor(path)
        assert predictor.card.preprocess == "decode(1)|resize((8, 8), method='area')|value_range(-1, 1)"
        assert predictor.class_names == tuple("0123456789")
    other = inference.open_predictor(tmp_path / "run", preprocess="value_range(0, 1)", class_names=list("abcdefghij"))
    assert other.card.preprocess.endswith("value_range(0, 1)")
    assert other.class_names == tuple("abcdefghij")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.keras", "model.npz"])
def test_files_of_a_new_model_predict_without_further_arguments(name, tmp_path, caplog):
    """A file of another project without metadata has the same range."""
    model = tiny.model()
    model.class_names = tiny.CLASS_NAMES
    model.save(tmp_path / name) if name.endswith(".keras") else keras_vit.save_checkpoint(model, tmp_path / name)
    predictor = inference.open_predictor(tmp_path / name)
    assert predictor.card.preprocess.endswith("|value_range(-1, 1)")
    assert any("--preprocess" in message and "[-1, 1]" in message for message in caplog.messages)
    if name.endswith(".keras"):
        assert predictor.class_names == tiny.CLASS_NAMES
    pixels = predictor.preprocess(tiny.images(1).contents)
    np.testing.assert_allclose(predictor.scores(pixels), model(pixels), atol=1e-5)


@pytest.mark.slow
def test_artifact_is_opened_with_its_preprocessing(served):
    predictor = inference.open_predictor(served[1])
    assert predictor.kind == "saved_model"
    assert predictor.class_names == tiny.CLASS_NAMES
    for options in ({"preprocess": PREPROCESS}, {"class_names": tiny.CLASS_NAMES}):
        with pytest.raises(ValueError, match="Leave out preprocess and class_names"):
            inference.open_predictor(served[1], **options)


@pytest.mark.slow
def test_class_names_are_read_from_a_text_file(expected, tmp_path):
    expected[0].save(tmp_path / "model.keras")
    (tmp_path / "names.txt").write_text("\n".join(tiny.CLASS_NAMES) + "\n", encoding="utf-8")
    open_with = {"preprocess": PREPROCESS, "class_names": tmp_path / "names.txt"}
    assert inference.open_predictor(tmp_path / "model.keras", **open_with).class_names == tiny.CLASS_NAMES
    (tmp_path / "names.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match="class_names"):
        inference.open_predictor(tmp_path / "model.keras", **open_with)


@pytest.mark.slow
def test_class_names_of_a_wrapped_model_are_found(expected, tmp_path):
    model = copy.deepcopy(expected[0])
    model.class_names = tiny.CLASS_NAMES
    inputs = keras.Input(model.input_shape[1:])
    keras.Model(inputs, model(keras.layers.RandomFlip()(inputs))).save(tmp_path / "around.keras")
    predictor = inference.open_predictor(tmp_path / "around.keras", preprocess=PREPROCESS)
    assert predictor.class_names == tiny.CLASS_NAMES
    assert "class_names" not in predictor.card.arguments


@pytest.mark.slow
@pytest.mark.parametrize("content", ["\ufeffcafé\ndog\n", "café\r\ndog\r\n\r\n \n", "café\ndog"])
def test_byte_order_mark_and_blank_lines_in_class_name_files_are_ignored(content, tmp_path):
    """A byte order mark became part of the first name, and an empty line at the end a name."""
    tiny.model(classes=2).save(tmp_path / "model.keras")
    (tmp_path / "names.txt").write_bytes(content.encode())
    open_with = {"preprocess": PREPROCESS, "class_names": str(tmp_path / "names.txt")}
    assert inference.open_predictor(tmp_path / "model.keras", **open_with).class_names == ("café", "dog")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dog\ncafé\n".encode("latin-1"), r"names\.txt must be UTF-8. Line 2 .*xe9.*Save the file as UTF-8"),
        ("dog\ncafé\n".encode("utf-16"), r"names\.txt must be UTF-8"),
        (b"\n", r"names\.txt must have a text in each line. Received: an empty file"),
    ],
)
def test_unreadable_class_name_file_is_refused(content, message, tmp_path):
    tiny.model(classes=2).save(tmp_path / "model.keras")
    (tmp_path / "names.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        inference.open_predictor(tmp_path / "model.keras", preprocess=PREPROCESS, class_names=tmp_path / "names.txt")


@pytest.mark.slow
def test_run_opened_with_other_class_names_keeps_the_names_of_its_data(tmp_path):
    tiny.write_digits_run(tmp_path / "run")
    other = inference.open_predictor(tmp_path / "run", class_names=list("abcdefghij"))
    assert other.card.data["class_names"] == list("0123456789")
    assert "class_names" not in inference.open_predictor(tmp_path / "run").card.data


@pytest.mark.slow
def test_models_with_rectangular_images_are_opened(tmp_path):
    """A model of 16 x 24 pixels sees an image as Pillow reads it."""
    model = tiny.model(image_size=(16, 24))
    model.save(tmp_path / "model.keras")
    predictor = inference.open_predictor(tmp_path / "model.keras", preprocess=PREPROCESS)
    assert predictor.card.image_shape == (16, 24, 3)
    image = tiny.arrays(1, height=16, width=24)[0]
    np.testing.assert_allclose(predictor.preprocess([tiny.encode(image, "png")])[0], image / 127.5 - 1, atol=1e-6)
    large = np.repeat(np.repeat(image, 2, axis=0), 2, axis=1)  # 32 x 48: bilinear by two, each pixel inside its block
    found = predictor.preprocess([tiny.encode(large, "png")])
    assert found.shape == (1, 16, 24, 3) and predictor.predict(found).shape == (1, 7)
    np.testing.assert_allclose(found[0], image / 127.5 - 1, atol=1e-2)


@pytest.mark.slow
def test_preprocess_is_required_if_unknown(tmp_path):
    keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten()]).save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"model\.keras.*preprocess"):
        inference.open_predictor(tmp_path / "model.keras")


@pytest.mark.slow
@pytest.mark.parametrize(
    "normalization,values",
    [
        ((0.5, 0.5), "value_range(-1, 1)"),
        (((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), "value_norm((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))"),
    ],
)
def test_preprocess_follows_the_normalization_of_the_weights(normalization, values, tmp_path):
    model = tiny.model()
    model.input_normalization = normalization
    model.save(tmp_path / "model.keras")
    predictor = inference.open_predictor(tmp_path / "model.keras")
    assert predictor.card.preprocess.endswith(f"|{values}")
    image = np.random.default_rng(0).integers(0, 256, (tiny.SIZE, tiny.SIZE, 3), np.uint8)
    expected = keras_vit.preprocess_input(image, model)
    # The same numbers, divided in another order in single precision.
    np.testing.assert_allclose(predictor.preprocess([tiny.encode(image, "png")])[0], expected, atol=1e-6)


def test_unsupported_paths_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        inference.open_predictor(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(FileNotFoundError, match=r"model\.keras"):  # a run that was interrupted
        inference.open_predictor(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("output", selection.cases(["softmax", "sigmoid"], ["softmax"]))
def test_models_that_end_in_probabilities_are_recognized(output, tmp_path):
    model = tiny.model(classifier_activation=output)
    model.save(tmp_path / "model.keras")
    predictor = inference.open_predictor(tmp_path / "model.keras", preprocess=PREPROCESS)
    assert (predictor.scores_are, predictor.card.output) == ("probabilities", output)
    images = predictor.preprocess(tiny.images(2).contents)
    np.testing.assert_allclose(predictor.predict(images), model.predict(images, verbose=0), atol=1e-6)


@pytest.mark.slow
def test_wrapped_models_are_opened(expected, tmp_path):
    inputs = keras.Input((16, 16, 3))
    scaled = keras.Model(inputs, keras.layers.Rescaling(2.0)(expected[0](inputs)))
    scaled.save(tmp_path / "model.keras")
    predictor = inference.open_predictor(tmp_path / "model.keras", preprocess=PREPROCESS)
    images = predictor.preprocess(tiny.images(2).contents)
    np.testing.assert_allclose(predictor.scores(images), scaled.predict(images, verbose=0), atol=1e-5)


def sha256_of(path, **options):
    return inference.open_predictor(path, preprocess=PREPROCESS, **options).card.sha256


@pytest.mark.slow
@pytest.mark.parametrize("name", selection.cases(["model.keras", "model.npz", "directory"], ["model.keras"]))
def test_predictor_has_the_sha256_of_the_files_that_were_read(name, expected, tmp_path):
    path = tmp_path / name
    save = (lambda model: model.save(path)) if name.endswith(".keras") else functools.partial(save_files, path=path)
    save(expected[0])
    before = sha256_of(path)
    (tmp_path / "README.md").write_text("no part of the model")
    if path.is_dir():
        (path / "README.md").write_text("no part of the model")
    else:
        assert before == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sha256_of(path) == before
    save(tiny.model(seed=1))  # at the same path, with the same size
    changed = sha256_of(path)
    assert len({before, changed}) == 2
    if path.is_dir():
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, "note": "another"}))
        assert sha256_of(path) not in (before, changed)


def save_files(model, path):
    keras_vit.save_checkpoint(model, path, format="google" if path.suffix else "timm")


@pytest.mark.slow
def test_sha256_of_sharded_files_covers_all_shards(expected, tmp_path):
    keras_vit.save_checkpoint(expected[0], tmp_path / "whole", format="timm")
    tensors = safetensors.numpy.load_file(tmp_path / "whole" / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    (tmp_path / "shards").mkdir()
    shutil.copy(tmp_path / "whole" / "config.json", tmp_path / "shards")
    for shard, chosen in shards.items():
        safetensors.numpy.save_file({name: tensors[name] for name in chosen}, tmp_path / "shards" / shard)
    index = {"weight_map": {name: shard for shard, chosen in shards.items() for name in chosen}}
    (tmp_path / "shards" / "model.safetensors.index.json").write_text(json.dumps(index))
    before = sha256_of(tmp_path / "shards")
    changed = {name: tensors[name] + 1 for name in shards["b.safetensors"]}
    safetensors.numpy.save_file(changed, tmp_path / "shards" / "b.safetensors")
    assert sha256_of(tmp_path / "shards") != before


@pytest.mark.slow
def test_sha256_of_another_model_in_a_run_covers_that_model(tmp_path):
    tiny.write_digits_run(tmp_path / "run")
    path = tmp_path / "run" / "other.keras"
    model = keras.models.load_model(tmp_path / "run" / "model.keras")
    tiny.randomize(model, seed=2).save(path)
    for file in (path, tmp_path / "run" / "model.keras"):
        assert inference.open_predictor(file).card.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_sha256_of_an_artifact_covers_its_own_files():
    """That of the model it was exported from is another one."""
    one, other = ({"model": {"bytes": 1, "sha256": digit * 64}} for digit in "01")
    cards = [tiny.card(model_sha256="2" * 64, files=files) for files in (one, other, {})]
    assert len({card.sha256 for card in cards}) == 3 and cards[2].sha256 == "2" * 64


@pytest.mark.slow
@pytest.mark.parametrize("any_size", [False, True])
def test_another_image_size_resizes_the_position_embeddings(any_size, tmp_path):
    """The positions of the file, a grid of 2 by 2, are resized as its project does it."""
    model = tiny.model()
    path = keras_vit.save_checkpoint(model, tmp_path / "model", format="timm")
    if any_size:
        path = tmp_path / "model.keras"
        keras_vit.model_from_checkpoint(tmp_path / "model", image_size=None).save(path)
    predictor = inference.open_predictor(path, preprocess=PREPROCESS, image_size=32)
    assert predictor.card.preprocess == "decode(3)|resize((32, 32), method='bilinear')|value_range(-1, 1)"
    images = predictor.preprocess(tiny.images(3).contents)
    at_32 = keras_vit.model_from_checkpoint(tmp_path / "model", image_size=32)
    np.testing.assert_allclose(predictor.scores(images), at_32.predict(images, verbose=0), atol=1e-5)


@pytest.mark.slow
def test_image_size_of_artifacts_and_other_keras_models_cannot_be_changed(served, expected, tmp_path):
    with pytest.raises(ValueError, match="image size.*image_size=32"):
        inference.open_predictor(served[1], image_size=32)
    keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten()]).save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="image_size=32"):
        inference.open_predictor(tmp_path / "model.keras", preprocess=PREPROCESS, image_size=32)
    expected[0].save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="patch_size=8"):
        inference.open_predictor(tmp_path / "model.keras", preprocess=PREPROCESS, image_size=20)


@pytest.mark.slow
def test_preprocessing_to_another_size_names_the_remedy(expected, tmp_path):
    expected[0].save(tmp_path / "model.keras")
    pp = "decode|resize(32)|value_range(-1, 1)"
    with pytest.raises(ValueError, match="16 by 16.*32 by 32.*--image_size=32"):
        inference.open_predictor(tmp_path / "model.keras", preprocess=pp)
    assert inference.open_predictor(tmp_path / "model.keras", preprocess=pp, image_size=32).card.image_shape[0] == 32
