"""Folders of images as users have them: other layouts, links, empty folders and files that are not images."""

import logging
import os
import re
import shutil
import subprocess
import unicodedata

import numpy as np
import pytest

from keras_vit import data
from keras_vit.data import splits
from keras_vit.util import checks, image_files
from tests.data import example_images
from tests.programs import call

CLASSES = ("cat", "dog", "eel")


def build(root, case):
    """Build a folder of a case and return what to open."""
    if case == "one level up":
        example_images.folder(root / "archive" / "train", count=10)
        return f"folder:{root}/archive"
    if case == "train and val":
        example_images.folder(root / "train", count=6)
        example_images.folder(root / "val", count=4)
        return f"folder:{root}"
    example_images.folder(root, count=10)
    if case == "__MACOSX":
        example_images.folder(root / "__MACOSX", count=2)
        example_images.folder(root / ".thumbnails", count=2)
        example_images.folder(root / "cat" / "__MACOSX", count=2)
    elif case == "loop of links":
        (root / "loop").symlink_to(root)
        (root / "dog" / "again").symlink_to(root / "dog")
    elif case == "empty class":
        (root / "fox" / "deeper").mkdir(parents=True)
    elif case == "class without test images":
        (root / "fox").mkdir()
        shutil.copy(root / "cat" / "0.jpg", root / "fox" / "only.jpg")
    elif case == "other file types":
        for name in ("1.TIFF", "2.tiff", "3.heic", "noext", "notes.txt", ".DS_Store", "._1.jpg"):
            (root / "cat" / name).write_bytes(b"x")
        shutil.copy(root / "cat" / "0.jpg", root / "beside.jpg")
    elif case == "one class":
        for name in CLASSES[1:]:
            shutil.rmtree(root / name)
    return f"folder:{root}"


CASES = {
    "one level up": (3, [24, 6], "neither test/ nor val/: a part of each class in .*archive/train is kept"),
    "train and val": (3, [18, 12], "val/ is also the split 'test'"),
    "__MACOSX": (3, [24, 6], None),
    "loop of links": (3, [24, 6], r"Links .* skipped: [^ ]*/dog/again, [^ ]*/loop\."),
    "empty class": (3, [24, 6], r"without images are left out: [^ ]*/fox\."),
    "class without test images": (4, [25, 6], r"without images in the split 'test': fox\."),
    "other file types": (3, [24, 6], r"next to .*beside\.jpg.*2 \.tiff, 1 \.heic, 1 without an extension, 1 \.txt\."),
}


@pytest.mark.parametrize("case", CASES)
def test_folder_layouts_give_classes_and_splits(case, tmp_path, caplog):
    classes, counts, note = CASES[case]
    spec = build(tmp_path, case)
    with caplog.at_level(logging.WARNING, logger="absl"):
        train, test = data.open_source(spec, "train"), data.open_source(spec, "test")
    assert train.class_names == test.class_names == (CLASSES + ("fox",))[:classes]
    assert [train.num_examples, test.num_examples] == counts
    assert not set(train.paths) & set(test.paths)
    for path, label in zip(train.paths, train.labels(), strict=True):
        assert f"/{train.class_names[label]}/" in path
    if note is None:
        assert not train.notes and not caplog.records
    else:
        assert len(caplog.records) == len(train.notes) <= 2  # each is logged once, although two splits are opened
        assert re.search(note, " ".join(train.notes))


def test_check_data_reports_an_empty_class(tmp_path, capsys):
    spec = build(tmp_path, "empty class")
    call("train.check_data", data=spec, splits=[], json=False, sheet=None)
    (note,) = data.open_source(spec).notes
    assert note in capsys.readouterr().out


def test_one_class_is_refused_with_the_remedy(tmp_path):
    spec = build(tmp_path, "one class")
    for function in (data.open_source, data.split_sizes):
        with pytest.raises(ValueError, match=r"dog/1\.jpg.*one class, 'cat'.*images:"):
            function(spec)
    assert data.open_source(f"images:{tmp_path}", "all").num_examples == 10


def test_parent_folder_of_a_data_set_is_refused_with_the_path_to_use(tmp_path):
    """Deeper folders belong to a class."""
    example_images.folder(tmp_path / "archive" / "train")
    with pytest.raises(ValueError, match=f"one class, 'archive'.*pass folder:{tmp_path}/archive"):
        data.open_source(f"folder:{tmp_path}")


