import itertools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import seeds
from keras_vit.data.sources import ArraySource
from keras_vit.models import VisionTransformer
from tests import selection
from tests.data import example_images
from tests.data.test_tfrecord import write_numbered

PRIME = 97  # examples; no batch size divides it
# Files differ from arrays in what decodes them, not in the order of the items.
BOTH_ORDERS = ("array", "tfrecord")


def numbered(count=PRIME, side=4):
    """Image number i has only the value i."""
    images = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None], (count, side, side))
    return ArraySource("numbered", "train", images, np.arange(count, dtype=np.int32) % 10, list("abcdefghij"))


SOURCES = ("array", "folder", "tfrecord")


@pytest.fixture(scope="module", params=SOURCES)
def source(request, tmp_path_factory):
    """The same 97 numbered images in every kind of source."""
    if request.param == "array":
        return numbered()
    root = tmp_path_factory.mktemp(request.param)
    if request.param == "tfrecord":
        write_numbered(root, [40, 7, 50])
        return data.open_source(f"tfrecord:{root}", num_classes=10)
    for i in range(PRIME):
        (root / str(i % 10)).mkdir(exist_ok=True)
        content = example_images.encode(np.full((4, 4, 3), i, np.uint8))
        (root / str(i % 10) / f"{i}.png").write_bytes(content)
    return data.open_source(f"folder:{root}", "all")


def numbers(batch):
    return batch["image"][:, 0, 0, 0].tolist()


def train(source, batch_size, steps, pp="decode(channels=1)|resize(4)", **arguments):
    batches = data.train_batches(source, pp, batch_size, shuffle_buffer=16, **arguments)
    return list(batches.take(steps).as_numpy_iterator())


@pytest.mark.slow
@pytest.mark.parametrize("source", selection.cases(SOURCES, BOTH_ORDERS, selection.EXHAUSTIVE), indirect=True)
def test_every_epoch_has_every_example_once_in_a_new_order(source):
    seen = [number for batch in train(source, 10, 20) for number in numbers(batch)]
    first, second = seen[:PRIME], seen[PRIME : 2 * PRIME]
    assert sorted(first) == sorted(second) == list(range(PRIME))
    assert first != sorted(first) and first != second


@pytest.mark.slow
@pytest.mark.parametrize("source", selection.cases(SOURCES, ("array", "folder")), indirect=True)
def test_labels_belong_to_their_images(source):
    for batch in train(source, 10, 3):
        assert [number % 10 for number in numbers(batch)] == batch["label"].tolist()
    assert batch["label"].dtype == np.int32 and batch["image"].dtype == np.uint8


