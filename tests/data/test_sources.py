import gzip
import os
import shutil
import struct
import tracemalloc
import unicodedata
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import separation
from keras_vit.data.labels import numbered
from keras_vit.data.readers import npz
from tests.data import example_images


def labels_of(source):
    return [int(example["label"]) for example in source.examples()]


# --- digits ----------------------------------------------------------------------------------------------------------


def test_digits_have_the_documented_splits_and_classes():
    train, test = data.open_source("digits", "train"), data.open_source("digits", "test")
    assert (train.num_examples, test.num_examples) == (1437, 360)
    assert train.class_names == tuple("0123456789") and train.num_classes == 10
    assert train.label_kind == "class" and not train.encoded
    assert data.split_sizes("digits") == {"train": 1437, "test": 360}
    np.testing.assert_array_equal(np.bincount(test.labels()), np.full(10, 36))  # every digit in proportion
    assert train.images.dtype == np.uint8 and train.images.shape == (1437, 8, 8, 1)
    assert (train.images.min(), train.images.max()) == (0, 255)


def test_digits_splits_share_no_image():
    train, test = (
        {image.tobytes() for image in data.open_source("digits", split).images} for split in ("train", "test")
    )
    assert not train & test


def test_digits_equal_the_digits_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.datasets")
    published = sklearn.load_digits()
    images, labels, _ = npz.load_digits()
    np.testing.assert_array_equal(labels, published.target)
    np.testing.assert_array_equal(images, np.round(published.images * 255 / 16))


@pytest.mark.slow
def test_slices_keep_the_order():
    whole = labels_of(data.open_source("digits", "train"))
    assert labels_of(data.open_source("digits", "train[100:110]")) == whole[100:110]
    assert labels_of(data.open_source("digits", "train[:5]+test[:2]"))[:5] == whole[:5]


# --- npz --------------------------------------------------------------------------------------------------------------


def arrays(count=20, classes=4):
    rng = np.random.default_rng(count)
    return rng.integers(0, 256, (count, 6, 5), dtype=np.uint8), np.arange(count) % classes


def test_npz_in_the_layout_of_keras_datasets_is_read(tmp_path):
    (x, y), (x_test, y_test) = arrays(), arrays(8)
    path = tmp_path / "a.npz"
    np.savez(path, x_train=x, y_train=y[:, None], x_test=x_test, y_test=y_test, class_names=["a", "b", "c", "d"])
    source = data.open_source(f"npz:{path}", "test")
    assert source.num_examples == 8 and source.class_names == ("a", "b", "c", "d")
    np.testing.assert_array_equal(source.images[..., 0], x_test)
    np.testing.assert_array_equal(data.open_source(f"npz:{path}").labels(), y)


def test_npz_with_validation_split_and_multi_label_data_is_read(tmp_path):
    x, _ = arrays()
    labels = (np.random.default_rng(0).random((20, 5)) < 0.4).astype(np.int64)
    path = tmp_path / "a.npz"
    np.savez(path, train_images=x, train_labels=labels, val_images=x[:5], val_labels=labels[:5])
    source = data.open_source(f"npz:{path}", "validation")
    assert source.label_kind == "classes" and source.num_classes == 5
    np.testing.assert_array_equal(source.labels(), labels[:5])
    assert source.labels().dtype == np.float32


def test_npz_without_splits_is_divided_reproducibly(tmp_path):
    x, y = arrays(40)
    np.savez(tmp_path / "a.npz", images=x, labels=y)
    spec = f"npz:{tmp_path}/a.npz"
    assert data.split_sizes(spec) == {"train": 32, "test": 8, "all": 40}
    train, test = data.open_source(spec, "train"), data.open_source(spec, "test")
    np.testing.assert_array_equal(np.bincount(test.labels()), [2, 2, 2, 2])
    both = {image.tobytes() for image in train.images} | {image.tobytes() for image in test.images}
    assert len(both) == 40
    assert data.open_source(spec, "test", test_fraction=0.5).num_examples == 20
    assert data.open_source(f"{spec}#test_fraction=0.5", "test").num_examples == 20


