"""Development server: TF Serving's REST API on Starlette and uvicorn.

It serves the newest version of one model, without batching and without access control. Everything that a client decides
is bounded: the size of a body, the memory of all bodies together, the number of requests at a time, the time that a
request may take, and the time that stopping may take.

References:
    https://www.tensorflow.org/tfx/serving/api_rest
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import re
import socket
from collections.abc import Callable
from typing import Any

from absl import logging

from keras_vit.tf_serving.messages import RequestError
from keras_vit.tf_serving.served_model import ServedModel


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of a server.

    Attributes:
        body_bytes: Largest body of a request.
        buffered_bytes: Bodies of all requests together.
        json_lists: Lists and objects in a body: each takes more memory than its two characters.
        requests: Requests at a time, waiting ones included.
        workers: Requests that are computed at a time.
        read_seconds: Time that a request may take to arrive.
        answer_seconds: Time that its answer may take.
        grace_seconds: Time that requests under way get after SIGTERM.
    """

    body_bytes: int = 64 << 20
    buffered_bytes: int = 256 << 20
    json_lists: int = 4 << 20
    requests: int = 512
    workers: int = 8
    read_seconds: float = 30.0
    answer_seconds: float = 30.0
    grace_seconds: float = 30.0


class RestServer:
    """REST server of one model, which listens from its construction on.

    Args:
        model: Model to serve.
        host: Address to listen at.
        port: Port to listen at; 0 for any free one.
        limits: Bounds of the server.

    Raises:
        ImportError: If the extra is not installed.
        OSError: If the address is taken.
    """

    def __init__(self, model: ServedModel, host: str = "localhost", port: int = 0, limits: Limits | None = None):
        uvicorn = _import_uvicorn()
        self.model = model
        self.limits = limits or Limits()
        self._socket = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            make_app(model, self.limits),
            http="h11",
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
    """Return the ASGI application that serves a model.

    Args:
        model: Model to serve.
        limits: Bounds of the server.

    Raises:
        ImportError: If the extra is not installed.
    """
    _import_uvicorn()
    from starlette import applications, exceptions, requests, responses, routing

    workers = concurrent.futures.ThreadPoolExecutor(limits.workers, thread_name_prefix="predict")
    held = {"requests": 0, "bytes": 0}

    async def answer(request: requests.Request, method: Callable, *arguments: object) -> responses.Response:
        """Run a method of the model in a worker thread, with every error as JSON."""
        status = 200
        try:
            held["requests"] += 1
            if held["requests"] > limits.requests:
                raise RequestError("The server has too many requests under way.", 503)
            version = _parse_version(request.path_params.get("version"))
            with contextlib.ExitStack() as stack:
                if request.method == "POST":
                    arguments = (await read_body(request, stack),)
                work = asyncio.get_running_loop().run_in_executor(
                    workers, method, request.path_params["name"], version, *arguments
                )
                try:
                    content = await asyncio.wait_for(work, limits.answer_seconds)
                except TimeoutError as error:
                    raise RequestError(f"No answer within {limits.answer_seconds} s.", 504) from error
        except RequestError as error:
            status, content = error.status, {"error": str(error)}
        except requests.ClientDisconnect:
            status, content = 400, {"error": "The client closed the connection."}
        except Exception as error:  # a client must get an answer, and the others theirs
            logging.exception("%s %s failed", request.method, request.url.path)
            status, content = 500, {"error": f"{type(error).__name__}: {str(error)[:1000]}".split("\n", 1)[0]}
        finally:
            held["requests"] -= 1
        return responses.JSONResponse(content, status, {"Connection": "close"} if status in (408, 413, 503) else None)

    async def read_body(request: requests.Request, stack: contextlib.ExitStack) -> bytes:
        """Read a body within the limits.

        One that is too large is read to its end and dropped: a client that is still sending would not see the answer.
        """
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or len(declared) > 15 or int(declared) > 8 * limits.body_bytes:
            raise RequestError(_too_large(limits, declared[:30]), 413)
        chunks: list[bytes] = []
        refused, total = None, 0
        try:
            async with asyncio.timeout(limits.read_seconds):
                async for chunk in request.stream():
                    total += len(chunk)
                    if total > limits.body_bytes:
                        refused = refused or RequestError(_too_large(limits, f"at least {total}"), 413)
                    elif held["bytes"] + len(chunk) > limits.buffered_bytes:
                        refused = refused or RequestError("The server has too many requests under way.", 503)
                    if refused:
                        chunks.clear()
                        continue
                    chunks.append(chunk)
                    held["bytes"] += len(chunk)
                    stack.callback(_release, held, len(chunk))
        except TimeoutError as error:
            raise RequestError(f"The request did not arrive within {limits.read_seconds} s.", 408) from error
        if refused:
            raise refused
        return b"".join(chunks)

    def predict(name: str, version: int | None, body: bytes) -> dict[str, Any]:
        return model.predict(name, version, _parse_json(body, limits))

    def endpoint(method: Callable) -> Callable:
        async def call(request: requests.Request) -> responses.Response:
            return await answer(request, method)

        return call

    async def malformed(request: requests.Request, _: Exception) -> responses.Response:
        message = f"Malformed request: {request.method} {request.url.path[:200]}"
        return responses.JSONResponse({"error": message}, 404)

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
    if body.count(b"[") + body.count(b"{") > limits.json_lists:
        raise RequestError(f"The JSON of a request may hold at most {limits.json_lists} lists and objects.", 413)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"JSON Parse error: {error}") from error


def _too_large(limits: Limits, received: str) -> str:
    return f"A request may have at most {limits.body_bytes} bytes. Received: {received}."


def _release(held: dict[str, int], count: int) -> None:
    held["bytes"] -= count


def _import_uvicorn() -> Any:
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        extra = "keras-vision-transformers[serving]"
        raise ImportError(f"The development server needs Starlette and uvicorn: pip install '{extra}'") from error
    return uvicorn
