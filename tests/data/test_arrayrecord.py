"""ArrayRecord files of the examples that `make-tfrecords` writes."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from tests.data import example_images

module = pytest.importorskip("array_record.python.array_record_module", reason="pip install '.[data]'")


def write(path, numbers):
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for number in numbers:
        image = example_images.encode(np.full((4, 4, 3), number, np.uint8)) if number >= 0 else b"damaged"
        features = {
            "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
            "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[max(number, 0) % 3])),
        }
        writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    writer.close()


def stored(batches, key="image"):
    return [int(np.ravel(value)[0]) for batch in batches for value in batch[key]]


@pytest.mark.slow
def test_splits_are_read_in_order_and_resumed_exactly(tmp_path):
    for shard in range(2):
        write(tmp_path / f"train.array_record-{shard:05d}-of-00002", range(20 * shard, 20 * shard + 20))
    write(tmp_path / "val.arrayrecord-00000-of-00001", range(40, 44))
    spec = f"arrayrecord:{tmp_path}#num_classes=3"
    assert data.split_sizes(spec) == {"train": 40, "validation": 4}
    source = data.open_source(spec, "train[18:]+validation[:2]")
    evaluated = list(data.eval_batches(source, "decode|resize(4)", 8))
    assert stored(evaluated) == [*range(18, 42)]
    assert [label % 3 for label in source.labels()] == [number % 3 for number in range(18, 42)]
    train = data.open_source(spec)
    batches = list(data.train_batches(train, "decode|resize(4)", 8, seed=1).take(10))
    halves = [data.train_batches(train, "decode|resize(4)", 8, 1, 3, shard, 2).take(7) for shard in range(2)]
    joined = [step for pair in zip(*halves, strict=True) for step in pair]
    assert sorted(stored(batches[:5])) == list(range(40))
    assert stored(batches[3:]) == stored(joined)


@pytest.mark.slow
def test_an_image_that_cannot_be_read_is_named_or_replaced(tmp_path):
    write(tmp_path / "train-00000-of-00001", [0, 1, -1, 3])
    source, log = data.open_source(f"arrayrecord:{tmp_path}", num_classes=3), data.BadImageLog()
    with pytest.raises(data.UnreadableImageError, match="example 2 of arrayrecord:"), data.image_errors():
        list(data.eval_batches(source, "decode|resize(4)", 4))
    (batch,) = data.train_batches(source, "decode|resize(4)", 4, on_bad_image=log).take(1)
    assert sorted(stored([batch])) == [0, 1, 3, 3] and len(log.reasons) == 1


def test_a_file_in_another_format_is_reported(tmp_path):
    (tmp_path / "train-00000-of-00001").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="train-00000-of-00001 must be a complete ArrayRecord file"):
        data.split_sizes(f"arrayrecord:{tmp_path}", num_classes=3)
