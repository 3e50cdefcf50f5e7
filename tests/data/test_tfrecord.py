import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import fingerprint, readers
from keras_vit.data.readers import record_index, tfrecord
from tests.data import example_images
from tests.faulty_disk import FaultyDisk
from tests.programs import call
from train.datasets import audit, writer


def example(image, label, keys=("image/encoded", "image/class/label")):
    labels = tf.train.Feature(int64_list=tf.train.Int64List(value=np.atleast_1d(label).tolist()))
    features = {keys[0]: tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])), keys[1]: labels}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as file:
        for record in records:
            file.write(record)


def write_numbered(root, counts, split="train", label=lambda i: i % 10):
    """Files of images; number i has only the value i."""
    number = 0
    for i, count in enumerate(counts):
        records = [
            example(example_images.encode(np.full((4, 4, 3), n, np.uint8)), label(n))
            for n in range(number, number + count)
        ]
        write(root / f"{split}-{i:05d}-of-{len(counts):05d}", records)
        number += count


def values(source):
    """The numbers of the images, read as an evaluation reads them: its pipeline takes a second to be built."""
    batches = data.eval_batches(source, "decode|resize(4)", 8).as_numpy_iterator()
    return [int(i) for b in batches for i, keep in zip(b["image"][:, 0, 0, 0], b["valid"], strict=True) if keep]


def stored(source):
    """The numbers of the images as they are stored."""
    return [int(tf.io.decode_png(example["image"])[0, 0, 0]) for example in source.examples()]


@pytest.mark.slow
def test_splits_come_from_the_file_names(tmp_path):
    write_numbered(tmp_path, [5, 7])
    write_numbered(tmp_path, [3], split="validation")
    spec = f"tfrecord:{tmp_path}"
    assert data.split_sizes(spec) == {"train": 12, "validation": 3}
    source = data.open_source(spec, "validation", num_classes=10)
    assert source.num_examples == 3 and source.class_names == tuple("0123456789") and source.encoded
    assert stored(source) == [0, 1, 2]
    pattern = data.open_source(f"tfrecord:{tmp_path}/train-*", "train", num_classes=10)
    assert pattern.num_examples == 12
    one = data.open_source(f"tfrecord:{tmp_path}/train-00001-of-00002#num_classes=10", "train")
    assert stored(one) == list(range(5, 12))


@pytest.mark.slow
def test_slices_over_files_are_read(tmp_path):
    write_numbered(tmp_path, [13, 7, 20])
    slices = {
        "train[12:14]": [12, 13],
        "train[:2]+train[-2:]": [0, 1, 38, 39],
        "train[13:20]": list(range(13, 20)),
        "train[25%:75%]": list(range(10, 30)),
    }
    for split, expected in slices.items():
        source = data.open_source(f"tfrecord:{tmp_path}", split, num_classes=10)
        assert stored(source) == expected
    assert values(source) == expected


@pytest.mark.slow
def test_label_offset_shifts_labels_that_begin_with_one(tmp_path):
    write_numbered(tmp_path, [6], label=lambda i: i % 3 + 1)
    source = data.open_source(f"tfrecord:{tmp_path}", label_offset=-1, class_names=["a", "b", "c"])
    batch = next(iter(data.eval_batches(source, "decode|resize(4)", 6)))
    assert batch["label"].numpy().tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.slow
def test_other_feature_names_and_several_labels_are_read(tmp_path):
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    records = [example(example_images.encode(image), labels, ("pixels", "tags")) for labels in ([0, 2], [], [1, 1])]
    write(tmp_path / "all.tfrecord", records)
    options = {"image": "pixels", "label": "tags", "label_kind": "classes", "num_classes": 3}
    source = data.open_source(f"tfrecord:{tmp_path}/*", "all", **options)
    assert source.label_kind == "classes"
    batch = next(iter(data.eval_batches(source, "decode|resize(4)", 3)))
    np.testing.assert_array_equal(batch["image"][0], image)
    assert batch["label"].numpy().tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_sharding_by_files_requires_a_file_per_worker(tmp_path):
    write_numbered(tmp_path, [5, 7, 6, 6])
    source = data.open_source(f"tfrecord:{tmp_path}", num_classes=10, shard_by="files")
    with pytest.raises(ValueError, match="a file for each worker.*4 files.*5 workers"):
        data.train_batches(source, "decode|resize(4)", 5, num_shards=5)


