"""Client of TF Serving's REST API, with deadlines and retries."""

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

from keras_vit.tf_serving.errors import RequestError

_MAX_BYTES = 64 << 20  # of a response
_MAX_ERROR_BYTES = 64 << 10
_PLAUSIBLE_BYTES = 64 << 10  # no server refuses fewer for their number: it is busy, or has ended


class Prediction(NamedTuple):
    """Prediction for one image.

    Attributes:
        labels: Class names, best first; empty if the server could not read the image.
        scores: Their probabilities.
        valid: Whether the server could read the image.
    """

    labels: list[str]
    scores: list[float]
    valid: bool


class Client:
    """Client of a model on TF Serving or on the development server, over REST.

    Args:
        url: Address of the server, such as `"http://localhost:8501"`.
        model: Name of the model on the server.
        version: Version of the model; None for the newest.
        timeout: Seconds for each request, from the connection to the last byte of the response, retries included.
        retries: Number of retries while the server is unavailable. Nothing else is retried: a request that was refused
            would be refused again, and one that took too long makes an overloaded server slower.
        backoff: Seconds before the first retry. The pause doubles each time, with some randomness.

    Raises:
        ValueError: If the URL is not one of HTTP.

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
        self.url, self.model, self.version = url.rstrip("/"), model, version
        self.timeout, self.retries, self.backoff = timeout, retries, backoff
        self._address = _parse_url(self.url)

    def predict(self, contents: Sequence[bytes], batch_size: int = 8) -> list[Prediction]:
        """Classify encoded images, in batches.

        Args:
            contents: Contents of image files.
            batch_size: Number of images per request.

        Returns:
            One prediction for each image, in order.

        Raises:
            ConnectionError: If the server stays unavailable.
            TimeoutError: If a request takes too long.
            RequestError: If the server refuses a request, or its response does not fit the images.
        """
        predictions = []
        for start in range(0, len(contents), batch_size):
            batch = contents[start : start + batch_size]
            outputs = self.run("serving_default", {"image_bytes": batch})
            labels, scores, valid = self._check(outputs, len(batch))
            for names, values, is_valid in zip(labels.tolist(), scores.tolist(), valid.tolist(), strict=True):
                predictions.append(Prediction(names, values, True) if is_valid else Prediction([], [], False))
        return predictions

    def run(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run any signature.

        Args:
            signature: Name of the signature.
            inputs: Arrays, or lists of bytes, by input name.

        Returns:
            Arrays by output name; those of strings have the dtype `object`.
        """
        columns = {name: _to_json(value) for name, value in inputs.items()}
        body = json.dumps({"signature_name": signature, "inputs": columns}).encode()
        outputs = self._parse(self._send_until_available(body))
        # A single output has no name. It can only be the one that has the name of the signature.
        named = outputs if isinstance(outputs, dict) else {signature: outputs}
        try:
            return {name: _to_array(value) for name, value in named.items()}
        except (ValueError, OverflowError) as error:
            raise self._unexpected(f"{error}") from error

    def close(self) -> None:
        """Do nothing: there is a connection for each request."""

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
        """Return the content of the response to one request, or raise TimeoutError when the time is over."""
        connect, host, port, prefix = self._address
        connection = connect(host, port, timeout=seconds)
        expired = threading.Event()
        timer = threading.Timer(seconds, _shut_down, (connection, expired))
        timer.daemon = True
        timer.start()  # the timeout of a socket begins anew with each byte
        try:
            version = f"/versions/{self.version}" if self.version is not None else ""
            path = f"{prefix}/v1/models/{urllib.parse.quote(self.model)}{version}:predict"
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            most = _MAX_BYTES if response.status == 200 else _MAX_ERROR_BYTES
            content = response.read(most + 1)
        except (OSError, http.client.HTTPException) as error:
            if expired.is_set() or isinstance(error, TimeoutError):
                raise TimeoutError(f"No response within {seconds:.1f} s") from error
            if isinstance(error, BrokenPipeError) and len(body) > _PLAUSIBLE_BYTES:  # it would break again
                message = f"The server closed the connection while it was sent {len(body)} bytes. Send less."
                raise RequestError(message, 413) from error
            if isinstance(error, http.client.HTTPException):
                raise ConnectionError(f"The response broke off: {type(error).__name__}") from error
            raise ConnectionError(str(error)) from error
        finally:
            timer.cancel()
            connection.close()
        if expired.is_set():
            raise TimeoutError(f"No response within {seconds:.1f} s")
        self._check_status(response, content[:most])
        if len(content) > most:
            raise self._unexpected(f"it has more than {most} bytes; send fewer images")
        return content

    def _check_status(self, response: http.client.HTTPResponse, content: bytes) -> None:
        if response.status == 200:
            return
        if 300 <= response.status < 400:
            target = response.headers.get("Location", "")[:200]
            raise RequestError(
                f"The server redirects to {target!r}. Use the address of the API itself as the URL.", 404
            )
        message = _error_message(content) or f"Status {response.status}, without a message."
        if response.status in (502, 503):
            raise ConnectionError(message)
        if response.status in (408, 504):
            raise TimeoutError(message)
        raise RequestError(message, response.status)

    def _parse(self, content: bytes) -> Any:
        try:
            return json.loads(content)["outputs"]
        except (ValueError, TypeError, RecursionError) as error:
            raise self._unexpected(f"it is not a JSON object ({type(error).__name__})") from error
        except KeyError as error:
            raise self._unexpected("it has no 'outputs'") from error

    def _check(self, outputs: Mapping[str, np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return labels, scores and validity of `count` images."""
        names = ("top_k_classes", "top_k_scores", "valid")
        missing = [name for name in names if name not in outputs]
        if missing:
            raise self._unexpected(f"it lacks {missing}. Export the model with keras-vit export")
        labels, scores, valid = (outputs[name] for name in names)
        if valid.shape != (count,) or valid.dtype != bool:
            raise self._unexpected(f"'valid' must hold true or false for each of {count} images")
        if labels.shape != scores.shape or labels.ndim != 2 or len(labels) != count or scores.dtype.kind not in "fi":
            raise self._unexpected(f"'top_k_classes' and 'top_k_scores' must have a row for each of {count} images")
        if not all(isinstance(label, str) for label in labels.flat):
            raise self._unexpected("'top_k_classes' must hold strings")
        return labels, scores.astype(float), valid

    def _unexpected(self, problem: str) -> RequestError:
        return RequestError(
            f"The response of {self.url} is not one of TF Serving's REST API to this request: {problem}."
        )


def _parse_url(url: str) -> tuple[type[http.client.HTTPConnection], str, int | None, str]:
    """Return the class of the connection, the host, the port and the first part of the path."""
    parts = urllib.parse.urlsplit(url)
    classes = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    if parts.scheme not in classes or not parts.hostname or parts.query or parts.username:
        raise ValueError(
            f"Expected the REST address of a server, such as http://localhost:8501. Received: {url!r}. Clients of gRPC "
            "(port 8500) are in the package tensorflow-serving-api."
        )
    return classes[parts.scheme], parts.hostname, parts.port, parts.path


def _shut_down(connection: http.client.HTTPConnection, expired: threading.Event) -> None:
    """End a connection, so that what reads from it or writes to it returns."""
    expired.set()
    try:
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
    except OSError:  # closed already
        return


def _error_message(content: bytes) -> str:
    """Return the error in the response of a server; the whole text if there is none."""
    text = content.decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return text[:1000]


def _to_json(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [{"b64": base64.b64encode(item).decode()} for item in value]
    return np.asarray(value).tolist()


def _to_array(value: Any) -> np.ndarray:
    """Return nested lists of equal lengths as an array. Strings stay objects: NumPy's take the size of the longest."""
    array = np.array(value, object)
    kinds = {type(item) for item in array.flat}
    if list in kinds:
        raise ValueError("it holds lists of different lengths")
    if kinds <= {bool} or kinds <= {int, float}:
        array = np.array(array.tolist())
        if array.dtype == object:
            raise ValueError("it holds integers of more than 64 bits")
    return array
