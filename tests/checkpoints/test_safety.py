"""Damaged and malicious files are rejected with a clear error, in bounded memory, and do not change the model."""

import contextlib
import io
import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_vit
from keras_vit.checkpoints import CheckpointError, load_checkpoint, model_from_checkpoint
from keras_vit.checkpoints.formats import npz, safetensors, tensors
from keras_vit.checkpoints.formats.npz import NpzSource
from keras_vit.checkpoints.formats.safetensors import SafetensorsSource
from tests.checkpoints import files
from tools import fuzz_checkpoints as fuzz


class Exploit:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def refused(path, message, **arguments):
    with pytest.raises(ValueError, match=message) as error:
        model_from_checkpoint(path, **arguments)
    assert str(path) in str(error.value)


def test_object_arrays_are_never_unpickled(tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, **files.tensors_of("vit_gap"), extra=np.array([Exploit()], dtype=object))
    refused(path, "pickled Python objects")


def test_pytorch_pickles_are_refused_with_the_remedy(tmp_path):
    old = tmp_path / "model.pth"
    old.write_bytes(pickle.dumps(Exploit(), protocol=2))
    refused(old, "safetensors.torch.save_file")
    old.write_bytes(pickle.dumps(Exploit(), protocol=5))
    refused(old, "safetensors.torch.save_file")
    old.write_bytes(b"\x80\x06" + bytes(30))  # no protocol of pickles
    refused(old, "not a supported checkpoint")
    new = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(new, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Exploit()))
    refused(new, "safetensors.torch.save_file")
    refused(tmp_path, "safetensors.torch.save_file")


def test_truncated_files_and_html_error_pages_are_refused(tmp_path):
    for name in ("vit_gap", "hf_vit"):
        data = files.golden_path(name).read_bytes()
        for size in (0, 1, 7, 100, len(data) // 2, len(data) - 1):
            path = tmp_path / "model"
            path.write_bytes(data[:size])
            refused(path, "truncated|damaged|empty|complete|not a supported checkpoint")
    path.write_text("<html>404 Not Found</html>")
    refused(path, "error page")
    path.write_text('{"error": "not found"}')
    refused(path, "weight_map")
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        model_from_checkpoint(tmp_path / "nothing-here")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "an empty directory")


def test_other_models_are_recognized_as_such(tmp_path):
    path = files.write_npz(tmp_path / "model.npz", {"dense/kernel": np.ones((2, 2), "float32")})
    refused(path, "no Vision Transformer or BiT of a known family.*dense/kernel")


@pytest.mark.slow
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_with_nan_or_infinity_are_refused(value, tmp_path):
    tensors = files.tensors_of("vit_token_legacy")
    tensors["head/kernel"] = tensors["head/kernel"].copy()
    tensors["head/kernel"][3, 2] = value
    path = files.write_npz(tmp_path / "model.npz", tensors)
    model = keras_vit.VisionTransformer(8, 32, 2, 4, 64, image_size=32, classes=7)
    before = [np.array(v) for v in model.variables]
    with pytest.raises(ValueError, match="head/kernel.*NaN or infinity"):
        load_checkpoint(model, path)
    for variable, array in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(np.asarray(variable), array)
    load_checkpoint(model, path, allow_nonfinite=True)
    load_checkpoint(model, path, head="reset")  # an unused tensor is ignored


@pytest.mark.slow
def test_damaged_last_tensor_leaves_the_model_unchanged(tmp_path):
    data = bytearray(files.write_npz(tmp_path / "model.npz", files.tensors_of("vit_gap")).read_bytes())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        last = max(archive.infolist(), key=lambda info: info.header_offset)
    data[last.header_offset + 300] ^= 1
    (tmp_path / "model.npz").write_bytes(data)
    model = keras_vit.VisionTransformer(8, 32, 2, 2, 48, image_size=32, classes=5, pooling="gap")
    before = [np.array(v) for v in model.variables]
    with pytest.raises(ValueError, match="damaged"):
        load_checkpoint(model, tmp_path / "model.npz")
    for variable, array in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(np.asarray(variable), array)


