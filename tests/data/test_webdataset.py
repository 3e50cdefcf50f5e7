import contextlib
import io
import json
import tarfile

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import fingerprint
from keras_vit.data.readers import shards, tar
from keras_vit.util.source_specs import expanded
from tests.data import example_images


def image(number):
    return example_images.encode(np.full((4, 4, 3), number, np.uint8))


def add(archive, name, content, **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    archive.addfile(info, io.BytesIO(content))


def write(path, numbers, label=lambda number: {"cls": str(number % 3).encode()}, **fields):
    with tarfile.open(path, "w") as archive:
        for number in numbers:
            for extension, content in {"png": image(number), **label(number)}.items():
                add(archive, f"{number:04d}.{extension}", content, **fields)
    return path


def stored(source):
    """The numbers of the images as they are stored."""
    return [int(tf.io.decode_png(example["image"])[0, 0, 0]) for example in source.examples()]


@pytest.mark.slow
def test_splits_are_determined_by_file_names(tmp_path):
    for shard in range(3):
        write(tmp_path / f"set-train-{shard:02d}.tar", range(10 * shard, 10 * shard + 10))
    write(tmp_path / "set-validation-00.tar", range(30, 34))
    spec = f"webdataset:{tmp_path}"
    assert data.split_sizes(spec) == {"train": 30, "validation": 4}
    source = data.open_source(spec)
    assert sorted(stored(source)) == list(range(30)) and source.class_names == ("0", "1", "2")
    assert [int(tf.io.decode_png(e["image"])[0, 0, 0]) % 3 for e in source.examples()] == source.labels().tolist()
    assert stored(source) == stored(data.open_source(f"webdataset:{tmp_path}/set-train-{{00..02}}.tar"))
    halves = [stored(data.open_source(spec, split)) for split in ("train[:50%]", "train[50%:]")]
    assert sum(halves, []) == stored(source) != sorted(stored(source))  # a slice is a random sample
    assert "set-train-0" in source.origin(0) and source.origin(0).endswith(".png")


def test_without_splits_a_hash_selects_the_test_split(tmp_path):
    folder = tmp_path / "set [1]"
    folder.mkdir()
    write(folder / "a.tar", range(20))
    for location in (folder, f"file://{folder}", f"{folder}/a.tar", f"file://{folder}/a.tar"):
        assert data.split_sizes(f"webdataset:{location}") == {"train": 17, "test": 3, "all": 20}


@pytest.mark.parametrize(
    ("label", "options", "names"),
    [
        (lambda n: {"cls": b" dog\n" if n % 2 else b"cat"}, "", ("cat", "dog")),
        (lambda n: {"CLS": b"ab"[n % 2 :][:1]}, "", ("a", "b")),
        (lambda n: {"json": json.dumps({"label": n % 2, "wnid": "n1"}).encode()}, "", ("0", "1")),
        (lambda n: {"cls": b"9", "json": json.dumps({"kind": "ab"[n % 2]}).encode()}, "#label=kind", ("a", "b")),
        (lambda n: {"cls": str(n % 2).encode()}, "#class_names=('cat','dog')", ("cat", "dog")),
    ],
)
def test_labels_of_every_extension_are_read(tmp_path, label, options, names):
    write(tmp_path / "train.tar", range(4), label)
    source = data.open_source(f"webdataset:{tmp_path}/train.tar{options}")
    assert source.class_names == names
    assert source.labels().tolist() == [number % 2 for number in stored(source)]


@pytest.mark.parametrize("style", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_index_of_members_matches_tarfile(tmp_path, style):
    long = "d" * 90 + "/" + "é" * 40 if style == tarfile.USTAR_FORMAT else "long" * 60 + "é"
    with tarfile.open(tmp_path / "a.tar", "w", format=style, pax_headers={"comment": "x"}) as archive:
        add(archive, "folder", b"", type=tarfile.DIRTYPE)
        for name in ("a.txt", f"{long}.png", "b.png"):
            add(archive, name, name.encode() * 200, mtime=1.5 if style == tarfile.PAX_FORMAT else 1)
    with tarfile.open(tmp_path / "a.tar") as archive:
        expected = [(item.name, item.offset_data, item.size) for item in archive if item.isreg()]
    found = list(tar.members(str(tmp_path / "a.tar")))
    assert [member[1:] for member in found] == expected and len(found) == 3
    assert all(member.read() == member.name.encode() * 200 for member in found)


def test_a_large_size_is_binary_or_extended(tmp_path):
    """Sizes from 8 GiB on do not fit into the octal field. The file is sparse."""
    for style in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        info = tarfile.TarInfo("a.png")
        info.size = 2**33 + 1
        header = info.tobuf(style)
        with open(tmp_path / "a.tar", "wb") as file:
            file.write(header)
            file.truncate(len(header) + 2**33 + 512 + 1024)
        (member,) = tar.members(str(tmp_path / "a.tar"))
        assert member[2:] == (len(header), 2**33 + 1)


def damaged(path, kind):
    content = bytearray(path.read_bytes())
    if kind == "truncated in a file":
        del content[700:]
    elif kind == "truncated between files":
        del content[content.index(b"0001.png") :]
    elif kind == "size":
        content[124:136] = b"77777777777\0"
    elif kind == "negative size":
        content[124:136] = b"-0000000001\0"
    elif kind == "garbage":
        content[1024:] = bytes(range(256)) * 8
    elif kind == "compressed":
        content[:2] = b"\x1f\x8b"
        content[257:262] = b"     "
    elif kind == "empty":
        content.clear()
    path.write_bytes(content)


@pytest.mark.parametrize(
    "kind",
    ["truncated in a file", "truncated between files", "size", "negative size", "garbage", "compressed", "empty"],
)
def test_a_damaged_file_is_reported(tmp_path, kind):
    path = write(tmp_path / "a.tar", range(3))
    damaged(path, kind)
    with pytest.raises(ValueError, match="a.tar must be a complete tar file"):
        data.open_source(f"webdataset:{path}", "all")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.GNUTYPE_SPARSE, tarfile.FIFOTYPE])
