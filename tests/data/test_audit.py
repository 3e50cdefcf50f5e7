"""Looking at a data set: duplicates and a sheet of its images."""

import tensorflow as tf

from keras_vit import data
from keras_vit.data import audit


def test_duplicates_and_sheets():
    source = data.open_source("digits", "test[:9]")
    found = audit.audit(source)
    assert [picture.classes for picture in found] == [(int(label),) for label in source.labels()]
    groups = audit.duplicates({"a": found, "b": found[:2]})
    assert len(groups) == 2 and {split for split, _ in groups[0]} == {"a", "b"}
    png, rows = audit.contact_sheet(source, "resize(8)|value_range(0, 1)|random_crop(8)", count=4)
    batch = next(iter(data.train_batches(source, "resize(8)", 4)))
    assert sum(rows, []) == [source.class_names[label] for label in batch["label"].numpy()]
    sheet = tf.io.decode_png(png)
    assert sheet.shape == (20, 20, 1)  # floats are stretched to bytes, gray stays gray
