"""Running of programs as subprocesses."""

import os
import re
import subprocess
from collections.abc import Callable, Sequence

from keras_vit.util import file_io

_SECONDS_BETWEEN_LOOKS = 0.5
_ADVICE = "--verbosity=1 shows"  # in the line after an error


def run(command: Sequence[str], output: str, should_stop: Callable[[], object]) -> int:
    """Run a program, append its output to a file, and return its exit code.

    The program receives SIGTERM when `should_stop()` returns True.
    """
    file_io.make_directory(os.path.dirname(output))
    with open(output, "ab") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    stopping = False
    try:
        while True:
            try:
                return process.wait(_SECONDS_BETWEEN_LOOKS)
            except subprocess.TimeoutExpired:
                if not stopping and should_stop():
                    stopping = True
                    process.terminate()
    finally:  # after a second Ctrl-C, or an error of `should_stop`
        process.kill()
        process.wait()


def last_line(path: str) -> str:
    """Return the last line of a program's output without the advice after an error; empty if there is no output."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip() and _ADVICE not in line]
    return re.sub(r"^(error: |[IWEF]\d{4} \S+ +\d+ \S+\] )", "", lines[-1]) if lines else ""
