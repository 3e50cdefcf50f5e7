"""The tasks of VTAB on synthetic annotations."""

import types

import pytest
import tensorflow as tf

from keras_vit import evaluators
from keras_vit.data import open_source
from keras_vit.data.readers import vtab
from keras_vit.data.record_files import Slice


def test_the_evaluator_and_the_reader_know_the_same_tasks():
    assert set(evaluators.vtab.TASKS) == set(vtab.TASKS)
    assert {evaluators.vtab.TRAIN, evaluators.vtab.VALIDATION, evaluators.vtab.TEST} < set(
        vtab.tfds_splits(vtab.TASKS["dtd"], {})
    )


# As task_adaptation/data/*.py has them, for data sets of these sizes.
@pytest.mark.parametrize(
    ("name", "counts", "expected"),
    [
        ("cifar100", {"train": 50_000}, ("train[:800]", "train[45000:45200]", "train[:50000]", "test")),
        ("pets", {"train": 3_680}, ("train[:800]", "train[2944:3144]", "train[:3680]", "test")),
        ("eurosat", {"train": 27_000}, ("train[:800]", "train[16200:16400]", "train[:21600]", "train[21600:]")),
        ("dsprites_location", {"train": 1_000}, ("train[:800]", "train[800:1000]", "train[:900]", "train[900:]")),
        ("clevr_count", {"train": 70_000}, ("train[:800]", "train[63000:63200]", "train[:70000]", "validation")),
        ("dtd", {}, ("train[:800]", "validation[:200]", "train+validation", "test")),
        ("smallnorb_azimuth", {}, ("train[:800]", "test[:200]", "train+test[:50%]", "test[50%:]")),
    ],
)
def test_splits_of_vtab_1k_are_read(name, counts, expected):
    splits = vtab.tfds_splits(vtab.TASKS[name], counts)
    assert (splits["train800"], splits["val200"], splits["trainval"], splits["test"]) == expected
    assert splits["train800val200"] == f"{splits['train800']}+{splits['val200']}"


def test_labels_of_clevr_match_the_published_code():
    count, distance = vtab.TASKS["clevr_count"], vtab.TASKS["clevr_distance"]
    steps = (8.0, 0), (8.1, 1), (8.5, 1), (8.9, 2), (9.1, 3), (9.7, 4), (10.1, 5), (99.0, 5)
    cases = [(3 + number, nearest, (number, step)) for number, (nearest, step) in enumerate(steps)]
    for objects, nearest, expected in cases:
        depths = [nearest] + [100.0] * (objects - 1)
        example = {"objects": {"size": tf.zeros(objects, tf.int64), "pixel_coords": [[0.0, 0.0, d] for d in depths]}}
        example["objects"]["pixel_coords"] = tf.constant(example["objects"]["pixel_coords"])
        assert (int(count.label(example)), int(distance.label(example))) == expected
    assert (count.num_classes, distance.num_classes) == (8, 6)


def test_labels_of_kitti_consider_only_cars_vans_and_trucks():
    label = vtab.TASKS["kitti_distance"].label

    def distance(*objects):
        kinds, depths = [kind for kind, _ in objects], [[0.0, 0.0, depth] for _, depth in objects]
        return int(
            label(
                {
                    "objects": {
                        "type": tf.constant(kinds, tf.int64),
                        "location": tf.reshape(tf.constant(depths, tf.float32), [-1, 3]),
                    }
                }
            )
        )

    assert distance((0, 5.0), (1, 30.0)) == 0
    assert distance((2, 15.0)) == 1
    assert distance((0, 21.0), (3, 2.0)) == 2  # a pedestrian is nearer
    assert distance((3, 2.0)) == distance() == 3  # no vehicle


def test_labels_of_dsprites_have_sixteen_bins():
    location, orientation = vtab.TASKS["dsprites_location"].label, vtab.TASKS["dsprites_orientation"].label
    assert [int(location({"label_x_position": value})) for value in (0, 1, 2, 31)] == [0, 0, 1, 15]
    assert [int(orientation({"label_orientation": value})) for value in (0, 2, 3, 39)] == [0, 0, 1, 15]


@pytest.mark.parametrize(
    ("task", "split", "pixel", "label"),
    [
        ("dsprites_location", "val200", 255, 5),  # pixels of 0 and 1, and a label that is computed
        ("cifar100", "test", 1, 7),
    ],
)
def test_prepared_vtab_data_are_read(task, split, pixel, label):
    class Splits(dict):
        def __missing__(self, name):
            files = [types.SimpleNamespace(filename=f"{name}.tfrecord", skip=3, take=9)]
            return types.SimpleNamespace(num_examples=len(name), file_instructions=files)

    class Features(dict):
        def deserialize_example(self, record):
            return {"image": tf.ones((2, 2, 3), tf.uint8), "label": tf.constant(7, tf.int64), "label_x_position": 10}

    features = Features(label=types.SimpleNamespace(names=("a", "b")))
    info = types.SimpleNamespace(splits=Splits(train=types.SimpleNamespace(num_examples=1_000)), features=features)
    builder = types.SimpleNamespace(info=info)
    source = vtab.from_builder(builder, vtab.TASKS[task], split, f"vtab:{task}")
    written = {"val200": "train[800:1000]", "test": "test"}[split]
    assert (source.num_examples, source.slices) == (len(written), [Slice(f"{written}.tfrecord", 3, 9)])
    assert source.class_names == (("a", "b") if task == "cifar100" else tuple(map(str, range(16))))
    example = source.parse(b"")
    assert example["label"].dtype == tf.int32 and int(example["label"]) == label
    assert example["image"].dtype == tf.uint8 and (example["image"].numpy() == pixel).all()
    with pytest.raises(ValueError, match="`split` must be one of.*'train800'"):
        vtab.from_builder(builder, vtab.TASKS[task], "train", f"vtab:{task}")


def test_unknown_tasks_are_refused():
    with pytest.raises(ValueError, match="There is no task 'clevr' in VTAB"):
        open_source("vtab:clevr")


@pytest.mark.parametrize("name", vtab.TASKS)
def test_data_sets_exist_in_the_required_version(name):
    tfds = pytest.importorskip("tensorflow_datasets")
    dataset, _, wanted = vtab.TASKS[name].dataset.partition(":")
    dataset, _, config = dataset.partition("/")
    builder = tfds.builder_cls(dataset)
    versions = [builder.VERSION, *(builder.SUPPORTED_VERSIONS or [])]
    if config:
        chosen = {some.name: some for some in builder.BUILDER_CONFIGS}[config]
        versions += [chosen.version, *(chosen.supported_versions or [])]
    assert not wanted or any(tfds.core.Version(version).match(wanted) for version in versions if version)
