"""Names of tensors and weights, and the content of tensors, with expected values by hand."""

import dataclasses
import types

import numpy as np
import pytest

from keras_vit import zoo
from keras_vit.checkpoints import (
    CheckpointError,
    LoadReport,
    architecture,
    load,
    match,
    position_grid,
    recognition,
    report,
    rules,
)
from keras_vit.checkpoints.families import _torch, google
from keras_vit.models import VIT

RULES = [
    rules.rule("block{stage+1}/unit{unit+1:02d}/w", "stage{stage}/unit{unit}/w"),
    rules.rule("head", "head/kernel"),
]


def test_block_numbers_begin_at_the_first_number_of_the_project():
    names = ["block1/unit01/w", "block3/unit12/w", "head"]
    bindings, left_over = rules.bind_stored(RULES, names)
    assert [binding.variables[0] for binding in bindings] == ["stage0/unit0/w", "stage2/unit11/w", "head/kernel"]
    assert left_over == []
    back, left_over = rules.bind_variables(RULES, [binding.variables[0] for binding in bindings])
    assert [binding.stored[0] for binding in back] == names and left_over == []


@pytest.mark.parametrize("name", ["block0/unit01/w", "block1/unit00/w", "block01/unit01/w", "block1/unit1/w", "heads"])
def test_names_with_other_block_numbers_are_not_matched(name):
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
def test_weights_are_finite(values, finite):
    assert match._is_finite(values) == finite


def test_stated_sizes_are_positive_integers_or_pairs():
    good = {5: (5, 5), (2, 3): (2, 3), 2**31: (2**31, 2**31)}
    assert {value: position_grid.stated_size(value) for value in good} == good
    for value in (0, -1, True, 5.0, "5", None, [5], [1, 2, 3], [1, 0], 2**31 + 1):
        assert position_grid.stated_size(value) is None


def test_square_numbers_are_recognized():
    found = [count for count in range(-1, 18) if position_grid.is_square(count)]
    assert found == [1, 4, 9, 16]
    large = (10**17 + 1) ** 2  # whose root is not a floating-point number
    assert position_grid.is_square(large) and not position_grid.is_square(large + 1)


@pytest.mark.parametrize(
    ("count", "grids", "known"),
    [
        (17, [(4, 4)], True),
        (16, [(4, 4)], False),
        (18, [(4, 4)], None),
        (15, [(4, 4)], None),
        (17, [], None),
        (7, [(3, 4), (2, 3), (7, 1)], True),  # the first grid that fits decides
        (7, [(3, 4), (7, 1), (2, 3)], False),
    ],
)
def test_length_of_the_table_shows_whether_the_class_token_has_an_entry(count, grids, known):
    assert position_grid.has_slots(count, 1, grids) is known


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "equal"),
    [
        ("layer_scale", 1.0, 1e-5, True),  # the values are weights
        ("layer_scale", None, 1e-5, False),
        ("resnet_numerics", "reference", "timm", True),  # without a ResNet
        ("pool_padding", "edge", "infinity", True),
        ("pool_padding", "edge", "zeros", False),
        ("qkv_bias", [True, False, True], (True, False, True), True),
    ],
)
def test_arguments_with_the_same_effect_are_equal(name, ours, theirs, equal):
    found = [match._comparable(name, {name: value, "resnet_blocks": None}) for value in (ours, theirs)]
    assert (found[0] == found[1]) == equal
    of_hybrids = [
        match._comparable("resnet_numerics", {"resnet_numerics": value, "resnet_blocks": (1,)})
        for value in ("reference", "timm")
    ]
    assert of_hybrids == ["reference", "timm"]


@pytest.mark.parametrize(
    ("model", "name", "size", "is_other"),
    [
        ("ViT-B/16", "augreg", 384, False),
        ("ViT-B/16", "augreg", None, False),
        ("ViT-B/16", "augreg", 224, True),
        ("ViT-B/16", "augreg", (384, 512), True),
        ("ViT-B/14", "dinov2", 224, False),  # without a head, there is no published accuracy
    ],
)
def test_resolution_other_than_the_published_resolution_is_logged(model, name, size, is_other, caplog):
    built = types.SimpleNamespace(config=types.SimpleNamespace(image_size=size))
    load._compare_resolution(built, types.SimpleNamespace(entry=zoo.find(model, name)))
    expected = f"augreg of ViT-B/16 was last trained on images of 384 pixels, but the model takes {size}."
    assert [message.partition(" Its")[0] for message in caplog.messages] == [expected] * is_other


def test_blocks_are_numbered_without_gaps():
    assert architecture._count(set(range(1024)), 0, "block", "x") == 1024
    assert architecture._count({1, 2, 3}, 1, "stage", "x") == 3 and architecture._count(set(), 0, "block", "x") == 0
    with pytest.raises(CheckpointError, match="x must have at most 1024 of each: block. Received: 1025"):
        architecture._count(set(range(1025)), 0, "block", "x")
    for numbers, first, missing in (({0, 2}, 0, 1), ({1, 2}, 0, 0), ({2, 3, 4}, 1, 1)):
        with pytest.raises(CheckpointError, match=f"it has unit {max(numbers)}, but no unit {missing}"):
            architecture._count(numbers, first, "unit", "x")


