"""Output of the programs. This package logs to the terminal; other packages log only to a file."""

import contextlib
import faulthandler
import io
import logging as standard_logging
import os
import re
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, TextIO

from absl import logging

from keras_vit.util import file_io
from keras_vit.util.progress import Terminal, hide

LOG = "log.txt"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PREFIXES = {standard_logging.WARNING: "warning: ", standard_logging.ERROR: "error: "}
_terminal: TextIO | None = None
_former_output: TextIO | None = None  # kept, because deleting it would close the file of the new output


def begin() -> None:
    """Log messages of this package to the terminal in short lines, and all other output to a file.

    TensorFlow and the converters print from C++ to file descriptor 2. This function redirects the descriptor to a
    temporary file, which `log_to` turns into `log.txt`. Python's standard error and the log lines of this package stay
    on the terminal.
    """
    global _terminal, _former_output
    sys.stderr.flush()
    _terminal = Terminal(os.fdopen(os.dup(2), "wb"), errors="backslashreplace", line_buffering=True)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
    sys.stderr = _terminal
    faulthandler.enable(_terminal)
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may contain bytes that are not UTF-8
        options: dict = {"encoding": sys.stdout.encoding, "line_buffering": sys.stdout.line_buffering}
        _former_output = sys.stdout
        sys.stdout = Terminal(_former_output.buffer, errors="backslashreplace", **options)
    logging.use_absl_handler()
    shown = logging.get_absl_handler().python_handler
    shown.setStream(_terminal)
    shown.setFormatter(_ShortFormatter())
    shown.addFilter(lambda record: is_ours(record.pathname))
    log = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115  for the whole process
    everything = _LogHandler(log)
    everything.setFormatter(logging.PythonFormatter())
    standard_logging.getLogger().addHandler(everything)
    standard_logging.getLogger("httpx").setLevel(standard_logging.WARNING)  # it logs a line for each request
    warnings.showwarning = _warn


def log_to(directory: str, worker: int = 0) -> None:
    """Append the log since the start of the process to `log.txt` in a directory, or to `log-2.txt` for worker 2."""
    if _terminal is None:
        return
    file_io.make_directory(directory)
    size = os.lseek(2, 0, os.SEEK_CUR)
    with open(os.path.join(directory, f"log-{worker}.txt" if worker else LOG), "ab") as file:
        file.write(os.pread(2, size, 0))
        file.flush()
        os.dup2(file.fileno(), 2)


@contextlib.contextmanager
def shown(enabled: bool = True) -> Iterator[None]:
    """Show the log lines of this package in a process that is not one of its programs."""
    if not enabled or _terminal is not None:
        yield
        return
    logger, handler = logging.get_absl_logger(), _ShownHandler()
    level, propagates = logger.level, logger.propagate
    handler.setFormatter(_ShortFormatter())
    handler.addFilter(lambda record: is_ours(record.pathname))
    logger.addHandler(handler)
    logger.setLevel(standard_logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


def terminal() -> Any:
    """Return the standard error for child processes; None to inherit the standard error of this process."""
    return _terminal


def is_ours(path: str) -> bool:
    """Return whether a source file belongs to this package or to the user."""
    if path.startswith(_PACKAGE + os.sep):
        return True
    return not re.search(r"[/\\](site|dist)-packages[/\\]", path) and not path.startswith(sysconfig.get_path("stdlib"))


class _ShownHandler(standard_logging.StreamHandler):
    def emit(self, record: standard_logging.LogRecord) -> None:
        hide()  # the progress line
        super().emit(record)


class _LogHandler(standard_logging.StreamHandler):
    def handleError(self, record: standard_logging.LogRecord) -> None:
        """Ignore errors when writing the log, for example on a full disk."""


class _ShortFormatter(standard_logging.Formatter):
    def format(self, record: standard_logging.LogRecord) -> str:
        return _PREFIXES.get(record.levelno, "") + super().format(record)


def _warn(message: Any, category: type, filename: str, lineno: int, file: Any = None, line: str | None = None) -> None:
    if is_ours(filename) and _terminal is not None:
        _terminal.write(f"warning: {message}\n")
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        with open(2, "w", closefd=False, errors="backslashreplace") as log:
            log.write(text)
