"""Real images for an artifact, from a data set or from files, some of them unreadable."""

import dataclasses

import pytest

from keras_vit import data
from keras_vit.inference import sample_images
from keras_vit.inference.model_card import ModelCard
from tests import tiny
from tests.data import example_images


@pytest.fixture
def folder(tmp_path):
    """30 images, an empty file and a link to a file that does not exist."""
    root = example_images.folder(tmp_path / "set", count=10)
    (tmp_path / "set" / "cat" / "empty.jpg").write_bytes(b"")
    (tmp_path / "set" / "cat" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    return root


def card(folder, on_bad_image="error"):
    recipe = {"data": {"source": f"folder:{folder}", "eval_split": "all", "on_bad_image": on_bad_image}}
    return ModelCard(("cat", "dog", "eel"), "decode|resize(8)|value_range(-1, 1)", "sigmoid", (8, 8, 3), recipe=recipe)


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False])
def test_a_missing_file_is_an_unreadable_image(given, folder, caplog):
    patterns = [f"{folder}/*/*"] if given else []
    with pytest.raises(data.UnreadableImageError, match="on_bad_image=skip") as error:
        sample_images.for_model(card(folder), 50, patterns=patterns)
    assert error.value.origin in (f"{folder}/cat/gone.jpg", f"{folder}/cat/empty.jpg")
    assert error.value.exit_code == 66
    for arguments in ((card(folder, "skip"),), (card(folder),)):
        skip = None if arguments[0].recipe_data["on_bad_image"] == "skip" else "skip"
        found = sample_images.for_model(*arguments, 50, patterns=patterns, on_bad_image=skip)
        assert len(found.contents) == len(found.names) == 30
        assert not {f"{folder}/cat/gone.jpg", f"{folder}/cat/empty.jpg"} & set(found.names)
        assert given or len(found.labels) == 30
    assert "gone.jpg" in caplog.text and "empty.jpg" in caplog.text


def test_unreadable_sample_images_are_refused(tmp_path):
    (tmp_path / "a.jpg").symlink_to(tmp_path / "nowhere.jpg")
    with pytest.raises(ValueError, match="None of the images"):
        sample_images.for_model(card(tmp_path), 5, patterns=[f"{tmp_path}/*.jpg"], on_bad_image="skip")
    with pytest.raises(FileNotFoundError, match="b.jpg"):
        sample_images.for_model(card(tmp_path), 5, patterns=[f"{tmp_path}/b.jpg"], on_bad_image="skip")


def test_labels_stay_with_their_images():
    images = tiny.images(4)
    damaged = images._replace(contents=[b"not an image", *images.contents[1:]])
    kept = sample_images.keep_readable(damaged, tiny.preprocess)
    assert (kept.names, kept.labels.tolist()) == (images.names[1:], images.labels[1:].tolist())
    assert kept.contents == images.contents[1:]


def test_each_split_of_an_artifact_is_compared_with_its_own_number_of_examples(caplog):
    recipe = {"data": {"train_split": "train", "eval_split": "test"}}
    known = dataclasses.replace(card("x"), recipe=recipe, data={"num_train": 1_438, "num_eval": 360})
    for split in ("test", "train[:9]", "train"):
        sample_images.warn_of_changes(known, data.open_source("digits", split))
    changes = [text for text in caplog.messages if "changed" in text]
    assert changes == ["digits[train] has changed since training: 1,437 examples instead of 1,438."]


@pytest.mark.parametrize(("max_pixels", "kept"), [(0, 2), (480, 2), (479, 1)])
def test_images_above_the_pixel_limit_are_removed(max_pixels, kept):
    """480 and 64 pixels; 0 is no limit."""
    contents = [tiny.images(1).contents[0], example_images.encode(tiny.arrays(1, 8, 8)[0])]
    images = sample_images.SampleImages(contents, None, ["a", "b"])
    assert sample_images.within(images, max_pixels).names == ["a", "b"][2 - kept :]


@pytest.mark.slow
def test_labels_are_numbers_of_the_models_classes(folder, caplog):
    """The data set of a run got another class, or the model other names to print."""
    changes = {"dog": "dog", "cat": "Cat", "eel": "eel"}
    for known, names, expected in (
        (("eel", "dog", "cat"), None, [2] * 10 + [1] * 10 + [0] * 10),
        (("Aal", "Hund", "Katze"), ["eel", "dog", "cat"], [2] * 10 + [1] * 10 + [0] * 10),
        (tuple(changes.values()), None, [1] * 10 + [0] * 10 + [2] * 10),
    ):
        described = dataclasses.replace(card(folder, "skip"), class_names=known)
        described = described if names is None else dataclasses.replace(described, data={"class_names": names})
        found = sample_images.for_model(described, 50)
        by_name = sorted(zip(found.names, found.labels.tolist(), strict=True))
        assert [label for _, label in by_name] == expected
    caplog.clear()
    found = sample_images.for_model(dataclasses.replace(card(folder, "skip"), class_names=("cat", "eel")), 50)
    assert found.labels is None and "classes differ from the model's" in caplog.text
