"""The list of mutants fits the code. `python -m tools.mutants` checks that the tests detect each mutant."""

import pytest

from tools import generate_mutants, mutants


@pytest.mark.parametrize("mutant", mutants.load(), ids=str)
def test_every_listed_mutation_applies(mutant):
    source = (mutants.ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.applied(source) != source
    for test in mutant.tests:
        assert (mutants.ROOT / test.partition("::")[0]).exists()


def test_missing_line_is_reported():
    with pytest.raises(ValueError, match="a/b.py does not have the line 'x = 1'"):
        mutants.Mutant("a/b.py", "x = 1", "x = 2", ()).applied("y = 1\n")


def test_mutation_keeps_the_indentation_and_selects_the_occurrence():
    mutant = mutants.Mutant("a/b.py", "x = 1", "x = 2", (), occurrence=2)
    assert mutant.applied("x = 1\nif y:\n    x = 1\n") == "x = 1\nif y:\n    x = 2\n"


def test_subpackage_of_a_mutation_is_found():
    files = ("keras_vit/optim/losses.py", "keras_vit/util/file_io.py", "train/main.py")
    assert [mutants.Mutant(file, "", "", ()).subpackage for file in files] == ["optim", "util", "train"]


def test_tests_that_fail_without_the_mutation_are_rejected():
    failed = ["tests/a/test_b.py::test_c[1]"]
    within = ("tests/a", "tests/a/test_b.py", "tests/a/test_b.py::test_c", "tests/a/test_b.py::test_c[1]")
    outside = ("tests/a/test_b.py::test_c2", "tests/a/test_b", "tests/b")
    named = [test for test in (*within, *outside) if mutants.fails_without(mutants.Mutant("", "", "", (test,)), failed)]
    assert named == list(within)


@pytest.mark.slow
def test_tests_that_fail_in_the_unchanged_copy_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "copy_checkout", lambda directory: None)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    test = tmp_path / "test_x.py"
    test.write_text("def test_right():\n    pass\n\n\ndef test_wrong():\n    raise ValueError\n")
    found = mutants.failing([str(test)], "not slow", workers=0)
    assert [name.rpartition("/")[2] for name in found] == ["test_x.py::test_wrong"]
    assert mutants.failing([str(test)], "slow", workers=0) == []
    with pytest.raises(RuntimeError, match="pytest ended with"):
        mutants.failing([str(test)], "not (", workers=0)


def test_generated_mutation_changes_one_line():
    before = "def f(x: int | None):\n    y = x + 1\n    return y\n"
    assert generate_mutants.one_line(before, before.replace("+", "-")) == (1, "y = x + 1", "y = x - 1")
    assert generate_mutants.one_line(before, before) is None
    assert generate_mutants.one_line(before, before.replace("    return y\n", "")) is None
    assert generate_mutants.annotated_lines("import a\n" + before) == {1, 2}


def test_list_of_mutations_round_trips(tmp_path):
    listed = [mutants.Mutant("a/b.py", 'x = "1"', "x = 'ü'", ("tests/a",), 2)]
    (tmp_path / "list.toml").write_text(generate_mutants.to_toml(listed), encoding="utf-8")
    assert mutants.load(tmp_path / "list.toml") == listed
