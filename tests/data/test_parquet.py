import json

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import fingerprint
from keras_vit.data.readers import parquet
from tests.data import example_images
from train.datasets import audit

pyarrow = pytest.importorskip("pyarrow", reason="pip install 'keras-vision-transformers[parquet]'")
pq = pytest.importorskip("pyarrow.parquet")


def image(number):
    return example_images.encode(np.full((4, 4, 3), number, np.uint8))


def write(path, numbers, labels=None, names=None, group=4, image_type="struct"):
    """A file in the layout of Hugging Face's data sets; image number i has only the value i."""
    images = [image(number) for number in numbers]
    if image_type == "struct":
        images = [{"bytes": content, "path": None} for content in images]
    if image_type == "large":
        images = pyarrow.array(images, pyarrow.large_binary())
        labels = pyarrow.array(labels, pyarrow.large_string() if isinstance(labels[0], str) else pyarrow.uint8())
    table = pyarrow.table({"image": images, "label": [number % 3 for number in numbers] if labels is None else labels})
    if names:
        features = {"label": {"names": names, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=group)


def stored(source):
    """The numbers of the images as they are stored."""
    return [int(tf.io.decode_png(example["image"])[0, 0, 0]) for example in source.examples()]


@pytest.mark.slow
def test_rows_splits_and_slices_are_read(tmp_path):
    write(tmp_path / "train-00000-of-00002.parquet", range(10), names=["cat", "dog", "eel"])
    write(tmp_path / "train-00001-of-00002.parquet", range(10, 15))
    (tmp_path / "validation").mkdir()
    write(tmp_path / "validation" / "0000.parquet", range(15, 18))
    spec = f"parquet:{tmp_path}"
    assert data.split_sizes(spec) == {"train": 15, "validation": 3}
    source = data.open_source(spec)
    assert source.class_names == ("cat", "dog", "eel") and source.num_examples == 15
    assert stored(source) == list(range(15)) and source.labels().tolist() == [n % 3 for n in range(15)]
    assert stored(data.open_source(spec, "train[3:11]+validation")) == [*range(3, 11), 15, 16, 17]
    assert stored(data.open_source(f"parquet:{tmp_path}/train-{{00000..00001}}-of-00002.parquet")) == list(range(15))
    assert source.origin(0, 3).startswith("record 3 of") and source.slices[2].skip == 8
    (batch,) = data.eval_batches(source, "decode|resize(4)", 16)
    assert batch["image"][:15, 0, 0, 0].numpy().tolist() == list(range(15)) and batch["valid"].numpy().sum() == 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "image_type", "options", "names"),
    [
        (["dog", "cat", "dog", "eel"], "struct", {}, ("cat", "dog", "eel")),
        ([1, 0, 1, 3], "binary", {}, ("0", "1", "2", "3")),
        ([1, 0, 1, 3], "binary", {"class_names": list("abcd")}, tuple("abcd")),
        ([1, 0, 1, 3], "large", {}, ("0", "1", "2", "3")),
        (["dog", "cat", "dog", "eel"], "large", {}, ("cat", "dog", "eel")),
        (["dog", "cat", "dog", "eel"], "struct", {"class_names": ["eel", "cat", "dog"]}, ("eel", "cat", "dog")),
    ],
)
def test_labels_of_every_column_type_are_read(tmp_path, labels, image_type, options, names):
    write(tmp_path / "a.parquet", range(4), labels, image_type=image_type)
    source = data.open_source(f"parquet:{tmp_path}/a.parquet", "all", **options)
    assert source.class_names == names
    expected = labels if isinstance(labels[0], int) else [names.index(label) for label in labels]
    assert source.labels().tolist() == expected and stored(source) == list(range(4))


