"""Client of TF Serving over gRPC or REST, with deadlines and retries."""

import base64
import http.client
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_vit.tf_serving import grpc_transport, messages, tensors
from keras_vit.tf_serving.messages import RequestError


class Prediction(NamedTuple):
    """Answer for one image.

    Attributes:
        labels: Class names, best first; empty if the server could not read the image.
        scores: Their probabilities.
        valid: Whether the server could read the image.
    """

    labels: list[str]
    scores: list[float]
    valid: bool


class Client:
    """Client of a model on TF Serving, or on the development server over REST.

    Args:
        url: `"host:8500"` for gRPC, `"http://host:8501"` for REST.
        model: Name of the model on the server.
        version: Version of the model; None for the newest.
        timeout: Seconds for each request, retries included.
        retries: Number of retries while the server is unavailable. Nothing else is retried: a request that was refused
            would be refused again, and one that took too long makes an overloaded server slower.
        backoff: Seconds before the first retry. The pause doubles each time, with some randomness.

    Raises:
        ValueError: If the URL is neither.

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
        self.model, self.version = model, version
        self.timeout, self.retries, self.backoff = timeout, retries, backoff
        self._rest = url.rstrip("/") if url.startswith(("http://", "https://")) else None
        if self._rest is None and ("/" in url or ":" not in url):
            raise ValueError(f"Expected host:8500 (gRPC) or http://host:8501 (REST). Received: {url!r}.")
        self._channel = None if self._rest else grpc_transport.open_channel(url)

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
            RequestError: If the server refuses a request.
        """
        predictions = []
        for start in range(0, len(contents), batch_size):
            outputs = self.run("serving_default", {"image_bytes": contents[start : start + batch_size]})
            rows = zip(outputs["top_k_classes"], outputs["top_k_scores"], outputs["valid"], strict=True)
            for labels, scores, valid in rows:
                names = [label.decode() if isinstance(label, bytes) else label for label in labels]
                predictions.append(
                    Prediction(names if valid else [], [*map(float, scores)] if valid else [], bool(valid))
                )
        return predictions

    def run(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run any signature.

        Args:
            signature: Name of the signature.
            inputs: Arrays, or lists of bytes, by input name.

        Returns:
            Arrays by output name.
        """
        deadline = time.monotonic() + self.timeout
        for attempt in range(self.retries + 1):
            try:
                remaining = deadline - time.monotonic()
                send = self._run_rest if self._rest else self._run_grpc
                return send(signature, inputs, max(remaining, 1e-3))
            except ConnectionError:
                pause = self.backoff * 2**attempt * random.uniform(0.5, 1.5)
                if attempt == self.retries or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close the connection."""
        if self._channel:
            self._channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_grpc(self, signature: str, inputs: Mapping[str, Any], timeout: float) -> dict[str, np.ndarray]:
        arrays = {name: np.array(value, object) if _is_binary(value) else value for name, value in inputs.items()}
        request = messages.predict_request(self.model, signature, arrays, self.version)
        response = grpc_transport.predict(self._channel, request, timeout)
        return {name: tensors.decode(content) for name, content in response.outputs.items()}

    def _run_rest(self, signature: str, inputs: Mapping[str, Any], timeout: float) -> dict[str, np.ndarray]:
        columns = {name: _to_json(value) for name, value in inputs.items()}
        version = f"/versions/{self.version}" if self.version is not None else ""
        body = json.dumps({"signature_name": signature, "inputs": columns}).encode()
        request = urllib.request.Request(
            f"{self._rest}/v1/models/{self.model}{version}:predict", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                outputs = json.loads(response.read())["outputs"]
        except urllib.error.HTTPError as error:
            message = _error_message(error.read())
            if error.code in (502, 503):
                raise ConnectionError(message) from error
            if error.code in (408, 504):
                raise TimeoutError(message) from error
            raise RequestError(message, error.code) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise TimeoutError(f"No answer within {timeout:.1f} s") from error
            if isinstance(error.reason, BrokenPipeError):  # sent again it would break again
                message = f"The server closed the connection while it was sent {len(body)} bytes. Send less."
                raise RequestError(message, 413) from error
            raise ConnectionError(str(error.reason)) from error
        except http.client.HTTPException as error:
            raise ConnectionError(f"The answer broke off: {type(error).__name__}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise RequestError(f"Expected an answer of TF Serving's REST API at {self._rest}: {error}") from error
        # A single output has no name. It can only be the one that has the name of the signature.
        outputs = outputs if isinstance(outputs, dict) else {signature: outputs}
        return {name: np.array(value) for name, value in outputs.items()}


def _error_message(body: bytes) -> str:
    """Return the error in the answer of a server; the whole text if it has none."""
    text = body.decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text[:1000]


def _is_binary(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], bytes)


def _to_json(value: Any) -> Any:
    if _is_binary(value):
        return [{"b64": base64.b64encode(item).decode()} for item in value]
    return np.asarray(value).tolist()
