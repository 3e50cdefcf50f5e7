"""Numbers as labels, from every reader to batches, files and statistics."""

import json
import math

import numpy as np
import pytest

from keras_vit import data
from tests.data import example_images
from tests.data.test_tfrecord import write as write_records
from tests.programs import call
from train.datasets import audit, writer

AGES = {0: 1.5, 1: -2e3, 2: 0.1}


@pytest.fixture
def listed(tmp_path):
    """A list of three images with two numbers each."""
    for number in AGES:
        image = np.full((4, 4, 3), 10 * number, np.uint8)
        (tmp_path / f"{number}.png").write_bytes(example_images.encode(image))
    lines = ["path,age,height,label", *(f"{number}.png,{age},{number},x" for number, age in AGES.items())]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    return f"manifest:{tmp_path}/list.csv"


def by_image(source, pp="decode|resize(4)"):
    """Return the label of each image by its number."""
    (batch,) = data.eval_batches(source, pp, source.num_examples).as_numpy_iterator()
    return dict(zip((batch["image"][:, 0, 0, 0] // 10).tolist(), batch["label"].tolist(), strict=True))


@pytest.mark.slow
def test_value_columns_of_a_manifest_are_read(listed):
    source = data.open_source(f"{listed}#values=('age', 'height')", "all")
    assert source.label_kind == "values" and source.value_names == ("age", "height")
    assert (source.class_names, source.num_classes, source.num_outputs) == ((), 0, 2)
    assert source.labels().dtype == np.float64 and source.labels().shape == (3, 2)
    assert by_image(source) == {number: [age, number] for number, age in AGES.items()}
    assert repr(source).endswith("3 examples, values age, height>")
    assert data.split_sizes(f"{listed}#values=age") == {"train": 2, "test": 1, "all": 3}


def test_column_named_value_needs_no_option(tmp_path):
    (tmp_path / "list.csv").write_text("path,value,split\na.jpg,1,train\nb.jpg, -2.5e-1 ,train\nc.jpg,.5,test\n")
    source = data.open_source(f"manifest:{tmp_path}/list.csv", "train")
    assert source.value_names == ("value",) and sorted(source.labels().ravel()) == [-0.25, 1]
    (tmp_path / "list.csv").write_text("path,label,value\na.jpg,cat,1\nb.jpg,dog,2\n")
    assert data.open_source(f"manifest:{tmp_path}/list.csv", "all").class_names == ("cat", "dog")


def test_values_are_read_from_json_lines(tmp_path):
    rows = [{"path": f"{i}.jpg", "age": i + 0.5, "label": f"c{i % 2}", "split": "ab"[i % 2]} for i in range(4)]
    (tmp_path / "list.jsonl").write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    spec = f"manifest:{tmp_path}/list.jsonl"
    assert data.split_sizes(spec) == {"a": 2, "b": 2}
    assert sorted(data.open_source(spec, "b", values="age").labels().ravel()) == [1.5, 3.5]
    source = data.open_source(spec, "a")
    assert source.class_names == ("c0", "c1") and source.labels().tolist() == [0, 0]
    rows = [{"path": "a.jpg", "labels": ["red", "round"]}, {"path": "b.jpg", "labels": []}]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = data.open_source(spec, "all")
    assert source.label_kind == "classes" and sorted(source.labels().tolist()) == [[0, 0], [1, 1]]
    (tmp_path / "list.jsonl").write_text('{"path": "a", "label": 2}\n{"path": "b", "label": 0}')
    assert sorted(data.open_source(spec, "all").labels()) == [0, 2]


@pytest.mark.parametrize(
    ("name", "text", "options", "words"),
    [
        ("a.csv", "path,age\na,1\nb,old\n", {"values": "age"}, ["Line 3", "'age'", "finite", "'old'"]),
        ("a.csv", "path,age\na,1\nb,\n", {"values": "age"}, ["Line 3", "'age'", "''"]),
        ("a.csv", "path,age\na,1\nb,nan\n", {"values": "age"}, ["Line 3", "nan"]),
        ("a.csv", "path,age\na,old\nb,1\nc,\n", {"values": "age"}, ["Line 2", "'old'", "line 4"]),
        ("a.csv", "path,age\na,1e39\n", {"values": "age"}, ["Line 2", "1e39"]),
        ("a.csv", 'path,age\na,"1,5"\n', {"values": "age"}, ["Line 2", "1,5"]),
        ("a.csv", "path,age\na," + "9" * 5000 + "x\n", {"values": "age"}, ["Line 2"]),
        ("a.csv", "path,age\na,1\n", {"values": ("age", "size")}, ["'age', 'size'", "Received: path, age"]),
        ("a.csv", "path,age\na,1\n", {"values": ()}, ["`values`"]),
        ("a.csv", "path,age\na,1\n", {"values": ("age", "age")}, ["different"]),
        ("a.csv", "path,label\na,1\nb,2.5\n", {}, ["2.5", "values=label"]),
        ("a.csv", "path,label\na,1.0\nb,2.0\n", {}, ["1.0", "values=label"]),
        ("a.jsonl", '{"path": "a", "age": 1}\n{"path": "b"}', {"values": "age"}, ["Line 2", "'age'", "nothing"]),
        ("a.jsonl", '{"path": "a", "age": NaN}', {"values": "age"}, ["Line 1", "nan"]),
        ("a.jsonl", '{"path": "a", "age": [1]}', {"values": "age"}, ["Line 1", "['1']"]),
        ("a.jsonl", '{"path": "a", "age": true}', {"values": "age"}, ["Line 1", "True"]),
        ("a.jsonl", '{"path": "a", "label": ["b"]}', {}, ["Line 1", "a path and a label"]),
        ("a.jsonl", '{"path": "a", "label": null}', {}, ["Line 1", "a path and a label"]),
        ("a.jsonl", '{"path": "a", "labels": [["b"]]}', {}, ["Line 1", "a path and a label"]),
        ("a.jsonl", '{"path": ["a"], "label": "b"}', {}, ["Line 1", "must have a path"]),
        ("a.jsonl", '{"path": "a"}\n[1]', {}, ["Line 2", "JSON object", "[1]"]),
        ("a.jsonl", '{"path": "a", "value": 1}\n{"path', {}, ["Line 2", "JSON object"]),
        ("a.jsonl", '{"path": "a", "value": ' + "[" * 100_000, {}, ["Line 1", "JSON object"]),
        ("a.jsonl", '{"path": "a"}', {}, ["'path' and 'label'", "Received: path"]),
        ("a.jsonl", "", {}, ["an empty file"]),
    ],
)
def test_invalid_values_in_manifests_are_refused(tmp_path, name, text, options, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError) as error:
        data.open_source(f"manifest:{tmp_path}/{name}", "all", **options)
    for word in words:
        assert word in str(error.value)


def test_decimal_class_names_are_not_values(tmp_path):
    (tmp_path / "list.csv").write_text("path,label\na,1.5\nb,2.0\n")
    source = data.open_source(f"manifest:{tmp_path}/list.csv", "all", class_names=["2.0", "1.5"])
    assert sorted(source.labels()) == [0, 1]


def test_values_are_read_from_npz(tmp_path):
    images, values = np.zeros((5, 2, 2), np.uint8), np.arange(10.0).reshape(5, 2)
    np.savez(tmp_path / "a.npz", images=images, labels=values)
    source = data.open_source(f"npz:{tmp_path}/a.npz", "all", values=["x", "y"])
    assert source.value_names == ("x", "y") and source.labels().tolist() == values.tolist()
    with pytest.raises(ValueError, match="2 names, one per value.*x"):
        data.open_source(f"npz:{tmp_path}/a.npz", "all", values="x")
    np.savez(tmp_path / "a.npz", images=images, labels=values[:, 0] / [1, 1, 1, 0.5, np.inf])
    assert data.open_source(f"npz:{tmp_path}/a.npz", "all", values="x").labels().tolist() == [[0], [2], [4], [12], [0]]
    np.savez(tmp_path / "a.npz", images=images, labels=[1, 2, 3, np.nan, 5])
    with pytest.raises(ValueError, match="finite numbers.*nan.*image 3"):
        data.open_source(f"npz:{tmp_path}/a.npz", "all", values="x")
    with pytest.raises(ValueError, match="integers. For regression.*values="):
        data.open_source(f"npz:{tmp_path}/a.npz", "all")


# --- records ----------------------------------------------------------------------------------------------------------


def record(image, **numbers):
    import tensorflow as tf

    features = {name: tf.train.Feature(float_list=tf.train.FloatList(value=[n])) for name, n in numbers.items()}
    features["image/encoded"] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image]))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@pytest.mark.slow
