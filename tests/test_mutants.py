"""The list of mistakes fits the code; `python -m tools.mutants` shows that the tests notice them."""

import pytest

from tools import mutants


@pytest.mark.parametrize("mutant", mutants.load(), ids=str)
def test_a_mistake_can_be_made(mutant):
    source = (mutants.ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.applied(source) != source
    for test in mutant.tests:
        assert (mutants.ROOT / test.partition("::")[0]).exists()


def test_a_line_that_is_gone_is_named():
    with pytest.raises(ValueError, match="a/b.py does not have the line 'x = 1'"):
        mutants.Mutant("a/b.py", "x = 1", "x = 2", ()).applied("y = 1\n")


def test_the_indentation_stays_and_the_occurrence_counts():
    mutant = mutants.Mutant("a/b.py", "x = 1", "x = 2", (), occurrence=2)
    assert mutant.applied("x = 1\nif y:\n    x = 1\n") == "x = 1\nif y:\n    x = 2\n"