def test_links_and_special_files_are_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "a.png", b"", type=kind, linkname="/etc/passwd")
    with pytest.raises(ValueError, match="only regular files"):
        list(tar.members(str(tmp_path / "a.tar")))


@pytest.mark.parametrize("fields", [b"0 a=b\n", b"9 a\n", b"x a=b\n", b"14 size=99999\n", b"11 size=-9\n"])
def test_damaged_extended_headers_are_refused(tmp_path, fields):
    """The first one has no length: an endless loop."""
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "fields", fields, type=tarfile.XHDTYPE)
        add(archive, "a.png", b"x")
    with pytest.raises(ValueError, match="complete tar file"):
        list(tar.members(str(tmp_path / "a.tar")))


@pytest.mark.parametrize(("size", "is_read"), [(2**20, True), (2**20 + 1, False)])
def test_extended_headers_are_limited_in_size(tmp_path, size, is_read):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        start = f"{size} comment=".encode()
        add(archive, "fields", start.ljust(size - 1, b"x") + b"\n", type=tarfile.XHDTYPE)
        add(archive, "a.png", b"x")
    with contextlib.nullcontext() if is_read else pytest.raises(ValueError, match="only regular files.*the type b'x'"):
        assert [member.name for member in tar.members(str(tmp_path / "a.tar"))] == ["a.png"]


def test_folders_and_old_file_types_are_read(tmp_path):
    """The fields of a folder are not those of the next file. In very old files, a folder has a file's type."""
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        add(archive, "long" * 60, b"", type=tarfile.DIRTYPE)
        add(archive, "a.png", b"a", type=tarfile.CONTTYPE)
        add(archive, "b.png", b"b", type=tarfile.AREGTYPE)
        add(archive, "c/", b"", type=tarfile.REGTYPE)
    found = list(tar.members(str(tmp_path / "a.tar")))
    assert [(member.name, member.read()) for member in found] == [("a.png", b"a"), ("b.png", b"b")]