def test_values_round_trip_through_tfrecords_in_float32(listed, tmp_path):
    source = data.open_source(listed, "all", values=("age", "height"))
    writer.write_tfrecords(source, f"{tmp_path}/out", "train", 2)
    info = json.loads((tmp_path / "out" / "dataset_info.json").read_text())
    assert (info["label_kind"], info["value_names"]) == ("values", ["age", "height"])
    written = data.open_source(f"tfrecord:{tmp_path}/out")
    assert written.label_kind == "values" and written.value_names == source.value_names
    assert by_image(written) == {number: [np.float32(age), number] for number, age in AGES.items()}
    one = data.open_source(f"tfrecord:{tmp_path}/out", values="height")
    assert by_image(one) == {number: [number] for number in AGES}
    with pytest.raises(ValueError, match="other classes or values: label_kind is 'values'"):
        writer.write_tfrecords(data.open_source("digits", "test[:2]"), f"{tmp_path}/out", "test", 1)


@pytest.mark.slow
def test_a_record_without_a_finite_number_is_reported(tmp_path):
    image = example_images.encode(np.zeros((4, 4, 3), np.uint8))
    write_records(tmp_path / "all.tfrecord", [record(image, age=1.0), record(image, age=math.inf)])
    source = data.open_source(f"tfrecord:{tmp_path}/*", "all", values="age")
    with data.image_errors(), pytest.raises(Exception) as error:
        by_image(source)
    assert "record 1 of" in str(error.value) and "finite numbers" in str(error.value)
    with pytest.raises(ValueError, match="tfrecord:.*finite numbers"):
        data.values_of(source)
    source = data.open_source(f"tfrecord:{tmp_path}/*", "all", values="size")
    with pytest.raises(ValueError, match="size"):
        data.values_of(source)


