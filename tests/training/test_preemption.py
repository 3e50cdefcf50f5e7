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

from keras_vit.runs.errors import Interrupted
from keras_vit.util import progress, signals
from keras_vit.util.signals import StopRequest
from tests import forked

NUMBERS = (signal.SIGTERM, signal.SIGINT)


def replace_handler():
    """Ignore SIGTERM below Python, as the handlers of TensorFlow and JAX do in a cluster."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    libc.signal(signal.SIGTERM, ctypes.c_void_p(1))  # SIG_IGN


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("restart_code", "advice"), [(None, ""), (75, " Nothing is lost")])
def test_signal_before_the_first_step_ends_the_program(number, restart_code, advice):
    with (
        pytest.raises(signals.Stopped, match=rf"by {signals.name_of(number)}\.{advice}") as caught,
        StopRequest(restart_code) as stop,
    ):
        replace_handler()
        stop.listen()
        signal.raise_signal(number)
    assert caught.value.exit_code == (restart_code or 128 + number)


@pytest.mark.parametrize("number", NUMBERS)
def test_signal_during_training_is_deferred(number):
    before = [signal.getsignal(number) for number in NUMBERS]
    with StopRequest() as stop:
        replace_handler()
        stop.defer()
        assert not stop
        signal.raise_signal(number)
        assert stop and stop.signal == signals.name_of(number)
    assert [signal.getsignal(number) for number in NUMBERS] == before


@pytest.mark.parametrize("number", NUMBERS)
def test_second_signal_ends_the_training_immediately(number, monkeypatch):
    """`timeout` and some schedulers send the first one several times: the step is still finished and saved."""
    with pytest.raises(signals.Stopped) as caught, StopRequest() as stop:
        stop.defer()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(number)
        monkeypatch.setattr(signals, "AGAIN", 0.0)
        signal.raise_signal(number)
    assert caught.value.exit_code == 128 + number


@pytest.mark.parametrize("early", [False, True])
def test_signal_interrupts_an_evaluation_before_saving(early):
    with StopRequest() as stop:
        stop.defer()
        if early:
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(signals.Stopped), stop.interruptible():
            assert not early
            signal.raise_signal(signal.SIGTERM)
        assert stop
        with pytest.raises(signals.Stopped):
            stop.release()


@pytest.mark.slow
@pytest.mark.parametrize("deferred", [False, True])
def test_signal_is_logged_while_a_step_runs(deferred, caplog):
    """Nothing was logged before the end of the step, minutes later."""
    caught = pytest.raises(signals.Stopped) if not deferred else contextlib.nullcontext()
    with caplog.at_level(logging.WARNING, logger="absl"), caught, StopRequest() as stop:
        if deferred:
            stop.defer("the step that runs", seconds=101)
        timer = threading.Timer(0.05, signal.pthread_kill, [threading.main_thread().ident, signal.SIGTERM])
        timer.start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)
        finished = time.time()
    (record,) = [record for record in caplog.records if "SIGTERM received" in record.getMessage()]
    assert ("saving after the step that runs (about 1:4" in record.getMessage()) == deferred
    if deferred:
        assert record.created < finished
    assert signal.set_wakeup_fd(-1) == -1


def test_log_message_states_the_progress_of_work_of_unknown_length():
    stop = StopRequest()
    stop.defer()
    with progress.Progress("Validation", 10, unit="batches"):
        assert "(Validation, 0:00, 10 batches)" in stop._answer(time.monotonic())


def test_log_message_names_what_is_saved():
    """Without an estimate of at most a second, and in an evaluation, which is interrupted."""
    stop, again = StopRequest(), "A second signal ends the program without saving"
    assert stop._answer(time.monotonic()) == "stopping"
    stop.defer("the step", seconds=1.0)
    assert stop._answer(time.monotonic()) == f"saving after the step. {again}"
    with stop.interruptible():
        assert stop._answer(time.monotonic()) == f"saving the state. {again}"
    assert stop._answer(time.monotonic()) == f"saving after the step. {again}"


def be_busy(path, number):
    """In a separate process: compute for minutes, before the first step or, with two signals, in a later one."""
    signals.PATIENCE = signals.AGAIN = signals.AT_ONCE = 0.1
    with StopRequest(Interrupted.exit_code) as stop:
        if number == 2:
            stop.defer()
        path.touch()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "exit_code"), [(1, 75), (2, 143)])
def test_second_signal_ends_the_process_during_a_computation(tmp_path, number, exit_code):
    """The process finished the step and ran another one."""
    process = forked.start(be_busy, tmp_path / "busy", number)
    while not (tmp_path / "busy").exists():
        time.sleep(0.01)
    for _ in range(number):
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.2)
    process.join(60)
    assert process.exitcode == exit_code
