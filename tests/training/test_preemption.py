"""Requests to stop, also after another library has installed its own handler."""

import ctypes
import signal

import pytest

from keras_vit.training.errors import Interrupted
from keras_vit.training.preemption import StopRequest


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
