"""The exit code and the message of each error, whatever threads are running."""

import errno
import os
import signal
import sqlite3
import subprocess
import sys

import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.cli import exit_codes
from keras_vit.data.errors import bad_image
from keras_vit.runs import errors
from keras_vit.training import distribute
from keras_vit.util import signals
from tests.training.small_runs import ROOT

# Like a program, it imports TensorFlow, which takes seconds, only where `main` needs it.
FAILS = """
__file__ = "train/fails.py"
import sys, threading, time
from absl import flags
from keras_vit import cli

def main(argv):
    threading.Thread(target=time.sleep, args=(10**6,)).start()  # such as one of an input pipeline
    print("running", flush=True)
    {body}

cli.run(main)
"""


def start(body):
    command = [sys.executable, "-c", FAILS.format(body=body)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, preexec_fn=hear_ctrl_c, **pipes)


def hear_ctrl_c():
    """Undo the setting of background jobs in a shell, which ignore Ctrl-C, as do their child processes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def end(body):
    process = start(body)
    _, error = process.communicate(timeout=300)  # the process did not end
    return process.returncode, error


@pytest.mark.slow
def test_an_unexpected_error_ends_the_process_with_its_traceback():
    code, error = end("import keras_vit.training; {}['missing']")
    assert code == 1
    assert "Traceback" in error and "KeyError: 'missing'" in error


@pytest.mark.slow
def test_closed_output_pipe_ends_the_process_silently():
    process = start("time.sleep(1)\n    while True: print('more')")
    assert process.stdout.readline() == "running\n"
    process.stdout.close()
    assert process.wait(timeout=300) == 141
    assert process.stderr.read() == ""


def test_missing_package_is_reported_in_one_line():
    code, error = end("import tensorflow_dataset")
    assert code == 2
    assert "No module named 'tensorflow_dataset'" in error and "Traceback" not in error


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_process_after_its_cleanup(number, code):
    process = start("try: print('working', flush=True); time.sleep(100)\n    finally: print('cleaned up')")
    assert [process.stdout.readline() for _ in range(2)] == ["running\n", "working\n"]
    process.send_signal(number)
    output, error = process.communicate(timeout=300)
    assert process.returncode == code and output == "cleaned up\n"
    assert f"Stopped by {signals.name_of(number)}." in error and "Traceback" not in error


def test_wrong_flags_exit_before_main_runs():
    done = subprocess.run(
        [sys.executable, "-c", FAILS.format(body="pass"), "--nothing=1"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "nothing" in done.stderr and "Traceback" not in done.stderr


def os_error(number):
    return OSError(number, os.strerror(number), "/some/file")


def caused(error, cause):
    error.__cause__ = cause
    return error


class JaxRuntimeError(RuntimeError):
    """An error of JAX, which the name and the text identify."""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (errors.Diverged("The loss is nan"), 70, "nan"),
        (errors.Interrupted("Stopped"), 75, "Stopped"),
        (errors.CheckpointMismatch("another model"), 2, "another model"),
        (errors.StorageError("disk full"), 74, "disk full"),
        (errors.EvaluatorFailed("knn failed"), 1, "knn failed"),
        (KeyboardInterrupt(), 130, "Ctrl-C"),
        (ValueError("wrong seed"), 2, "wrong seed"),
        (ImportError("pip install it"), 2, "pip install it"),
        (ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow"), 2, "[cpu]"),
        (distribute.DevicesMissing("no TPU"), 2, "no TPU"),
        (FileNotFoundError("no x"), 2, "no x"),
        (os_error(errno.EACCES), 2, "/some/file"),
        (os_error(errno.EROFS), 2, "/some/file"),
        (os_error(errno.EISDIR), 2, "/some/file"),
        (os_error(errno.EEXIST), 2, "/some/file"),
        (os_error(errno.ENOTDIR), 2, "/some/file"),
        (os_error(errno.ENOSPC), 74, "/some/file"),
        (os_error(errno.EDQUOT), 74, "/some/file"),
        (os_error(errno.EFBIG), 74, "/some/file"),
        (os_error(errno.EIO), 1, "/some/file"),
        (sqlite3.OperationalError("database or disk is full"), 74, "disk is full"),
        (sqlite3.OperationalError("no such table: x"), 1, None),
        (MemoryError(), 1, "memory"),
        (tf.errors.ResourceExhaustedError(None, None, "events.v2; No space left on device"), 74, "events.v2"),
        (tf.errors.ResourceExhaustedError(None, None, "events.v2; File too large"), 74, "events.v2"),
        (tf.errors.ResourceExhaustedError(None, None, "events.v2; Disk quota exceeded"), 74, "events.v2"),
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating [4,5]\n\nHint"), 1, "OOM"),
        (tf.errors.PermissionDeniedError(None, None, "/runs/x; Permission denied"), 2, "/runs/x"),
        (tf.errors.NotFoundError(None, None, "data.tfrecord; No such file"), 2, "data.tfrecord"),
        (data.UnreadableImageError("/a/b.jpg", "cut"), 66, "/a/b.jpg"),
        (tf.errors.InvalidArgumentError(None, None, f"[{bad_image('/a/b.jpg', 'cut')}] [[node]]"), 66, "/a/b.jpg"),
        (tf.errors.UnavailableError(None, None, "Collective ops is aborted by: recvmsg\nmore"), 75, "recvmsg"),
        (
            tf.errors.UnavailableError(None, None, "Collective ops is aborted by: unhealthy:\n/task:1\nmore"),
            75,
            "task:1",
        ),
        (
            tf.errors.UnavailableError(
                None, None, "Graph execution error:\n\nDetected at node\nCollective ops is aborted by: refused\nmore"
            ),
            75,
            "refused",
        ),
        (JaxRuntimeError("UNKNOWN: Gloo AllGather failed: [pair.cc:547] Connection closed by peer"), 75, "closed"),
        (ValueError("UNKNOWN: Gloo AllGather failed: Read error: Connection reset by peer"), 75, "reset"),
        (JaxRuntimeError("INTERNAL: NCCL operation failed: ncclRemoteError: more"), 75, "ncclRemoteError"),
        (caused(errors.StorageError("Free some space"), JaxRuntimeError("UNKNOWN: Gloo AllGather failed")), 75, "Gloo"),
        (
            caused(errors.StorageError("Free"), caused(TimeoutError(), JaxRuntimeError("INTERNAL: Barrier failed"))),
            75,
            "Barrier",
        ),
        (caused(errors.StorageError("disk full"), os_error(errno.ENOSPC)), 74, "disk full"),
        (JaxRuntimeError("DEADLINE_EXCEEDED: Barrier timed out. Id: ckpt_9"), 75, "Barrier"),
        (JaxRuntimeError("UNAVAILABLE: Failed to send RPC to coordination service."), 75, "RPC"),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), 1, None),
        (tf.errors.InternalError(None, None, "a mistake"), 1, None),
        (TypeError("a mistake"), 1, None),
        (SystemExit(3), 3, None),
        (SystemExit(), 0, None),
        (SystemExit("a reason"), 1, None),
    ],
)
def test_every_error_has_its_exit_code_and_message(error, code, said, capfd, caplog):
    assert exit_codes.report(error) == code
    printed = capfd.readouterr().err
    if not isinstance(error, SystemExit):
        assert ("Traceback" in printed or type(error).__name__ in printed) == (said is None)
        assert (exit_codes.WHERE_FROM in caplog.messages) == (said is not None and code in (1, 2))
    assert str(error) in printed or not isinstance(error, SystemExit) or not isinstance(error.code, str)
    assert said is None or said in exit_codes.explain(error)[1]