@pytest.mark.slow
def test_invalid_labels_and_images_are_reported(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, range(4), [0, 2, 1, None])
    source = data.open_source(f"parquet:{path}", "all", class_names=["a", "b"])
    with pytest.raises(ValueError, match=r"0 <= label < 2.*2"):
        source.labels()
    pq.write_table(pyarrow.table({"image": [image(0), None], "label": [0, 1]}), path)
    with pytest.raises(data.UnreadableImageError, match=r"record 1 of .*a\.parquet"), data.image_errors():
        list(data.eval_batches(data.open_source(f"parquet:{path}", "all"), "decode|resize(4)", 2))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [b"x"], "tag": [0]}, "'label' of class numbers.*Received.*'tag': 'int64'"),
        ({"image": ["x"], "label": [0]}, "'image' of encoded images.*'image': 'string'"),
        ({"image": [b"x"], "label": [1.5]}, "'label': 'double'"),
        ({"image": [b"x"], "label": [2**40]}, "class numbers from 0.*1099511627776"),
    ],
)
def test_files_without_image_and_label_columns_are_refused(tmp_path, columns, message):
    pq.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        data.open_source(f"parquet:{tmp_path}/a.parquet", "all")


@pytest.mark.parametrize(
    ("labels", "more", "names"),
    [
        (["b", None, "a", "b"], ["c"], ["a", "b", "c"]),
        ([1, None, 0, 1], [3], ["0", "1", "2", "3"]),
        ([None], [1], ["0", "1"]),
    ],
)
def test_classes_come_from_the_labels_of_all_files(tmp_path, labels, more, names):
    """Rows without a label do not give a class."""
    write(tmp_path / "a.parquet", range(len(labels)), labels)
    write(tmp_path / "b.parquet", range(1), more)
    assert parquet._class_names("x", [str(tmp_path / name) for name in ("a.parquet", "b.parquet")], "label") == names


def test_damaged_files_are_reported(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, range(4))
    content = path.read_bytes()
    for part in (content[:-9], b"", content[:40]):
        path.write_bytes(part)
        with pytest.raises(ValueError, match="a.parquet cannot be read as a Parquet file"):
            data.open_source(f"parquet:{path}", "all")
    write(path, range(8))
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 60 + content[64:])  # the pages of the images of the first row group
    source = data.open_source(f"parquet:{path}", "all")
    found = audit.audit(source)
    assert [report.origin for report in found if report.problem] == [
        f"record {number} of {path}" for number in range(4)
    ]
    assert all("damaged" in report.problem for report in found[:4])
    with pytest.raises(data.UnreadableImageError, match="record 0 of .*a.parquet"):
        source.labels()
    label = pq.ParquetFile(path).metadata.row_group(0).column(2).data_page_offset
    path.write_bytes(content[:label] + b"\xff" * 60 + content[label + 60 :])
    with pytest.raises(ValueError, match="a.parquet cannot be read"):
        data.open_source(f"parquet:{path}", "all", class_names=list("abc"))


def test_classes_without_rows_and_empty_files_are_reported(tmp_path, caplog):
    write(tmp_path / "train-0-of-2.parquet", range(4), labels=[1, 2, 1, 2], names=["a", "b", "c"])
    pq.write_table(pq.read_table(tmp_path / "train-0-of-2.parquet").slice(0, 0), tmp_path / "train-1-of-2.parquet")
    write(tmp_path / "test.parquet", range(3), names=["a", "b", "c"])
    assert data.split_sizes(f"parquet:{tmp_path}") == {"test": 3, "train": 4}
    (note,) = data.open_source(f"parquet:{tmp_path}", "test").notes
    assert "'train': a" in note and "train-1-of-2.parquet has no rows" in caplog.text


def test_row_group_with_fewer_rows_than_stated_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, range(4))
    place = [np.asarray(value) for value in (str(path).encode(), 1, 4)]
    with pytest.raises(ValueError, match="a.parquet is damaged: it has fewer rows"):
        parquet._rows(place, "image", "label", {})


def test_row_groups_are_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_vit.data.readers.parquet._MAX_GROUP", 100)
    write(tmp_path / "a.parquet", range(4))
    with pytest.raises(ValueError, match="row group must have at most 100 bytes.*4 rows.*row_group_size=100"):
        data.open_source(f"parquet:{tmp_path}/a.parquet", "all")


def test_the_fingerprint_covers_files_and_slices(tmp_path):
    write(tmp_path / "a.parquet", range(8))
    spec = f"parquet:{tmp_path}/a.parquet"
    digests = {
        fingerprint.fingerprint(data.open_source(spec, split))["digest"] for split in ("all", "all[:5]", "all[5:]")
    }
    assert len(digests) == 3
