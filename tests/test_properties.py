"""Properties for all inputs: inverses, invariants, and files that other programs read."""

import contextlib
import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from keras_vit import recipe as recipes
from keras_vit.checkpoints.formats import npz, open_source
from keras_vit.checkpoints.formats import safetensors as own_safetensors
from keras_vit.checkpoints.formats.tensors import TensorInfo
from keras_vit.data import splits
from keras_vit.layers.interpolation import METHODS, interpolation_matrix
from keras_vit.util import literal_calls, progress
from keras_vit.util.values import Values

# The same examples in each run: a failure can be repeated.
few = settings(max_examples=40, deadline=None, derandomize=True, database=None)
sizes = st.integers(1, 5_000)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=20)
dtypes = st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8])
bits = dtypes.flatmap(lambda dtype: st.lists(st.integers(0, 4), max_size=3).map(lambda shape: (dtype, tuple(shape))))
tensors = st.dictionaries(names, bits, min_size=1, max_size=4)


def filled(described):
    """Arrays of these types and shapes, whose bytes all differ from those beside them."""
    found = {}
    for number, (name, (dtype, shape)) in enumerate(described.items()):
        array = np.arange(number, number + np.prod(shape, dtype=int) * np.dtype(dtype).itemsize).astype(np.uint8) % 100
        found[name] = array.view(dtype).reshape(shape)
    return found


def same(left, right):
    assert sorted(left) == sorted(right)
    for name, array in left.items():
        assert (array.shape, array.tobytes()) == (right[name].shape, right[name].tobytes()), name


def read_all(path):
    with contextlib.closing(open_source(str(path))) as source:
        return {name: np.asarray(source.read(name)) for name in source.tensors}


@pytest.mark.slow
@few
@given(sizes, st.integers(0, 100))
def test_two_splits_at_a_percentage_are_the_whole(size, percent):
    found = []
    for text in (f"train[:{percent}%]", f"train[{percent}%:]"):
        try:
            found += [(part.start, part.stop) for part in splits.parse(text, {"train": size})]
        except ValueError as error:  # one of them is empty
            assert "selects no example" in str(error)
    assert found[0][0] == 0 and found[-1][1] == size
    assert len(found) == 1 or found[0][1] == found[1][0] == pytest.approx(size * percent / 100, abs=0.5)


@few
@given(sizes, st.integers(-6_000, 6_000), st.integers(-6_000, 6_000))
def test_a_split_selects_as_a_slice_of_a_list_does(size, start, stop):
    expected = range(size)[start:stop]
    try:
        (part,) = splits.parse(f"a[{start}:{stop}]", {"a": size})
    except ValueError:
        assert not expected
    else:
        assert range(part.start, part.stop) == expected


@few
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.floats(0, 0.9), st.randoms(use_true_random=False))
def test_a_hold_out_divides_every_class_whatever_the_order_is(labels, fraction, random):
    keys = [f"{index}.png" for index in range(len(labels))]
    found = splits.split_indices(keys, np.array(labels), fraction)
    train, test = (set(found.get(name, np.array([], int)).tolist()) for name in ("train", "test"))
    assert train | test == set(range(len(labels))) and not train & test
    for label in set(labels):
        members = {index for index, value in enumerate(labels) if value == label}
        wanted = len(members) * fraction
        low = 1 if fraction and len(members) > 1 else 0
        assert len(members & test) == pytest.approx(min(max(wanted, low), max(len(members) - 1, 0)), abs=0.5)
    order = list(range(len(labels)))
    random.shuffle(order)
    mixed = splits.split_indices([keys[index] for index in order], np.array(labels)[order], fraction)
    assert {order[index] for index in mixed.get("test", [])} == test


@pytest.mark.slow
@few
@given(tensors)
def test_written_safetensors_are_read_by_the_safetensors_library(tmp_path_factory, described):
    found, path = filled(described), tmp_path_factory.mktemp("a") / "x.safetensors"
    infos = {name: TensorInfo(array.shape, array.dtype) for name, array in found.items()}
    own_safetensors.write_safetensors(str(path), infos, found.__getitem__, {"a": 1})
    same(safetensors.numpy.load_file(path), found)
    same(read_all(path), found)
    assert (8 + int.from_bytes(path.read_bytes()[:8], "little")) % 8 == 0  # as its specification asks for


