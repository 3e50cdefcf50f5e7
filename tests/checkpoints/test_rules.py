"""Names of tensors and weights, and the content of tensors, with expected values by hand."""

import numpy as np
import pytest

from keras_vit.checkpoints import match, rules

RULES = [
    rules.rule("block{stage+1}/unit{unit+1:02d}/w", "stage{stage}/unit{unit}/w"),
    rules.rule("head", "head/kernel"),
]


def test_numbers_begin_where_the_project_begins():
    names = ["block1/unit01/w", "block3/unit12/w", "head"]
    bindings, left_over = rules.bind_stored(RULES, names)
    assert [binding.variables[0] for binding in bindings] == ["stage0/unit0/w", "stage2/unit11/w", "head/kernel"]
    assert left_over == []
    back, left_over = rules.bind_variables(RULES, [binding.variables[0] for binding in bindings])
    assert [binding.stored[0] for binding in back] == names and left_over == []


@pytest.mark.parametrize("name", ["block0/unit01/w", "block1/unit00/w", "block01/unit01/w", "block1/unit1/w", "heads"])
def test_other_numbers_are_not_names_of_the_project(name):
    """block0 would be the stage before the first one."""
    assert rules.bind_stored(RULES, [name]) == ([], [name])


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        (np.full(4, 3e38, "float32"), True),  # their sum is infinite
        (np.array([3e38, -3e38], "float32"), True),
        (np.array([1.0, np.inf], "float32"), False),
        (np.array([np.inf, -np.inf], "float32"), False),
        (np.array([np.nan, 1.0], "float32"), False),
        (np.full(2, 1e300), False),  # infinite in the model's single precision
        (np.full(2, 6e4, "float16"), True),
    ],
)
def test_numbers_that_a_weight_may_have(values, finite):
    assert match._is_finite(values) == finite