@pytest.mark.parametrize(("size", "is_read"), [(2**20, True), (2**20 + 1, False)])
def test_labels_are_limited_in_size(tmp_path, size, is_read):
    path = write(tmp_path / "a.tar", [0], lambda number: {"cls": b"dog".ljust(size)})
    with contextlib.nullcontext() if is_read else pytest.raises(ValueError, match="must have a label"):
        assert data.open_source(f"webdataset:{path}", "all").class_names == ("dog",)


def test_sparse_files_of_gnu_tar_are_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "a.png", b"1\n0\n", pax_headers={"GNU.sparse.major": "1"})
    with pytest.raises(ValueError, match="sparse"):
        list(tar.members(str(tmp_path / "a.tar")))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([("a.txt", b"x")], "must have an image.*Received: a with"),
        ([("a.png", b"x")], r"must have a label.*a\.cls.*'label' of a\.json. Received: files \['image'\]\."),
        ([("a.png", b"x"), ("a.cls", b"0"), ("a.jpg", b"y")], "one image for each example.*several for a"),
        ([("a.png", b"x"), ("a.json", b"[" * 9999)], "must have a label"),
        ([("a.png", b"x"), ("a.json", b'{"label": [1]}')], "must have a label"),
        ([("a.png", b"x"), ("a.json", b'{"label": true}')], "must have a label.*Received: True"),
        ([("a.png", b"x"), ("a.cls", b"9999999999")], "class numbers from 0.*a.png"),
        ([("a.png", b"x"), ("a.cls", b"\xff")], "a.cls must be UTF-8"),
        ([("._a.png", b"x")], "s.tar contains no examples"),
    ],
)
def test_examples_without_image_or_label_are_refused(tmp_path, files, message):
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for name, content in files:
            add(archive, name, content)
    with pytest.raises(ValueError, match=message):
        data.open_source(f"webdataset:{tmp_path}/s.tar", "all")


def opened(path):
    source = data.open_source(f"webdataset:{path}", "all")
    found = [(member.name, member.offset, member.size) for member in source.files]
    return found, source.labels().tolist(), source.class_names, fingerprint.fingerprint(source)


@pytest.mark.parametrize("is_writable", [True, False])
def test_index_is_cached(tmp_path, monkeypatch, is_writable):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    path = write(tmp_path / "a.tar", range(6), lambda number: {"cls": b"dog" if number % 2 else "\u00e9".encode()})
    if not is_writable:
        (tmp_path / "a.tar.index.npz").mkdir()  # no file can be written there
    first = opened(path)
    assert (tmp_path / "a.tar.index.npz").is_file() == is_writable
    assert len(list(tmp_path.glob("home/keras_vit/tar_indices/*"))) == (not is_writable)
    with monkeypatch.context() as patched:
        patched.setattr(tar, "members", lambda path: pytest.fail("The tar file is read again."))
        assert opened(path) == first
    write(path, range(7))
    assert len(opened(path)[0]) == 7  # the size and the time have changed


@pytest.mark.parametrize("damage", ["bytes", "places", "labels", "names", "objects", "depth"])
def test_a_damaged_index_is_not_used(tmp_path, damage):
    path = write(tmp_path / "a.tar", range(6))
    first, place = opened(path), tmp_path / "a.tar.index.npz"
    arrays = dict(np.load(place))
    if damage == "places":
        arrays["rows"][3, 0] = path.stat().st_size
    elif damage == "labels":
        arrays["rows"][3, -1] = 3
    elif damage == "names":
        arrays["names"] = arrays["names"][1:]
    elif damage == "objects":
        arrays["rows"] = arrays["rows"].astype(object)
    elif damage == "depth":
        arrays["about"] = np.frombuffer(b"[" * 100_000, np.uint8)
    np.savez(place, **arrays)
    if damage == "bytes":
        place.write_bytes(place.read_bytes()[:200])
    assert opened(path) == first
    assert opened(path) == first


