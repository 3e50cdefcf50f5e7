"""Looking at a data set: its classes and duplicates."""

from keras_vit import data
from keras_vit.data import audit


def test_duplicates():
    source = data.open_source("digits", "test[:9]")
    found = audit.audit(source)
    assert [picture.classes for picture in found] == [(int(label),) for label in source.labels()]
    groups = audit.duplicates({"a": found, "b": found[:2]})
    assert len(groups) == 2 and {split for split, _ in groups[0]} == {"a", "b"}
