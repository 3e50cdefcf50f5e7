"""Small .npz and TFRecord files that claim gigabytes are refused before memory is taken."""

import gzip
import io
import json
import os
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from keras_vit import data
from tests.data.test_tfrecord import write_numbered

MANY = 2**40


def header(shape, descr="|u1"):
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def saved(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def write_npz(path, **members):
    good = {"images": saved(np.zeros((3, 4, 4), np.uint8)), "labels": saved(np.arange(3))}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in {**good, **members}.items():
            file.writestr(f"{name}.npy", content)


NPZ = {
    "labels of no bytes in many columns": ({"labels": header((3, 2**28), "|V0")}, r"labels.npy.*header states \|V0"),
    "labels of no bytes": ({"labels": header((3,), "|S0")}, r"labels.npy.*header states \|S0"),
    "images of no bytes": ({"images": header((MANY, 4, 4), "|V0")}, r"images.npy.*header states \|V0"),
    "names of no bytes": ({"class_names": header((MANY,), "<U0")}, "class_names.npy.*header states <U0"),
    "another array of no bytes": ({"extra": header((MANY,), "<U0")}, "extra.npy.*header states <U0"),
    "more columns than classes can be": (
        {"labels": header((3, 2**21)) + bytes(3 * 2**21)},
        r"at most 1,048,576.*'labels'",
    ),
    "labels without columns": ({"labels": header((3, 0))}, r"labels.*\[3, 0\]"),
    "more names than classes can be": ({"class_names": header((2**21,)) + bytes(2**21)}, r"class_names.*1,048,576"),
    "a table of names": ({"class_names": saved(np.array([["a", "b"]]))}, r"class_names.*\[1, 2\]"),
    "one name": ({"class_names": saved(np.array("a"))}, r"class_names.*\[\]"),
    "names as bytes": ({"class_names": saved(np.array([b"a", b"b", b"c"]))}, r"class_names.*\|S1"),
    "labels as text": ({"labels": saved(np.array([["a"], ["b"], ["c"]]))}, "labels.*<U1"),
    "labels as records": ({"labels": saved(np.zeros(3, [("a", "i4")]))}, "labels"),
    "more labels than images": ({"labels": header((2**24,)) + bytes(2**24)}, "one label per image, 3"),
    "a shape below zero": ({"images": header((-3, -4, 4)) + bytes(48)}, "images.npy"),
    "a header that claims more": ({"images": header((3, 2**24, 2**24)) + bytes(100)}, "images.npy has 228 bytes"),
}


@pytest.mark.parametrize("case", NPZ)
def test_npz_bombs_are_refused(case, tmp_path):
    members, words = NPZ[case]
    write_npz(tmp_path / "a.npz", **members)
    assert (tmp_path / "a.npz").stat().st_size < 2**15
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=words):
            data.open_source(f"npz:{tmp_path}/a.npz", "all")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def record(length):
    """A record of 50 bytes that claims another length; the checksum of the length is right."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", _masked_crc32c(packed)) + bytes(50)


def _masked_crc32c(content):
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("length", [2**34, 2**40, 2**62, 2**64 - 1])
@pytest.mark.parametrize("told", ["dataset_info.json", "num_examples", "nothing"])
def test_tfrecord_bombs_are_refused(told, length, pack, tmp_path):
    path = tmp_path / "train-00000-of-00001"
    path.write_bytes(pack(record(length)))
    if told == "dataset_info.json":
        (tmp_path / told).write_text(json.dumps({"records": {path.name: 1}, "num_classes": 2}))
    options = {"num_examples": 1} if told == "num_examples" else {}
    for location in (tmp_path, path, f"file://{path}"):
        with pytest.raises(ValueError, match="00000-of-00001 ends within record 0, or is not an unpacked TFRecord"):
            data.open_source(f"tfrecord:{location}", num_classes=2, **options)


def test_tfrecord_with_fewer_records_than_described_is_refused(tmp_path):
    write_numbered(tmp_path, [5])
    (tmp_path / "dataset_info.json").write_text(json.dumps({"records": {"train-00000-of-00001": 6}}))
    with pytest.raises(ValueError, match="train-00000-of-00001 has 5 records.*6"):
        data.open_source(f"tfrecord:{tmp_path}", num_classes=10)


def test_named_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "train-00000-of-00001")
    with pytest.raises(ValueError, match="regular file.*train-00000-of-00001"):
        data.open_source(f"tfrecord:{tmp_path}", num_classes=10)
