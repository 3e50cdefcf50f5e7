"""Items in parallel, replacements of unreadable items, and limits of labels and files."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import labels, sources
from keras_vit.data.loading import Repair
from keras_vit.data.record_files import RecordSource, Slice


def test_results_keep_the_order_of_their_items():
    """More items than are read ahead."""
    assert list(sources.in_parallel(lambda item: 2 * item, iter(range(600)), threads=3)) == list(range(0, 1200, 2))


@pytest.mark.parametrize(("size", "index", "others"), [(5, 3, [4, 0]), (4, 1, [2, 3]), (4, 3, [0, 1]), (1, 0, [])])
def test_at_most_half_of_the_other_images_are_tried_as_replacement(size, index, others):
    source = data.open_source("digits", f"test[:{size}]")
    item = {"index": tf.constant(index, tf.int64), "position": tf.constant(7, tf.int64)}
    found = list(source.following(item).as_numpy_iterator())
    assert [int(each["index"]) for each in found] == others
    assert {int(each["position"]) for each in found} <= {7}  # the augmentation is that of the row


@pytest.mark.slow
def test_replacement_records_come_from_later_in_the_file_first():
    content = {b"a": [b"0", b"1", b"2", b"3", b"4"], b"b": [b"5"]}

    def records(path, skip, take):
        read = lambda path: np.array(content[path.item() if isinstance(path, np.ndarray) else path], object)  # noqa: E731
        whole = tf.ensure_shape(tf.numpy_function(read, [path], tf.string), [None])
        return tf.data.Dataset.from_tensor_slices(whole).skip(skip).take(take)

    slices = [Slice("b", 0, 1), Slice("a", 1, 4)]
    source = RecordSource("x", "all", slices, 5, lambda record: {"image": record}, ["c"], records=records)
    item = {"file": tf.constant(1, tf.int64), "number": tf.constant(3, tf.int64), "position": tf.constant(7, tf.int64)}
    found = list(source.following(item).as_numpy_iterator())
    assert [(int(each["number"]), each["record"], int(each["position"])) for each in found] == [
        (4, b"4", 7),
        (1, b"1", 7),
        (2, b"2", 7),
        (0, b"5", 7),
    ]
    assert source.origin(1, 3) == "record 3 of a"


class TestRepair:
    """Four images of which some cannot be loaded; `repaired` is called with a group of which row 1 was read."""

    @pytest.fixture
    def repaired(self):
        def make(on_bad_image, training, bad):
            def load(item):
                if int(item["index"]) in bad:
                    raise tf.errors.InvalidArgumentError(None, None, "cut off")
                return {"image": tf.cast(item["index"], tf.float32)}

            repair = Repair(data.open_source("digits", "test[:4]"), load, on_bad_image, training)

            def call(index):
                items = {"index": np.array([index, 9]), "position": np.array([0, 5])}
                return repair(items, np.array([1, -1]), {"image": np.array([9, 0], np.float32)})["image"].tolist()

            return call

        return make

    def test_training_tolerates_half_of_the_images_unreadable(self, repaired):
        log, bad = data.BadImageLog(), {0, 2}
        call = repaired(log, True, bad)
        assert [call(index) for index in (0, 2, 0)] == [[1, 9], [3, 9], [1, 9]]
        assert log.count == 3 and log.reasons == {f"image {index} of digits": "cut off" for index in (0, 2)}
        bad.add(3)
        with pytest.raises(ValueError, match="image 3 of digits.cut off More than half of digits"):
            call(3)
        assert log.count == 3

    def test_an_image_without_any_replacement_ends_the_training(self, repaired):
        with pytest.raises(ValueError, match="More than half"):
            repaired("skip", True, {0, 1, 2})(0)

    def test_evaluation_skips_any_number_of_unreadable_images(self, repaired):
        call = repaired("skip", False, {0, 1, 2, 3})
        assert [call(index) for index in range(4)] == [[0, 9]] * 4

    def test_the_first_unreadable_image_is_an_error(self, repaired):
        call = repaired("error", True, {0, 1})
        for index in (0, 1):  # further calls fail in the same way
            with pytest.raises(ValueError, match="image 0 of digits.cut off.>"):
                call(index)

    def test_an_image_that_the_second_attempt_reads_is_used(self, repaired):
        assert repaired("error", True, set())(3) == [3, 9]


def test_numbers_of_classes_are_bounded():
    assert labels.classes_up_to(2, "a") == ["0", "1", "2"]
    assert len(labels.classes_up_to(2**20 - 1, "a")) == 2**20
    with pytest.raises(ValueError, match="at most 1,048,576 classes. Received: 1048576 for a"):
        labels.classes_up_to(2**20, "a")


def test_a_compressed_file_may_unpack_to_two_hundred_times_its_size():
    """And by a quarter of a gibibyte more, so that small files of one color are not refused."""
    sources.check_expansion("a", 1_000, 2**28 + 200_000)
    with pytest.raises(ValueError, match="a would unpack 1,000 bytes to 268,635,457, like a decompression bomb"):
        sources.check_expansion("a", 1_000, 2**28 + 200_001)


def test_the_first_label_out_of_range_is_named_and_the_others_are_counted():
    numbers = np.array([0, 3, -1, 2_000])
    with pytest.raises(ValueError, match="0 <= label < 3, .* Received: 3 for row 1 and 2 more"):
        labels.check_labels(numbers, 3, "row {}".format)
    with pytest.raises(ValueError, match=r"Received: -1 for row 2\."):
        labels.check_labels(numbers[:3], 4, "row {}".format)
