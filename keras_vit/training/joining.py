"""Time limits of several workers: for the start of all workers, and for the steps that they compute together."""

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator

import keras
from absl import logging

from keras_vit.runs.errors import Interrupted
from keras_vit.training import distribute
from keras_vit.util.progress import duration

FIRST, EVERY, LIMIT = 30.0, 60.0, 600.0  # seconds before the first report, between reports, and before the end
STEPS = 1800.0  # seconds that a call of several steps may take
_PAUSE = 0.5


@contextlib.contextmanager
def joining() -> Iterator[None]:
    """Wait for all workers of TF_CONFIG. Within the block, TensorFlow or JAX connects them.

    TensorFlow itself would wait for an hour without a message, and would block all Python threads. A worker counts as
    started once it listens on its address. This process listens on its own address until TensorFlow or JAX takes over;
    JAX listens only in the first worker.

    Raises:
        Interrupted: If the port of this worker is not free, or if a worker has not started after ten minutes.
    """
    addresses, index = distribute.check_tf_config()
    if len(addresses) == 1:
        yield
        return
    own = addresses.pop(list(addresses)[index])
    with _listen(_split(own)[1]) as server:
        _await(addresses)
        if index == 0 or keras.backend.backend() == "tensorflow":
            server.close()
        yield


@contextlib.contextmanager
def limited(step: int, seconds: float = STEPS) -> Iterator[None]:
    """End the process with exit code 75 if the steps from `step` on, within the block, take longer than `seconds`.

    TensorFlow and JAX detect workers that ended or are suspended, but wait forever for a worker that reads no data.
    """
    timer = threading.Timer(seconds, _end, (step, seconds))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(step: int, seconds: float) -> None:
    try:  # the reader of the log may be gone
        text = "The workers did not complete step %d within %s: one of them hangs, or reads no data. Start them again."
        logging.error(text, step + 1, duration(seconds))
        logging.flush()
    finally:
        os._exit(Interrupted.exit_code)


def _listen(port: int) -> socket.socket:
    """Listen on a port, for IPv4 and, if the system has it, also for IPv6."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=both)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise Interrupted(  # a restart helps after an earlier start of this worker has ended
            f"The port of this worker in TF_CONFIG must be free. Received: {port}, on which another process listens. "
            "End that process, or change the port in TF_CONFIG of all workers, then start all workers again."
        ) from error


def _await(addresses: dict[str, str]) -> None:
    """Wait until a connection to each address has succeeded."""
    started, due = time.monotonic(), FIRST
    while True:
        errors = {name: _error(address) for name, address in addresses.items()}
        addresses = {name: addresses[name] for name, error in errors.items() if error}
        if not addresses:
            return
        waited = time.monotonic() - started
        missing = ", ".join(f"{name} at {address} ({errors[name]})" for name, address in addresses.items())
        if waited > LIMIT:
            raise Interrupted(
                f"Workers of TF_CONFIG did not start within {duration(waited)}: {missing}. Start all workers again."
            )
        if waited > due:
            due = waited + EVERY
            logging.warning("Waiting for workers of TF_CONFIG for %s. Not reached: %s", duration(waited), missing)
        time.sleep(_PAUSE)


def _error(address: str) -> str:
    """Return the reason why a connection to an address fails, or an empty string if it succeeds."""
    try:
        socket.create_connection(_split(address), timeout=2).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _split(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host.strip("[]"), int(port)  # an IPv6 address is in brackets