@pytest.mark.slow
def test_values_are_read_from_tensorflow_datasets(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("importlib_resources")
    from keras_vit.data.readers import tfds as reader

    class Measured(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {"image": tfds.features.Image(shape=(None, None, 3)), "label": np.float32, "count": np.int64}
            features |= {"box": tfds.features.BBoxFeature(), "free": tfds.features.Sequence(np.float32)}
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for i in range(4):
                box = tfds.features.BBox(0.0, i / 8, 0.5, 1.0)
                image = np.full((4, 4, 3), 10 * i, np.uint8)
                yield i, {"image": image, "label": i + 0.5, "count": i, "box": box, "free": [1.0] * i}

    builder = Measured(data_dir=str(tmp_path), file_format="tfrecord")
    builder.download_and_prepare()
    source = reader.from_builder(builder, "train", "tfds:measured")
    assert source.value_names == ("label",) and by_image(source) == {i: [i + 0.5] for i in range(4)}
    source = reader.from_builder(builder, "train", "tfds:measured", values=("count", "box"))
    assert source.value_names == ("count", "box_0", "box_1", "box_2", "box_3")
    assert by_image(source) == {i: [i, 0, i / 8, 0.5, 1] for i in range(4)}
    for options in ({"label": "count"}, {"label": "free"}, {"values": ("free",)}, {"values": "image"}):
        with pytest.raises(ValueError, match="numbers of a fixed count"):
            reader.from_builder(builder, "train", "tfds:measured", **options)


# --- statistics -------------------------------------------------------------------------------------------------------


def test_mean_and_deviation_are_exact(tmp_path):
    """They are correctly rounded sums over the labels, whatever their order."""
    numbers = [1e8, 1.0, -1e8, 0.1, 3.0, 1e-8]
    lines = [f"{place}.jpg,{number!r},{place}" for place, number in enumerate(numbers)]
    (tmp_path / "list.csv").write_text("\n".join(["path,a,b", *lines]))
    found = data.values_of(data.open_source(f"manifest:{tmp_path}/list.csv", "all", values=["a", "b"]))
    mean = math.fsum(numbers) / 6
    assert found.names == ("a", "b") and found.mean == (mean, 2.5)
    assert found.deviation == (math.sqrt(math.fsum((n - mean) ** 2 for n in numbers) / 6), math.sqrt(35 / 12))


def test_numbers_with_a_large_offset_keep_their_digits(tmp_path, caplog):
    """UNIX seconds: float32 has multiples of 128."""
    numbers = 1_700_000_000 + np.arange(400)
    lines = [f"{number}.jpg,{number}" for number in numbers]
    (tmp_path / "list.csv").write_text("\n".join(["path,value", *lines]))
    source = data.open_source(f"manifest:{tmp_path}/list.csv", "all")
    found = data.values_of(source)
    assert found.mean == (numbers.mean(),) and found.deviation == (pytest.approx(numbers.std(), rel=1e-12),)
    assert "multiples of 128" in caplog.text
    standardized = found.standardize(source.labels())
    assert len(np.unique(np.float32(standardized))) == 400
    images = np.zeros((400, 2, 2), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=numbers)
    assert data.values_of(data.open_source(f"npz:{tmp_path}/a.npz", "all", values="value")) == found
    caplog.clear()
    (tmp_path / "list.csv").write_text("path,value\na,1990\nb,2020\n")  # years are exact
    data.values_of(data.open_source(f"manifest:{tmp_path}/list.csv", "all"))
    assert not caplog.text


def test_statistics_are_computed_without_reading_images(listed, tmp_path):
    for number in AGES:
        (tmp_path / f"{number}.png").unlink()
    assert data.values_of(data.open_source(listed, "all", values="height")).mean == (1.0,)


@pytest.mark.slow
def test_batches_of_values_contain_the_share_of_mixup(listed):
    source = data.open_source(listed, "all", values=("age", "height"))
    batch = next(iter(data.train_batches(source, "decode|resize(4)", 2, mixup=0.2)))
    assert (batch["label"].shape, batch["mix"].shape) == ((2, 2), (2,))


def test_statistics_of_missing_or_constant_values_are_refused(listed, tmp_path):
    with pytest.raises(ValueError, match="must be values.*'class'"):
        data.values_of(data.open_source("digits"))
    (tmp_path / "b.csv").write_text("path,age,size\na,1,0.1\nb,2,0.1\nc,3,0.1\n")
    with pytest.raises(ValueError, match="'size' is 0.1 for all 3"):
        data.values_of(data.open_source(f"manifest:{tmp_path}/b.csv", "all", values=["age", "size"]))


@pytest.mark.slow
def test_check_data_describes_values(listed, capsys):
    source = data.open_source(listed, "all", values=("age", "height"))
    found = audit.describe_values(audit.audit(source), source.value_names)
    assert found["height"] == {"count": 3, "mean": 1, "deviation": math.sqrt(2 / 3), "min": 0, "max": 2}
    assert audit.describe_values([audit.ImageReport("a", problem="empty")], ["age"]) == {}
    _, rows = audit.contact_sheet(source, "decode|resize(4)", count=3)
    assert "age=-2000 height=1" in sum(rows, [])
    assert call("train.check_data", data=f"{listed}#values=height", splits=["all"], json=False, sheet=None) == 0
    expected = "all: height of 3 images, mean 1, standard deviation 0.816497, minimum 0, maximum 2"
    assert expected in capsys.readouterr().out