def test_relative_paths_are_read(tmp_path, monkeypatch):
    example_images.folder(tmp_path / "set", count=10)
    monkeypatch.chdir(tmp_path)
    for kind, location in (("folder", "set"), ("folder", "set/"), ("images", "set"), ("images", ".")):
        assert data.open_source(f"{kind}:{location}", "test").num_examples == 6
    monkeypatch.chdir(tmp_path / "set")
    for kind in ("folder", "images"):
        assert data.open_source(f"{kind}:.", "test").num_examples == 6


def test_test_folder_without_train_folder_is_refused(tmp_path):
    example_images.folder(tmp_path / "test")
    example_images.folder(tmp_path / "val")
    with pytest.raises(ValueError, match=rf"Expected train/.*pass folder:{tmp_path}/test"):
        data.open_source(f"folder:{tmp_path}")


def test_a_test_folder_without_classes_is_not_used(tmp_path):
    example_images.folder(tmp_path / "train", count=10)
    (tmp_path / "test").mkdir()
    shutil.copy(tmp_path / "train" / "cat" / "0.jpg", tmp_path / "test" / "0.jpg")
    source = data.open_source(f"folder:{tmp_path}", "test")
    assert source.num_examples == 6 and "test/ has no folders of classes" in " ".join(source.notes)


def test_splits_with_other_names_are_reported(tmp_path):
    example_images.folder(tmp_path / "seg_train")
    example_images.folder(tmp_path / "seg_test")
    assert "call them train/ and test/" in " ".join(data.open_source(f"folder:{tmp_path}").notes)


