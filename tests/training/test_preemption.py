"""Requests to stop, also after another library has installed its own handler."""

import contextlib
import ctypes
import hashlib
import logging
import os
import signal
import threading
import time

import pytest

from keras_vit.training import preemption
from keras_vit.training.errors import Interrupted
from keras_vit.training.preemption import StopRequest
from tests import forked


def replace_handler():
    """Ignore SIGTERM below Python, as the handlers of TensorFlow and JAX do in a cluster."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    libc.signal(signal.SIGTERM, ctypes.c_void_p(1))  # SIG_IGN


def test_a_replaced_handler_before_the_first_step():
    with pytest.raises(Interrupted, match="SIGTERM before the first step"), StopRequest() as stop:
        replace_handler()
        stop.listen()
        signal.raise_signal(signal.SIGTERM)


def test_a_replaced_handler_during_the_training():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        replace_handler()
        stop.defer()
        assert not stop
        signal.raise_signal(signal.SIGTERM)
        assert stop and stop.signal == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) == before


def test_only_a_second_ctrl_c_ends_the_training_at_once():
    """Schedulers send SIGTERM several times: the step is still finished and saved."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with StopRequest() as stop:
        stop.defer()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_the_first_ctrl_c_is_only_noted():
    with StopRequest() as stop:
        stop.defer()
        signal.raise_signal(signal.SIGINT)
        assert stop.signal == "SIGINT"


@pytest.mark.parametrize("deferred", [False, True])
def test_a_signal_is_answered_while_a_step_is_computed(deferred, caplog):
    """Nothing was logged before the end of the step, minutes later."""
    caught = pytest.raises(Interrupted) if not deferred else contextlib.nullcontext()
    with caplog.at_level(logging.WARNING, logger="absl"), caught, StopRequest() as stop:
        if deferred:
            stop.defer()
        timer = threading.Timer(0.05, signal.pthread_kill, [threading.main_thread().ident, signal.SIGTERM])
        timer.start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)
        finished = time.time()
    (record,) = [record for record in caplog.records if "SIGTERM received" in record.getMessage()]
    assert ("saving after the step" in record.getMessage()) == deferred
    if deferred:
        assert record.created < finished
    assert signal.set_wakeup_fd(-1) == -1


def be_busy(path):
    """In a process of its own: compute before the first step, for minutes."""
    preemption.PATIENCE = 0.1
    with StopRequest():
        path.touch()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)


@pytest.mark.slow
def test_before_the_first_step_the_process_ends_whatever_it_computes(tmp_path):
    """It went on until the step was done, and made another one."""
    process = forked.start(be_busy, tmp_path / "busy")
    while not (tmp_path / "busy").exists():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == 75