def test_npz_splits_precede_an_undivided_pair(tmp_path):
    x, y = arrays()
    np.savez(tmp_path / "a.npz", images=x, labels=y, x_train=x[:12], y_train=y[:12], x_test=x[12:], y_test=y[12:])
    assert data.split_sizes(f"npz:{tmp_path}/a.npz") == {"train": 12, "test": 8}


def test_slice_without_some_class_is_reported(tmp_path, caplog):
    x, y = arrays(40)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.sort(y))
    with caplog.at_level("WARNING", logger="absl"):
        data.open_source(f"npz:{tmp_path}/a.npz", "train[:50%]")
    assert "Classes without images in the split 'train[:50%]': 2, 3. Are the examples sorted" in caplog.text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"images": np.zeros((3, 4, 4), np.float32), "labels": [0, 1, 0]}, ["uint8", "float32", "Multiply by 255"]),
        ({"images": np.zeros((3, 4, 4, 2), np.uint8), "labels": [0, 1, 0]}, ["1 or 3 channels", "[3, 4, 4, 2]"]),
        ({"images": np.zeros((3, 4, 4), np.uint8), "labels": [0, 1]}, ["one label per image, 3", "[2]"]),
        ({"images": np.zeros((3, 4, 4), np.uint8), "labels": [0, -1, 2]}, ["out of range", "-1 for image 1"]),
        ({"images": np.zeros((3, 4, 4), np.uint8), "labels": [0, 0.5, 1]}, ["integers", "float64"]),
        ({"pixels": np.zeros((3, 4, 4), np.uint8), "labels": [0, 1, 0]}, ["no pair of images and labels", "pixels"]),
        ({"images": np.array([{}, {}]), "labels": [0, 1]}, ["plain arrays", "np.savez"]),
        ({"images": np.zeros((0, 4, 4), np.uint8), "labels": np.zeros(0, int)}, ["non-empty", "[0, 4, 4]"]),
        (
            {"x_train": np.zeros((2, 4, 4), np.uint8), "x_test": np.zeros((2, 5, 4), np.uint8)}
            | {"y_train": [0, 1], "y_test": [0, 1]},
            ["All splits", "the same shape", "(2, 4, 4)", "(2, 5, 4)"],
        ),
    ],
)
def test_invalid_npz_files_are_refused(tmp_path, content, words):
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(ValueError) as error:
        data.open_source(f"npz:{tmp_path}/a.npz", "all")
    for word in words:
        assert word in str(error.value)


def test_npz_labels_without_class_name_are_refused(tmp_path):
    x, y = arrays()
    np.savez(tmp_path / "a.npz", images=x, labels=y, class_names=["a", "b", "c"])
    with pytest.raises(ValueError, match="0 <= label < 3.*Received: 3 for image 3.*4 more"):
        data.open_source(f"npz:{tmp_path}/a.npz")


def test_unreadable_npz_is_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(ValueError, match="a.npz cannot be read"):
        data.open_source(f"npz:{tmp_path}/a.npz")
    with pytest.raises(FileNotFoundError, match="b.npz"):
        data.open_source(f"npz:{tmp_path}/b.npz")


@pytest.mark.parametrize("label", [1_234_567_890, 2**40, 2**63 + 5])
def test_npz_labels_that_are_identifiers_are_refused(tmp_path, label):
    x, y = arrays()
    labels = y.astype(np.uint64)
    labels[7] = label
    np.savez(tmp_path / "a.npz", images=x, labels=labels)
    with pytest.raises(ValueError, match=f"{label} for image 7 of npz:"):
        data.open_source(f"npz:{tmp_path}/a.npz")


def test_npz_labels_may_be_few_of_many_classes(tmp_path):
    x, y = arrays()
    np.savez(tmp_path / "a.npz", images=x, labels=y + 21_839)
    assert data.open_source(f"npz:{tmp_path}/a.npz").num_classes == 21_843


