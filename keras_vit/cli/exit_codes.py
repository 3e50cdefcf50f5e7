"""Exit codes of programs, and the messages that explain errors to the user."""

import errno
import os
import select
import sys
import traceback
from typing import Any, NoReturn

from absl import flags, logging

FAILED = 1
WRONG_USAGE = 2
UNREADABLE_IMAGE = 66
CANNOT_WRITE = 74
LOST_WORKER = 75
INTERRUPTED = 130
READER_LEFT = 141  # the same code as after SIGPIPE
WHERE_FROM = "(--verbosity=1 shows where this came from)"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WRONG_PATH = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)


def report(error: BaseException) -> int:
    """Print the error that ended a program and return its exit code."""
    if isinstance(error, SystemExit):
        return _code_of_exit(error)
    if isinstance(error, BrokenPipeError) and _reader_has_left():
        return READER_LEFT
    exit_code, message = explain(error)
    if message is None:
        traceback.print_exception(error)
    else:
        logging.error("%s", message, exc_info=error if flags.FLAGS.is_parsed() and logging.vlog_is_on(1) else None)
        if exit_code in (FAILED, WRONG_USAGE):
            logging.error(WHERE_FROM)
    return exit_code


def end(exit_code: int) -> NoReturn:
    """End the process at once, without waiting for its threads."""
    logging.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def explain(error: BaseException) -> tuple[int, str | None]:
    """Return the exit code of an error and a message for the user, or None if only a traceback helps."""
    lost_worker = _imported("runs.errors", "lost_worker")
    if lost_worker and (lost := lost_worker(error)):
        return LOST_WORKER, lost
    if isinstance(error, _imported("runs.errors", "TrainingError")):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return getattr(error, "exit_code", INTERRUPTED), str(error) or "Stopped by Ctrl-C."
    if isinstance(error, OSError):
        return _explain_os_error(error)
    explain_image = _imported("data", "explain")
    unreadable = explain_image(error) if explain_image and isinstance(error, Exception) else None
    if unreadable or isinstance(error, _imported("data", "UnreadableImageError")):
        advice = "Repair or remove it, or skip such images where the program can."
        return UNREADABLE_IMAGE, str(error) if getattr(error, "advice", "") else f"{unreadable or error}. {advice}"
    if isinstance(error, ModuleNotFoundError) and error.name == "tensorflow":
        return WRONG_USAGE, "TensorFlow is missing: pip install 'keras-vision-transformers[cpu]' (or [gpu], [tpu])."
    if isinstance(error, (ValueError, ImportError, _imported("training.distribute", "DevicesMissing"))):
        return WRONG_USAGE, str(error)
    if isinstance(error, MemoryError):
        return FAILED, f"The machine has too little memory for this. {error}".rstrip()
    return _explain_by_name(error)


def _imported(module: str, name: str) -> Any:
    """Return an object of a module, or `()` if the module was not imported and so cannot have raised the error."""
    return getattr(sys.modules.get(f"keras_vit.{module}"), name, ())


def _reader_has_left() -> bool:
    """Return whether the reader of standard output, such as `head`, has ended. If so, discard further output."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False  # another pipe or a socket is broken
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _code_of_exit(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return FAILED


def _explain_os_error(error: OSError) -> tuple[int, str]:
    if error.errno in _NO_SPACE:
        return CANNOT_WRITE, f"{error}. Free some space, then start the same command again."
    wrong_path = error.errno == errno.EROFS or isinstance(error, _WRONG_PATH)
    return WRONG_USAGE if wrong_path else FAILED, str(error)


def _explain_by_name(error: BaseException) -> tuple[int, str | None]:
    """Explain errors of TensorFlow and JAX by the names of their classes, without importing these packages."""
    names = {kind.__name__ for kind in type(error).__mro__}
    text = str(getattr(error, "message", error)).strip().split("\n", 1)[0]
    if "ResourceExhaustedError" in names:
        if any(words in text for words in ("No space left", "File too large", "quota exceeded")):
            return CANNOT_WRITE, f"{text}. Free some space, then start the same command again."
        return FAILED, f"The device has too little memory for this: {text}"
    if "OperationalError" in names and "disk" in text:  # of SQLite
        return CANNOT_WRITE, f"{text}. Free some space for temporary files, then start the same command again."
    return (WRONG_USAGE, text) if names & {"PermissionDeniedError", "NotFoundError"} else (FAILED, None)
