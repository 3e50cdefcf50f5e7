"""Development server: TF Serving's REST API on Starlette and uvicorn.

It serves the newest version of one model, without batching and without access control. Everything that a client decides
is bounded: connections and requests at a time, the size of a body, the number of values in it, the memory of all bodies
together, the time that a request may take, and the time that stopping may take.

References:
    https://www.tensorflow.org/tfx/serving/api_rest
"""

import asyncio
import concurrent.futures
import dataclasses
import json
import re
import socket
import threading
from collections.abc import Callable
from typing import Any

from absl import logging

from keras_vit.tf_serving.client import RequestError
from keras_vit.tf_serving.connections import bounded_protocol
from keras_vit.tf_serving.served_model import ServedModel


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of a server.

    Attributes:
        body_bytes: Largest body of a request.
        buffered_bytes: Bodies of all requests together.
        json_values: Values in a body, lists and objects included: each takes more memory than its characters.
        connections: Connections at a time; at most half of the files that the process may open. More are closed.
        requests: Requests at a time, waiting ones included.
        workers: Requests that are computed at a time.
        read_seconds: Time that the head of a request may take to arrive, and its body again.
        answer_seconds: Time that its answer may take.
        grace_seconds: Time that requests under way get after SIGTERM.
    """

    body_bytes: int = 64 << 20
    buffered_bytes: int = 256 << 20
    json_values: int = 2 << 20
    connections: int = 1000
    requests: int = 512
    workers: int = 8
    read_seconds: float = 30.0
    answer_seconds: float = 30.0
    grace_seconds: float = 30.0


class RestServer:
    """REST server of one model, which listens from its construction on."""

    def __init__(self, model: ServedModel, host: str = "localhost", port: int = 0, limits: Limits | None = None):
        uvicorn = _import_uvicorn()
        self.model = model
        self.limits = limits or Limits()
        self._socket = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
        # Connections inherit it. Without it, small answers on a kept-alive connection wait 40 ms for the client's ACK.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            make_app(model, self.limits),
            http=bounded_protocol(
                uvicorn.protocols.http.h11_impl.H11Protocol,
                self.limits.connections,
                self.limits.read_seconds,
                _error(_too_late(self.limits)),
            ),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            timeout_graceful_shutdown=max(1, round(self.limits.grace_seconds)),
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Answer requests until SIGTERM, Ctrl-C or `stop`, then finish those under way within the grace period."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Let `run` return, from another thread."""
        self._server.should_exit = True


def make_app(model: ServedModel, limits: Limits) -> Callable:
    """Return the ASGI application that serves a model."""
    _import_uvicorn()
    from starlette import applications, exceptions, requests, responses, routing

    workers = concurrent.futures.ThreadPoolExecutor(limits.workers, thread_name_prefix="predict")
    held = _Held()

    async def answer(request: requests.Request, method: Callable, *arguments: object) -> responses.Response:
        """Run a method of the model in a worker thread, with every error as JSON."""
        status = 200
        held.requests += 1
        try:
            if held.requests > limits.requests:
                raise RequestError("The server has too many requests under way.", 503)
            version = _parse_version(request.path_params.get("version"))
            body = await read_body(request) if request.method == "POST" else None
            arguments = (body,) if body is not None else ()
            work = workers.submit(_rendered, method, request.path_params["name"], version, *arguments)
            # A thread that computes cannot be stopped. It holds its body until it ends, which may be after a timeout.
            size = len(body or b"")
            work.add_done_callback(lambda _: held.give(size))
            try:
                content = await asyncio.wait_for(asyncio.wrap_future(work), limits.answer_seconds)
            except TimeoutError as error:
                raise RequestError(f"No answer within {limits.answer_seconds} s.", 504) from error
        except RequestError as error:
            status, content = error.status, _error(str(error))
        except requests.ClientDisconnect:
            status, content = 400, _error("The client closed the connection.")
        except Exception as error:  # a client must get an answer, and the others theirs
            logging.exception("%s %s failed", request.method, request.url.path)
            status, content = 500, _error(f"{type(error).__name__}: {str(error)[:1000]}".split("\n", 1)[0])
        finally:
            held.requests -= 1
        headers = {"Connection": "close"} if status in (408, 413, 503) else None
        return responses.Response(content, status, headers, "application/json")

    async def read_body(request: requests.Request) -> bytes:
        """Read a body within the limits. The caller gives its bytes back.

        One that is too large is read to its end and dropped: a client that is still sending would not see the answer.
        """
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or len(declared) > 15 or int(declared) > 8 * limits.body_bytes:
            raise RequestError(_too_large(limits, declared[:30]), 413)
        body = bytearray()
        refused, total = None, 0
        try:
            async with asyncio.timeout(limits.read_seconds):
                async for chunk in request.stream():
                    total += len(chunk)
                    if total > limits.body_bytes:
                        refused = refused or RequestError(_too_large(limits, f"at least {total}"), 413)
                    elif not refused and not held.take(len(chunk), limits.buffered_bytes):
                        refused = RequestError("The server has too many requests under way.", 503)
                    if not refused:
                        body += chunk
                    elif body:
                        held.give(len(body))
                        body.clear()
            if refused:
                raise refused
        except BaseException as error:
            held.give(len(body))
            if isinstance(error, TimeoutError):
                raise RequestError(_too_late(limits), 408) from error
            raise
        return bytes(body)

    def predict(name: str, version: int | None, body: bytes) -> dict[str, Any]:
        return model.predict(name, version, _parse_json(body, limits))

    def endpoint(method: Callable) -> Callable:
        async def call(request: requests.Request) -> responses.Response:
            return await answer(request, method)

        return call

    async def malformed(request: requests.Request, _: Exception) -> responses.Response:
        message = f"Malformed request: {request.method} {request.url.path[:200]}"
        return responses.Response(_error(message), 404, media_type="application/json")

    routes = []
    for prefix in ("/v1/models/{name}/versions/{version}", "/v1/models/{name}"):
        routes += [
            routing.Route(f"{prefix}:predict", endpoint(predict), methods=["POST"]),
            routing.Route(f"{prefix}/metadata", endpoint(model.metadata), methods=["GET"]),
            routing.Route(prefix, endpoint(model.status), methods=["GET"]),
        ]
    return applications.Starlette(routes=routes, exception_handlers={exceptions.HTTPException: malformed})


def _parse_version(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,18}", text):
        raise RequestError(f"A version is a number. Received: {text[:100]!r}.", 404)
    return int(text)


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


def _error(message: str) -> bytes:
    return _rendered(dict, [("error", message)])


def _too_large(limits: Limits, received: str) -> str:
    return f"A request may have at most {limits.body_bytes} bytes. Received: {received}."


def _too_late(limits: Limits) -> str:
    return f"The request did not arrive within {limits.read_seconds} s."


class _Held:
    """Requests under way, and the bytes of their bodies, which threads give back."""

    def __init__(self) -> None:
        self.requests, self._bytes, self._lock = 0, 0, threading.Lock()

    def take(self, count: int, limit: int) -> bool:
        with self._lock:
            fits = self._bytes + count <= limit
            self._bytes += count if fits else 0
        return fits

    def give(self, count: int) -> None:
        with self._lock:
            self._bytes -= count


def _import_uvicorn() -> Any:
    try:
        import starlette  # noqa: F401
        import uvicorn.protocols.http.h11_impl
    except ImportError as error:
        extra = "keras-vision-transformers[serving]"
        raise ImportError(f"The development server needs Starlette and uvicorn: pip install '{extra}'") from error
    return uvicorn
