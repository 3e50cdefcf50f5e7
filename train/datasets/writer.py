"""Conversion of any source to TFRecord files, in the layout that is usual for ImageNet."""

import collections
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data import errors, fingerprint, images, masks, scaling
from keras_vit.data.errors import BadImageLog, log_of
from keras_vit.data.readers import record_index, tfrecord
from keras_vit.data.sources import IndexedSource, Source, in_parallel
from keras_vit.util import checks, file_io, storage

_QUALITY = 95  # of JPEG files of resized images


def write_tfrecords(
    source: Source,
    folder: str,
    split: str,
    num_shards: int,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda done: None,
    on_bad_image: str | BadImageLog = "error",
    resize: int = 0,
) -> list[str]:
    """Write a source to `folder/SPLIT-00000-of-00010` etc. and `dataset_info.json`. Returns the paths of the shards.

    Sources that can be read in any order are shuffled, so that each file is a random sample. Encoded images are copied
    unchanged; arrays and masks are written as PNG. Images whose smaller side is larger than `resize`, if it is not 0,
    are resized and written as JPEG. Each shard gets an index. A repeated call keeps the files that an earlier call
    completed. `on_progress` is called with the number of written examples. `on_bad_image` is `"error"`, `"skip"` or a
    `BadImageLog`.
    """
    checks.positive_int("num_shards", num_shards)
    if resize and source.kind.has_masks:
        raise ValueError(f"`resize` must be 0 for images with masks of the same size. Received: {resize} for {source}.")
    log = log_of(on_bad_image)
    if num_shards > source.num_examples:
        raise ValueError(
            f"Each file must get an example. Received: num_shards={num_shards} for {source.num_examples} examples."
        )
    file_io.make_directory(folder)
    info = _info(source, folder, split, num_shards, seed, resize)
    bounds = [source.num_examples * i // num_shards for i in range(num_shards + 1)]
    paths = [f"{folder.rstrip('/')}/{split}-{i:05d}-of-{num_shards:05d}" for i in range(num_shards)]
    items = _items(source, seed)
    for i, path in enumerate(paths):
        part = itertools.islice(items, bounds[i + 1] - bounds[i])
        if os.path.exists(path) and os.path.basename(path) in info["records"]:
            collections.deque(part, maxlen=0)  # skip the items without loading them
            if not os.path.exists(f"{path}{record_index.EXTENSION}"):
                record_index.write(path)
        else:
            report = lambda done, start=bounds[i]: on_progress(start + done)  # noqa: E731
            info["records"][os.path.basename(path)] = _write_file(path, part, source, report, log, resize)
            record_index.write(path)
            file_io.write_json(os.path.join(folder, tfrecord.INFO_FILE), info)
            storage.upload(folder, growing=True)
        on_progress(bounds[i + 1])
    return paths


def _items(source: Source, seed: int) -> Iterator[tuple[str, dict[str, tf.Tensor]]]:
    """Return the names and items of all examples, in random order if the source supports it."""
    if not isinstance(source, IndexedSource):
        return source.items()
    return source.items_at(np.random.default_rng(seed).permutation(source.num_examples).tolist())


def _info(source: Source, folder: str, split: str, num_shards: int, seed: int, resize: int) -> dict:
    """Return the content of `dataset_info.json`. Raises an error if the content contradicts an existing file."""
    info: dict[str, Any] = {"label_kind": source.label_kind, "class_names": list(source.class_names)}
    info |= {"num_classes": source.num_classes, "value_names": list(source.value_names)}
    written = {"source": source.name, "split": source.split, "examples": source.num_examples}
    written |= {"files": num_shards, "seed": seed, "digest": fingerprint.fingerprint(source)["digest"]}
    written |= {"resize": resize} if resize else {}
    before = tfrecord.read_info(f"{folder.rstrip('/')}/{tfrecord.INFO_FILE}")
    for key, value in info.items():
        if before and before.get(key) != value:
            raise ValueError(
                f"{folder} contains a data set with other classes or values: {key} is {before.get(key)!r}, but "
                f"{value!r} in {source.name}. Choose another folder."
            )
    others = before.get("written", {})
    if others.get(split, written) != written:
        raise ValueError(
            f"{folder} already contains a split {split!r} of other data. Expected: {others[split]}. "
            f"Received: {written}. Remove its files or choose another folder."
        )
    return {**info, "records": before.get("records", {}), "written": {**others, split: written}}


def _write_file(
    path: str,
    items: Iterator[tuple[str, dict]],
    source: Source,
    on_progress: Callable[[int], None],
    log: BadImageLog | None,
    resize: int,
) -> int:
    """Write a file and return its number of records. Without a log, an image that cannot be decoded is an error."""
    count = 0
    with file_io.atomic_file(path) as temporary, tf.io.TFRecordWriter(temporary) as writer:
        records = in_parallel(lambda named: _record(source, named[0], named[1], resize), items)
        for done, (origin, record, problem) in enumerate(records, 1):
            if problem:
                errors.skip(origin, problem, log)
            else:
                writer.write(record)
                count += 1
            on_progress(done)
    return count


def _record(source: Source, origin: str, item: dict[str, tf.Tensor], resize: int) -> tuple[str, bytes, str]:
    """Return the name of an example, its record, and the reason why its image cannot be read, or an empty string."""
    try:
        example = source.load(item)
        pixels = images.decode_example(example)
    except tf.errors.OpError as error:
        return origin, b"", errors.describe(error)
    if resize and min(pixels.shape[:2]) > resize:
        pixels = tf.round(scaling.resize_small(resize, cast=False)(pixels))
        example = {**example, "image": tf.io.encode_jpeg(tf.cast(pixels, tf.uint8), quality=_QUALITY)}
    return origin, _serialize(example, origin, source), ""


def _serialize(example: dict, origin: str, source: Source) -> bytes:
    image = example["image"]
    encoded = image if image.dtype == tf.string else tf.io.encode_png(image)

    def strings(values):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    features = {
        "image/encoded": strings([encoded.numpy()]),
        "image/filename": strings([origin.encode(errors="surrogateescape")]),
    }
    if source.kind.has_masks:
        features[tfrecord.MASK] = strings([masks.encode(example["mask"], source.num_classes).numpy()])
    elif source.kind.has_values:
        for name, number in zip(source.value_names, example["label"].numpy().tolist(), strict=True):
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=[number]))
    else:
        label = example["label"].numpy()
        labels = np.flatnonzero(label).tolist() if label.ndim else [int(label)]
        features["image/class/label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=labels))
        features["image/class/text"] = strings([source.class_names[number].encode() for number in labels])
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