@pytest.mark.slow
def test_num_examples_replaces_counting_the_records(tmp_path):
    write_numbered(tmp_path, [5, 5])
    source = data.open_source(f"tfrecord:{tmp_path}", num_classes=10, num_examples=10)
    assert stored(source) == list(range(10))
    with pytest.raises(ValueError, match="whole split"):
        data.open_source(f"tfrecord:{tmp_path}", "train[:5]", num_classes=10, num_examples=10)
    assert data.open_source(f"tfrecord:{tmp_path}", "Training", num_classes=10, num_examples=10).num_examples == 10
    wrong = data.open_source(f"tfrecord:{tmp_path}", num_classes=10, num_examples=12)
    with pytest.raises(tf.errors.FailedPreconditionError, match="12"):
        values(wrong)


def test_missing_files_and_class_counts_are_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match="No record file"):
        data.open_source(f"tfrecord:{tmp_path}/train-*")
    write_numbered(tmp_path, [5, 5])
    with pytest.raises(ValueError, match="How many classes.*num_classes=1000"):
        data.open_source(f"tfrecord:{tmp_path}")
    with pytest.raises(ValueError, match="'test' does not exist.*'train'"):
        data.open_source(f"tfrecord:{tmp_path}", "test", num_classes=10)
    path = tmp_path / "train-00001-of-00002"
    assert tfrecord.count_records(str(path)) == tfrecord.count_records(f"file://{path}") == 5
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    with pytest.raises(ValueError, match="train-00001-of-00002 ends within record 4"):
        data.open_source(f"tfrecord:{tmp_path}", num_classes=10)
    path.write_bytes(b"")
    for options in ({}, {"num_examples": 10}):
        with pytest.raises(ValueError, match="train-00001-of-00002 has no records"):
            data.open_source(f"tfrecord:{tmp_path}", num_classes=10, **options)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="Expected: 2 files.*1"):
        data.open_source(f"tfrecord:{tmp_path}", num_classes=10)