@pytest.mark.slow
@pytest.mark.parametrize("source", selection.cases(SOURCES, BOTH_ORDERS, selection.EXHAUSTIVE), indirect=True)
def test_a_batch_depends_on_seed_and_step_only(source):
    pp = "decode|resize(6)|random_crop(4)|color_jitter(0.3)|flip_lr"
    whole = train(source, 12, 20, pp, seed=5, mixup=0.2)
    tf.random.set_seed(1234)  # does not matter
    for start in (3, 17):  # 8 steps are almost one epoch
        resumed = train(source, 12, 3, pp, seed=5, mixup=0.2, start_step=start)
        for expected, batch in zip(whole[start:], resumed, strict=False):
            for key in expected:
                np.testing.assert_array_equal(batch[key], expected[key])
    other = train(source, 12, 2, pp, seed=6, mixup=0.2)
    assert numbers(other[0]) != numbers(whole[0]) and (other[0]["mix"] != whole[0]["mix"]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "shards"),
    selection.cases(
        [(kind, shards) for kind in SOURCES for shards in (2, 4)],
        lambda kind, shards: kind in BOTH_ORDERS and shards == (4 if kind == "array" else 2),
        selection.EXHAUSTIVE,
    ),
    indirect=["source"],
)
def test_the_batch_does_not_depend_on_the_number_of_workers(source, shards):
    pp = "decode|resize(6)|random_crop(4)|color_jitter(0.3)"
    whole = train(source, 12, 10, pp, mixup=0.2, cutmix=1.0)
    parts = [train(source, 12, 10, pp, mixup=0.2, cutmix=1.0, shard_index=i, num_shards=shards) for i in range(shards)]
    for step, expected in enumerate(whole):
        for key in expected:
            np.testing.assert_array_equal(np.concatenate([part[step][key] for part in parts]), expected[key])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "batch_size", "shards"),
    selection.cases(
        [(kind, *sizes) for kind in SOURCES for sizes in [(10, 1), (12, 3), (97, 1), (128, 2)]],
        lambda kind, batch_size, shards: kind == "array" or (kind, batch_size) == ("tfrecord", 10),
        lambda kind, batch_size, shards: (
            pytest.mark.slow if (kind, batch_size) in (("folder", 97), ("tfrecord", 12)) else selection.EXHAUSTIVE
        ),
    ),
    indirect=["source"],
)
def test_evaluation_has_every_example_once(source, batch_size, shards):
    pp = "decode(channels=1)|resize(4)|value_range(-1, 1)"
    parts = [
        list(data.eval_batches(source, pp, batch_size, shard_index=i, num_shards=shards).as_numpy_iterator())
        for i in range(shards)
    ]
    assert {len(part) for part in parts} == {-(-PRIME // batch_size)}  # workers stay in step
    seen, correct, total = [], 0.0, 0.0
    for batch in itertools.chain(*parts):
        assert len(batch["image"]) == batch_size // shards
        mask = batch["valid"]
        assert not batch["image"][mask == 0].any() and set(mask) <= {0.0, 1.0}
        seen += [number for number, keep in zip(numbers(batch), mask, strict=True) if keep]
        # A classifier that is right on the even labels.
        correct += float(((batch["label"] % 2 == 0) * mask).sum())
        total += float(mask.sum())
    assert sorted(seen) == list(range(PRIME))
    assert total == PRIME
    assert correct / total == sum(i % 10 % 2 == 0 for i in range(PRIME)) / PRIME


def test_evaluation_keeps_the_order_of_the_source():
    batches = data.eval_batches(numbered(), "resize(4)", 10)
    assert [number for batch in batches.as_numpy_iterator() for number in numbers(batch)][:PRIME] == list(range(PRIME))
    assert int(batches.cardinality()) == 10


def test_augmentation_differs_between_epochs_and_rows():
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8, 1)
    one = ArraySource("one", "train", image, np.zeros(1, np.int32), list("abcdefghij"))
    batch = train(one, 64, 1, "random_crop(4)")[0]
    assert len({image.tobytes() for image in batch["image"]}) > 15  # of 25 positions


def test_float_images_and_one_hot_labels_are_batched():
    batch = train(numbered(), 5, 1, "resize(4)|value_range(-1, 1)|resize(2)|onehot(10)")[0]
    assert batch["image"].dtype == np.float32 and batch["image"].shape == (5, 2, 2, 1)
    assert batch["label"].shape == (5, 10) and batch["label"].sum() == 5


def test_multi_label_vectors_are_batched(tmp_path):
    labels = np.eye(4, dtype=np.float32)[np.arange(12) % 4]
    labels[:, 3] = 1
    np.savez(tmp_path / "a.npz", images=np.zeros((12, 4, 4), np.uint8), labels=labels.astype(int))
    source = data.open_source(f"npz:{tmp_path}/a.npz", "all")
    batch = next(iter(data.train_batches(source, "resize(4)", 12)))
    assert batch["label"].shape == (12, 4) and batch["label"].dtype == tf.float32
    np.testing.assert_array_equal(np.sort(batch["label"].numpy(), 0), np.sort(labels, 0))


@pytest.mark.slow
@pytest.mark.parametrize("source", selection.cases(SOURCES, ("array",)), indirect=True)
def test_batches_are_static(source):
    spec = data.train_batches(source, "decode|resize(4)", 8, num_shards=2, mixup=1.0).element_spec
    assert {key: value.shape.as_list() for key, value in spec.items()} == {
        "image": [4, 4, 4, 3],
        "label": [4],
        "mix": [4],
    }
    spec = data.eval_batches(source, "decode|resize(4)", 8, num_shards=2).element_spec
    assert all(value.shape.is_fully_defined() for value in spec.values())


@pytest.mark.slow
def test_tuples_are_scaled_for_fit():
    pp, source = "value_range(-1, 1)", data.open_source("digits")
    (batch,) = data.train_batches(source, pp, 32).take(1)
    ((images, labels),) = data.train_batches(source, pp, 32, as_tuples=True).take(1)
    assert images.dtype == tf.float32
    np.testing.assert_allclose(images, batch["image"].numpy() / 127.5 - 1, atol=1e-6)
    np.testing.assert_array_equal(labels, batch["label"])


@pytest.mark.slow
def test_tuples_of_an_evaluation_have_every_example_once():
    batches = data.eval_batches(numbered(), "value_range(0, 255)", 20, as_tuples=True)
    numbers = [int(number) for images, _ in batches for number in images[:, 0, 0, 0]]
    assert numbers == list(range(PRIME))


@pytest.mark.slow
def test_tuples_fit_a_model():
    source = data.open_source("digits")
    model = VisionTransformer(4, 16, 1, 2, 16, image_size=8, channels=1, classes=10)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    pp = "value_range(-1, 1)"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*preprocess_input")
        history = model.fit(
            data.train_batches(source, pp, 32, as_tuples=True),
            steps_per_epoch=2,
            validation_data=data.eval_batches(data.open_source("digits", "test[:50]"), pp, 32, as_tuples=True),
            verbose=0,
        )
    assert np.isfinite(history.history["val_loss"]).all()
    with pytest.raises(ValueError, match=r"keys \['image', 'label'\].*as_tuples=True"):
        model.fit(data.train_batches(source, pp, 32), steps_per_epoch=1)


@pytest.mark.slow
@pytest.mark.parametrize(("shard", "sizes"), [(0, [4, 4, 4]), (1, [4, 4])])
def test_tuples_of_an_evaluation_are_counted(shard, sizes):
    """Keras warns of data that run out when it does not know the number of batches."""
    batches = data.eval_batches(numbered(20), "resize(4)", 8, shard_index=shard, num_shards=2, as_tuples=True)
    assert [len(images) for images, _ in batches] == sizes and batches.cardinality() == len(sizes)


def test_tf_distribute_does_not_shard_the_batches_again():
    options = data.train_batches(numbered(), "resize(4)", 8).options()
    assert options.experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
    assert options.deterministic


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_every_epoch_is_a_different_permutation(size):
    epochs = []
    for epoch in range(4):
        index = tf.range(size, dtype=tf.int64)
        order = seeds.permute(index, tf.fill([size], tf.constant(epoch, tf.int64)), seeds.key(0, "order"), size)
        assert sorted(order.numpy().tolist()) == list(range(size))
        epochs.append(tuple(order.numpy().tolist()))
    if size > 10:
        assert len(set(epochs)) == 4


@pytest.mark.slow
def test_permutations_are_uniform():
    """Each example is at each position about equally often."""
    size, count = 8, 2000
    epochs = tf.repeat(tf.range(count, dtype=tf.int64), size)
    index = tf.tile(tf.range(size, dtype=tf.int64), [count])
    order = seeds.permute(index, epochs, seeds.key(3, "order"), size).numpy().reshape(count, size)
    counts = np.stack([np.bincount(order[:, place], minlength=size) for place in range(size)])
    # Expected 250 each, with a standard deviation below 16; 5 of them are allowed.
    assert np.abs(counts - count / size).max() < 80


def test_seed_keys_are_stable():
    """Resumed runs depend on them, so they must not change between versions."""
    assert seeds.key(0, "order") == 3278857439845718984
    assert len({seeds.key(seed, use, place) for seed in range(3) for use in "ab" for place in range(3)}) == 18


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: data.train_batches(s, "resize(4)", 10, num_shards=3), ["multiple of `num_shards`=3", "9 or 12"]),
        (lambda s: data.train_batches(s, "resize(4)", 0), ["batch_size"]),
        (lambda s: data.train_batches(s, "resize(4)", 8, shard_index=2, num_shards=2), ["shard_index", "2"]),
        (lambda s: data.train_batches(s, "resize_small(4)|keep('image')", 8), ["'image' and 'label' must remain"]),
        (lambda s: data.train_batches(s, "inception_crop()", 8), ["one fixed size", "resize(224)"]),
        (lambda s: data.train_batches(s, "resize(4)", 8, mixup=-1), ["mixup=-1"]),
        (lambda s: data.train_batches(s, "resize(4)", 8, on_bad_image="ignore"), ["'error', 'skip'", "'ignore'"]),
        (lambda s: data.eval_batches(s, "resize(4)|flip_lr", 8), ["must not be random"]),
    ],
)
def test_wrong_arguments_are_refused(call, words):
    with pytest.raises(ValueError) as error:
        call(numbered())
    for word in words:
        assert word in str(error.value)