def member(shape, dtype="<f4", data=b""):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    "content,message",
    [
        (member("(10000000000, 10000000000)"), "has 0 bytes"),
        (member("(-4, 4)"), "no plain .npy header"),
        (member("(4,) + open('/etc/passwd')"), "no plain .npy header"),
        (member("(4,)", "<c8", b"\0" * 32), "only real numbers"),
        (member("(1,)", "<f4 ", b"\0" * 4), "no plain .npy header"),
        (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1), "no plain .npy header"),
        (b"not an array", "not a .npy array"),
    ],
)
def test_malformed_npy_headers_are_refused(content, message, tmp_path):
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as archive:
        archive.writestr("embedding/kernel.npy", content)
    refused(tmp_path / "model.npz", message)


@pytest.mark.slow
def test_zip_bombs_are_refused(tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("embedding/kernel.npy", "w") as file:
        file.write(member("(16, 16, 3, 102400)"))
        for _ in range(300):
            file.write(bytes(2**20))
    assert path.stat().st_size < 2**21
    refused(path, "decompression bomb")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "w") as archive:
        for _ in range(2):
            archive.writestr("head/bias.npy", member("(1,)", data=bytes(4)))
    refused(path, "different names")


def test_overlapping_zip_members_are_refused(tmp_path):
    path = files.write_npz(tmp_path / "model.npz", {"a": np.ones(4, "float32"), "b": np.ones(4, "float32")})
    data = bytearray(path.read_bytes())
    second = data.rfind(b"PK\x01\x02")
    data[second + 42 : second + 46] = struct.pack("<I", 0)  # both directory entries lead to the first member
    path.write_bytes(data)
    refused(path, "overlap|damaged")


def write_safetensors(path, header, data=b""):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    return path


@pytest.mark.parametrize(
    "header,data,message",
    [
        (b'{"a": {"dtype": "F32"', b"", "not valid JSON"),
        (b'{"a": 1, "a": 2}', b"", "twice"),
        (b"[" * 50_000 + b"]" * 50_000, b"", "not a supported checkpoint"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", "not valid JSON"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(4), "damaged"),
        ({"a": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4 * 10**18]}}, b"", "truncated|no valid"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, bytes(4), "damaged"),
        ({"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, bytes(4), "F8_E4M3"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, bytes(8), "damaged"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(8), "truncated or damaged"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, bytes(4), "damaged"),
        ({"a": 7}, b"", "damaged"),
    ],
)
def test_malformed_safetensors_headers_are_refused(header, data, message, tmp_path):
    refused(write_safetensors(tmp_path / "model.safetensors", header, data), message)


def test_file_truncated_while_open_raises_a_checkpoint_error(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(files.golden_path("hf_vit").read_bytes())
    source = SafetensorsSource(str(path))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(CheckpointError, match="model.safetensors"):
        source.read(next(iter(source.tensors)))
    source.close()


def test_giant_safetensors_header_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + b"{" + bytes(100))
    refused(path, "not a supported checkpoint|complete")


def test_configurations_do_not_determine_the_size_of_missing_weights(tmp_path):
    path = files.write_npz(tmp_path / "m.npz", files.tensors_of("bv_gap_sincos"))
    with zipfile.ZipFile(path, "a") as archive:
        note = {"version": 1, "arguments": {}, "image_size": [10**6, 10**6]}
        archive.comment = b"keras_vit:" + json.dumps(note).encode()
    refused(path, "Pass another image_size")


@pytest.mark.slow
def test_hdf5_links_are_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "elsewhere.h5", "w") as file:
        file["secret"] = np.ones(3, "float32")
    for kind in (h5py.ExternalLink("elsewhere.h5", "/secret"), h5py.SoftLink("/layers")):
        with h5py.File(tmp_path / "model.weights.h5", "w") as file:
            group = file.create_group("layers/dense/vars")
            group.attrs["name"] = "embedding"
            group["0"] = kind
        refused(tmp_path / "model.weights.h5", "links to another object")


def test_npz_source_reads_headers_only(tmp_path):
    source = NpzSource(str(files.golden_path("vit_gap")))
    assert source.tensors["params/head/kernel"].shape == (32, 5)
    source.close()


@pytest.mark.slow
def test_damaged_files_stay_within_the_limits(tmp_path):
    fuzzer = fuzz.Fuzzer(tmp_path, seed=1234)
    for _ in range(300):
        fuzzer.step()
    assert fuzzer.refused > 200


@pytest.mark.exhaustive
def test_many_damaged_files_stay_within_the_limits(tmp_path):
    fuzzer = fuzz.Fuzzer(tmp_path, seed=4321)
    for _ in range(4000):
        fuzzer.step()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("format", ["npz", "safetensors"])
