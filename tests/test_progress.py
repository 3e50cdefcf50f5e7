"""Lines of progress fit the terminal."""

import pytest

from keras_vit import _progress

DETAILS = ["loss 1.2345", "accuracy 0.500", "1:02 left", "100 images/s"]


@pytest.mark.parametrize("columns", [10, 20, 39, 40, 60, 79, 100, 200])
def test_a_line_is_no_wider_than_the_terminal(columns):
    line = _progress.fit("step 50/100", 0.5, DETAILS, columns)
    assert len(line) <= columns
    assert line.startswith("step 50/10")
    assert ("[" in line) == (columns >= 72)


def test_what_matters_most_stays():
    assert _progress.fit("step 50/100", 0.5, DETAILS, 39) == "step 50/100 loss 1.2345, accuracy 0.500"
    assert _progress.fit("step 50/100", 0.5, DETAILS, 30) == "step 50/100 loss 1.2345"
    assert _progress.fit("a.npz", None, ["3 MiB"], 39) == "a.npz 3 MiB"


def test_nothing_is_drawn_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(_progress, "_EVERY", 0.0)
    bar = _progress.Progress("Work", 4)
    bar.add(2)
    bar.close()
    assert capsys.readouterr().err == ""