def test_a_class_number_of_many_digits_is_not_cut():
    """Its first 19 digits are those of class 1."""
    numbers, names = numbered(["01", "0", "1"], None, "x", str)
    assert (numbers.tolist(), names) == ([1, 0, 1], ["0", "1"])
    with pytest.raises(ValueError, match="label of 1 must be one of"):
        numbered(["1", f"{12:020d}", "0"], None, "x", str)


def npy_header(shape):
    header = repr({"descr": "|u1", "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


@pytest.mark.slow
def test_npz_bomb_is_refused_before_unpacking(tmp_path):
    file = zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED)
    with file, file.open("images.npy", "w") as member:
        member.write(npy_header((600, 1024, 1024)))
        for _ in range(600):
            member.write(bytes(2**20))
    assert (tmp_path / "a.npz").stat().st_size < 2**20
    tracemalloc.start()
    with pytest.raises(ValueError, match="would unpack"):
        data.open_source(f"npz:{tmp_path}/a.npz", "all")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_npz_reads_the_images_of_the_split_only(tmp_path):
    (x, y), (x_test, y_test) = arrays(200), arrays(8)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    place = content.index(x.tobytes())
    content[place] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    np.testing.assert_array_equal(data.open_source(f"npz:{tmp_path}/a.npz", "test").images[..., 0], x_test)
    with pytest.raises(ValueError, match="a.npz cannot be read.*CRC"):
        data.open_source(f"npz:{tmp_path}/a.npz", "train")
    both = data.open_source(f"npz:{tmp_path}/a.npz", "test[2:4]+test[:1]")
    np.testing.assert_array_equal(both.images[..., 0], x_test[[2, 3, 0]])


# --- idx --------------------------------------------------------------------------------------------------------------


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def idx_folder(tmp_path):
    for part, count in (("train", 20), ("t10k", 7)):
        images, labels = arrays(count)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    return tmp_path


def test_idx_files_are_read(idx_folder):
    spec = f"idx:{idx_folder}"
    assert data.split_sizes(spec) == {"train": 20, "test": 7}
    images, labels = arrays(7)
    source = data.open_source(spec, "test")
    np.testing.assert_array_equal(source.images[..., 0], images)
    np.testing.assert_array_equal(source.labels(), labels)
    # All splits have the same classes, although the first two test images have only two of them.
    assert data.open_source(spec, "test[:2]").class_names == ("0", "1", "2", "3")
    assert data.open_source(spec, "train", class_names=list("abcd")).class_names == ("a", "b", "c", "d")
    joined = data.open_source(spec, "test[:2]+train[1:3]")
    np.testing.assert_array_equal(joined.labels(), [0, 1, 1, 2])


def test_idx_prefers_files_that_are_not_compressed(idx_folder):
    images, labels = arrays(7)
    (idx_folder / "t10k-images-idx3-ubyte").write_bytes(idx(images))
    for kind in ("images-idx3", "labels-idx1"):
        (idx_folder / f"t10k-{kind}-ubyte.gz").write_bytes(b"\x1f\x8b, cut off")
    source = data.open_source(f"idx:{idx_folder}", "test")
    np.testing.assert_array_equal(source.images[..., 0], images)
    np.testing.assert_array_equal(source.labels(), labels)


@pytest.mark.parametrize("call", [data.open_source, data.split_sizes])
def test_missing_fashion_mnist_names_its_package(call, tmp_path):
    with pytest.raises(FileNotFoundError, match="none'. Install .*apt-get install dataset-fashion-mnist.*pass the"):
        call(f"fashion_mnist:{tmp_path}/none")


def test_fashion_mnist_knows_its_classes(idx_folder):
    for part in ("train", "t10k"):
        count = {"train": 20, "t10k": 7}[part]
        (idx_folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(count) % 10))
    source = data.open_source(f"fashion_mnist:{idx_folder}", "test")
    assert source.class_names[9] == "Ankle boot" and source.num_classes == 10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content[:-1], ["damaged or incomplete", "28"]),
        (lambda content: content + b"x", ["damaged or incomplete"]),
        (lambda content: content[:3], ["not an IDX file"]),
        (lambda content: b"", ["not an IDX file", "empty file"]),
        (lambda content: b"<html>" + content, ["not an IDX file", "3c 68"]),
        (lambda content: idx(np.zeros(0)), ["damaged or incomplete"]),
        (lambda content: b"\0\0\x08\x01\xff\xff\xff\xff" + content[8:], ["damaged or incomplete", "4,294,967,303"]),
        (lambda content: idx(np.zeros((20, 1))), ["not an IDX file of bytes in 1 dimensions", "00 00 08 02"]),
    ],
)
def test_invalid_idx_files_are_refused(idx_folder, change, words):
    path = idx_folder / "train-labels-idx1-ubyte"
    path.write_bytes(change(idx(np.arange(20) % 4))[: 10**6])
    with pytest.raises(ValueError) as error:
        data.open_source(f"idx:{idx_folder}")
    assert str(path) in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_idx_with_another_number_of_labels_is_refused(idx_folder):
    (idx_folder / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(19)))
    with pytest.raises(ValueError, match="one label per image. Received: 20 in .*train-images.*, 19 labels"):
        data.open_source(f"idx:{idx_folder}")


