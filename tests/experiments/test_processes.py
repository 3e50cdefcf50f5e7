"""Programs as subprocesses: the reason of a failure, in their output."""

import pytest

from train.experiments import processes


@pytest.mark.parametrize(
    ("output", "last"),
    [
        (b"", ""),
        (b"\n  \n", ""),
        (b"step 1\nstep 2\n", "step 2"),
        (b"step 1\nerror: no file\nerror: (--verbosity=1 shows where this came from)\n\n", "no file"),
        (b"W1126 12:34:56.789012 140255 main.py:12] odd\n", "odd"),
        (b"I1126 12:34:56.789012   14 main.py:120] 5 of 7] runs\n", "5 of 7] runs"),
        (b"ValueError: error: twice\n", "ValueError: error: twice"),
        (b"caf\xe9\n", "caf\ufffd"),
    ],
)
def test_last_line_of_the_output_is_the_error_message(output, last, tmp_path):
    (tmp_path / "output.txt").write_bytes(output)
    assert processes.last_line(str(tmp_path / "output.txt")) == last


def test_output_is_appended_and_sigterm_is_sent_once(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_SECONDS_BETWEEN_LOOKS", 0.01)
    output = tmp_path / "new" / "output.txt"
    assert processes.run(["echo", "first"], str(output), lambda: False) == 0
    script = "trap 'echo asked' TERM; echo ready; for i in 1 2 3 4; do sleep 0.02; done; exit 3"
    assert processes.run(["sh", "-c", script], str(output), lambda: "ready" in output.read_text()) == 3
    assert output.read_text() == "first\nready\nasked\n"


def test_error_while_waiting_terminates_the_program(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_SECONDS_BETWEEN_LOOKS", 0.01)
    with pytest.raises(KeyError):
        processes.run(["sleep", "60"], str(tmp_path / "output.txt"), lambda: {}["stop"])
