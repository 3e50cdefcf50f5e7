"""Lines of progress fit the terminal."""

import io

import pytest

from keras_vit import _progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(_progress, "_EVERY", 0.0)


def drawn(terminal):
    return terminal.getvalue().split("\r\033[K")[1:]


def test_a_line_on_a_terminal():
    terminal = Terminal()
    bar = _progress.Progress("Work", 4, stream=terminal)
    bar.add(1)
    bar.add(3)
    bar.close()
    first, last, nothing = drawn(terminal)
    assert first.startswith("Work 1/4, 0:00 left, ") and first.endswith(" images/s")
    assert last.startswith("Work 4/4, ") and nothing == ""


def test_without_a_total():
    terminal = Terminal()
    _progress.Progress("Download", None, unit="MiB", stream=terminal).update(1_200)
    (line,) = drawn(terminal)
    assert line.startswith("Download 1,200 MiB, ") and line.endswith(" MiB/s")


def test_a_line_is_no_wider_than_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    bar = _progress.Progress("step", 200, stream=terminal, log=False)
    bar.update(100, ["loss 1.0000", "accuracy 0.7500", "2:03 left"])
    assert drawn(terminal) == ["step 100/200, loss 1.0000, accuracy 0.7"]


def test_nothing_is_drawn_without_a_terminal(caplog, monkeypatch):
    monkeypatch.setattr(_progress, "_LOG_EVERY", 0.0)
    caplog.set_level("INFO", "absl")
    for log in (False, True):
        pipe = io.StringIO()
        bar = _progress.Progress("Work", 4, stream=pipe, log=log)
        bar.add(2)
        bar.close()
        assert pipe.getvalue() == "" and ("Work 2/4" in caplog.text) == log


def test_durations():
    assert [_progress.duration(seconds) for seconds in (None, 3, 75, 3723)] == ["?", "0:03", "1:15", "1:02:03"]
