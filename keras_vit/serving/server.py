"""A development server: TF Serving's REST paths and gRPC service in Python, without its batching and its speed."""

import contextlib
import http.server
import json
import os
import re
import threading

import tensorflow as tf
from absl import logging

from keras_vit.serving import artefacts, protocol, rest, versions

_PATH = re.compile(r"/v1/models/(?P<name>[^/:]+)(/versions/(?P<version>\d+))?(?P<rest>|/metadata|:predict)")
MOST_BYTES = 64 << 20


class ServedModel:
    """The newest version of a model, replaced when a newer one appears.

    Args:
        name: Its name in requests.
        base: The directory that holds its versions.

    Raises:
        FileNotFoundError: If there is no version.
    """

    def __init__(self, name: str, base: str):
        self.name = name
        self.base = base
        self._lock = threading.Condition()
        self._users = {}  # artefact -> requests that are using it
        self._current = None  # (version, artefact)
        self.reload()
        if self._current is None:
            raise FileNotFoundError(f"Expected a version of the model, as {base}/1. There is none.")

    @property
    def version(self) -> int:
        """The version that is served."""
        return self._current[0]

    def reload(self) -> bool:
        """Loads the newest version if it is another one; requests that are under way finish on the old one.

        Returns:
            Whether it was another one.
        """
        newest = (versions.list_versions(self.base) or [None])[-1]
        if newest is None or (self._current and self._current[0] == newest):
            return False
        artefact = artefacts.SavedModelArtefact(os.path.join(self.base, str(newest)))
        with self._lock:
            previous, self._current = self._current, (newest, artefact)
            self._users[artefact] = 0
            if previous:
                self._lock.wait_for(lambda: not self._users[previous[1]])
                del self._users[previous[1]]
        if previous:
            previous[1].close()
        logging.info("Serving %s version %d", self.name, newest)
        return True

    @contextlib.contextmanager
    def use(self, name: str, version: int | None = None):
        """The artefact for one request, with its version.

        Raises:
            RequestError: If the name or version is not served.
        """
        with self._lock:
            current, artefact = self._current
            if name != self.name or version not in (None, current):
                wanted = name if version is None else f"{name} version {version}"
                served = f"{self.name} version {current}"
                raise rest.RequestError(f"Servable not found for request: {wanted}. Served: {served}.", 404)
            self._users[artefact] += 1
        try:
            yield current, artefact
        finally:
            with self._lock:
                self._users[artefact] -= 1
                self._lock.notify_all()

    def predict(self, name: str, version: int | None, signature: str, inputs_of) -> tuple[int, dict, object]:
        """Answers one request.

        Args:
            name: The model's name in the request.
            version: The version in the request, None for the newest.
            signature: The signature; "" for `serving_default`.
            inputs_of: Takes the signature's inputs and returns arrays by name, and anything else to hand back.

        Returns:
            The version that answered, its outputs by name, and what `inputs_of` handed back.

        Raises:
            RequestError: If the request does not fit.
        """
        signature = signature or "serving_default"
        with self.use(name, version) as (current, artefact):
            if signature not in artefact.signatures:
                names = sorted(artefact.signatures)
                raise rest.RequestError(f"Serving signature key {signature!r} not found. There are: {names}.")
            inputs, extra = inputs_of(artefact.signatures[signature].inputs)
            try:
                return current, artefact.run(signature, inputs), extra
            except (tf.errors.InvalidArgumentError, ValueError) as error:
                raise rest.RequestError(str(error).splitlines()[0]) from error


class RestServer(http.server.ThreadingHTTPServer):
    """The REST half.

    Args:
        model: What to serve.
        address: Host and port; port 0 for any free one.
    """

    daemon_threads = False  # closing waits for the requests that are under way
    request_queue_size = 1024

    def __init__(self, model: ServedModel, address: tuple[str, int]):
        self.model = model
        super().__init__(address, _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30  # an idle connection must not keep the server from stopping for ever

    def do_GET(self):  # noqa: N802  the name that the base class looks for
        """Status and metadata."""
        self._answer("GET")

    def do_POST(self):  # noqa: N802
        """Predictions."""
        self._answer("POST")

    def _answer(self, method):
        try:
            status, content = 200, self._result(method)
        except rest.RequestError as error:
            status, content = error.status, {"error": str(error)}
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def _result(self, method):
        model = self.server.model
        body = self._read_body() if method == "POST" else None
        match = _PATH.fullmatch(self.path.split("?")[0])
        if not match or (method == "POST") != (match["rest"] == ":predict"):
            raise rest.RequestError(f"Malformed request: {method} {self.path}", 404)
        version = int(match["version"]) if match["version"] else None
        if match["rest"] == ":predict":
            signature = body.get("signature_name", "") if isinstance(body, dict) else ""
            _, outputs, rows = model.predict(
                match["name"], version, signature, lambda inputs: rest.parse_predict(body, inputs)
            )
            return rest.format_predict(outputs, rows)
        with model.use(match["name"], version) as (current, artefact):
            if match["rest"] == "/metadata":
                return protocol.metadata_json(model.name, current, artefact.signatures)
            return rest.model_status({current: "AVAILABLE"})

    def _read_body(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise rest.RequestError("The header Content-Length is missing.", 411)
        if int(length) > MOST_BYTES:
            raise rest.RequestError(f"A request may have at most {MOST_BYTES} bytes. Received: {length}.", 413)
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise rest.RequestError(f"JSON Parse error: {error}") from error

    def log_message(self, format, *arguments):  # noqa: A002
        """Requests are logged at verbosity 1."""
        logging.vlog(1, format, *arguments)
