"""TensorFlow Datasets, with a small data set that the tests create."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data.readers import tfds as reader

tfds = pytest.importorskip("tensorflow_datasets")
pytest.importorskip("importlib_resources")  # TensorFlow Datasets 4.9 needs it and does not always install it

CLASSES = ("cat", "dog", "eel")


class Numbered(tfds.core.GeneratorBasedBuilder):
    """Image number i has only the value i."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        label = tfds.features.ClassLabel(names=CLASSES)
        features = {"image": tfds.features.Image(shape=(None, None, 3)), "label": label}
        features["mask"] = tfds.features.Image(shape=(None, None, 1))
        features["named_mask"] = tfds.features.LabeledImage(labels=list(CLASSES))
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict({**features, "tags": tfds.features.Sequence(label)})
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(range(23)), "test": self._generate_examples(range(100, 107))}

    def _generate_examples(self, numbers):
        for i in numbers:
            image = np.full((4, 5, 3), i, np.uint8)
            masks = dict.fromkeys(("mask", "named_mask"), image[..., :1] % 3)
            yield i, {"image": image, "label": CLASSES[i % 3], "tags": [CLASSES[i % 3], CLASSES[0]], **masks}


@pytest.fixture(scope="module", params=["tfrecord", pytest.param("array_record", marks=pytest.mark.slow)])
def builder(request, tmp_path_factory):
    if request.param == "array_record":
        pytest.importorskip("array_record")
    builder = Numbered(data_dir=str(tmp_path_factory.mktemp("tfds")), file_format=request.param)
    builder.download_and_prepare()
    return builder


def numbers(batch):
    mask = batch.get("valid", np.ones(len(batch["image"])))
    return [int(image[0, 0, 0]) for image, keep in zip(batch["image"], mask, strict=True) if keep]


@pytest.mark.slow
def test_splits_match_tensorflow_datasets(builder):
    for split in ("train", "test", "train[:30%]", "train[5:9]+test[-2:]"):
        source = reader.from_builder(builder, split, "tfds:numbered")
        assert source.class_names == CLASSES and source.encoded
        seen = [n for b in data.eval_batches(source, "decode|resize(4)", 4).as_numpy_iterator() for n in numbers(b)]
        expected = [int(e["image"][0, 0, 0]) for e in _directly(builder, split)]
        assert sorted(seen) == sorted(expected) and source.num_examples == len(expected)


def _directly(builder, split):
    if "array_record" in str(builder.info.file_format).lower():
        return builder.as_data_source(split=split)
    return tfds.as_numpy(builder.as_dataset(split=split))


@pytest.mark.slow
def test_training_resumes_exactly(builder):
    source = reader.from_builder(builder, "train", "tfds:numbered")
    whole = [numbers(b) for b in data.train_batches(source, "decode|resize(4)", 5).take(9).as_numpy_iterator()]
    assert sorted(sum(whole, [])[:23]) == list(range(23))
    resumed = data.train_batches(source, "decode|resize(4)", 5, start_step=7).take(2).as_numpy_iterator()
    assert [numbers(b) for b in resumed] == whole[7:]
    for batch in data.train_batches(source, "decode|resize(4)", 5).take(2).as_numpy_iterator():
        assert [n % 3 for n in numbers(batch)] == batch["label"].tolist()


@pytest.mark.slow
def test_several_labels_per_image_are_read(builder):
    source = reader.from_builder(builder, "test", "tfds:numbered", label="tags")
    assert source.label_kind == "classes"
    batch = next(iter(data.eval_batches(source, "decode|resize(4)", 7)))
    for image, label in zip(batch["image"].numpy(), batch["label"].numpy(), strict=True):
        expected = np.zeros(3)
        expected[[0, int(image[0, 0, 0]) % 3]] = 1
        np.testing.assert_array_equal(label, expected)


@pytest.mark.slow
def test_masks_and_their_class_names_are_read(builder):
    """The feature names the classes, or the option does."""
    for label, classes in (("named_mask", None), ("mask", CLASSES), ("mask", 3)):
        source = reader.from_builder(builder, "test", "tfds:numbered", label=label, classes=classes)
        assert source.label_kind == "mask"
        assert source.class_names == (CLASSES if classes != 3 else ("0", "1", "2"))
        batch = next(iter(data.eval_batches(source, "decode|resize(4)", 7)))
        np.testing.assert_array_equal(batch["mask"], batch["image"][..., 0] % 3)
    named = reader.from_builder(builder, "test", "tfds:numbered", label="named_mask", classes=3)
    assert named.class_names == ("0", "1", "2")  # the option comes before the feature
    with pytest.raises(ValueError, match="classes"):
        reader.from_builder(builder, "test", "tfds:numbered", label="mask")
    with pytest.raises(ValueError, match="examples"):
        source.labels()


@pytest.mark.slow
def test_skipping_names_the_record(builder):
    source = reader.from_builder(builder, "test", "tfds:numbered")
    log = data.BadImageLog()
    batches = data.eval_batches(source, "decode(max_pixels=19)|resize(4)", 4, on_bad_image=log)
    assert sum(batch["valid"].sum() for batch in batches.as_numpy_iterator()) == 0
    assert log.count == 7 and all("numbered" in origin for origin in log.reasons)
    assert all("more than 19 pixels" in reason for reason in log.reasons.values())


@pytest.mark.slow
def test_wrong_features_and_names_are_refused(builder, tmp_path):
    with pytest.raises(ValueError, match="no feature 'picture'.*'image'"):
        reader.from_builder(builder, "train", "tfds:numbered", image="picture")
    with pytest.raises(ValueError, match="an image and a class"):
        reader.from_builder(builder, "train", "tfds:numbered", image="label")
    with pytest.raises(Exception, match="no_such_data_set"):
        data.open_source("tfds:no_such_data_set", data_dir=str(tmp_path))


def test_examples_state_their_origin(builder):
    source = reader.from_builder(builder, "test", "tfds:numbered")
    example = next(iter(source.examples()))
    assert example["image"].dtype == tf.string and "numbered" in next(source.items())[0]


def test_missing_package_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"keras-vision-transformers\[data\]"):
        data.open_source("tfds:cifar10")