def test_an_archive_is_not_a_folder(tmp_path):
    (tmp_path / "images.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"images\.zip.*Unpack"):
        data.open_source(f"folder:{tmp_path}/images.zip")


@pytest.mark.parametrize(
    "name",
    [
        "@eaDir",
        "$RECYCLE.BIN",
        "$Recycle.Bin",
        "#recycle",
        "lost+found",
        "System Volume Information",
        "@Recycle",
        "FOUND.000",
    ],
)
def test_folders_of_operating_systems_and_servers_are_ignored(name, tmp_path):
    example_images.folder(tmp_path, count=6)
    for place in (tmp_path, tmp_path / "cat", tmp_path / "cat" / "deeper"):
        example_images.folder(place / name, classes=("0.jpg",), count=2)
    source = data.open_source(f"folder:{tmp_path}", "all")
    assert (source.class_names, source.num_examples) == (CLASSES, 18)
    assert f"not read: {name}." in " ".join(source.notes)
    assert data.open_source(f"images:{tmp_path}", "all").num_examples == 18


def test_class_names_may_be_punctuation(tmp_path):
    example_images.folder(tmp_path, classes=("#", "$5", "@", "lost"), count=2)
    assert data.open_source(f"folder:{tmp_path}", "all").class_names == ("#", "$5", "@", "lost")


@pytest.mark.parametrize("other", ["bus", "training"])
def test_class_named_train_with_subfolders_is_not_a_split(other, tmp_path):
    example_images.folder(tmp_path / "train", classes=("2023", "2024"), count=3)
    example_images.folder(tmp_path, classes=(other, "car"), count=3)
    with pytest.raises(ValueError, match=rf"{other}.*If train/ is a class, rename it.*folder:{tmp_path}/train"):
        data.open_source(f"folder:{tmp_path}")
    (tmp_path / "train").rename(tmp_path / "railway")
    if other == "bus":
        assert data.open_source(f"folder:{tmp_path}").class_names == ("bus", "car", "railway")


def test_other_folders_next_to_the_splits_are_ignored(tmp_path):
    """Of a data set such as SVHN, and of one with annotations."""
    for split in ("train", "test", "extra"):
        example_images.folder(tmp_path / split, count=3)
    (tmp_path / "annotations").mkdir()
    source = data.open_source(f"folder:{tmp_path}")
    assert source.num_examples == 9 and "not used: annotations, extra." in " ".join(source.notes)
    shutil.rmtree(tmp_path / "test")
    with pytest.raises(ValueError, match="extra"):
        data.open_source(f"folder:{tmp_path}")
    shutil.rmtree(tmp_path / "extra")
    assert data.split_sizes(f"folder:{tmp_path}") == {"train": 6, "test": 3, "all": 9}


# --- names in other forms ---------------------------------------------------------------------------------------------

FRUIT = ("mûre", "noix", "Äpfel")  # sorted as NFC; NFD begins with "A"


def formed(form, names=FRUIT):
    return tuple(unicodedata.normalize(form, name) for name in names)


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
def test_classes_of_splits_are_the_same_in_another_unicode_form(forms, tmp_path):
    for split, form in zip(("train", "test"), forms, strict=True):
        example_images.folder(tmp_path / split, classes=formed(form), count=2)
    source = data.open_source(f"folder:{tmp_path}", "test")
    assert source.class_names == FRUIT
    for path, label in zip(source.paths, source.labels(), strict=True):
        assert os.path.exists(path) and path.split("/")[-2] == formed(forms[1])[label]


def test_two_unicode_forms_of_a_name_are_one_class(tmp_path):
    example_images.folder(tmp_path, classes=(*FRUIT, *formed("NFD", FRUIT[2:])), count=5)
    source = data.open_source(f"folder:{tmp_path}", "all")
    assert source.class_names == FRUIT and np.bincount(source.labels()).tolist() == [5, 5, 10]
    assert "only differ in their Unicode form are one class" in " ".join(source.notes)


def test_the_division_does_not_depend_on_the_unicode_form(tmp_path):
    """A folder is copied from Linux to a Mac."""
    held_out = []
    for form in ("NFC", "NFD"):
        root = example_images.folder(tmp_path / form, classes=formed(form), count=20)
        paths = data.open_source(f"folder:{root}", "test").paths
        held_out.append([unicodedata.normalize("NFC", os.path.relpath(path, root)) for path in paths])
    assert held_out[0] == held_out[1]


def test_class_names_of_splits_match_regardless_of_case(tmp_path):
    example_images.folder(tmp_path / "train", classes=("Apple", "kiwi"), count=2)
    example_images.folder(tmp_path / "test", classes=("apple", "KIWI"), count=1)
    source = data.open_source(f"folder:{tmp_path}", "test")
    assert source.class_names == ("Apple", "kiwi")
    assert {path.split("/")[-2]: label for path, label in zip(source.paths, source.labels(), strict=True)} == {
        "apple": 0,
        "KIWI": 1,
    }
    example_images.folder(tmp_path / "test", classes=("APPLE",), count=1)
    with pytest.raises(ValueError, match="'apple', 'APPLE'|'APPLE', 'apple'"):
        data.open_source(f"folder:{tmp_path}", "test")


def test_single_letter_classes_are_case_sensitive(tmp_path):
    for split in ("train", "test"):
        example_images.folder(tmp_path / split, classes=("A", "a", "b"), count=1)
    assert data.open_source(f"folder:{tmp_path}", "test").class_names == ("A", "a", "b")


# --- links and special files ------------------------------------------------------------------------------------------


@pytest.fixture
def divided(tmp_path):
    for split, count in (("train", 4), ("test", 3)):
        example_images.folder(tmp_path / "set" / split, count=count)
    return tmp_path / "set"


@pytest.mark.parametrize("target", ["", "train", "test", "test/dog", "train/dog", "train/cat", "/", ".."])
def test_a_link_in_a_class_folder_adds_no_image_of_the_data_set(target, divided):
    shutil.copy(divided / "test" / "dog" / "0.jpg", divided / "test" / "beside.jpg")
    before = {split: data.open_source(f"folder:{divided}", split).paths for split in ("train", "test")}
    link = divided / "train" / "cat" / "a link"
    link.symlink_to("/" if target == "/" else (divided / target).resolve())
    for split, paths in before.items():
        assert data.open_source(f"folder:{divided}", split).paths == paths
    assert str(link) in " ".join(data.open_source(f"folder:{divided}").notes)
    assert data.open_source(f"images:{divided}", "all").num_examples == 22


def test_links_to_images_and_folders_elsewhere_are_followed(divided, tmp_path):
    example_images.folder(tmp_path / "elsewhere", classes=("fox", "more"), count=5)
    (divided / "train" / "fox").symlink_to(tmp_path / "elsewhere" / "fox")
    (divided / "train" / "cat" / "more").symlink_to(tmp_path / "elsewhere" / "more")
    (divided / "train" / "dog" / "one.jpg").symlink_to(tmp_path / "elsewhere" / "more" / "0.jpg")
    source = data.open_source(f"folder:{divided}")
    np.testing.assert_array_equal(np.bincount(source.labels()), [9, 5, 4, 5])
    assert not [note for note in source.notes if "Links" in note]


def test_folders_are_at_most_a_hundred_levels_deep(tmp_path):
    deep = tmp_path.joinpath(*["a"] * image_files.MAX_DEPTH)
    deep.mkdir(parents=True)
    (deep / "1.png").write_bytes(b"")
    assert image_files.Tree(str(tmp_path)).below(str(tmp_path)) == [f"{'a/' * 100}1.png"]
    (deep / "a").mkdir()
    with pytest.raises(ValueError, match="nest 100 levels deep"):
        image_files.Tree(str(tmp_path)).below(str(tmp_path))


def test_at_most_five_names_are_listed():
    assert (
        checks.listed(list("abcde")) == "a, b, c, d, e" and checks.listed(list("abcdefg")) == "a, b, c, d, e and 2 more"
    )


@pytest.mark.parametrize("target", ["/usr", "/etc", "/proc"])
def test_a_link_to_a_top_level_folder_is_skipped(target, divided):
    (divided / "train" / "cat" / "all").symlink_to(target)
    source = data.open_source(f"folder:{divided}")
    assert source.num_examples == 12 and "cat/all" in " ".join(source.notes)


def test_links_around_a_folder_elsewhere_are_skipped(divided, tmp_path):
    example_images.folder(tmp_path / "far" / "away", classes=("fox", "more"), count=5)
    (tmp_path / "far" / "away" / "fox" / "up").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "away" / "fox" / "again").symlink_to(tmp_path / "far" / "away" / "fox")
    (divided / "train" / "fox").symlink_to(tmp_path / "far" / "away" / "fox")
    source = data.open_source(f"folder:{divided}")
    assert np.bincount(source.labels()).tolist() == [4, 4, 4, 5]
    assert "fox/again" in " ".join(source.notes) and "fox/up" in " ".join(source.notes)