@pytest.mark.slow
def test_a_row_that_cannot_be_read_does_not_change_the_other_rows(tmp_path):
    """The rows of a group are read together. One of its files disappears."""
    for shard in range(2):
        write(tmp_path / f"train-{shard}.tar", range(4 * shard, 4 * shard + 4))
    source, log = data.open_source(f"webdataset:{tmp_path}"), data.BadImageLog()
    (tmp_path / "train-1.tar").unlink()
    (batch,) = data.eval_batches(source, "decode|resize(4)", 8, on_bad_image=log)
    read = batch["image"].numpy()[batch["valid"].numpy() > 0][:, 0, 0, 0]
    assert sorted(read.tolist()) == [0, 1, 2, 3] and len(log.reasons) == 4


@pytest.mark.slow
def test_an_image_that_cannot_be_read_is_reported(tmp_path):
    label = lambda number: {"cls": b"0"} if number != 2 else {"png": b"damaged", "cls": b"0"}  # noqa: E731
    source = data.open_source(f"webdataset:{write(tmp_path / 'train.tar', range(6), label)}")
    with pytest.raises(data.UnreadableImageError, match=r"train\.tar/0002\.png"), data.image_errors():
        list(data.eval_batches(source, "decode|resize(4)", 6))


def test_the_fingerprint_covers_names_sizes_and_classes(tmp_path):
    digests = set()
    for change in ({}, {"cls": b"2"}, {"png": image(0) + b"\0"}, {"json": b"{}"}):
        path = write(tmp_path / "train.tar", range(6), lambda n, change=change: {"cls": b"%d" % (n % 2), **change})
        digests.add(fingerprint.fingerprint(data.open_source(f"webdataset:{path}"))["digest"])
    assert len(digests) == 3  # the last file is not used


@pytest.mark.slow
def test_braces_are_expanded():
    assert expanded("/a/{8..11}.tar") == ["/a/8.tar", "/a/9.tar", "/a/10.tar", "/a/11.tar"]
    assert expanded("{a,b}{098..101}")[:3] == ["a098", "a099", "a100"] and expanded("a") == ["a"]
    assert len(expanded("{0..99999}")) == len(expanded("{0..999}{0..99}")) == 100_000
    for wrong in ("{5..3}", "{0..999999}", "{0..99999}{0..99999}", "{0..999}{0..100}"):
        with pytest.raises(ValueError, match="Braces"):
            expanded(wrong)


def test_a_file_that_is_named_twice_is_read_once(tmp_path):
    path = write(tmp_path / "a.tar", range(3))
    assert shards.by_split(f"{tmp_path}/{{a,[a],a}}.tar", ".tar") == {"all": [str(path)]}


def test_missing_files_are_reported(tmp_path):
    write(tmp_path / "train-00000-of-00002.tar", range(3))
    for location, message in (
        (f"{tmp_path}/a{{0..3}}.tar", "a0.tar"),
        (f"{tmp_path}/x-*.tar", "x-"),
        (tmp_path, "Exp.*2"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            data.open_source(f"webdataset:{location}")
    with pytest.raises(ValueError, match="must be local.*gs://bucket"):
        data.open_source("webdataset:gs://bucket/a.tar")


@pytest.mark.parametrize(
    ("names", "counted"),
    [
        (["a-0-of-2", "a-1-of-2"], None),
        (["a-0-of-2.tar", "a-1-of-2.tar", "b-0-of-2.tar", "b-1-of-2.tar", "c.tar"], None),  # two series, one other file
        (["a-0-of-2", "b-0-of-2", "c"], ("4", "2")),
        (["a-00000-of-00010.parquet"], ("10", "1")),
        (["a-0-of-2-5e.parquet", "a-1-of-2-b7.parquet"], None),
        (["a-0-of-2-5e.parquet", "b-0-of-1.snappy.parquet"], ("3", "2")),
        (["1-of-2", "a-of-2", "a-1-of-x"], None),  # not numbered
    ],
)
def test_numbered_files_must_be_complete(names, counted):
    files = {"train": [f"/in-3-of-4/{name}" for name in names]}
    if counted is None:
        shards.check_complete("/in", files)
        return
    with pytest.raises(FileNotFoundError, match="'train' in /in .* Expected: {} files. Received: {}.".format(*counted)):
        shards.check_complete("/in", files)