def damage(tmp_path):
    """Two files of ten records; a byte of record 3 of the first one is flipped."""
    write_numbered(tmp_path, [10, 10])
    path = tmp_path / "train-00000-of-00002"
    content = bytearray(path.read_bytes())
    content[len(content) * 7 // 20] ^= 1
    path.write_bytes(content)
    return data.open_source(f"tfrecord:{tmp_path}", num_classes=10)


def test_a_damaged_record_is_reported_with_its_file(tmp_path):
    source = damage(tmp_path)
    found = audit.audit(source)
    bad = [report.origin for report in found if report.problem]
    assert bad == [f"record {number} of {tmp_path}/train-00000-of-00002" for number in range(3, 10)]
    assert all("damaged" in report.problem for report in found[3:10])
    with pytest.raises(data.UnreadableImageError, match="record 3 of .*train-00000-of-00002"):
        source.labels()
    (tmp_path / "train-00001-of-00002").unlink()
    with pytest.raises(tf.errors.NotFoundError, match="train-00001"):
        list(source.items())


@pytest.mark.slow
def test_training_continues_after_a_damaged_record(tmp_path):
    source = damage(tmp_path)
    with pytest.raises(data.UnreadableImageError, match="record [3-9] of .*train-00000-of-00002"), data.image_errors():
        list(data.train_batches(source, "decode|resize(4)", 20).take(1))
    log = data.BadImageLog()
    (batch,) = data.train_batches(source, "decode|resize(4)", 20, on_bad_image=log).take(1).as_numpy_iterator()
    assert len(log.reasons) == 7 and not set(batch["image"][:, 0, 0, 0].tolist()) & set(range(3, 10))
    (batch,) = data.eval_batches(source, "decode|resize(4)", 20, on_bad_image="skip").as_numpy_iterator()
    assert batch["valid"].tolist() == [1] * 3 + [0] * 7 + [1] * 10


@pytest.mark.parametrize(
    "content",
    ["[]", "[" * 100_000, "{", '{"class_names": "abc"}', '{"num_classes": "3"}', '{"records": [1]}']
    + ['{"label_kind": 1}', '{"written": []}', '{"num_classes": true}'],
)
def test_a_damaged_description_is_reported(tmp_path, content):
    write_numbered(tmp_path, [5])
    (tmp_path / "dataset_info.json").write_text(content)
    with pytest.raises(ValueError, match=r"dataset_info\.json"):
        data.open_source(f"tfrecord:{tmp_path}")
    with pytest.raises(ValueError, match=r"dataset_info\.json"):
        writer.write_tfrecords(data.open_source("digits", "test[:3]"), str(tmp_path), "test", 1)


@pytest.mark.parametrize("num_classes", [0, 2**40, "ten"])
def test_invalid_num_classes_is_refused(tmp_path, num_classes):
    write_numbered(tmp_path, [5])
    with pytest.raises(ValueError, match="num_classes"):
        data.open_source(f"tfrecord:{tmp_path}", num_classes=num_classes)


@pytest.mark.slow
def test_error_of_a_label_out_of_range_names_the_record(tmp_path):
    write_numbered(tmp_path, [5, 5])
    source = data.open_source(f"tfrecord:{tmp_path}", num_classes=7)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        values(source)
    text = data.explain(error.value)
    assert "record 2 of" in text and "train-00001-of-00002" in text and "0 <= label < 7" in text and text.endswith("7")


# --- indices ---


def write_indexed(root, counts):
    write_numbered(root, counts)
    for path in root.glob("train-*"):
        record_index.write(str(path))
    return sorted(root.glob("train-*.idx"))


def test_an_index_has_the_start_and_the_size_of_each_record(tmp_path):
    """As `tfrecord2idx` of NVIDIA DALI writes it."""
    (index,) = write_indexed(tmp_path, [3])
    content, places = (tmp_path / "train-00000-of-00001").read_bytes(), np.loadtxt(index, int).tolist()
    sizes = [16 + int.from_bytes(content[start : start + 8], "little") for start, _ in places]
    assert len(sizes) == 3 and [size for _, size in places] == sizes and sum(sizes) == len(content)
    assert [start for start, _ in places] == [0, sizes[0], sizes[0] + sizes[1]]


@pytest.mark.slow
def test_slices_of_files_with_indices_select_their_records(tmp_path):
    write_indexed(tmp_path, [13, 7, 20])
    spec = f"tfrecord:{tmp_path}"
    for split, expected in {
        "train": list(range(40)),
        "train[12:14]": [12, 13],
        "train[13:20]+train[-1:]": [*range(13, 20), 39],
        "validation(train)": list(range(0, 40, 7)),
    }.items():
        source = data.open_source(spec, split, num_classes=10)
        assert isinstance(source, data.IndexedSource) and stored(source) == expected
        assert source.labels().tolist() == [number % 10 for number in expected]
    assert values(source) == expected and source.origin(3) == f"record 1 of {tmp_path}/train-00002-of-00003"
    assert data.split_sizes(spec) == {"train": 40}
    with pytest.raises(ValueError, match="num_examples.*40.*41"):
        data.open_source(spec, num_classes=10, num_examples=41)
    digests = set()
    for options in ("", "&index=False", "&shard_by=files"):
        source = data.open_source(f"{spec}#num_classes=10{options}")
        assert isinstance(source, data.IndexedSource) == (not options)
        digests.add(fingerprint.fingerprint(source)["digest"])
    assert len(digests) == 2  # another order


@pytest.mark.parametrize(
    "content",
    ["", "0", "0 1", "a b", "0 16\n16 1e999", f"{2**70} 16", "0 -5", "0 0\n" * 9, "9" * 10_000, "\0"]
    + ["shorter", "longer", "gap", "missing"],
)
def test_a_wrong_index_is_reported(content, tmp_path):
    write_indexed(tmp_path, [5, 5])
    index = tmp_path / "train-00001-of-00002.idx"
    lines = index.read_text().splitlines()
    others = {"shorter": lines[:-1], "longer": [*lines, lines[-1]], "gap": [*lines[:2], *lines[3:]]}
    index.write_text("\n".join(others.get(content, [content])))
    if content == "missing":
        index.unlink()
    with pytest.raises(ValueError, match=r"train-00001-of-00002.*--index_only --output="):
        data.open_source(f"tfrecord:{tmp_path}", num_classes=10)
    assert data.open_source(f"tfrecord:{tmp_path}", num_classes=10, index=False).num_examples == 10


def test_a_file_that_changed_after_its_index_was_written_is_refused(tmp_path):
    """Its size is checked when it is opened, and the length of each record when it is read."""
    write_indexed(tmp_path, [5, 5])
    path = tmp_path / "train-00001-of-00002"
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    with pytest.raises(ValueError, match=r"train-00001-of-00002\.idx must be the index"):
        data.open_source(f"tfrecord:{tmp_path}", num_classes=10)
    start = int((tmp_path / "train-00001-of-00002.idx").read_text().split()[4])
    path.write_bytes(content[:start] + b"\xff" + content[start + 1 :])
    source = data.open_source(f"tfrecord:{tmp_path}", num_classes=10)
    with pytest.raises(data.UnreadableImageError, match=f"record 2 of {path}"):
        source.labels()
    bad = [report for report in audit.audit(source) if report.problem]
    assert [report.origin for report in bad] == [f"record 2 of {path}"] and "index" in bad[0].problem
    path.unlink()
    with pytest.raises(tf.errors.InvalidArgumentError, match="train-00001"):
        source.load({"index": tf.constant(9, tf.int64)})


def test_a_file_without_records_may_have_an_index(tmp_path):
    """`make-tfrecords` writes one if none of the images of a file can be read."""
    write_numbered(tmp_path, [5, 0, 5])
    records = {path.name: 5 * (path.stat().st_size > 0) for path in tmp_path.iterdir()}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"num_classes": 10, "records": records}))
    for name in records:
        record_index.write(str(tmp_path / name))
    assert stored(data.open_source(f"tfrecord:{tmp_path}", "train[3:]")) == list(range(3, 10))
    (tmp_path / "dataset_info.json").unlink()
    with pytest.raises(ValueError, match="train-00001-of-00003 has no records"):
        data.open_source(f"tfrecord:{tmp_path}", num_classes=10)


