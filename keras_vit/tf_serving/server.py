"""Development server: TF Serving's REST API on Starlette and uvicorn.

It serves one version of one model, without batching and without access control. The number of connections, the size of
a request and the number of values in it are bounded, so that a mistake of a client does not take the memory of the
machine. It does not withstand an attacker.

References:
    https://www.tensorflow.org/tfx/serving/api_rest
"""

import asyncio
import concurrent.futures
import dataclasses
import json
import socket
from collections.abc import Callable
from typing import Any

from absl import logging

from keras_vit.tf_serving.client import RequestError
from keras_vit.tf_serving.served_model import ServedModel

WORKERS = 8  # requests that are computed at a time


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of a server.

    Attributes:
        body_bytes: Largest body of a request.
        json_values: Values in a body, lists and objects included: each takes more memory than its characters.
        connections: Connections at a time; requests on more of them get status 503.
        grace_seconds: Time that requests under way get after SIGTERM.
    """

    body_bytes: int = 64 << 20
    json_values: int = 2 << 20
    connections: int = 100
    grace_seconds: float = 30.0


class RestServer:
    """REST server of one model, which listens from its construction on."""

    def __init__(self, model: ServedModel, host: str = "localhost", port: int = 0, limits: Limits | None = None):
        uvicorn = _import_uvicorn()
        limits = limits or Limits()
        self._socket = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
        # Connections inherit it. Without it, small responses on a kept-alive connection wait 40 ms for an ACK.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            make_app(model, limits),
            http="h11",
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            limit_concurrency=limits.connections + 1,  # uvicorn refuses the request that reaches the number
            timeout_graceful_shutdown=max(1, round(limits.grace_seconds)),
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Respond to requests until SIGTERM, Ctrl-C or `stop`, then finish those under way within the grace period."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Let `run` return, from another thread."""
        self._server.should_exit = True


def make_app(model: ServedModel, limits: Limits) -> Callable:
    """Return the ASGI application that serves a model."""
    _import_uvicorn()
    from starlette import applications, exceptions, requests, responses, routing

    workers = concurrent.futures.ThreadPoolExecutor(WORKERS, thread_name_prefix="predict")

    def endpoint(method: Callable) -> Callable:
        async def respond(request: requests.Request) -> responses.Response:
            """Run a method of the model in a worker thread, with every error as JSON."""
            try:
                _check_target(model, **request.path_params)
                body = (await _read_body(request, limits),) if request.method == "POST" else ()
                work = asyncio.get_running_loop().run_in_executor(workers, _rendered, method, *body)
                return responses.Response(await work, 200, media_type="application/json")
            except RequestError as error:
                return failed(error.status, str(error))
            except requests.ClientDisconnect:
                return failed(400, "The client closed the connection.")
            except Exception as error:  # the other clients must get their responses
                logging.exception("%s %s failed", request.method, request.url.path)
                return failed(500, f"{type(error).__name__}: {str(error)[:1000]}".split("\n", 1)[0])

        return respond

    def failed(status: int, message: str) -> responses.Response:
        return responses.Response(json.dumps({"error": message}), status, media_type="application/json")

    def predict(body: bytes) -> dict[str, Any]:
        return model.predict(_parse_json(body, limits))

    async def malformed(request: requests.Request, _: Exception) -> responses.Response:
        return failed(404, f"Malformed request: {request.method} {request.url.path[:200]}")

    routes = []
    for prefix in ("/v1/models/{name}/versions/{version}", "/v1/models/{name}"):
        routes += [
            routing.Route(f"{prefix}:predict", endpoint(predict), methods=["POST"]),
            routing.Route(f"{prefix}/metadata", endpoint(model.metadata), methods=["GET"]),
            routing.Route(prefix, endpoint(model.status), methods=["GET"]),
        ]
    return applications.Starlette(routes=routes, exception_handlers={exceptions.HTTPException: malformed})


def _check_target(model: ServedModel, name: str, version: str | None = None) -> None:
    if name != model.name or version not in (None, str(model.version)):
        wanted = name if version is None else f"{name} version {version[:100]}"
        served = f"{model.name} version {model.version}"
        raise RequestError(f"Servable not found for request: {wanted}. Served: {served}.", 404)


async def _read_body(request: Any, limits: Limits) -> bytes:
    """Read the body of a request within the limits.

    A body that is too large is read to its end and dropped: a client that is still sending would not see the response.
    """
    body, total = bytearray(), 0
    async for chunk in request.stream():
        total += len(chunk)
        if total <= limits.body_bytes:
            body += chunk
    if total > limits.body_bytes:
        raise RequestError(f"A request may have at most {limits.body_bytes} bytes. Received: {total}.", 413)
    return bytes(body)


def _parse_json(body: bytes, limits: Limits) -> object:
    if sum(map(body.count, (b"[", b"{", b","))) > limits.json_values:
        raise RequestError(
            f"The JSON of a request may hold at most {limits.json_values} values. Send encoded images, each of which "
            "is a single value, or fewer of them.",
            413,
        )
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        hint = 'Expected JSON such as {"instances": [{"b64": "..."}]}'
        raise RequestError(f"JSON Parse error: {error}. {hint}.") from error


def _rendered(method: Callable, *arguments: object) -> bytes:
    return json.dumps(method(*arguments), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _import_uvicorn() -> Any:
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        extra = "keras-vision-transformers[serving]"
        raise ImportError(f"The development server needs Starlette and uvicorn: pip install '{extra}'") from error
    return uvicorn
