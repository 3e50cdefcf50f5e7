"""Time limits of several workers: for the start of all workers, and for the steps that they compute together."""

import contextlib
import errno
import hashlib
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

from absl import logging

from keras_vit.runs.errors import Interrupted
from keras_vit.training import distribute
from keras_vit.util.progress import duration

FIRST, EVERY, LIMIT = 30.0, 60.0, 600.0  # seconds before the first report, between reports, and before the end
STEPS = 1800.0  # seconds that a call of several steps may take
_PAUSE = 0.5
_CONNECT, _RESPONSE = 2.0, 10.0  # seconds for a connection, and for a response of a busy machine
_LONGEST = 200  # characters of a message


@contextlib.contextmanager
def joining() -> Iterator[None]:
    """Wait for all workers of TF_CONFIG. Within the block, TensorFlow or JAX connects them.

    TensorFlow itself would wait for an hour without a message, and would block all Python threads. Before that, each
    worker listens on its own network address until every other worker has connected to it and has read its name and its
    job.

    Raises:
        Interrupted: If the port of this worker is not free, or if a worker has not started after ten minutes.
    """
    addresses, index = distribute.check_tf_config()
    if len(addresses) > 1:
        meet(addresses, list(addresses)[index], os.environ.get("SLURM_JOB_ID", ""))
    with _ending(LIMIT, f"The workers did not connect within {duration(LIMIT)}. Start them again."):
        yield


@contextlib.contextmanager
def limited(step: int, seconds: float = STEPS) -> Iterator[None]:
    """End the process with exit code 75 if the steps from `step` on, within the block, take longer than `seconds`.

    TensorFlow and JAX detect workers that ended or are suspended, but wait forever for a worker that reads no data.
    """
    reason = f"The workers did not complete step {step + 1} within {duration(seconds)}"
    with _ending(seconds, f"{reason}: one of them hangs, or reads no data. Start them again."):
        yield


@contextlib.contextmanager
def _ending(seconds: float, reason: str) -> Iterator[None]:
    """End the process with exit code 75 if the block takes longer than `seconds`."""
    timer = threading.Timer(seconds, _end, (reason,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(reason: str) -> None:
    try:  # the reader of the log may be gone
        logging.error("%s", reason)
        logging.flush()
    finally:
        os._exit(Interrupted.exit_code)


def meet(addresses: dict[str, str], own: str, job: str = "") -> None:
    """Wait until this worker has reached all other workers, and they have reached this worker.

    `addresses` are the network addresses of all workers by name, and `own` is the name of this worker. Two jobs with
    the same network addresses differ in `job`.
    """
    job = hashlib.sha256(f"{addresses} {job}".encode()).hexdigest()[:16]
    others = {name: address for name, address in addresses.items() if name != own}
    with _Listener(_split(addresses[own])[1], f"{job} {own}") as listener:
        _await(others, listener, job)


class _Listener(socketserver.ThreadingTCPServer):
    """Listener on the port of this worker, which sends its `message` and records the messages of other workers."""

    daemon_threads = True

    def __init__(self, port: int, message: str):
        super().__init__(("", port), socketserver.BaseRequestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.message = _listen(port), message
        self.received, self.confirmed = set[str](), set[str]()  # messages of workers, and of workers that were reached

    def __enter__(self) -> "_Listener":
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def finish_request(self, request: Any, client_address: object) -> None:
        """Exchange messages with another worker, which then confirms that it has received this worker's message."""
        with contextlib.suppress(OSError):
            message = _exchange(request, self.message)
            if message and request.recv(1):
                self.received.add(message)

    def error(self, address: str, expected: str) -> str:
        """Return the reason why the worker with the `expected` message was not reached, or an empty string."""
        try:
            if expected not in self.confirmed:
                with socket.create_connection(_split(address), timeout=_CONNECT) as connection:
                    if _exchange(connection, self.message) != expected:
                        return "the process that listens there does not take part in this start"
                    connection.sendall(b".")
                self.confirmed.add(expected)
        except OSError as error:
            return error.strerror or str(error)
        return "" if expected in self.received else "it has not reached this worker"


def _exchange(connection: socket.socket, message: str) -> str:
    """Send a message, and return the message of the other side."""
    connection.settimeout(_RESPONSE)
    connection.sendall(f"{message}\n".encode())
    with connection.makefile("rb", buffering=0) as stream:  # without a buffer, the confirmation stays unread
        return stream.readline(_LONGEST).decode(errors="replace").removesuffix("\n")


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


def _await(addresses: dict[str, str], listener: _Listener, job: str) -> None:
    """Wait until the listener has exchanged messages with each worker."""
    started, due = time.monotonic(), FIRST
    while True:
        errors = {name: listener.error(address, f"{job} {name}") for name, address in addresses.items()}
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


def _split(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host.strip("[]"), int(port)  # an IPv6 address is in brackets
