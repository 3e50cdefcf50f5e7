import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from tests import selection
from tests.data import example_images
from tests.data.test_tfrecord import example, write

TRAIN = "decode_jpeg_and_inception_crop(8)|flip_lr|value_range(-1, 1)"
EVAL = "decode|resize(8)|value_range(-1, 1)"

DAMAGE = {
    "zero bytes": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "text": lambda content: b"not an image",
    "missing": None,
}
REASONS = {"zero bytes": "Input is empty", "truncated": "", "text": "Expected a JPEG", "missing": "No such file"}


@pytest.fixture(params=["folder", "tfrecord"])
def damaged(request, tmp_path):
    """33 images, one without bytes and one cut off, and the source that names them."""
    root = example_images.folder(tmp_path / "p")
    bad = [tmp_path / "p" / "cat" / "3.png", tmp_path / "p" / "eel" / "5.png"]
    bad[0].write_bytes(b"")
    bad[1].write_bytes(bad[1].read_bytes()[:200])
    folder = data.open_source(f"folder:{root}", "all")
    if request.param == "folder":
        return folder, [str(path) for path in bad]
    records = [example(e["image"].numpy(), int(e["label"])) for e in folder.examples()]
    for i in range(3):
        write(tmp_path / f"all-{i:05d}-of-00003", records[11 * i : 11 * i + 11])
    places = [folder.paths.index(str(path)) for path in bad]
    source = data.open_source(f"tfrecord:{tmp_path}/all-*", "all", num_classes=3)
    return source, [f"record {i % 11} of {tmp_path}/all-{i // 11:05d}-of-00003" for i in places]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "training"),
    selection.cases(
        [(kind, training) for kind in DAMAGE for training in (True, False)],
        [("missing", True), ("truncated", False)],
        selection.EXHAUSTIVE,
    ),
)
def test_an_error_names_the_file(tmp_path, kind, training):
    root = example_images.folder(tmp_path / "p")
    source = data.open_source(f"folder:{root}", "all")
    path = tmp_path / "p" / "dog" / "7.png"
    if DAMAGE[kind]:
        path.write_bytes(DAMAGE[kind](path.read_bytes()))
    else:
        path.unlink()
    batches = data.train_batches(source, TRAIN, 8).take(6) if training else data.eval_batches(source, EVAL, 8)
    with pytest.raises(tf.errors.OpError) as error:
        list(batches)
    text = data.explain(error.value)
    assert text.startswith(f"unreadable image {path}: ")
    assert "{{" not in text and "Op:" not in text and "\n" not in text
    assert REASONS[kind] in text


@pytest.mark.slow
def test_reason_is_reported_for_every_kind_of_damage(tmp_path):
    """In one pass, because a pipeline takes a second to be built."""
    source, log = data.open_source(f"folder:{example_images.folder(tmp_path / 'p')}", "all"), data.BadImageLog()
    paths = {kind: tmp_path / "p" / "dog" / f"{number}.png" for number, kind in zip((1, 3, 5, 7), DAMAGE, strict=True)}
    for kind, path in paths.items():
        path.write_bytes(DAMAGE[kind](path.read_bytes())) if DAMAGE[kind] else path.unlink()
    list(data.eval_batches(source, EVAL, 8, on_bad_image=log))
    assert set(log.reasons) == set(map(str, paths.values()))
    for kind, path in paths.items():
        reason = log.reasons[str(path)]
        assert REASONS[kind] in reason and "{{" not in reason and "Op:" not in reason and "\n" not in reason


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 32])
def test_first_and_last_unreadable_images_are_reported(tmp_path, place):
    source = data.open_source(f"folder:{example_images.folder(tmp_path / 'p')}", "all")
    with open(source.paths[place], "wb"):
        pass
    with pytest.raises(tf.errors.OpError) as error:
        list(data.eval_batches(source, EVAL, 33 if place == 32 else 8))
    assert source.paths[place] in data.explain(error.value)


@pytest.mark.slow
def test_errors_of_records_name_file_and_number(damaged):
    source, names = damaged
    with pytest.raises(tf.errors.OpError) as error:
        list(data.eval_batches(source, EVAL, 8))
    assert any(name in data.explain(error.value) for name in names)


@pytest.mark.slow
def test_training_skips_unreadable_images(damaged):
    source, names = damaged
    log = data.BadImageLog()
    batches = list(data.train_batches(source, TRAIN, 8, on_bad_image=log).take(9).as_numpy_iterator())
    assert len(batches) == 9 and all(batch["image"].any(axis=(1, 2, 3)).all() for batch in batches)
    assert sorted(log.reasons) == sorted(names)
    assert log.count >= 4  # two images in two epochs; what was prefetched counts as well
    assert "Input is empty." in log.reasons.values()


@pytest.mark.slow
def test_skipping_is_reproducible_and_keeps_the_other_rows(damaged):
    source, _ = damaged
    first, again = (
        list(data.train_batches(source, TRAIN, 8, on_bad_image="skip").take(5).as_numpy_iterator()) for _ in range(2)
    )
    for batch, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(batch["image"], other["image"])
    resumed = next(iter(data.train_batches(source, TRAIN, 8, on_bad_image="skip", start_step=3)))
    np.testing.assert_array_equal(resumed["image"], first[3]["image"])