def test_the_advice_for_an_index_names_files_that_the_program_finds(tmp_path):
    write(tmp_path / "all.tfrecord", [b"record"])
    for output in (tmp_path / "*.tfrecord", tmp_path / "all.tfrecord"):
        call("train.make_tfrecords", output=str(output), index_only=True)
    assert (tmp_path / "all.tfrecord.idx").read_text() == "0 22\n"
    (tmp_path / "all.tfrecord.idx").write_text("0 21\n")
    with pytest.raises(ValueError, match=f"--output={tmp_path}/all.tfrecord .*index=False"):
        data.open_source(f"tfrecord:{tmp_path}/*.tfrecord", "all", num_classes=10)
    with pytest.raises(ValueError, match="`index`"):
        data.open_source(f"tfrecord:{tmp_path}/*.tfrecord#index=false", num_classes=10)


def test_a_draft_of_a_killed_program_is_not_read(tmp_path):
    write_indexed(tmp_path, [3])
    write(tmp_path / ".writing-1a2b3c4d-train-00001-of-00002", [b"record"])
    assert data.split_sizes(f"tfrecord:{tmp_path}") == data.split_sizes(f"tfrecord:{tmp_path}/*") == {"train": 3}


@pytest.mark.parametrize("location", ["gs://bucket", "gs://bucket/", "gs://bucket/train-*", "gs://bucket/*/train-*"])
def test_several_folders_and_a_whole_bucket_are_read_in_order(location, monkeypatch):
    """They have no local copy for their indices."""
    monkeypatch.setattr(tf.io.gfile, "glob", lambda pattern: ["gs://bucket/a/train-00000-of-00001.idx"])
    assert readers._readable(location, indexed=True) == location


@pytest.mark.slow
def test_a_bucket_that_cannot_be_reached_does_not_make_images_unreadable(tmp_path, monkeypatch):
    """The error may be temporary, and other images must not replace these."""
    write_indexed(tmp_path, [8])
    source = data.open_source(f"tfrecord:{tmp_path}", num_classes=10)

    def read(numbers):
        raise OSError("Could not reach s3://bucket")

    monkeypatch.setattr(source, "read_records", read)
    batches = {"pp": "decode|resize(4)", "batch_size": 4, "on_bad_image": "skip"}
    with pytest.raises(tf.errors.OpError, match="More than half"):
        next(iter(data.train_batches(source, **batches)))
    monkeypatch.setattr(source, "is_remote", True)
    with pytest.raises(tf.errors.OpError, match="Could not reach s3"), data.image_errors():
        next(iter(data.train_batches(source, **batches)))