@pytest.mark.slow
@few
@given(tensors)
def test_safetensors_written_by_the_safetensors_library_are_read(tmp_path_factory, described):
    found, path = filled(described), tmp_path_factory.mktemp("a") / "x.safetensors"
    safetensors.numpy.save_file(found, path)
    same(read_all(path), found)


@few
@given(tensors)
def test_written_archives_are_read_by_numpy(tmp_path_factory, described):
    found, path = filled(described), tmp_path_factory.mktemp("a") / "x.npz"
    npz.write_npz(str(path), found, found.__getitem__, {"a": 1})
    same(read_all(path), found)
    with np.load(path) as archive:
        same({name: archive[name] for name in archive.files}, found)


@few
@given(st.sampled_from([method for method in METHODS]), st.integers(1, 40), st.integers(1, 40))
def test_a_resize_keeps_constants_and_commutes_with_a_flip(method, old, new):
    matrix = interpolation_matrix(new, old, method, np)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-6)  # distances are rounded to float32
    if method != "dinov2":  # its coordinates are those of a larger size
        np.testing.assert_allclose(matrix[::-1, ::-1], matrix, atol=1e-5)
        if old == new:
            np.testing.assert_allclose(matrix, np.eye(old), atol=1e-6)


recipe = st.builds(
    recipes.Recipe,
    seed=st.integers(0, 2**31 - 1),
    total_steps=st.integers(1, 10**6),
    task=st.sampled_from(["classification", "mae(mask_ratio=0.5)", "masked_patch(target='pixels')"]),
    evaluators=st.lists(st.sampled_from(["knn", "fewshot(source='digits', every=5)"]), max_size=2).map(tuple),
    data=st.builds(recipes.Data, source=names, batch_size=st.just(8), eval_batch_size=st.none() | st.integers(1, 9)),
    optim=st.builds(
        recipes.Optim,
        learning_rate=st.floats(0, 10),
        weight_decay_mask=st.none() | names,
        schedule=st.builds(recipes.Schedule, boundaries=st.lists(st.integers(1, 9), max_size=3).map(tuple)),
    ),
)


@few
@given(recipe)
def test_a_recipe_survives_a_round_trip_through_json(original):
    assert recipes.from_dict(json.loads(json.dumps(recipes.to_dict(original)))) == original


literals = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
).filter(lambda value: "inf" not in repr(value))  # no literal of Python


@pytest.mark.slow
@few
@given(st.lists(literals, min_size=1, max_size=3), literals)
def test_arguments_are_read_as_they_are_written(values, keyword):
    text = f"a({', '.join(map(repr, values))}, key={keyword!r})|b"
    first, second = literal_calls.parse(text)
    assert (first.name, second.name) == ("a", "b")
    assert first.create(lambda *args, key: (args, key))[0] == (tuple(values), keyword)


numbers = arrays.arrays(np.float32, (3, 2), elements=st.floats(-1e4, 1e4, width=32))
positive = st.floats(1e-2, 1e4)


@few
@given(numbers, st.tuples(positive, positive), st.tuples(positive, positive))
def test_standardized_values_are_restored(found, mean, deviation):
    values = Values(("a", "b"), mean, deviation)
    restored = np.asarray(values.restore(values.standardize(found)))
    # One rounding of the difference and one of the sum: of the larger of both numbers.
    np.testing.assert_allclose(restored, found, atol=4e-7 * max(np.abs(found).max(), *mean), rtol=1e-6)
    assert Values.from_dict(json.loads(json.dumps(values.to_dict()))) == values


@few
@given(st.floats(0, 1e6))
def test_a_duration_counts_up_to_its_seconds(seconds):
    parts = [int(part) for part in progress.duration(seconds).split(":")]
    assert sum(part * 60**power for power, part in enumerate(reversed(parts))) == round(seconds)
    assert all(part < 60 for part in parts[1:])


def test_every_field_of_a_recipe_is_in_its_json():
    names = {field.name for field in dataclasses.fields(recipes.Recipe)}
    assert set(recipes.to_dict(recipes.Recipe())) == names
