"""Data sets of TensorFlow Datasets, by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_vit.data import masks
from keras_vit.data.labels import value_names
from keras_vit.data.readers import mask_folders
from keras_vit.data.readers.arrayrecord import ArrayRecordSource
from keras_vit.data.readers.data_set import DataSet
from keras_vit.data.record_files import RecordSource, Slice, finite, several_hot
from keras_vit.data.sources import Source
from keras_vit.util import extras, file_io


def read(
    location: str,
    data_dir: str | None = None,
    manual_dir: str | None = None,
    download: bool = True,
    image: str = "image",
    label: str = "label",
    values: str | Sequence[str] | None = None,
    classes: mask_folders.Classes = None,
    label_offset: int = 0,
    shard_by: str = "rows",
) -> DataSet:
    """Return a data set of TensorFlow Datasets, such as `"imagenet2012:5.1.0"`.

    `values` names features of numbers, scalars or vectors, to predict instead of the class in `label`. If `label` is a
    feature of floats, its numbers are values too. If `label` is a feature of PNG images, they are masks. `classes` are
    the classes of the masks, by default the class names of the feature.
    """
    name = f"tfds:{location}"

    def sizes() -> dict[str, int]:  # some data sets must be prepared before their sizes are known
        builder = _package().builder(location, data_dir=data_dir)
        return {split: info.num_examples for split, info in builder.info.splits.items()}

    def open_split(split: str) -> Source:
        builder = prepared_builder(location, name, data_dir, manual_dir, download)
        return from_builder(builder, split, name, image, label, values, classes, label_offset, shard_by)

    return DataSet(sizes, open_split)


def prepared_builder(location: str, name: str, data_dir: str | None, manual_dir: str | None, download: bool) -> Any:
    """Return the `tfds.core.DatasetBuilder` of a data set, and prepare the data set if necessary."""
    tfds = _package()
    builder = tfds.builder(location, data_dir=data_dir)
    if not builder.info.splits:
        if not download:
            raise FileNotFoundError(
                f"{name} is not prepared in {builder.data_dir}, and download=False. Prepare it on one machine with "
                "download=True, or pass another data_dir=."
            )
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=manual_dir))
    return builder


def from_builder(
    builder: Any,
    split: str,
    name: str,
    image: str = "image",
    label: str = "label",
    values: str | Sequence[str] | None = None,
    classes: mask_folders.Classes = None,
    label_offset: int = 0,
    shard_by: str = "rows",
) -> Source:
    """Return the source of a prepared `tfds.core.DatasetBuilder`."""
    tfds = _package()
    features = builder.info.features
    labels = (label,) if values is None else value_names(values)
    for key in (image, *labels):
        if key not in features:
            raise ValueError(
                f"{name} has no feature {key!r}. It has: {sorted(features)}. Select image=, and label= or values=."
            )
    if not isinstance(features[image], tfds.features.Image):
        raise ValueError(f"{name} must have an image and a class. Received: {features[image]} as image={image!r}.")
    # Keep images encoded. The preprocessing string decodes them after the shuffle buffer.
    decoders = {image: tfds.decode.SkipDecoding()}
    if values is None and isinstance(features[label], tfds.features.Image):
        if classes is None and getattr(features[label], "num_classes", None):
            classes = features[label].names
        kind, target, names = "mask", "mask", mask_folders.class_names(classes)
        decoders[label] = tfds.decode.SkipDecoding()
        label_of = lambda example: masks.decode(example[label], len(names), label_offset)  # noqa: E731
    else:
        target = "label"
        kind, names, label_of = _labels(name, features, labels, values is not None)

    def parse(record):
        example = features.deserialize_example(record, decoders=decoders)
        return {"image": example[image], target: label_of(example)}

    if "array_record" in str(builder.info.file_format).lower():
        records = builder.as_data_source(split).data_source
        return ArrayRecordSource(name, split, records, parse, names, kind, file_io.is_remote(str(builder.data_dir)))
    info = builder.info.splits[split]
    slices = [Slice(str(file.filename), file.skip, file.take) for file in info.file_instructions]
    return RecordSource(name, split, slices, info.num_examples, parse, names, kind, shard_by)


def _labels(
    name: str, features: Mapping[str, Any], keys: Sequence[str], numeric: bool
) -> tuple[str, list[str], Callable[[dict], tf.Tensor]]:
    """Return the kind of the labels, their names, and the function that maps an example to its label."""
    tfds = _package()
    feature = features[keys[0]]
    several = isinstance(feature, tfds.features.Sequence)
    classes = feature.feature if several else feature
    if not numeric and isinstance(classes, tfds.features.ClassLabel):

        def class_label(example):
            labels = tf.cast(example[keys[0]], tf.int32)
            return several_hot(labels, classes.num_classes) if several else labels

        return "classes" if several else "class", classes.names, class_label
    infos = {key: features[key].get_tensor_info() for key in keys}
    for key, info in infos.items():
        fixed = not isinstance(info, dict) and len(info.shape) <= 1 and None not in info.shape
        if not fixed or not (info.tf_dtype.is_floating or (numeric and info.tf_dtype.is_integer)):
            raise ValueError(
                f"{name} must have an image and a class, or numbers of a fixed count. Received: {features[key]} in the "
                f"feature {key!r}. Select image= and label=, or values= for numbers."
            )
    names = []
    for key, info in infos.items():
        names += [f"{key}_{i}" for i in range(info.shape[0])] if info.shape else [key]

    def numbers(example):
        return finite(tf.concat([tf.reshape(tf.cast(example[key], tf.float32), [-1]) for key in keys], axis=0))

    return "values", names, numbers


def _package():
    with extras.needed("data", "TensorFlow Datasets is missing"):
        import tensorflow_datasets
    return tensorflow_datasets
