"""HDF5 files in archives are read without rereading the archive."""

import contextlib
import io
import zipfile

import keras
import numpy as np
import pytest

from keras_vit.checkpoints.formats import hdf5, open_source
from tests import tiny


def test_range_of_a_file_reads_like_a_file(tmp_path):
    content, path = bytes(range(100)), tmp_path / "file"
    path.write_bytes(content)
    expected = io.BytesIO(content[20:50])
    with path.open("rb") as file:
        part = hdf5.FilePart(file, 20, 30)
        for offset, whence, count in [
            (0, 0, 7),
            (3, 1, 5),
            (-4, 2, 10),
            (29, 0, 1),
            (30, 0, 1),
            (2, 0, 40),
            (-30, 1, 3),
        ]:
            assert part.seek(offset, whence) == expected.seek(offset, whence)
            assert part.read(count) == expected.read(count) and part.tell() == expected.tell()
        part.seek(0)
        assert part.read() == content[20:50] and part.readable() and part.seekable() and not part.writable()


def test_data_of_a_zip_member_begin_after_its_name_and_extra_field(tmp_path):
    path = tmp_path / "archive.zip"
    with path.open("wb") as file:
        file.write(b"before the archive")
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("first", b"12345")
            info = zipfile.ZipInfo("second/member")
            info.extra = b"\x99\x99\x04\x00abcd"
            archive.writestr(info, b"contents")
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        file.seek(hdf5.data_start(file, archive.getinfo("second/member")))
        assert file.read(8) == b"contents"


@pytest.mark.slow
def test_a_keras_file_is_read_without_seeking_in_its_archive(tmp_path, monkeypatch):
    path = str(tmp_path / "model.keras")
    model = tiny.model(num_layers=2)
    model.save(path)
    monkeypatch.setattr(zipfile.ZipExtFile, "seek", lambda *_: pytest.fail("the archive seeks"))
    with contextlib.closing(open_source(path)) as source:
        read = {name: source.read(name) for name in source.tensors}
    assert len(read) == len(model.trainable_variables)
    for variable in model.trainable_variables:
        np.testing.assert_array_equal(read[variable.path], keras.ops.convert_to_numpy(variable))
