"""Client for TF Serving's REST API, with a deadline and retries."""

import base64
import http.client
import json
import random
import socket
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from keras_vit.inference import masks
from keras_vit.outputs import KINDS, Output
from keras_vit.util.progress import track

__all__ = ["Client", "RequestError", "ServedPrediction"]

_MAX_BYTES = 64 << 20  # of a response


class RequestError(ValueError):
    """The server rejected a request. `status` is the HTTP status code."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


class ServedPrediction(NamedTuple):
    """Prediction for one image.

    Attributes:
        labels: Names of the classes, largest score first, or names of the values. Empty if the server could not read
            the image.
        scores: Probabilities of the classes, fractions of the mask's pixels, or values in the unit of the data.
        valid: Whether the server could read the image.
        kind: `"probabilities"`, `"values"` or `"mask"`.
        mask: Class of each pixel of the image, `[h, w]`; None for models that do not predict masks.
        error: Why the development server could not read the image. TensorFlow Serving gives no reason.

    Example:
    >>> prediction = ServedPrediction(["cat", "dog"], [0.9, 0.1], valid=True)
    >>> prediction.labels[0], prediction.scores[0]
    ('cat', 0.9)
    """

    labels: list[str]
    scores: list[float]
    valid: bool
    kind: str = "probabilities"
    mask: np.ndarray | None = None
    error: str = ""


class Client:
    """Client for a model on TF Serving or on the development server, over REST.

    Args:
        url: URL of the server, such as `"http://localhost:8501"`.
        model: Name of the model on the server.
        version: Version of the model; None for the newest version.
        timeout: Maximum seconds per request, from the connection to the last byte of the response, including retries.
        retries: Number of retries while the server is unavailable. Other failures are not retried: a rejected request
            would be rejected again, and repeating a slow request would slow an overloaded server further.
        backoff: Seconds before the first retry. The delay doubles with each retry, with some randomness.

    Raises:
        ValueError: If `url` is not an HTTP or HTTPS URL.

    Example:
        with keras_vit.tf_serving.Client("http://localhost:8501", model="digits") as client:
            for prediction in client.predict([open("3.png", "rb").read()]):
                print(prediction.labels[0], prediction.scores[0])
    """

    def __init__(
        self,
        url: str,
        model: str,
        version: int | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        backoff: float = 0.2,
    ):
        self.url, self.timeout, self.retries, self.backoff = url.rstrip("/"), timeout, retries, backoff
        self._parts = urllib.parse.urlsplit(self.url)
        if self._parts.scheme not in ("http", "https") or not self._parts.hostname or self._parts.username:
            raise ValueError(
                f"`url` must be a server's REST API, such as http://localhost:8501. Received: {url!r}. Clients of "
                "gRPC (port 8500) are in the package tensorflow-serving-api."
            )
        versions = "" if version is None else f"/versions/{version}"
        self._path = f"{self._parts.path}/v1/models/{urllib.parse.quote(model)}{versions}:predict"

    def predict(self, contents: Sequence[bytes], batch_size: int = 8) -> list[ServedPrediction]:
        """Predict the classes, values or masks of encoded images, in batches.

        Args:
            contents: Contents of image files.
            batch_size: Number of images per request.

        Returns:
            One prediction for each image, in the order of the images.

        Raises:
            ConnectionError: If the server stays unavailable.
            TimeoutError: If a request takes longer than `timeout`.
            RequestError: If the server rejects a request, or its response does not match the images.
        """
        predictions = []
        for start in track(range(0, len(contents), batch_size), "Predicting", unit="requests"):
            batch = contents[start : start + batch_size]
            found = self.run("serving_default", {"image_bytes": batch})
            kind = next((kind for kind in KINDS if kind.served_entries in found), KINDS[0])
            names = (kind.served_names, kind.served_entries, "valid")
            columns = [found[name].tolist() if name in found else None for name in names]
            columns.append(np.asarray(found.get("errors", [""] * len(batch))).tolist())
            if not all(isinstance(column, list) and len(column) == len(batch) for column in columns):
                raise self._unexpected(f"expected {', '.join(names)} for {len(batch)} images")
            for labels, scores, valid, error in zip(*columns, strict=True):
                blank = ServedPrediction([], [], False, kind.output_name, error=str(error))
                predictions.append(self._prediction(labels, scores, kind) if valid else blank)
        return predictions

    def _prediction(self, labels: list[str], scores: Any, kind: Output) -> ServedPrediction:
        if not kind.has_masks:
            return ServedPrediction(labels, scores, True, kind.output_name)
        try:
            mask = masks.from_png(scores)
            parts = kind.parts(mask, labels)
        except (ValueError, TypeError, IndexError) as error:
            raise self._unexpected(f"its mask cannot be read: {error}") from error
        return ServedPrediction(
            [label for label, _ in parts], [share for _, share in parts], True, kind.output_name, mask
        )

    def run(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run any signature.

        Args:
            signature: Name of the signature.
            inputs: Arrays, or lists of bytes, by input name.

        Returns:
            Arrays by output name, and `errors` from the development server if images are not valid. Arrays of strings
            or bytes have the dtype `object`.
        """
        columns = {name: _to_json(value) for name, value in inputs.items()}
        content = self._send_until_available(json.dumps({"signature_name": signature, "inputs": columns}).encode())
        try:
            response = json.loads(content)
            outputs = response["outputs"]
            # The server omits the name of a single output. This name is the name of the signature.
            named = outputs if isinstance(outputs, dict) else {signature: outputs}
            named |= {"errors": response["errors"]} if "errors" in response else {}
            return {name: _to_array(value) for name, value in named.items()}
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise self._unexpected(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Do nothing, because each request has a separate connection."""

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send_until_available(self, body: bytes) -> bytes:
        deadline = time.monotonic() + self.timeout
        for attempt in range(self.retries + 1):
            try:
                return self._send(body, max(deadline - time.monotonic(), 1e-3))
            except ConnectionError as error:
                pause = self.backoff * 2**attempt * random.uniform(0.5, 1.5)
                if attempt == self.retries or time.monotonic() + pause > deadline:
                    raise
                if not attempt:
                    total = min(self.backoff * (2**self.retries - 1), self.timeout)
                    logging.warning("%s: %s. Waiting for the server, for about %.0f s.", self.url, error, total)
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _send(self, body: bytes, seconds: float) -> bytes:
        """Send one request and return the content of the response, or raise a TimeoutError after `seconds`."""
        secure = self._parts.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = connect(self._parts.hostname or "", self._parts.port, timeout=seconds)
        expired = threading.Event()
        timer = threading.Timer(seconds, _shut_down, (connection, expired))
        timer.daemon = True
        timer.start()  # the timeout of a socket restarts with each byte
        try:
            connection.request("POST", self._path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read(_MAX_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            if expired.is_set() or isinstance(error, TimeoutError):
                raise TimeoutError(f"No response within {seconds:.1f} s") from error
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        finally:
            timer.cancel()
            connection.close()
        if expired.is_set():
            raise TimeoutError(f"No response within {seconds:.1f} s")
        if response.status != 200:
            message = _error_message(content) or f"Status {response.status}, without a message."
            if response.status in (502, 503):
                raise ConnectionError(message)
            raise TimeoutError(message) if response.status == 504 else RequestError(message, response.status)
        if len(content) > _MAX_BYTES:
            raise self._unexpected(f"it has more than {_MAX_BYTES} bytes; send fewer images")
        return content

    def _unexpected(self, problem: str) -> RequestError:
        return RequestError(f"The response of {self.url} does not match TF Serving's REST API: {problem}.")


def _shut_down(connection: http.client.HTTPConnection, expired: threading.Event) -> None:
    """Shut down a connection, so that reads and writes in another thread return."""
    expired.set()
    try:
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
    except OSError:  # closed already
        return


def _error_message(content: bytes) -> str:
    """Return the error message in a response, or the beginning of a response without an error message."""
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return content[:1000].decode("utf-8", "replace")


def _to_json(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [{"b64": base64.b64encode(item).decode()} for item in value]
    return np.asarray(value).tolist()


def _to_array(value: Any) -> np.ndarray:
    """Convert nested lists of equal lengths to an array. Strings are stored as objects, which take less memory."""
    if isinstance(value, list) and value and isinstance(value[0], dict):  # files, one per image
        files = np.empty(len(value), object)
        files[:] = [base64.b64decode(item["b64"], validate=True) for item in value]
        return files
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind == "U" else array
