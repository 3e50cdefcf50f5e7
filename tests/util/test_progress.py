"""Progress of long work: lines that fit the terminal, and lines in a log."""

import io
import sys
import types

import pytest

from keras_vit.util import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The time, which the tests move; no thread shows lines meanwhile."""
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(progress.Progress, "_tick", lambda self: None)
    return clock


@pytest.fixture
def logged(caplog):
    caplog.set_level("INFO", "absl")
    return lambda: [record.getMessage() for record in caplog.records]


def drawn(terminal):
    return terminal.getvalue().split("\r\033[K")[1:]


def test_progress_line_is_redrawn_on_a_terminal(clock):
    terminal = Terminal()
    with progress.Progress("Work", 5, stream=terminal) as bar:
        assert drawn(terminal) == ["Work, 0:00, 5 images"]  # before anything is done
        clock.now += 30  # a compiler
        bar._show()
        bar.add(1)
        clock.now += 1
        bar.add(2)
    assert drawn(terminal)[1:] == ["Work, 0:30, 5 images", "Work 3/5, 0:01 left, 2.0 images/s", ""]


def test_a_line_is_drawn_a_few_times_a_second(clock):
    terminal = Terminal()
    with progress.Progress("Work", 100, stream=terminal) as bar:
        for _ in range(100):
            clock.now += 0.01
            bar.add(1)
    assert 5 <= len(drawn(terminal)) <= 7


def test_the_remaining_time_does_not_grow_between_two_units(clock):
    with progress.Progress("Work", 4, stream=Terminal()) as bar:
        for _ in range(2):
            clock.now += 10
            bar.add(1)
        lines = []
        for _ in range(4):
            lines.append(bar.line())
            clock.now += 5
    assert [line.split(", ")[1] for line in lines] == ["0:20 left", "0:15 left", "0:10 left", "0:10 left"]


def test_progress_without_a_total_shows_the_count(clock):
    terminal = Terminal()
    with progress.Progress("Download", unit="MiB", stream=terminal) as bar:
        clock.now += 100
        bar.update(1_200)
    assert drawn(terminal)[1] == "Download 1,200 MiB, 12.0 MiB/s"


def test_progress_may_exceed_the_total(clock):
    """The total of a data set can be an estimate."""
    terminal = Terminal()
    with progress.Progress("Work", 5, stream=terminal) as bar:
        for _ in range(2):
            clock.now += 2
            bar.add(4)
    assert drawn(terminal)[2] == "Work 8/5, 0:00 left, 2.0 images/s"


@pytest.mark.parametrize("enabled", [True, False])
def test_a_notebook_shows_a_line_although_it_is_not_a_terminal(enabled, clock, logged, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    cell = io.StringIO()
    with progress.Progress("Work", enabled=enabled, stream=cell) as bar:
        clock.now += 5
        bar.add(1)
    assert drawn(cell) == (["Work, 0:00", "Work 1 images, 0.2 images/s", ""] if enabled else [])
    assert logged() == []


def test_a_line_is_no_wider_than_the_terminal(monkeypatch, clock):
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    with progress.Progress("step", 200, stream=terminal) as bar:
        clock.now += 1
        bar.update(100, ["loss 1.0000", "accuracy 0.7500", "2:03 left"])
    assert drawn(terminal)[1] == "step 100/200, loss 1.0000, accuracy 0.7"


def test_a_log_gets_a_line_after_two_seconds_and_then_every_fifteen(clock, logged):
    pipe = io.StringIO()
    with progress.Progress("Work", 60, stream=pipe) as bar:
        for _ in range(40):
            clock.now += 1
            bar.add(1)
    assert logged() == [f"Work {done}/60, 0:{60 - done} left, 1.0 images/s" for done in (2, 17, 32)]
    assert pipe.getvalue() == ""


def test_other_log_lines_postpone_the_next_progress_line(clock, logged):
    terminal = Terminal()
    for stream in (io.StringIO(), terminal):
        with progress.Progress("step", 60, unit="steps", stream=stream) as bar:
            for _ in range(40):
                clock.now += 1
                bar.add(1)
                bar.postpone()
    assert logged() == []
    assert len(drawn(terminal)) == 42


def test_short_work_is_not_logged(clock, logged):
    with progress.Progress("Work", 4, stream=io.StringIO()) as bar:
        clock.now += 1.9
        bar.add(4)
    assert logged() == []


def test_only_the_innermost_work_is_shown(clock):
    terminal = Terminal()
    with progress.Progress("Outer", 9, stream=terminal) as outer:
        with progress.Progress("Inner", stream=terminal) as inner:
            clock.now += 1
            outer.add(1)
            inner.update(1)
            assert progress.current() == "Inner 1 images, 1.0 images/s"
        clock.now += 1
        outer.add(1)
    shown = [line.partition(",")[0] for line in drawn(terminal)]
    assert shown == ["Outer", "Inner", "Inner 1 images", "", "Outer 2/9", ""]
    assert progress.current() is None


def test_other_output_replaces_the_progress_line(clock):
    file = io.BytesIO()
    terminal = progress.Terminal(file, write_through=True)
    terminal.isatty = lambda: True
    with progress.Progress("Work", stream=terminal):
        terminal.write("warning: cold\n")
        terminal.write("warning: wet\n")
    assert file.getvalue().decode() == "\r\033[KWork, 0:00\r\033[Kwarning: cold\nwarning: wet\n"


def test_track_yields_all_items_and_shows_progress(clock):
    terminal = Terminal()
    found = []
    for item in progress.track("ab", "Letters", unit="letters", stream=terminal):
        clock.now += 1
        found.append(item)
    assert found == ["a", "b"]
    assert [line.partition(",")[0] for line in drawn(terminal)] == ["Letters", "Letters 1/2", "Letters 2/2", ""]


def test_progress_line_appears_before_the_first_update(monkeypatch):
    """A compiler returns to Python minutes later."""
    monkeypatch.undo()
    monkeypatch.setattr(progress, "_TICK", 0.001)
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    terminal = Terminal()
    with progress.Progress("Compiling", stream=terminal):
        while len(drawn(terminal)) < 3:
            pass
    assert set(drawn(terminal)) == {"Compiling, 0:00", ""}


def test_durations_are_rounded_to_seconds():
    """Rounded to seconds before minutes and hours are counted: never 0:60."""
    found = {seconds: progress.duration(seconds) for seconds in (None, 3, 59.6, 75, 3599.6, 3723)}
    assert list(found.values()) == ["?", "0:03", "1:00", "1:15", "1:00:00", "1:02:03"]