def test_integers_are_not_weights(dtype, format, tmp_path):
    """The tensors of a quantized file; read as they are, they would be garbage."""
    tensors = files.tensors_of("vit_gap" if format == "npz" else "hf_vit")
    name = "head/kernel" if format == "npz" else "classifier.weight"
    tensors[name] = (100 * tensors[name]).astype(dtype)
    if format == "npz":
        path = files.write_npz(tmp_path / "model.npz", tensors)
    else:
        path = files.write_directory(tmp_path / "model", tensors, files.hf_config())
    with pytest.raises(CheckpointError, match=name):
        model_from_checkpoint(path)


@pytest.mark.parametrize(
    ("shape", "is_valid"),
    [
        ([], True),
        ([1] * 8, True),
        ([1] * 9, False),
        ((2**48 - 1, 0), True),
        ((2**48,), False),
        ([-1], False),
        ([True], False),
        ([1.0], False),
        ("1", False),
    ],
)
def test_shapes_out_of_bounds_are_refused(shape, is_valid):
    message = "x: tensor 'a' has no valid shape. Received: shape="
    with contextlib.nullcontext() if is_valid else pytest.raises(CheckpointError, match=message):
        assert tensors.check_shape(shape, "a", "x") == tuple(shape)


def test_json_above_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(tensors, "MAX_JSON_BYTES", 8)
    assert tensors.parse_json(b'{"a": 1}', "x") == {"a": 1}
    with pytest.raises(CheckpointError, match="x has 9 bytes of JSON; at most 8 are read"):
        tensors.parse_json(b'{"a": 1} ', "x")


def test_shards_above_the_limit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(safetensors, "_MAX_SHARDS", 2)
    path, weight_map = tmp_path / "model.safetensors.index.json", {}
    for count, name in enumerate("abc", 1):
        save_file({name: np.ones(1, "float32")}, tmp_path / f"{name}.safetensors")
        weight_map[name] = f"{name}.safetensors"
        path.write_text(json.dumps({"weight_map": weight_map}))
        with contextlib.nullcontext() if count < 3 else pytest.raises(CheckpointError, match="more than 2 shards"):
            source = safetensors.ShardedSource(str(path))
            assert source.files == [str(path), *(str(tmp_path / shard) for shard in weight_map.values())]
            source.close()


def packed(start, stored, size, kind=zipfile.ZIP_DEFLATED):
    """A member of an archive: its position, its size in the archive and its size."""
    info = zipfile.ZipInfo("a.npy")
    info.header_offset, info.compress_size, info.file_size, info.compress_type = start, stored, size, kind
    return info


@pytest.mark.parametrize(
    ("members", "size", "problem"),
    [
        ([packed(0, 9, 2**28)], 1000, ""),
        ([packed(0, 9, 2**28 + 1)], 1000, "decompression bomb"),
        ([packed(0, 9, 20 * 2**24)], 2**24, ""),
        ([packed(0, 9, 20 * 2**24 - 5), packed(39, 9, 6)], 2**24, "decompression bomb"),
        ([packed(0, 9, 9, zipfile.ZIP_STORED), packed(39, 1, 1)], 70, ""),
        ([packed(39, 1, 1), packed(0, 9, 9)], 69, "truncated"),
        ([packed(38, 1, 1), packed(0, 9, 9)], 70, "overlap"),
        ([packed(0, 9, 8, zipfile.ZIP_STORED)], 70, "inconsistent sizes"),
        ([packed(0, 9, 9, zipfile.ZIP_BZIP2)], 70, "unsupported method"),
    ],
)
def test_zip_members_out_of_bounds_are_refused(members, size, problem):
    with pytest.raises(CheckpointError, match=problem) if problem else contextlib.nullcontext():
        npz._check_members(members, size, "x")


def test_metadata_longer_than_a_zip_comment_are_left_out(tmp_path):
    """A comment has at most 65,535 bytes; 19 of these surround the text."""
    for length, written in ((65_516, 65_535), (65_517, 0)):
        npz.write_npz(str(tmp_path / "a.npz"), ["a"], lambda name: np.ones(2), {"a": "x" * length})
        with zipfile.ZipFile(tmp_path / "a.npz") as archive:
            assert len(archive.comment) == written
            assert [info.date_time for info in archive.infolist()] == [(1980, 1, 1, 0, 0, 0)]