def test_truncated_compressed_idx_is_refused(idx_folder):
    path = idx_folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="train-images-idx3-ubyte.gz"):
        data.open_source(f"idx:{idx_folder}")


def test_idx_that_unpacks_to_more_than_its_header_states_is_refused(idx_folder):
    """The unpacked size at the end of the file, which is stored modulo 2**32, may be wrong."""
    path = idx_folder / "train-images-idx3-ubyte.gz"
    images, _ = arrays()
    content = idx(images)
    packed = gzip.compress(content + bytes(10**6))
    path.write_bytes(packed[:-4] + struct.pack("<I", len(content)))
    with pytest.raises(ValueError, match="train-images-idx3-ubyte.gz is damaged"):
        data.open_source(f"idx:{idx_folder}")


def test_idx_bomb_is_refused_before_unpacking(idx_folder):
    path = idx_folder / "train-images-idx3-ubyte.gz"
    header = struct.pack(">BBBBIII", 0, 0, 8, 3, 20, 60_000, 60_000)
    packed = gzip.compress(header)
    path.write_bytes(packed[:-4] + struct.pack("<I", (len(header) + 20 * 60_000 * 60_000) % 2**32))
    with pytest.raises(ValueError, match="train-images-idx3-ubyte.gz would unpack"):
        data.open_source(f"idx:{idx_folder}")


def test_missing_idx_files_are_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte"):
        data.open_source(f"idx:{tmp_path}")
    with pytest.raises(FileNotFoundError, match="no folder"):
        data.open_source(f"idx:{tmp_path}/none")


# --- folders ----------------------------------------------------------------------------------------------------------


def test_folder_of_classes_is_divided_by_class(tmp_path):
    spec = f"folder:{example_images.folder(tmp_path / 'p')}"
    assert data.split_sizes(spec) == {"train": 27, "test": 6, "all": 33}
    train, test = data.open_source(spec, "train"), data.open_source(spec, "test")
    assert train.class_names == ("cat", "dog", "eel") and train.encoded
    np.testing.assert_array_equal(np.bincount(test.labels()), [2, 2, 2])
    assert not set(train.paths) & set(test.paths)
    for path, label in zip(train.paths, train.labels(), strict=True):
        assert train.class_names[label] in path.split("/")


def test_the_division_of_a_folder_depends_on_the_names_only(tmp_path):
    first, second = example_images.folder(tmp_path / "one"), example_images.folder(tmp_path / "elsewhere" / "two")
    names = [
        [path.removeprefix(root) for path in data.open_source(f"folder:{root}/", "test").paths]
        for root in (first, second)
    ]
    assert names[0] == names[1]
    assert len({name.split("/")[1] for name in names[0][:4]}) > 1  # classes are mixed, so that slices are fair


