"""Programs in processes that are forked from one with TensorFlow: their output, their exit code and signals."""

import os
import pathlib
import signal

import pytest

from tests import forked

ROOT = pathlib.Path(__file__).parents[1]


def begin(module, *arguments):
    return forked.Program(ROOT, module, arguments, {**os.environ, "COLUMNS": "80"})


@pytest.mark.slow
def test_forked_process_returns_output_exit_code_and_signal():
    wrong = begin("calendar", "x")
    output, _ = wrong.communicate()
    assert wrong.returncode == 2 and "invalid int value: 'x'" in output
    text = begin("-c", "import sys; print(sys.argv); sys.exit(3)", "a")
    assert text.communicate()[0] == "['-c', 'a']\n" and text.returncode == 3
    endless = begin("http.server", "0")
    assert endless.poll() is None
    endless.send_signal(signal.SIGTERM)
    endless.communicate()
    assert endless.returncode == endless.poll() == -signal.SIGTERM