@pytest.mark.parametrize(
    ("width", "heads"), [(192, 3), (768, 12), (1024, 16), (1152, 16), (1280, 16), (1408, 16), (1536, 24), (1664, 16)]
)
def test_attention_heads_follow_from_published_widths(width, heads):
    """Table 1 of arXiv:2010.11929, table 2 of arXiv:2106.04560 (g and G), and So400m of arXiv:2305.13035."""
    source = types.SimpleNamespace(metadata={}, path="x")
    assert _torch._guess_heads(source, width, None)[0] == heads
    assert _torch._guess_heads(source, width, 8)[0] == 8  # the model takes precedence
    source.metadata = {"arguments": {"num_heads": 4}}
    assert _torch._guess_heads(source, width, 8)[0] == 4  # and so does the file
    source.metadata = {}
    for other, given in ((100, None), (100, 3), (0, None)):
        with pytest.raises(CheckpointError, match=f"its width of {other}. Pass num_heads="):
            _torch._guess_heads(source, other, given)


def test_a_report_lists_three_names():
    found = LoadReport("google", loaded=["a"] * 5, dropped=["a", "b", "c"], notes=["one", "two", "three", "four"])
    assert str(found).splitlines() == [
        "LoadReport: 5 variables loaded from a google checkpoint",
        *("  reset:    none", "  left out: a, b, c", "  problems: none", "  notes:    one; two; three; 1 more"),
    ]
    assert not found.problems()
    for problem, value in {
        "missing": ["a"],
        "unexpected": ["a"],
        "mismatched": {"a": (1, 2)},
        "differences": {"a": 1},
    }.items():
        found = LoadReport("google", **{problem: value})
        assert found.problems() and f"  problems: 1 {problem}" in str(found)


def test_a_hybrid_is_named_by_its_blocks():
    """The arguments of a file contain lists, and the arguments of a variant contain tuples."""
    arguments = {**dataclasses.asdict(VIT["R50+ViT-B/16"]), "resnet_blocks": [3, 4, 9]}
    assert report._variant(arguments) == "R50+ViT-B/16"
    assert report._variant({**arguments, "resnet_blocks": [3, 4, 6, 3]}) != "R50+ViT-B/16"


@pytest.mark.parametrize("count", [8, 9])
def test_an_unknown_file_lists_eight_names(count):
    source = types.SimpleNamespace(
        path="x.npz", tensors={f"tensor{index}": None for index in range(count)}, config=None
    )
    with pytest.raises(CheckpointError, match=f"Its {count} tensors: tensor0, .*tensor7{' ...' * (count > 8)}$"):
        recognition._recognize(source, recognition.hints_of({}, None, None))


def test_shortest_prefix_is_preferred():
    """Of several models in a Flax file whose prefixes are not usual."""
    names = [f"{prefix}embedding/kernel" for prefix in ("ema/of/net/", "net/", "opt/target/", "params/", "bet/")]
    expected = ["params/", "opt/target/", "bet/", "net/", "ema/of/net/"]
    assert google._find_prefixes(names, google._ANCHOR) == expected


@pytest.mark.parametrize("depth", [architecture.MAX_BLOCKS, architecture.MAX_BLOCKS + 1])
def test_stacks_have_at_most_1024_blocks(depth):
    shapes = {"Transformer/encoderblock/LayerNorm_0/scale": (depth, 8)}
    if depth == architecture.MAX_BLOCKS:
        assert google._stack_depth(types.SimpleNamespace(path="x.npz"), shapes) == depth
    else:
        with pytest.raises(CheckpointError, match=f"at most {architecture.MAX_BLOCKS}"):
            google._stack_depth(types.SimpleNamespace(path="x.npz"), shapes)


def test_long_messages_are_truncated():
    """Forty names of each list are shown, and the first ten have the nearest name of the other list."""
    names = [f"block{number}/kernel" for number in range(41)]
    found = LoadReport("google", missing=names, unexpected=[f"{name}s" for name in names[:40]])
    lines = report.explain(found, types.SimpleNamespace(path="x.npz", arguments={}), {}).splitlines()
    assert lines[0] == "x.npz (google) does not fit the model."
    assert lines[1] == "Variables of the model that are not in the file (41):"
    assert lines[2] == "- block0/kernel; nearest on the other side: block0/kernels"
    assert lines[42] == "Tensors of the file that are not in the model (40):"
    assert sum("; nearest on the other side: " in line for line in lines) == 10 + 10
    assert lines[-1] == "Pass strict=False to load the matching tensors and get this report." and len(lines) == 84