@pytest.mark.slow
def test_evaluation_marks_unreadable_images_as_invalid(damaged):
    source, names = damaged
    log = data.BadImageLog()
    batches = list(data.eval_batches(source, EVAL, 8, on_bad_image=log).as_numpy_iterator())
    assert len(batches) == 5
    assert sum(batch["valid"].sum() for batch in batches) == 31
    assert all(not batch["image"][batch["valid"] == 0].any() for batch in batches)
    assert sorted(log.reasons) == sorted(names) and log.count == 2


@pytest.mark.slow
@pytest.mark.parametrize("rows", [7, 64])
def test_rows_match_their_examples_for_any_batch_size(damaged, rows):
    """Rows are loaded in groups: one of seven, or two of 32. In some groups an image is unreadable."""
    source, _ = damaged
    batches = data.eval_batches(source, EVAL, rows, on_bad_image="skip").unbatch().as_numpy_iterator()
    examples = list(source.examples())
    assert len(examples) == 33
    load = data.preprocess.host_function(EVAL)
    for stored, row in zip(examples, batches, strict=False):
        try:
            expected = load(stored)["image"].numpy()
        except tf.errors.InvalidArgumentError:
            assert row["valid"] == 0 and not row["image"].any()
            continue
        np.testing.assert_array_equal(row["image"], expected)
        assert (row["valid"], row["label"]) == (1, stored["label"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "tfrecord"])
def test_skipping_survives_consecutive_unreadable_images(tmp_path, kind):
    """12 of 33 that follow each other, in batches of 2, so that most batches hold none that can be read."""
    folder = data.open_source(f"folder:{example_images.folder(tmp_path / 'p')}", "all")
    bad = folder.paths[5:17]
    for path in bad:
        with open(path, "wb"):
            pass
    source, names = folder, bad
    if kind == "tfrecord":
        write(
            tmp_path / "all-00000-of-00001", [example(e["image"].numpy(), int(e["label"])) for e in folder.examples()]
        )
        source = data.open_source(f"tfrecord:{tmp_path}/all-*", "all", num_classes=3)
        names = [f"record {i} of {tmp_path}/all-00000-of-00001" for i in range(5, 17)]
    log = data.BadImageLog()
    batches = data.train_batches(source, TRAIN, 2, shuffle_buffer=1, on_bad_image=log).take(17)
    images = [batch["image"].any(axis=(1, 2, 3)) for batch in batches.as_numpy_iterator()]
    assert np.concatenate(images).all()
    assert sorted(log.reasons) == sorted(names)
    resumed = next(iter(data.train_batches(source, TRAIN, 2, shuffle_buffer=1, on_bad_image="skip", start_step=5)))
    again = list(data.train_batches(source, TRAIN, 2, shuffle_buffer=1, on_bad_image="skip").take(6))[5]
    np.testing.assert_array_equal(resumed["image"], again["image"])


@pytest.mark.slow
def test_training_stops_if_more_than_half_of_the_images_are_unreadable(tmp_path):
    source = data.open_source(f"folder:{example_images.folder(tmp_path / 'p')}", "all")
    for path in source.paths[::2] + source.paths[1:4:2]:
        with open(path, "wb"):
            pass
    with pytest.raises(data.UnreadableImageError, match="More than half"), data.image_errors():
        list(data.train_batches(source, TRAIN, 4, on_bad_image="skip").take(40))
    mask = [
        batch["valid"].sum() for batch in data.eval_batches(source, EVAL, 4, on_bad_image="skip").as_numpy_iterator()
    ]
    assert sum(mask) == 33 - 19  # evaluation says how many it counts


@pytest.mark.slow
def test_skipping_leaves_readable_data_unchanged(tmp_path):
    source = data.open_source(f"folder:{example_images.folder(tmp_path / 'p')}", "all")
    strict, lenient = (
        list(data.train_batches(source, TRAIN, 8, on_bad_image=mode).take(5).as_numpy_iterator())
        for mode in ("error", "skip")
    )
    for batch, other in zip(strict, lenient, strict=True):
        np.testing.assert_array_equal(batch["image"], other["image"])
        np.testing.assert_array_equal(batch["label"], other["label"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["error", "skip"])
def test_data_without_readable_images_raise_an_error(tmp_path, mode):
    source = data.open_source(f"folder:{example_images.folder(tmp_path / 'p')}", "all")
    for path in source.paths:
        with open(path, "wb") as file:
            file.write(b"nothing")
    with pytest.raises(tf.errors.OpError) as error:
        next(iter(data.train_batches(source, TRAIN, 1, on_bad_image=mode)))
    assert "unreadable image" in data.explain(error.value)


@pytest.mark.slow
def test_failed_operation_is_reported_with_the_file(tmp_path):
    source = data.open_source(f"folder:{example_images.folder(tmp_path / 'p')}", "all")
    with pytest.raises(tf.errors.OpError) as error:
        next(iter(data.train_batches(source, "decode|random_crop(22)", 33)))  # the images have 20 to 30 rows
    assert f"{tmp_path}/p/" in data.explain(error.value)


def test_other_errors_are_not_explained():
    assert data.explain(ValueError("something else")) is None


def test_log_lists_each_file_once_and_counts_all_attempts(caplog):
    log = data.BadImageLog()
    with caplog.at_level("WARNING", logger="absl"):
        for origin in ("a.jpg", "a.jpg", "b.jpg"):
            log.add(origin, "Input is empty.")
    assert log.count == 3 and log.reasons == dict.fromkeys(("a.jpg", "b.jpg"), "Input is empty.")
    assert caplog.messages == [
        f"Skipping {n}.jpg: Input is empty. ({i} such files so far)" for i, n in ((1, "a"), (2, "b"))
    ]