def test_class_folder_linked_to_another_class_is_skipped(tmp_path):
    example_images.folder(tmp_path)
    (tmp_path / "a").symlink_to(tmp_path / "cat")
    source = data.open_source(f"folder:{tmp_path}", "all")
    assert source.class_names == CLASSES and f"{tmp_path}/a" in " ".join(source.notes)


def test_the_test_split_may_be_a_link_to_the_validation_split(tmp_path):
    example_images.folder(tmp_path / "train")
    example_images.folder(tmp_path / "val", count=2)
    (tmp_path / "test").symlink_to("val")
    assert data.split_sizes(f"folder:{tmp_path}") == {"test": 6, "train": 33, "validation": 6}


def test_only_regular_files_are_read(tmp_path):
    root = example_images.folder(tmp_path / "set")
    os.mkfifo(tmp_path / "set" / "cat" / "pipe.png")
    (tmp_path / "set" / "dog" / "zero.png").symlink_to("/dev/zero")
    source = data.open_source(f"folder:{root}", "all")
    assert source.num_examples == 33
    assert "cat/pipe.png" in " ".join(source.notes) and "dog/zero.png" in " ".join(source.notes)
    assert data.open_source(f"images:{root}", "all").num_examples == 33


def test_broken_link_is_an_unreadable_image(tmp_path):
    example_images.folder(tmp_path)
    (tmp_path / "cat" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (tmp_path / "cat" / "circle.jpg").symlink_to(tmp_path / "cat" / "circle.jpg")
    assert data.open_source(f"folder:{tmp_path}", "all").num_examples == 35


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "images"])
def test_folders_nested_too_deeply_are_refused(kind, tmp_path):
    example_images.folder(tmp_path)
    subprocess.run(["mkdir", "-p", tmp_path / "cat" / "/".join(["d"] * 1500)], check=True)  # Python's recurses
    try:
        with pytest.raises(ValueError, match="nest 100 levels"):
            data.open_source(f"{kind}:{tmp_path}")
    finally:
        subprocess.run(["rm", "-r", tmp_path / "cat" / "d"], check=True)


@pytest.mark.slow
def test_every_class_of_many_is_divided():
    labels = np.arange(300_000) // 2
    indices = splits.split_indices([str(i) for i in range(300_000)], labels, 0.2)
    assert len(indices["test"]) == 150_000


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.99])
def test_every_class_of_two_images_has_one_image_in_each_split(fraction):
    labels = np.repeat([0, 1, 2, 3], [1, 2, 3, 40])
    indices = splits.split_indices([f"{i}.png" for i in range(len(labels))], labels, fraction)
    test, train = (np.bincount(labels[indices[split]], minlength=4) for split in ("test", "train"))
    np.testing.assert_array_equal(train + test, [1, 2, 3, 40])
    assert (test[1:] >= 1).all() and (train[1:] >= 1).all()
    assert test[3] == {0.01: 1, 0.1: 4, 0.99: 39}[fraction]
