"""The nineteen tasks of VTAB-1k, derived from data sets of TensorFlow Datasets.

Names, splits and labels follow the benchmark's own code. "train800" and "val200" are fixed slices of the benchmark's
training and validation sets. Some labels are computed from the annotations of a data set.

References:
    https://arxiv.org/abs/1910.04867, https://github.com/google-research/task_adaptation
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from keras_vit.data.readers.data_set import DataSet
from keras_vit.data.readers.tfds import prepared_builder
from keras_vit.data.record_files import RecordSource, Slice
from keras_vit.util import checks

THREE = "train, validation and test"  # the splits of the data set are used unchanged


@dataclasses.dataclass(frozen=True)
class Task:
    """Definition of a task."""

    dataset: str  # name in TensorFlow Datasets, with the benchmark's version or a version that is still available
    split: str | tuple[int, ...] = THREE  # or percentages of "train" for training and, if `test` is None, validation
    test: str | None = "test"  # None: the rest of "train"
    label: str | Callable[[dict], tf.Tensor] = "label"  # a feature, or a function of all features
    num_classes: int | None = None  # set if the label is computed


def _count(example):
    """Return the label for the number of objects, 3 to 10, of an example of CLEVR."""
    return tf.size(example["objects"]["size"], tf.int64) - 3


def _above(value, bounds):
    """Return the index of the last of the increasing `bounds` that `value` exceeds."""
    return tf.reduce_sum(tf.cast(value > tf.constant(bounds, tf.float32), tf.int64)) - 1


def _nearest_object(example):
    """Return the label for the distance of the nearest object in an example of CLEVR, in six steps."""
    return _above(tf.reduce_min(example["objects"]["pixel_coords"][:, 2]), [0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0])


def _nearest_vehicle(example):
    """Return the label for the distance of the nearest car, van or truck in an example of KITTI.

    The label is the step of the distance, 0 to 2, or 3 if there is no such vehicle.
    """
    depth = example["objects"]["location"][:, 2]
    vehicles = tf.boolean_mask(depth, example["objects"]["type"] < 3)
    return _above(tf.reduce_min(tf.concat([vehicles, [1000.0]], axis=0)), [-100.0, 8.0, 20.0, 999.0])


def _sixteenth(feature: str, values: int) -> Callable[[dict], tf.Tensor]:
    """Return the function that maps a feature of dSprites with `values` values to a label in sixteen steps."""
    return lambda example: tf.cast(tf.math.floordiv(tf.cast(example[feature], tf.float32), values / 16), tf.int64)


TASKS = {
    "caltech101": Task("caltech101:3.*.*", (90,)),
    "cifar100": Task("cifar100:3.*.*", (90,)),
    "dtd": Task("dtd:3.*.*"),
    "flowers102": Task("oxford_flowers102:2.*.*"),
    "pets": Task("oxford_iiit_pet:4.*.*", (80,)),
    "sun397": Task("sun397/tfds:4.*.*"),
    "svhn": Task("svhn_cropped:3.*.*", (90,)),
    "patch_camelyon": Task("patch_camelyon:2.*.*"),
    "eurosat": Task("eurosat/rgb:2.*.*", (60, 20), None),
    "resisc45": Task("resisc45:3.*.*", (60, 20), None),
    "diabetic_retinopathy": Task("diabetic_retinopathy_detection/btgraham-300:3.*.*"),
    "clevr_count": Task("clevr:3.*.*", (90,), "validation", _count, 8),
    "clevr_distance": Task("clevr:3.*.*", (90,), "validation", _nearest_object, 6),
    "dmlab": Task("dmlab:2.0.1"),
    "kitti_distance": Task("kitti:3.*.*", THREE, "test", _nearest_vehicle, 4),
    "dsprites_location": Task("dsprites:2.*.*", (80, 10), None, _sixteenth("label_x_position", 32), 16),
    "dsprites_orientation": Task("dsprites:2.*.*", (80, 10), None, _sixteenth("label_orientation", 40), 16),
    "smallnorb_azimuth": Task("smallnorb:2.*.*", "halved test", "test", "label_azimuth"),
    "smallnorb_elevation": Task("smallnorb:2.*.*", "halved test", "test", "label_elevation"),
}


def tfds_splits(task: Task, counts: Mapping[str, int]) -> dict[str, str]:
    """Return the benchmark's splits in the notation of TensorFlow Datasets.

    `counts` has the number of examples of each split of the data set.
    """
    if task.split == THREE:
        trainval, validation, test = "train+validation", "validation[:200]", task.test or "test"
    elif task.split == "halved test":
        trainval, validation, test = "train+test[:50%]", "test[:200]", "test[50%:]"
    else:
        assert isinstance(task.split, tuple)
        first = task.split[0] * counts["train"] // 100
        last = first + task.split[1] * counts["train"] // 100 if len(task.split) > 1 else counts["train"]
        trainval, validation = f"train[:{last}]", f"train[{first}:{first + 200}]"
        test = task.test or f"train[{last}:]"
    return {
        "train800": "train[:800]",
        "val200": validation,
        "train800val200": f"train[:800]+{validation}",
        "trainval": trainval,
        "test": test,
    }


def read(location: str, data_dir: str | None = None, manual_dir: str | None = None, download: bool = False) -> DataSet:
    """Return a task, such as `"clevr_count"`, with the splits "train800", "val200", "train800val200", "trainval" and
    "test".
    """
    task = TASKS[checks.existing(f"task {location!r} in VTAB", location, tuple(TASKS))]
    name = f"vtab:{location}"

    def sizes() -> dict[str, int]:
        infos = prepared_builder(task.dataset, name, data_dir, manual_dir, download=False).info.splits
        splits = tfds_splits(task, {split: info.num_examples for split, info in infos.items()})
        return {split: infos[written].num_examples for split, written in splits.items()}

    def open_split(split: str) -> RecordSource:
        builder = prepared_builder(task.dataset, name, data_dir, manual_dir, download)
        return from_builder(builder, task, split, name)

    return DataSet(sizes, open_split)


def from_builder(builder: Any, task: Task, split: str, name: str) -> RecordSource:
    """Return the source of a task from a prepared `tfds.core.DatasetBuilder`. `split` is a split of the benchmark."""
    infos, features = builder.info.splits, builder.info.features
    splits = tfds_splits(task, {key: info.num_examples for key, info in infos.items()})
    checks.choice("split", split, tuple(splits))
    info = infos[splits[split]]
    if task.num_classes is not None:
        class_names = tuple(str(number) for number in range(task.num_classes))
    else:
        class_names = features[task.label].names

    def parse(record):
        example = features.deserialize_example(record)
        image = example["image"]
        if name.startswith("vtab:dsprites"):
            image = image * 255  # the data set has pixels of 0 and 1
        label = task.label(example) if callable(task.label) else example[task.label]
        return {"image": image, "label": tf.cast(label, tf.int32)}

    slices = [Slice(str(file.filename), file.skip, file.take) for file in info.file_instructions]
    return RecordSource(name, split, slices, info.num_examples, parse, class_names)
