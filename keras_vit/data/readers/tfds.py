"""Data sets of TensorFlow Datasets, by name."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.python_ops import call_python
from keras_vit.data.readers.data_set import DataSet
from keras_vit.data.record_files import RecordSource, Slice
from keras_vit.data.sources import IndexedSource, Source


def read(
    location: str,
    data_dir: str | None = None,
    manual_dir: str | None = None,
    download: bool = True,
    image: str = "image",
    label: str = "label",
    shard_by: str = "rows",
) -> DataSet:
    """Return a data set of TensorFlow Datasets, such as `"imagenet2012:5.1.0"`."""
    name = f"tfds:{location}"

    def sizes() -> dict[str, int]:  # which some data sets know only when they are prepared
        builder = _package().builder(location, data_dir=data_dir)
        return {split: info.num_examples for split, info in builder.info.splits.items()}

    def open_split(split: str) -> Source:
        builder = prepared_builder(location, name, data_dir, manual_dir, download)
        return from_builder(builder, split, name, image, label, shard_by)

    return DataSet(sizes, open_split)


def prepared_builder(location: str, name: str, data_dir: str | None, manual_dir: str | None, download: bool) -> Any:
    """Return the `tfds.core.DatasetBuilder` of a data set, prepared if need be."""
    tfds = _package()
    builder = tfds.builder(location, data_dir=data_dir)
    if not builder.info.splits:
        if not download:
            raise FileNotFoundError(
                f"{name} is not prepared in {builder.data_dir}, and download=False. Prepare it first on one machine, "
                "with download=True, or give data_dir=."
            )
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=manual_dir))
    return builder


def from_builder(
    builder: Any, split: str, name: str, image: str = "image", label: str = "label", shard_by: str = "rows"
) -> Source:
    """Return the source of a prepared `tfds.core.DatasetBuilder`."""
    tfds = _package()
    features = builder.info.features
    for key in (image, label):
        if key not in features:
            raise ValueError(
                f"{name} has no feature {key!r}. It has: {sorted(features)}. Choose with image= and label=."
            )
    label_feature = features[label]
    multi_label = isinstance(label_feature, tfds.features.Sequence)
    classes = label_feature.feature if multi_label else label_feature
    if not isinstance(features[image], tfds.features.Image) or not isinstance(classes, tfds.features.ClassLabel):
        raise ValueError(
            f"{name} must have an image and a class in the features {image!r} and {label!r}. Received: {features}."
        )
    info = builder.info.splits[split]
    # Encoded images are kept: they are decoded behind the shuffle buffer, by the preprocessing string.
    decoders = {image: tfds.decode.SkipDecoding()}
    parse = _parser(features, decoders, image, label, classes.num_classes, multi_label)
    names = classes.names
    if "array_record" in str(builder.info.file_format).lower():
        return ArrayRecordSource(name, split, builder.as_data_source(split).data_source, parse, names, multi_label)
    slices = [Slice(str(file.filename), file.skip, file.take) for file in info.file_instructions]
    return RecordSource(name, split, slices, info.num_examples, parse, names, multi_label, shard_by=shard_by)


class ArrayRecordSource(IndexedSource):
    """A prepared data set in the ArrayRecord format: serialized examples, which can be read in any order."""

    def __init__(
        self,
        name: str,
        split: str,
        records: Sequence[bytes],
        parse: Callable[[tf.Tensor], dict[str, tf.Tensor]],
        class_names: Sequence[str],
        multi_label: bool,
    ):
        super().__init__(name, split, len(records), class_names, multi_label)
        self._records = records
        self._parse = parse

    def fetch(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._parse(call_python(lambda i: self._records[int(i)], [index]))

    def origin(self, index: int) -> str:
        return f"example {index} of {self.name} {self.split}"

    def labels(self) -> np.ndarray:
        labels = tf.data.Dataset.range(self.num_examples).map(lambda i: self.fetch(i)["label"], tf.data.AUTOTUNE)
        return next(labels.batch(self.num_examples).as_numpy_iterator())


def _parser(features, decoders, image: str, label: str, num_classes: int, multi_label: bool):
    def parse(record):
        example = features.deserialize_example(record, decoders=decoders)
        labels = tf.cast(example[label], tf.int32)
        if multi_label:
            labels = tf.minimum(tf.reduce_sum(tf.one_hot(labels, num_classes), axis=0), 1.0)
        return {"image": example[image], "label": labels}

    return parse


def _package():
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError("TensorFlow Datasets is missing: pip install 'keras-vision-transformers[data]'.") from error
    return tensorflow_datasets