def test_split_folders_are_read(tmp_path):
    root = tmp_path / "p"
    for split, count in (("train", 5), ("val", 2), ("test", 3)):
        example_images.folder(root / split, count=count)
    (root / "val" / "dog" / "deeper").mkdir()
    (root / "val" / "dog" / "deeper" / "x.JPEG").write_bytes(b"")
    spec = f"folder:{root}"
    assert data.split_sizes(spec) == {"test": 9, "train": 15, "validation": 7}
    source = data.open_source(spec, "validation")
    assert sorted(source.labels().tolist()) == [0, 0, 1, 1, 1, 2, 2]
    assert all("/val/" in path for path in source.paths)


def test_a_class_may_be_called_test(tmp_path):
    spec = f"folder:{example_images.folder(tmp_path / 'p', classes=('exam', 'test'))}"
    assert data.open_source(spec, "all").class_names == ("exam", "test")


def test_invalid_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder.*none"):
        data.open_source(f"folder:{tmp_path}/none")
    with pytest.raises(ValueError, match="one subfolder per class.*an empty folder"):
        data.open_source(f"folder:{tmp_path}")
    (tmp_path / "a.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"without subfolders.*a\.jpg"):
        data.open_source(f"folder:{tmp_path}")
    root = example_images.folder(tmp_path / "p")
    (tmp_path / "p" / "fox").mkdir()
    (tmp_path / "p" / "fox" / "notes.txt").write_text("")
    notes = " ".join(data.open_source(f"folder:{root}").notes)
    assert "without images are left out: " in notes and "p/fox." in notes and "1 .txt" in notes
    for name in ("cat", "dog", "eel"):
        shutil.rmtree(tmp_path / "p" / name)
    with pytest.raises(ValueError, match=r"no image in .*p/fox\..*1 \.txt"):
        data.open_source(f"folder:{root}")


def test_class_without_training_folder_is_refused(tmp_path):
    example_images.folder(tmp_path / "train")
    example_images.folder(tmp_path / "test", classes=("cat", "fox"))
    with pytest.raises(ValueError, match=r"no training folder for \['fox'\].*'test'"):
        data.open_source(f"folder:{tmp_path}")


def test_a_name_that_is_not_utf_8_is_reported_with_its_folder(tmp_path):
    root = example_images.folder(tmp_path / "p")
    with open(os.fsencode(f"{root}/cat/") + b"caf\xe9.jpg", "wb"):
        pass
    with pytest.raises(ValueError, match=r"xe9.*p/cat"):
        data.open_source(f"folder:{root}", "all")


# --- manifests --------------------------------------------------------------------------------------------------------


def test_csv_manifests_are_read(tmp_path):
    lines = ["path,label,split"] + [
        f'"{i}, a.jpg",{"cat" if i % 2 else "dog"},{"Train" if i < 6 else "dev"}' for i in range(9)
    ]
    (tmp_path / "list.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    spec = f"manifest:{tmp_path}/list.csv"
    assert data.split_sizes(spec) == {"train": 6, "validation": 3}
    assert data.open_source(spec, "test[:2]").num_examples == 2  # as in a folder without test/
    source = data.open_source(spec, "dev")
    assert source.class_names == ("cat", "dog")
    assert sorted(source.paths) == [f"{tmp_path}/{i}, a.jpg" for i in (6, 7, 8)]
    by_path = dict(zip(source.paths, source.labels().tolist(), strict=True))
    assert by_path[f"{tmp_path}/7, a.jpg"] == 0
    moved = data.open_source(spec, "dev", root="gs://bucket/p", class_names=["dog", "cat"])
    assert moved.paths[0].startswith("gs://bucket/p/") and moved.class_names == ("dog", "cat")


def test_csv_blanks_before_quotes_are_ignored(tmp_path):
    (tmp_path / "list.csv").write_text('path, label\na.png, "b, c"\n"b.png" ,"a"\nc.png,a\n')
    source = data.open_source(f"manifest:{tmp_path}/list.csv", "all")
    assert source.class_names == ("a", "b, c")
    assert set(source.paths) == {f"{tmp_path}/{name}.png" for name in "abc"}


def test_an_image_that_is_listed_twice_is_in_one_split(tmp_path):
    """Also under another label, and with another spelling of its path."""
    lines = ["path,label", *(f"{'./' * (n % 2)}{n % 50}.png,{'abc'[n % 3]}" for n in range(120))]
    lines += [f"{tmp_path}/3.png,a", "x/../4.png,a"]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    train, test = (data.open_source(f"manifest:{tmp_path}/list.csv", split) for split in ("train", "test"))
    assert not {os.path.normpath(path) for path in train.paths} & {os.path.normpath(path) for path in test.paths}
    assert train.num_examples + test.num_examples == 122 and 15 < test.num_examples < 35
    (once,) = train.notes
    (labels,) = separation.about_same_images([train, test])
    assert "50 images are listed more than once" in once and "50 images have different labels" in labels
    lines = ["path,value,split", "a.png,1,train", "b.png,2,train", "./a.png,1,test"]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    stated = [data.open_source(f"manifest:{tmp_path}/list.csv", split) for split in ("train", "test")]
    (note,) = separation.about_same_images(stated)
    assert "1 of the 1 images in 'test' are also in 'train'" in note


@pytest.mark.parametrize("first", [1, 0])
def test_classes_without_training_images_are_noted(first, tmp_path):
    splits = ["train"] * 6 + ["test"] * 3
    lines = [f"{n}.png,{n % 3 + first},{split}" for n, split in enumerate(splits)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,split", *lines]))
    spec = f"manifest:{tmp_path}/list.csv"
    source = data.open_source(spec)
    assert len(source.notes) == 2 * first and source.num_classes == 3 + first
    assert all("without images" in note and ": 0." in note for note in source.notes)
    assert not first or "label_offset=-1" in source.notes[0]
    counted = data.open_source(spec, label_offset=-first)
    assert counted.class_names == ("0", "1", "2") and not counted.notes
    (tmp_path / "list.csv").write_text("\n".join(["path,labels,split", "a,red,train", "b,red;round,test"]))
    (note,) = data.open_source(spec, "test").notes
    assert "'train': round" in note


def test_csv_apostrophes_before_formulas_are_removed(tmp_path):
    """`check-data` and `predict` write these names with an apostrophe."""
    (tmp_path / "list.csv").write_text("path,label\n'-1.png,'=a\n2.png,b\n3.png,''+c\n", encoding="utf-8")
    source = data.open_source(f"manifest:{tmp_path}/list.csv", split="all")
    assert source.class_names == ("'+c", "=a", "b") and f"{tmp_path}/-1.png" in source.paths


def test_csv_with_several_labels_per_image_is_read(tmp_path):
    (tmp_path / "list.csv").write_text("path,labels\na.jpg, red; round\nb.jpg,\nc.jpg,red ; \n")
    source = data.open_source(f"manifest:{tmp_path}/list.csv", "all")
    assert source.label_kind == "classes" and source.class_names == ("red", "round")
    rows = dict(zip(source.paths, source.labels().tolist(), strict=True))
    assert rows == {f"{tmp_path}/a.jpg": [1, 1], f"{tmp_path}/b.jpg": [0, 0], f"{tmp_path}/c.jpg": [1, 0]}


def test_csv_labels_in_both_unicode_forms_are_one_class(tmp_path):
    lines = ["path,label", *(f"{i}.jpg,{unicodedata.normalize(form, 'café')}" for i, form in enumerate(("NFC", "NFD")))]
    (tmp_path / "list.csv").write_text("\n".join([*lines, "2.jpg,thé"]), encoding="utf-8")
    for names in (None, [unicodedata.normalize("NFD", name) for name in ("café", "thé")]):
        source = data.open_source(f"manifest:{tmp_path}/list.csv", "all", class_names=names)
        assert source.class_names == ("café", "thé") and sorted(source.labels()) == [0, 0, 1]


def test_csv_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / "list.csv").write_bytes("path,label\na.jpg,cat\nb.jpg,caf\u00e9\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"list.csv must be UTF-8. Line 3 .*xe9"):
        data.open_source(f"manifest:{tmp_path}/list.csv", "all")


def test_numeric_labels_are_class_numbers(tmp_path):
    lines = ["path,labels", *(f"/p/{i}.jpg,{i % 3};5" for i in range(10))]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    source = data.open_source(f"manifest:{tmp_path}/list.csv", "all")
    assert source.num_classes == 6  # numbers count from 0
    assert source.labels().sum() == 20
    assert all(path.startswith("/p/") for path in source.paths)
    assert data.split_sizes(f"manifest:{tmp_path}/list.csv") == {"train": 8, "test": 2, "all": 10}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "file,label\n1,2\n", ["name the columns 'path' and 'label'", "file, label"]),
        ("a.csv", "", ["an empty file"]),
        ("a.csv", "path,label\n", ["lists no image"]),
        ("a.csv", "path,label\na.jpg,\n", ["Line 2", "path and a label"]),
        ("a.csv", "path,label\nred, a.jpg,cat\n", ["Line 2", "one field per column", "red"]),
        ("a.csv", "path,label\na,b,c\nd,e\nf,g,h\n", ["Line 2", "line 4"]),
        ("a.csv", "path,label\n" + "a,\n" * 8, ["Line 2", "line 3", "line 7", "2 more"]),
        ("a.csv", "path;label\na;b\n", ["Separate the columns with commas"]),
        ("a.csv", "path,label, label\na,b,c\n", ["different names", "label, label"]),
        ("a.jsonl", '{"path": "a", "label": "b", "label": "c"}', ["Line 1", "a key occurs twice"]),
        ("a.csv", "path,label,split\na.jpg,x,train\nb.jpg,x,\n", ["Line 3", "split"]),
        ("a.csv", "path,label\na.jpg,3\nb.jpg,99999999999\n", ["line 3", "99999999999"]),
        ("a.csv", "path,label\na.jpg,3\nb.jpg," + "9" * 5000 + "\n", ["line 3", "class numbers"]),
        ("a.csv", "path,label\na.jpg,3\nb.jpg," + "x" * 200_000 + "\n", ["Line 3", "field"]),
        ("a.csv", "path,labels\n" + "a.jpg,3;209990\n" * 21_000, ["would take 16 GiB"]),  # of float32
    ],
)
def test_invalid_manifests_are_refused(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError) as error:
        data.open_source(f"manifest:{tmp_path}/{name}", "all")
    for word in words:
        assert word in str(error.value)


