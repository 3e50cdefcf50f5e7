"""Writes any source as TFRecord files, in the layout that ImageNet is stored in."""

import json
import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_vit import _checks
from keras_vit.data.readers import tfrecord
from keras_vit.data.sources import IndexedSource, Source


def write_tfrecords(
    source: Source,
    folder: str,
    split: str,
    num_shards: int,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[str]:
    """Writes a source to `folder/SPLIT-00000-of-00010` and on, and what is known of it to `dataset_info.json`.

    Examples are written in a shuffled order, so that each file is a fair sample, where the source can be read in any
    order; files differ by one example at most. A file appears under its name when it is complete. Files that an earlier
    call with the same arguments completed are kept, so that an interrupted call can be repeated.

    Args:
        source: what to write. Encoded images are written as they are, arrays as PNG.
        folder: where to; made if need be.
        split: name of the split in the file names.
        num_shards: how many files.
        seed: of the order.
        on_progress: called with the number of examples that are done.

    Returns:
        Paths of the files.

    Raises:
        ValueError: If there are more files than examples, or the folder holds another data set.
    """
    _checks.positive_int("num_shards", num_shards)
    if num_shards > source.num_examples:
        raise ValueError(
            f"Each file must get an example. Received: num_shards={num_shards} for {source.num_examples} examples."
        )
    tf.io.gfile.makedirs(folder)
    info = _info(source, folder, split, num_shards, seed)
    bounds = [source.num_examples * i // num_shards for i in range(num_shards + 1)]
    paths = [f"{folder.rstrip('/')}/{split}-{i:05d}-of-{num_shards:05d}" for i in range(num_shards)]
    for i, path in enumerate(paths):
        count = bounds[i + 1] - bounds[i]
        if not tf.io.gfile.exists(path) or info["records"].get(os.path.basename(path)) != count:
            _write_file(path, _examples(source, bounds[i], bounds[i + 1], seed), source, bounds[i], on_progress)
            info["records"][os.path.basename(path)] = count
            _write_info(folder, info)
        on_progress(bounds[i + 1])
    return paths


def _info(source: Source, folder: str, split: str, num_shards: int, seed: int) -> dict:
    """What `dataset_info.json` will say, after checking that what is there fits."""
    info = {
        "class_names": list(source.class_names),
        "num_classes": source.num_classes,
        "multi_label": source.multi_label,
    }
    written = {
        "source": source.name,
        "split": source.split,
        "examples": source.num_examples,
        "files": num_shards,
        "seed": seed,
    }
    path = f"{folder.rstrip('/')}/{tfrecord.INFO_FILE}"
    before = {}
    if tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path) as file:
            before = json.load(file)
        for key, value in info.items():
            if before.get(key) != value:
                raise ValueError(
                    f"{folder} holds a data set with other classes: {key} is {before.get(key)!r} there and {value!r} "
                    f"in {source.name}. Choose another folder."
                )
        if before.get("written", {}).get(split, written) != written:
            raise ValueError(
                f"{folder} holds another split {split!r}, of {before['written'][split]}, and this is {written}. "
                "Remove its files or choose another folder."
            )
    others = before.get("written", {})
    return {**info, "records": before.get("records", {}), "written": {**others, split: written}}


def _write_info(folder: str, info: dict) -> None:
    path = f"{folder.rstrip('/')}/{tfrecord.INFO_FILE}"
    with tf.io.gfile.GFile(f"{path}.tmp", "w") as file:
        file.write(json.dumps(info, indent=1, ensure_ascii=False) + "\n")
    tf.io.gfile.rename(f"{path}.tmp", path, overwrite=True)


def _examples(source: Source, start: int, stop: int, seed: int):
    if isinstance(source, IndexedSource):
        for index in np.random.default_rng(seed).permutation(source.num_examples)[start:stop].tolist():
            yield {**source.fetch(tf.constant(index, tf.int64)), "origin": source.origin(index)}
        return
    for example in source.examples().skip(start).take(stop - start):
        yield {**example, "origin": example["origin"].numpy().decode(errors="surrogateescape")}


def _write_file(path: str, examples, source: Source, done: int, on_progress: Callable[[int], None]) -> None:
    temporary = f"{path}.tmp"
    with tf.io.TFRecordWriter(temporary) as writer:
        for example in examples:
            writer.write(_serialize(example, source))
            done += 1
            on_progress(done)
    tf.io.gfile.rename(temporary, path, overwrite=True)


def _serialize(example: dict, source: Source) -> bytes:
    image, label = example["image"], example["label"].numpy()
    encoded = image if image.dtype == tf.string else tf.io.encode_png(image)
    labels = np.flatnonzero(label) if source.multi_label else [label]
    names = [source.class_names[number].encode() for number in labels]

    def strings(values):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    features = {
        "image/encoded": strings([encoded.numpy()]),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(number) for number in labels])),
        "image/class/text": strings(names),
        "image/filename": strings([example["origin"].encode(errors="surrogateescape")]),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