# --- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_written_files_contain_the_source(tmp_path):
    folder = data.open_source(f"folder:{example_images.folder(tmp_path / 'p')}", "all")
    progress = []
    paths = writer.write_tfrecords(folder, str(tmp_path / "out"), "train", 4, on_progress=progress.append)
    assert [tfrecord.count_records(path) for path in paths] == [8, 8, 8, 9]  # balanced
    assert progress[-1] == 33 and progress == sorted(progress)
    record = next(iter(tf.data.TFRecordDataset(paths[0]))).numpy()
    features = tf.train.Example.FromString(record).features.feature  # what other readers of ImageNet's layout show
    path, name = (features[key].bytes_list.value[0].decode() for key in ("image/filename", "image/class/text"))
    assert path in folder.paths and f"/{name}/" in path
    written = data.open_source(f"tfrecord:{tmp_path}/out")
    assert written.class_names == folder.class_names and written.num_examples == 33
    expected = {(e["image"].numpy(), int(e["label"])) for e in folder.examples()}
    assert {(e["image"].numpy(), int(e["label"])) for e in written.examples()} == expected  # byte for byte


@pytest.mark.slow
def test_arrays_are_written_as_png(tmp_path):
    digits = data.open_source("digits", "test[:20]")
    writer.write_tfrecords(digits, str(tmp_path), "test", 2)
    written = data.open_source(f"tfrecord:{tmp_path}", "test")
    images = {tf.io.decode_png(e["image"]).numpy().tobytes() for e in written.examples()}
    assert images == {image.tobytes() for image in digits.images}


@pytest.mark.slow
def test_large_images_are_resized(tmp_path):
    """The smaller side becomes `resize`. Smaller images stay as they are."""
    source = data.open_source(f"folder:{example_images.folder(tmp_path / 'p')}", "all")  # 20 to 30 by 24 pixels
    writer.write_tfrecords(source, str(tmp_path / "out"), "all", 2, resize=22)
    written = {}
    for record in tf.data.TFRecordDataset(tf.io.gfile.glob(f"{tmp_path}/out/all-0000?-of-00002")):
        features = tf.train.Example.FromString(record.numpy()).features.feature
        path, image = (features[key].bytes_list.value[0] for key in ("image/filename", "image/encoded"))
        written[path.decode()] = image, features["image/class/label"].int64_list.value[0]
    assert sorted(written) == sorted(source.paths)
    for path, label in zip(source.paths, source.labels(), strict=True):
        content = pathlib.Path(path).read_bytes()
        before, (image, number) = tf.io.decode_image(content).numpy(), written[path]
        after = tf.io.decode_image(image).numpy()
        assert number == label and min(after.shape[:2]) == min(22, min(before.shape[:2]))
        assert (image == content) == (min(before.shape[:2]) <= 22)
        assert image == content or image[:2] == b"\xff\xd8"
        np.testing.assert_allclose(after.mean((0, 1)), before.mean((0, 1)), atol=4)
    with pytest.raises(ValueError, match="'all' of other data"):
        writer.write_tfrecords(source, str(tmp_path / "out"), "all", 2, resize=21)
    source.label_kind = "mask"
    with pytest.raises(ValueError, match="resize.*masks"):
        writer.write_tfrecords(source, str(tmp_path / "masks"), "all", 2, resize=22)


@pytest.mark.slow
def test_several_labels_round_trip(tmp_path):
    (tmp_path / "list.csv").write_text("path,labels\np/cat/0.jpg,red;round\np/cat/1.png,\np/dog/0.jpg,red\n")
    example_images.folder(tmp_path / "p")
    source = data.open_source(f"manifest:{tmp_path}/list.csv", "all")
    writer.write_tfrecords(source, str(tmp_path / "out"), "train", 1)
    written = data.open_source(f"tfrecord:{tmp_path}/out")
    assert written.label_kind == "classes" and written.class_names == ("red", "round")
    assert sorted(e["label"].numpy().tolist() for e in written.examples()) == [[0, 0], [1, 0], [1, 1]]


def test_an_interrupted_call_resumes(tmp_path):
    source = data.open_source("digits", "test[:30]")
    whole = writer.write_tfrecords(source, str(tmp_path / "whole"), "test", 3)

    class Stop(Exception):
        pass

    def stop(done):
        if done == 15:
            raise Stop

    with pytest.raises(Stop):
        writer.write_tfrecords(source, str(tmp_path / "part"), "test", 3, on_progress=stop)
    files = sorted(path.name for path in (tmp_path / "part").iterdir())
    assert {"test-00000-of-00003", "test-00000-of-00003.idx"} < set(
        files
    ) and "test-00001-of-00003" not in files  # never half a file
    before = (tmp_path / "part" / "test-00000-of-00003").stat().st_mtime_ns
    (tmp_path / "part" / "test-00000-of-00003.idx").unlink()  # as if an earlier version had written the file
    paths = writer.write_tfrecords(source, str(tmp_path / "part"), "test", 3)
    assert (tmp_path / "part" / "test-00000-of-00003").stat().st_mtime_ns == before
    for path, expected in zip(paths, whole, strict=True):
        with open(path, "rb") as file, open(expected, "rb") as other:
            assert file.read() == other.read()
        assert pathlib.Path(f"{path}.idx").read_text() == pathlib.Path(f"{expected}.idx").read_text()