def test_manifest_label_that_is_not_a_class_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("path,label\na.jpg,cat\nb.jpg,cow\n")
    with pytest.raises(ValueError, match="line 3.*'cow'"):
        data.open_source(f"manifest:{tmp_path}/a.csv", "all", class_names=["cat", "dog"])
    (tmp_path / "b.csv").write_text("path,label\na.jpg,0\nb.jpg,7\n")
    with pytest.raises(ValueError, match="0 <= label < 2.*7 for line 3"):
        data.open_source(f"manifest:{tmp_path}/b.csv", "all", class_names=["cat", "dog"])


# --- names of sources -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        ("digit", {}, ["Unknown source 'digit'", "Did you mean 'digits'?", "folder:/images"]),
        ("/home/me/pictures", {}, ["Unknown source", "write 'folder:' before"]),
        ("folder", {}, ["needs a path or name", "folder:/images"]),
        ("digits:/x", {}, ["takes no path"]),
        ("digits", {"tset_fraction": 1}, ["no option 'tset_fraction'", "It has none"]),
        ("folder:/x#tset_fraction=1", {}, ["no option 'tset_fraction'", "Did you mean 'test_fraction'?"]),
        ("folder:/x", {"test_fraction": 2}, []),
    ],
)
def test_wrong_source_names_are_refused(spec, options, words):
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        data.open_source(spec, **options)
    for word in words:
        assert word in str(error.value)


def test_examples_are_as_stored(tmp_path):
    source = data.open_source(f"folder:{example_images.folder(tmp_path / 'p')}", "all")
    example = next(iter(source.examples()))
    assert example["image"].dtype == tf.string
    assert [name for name, _ in source.items()] == source.paths
    example = next(iter(data.open_source("digits").examples()))
    assert example["image"].shape == (8, 8, 1) and example["image"].dtype == tf.uint8
