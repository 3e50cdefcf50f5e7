"""Development server: TF Serving's REST API and a page to try the model, on Starlette and uvicorn.

The server has one version of one model, without batching or access control. A client's mistake cannot exhaust the
machine's memory or block other clients: `Limits` bounds the number of connections, the size of each body and of all
bodies together, the time until a body has arrived, and the number of its values. `served_model` bounds the images in a
request. The server is not secure against attackers.

References:
    https://www.tensorflow.org/tfx/serving/api_rest
"""

import asyncio
import concurrent.futures
import dataclasses
import functools
import json
import re
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from absl import logging

from keras_vit.tf_serving import RequestError
from keras_vit.util import extras

from . import metrics
from .page import Page
from .served_model import ServedModel

WORKERS = 8  # requests computed at a time
_METRICS_PATHS = ("/metrics", "/monitoring/prometheus/metrics")  # the second is the path of TF Serving
_SMALL_BYTES = 1 << 20  # Bodies up to this size are read even if all bodies exceed `bodies_bytes`.
_CLOSING_SECONDS = 1.0  # from SIGTERM until idle connections and incomplete requests are closed


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of a server.

    Attributes:
        body_bytes: Largest body of a request.
        bodies_bytes: Total size of all bodies. If a body of more than 1 MiB exceeds this total, its request gets status
            503.
        body_seconds: Maximum time until a body has arrived.
        json_values: Values in a body, including lists and objects. Each takes more memory than its characters.
        connections: Concurrent connections. An additional connection replaces the connection that has been idle for the
            longest time. If no connection is idle, the requests of the new connection get status 503.
        grace_seconds: Maximum time for finishing running requests after SIGTERM.
    """

    body_bytes: int = 64 << 20
    bodies_bytes: int = 256 << 20
    body_seconds: float = 60.0
    json_values: int = 2 << 20
    connections: int = 100
    grace_seconds: float = 30.0


class RestServer:
    """REST server of one model, which listens as soon as it is constructed."""

    def __init__(self, model: ServedModel, host: str = "localhost", port: int = 0, limits: Limits | None = None):
        with extras.needed("serving", "The development server needs Starlette and uvicorn"):
            import starlette  # noqa: F401
            import uvicorn
        limits = limits or Limits()
        self._socket = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
        # Connections inherit this option. Without it, small responses on an open connection wait 40 ms for an ACK.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._socket.getsockname()[1]
        self._model = model
        config = uvicorn.Config(
            make_app(model, limits, host),
            http=_connection_class(limits),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            limit_concurrency=limits.connections + 1,  # uvicorn rejects the request that reaches this number
            timeout_graceful_shutdown=max(1, round(limits.grace_seconds)),
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Respond to requests until SIGTERM, Ctrl-C or `stop`. Running requests may finish in the grace period."""
        if not self._model.is_warm:
            threading.Thread(target=self._model.warm_up, daemon=True).start()
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Stop `run` from another thread."""
        self._server.should_exit = True


def _connection_class(limits: Limits) -> type:
    """Return uvicorn's HTTP connection class with a bound on the number of connections and a graceful shutdown."""
    from uvicorn.protocols.http import h11_impl

    class Connection(h11_impl.H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.idle_since = self.loop.time()
            others: set[Any] = self.connections - {self}
            if len(others) >= limits.connections:
                idle = filter(Connection.is_idle, others)
                if longest := min(idle, key=lambda other: other.idle_since, default=None):
                    self.connections.remove(longest)
                    longest.transport.abort()

        def is_idle(self) -> bool:
            unread = select.select([self.transport.get_extra_info("socket")], [], [], 0)[0]
            return not unread and (self.cycle is None or self.cycle.response_complete)

        def on_response_complete(self) -> None:
            self.idle_since = self.loop.time()
            super().on_response_complete()

        def shutdown(self) -> None:
            """Close the connection after the next response or a delay, because the client may be sending a request."""
            self.server_state.default_headers[:] = [(b"connection", b"close")]
            self.loop.call_later(_CLOSING_SECONDS, self._end)

        def _end(self) -> None:
            if self.cycle and self.cycle.more_body:
                self.transport.close()
            elif not self.transport.is_closing():
                super().shutdown()

    return Connection


def make_app(model: ServedModel, limits: Limits, host: str) -> Callable:
    """Return the ASGI application that serves a model at `host`, the network address that the server listens on."""
    from starlette import applications, exceptions, requests, responses, routing

    page, counts = Page(model), metrics.Metrics(model.name)
    workers = concurrent.futures.ThreadPoolExecutor(WORKERS, thread_name_prefix="predict")
    free = asyncio.Semaphore(WORKERS)
    bodies: dict[object, bytearray] = {}

    def endpoint(method: Callable | None, is_prediction: bool = False) -> Callable:
        async def respond(request: requests.Request, _: Exception | None = None) -> responses.Response:
            started = time.monotonic()
            response = await computed(method, request)
            if is_prediction:
                counts.record(response.status_code, time.monotonic() - started)
            return response

        return respond

    async def computed(method: Callable | None, request: requests.Request) -> responses.Response:
        """Run a method of the model in a worker thread, and return every error as JSON."""
        body = bodies[request] = bytearray()
        try:
            await _read_body(request, bodies, limits)
            if request.method == "GET" and request.url.path.endswith(":predict"):
                raise RequestError("Predictions need the method POST. Received: GET.", 405)
            if method is None:
                raise RequestError(f"Malformed request: {request.method} {request.url.path[:200]}", 404)
            if request.path_params:
                _check_target(model, **request.path_params)
            await request.is_disconnected()  # lets uvicorn read on and notice a closed connection
            async with free:
                if await request.is_disconnected():
                    raise requests.ClientDisconnect
                content = await asyncio.get_running_loop().run_in_executor(workers, _rendered, method, body)
            return responses.Response(content, 200, media_type="application/json")
        except RequestError as error:
            return failed(error.status, str(error))
        except requests.ClientDisconnect:
            return failed(400, "The client closed the connection.")
        except Exception as error:  # other clients must still get their responses
            logging.exception("%s %s failed", request.method, request.url.path)
            return failed(500, f"{type(error).__name__}: {str(error)[:1000]}".split("\n", 1)[0])
        finally:
            del bodies[request]

    def failed(status: int, message: str) -> responses.Response:
        headers = {"connection": "close"}  # the body may be incomplete
        return responses.Response(json.dumps({"error": message}), status, headers, "application/json")

    routes = _text_routes(model, page, counts)
    routes.append(routing.Route("/page/predict", endpoint(page.predict, is_prediction=True), methods=["POST"]))
    routes.append(routing.Route("/page/explain", endpoint(page.explain), methods=["POST"]))
    for prefix in (f"/v1/models/{{name}}{part}" for part in ("/versions/{version}", "/labels/{label}", "")):
        predict = endpoint(lambda body: model.predict(_parse_json(body, limits)), is_prediction=True)
        routes += [
            routing.Route(f"{prefix}:predict", predict, methods=["POST"]),
            routing.Route(f"{prefix}/metadata", endpoint(lambda _: model.metadata()), methods=["GET"]),
            routing.Route(prefix, endpoint(lambda _: model.status()), methods=["GET"]),
        ]
    app = applications.Starlette(routes=routes, exception_handlers={exceptions.HTTPException: endpoint(None)})
    app.router.redirect_slashes = False  # a redirection would not read the body

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        name = re.sub(r":\d*$", "", requests.Request(scope).headers.get("host", "")).lower()
        message = f"The server has no name {name[:100]!r}. Start it with --host={name[:100]}."
        await (app if _is_own(name, host) else failed(400, message))(scope, receive, send)

    return checked


def _text_routes(model: ServedModel, page: Page, counts: metrics.Metrics) -> list[Any]:
    """Return the routes that need no worker thread: the page, its examples, health, readiness and metrics."""
    from starlette import responses, routing

    def route(path: str, content: Callable[[], str | bytes], media_type: str = "text/plain") -> Any:
        async def respond(_: Any) -> responses.Response:
            status = 503 if path == "/readyz" and not model.is_warm else 200
            return responses.Response(content(), status, page.headers, media_type)

        return routing.Route(path, respond, methods=["GET"])

    return [
        route("/", lambda: page.html, "text/html"),
        route("/healthz", lambda: "ok\n"),
        route("/readyz", lambda: "ready\n" if model.is_warm else "warming up\n"),
        *(
            route(f"/page/examples/{index}", functools.partial(bytes, image), "image/png")  # binds this `image`
            for index, image in enumerate(model.examples.values())
        ),
        *(route(path, counts.render, metrics.MEDIA_TYPE) for path in _METRICS_PATHS),
    ]


def _is_own(name: str, host: str) -> bool:
    """Return whether `name` may be a name of the server that listens on `host`.

    A web page on the internet may direct its own name to this machine, but not a network address or a name without a
    dot. A server on all network addresses of its machine may have any name.
    """
    return host.lower() in ("", "0.0.0.0", "::", name) or bool(re.fullmatch(r"[^.]*|[\d.]+|\[.*\]", name))


def _check_target(model: ServedModel, name: str, version: str | None = None, label: str = "stable") -> None:
    if name != model.name or version not in (None, str(model.version)) or label != "stable":
        wanted = name if version is None else f"{name} version {version[:100]}"
        wanted += "" if label == "stable" else f" label {label[:100]}"
        served = f"{model.name} version {model.version}, with the label stable"
        raise RequestError(f"Servable not found for request: {wanted}. Served: {served}.", 404)


async def _read_body(request: Any, bodies: dict[object, bytearray], limits: Limits) -> None:
    """Read the body of a request into `bodies` within the limits.

    The rest of a rejected body is read and dropped, up to four times the limit, so that the client sees the response.
    """
    body, total, refusal = bodies[request], 0, None
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                total += len(chunk)
                body += b"" if refusal else chunk
                if total > limits.body_bytes:
                    refusal = f"A request may have at most {limits.body_bytes} bytes. Received: at least {total}.", 413
                elif len(body) > _SMALL_BYTES and sum(map(len, bodies.values())) > limits.bodies_bytes:
                    refusal = "The server is processing as many large requests as it can. Try again later.", 503
                if refusal:
                    body.clear()
                if total > 4 * limits.body_bytes:
                    break
    except TimeoutError:
        refusal = f"A body must arrive within {limits.body_seconds:g} seconds. Received: {total} bytes of it.", 408
    if refusal:
        raise RequestError(*refusal)


def _parse_json(body: bytearray, limits: Limits) -> object:
    if sum(map(body.count, (b"[", b"{", b","))) > limits.json_values:
        raise RequestError(
            f"The JSON of a request may contain at most {limits.json_values} values. Send encoded images, because each "
            "is a single value, or send fewer images.",
            413,
        )
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        hint = 'Expected JSON such as {"instances": [{"b64": "..."}]}'
        raise RequestError(f"JSON Parse error: {error}. {hint}.") from error


def _rendered(method: Callable, body: bytearray) -> bytes:
    return json.dumps(method(body), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