def test_written_files_survive_a_power_failure(tmp_path, monkeypatch):
    """An empty file would stay empty, because a repeated call keeps the files that the description names."""
    disk = FaultyDisk(monkeypatch, tmp_path)
    writer.write_tfrecords(data.open_source("digits", "test[:8]"), str(tmp_path), "test", 2)
    disk.lose_power()
    assert len(list(data.open_source(f"tfrecord:{tmp_path}", "test").examples())) == 8


@pytest.mark.slow
def test_interrupted_call_is_not_continued_with_other_images(tmp_path):
    folder = example_images.folder(tmp_path / "p")
    arguments = (str(tmp_path / "out"), "all", 3)
    writer.write_tfrecords(data.open_source(f"folder:{folder}", "all"), *arguments)
    first = data.open_source(f"folder:{folder}", "all").paths[0]
    os.rename(first, os.path.join(os.path.dirname(first), f"z{os.path.basename(first)}"))
    with pytest.raises(ValueError, match="of other data"):
        writer.write_tfrecords(data.open_source(f"folder:{folder}", "all"), *arguments)


@pytest.fixture
def damaged(tmp_path):
    source = data.open_source(f"folder:{example_images.folder(tmp_path / 'p')}", "all")
    bad = [source.paths[4], source.paths[20]]
    with open(bad[0], "wb"):
        pass
    os.remove(bad[1])
    return source, bad


@pytest.mark.slow
def test_images_that_cannot_be_read_are_not_copied(damaged, tmp_path):
    source, bad = damaged
    with pytest.raises(data.UnreadableImageError) as error:
        writer.write_tfrecords(source, str(tmp_path / "strict"), "all", 2)
    assert error.value.origin in bad
    log = data.BadImageLog()
    paths = writer.write_tfrecords(source, str(tmp_path / "out"), "all", 2, on_bad_image=log)
    assert sorted(log.reasons) == sorted(bad)
    written = data.open_source(f"tfrecord:{tmp_path}/out", "all")
    assert written.num_examples == 31 == sum(tfrecord.count_records(path) for path in paths)
    names = {e["image"].numpy() for e in written.examples()}
    assert names == {pathlib.Path(path).read_bytes() for path in source.paths if path not in bad}
    again = data.BadImageLog()
    writer.write_tfrecords(source, str(tmp_path / "out"), "all", 2, on_bad_image=again)
    assert not again.reasons  # complete files are kept


def test_a_folder_contains_one_data_set(tmp_path):
    writer.write_tfrecords(data.open_source("digits", "test[:30]"), str(tmp_path), "test", 3)
    for split, files, seed in (("test[:29]", 3, 0), ("test[1:31]", 3, 0), ("test[:30]", 2, 0), ("test[:30]", 3, 1)):
        with pytest.raises(ValueError, match="split 'test' of other data"):
            writer.write_tfrecords(data.open_source("digits", split), str(tmp_path), "test", files, seed)
    first = tmp_path / "test-00000-of-00003"
    first.unlink()
    writer.write_tfrecords(data.open_source("digits", "test[:30]"), str(tmp_path), "test", 3)
    assert first.exists()
    pairs = data.open_source(f"folder:{example_images.folder(tmp_path / 'p')}", "all")
    with pytest.raises(ValueError, match="other classes"):
        writer.write_tfrecords(pairs, str(tmp_path), "train", 3)
    with pytest.raises(ValueError, match="num_shards=31 for 30"):
        writer.write_tfrecords(data.open_source("digits", "test[:30]"), str(tmp_path), "more", 31)
    info = json.loads((tmp_path / "dataset_info.json").read_text())
    assert info["records"]["test-00000-of-00003"] == 10


def test_bucket_url_is_refused_as_output():
    with pytest.raises(ValueError, match="Received: 's3://bucket/digits'"):
        writer.write_tfrecords(data.open_source("digits", "test[:3]"), "s3://bucket/digits", "test", 1)
